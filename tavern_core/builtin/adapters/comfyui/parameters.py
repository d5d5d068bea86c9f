"""The tool of a template: the schema of each parameter follows from the node types of the server (``/object_info``)."""

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
"""Node type → its definition in ``/object_info``."""
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
    """The node types whose definitions must be known."""
    return {template.graph[node]["class_type"] for one in template.parameters for node, _ in one.places}


def tool_of(template: Template, info: Info | None) -> UpstreamTool:
    """The tool of a template.

    Args:
        info: at least of `classes_of`; None: nothing is known of node types.

    Raises:
        BadTemplate: a parameter cannot be a value, or the server has no such node.
    """
    properties: dict[str, Any] = {}
    required, files, seeds = [], [], []
    for parameter in template.parameters:
        rows = [_row(template, place, info) for place in parameter.places]
        schema = _whole_schema(parameter, rows)
        own_values = _own_values(template, parameter)
        if "default" not in schema and _fits(schema, default := _default(parameter, own_values, rows[0])):
            schema["default"] = default
        if parameter.is_file or any(row is not None and _is_upload(row) for row in rows):
            files.append(parameter.name)
            schema = {"type": "string", "minLength": 1, "description": parameter.written.get("description", _FILE)}
        elif any(slot in _SEEDS for _, slot in parameter.places) and "default" not in parameter.written:
            seeds.append(parameter.name)
            schema.pop("default", None)
            schema["description"] = schema.get("description") or "Chosen at random where it is left out."
        if parameter.name not in seeds and "default" not in schema and not own_values:
            required.append(parameter.name)
        properties[parameter.name] = schema
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


def _whole_schema(parameter: Parameter, rows: list[list[Any] | None]) -> dict[str, Any]:
    """The schema of a parameter, from its nodes and the file beside the template.

    Raises:
        BadTemplate: the host cannot validate its pattern, and ComfyUI validates none.
    """
    schema = {**_schema(parameter, rows), **parameter.written}
    if why := untried_reason(schema):
        raise BadTemplate(f"{parameter.name}: its schema is refused: {why}")
    return schema


def _data(template: Template, files: list[str], seeds: list[str]) -> dict[str, Any]:
    """The data for a call of the tool: the graph, and the places of its arguments."""
    return {
        "graph": template.graph,
        "places": {parameter.name: [list(place) for place in parameter.places] for parameter in template.parameters},
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
    definition = info.get(kind)
    if not isinstance(definition, Mapping):
        raise BadTemplate(f"the server has no node type {kind!r:.80} (node {node}), or cannot describe it")
    for part in ("required", "optional"):
        row = object_at(definition, "input", part).get(slot)
        if isinstance(row, list) and row:
            return [row[0], object_at(row[1]) if len(row) > 1 else {}]
    raise BadTemplate(f"{kind} (node {node}) has no input {slot!r:.80}")


def _schema(parameter: Parameter, rows: list[list[Any] | None]) -> dict[str, Any]:
    """JSON Schema of one parameter, from its first place; that of a string if the parameter is within a text."""
    row = rows[0]
    if not parameter.is_whole:
        return {"type": "string"}
    if row is None:
        return {} if "type" in parameter.written or "enum" in parameter.written else dict(_SCALAR)
    kind, options = row
    choices = options.get("options") if kind == "COMBO" else kind
    if isinstance(choices, list):
        schema = _of_choices(choices)
    elif isinstance(kind, str) and kind in _TYPES:
        schema = {"type": _TYPES[kind], **_bounds(kind, options)}
    else:
        place = " of node ".join(reversed(parameter.places[0]))
        raise BadTemplate(
            f"{parameter.name}: {place} takes a {kind!s:.40}; only numbers, texts, truth values and choices can be parameters"
        )
    if isinstance(tooltip := options.get("tooltip"), str) and tooltip:
        schema["description"] = tooltip[:_LONGEST_TOOLTIP]
    return schema


def _default(parameter: Parameter, own_values: list[Any], row: list[Any] | None) -> Any:
    """The default of a parameter: the value of the workflow, else the server's default; None if neither has one."""
    if own_values:
        return own_values[0] if all(value == own_values[0] for value in own_values) else None
    return row[1].get("default") if row is not None and parameter.is_whole else None


def _of_choices(choices: list[Any]) -> dict[str, Any]:
    plain = list(dict.fromkeys(c for c in choices if isinstance(c, str | int) or _is_number(c)))
    return {"enum": plain} if 0 < len(plain) <= _MOST_CHOICES else {"type": "string"}


def _bounds(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    if kind not in ("INT", "FLOAT"):
        return {}
    bounds = {"minimum": options.get("min"), "maximum": options.get("max")}
    return {key: value for key, value in bounds.items() if _is_number(value)}


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


def _own_values(template: Template, parameter: Parameter) -> list[Any]:
    """The values of the workflow itself in the places of a parameter; empty if one of them is a mark or missing."""
    inputs = [(template.graph[node]["inputs"], slot) for node, slot in parameter.places]
    if all(slot in node_inputs and "{{" not in str(node_inputs[slot]) for node_inputs, slot in inputs):
        return [node_inputs[slot] for node_inputs, slot in inputs]
    return []
