"""The nodes of an isolated plugin, as the engine sees them: async functions that ask the worker."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any, Final

from tavern_core.errors import InputInvalid, UpstreamError
from tavern_core.kernel.engine.trouble import MisfitInput
from tavern_core.kernel.isolation.frames import judged
from tavern_core.kernel.isolation.incarnation import Kind
from tavern_core.kernel.isolation.node_wire import heard_node, pack_value, unpack_answer
from tavern_core.kernel.isolation.supervisor import Supervisor
from tavern_core.kernel.nodes.code import NodeCode
from tavern_core.model.node import NodeSpec

CONTEXT: Final = "tavern_node_context"
"""The parameter that gets the context: no slot has this name."""
_tokens: Final = itertools.count(1)


def far_node(supervisor: Supervisor, told: Mapping[str, Any]) -> NodeSpec:
    """A node type as the worker told it."""
    if told["code"] is None:
        return heard_node(told["node"], None)
    form, context, takes_all, names_outputs, where = told["code"]
    kind: Kind = "loop" if form == "async" else "sync"
    type_ = str(told["node"]["type"])

    async def run(**inputs: Any) -> Any:
        ctx = inputs.pop(CONTEXT, None)
        token = next(_tokens)
        given: dict[str, Any] = {"type": type_, "inputs": {key: pack_value(value) for key, value in inputs.items()}, "token": token}
        if ctx is not None:
            given["context"] = _facts(ctx)
            supervisor.nodes[token] = ctx, asyncio.get_running_loop()
        try:
            packed = judged(await supervisor.ask_later("node", given, kind, type_))
        except InputInvalid as error:
            if "slot" not in error.details:
                raise
            raise MisfitInput(str(error.details["slot"]), str(error.details.get("why"))) from None
        finally:
            supervisor.nodes.pop(token, None)
        try:
            return unpack_answer(packed)
        except (ValueError, TypeError, AttributeError) as error:
            raise UpstreamError(f"{type_} of an isolated plugin sent {error}", outcome="unknown") from error

    code = NodeCode(
        run, "async", CONTEXT if context else "", takes_all=takes_all is True, names_outputs=names_outputs is True, where=str(where)
    )
    return heard_node(told["node"], code)


def _facts(ctx: Any) -> dict[str, Any]:
    return {
        "run": ctx.run_id, "path": ctx.path, "type": ctx.type, "config": pack_value(dict(ctx.config))[1], "mode": ctx.mode,
        "attempt": ctx.attempt,
    }  # fmt: skip
