"""From slots of nodes and workflows to the JSON Schema of a tool's parameters (seed 000 §4.1.2 and §4.4.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tavern_core.model.node import ABSENT, JSON_TYPES, Slot, plain_default


def workflow_schema(inputs: Mapping[str, Slot]) -> dict[str, Any]:
    """The parameters of a workflow as a tool: one property per interface input; those marked so are required."""
    properties = {key: _property(slot, with_default=False) for key, slot in inputs.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required := [key for key, slot in inputs.items() if slot.required is True]:
        schema["required"] = required
    return schema


def node_schema(inputs: Mapping[str, Slot], config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The parameters of a single node as a tool: bounds and defaults carried over, required only without a default.

    Args:
        config: the configuration that the node runs with; functions of slots use it to decide what is required.
    """
    definitions: dict[str, Any] = {}
    properties = {key: _property(slot, with_default=True, definitions=definitions) for key, slot in inputs.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if definitions:
        schema["$defs"] = definitions
    if required := [k for k, s in inputs.items() if s.default is ABSENT and _is_required(s, config or {})]:
        schema["required"] = required
    return schema


def _is_required(slot: Slot, config: Mapping[str, Any]) -> bool:
    try:
        return slot.is_required(config)
    except (Exception, SystemExit):  # noqa: BLE001 - a function of a plugin, called with a configuration that it does not know
        return False


def _property(slot: Slot, *, with_default: bool, definitions: dict[str, Any] | None = None) -> dict[str, Any]:
    """The schema of a property.

    Args:
        definitions: gets the `$defs` of its schema.
    """
    item = {} if slot.schema is None or definitions is None else _hoisted(slot, definitions)
    if (type_ := JSON_TYPES.get(slot.type)) is not None:
        item["type"] = type_
    if slot.type == "BINARY":
        item["contentEncoding"] = "base64"
    if slot.is_closed:
        # Each value once, as JSON Schema wants it; 1 and true are two values.
        item["enum"] = [*{(type(choice), repr(choice)): choice for choice in slot.choices}.values()]
    for name, keyword in (("min", "minimum"), ("max", "maximum")):
        bound = slot.config.get(name)
        if isinstance(bound, int | float) and not isinstance(bound, bool) and slot.type in ("INTEGER", "FLOAT"):
            item[keyword] = bound
    is_list = slot.multi or (slot.is_stream and slot.type != "STRING")  # a stream of text is given as the whole text
    found = {"type": "array", "items": item} if is_list else item
    if text := slot.description or slot.display_name:
        found = _after_type(found, "description", text)
    if with_default and (default := plain_default(slot)) is not ABSENT and default is not None:
        found["default"] = default
    return found


def _hoisted(slot: Slot, shared: dict[str, Any]) -> dict[str, Any]:
    """The schema of a slot, with its `$defs` moved to the shared ones and renamed if a name is taken."""
    schema = dict(slot.schema or {})
    definitions = schema.pop("$defs", {})
    names = {
        name: name if shared.get(name, definition) == definition else f"{slot.key}.{name}"
        for name, definition in definitions.items()
    }
    references = {f"#/$defs/{name}": f"#/$defs/{other}" for name, other in names.items()}

    def renamed(part: Any) -> Any:
        if isinstance(part, Mapping):
            return {
                key: references.get(str(value), value) if key == "$ref" else renamed(value)
                for key, value in part.items()
            }
        return [renamed(item) for item in part] if isinstance(part, list) else part

    shared.update({names[name]: renamed(definition) for name, definition in definitions.items()})
    return renamed(schema)  # type: ignore[no-any-return]


def _after_type(schema: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """`schema` with one more key after the type, where people look for it."""
    head = {"type": schema["type"]} if "type" in schema else {}
    return {**head, key: value, **{k: v for k, v in schema.items() if k != "type"}}
