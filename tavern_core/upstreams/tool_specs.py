"""What an upstream lists becomes tools of this host: ids, what they may do, and what is too odd to be a tool.

Everything here is hostile until it was checked: names, descriptions and schemas were written by the upstream. Pure: nothing is asked.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Final

from tavern_core.contract.adapters import Listing, UpstreamTool
from tavern_core.model.ids import is_local_name
from tavern_core.model.limits import NO_LIMITS
from tavern_core.model.nearest import fold
from tavern_core.model.safe_text import printed
from tavern_core.model.tool import ToolSpec
from tavern_core.model.upstream import ToolOverride, UpstreamConfig
from tavern_core.tam import neutralise

MAX_TOOLS: Final = 10_000
MAX_NAME: Final = 256
MAX_DESCRIPTION: Final = 8_000
TIMEOUT_MS: Final = 60_000
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_READABLE: Final = 50


def local_name(name: str) -> str:
    """The part of the id behind the colon: the upstream's name where that can stand in an id, else one made of it.

    >>> local_name("get_time"), local_name("获取 时间")
    ('get_time', 'tool_9bb6bbb4c3')
    """
    if is_local_name(name):
        return name
    readable = _FOREIGN.sub("_", name).strip("_.-")[:_READABLE] or "tool"
    return f"{readable}_{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:10]}"


def sound(listing: Listing, config: UpstreamConfig) -> tuple[dict[str, UpstreamTool], dict[str, str]]:
    """The tools of a listing that can be offered, by name; and why others cannot.

    Args:
        config: what the operator allows.
    """
    found: dict[str, UpstreamTool] = {}
    left_out: dict[str, str] = {_shown(str(name)): str(why)[:500] for name, why in listing.left_out.items()}
    taken: dict[str, str] = {}
    for number, tool in enumerate(listing.tools):
        if number >= MAX_TOOLS:
            left_out["…"] = f"only the first {MAX_TOOLS:,} tools of an upstream are read"
            break
        name = tool.name if isinstance(tool.name, str) else ""
        if why := _flaw(tool, name):
            left_out[_shown(name) or f"#{number + 1}"] = why
        elif not is_allowed(name, config):
            continue
        elif (other := taken.setdefault(fold(local_name(name)), name)) != name or name in found:
            left_out[name if other != name else f"{name} (again)"] = f"its name is too much like that of {other!r}"
        else:
            found[name] = replace(tool, description=_description(tool.description))
    return found, left_out


def _shown(name: str) -> str:
    """A name as it may stand in a list, whatever signs it holds."""
    return (name if name.isprintable() else printed(name)[1:-1])[:MAX_NAME]


def is_allowed(name: str, config: UpstreamConfig) -> bool:
    """Whether the operator lets this tool in."""
    if any(fnmatchcase(name, pattern) for pattern in config.deny):
        return False
    return config.allow is None or any(fnmatchcase(name, pattern) for pattern in config.allow)


def _flaw(tool: UpstreamTool, name: str) -> str:
    from tavern_core.schema.check import check_schema

    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        return f"a name has 1 to {MAX_NAME} printable characters"
    if not isinstance(tool.input_schema, Mapping) or tool.input_schema.get("type", "object") != "object":
        return "its parameters are no JSON Schema of an object"
    for schema, what in ((tool.input_schema, "parameters"), (tool.output_schema, "answer")):
        if schema is None:
            continue
        findings = check_schema(schema, name, output=what == "answer")
        if bad := [finding for finding in findings if finding.severity == "error"]:
            return f"the schema of its {what} is refused: {bad[0].message}"[:500]
    return ""


def _description(text: object) -> str:
    if not isinstance(text, str):
        return ""
    return neutralise(text if len(text) <= MAX_DESCRIPTION else f"{text[:MAX_DESCRIPTION]}…")


def spec_of(tool: UpstreamTool, name: str, config: UpstreamConfig, needs: frozenset[str]) -> ToolSpec:
    """The tool as this host offers it.

    Args:
        name: of the upstream.
    """
    plugin = config.plugin_name(name)
    override = config.tools.get(tool.name) or _NOTHING
    needs = needs | tool.capabilities
    destructive = bool(tool.destructive) or any(c.startswith("danger:") for c in needs)
    trusted = config.trust_annotations
    return ToolSpec(
        f"{plugin}:{local_name(tool.name)}",
        description=_first(override.description, tool.description),
        kind=config.kind,
        version=tool.version or "0",
        tags=tool.tags,
        input_schema={"type": "object", **tool.input_schema},
        output_schema=tool.output_schema,
        capabilities=needs if override.capabilities is None else frozenset(override.capabilities),
        endpoint=config.url,
        display_name=tool.display_name,
        plugin=plugin,
        examples=tool.examples,
        read_only=_first(override.read_only, trusted and bool(tool.read_only) and not destructive),
        destructive=_first(override.destructive, destructive),
        idempotent=_first(override.idempotent, trusted and bool(tool.idempotent or tool.read_only)),
        timeout_ms=override.timeout_ms or config.timeout_ms or tool.timeout_ms or TIMEOUT_MS,
        implementation={"upstream": name, "tool": tool.name},
        source=f"upstream {name}",
        requires_approval=bool(override.requires_approval),
        optional=bool(override.optional),
        job=_first(override.job, tool.is_job),
        limits=NO_LIMITS if override.limits is None else override.limits.limits(),
    )


_NOTHING: Final = ToolOverride()


def _first(said: Any, otherwise: Any) -> Any:
    return otherwise if said is None else said


def unknown_overrides(config: UpstreamConfig, known: Iterable[str]) -> list[str]:
    """Tools that the entry speaks of and that the upstream does not have."""
    there = set(known)
    return sorted(name for name in config.tools if name not in there)
