"""Turns an upstream's listing into tools of this host: their ids, their rights, and what is refused.

Everything here is hostile until it is checked: the upstream wrote names, descriptions and schemas. Pure: no I/O.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from itertools import islice
from typing import Any, Final

from tavern_core.contract.adapters import Listing, UpstreamTool
from tavern_core.errors import UpstreamError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.plugins.tool_spec_validation import VERSION
from tavern_core.model.call_limits import NO_LIMITS, ToolLimits
from tavern_core.model.capability import DESTRUCTIVE, is_dangerous
from tavern_core.model.naming_rules import is_local_name
from tavern_core.model.nearest import did_you_mean, fold
from tavern_core.model.plain_data import with_texts
from tavern_core.model.safe_printing import printed, said, seen, with_type
from tavern_core.model.tool import Example, ToolSpec
from tavern_core.model.upstream_config import ToolOverride, UpstreamConfig
from tavern_core.model.wildcard import matches
from tavern_core.schema.problem import printable
from tavern_core.tam.neutralise import foreign_prose, neutralise_json
from tavern_core.upstreams.listing_cache import UncheckedPattern, UpstreamDefinitions, kept_json

MAX_TOOLS: Final = 10_000
MAX_NAME: Final = 256
MAX_DESCRIPTION: Final = 8_000
MAX_LEFT_OUT: Final = 1_000
MAX_UNCHECKED: Final = 20
"""Patterns of one tool that are reported by name."""
MAX_DEFINITION: Final = 1_000_000
MAX_DEFINITIONS: Final = 24_000_000
"""Bytes of JSON: of one tool, and of all of an upstream."""
TIMEOUT_MS: Final = 60_000
_LONGEST_MS: Final = 86_400_000
_LONGEST_TTL_MS: Final = 30 * _LONGEST_MS
_PROSE: Final = frozenset({"title", "description", "$comment"})
_DATA: Final = frozenset({"const", "default", "enum", "examples"})
"""Keywords of a schema that contain values and no schemas."""
_NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords with a mapping from names to schemas."""
_TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_READABLE: Final = 50


def local_name(name: str) -> str:
    """The part of the id after the colon: the upstream's name if it is valid in an id, else a derived one.

    >>> local_name("get_time"), local_name("获取 时间")
    ('get_time', 'tool_5a69922747')
    """
    if is_local_name(name):
        return name
    readable = _FOREIGN.sub("_", name).strip("_.-")[:_READABLE] or "tool"
    return f"{readable}_{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:10]}"


def well_formed(answer: object) -> Listing:
    """The checked listing of an adapter, with bounds; `sound` checks its tools.

    Raises:
        UpstreamError: it is not a listing (UPSTREAM_ERROR).
    """
    if not isinstance(answer, Listing):
        raise UpstreamError(
            f"its adapter listed its tools with {printed(answer)}, which is not a Listing", outcome="none"
        )
    try:
        tools = tuple(islice(answer.tools, MAX_TOOLS + 1))
        left_out = {_shown(said(name)): said(why)[:500] for name, why in islice(answer.left_out.items(), MAX_LEFT_OUT)}
        ttl_ms = None if answer.ttl_ms is None else min(max(int(answer.ttl_ms), 0), _LONGEST_TTL_MS)
    except Exception as error:
        raise UpstreamError(
            f"its adapter listed its tools with what is not a Listing: {with_type(error)}", outcome="none"
        ) from error
    etag, description, version = (seen(said(text or "")) for text in (answer.etag, answer.description, answer.version))
    return Listing(tools, ttl_ms, etag[:1_000], left_out, description[:2_000], version[:100])


@dataclass(frozen=True, slots=True)
class Masks:
    """Functions that remove secrets from texts."""

    every: Callable[[str], str]
    """Removes all secrets of the host: an upstream may repeat its credentials."""
    own: Callable[[str], str]
    """Removes the secrets that this upstream was given."""


