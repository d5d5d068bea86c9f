"""The tool of a template: what each parameter takes follows from the node types of the server (``/object_info``)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from tavern_core.builtin.adapters.comfyui.templates import BadTemplate, Parameter, Template
from tavern_core.contract.adapters import UpstreamTool

Info = Mapping[str, Any]
"""Node type → what ``/object_info`` says of it."""
_TYPES: Final = {"INT": "integer", "FLOAT": "number", "STRING": "string", "BOOLEAN": "boolean"}
_SEEDS: Final = frozenset({"seed", "noise_seed"})
_TIMEOUT_MS: Final = 1_800_000
"""A run may wait in the queue behind others."""
_MOST_CHOICES: Final = 1_000
_LONGEST_TOOLTIP: Final = 500
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
        schema = {**_schema(one, rows), **one.written}
        if one.is_file or any(row is not None and _is_upload(row) for row in rows):
            files.append(one.name)
            schema = {"type": "string", "minLength": 1, "description": one.written.get("description", _FILE)}
        elif any(slot in _SEEDS for _, slot in one.places) and "default" not in one.written:
            seeds.append(one.name)
            schema.pop("default", None)
            schema["description"] = schema.get("description") or "Chosen at random where it is left out."
        if one.name not in seeds and "default" not in schema and not _has_value(template, one):
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
        data={
            "graph": template.graph,
            "places": {one.name: [list(place) for place in one.places] for one in template.parameters},
            "files": files,
            "seeds": seeds,
            "outputs": list(about.get("outputs", ())),
        },
    )


def _row(template: Template, place: tuple[str, str], info: Info | None) -> list[Any] | None:
    """``[type, options]`` of an input; None where nothing is known of node types."""
    if info is None:
        return None
    node, slot = place
    kind = template.graph[node]["class_type"]
    known = info.get(kind)
    if not isinstance(known, Mapping):
        raise BadTemplate(f"the server has no node type {kind!r:.80} (node {node})")
    inputs = known.get("input")
    for part in ("required", "optional"):
        rows = inputs.get(part) if isinstance(inputs, Mapping) else None
        row = rows.get(slot) if isinstance(rows, Mapping) else None
        if isinstance(row, list) and row:
            options = row[1] if len(row) > 1 and isinstance(row[1], Mapping) else {}
            return [row[0], options]
    raise BadTemplate(f"{kind} (node {node}) has no input {slot!r:.80}")


def _schema(one: Parameter, rows: list[list[Any] | None]) -> dict[str, Any]:
    """JSON Schema of one parameter: of its first place; where it stands within a text, that of a text."""
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
    if _fits(schema, options.get("default")):
        schema["default"] = options["default"]
    if isinstance(tooltip := options.get("tooltip"), str) and tooltip:
        schema["description"] = tooltip[:_LONGEST_TOOLTIP]
    return schema


def _of_choices(choices: list[Any]) -> dict[str, Any]:
    plain = list(dict.fromkeys(c for c in choices if isinstance(c, str | int) or _is_number(c)))
    return {"enum": plain} if 0 < len(plain) <= _MOST_CHOICES else {"type": "string"}


def _bounds(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    if kind not in ("INT", "FLOAT"):
        return {}
    found = {"minimum": options.get("min"), "maximum": options.get("max")}
    return {key: value for key, value in found.items() if _is_number(value)}


def _fits(schema: Mapping[str, Any], value: Any) -> bool:
    """Whether a default that the server names is one."""
    if "enum" in schema:
        return value in schema["enum"]
    match schema["type"]:
        case "integer":
            fits = isinstance(value, int) and not isinstance(value, bool)
        case "number":
            fits = _is_number(value)
        case "boolean":
            return isinstance(value, bool)
        case _:
            return isinstance(value, str) and len(value) <= 10_000
    return fits and schema.get("minimum", value) <= value <= schema.get("maximum", value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_upload(row: list[Any]) -> bool:
    return any(row[1].get(f"{kind}_upload") is True for kind in ("image", "video", "audio", "file"))


def _has_value(template: Template, one: Parameter) -> bool:
    """Whether the workflow itself has a value where no mark stands."""
    return all(
        slot in template.graph[node]["inputs"] and "{{" not in str(template.graph[node]["inputs"][slot])
        for node, slot in one.places
    )
