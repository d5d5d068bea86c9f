"""A tool that is declared without parameters becomes whole: its code says what it takes and gives.

    plugin.yaml or tool file    description, tags, examples, settings, security, timeout …      (the sketch)
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


def completed(sketch: ToolSpec, coded: ToolSpec, plugin_version: str) -> ToolSpec:
    """The tool that a declaration and its code make together.

    Args:
        plugin_version: what `coded` has for its version where the code says none.
    """
    return replace(
        coded,
        description=coded.description or sketch.description,
        version=sketch.version if coded.version in ("", "0", plugin_version) else coded.version,
        tags=tuple(dict.fromkeys([*sketch.tags, *coded.tags])),
        output_schema=sketch.output_schema if coded.output_schema is None else coded.output_schema,
        capabilities=sketch.capabilities | coded.capabilities,
        display_name=coded.display_name or sketch.display_name,
        optional=sketch.optional or coded.optional,
        aliases=tuple(dict.fromkeys([*sketch.aliases, *coded.aliases])),
        examples=coded.examples or sketch.examples,
        read_only=sketch.read_only or coded.read_only,
        destructive=sketch.destructive or coded.destructive,
        idempotent=sketch.idempotent or coded.idempotent,
        timeout_ms=sketch.timeout_ms if coded.timeout_ms is None else coded.timeout_ms,
        implementation=coded.implementation or sketch.implementation,
        config_schema=coded.config_schema or sketch.config_schema,
        requires_approval=sketch.requires_approval or coded.requires_approval,
        job=sketch.job or coded.job,
        limits=sketch.limits.over(coded.limits),
        untrusted=sketch.untrusted or coded.untrusted,
    )


def of_handler(thing: Any, sketch: ToolSpec, owner: Owner) -> ToolSpec:
    """The tool behind a `handler` whose tool file has no parameters: its signature says them, as under `@tool`.

    Args:
        thing: what ``module:name`` is.

    Raises:
        PluginError: not a tool, or a signature without a schema (ACTIVATION_FAILED, SCHEMA_INVALID).
    """
    if isinstance(thing, DescribesItself):
        return specs_of(Offer(thing.described(sketch), name=sketch.name), owner)[0]
    marked = isinstance(thing, Tool) or mark_of(thing) is not None or callable(getattr(thing, "execute", None))
    if not marked:
        if not callable(thing) or isinstance(thing, type):
            handler = sketch.implementation.get("handler")
            raise ActivationFailed(f"{sketch.id}: the handler {handler!r} is not a function", hint="name a function")
        thing = Tool(sketch.name, thing)
    return specs_of(Offer(thing, name=sketch.name), owner)[0]