def sound(listing: Listing, config: UpstreamConfig, masks: Masks) -> tuple[dict[str, UpstreamTool], dict[str, str]]:
    """The valid tools of a listing by name; and why others were left out.

    Args:
        listing: checked by `well_formed`.
        config: the operator's rules.
    """
    found: dict[str, UpstreamTool] = {}
    left_out = dict(listing.left_out)
    taken: dict[str, str] = {}
    room = MAX_DEFINITIONS
    for number, tool in enumerate(listing.tools):
        if number >= MAX_TOOLS:
            left_out["…"] = f"only the first {MAX_TOOLS:,} tools of an upstream are read"
            break
        name = tool.name if isinstance(tool, UpstreamTool) and isinstance(tool.name, str) else ""
        if why := _flaw(tool, name):
            if len(left_out) < MAX_LEFT_OUT:
                left_out[_shown(name) or f"#{number + 1}"] = why
        elif not is_allowed(name, config):
            continue
        elif masks.own(name) != name:
            left_out[f"#{number + 1}"] = "its name holds a secret of this upstream"
        elif (other := taken.setdefault(fold(local_name(name)), name)) != name or name in found:
            left_out[name if other != name else f"{name} (again)"] = f"its name is too much like that of {other!r}"
        elif (room := room - _size(tool)) < 0:
            left_out["…"] = f"the definitions of its tools have more than {MAX_DEFINITIONS:,} bytes"
            break
        else:
            found[name] = _masked_tool(tool, masks)
    return found, left_out


def unchecked_patterns(tools: Mapping[str, UpstreamTool]) -> dict[str, tuple[UncheckedPattern, ...]]:
    """Name → the patterns in the schemas of valid tools that the host cannot validate; only tools with any."""
    from tavern_core.schema.prepare import untried_patterns

    found: dict[str, tuple[UncheckedPattern, ...]] = {}
    for name, tool in tools.items():
        each = (("inputSchema", tool.input_schema), ("outputSchema", tool.output_schema))
        rows = (
            UncheckedPattern(f"/{key}{pointer}", printable(pattern, MAX_NAME), printable(why, MAX_NAME))
            for key, schema in each
            if isinstance(schema, dict)
            for pointer, pattern, why in untried_patterns(schema)
        )
        if kept := tuple(islice(rows, MAX_UNCHECKED)):
            found[name] = kept
        if len(found) == MAX_LEFT_OUT:
            break
    return found


def _masked_tool(tool: UpstreamTool, masks: Masks) -> UpstreamTool:
    mask = masks.every
    return replace(
        tool,
        description=_description(tool.description, mask),
        display_name=foreign_prose(mask(tool.display_name)),
        version=mask(tool.version),
        tags=tuple(map(mask, tool.tags)),
        examples=tuple(_example(example, masks) for example in tool.examples),
        input_schema=_harmless(tool.input_schema, masks),
        output_schema=_harmless(tool.output_schema, masks),
    )


def _shown(name: str) -> str:
    """A name made safe for a list, whatever characters it contains."""
    return (name if name.isprintable() else printed(name)[1:-1])[:MAX_NAME]


def is_allowed(name: str, config: UpstreamConfig) -> bool:
    """Whether the operator allows this tool."""
    if config.deny and any(matches(pattern, name) for pattern in config.deny):
        return False
    return config.allow is None or any(matches(pattern, name) for pattern in config.allow)


def _flaw(tool: UpstreamTool, name: str) -> str:
    from tavern_core.schema.schema_check import check_schema

    if not isinstance(tool, UpstreamTool):
        return "it is not an UpstreamTool"
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        return f"a name has 1 to {MAX_NAME} printable characters"
    if not isinstance(tool.input_schema, Mapping) or tool.input_schema.get("type", "object") != "object":
        return "its parameters are not the JSON Schema of an object"
    for schema, part in ((tool.input_schema, "parameters"), (tool.output_schema, "answer")):
        if schema is None:
            continue
        findings = check_schema(schema, name, output=part == "answer", is_foreign=True)
        if bad := [finding for finding in findings if finding.severity == "error"]:
            return f"the schema of its {part} is refused: {bad[0].message}"[:500]
        if (odd := next((key for key in _names_in(schema) if neutralise_json(key) != key), None)) is not None:
            return f"the schema of its {part} has a name that could be read as a call: {printed(odd)}"[:500]
    return next(
        (f"its `{key}` has a wrong type" for key, fits in _FIELDS.items() if not fits(getattr(tool, key))), ""
    ) or _size_flaw(tool)


