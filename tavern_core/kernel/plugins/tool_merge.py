"""A tool that is declared without parameters becomes whole: its code says what it takes and gives.

    plugin.yaml or tool file    description, tags, examples, settings, security, timeout …      (the draft)
    @tool, signature            parameters, output, what to run; and all that it says itself     (the code)

If both say something, the code wins, because it runs; needs and cautions of both count.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tavern_core.contract.tools import Offer, Tool, mark_of
from tavern_core.errors import ActivationFailed
from tavern_core.kernel.plugins.remote_plugin import DescribesItself
from tavern_core.kernel.plugins.tool_offers import Owner, specs_of
from tavern_core.model.tool import ToolSpec


def completed(draft: ToolSpec, coded: ToolSpec, plugin_version: str) -> ToolSpec:
    """The tool that a declaration and its code make together.

    Args:
        plugin_version: what `coded` has for its version where the code says none.
    """
    return replace(
        coded,
        description=coded.description or draft.description,
        version=draft.version if coded.version in ("", "0", plugin_version) else coded.version,
        tags=tuple(dict.fromkeys([*draft.tags, *coded.tags])),
        output_schema=draft.output_schema if coded.output_schema is None else coded.output_schema,
        capabilities=draft.capabilities | coded.capabilities,
        display_name=coded.display_name or draft.display_name,
        optional=draft.optional or coded.optional,
        aliases=tuple(dict.fromkeys([*draft.aliases, *coded.aliases])),
        examples=coded.examples or draft.examples,
        read_only=draft.read_only or coded.read_only,
        destructive=draft.destructive or coded.destructive,
        idempotent=draft.idempotent or coded.idempotent,
        timeout_ms=draft.timeout_ms if coded.timeout_ms is None else coded.timeout_ms,
        implementation=coded.implementation or draft.implementation,
        config_schema=coded.config_schema or draft.config_schema,
        requires_approval=draft.requires_approval or coded.requires_approval,
        job=draft.job or coded.job,
        limits=draft.limits.over(coded.limits),
        untrusted=draft.untrusted or coded.untrusted,
    )


def of_handler(thing: Any, draft: ToolSpec, owner: Owner) -> ToolSpec:
    """The tool behind a `handler` whose tool file has no parameters: its signature says them, as under `@tool`.

    Args:
        thing: what ``module:name`` is.

    Raises:
        PluginError: not a tool, or a signature without a schema (ACTIVATION_FAILED, SCHEMA_INVALID).
    """
    if isinstance(thing, DescribesItself):
        return specs_of(Offer(thing.described(draft), name=draft.name), owner)[0]
    marked = isinstance(thing, Tool) or mark_of(thing) is not None or callable(getattr(thing, "execute", None))
    if not marked:
        if not callable(thing) or isinstance(thing, type):
            handler = draft.implementation.get("handler")
            raise ActivationFailed(f"{draft.id}: the handler {handler!r} is not a function", hint="name a function")
        thing = Tool(draft.name, thing)
    return specs_of(Offer(thing, name=draft.name), owner)[0]
