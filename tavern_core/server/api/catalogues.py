"""The catalogues of nodes and tools: JSON of what the host has, without paths of its machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response

from tavern_core.errors import ToolNotFound
from tavern_core.kernel.catalogue.availability import ToolNeed
from tavern_core.kernel.catalogue.descriptions import export_for_model
from tavern_core.model.call import CallContext, caller_fix
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.node import NodeSpec
from tavern_core.model.tool import ToolSpec
from tavern_core.server.api.calls import ENTRY_POINT
from tavern_core.server.api.etag_cache import response_with_etag
from tavern_core.server.api.exchange import Exchange
from tavern_core.server.request_access import tools_stamp


async def nodes(exchange: Exchange) -> Response:
    """All node types, or those with some words or of one plugin."""
    words, plugin = exchange.query.get("query", ""), exchange.query.get("plugin", "")
    found = await asyncio.to_thread(exchange.tavern.nodes.list, query=words)
    if plugin:
        found = [spec for spec in found if spec.plugin == plugin]
    if words or plugin:
        return response_with_etag(_json_list(_shown(spec) for spec in found)).response(exchange.connection.headers)
    cache = exchange.state.kept
    answer = cache.get("nodes", found) or cache.put("nodes", found, _json_list(_shown(spec) for spec in found))
    return answer.response(exchange.connection.headers)


async def node(exchange: Exchange) -> Response:
    """One node type."""
    spec = await asyncio.to_thread(exchange.tavern.nodes.get_node, exchange.path["type"])
    return response_with_etag(to_json(_shown(spec))).response(exchange.connection.headers)


async def tools(exchange: Exchange) -> Response:
    """The tools that the caller may see, or those of them that fit some words."""
    words, usable = exchange.query.get("query", ""), exchange.flag("usable")
    if words:
        return response_with_etag(await asyncio.to_thread(_tools_json, exchange, words, usable)).response(
            exchange.connection.headers
        )
    tavern, holder, cache = exchange.tavern, exchange.holder, exchange.state.kept
    key, stamp = f"tools:{holder.id}:{usable}", tools_stamp(tavern, holder)
    if (answer := cache.get(key, stamp)) is None:
        answer = cache.put(key, stamp, await asyncio.to_thread(_tools_json, exchange, "", usable))
    return answer.response(exchange.connection.headers)


async def tool(exchange: Exchange) -> Response:
    """One tool, also in the format of a model API."""
    spec = await asyncio.to_thread(_visible_tool, exchange, exchange.path["id"])
    dialect = exchange.query.get("dialect")
    shown = _shown(spec) if dialect is None else export_for_model(spec, dialect)
    return response_with_etag(to_json(shown)).response(exchange.connection.headers)


def _tools_json(exchange: Exchange, words: str, usable: bool) -> bytes:
    tavern, context = exchange.tavern, exchange.holder.context()
    found = tavern.tool_specs(context=context)
    if words:
        by_id = {spec.id: spec for spec in found}
        best = tavern.tools.search(words, context=context, limit=len(found) or 1)
        found = tuple(by_id[spec.id] for spec in best if spec.id in by_id)
    lacking = tavern.tools.lacking(found, context=context)
    if usable:
        found = tuple(spec for spec in found if spec.id not in lacking or not lacking[spec.id].is_certain)
    return _json_list(
        {**_shown(spec), "lacks": _need_json(lacking[spec.id], spec, context)} if spec.id in lacking else _shown(spec)
        for spec in found
    )


def _need_json(need: ToolNeed, spec: ToolSpec, context: CallContext) -> dict[str, Any]:
    """The missing permissions of a tool; the client of a server can change its token, and not the caller in the host's code."""
    shown = need.to_json()
    return {**shown, "fix": caller_fix(context, spec.capabilities, ENTRY_POINT)} if need.side == "caller" else shown


def _visible_tool(exchange: Exchange, name: str) -> ToolSpec:
    """A tool by its id, however it is spelt. Raises ToolNotFound: there is none that this caller may see (TOOL_NOT_FOUND)."""
    found = exchange.tavern.tool_specs(context=exchange.holder.context())
    known = exchange.tavern.tools.get(name)
    for spec in found:
        if name == spec.id or (known is not None and known.id == spec.id):
            return spec
    raise ToolNotFound(f"there is no tool {name!r:.200}", hint=did_you_mean(name, [spec.id for spec in found]))


def _shown(spec: NodeSpec | ToolSpec) -> dict[str, Any]:
    return {name: value for name, value in spec.to_json().items() if name != "source"}


def _json_list(entries: Iterable[Mapping[str, Any]]) -> bytes:
    return b"[" + b",".join(to_json(entry, inf_nan_mode="null", fallback=str) for entry in entries) + b"]"