def _names_in(schema: Any) -> Iterator[str]:
    """The names that a schema defines: models write them, so they must be shown unchanged."""
    if isinstance(schema, list | tuple):
        for part in schema:
            yield from _names_in(part)
    elif isinstance(schema, Mapping):
        for key, part in schema.items():
            if key in _NAMED and isinstance(part, Mapping):
                yield from part
                for inner in part.values():
                    yield from _names_in(inner)
            elif key not in _DATA:
                yield from _names_in(part)


def _size(tool: UpstreamTool) -> int:
    """The bytes of its definition. Raises TypeError, ValueError and RecursionError: it is not JSON."""
    return len(json.dumps(kept_json(tool), allow_nan=False, ensure_ascii=False).encode())


def _size_flaw(tool: UpstreamTool) -> str:
    """The reason why a tool cannot be stored; empty if it can."""
    try:
        size = _size(tool)
    except (TypeError, ValueError, RecursionError) as error:
        return f"its definition is not JSON: {with_type(error)}"[:500]
    return "" if size <= MAX_DEFINITION else f"its definition has more than {MAX_DEFINITION:,} bytes"


def _texts(value: object) -> bool:
    return isinstance(value, tuple | frozenset) and all(isinstance(item, str) for item in value)


def _claim(value: object) -> bool:
    return value is None or isinstance(value, bool)


_FIELDS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "display_name": lambda value: isinstance(value, str),
    "version": lambda value: isinstance(value, str),
    "tags": _texts,
    "capabilities": _texts,
    "examples": lambda value: isinstance(value, tuple) and all(isinstance(item, Example) for item in value),
    "read_only": _claim,
    "destructive": _claim,
    "idempotent": _claim,
    "is_job": lambda value: isinstance(value, bool),
    "forwards_key": lambda value: isinstance(value, bool),
    "finds_by_key": lambda value: isinstance(value, bool),
    "timeout_ms": lambda value: value is None or (type(value) is int and 0 < value <= _LONGEST_MS),
    "data": lambda value: isinstance(value, Mapping),
}
"""Field of an `UpstreamTool` → whether a value is valid. Adapters are typed, but plugins are not checked by mypy."""


def _description(text: object, mask: Callable[[str], str]) -> str:
    if not isinstance(text, str):
        return ""
    text = mask(text)
    return foreign_prose(text if len(text) <= MAX_DESCRIPTION else f"{text[:MAX_DESCRIPTION]}…")


def _harmless(schema: Any, masks: Masks | None) -> Any:
    """A schema whose texts cannot be read as a call and contain no secrets; its meaning stays the same.

    The other parts have a meaning. So secrets that the upstream was not given, and can only have guessed, stay there.

    Args:
        masks: None: leave these texts out.
    """
    if isinstance(schema, list | tuple):
        return [_harmless(part, masks) for part in schema]
    mask_own = str if masks is None else masks.own
    if not isinstance(schema, Mapping):
        return schema if schema in _TYPES else with_texts(schema, mask_own)  # such a word is not a secret
    changed: dict[str, Any] = {}
    for key, part in schema.items():
        if key in _NAMED and isinstance(part, Mapping):
            changed[key] = {mask_own(name): _harmless(inner, masks) for name, inner in part.items()}
        elif key in _PROSE and isinstance(part, str):
            if masks is not None:
                changed[key] = foreign_prose(masks.every(part))
        else:
            changed[key] = with_texts(part, mask_own) if key in _DATA else _harmless(part, masks)
    return changed


