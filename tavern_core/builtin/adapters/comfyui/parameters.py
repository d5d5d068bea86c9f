"""The tool of a template: what each parameter takes follows from the node types of the server (``/object_info``)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from tavern_core.builtin.adapters.comfyui.templates import BadTemplate, Parameter, Template
from tavern_core.contract.adapters import UpstreamTool
from tavern_core.contract.exchange import object_at
from tavern_core.errors import SchemaInvalid
from tavern_core.schema.prepare import untried_reason
from tavern_core.schema.validate import compile_validator

Info = Mapping[str, Any]
"""Node type → what ``/object_info`` says of it."""
_TYPES: Final = {"INT": "integer", "FLOAT": "number", "STRING": "string", "BOOLEAN": "boolean"}
_SEEDS: Final = frozenset({"seed", "noise_seed"})
_TIMEOUT_MS: Final = 1_800_000
"""A run may wait in the queue behind others."""
_MOST_CHOICES: Final = 1_000
_LONGEST_TOOLTIP: Final = 500
_LONGEST_DEFAULT: Final = 10_000
_FILE: Final = "An artifact (artifact:…), or the path of a file in the caller's workspace."
_SCALAR: Final = {"type": ["string", "number", "boolean"]}


def classes_of(template: Template) -> set[str]:
    """The node types of which the parameters must be known."""
    return {template.graph[node]["class_type"] for one in template.parameters for node, _ in one.places}


def tool_of(template: Template, info: Info | None) -> UpstreamTool:
    """The tool.

    Args:
        info: at least of `classes_of`; None: nothing is known of node types.

    Raises:
        BadTemplate: a parameter cannot be a value, or the server has no such node.
    """
    properties: dict[str, Any] = {}
    required, files, seeds = [], [], []
    for one in template.parameters:
        rows = [_row(template, place, info) for place in one.places]
        schema = _whole_schema(one, rows)
        own = _own_values(template, one)
        if "default" not in schema and _fits(schema, default := _default(one, own, rows[0])):
            schema["default"] = default
        if one.is_file or any(row is not None and _is_upload(row) for row in rows):
            files.append(one.name)
            schema = {"type": "string", "minLength": 1, "description": one.written.get("description", _FILE)}
        elif any(slot in _SEEDS for _, slot in one.places) and "default" not in one.written:
            seeds.append(one.name)
            schema.pop("default", None)
            schema["description"] = schema.get("description") or "Chosen at random where it is left out."
        if one.name not in seeds and "default" not in schema and not own:
            required.append(one.name)
        properties[one.name] = schema
    about = template.about
    return UpstreamTool(
        name=template.name,
        description=about.get("description", ""),
        input_schema={"type": "object", "properties": properties, "required": required},
        display_name=about.get("displayName", ""),
        tags=tuple(about.get("tags", ())),
        is_job=about.get("job", True),
        finds_by_key=True,
        timeout_ms=about.get("timeoutMs", _TIMEOUT_MS),
        data=_data(template, files, seeds),
    )


def _whole_schema(one: Parameter, rows: list[list[Any] | None]) -> dict[str, Any]:
    """What the nodes and the file beside the template say of a parameter. Raises BadTemplate: ComfyUI validates no pattern."""
    schema = {**_schema(one, rows), **one.written}
    if why := untried_reason(schema):
        raise BadTemplate(f"{one.name}: its schema is refused: {why}")
    return schema


def _data(template: Template, files: list[str], seeds: list[str]) -> dict[str, Any]:
    """What a call of the tool needs: the graph, and where its arguments go."""
    return {
        "graph": template.graph,
        "places": {one.name: [list(place) for place in one.places] for one in template.parameters},
        "files": files,
        "seeds": seeds,
        "outputs": list(template.about.get("outputs", ())),
    }


def _row(template: Template, place: tuple[str, str], info: Info | None) -> list[Any] | None:
    """``[type, options]`` of an input; None where nothing is known of node types."""
    if info is None:
        return None
    node, slot = place
    kind = template.graph[node]["class_type"]
    known = info.get(kind)
    if not isinstance(known, Mapping):
        raise BadTemplate(f"the server has no node type {kind!r:.80} (node {node})")
    for part in ("required", "optional"):
        row = object_at(known, "input", part).get(slot)
        if isinstance(row, list) and row:
            return [row[0], object_at(row[1]) if len(row) > 1 else {}]
    raise BadTemplate(f"{kind} (node {node}) has no input {slot!r:.80}")


def _schema(one: Parameter, rows: list[list[Any] | None]) -> dict[str, Any]:
    """JSON Schema of one parameter: of its first place; where it is within a text, that of a text."""
    row = rows[0]
    if not one.is_whole:
        return {"type": "string"}
    if row is None:
        return {} if "type" in one.written or "enum" in one.written else dict(_SCALAR)
    kind, options = row
    choices = options.get("options") if kind == "COMBO" else kind
    if isinstance(choices, list):
        schema = _of_choices(choices)
    elif isinstance(kind, str) and kind in _TYPES:
        schema = {"type": _TYPES[kind], **_bounds(kind, options)}
    else:
        place = " of node ".join(reversed(one.places[0]))
        raise BadTemplate(
            f"{one.name}: {place} takes a {kind!s:.40}; only numbers, texts, truth values and choices can be parameters"
        )
    if isinstance(tooltip := options.get("tooltip"), str) and tooltip:
        schema["description"] = tooltip[:_LONGEST_TOOLTIP]
    return schema


def _default(one: Parameter, own: list[Any], row: list[Any] | None) -> Any:
    """What a parameter is where it is left out: what the workflow has there, else what the server says; None: neither says it."""
    if own:
        return own[0] if all(value == own[0] for value in own) else None
    return row[1].get("default") if row is not None and one.is_whole else None


def _of_choices(choices: list[Any]) -> dict[str, Any]:
    plain = list(dict.fromkeys(c for c in choices if isinstance(c, str | int) or _is_number(c)))
    return {"enum": plain} if 0 < len(plain) <= _MOST_CHOICES else {"type": "string"}


def _bounds(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    if kind not in ("INT", "FLOAT"):
        return {}
    found = {"minimum": options.get("min"), "maximum": options.get("max")}
    return {key: value for key, value in found.items() if _is_number(value)}


def _fits(schema: Mapping[str, Any], value: Any) -> bool:
    """Whether a value of the workflow or of the server can be the default."""
    if value is None or (isinstance(value, str) and len(value) > _LONGEST_DEFAULT):
        return False
    try:
        return not compile_validator(schema).problems(value)
    except SchemaInvalid:  # of the file beside the template; reported when the tool is taken over
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_upload(row: list[Any]) -> bool:
    return any(row[1].get(f"{kind}_upload") is True for kind in ("image", "video", "audio", "file"))


def _own_values(template: Template, one: Parameter) -> list[Any]:
    """The values that the workflow itself has in the places of a parameter; empty where a mark is, or nothing."""
    inputs = [(template.graph[node]["inputs"], slot) for node, slot in one.places]
    if all(slot in given and "{{" not in str(given[slot]) for given, slot in inputs):
        return [given[slot] for given, slot in inputs]
    return []