def _example(example: Example, masks: Masks) -> Example:
    written = {field.name: getattr(example, field.name) for field in fields(example)}
    return replace(example, **with_texts(written, masks.every))


def quarantined_spec(tool: UpstreamTool) -> UpstreamTool:
    """A quarantined tool as listed, without texts: models read no unreviewed text."""
    return replace(
        tool,
        description="In quarantine: its definition is not the one that was reviewed.",
        display_name=local_name(tool.name),
        tags=(),
        examples=(),
        input_schema=_harmless(tool.input_schema, None),
        output_schema=_harmless(tool.output_schema, None),
    )


def _rights(tool: UpstreamTool, override: ToolOverride, needs: frozenset[str]) -> tuple[frozenset[str], bool]:
    """The capabilities that callers of a tool need, and whether it may be destructive."""
    destructive = _first(override.destructive, bool(tool.destructive) or any(map(is_dangerous, needs)))
    capabilities = needs if override.capabilities is None else frozenset(override.capabilities)
    if destructive and (override.capabilities is None or override.destructive):
        capabilities |= {DESTRUCTIVE}
    return capabilities, destructive


def _implementation(tool: UpstreamTool, upstream: str) -> dict[str, Any]:
    marks = {"forwardsKey": tool.forwards_key, "findsByKey": tool.finds_by_key}
    return {"upstream": upstream, "tool": tool.name, **{name: True for name, is_set in marks.items() if is_set}}


def spec_of(tool: UpstreamTool, name: str, config: UpstreamConfig, needs: frozenset[str], stated: str = "") -> ToolSpec:
    """The tool as this host offers it.

    Args:
        name: the name of the upstream.
        stated: the version that the upstream states about itself.
    """
    plugin = config.plugin_name(name)
    override = config.tools.get(tool.name) or _NOTHING
    capabilities, destructive = _rights(tool, override, needs | tool.capabilities)
    trusted = config.trust_annotations
    local = local_name(tool.name)
    shown = tool.display_name or ("" if local == tool.name else foreign_prose(tool.name))
    return ToolSpec(
        f"{plugin}:{local}",
        description=_first(override.description, tool.description or shown),
        kind=config.kind,
        version=next(filter(VERSION.fullmatch, (tool.version, stated)), "0"),
        tags=tool.tags,
        input_schema={"type": "object", **tool.input_schema},
        output_schema=tool.output_schema,
        capabilities=capabilities,
        endpoint=config.url,
        resource_id=tool.name,
        display_name=shown,
        plugin=plugin,
        examples=tool.examples,
        read_only=_first(override.read_only, trusted and bool(tool.read_only) and not destructive),
        destructive=destructive,
        idempotent=_first(override.idempotent, trusted and bool(tool.idempotent or tool.read_only)),
        timeout_ms=override.timeout_ms or config.timeout_ms or tool.timeout_ms or TIMEOUT_MS,
        implementation=_implementation(tool, name),
        source=f"upstream {name}",
        requires_approval=bool(override.requires_approval),
        optional=bool(override.optional),
        job=_first(override.job, tool.is_job),
        limits=_limits(override, config),
    )


def _limits(override: ToolOverride, config: UpstreamConfig) -> ToolLimits:
    limits = NO_LIMITS if override.limits is None else override.limits.limits()
    return limits if config.idle_ms is None else limits.over(ToolLimits(idle_ms=config.idle_ms))


_NOTHING: Final = ToolOverride()


def _first(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value


def unknown_overrides(name: str, config: UpstreamConfig, definitions: UpstreamDefinitions) -> dict[str, str]:
    """Errors of the entry about tools that the upstream does not have → what to do about each."""
    known = {*definitions.tools, *definitions.left_out}
    unknown = sorted(tool for tool in config.tools if tool not in known and is_allowed(tool, config))
    return {
        f"upstreams.{name}.tools names {tool!r:.80}, which is not a tool of it": did_you_mean(tool, known)
        or "take it out of tavern.yaml"
        for tool in unknown
    }
