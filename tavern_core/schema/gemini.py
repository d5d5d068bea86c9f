"""A JSON Schema in the subset that Gemini's `functionDeclarations[].parameters` accept (an OpenAPI 3.0 subset).

    $ref, allOf            expanded, merged             additionalProperties, patternProperties, not, if   dropped
    oneOf                  anyOf                        exclusiveMinimum of an integer                     minimum + 1
    type list, null        anyOf, nullable              const, enum of strings                             enum
    tuple                  array of anyOf               enum of other values, format                       in the description

Calls are still validated against the full schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tavern_core.model import depths
from tavern_core.schema.problem import json_type
from tavern_core.schema.tree import SchemaReferences

_KEPT = (
    "title",
    "description",
    "default",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "pattern",
)
_FORMATS = {"string": ("date-time",), "number": ("float", "double"), "integer": ("int32", "int64")}
_MOST_NODES = 5_000


def to_gemini(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema for Gemini; recursion is cut off at twelve levels."""
    root = dict(schema)
    return _GeminiWriter(root).write(root, 0)


class _GeminiWriter:
    """Writes one schema; counts what it writes, because expanded references multiply."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.refs = SchemaReferences(root)
        self.left = _MOST_NODES

    def write(self, node: Any, depth: int) -> dict[str, Any]:
        self.left -= 1
        if not isinstance(node, dict) or depth > depths.GEMINI or self.left < 0:
            return {"type": "object"} if isinstance(node, dict) else {"type": "string"}
        node = self.merged(node)
        options = [option for option in self.options(node) if option.get("type") != "null"]
        if len(options) < len(self.options(node)):
            node = {**node, "nullable": True}
        if len(options) > 1:
            written = [self.write(option, depth + 1) for option in options]
            return {**_described(node, {}), "anyOf": _distinct(written), **_nullable(node)}
        if options:
            node = self.merged(
                {**{key: value for key, value in node.items() if key not in ("anyOf", "oneOf", "type")}, **options[0]}
            )
        return self.single(node, depth)

    def merged(self, node: dict[str, Any]) -> dict[str, Any]:
        """The node with its reference and its `allOf` merged in; its own keywords take precedence."""
        merged: dict[str, Any] = {}
        for part in reversed(list(self.parts(node))):
            for keyword, value in part.items():
                if keyword == "properties" and isinstance(value, dict):
                    merged["properties"] = {**merged.get("properties", {}), **value}
                elif keyword == "required" and isinstance(value, list):
                    merged["required"] = list(dict.fromkeys([*merged.get("required", ()), *value]))
                elif keyword not in ("$ref", "allOf"):
                    merged[keyword] = value
        return merged

    def parts(self, node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        stack: list[Any] = [node]
        visited: set[int] = set()
        while stack:
            part = stack.pop(0)
            if isinstance(part, dict) and id(part) not in visited:
                visited.add(id(part))
                yield part
                stack.append(self.refs.resolve(part))
                stack.extend(part["allOf"] if isinstance(part.get("allOf"), list) else ())

    def options(self, node: dict[str, Any]) -> list[dict[str, Any]]:
        """The alternatives of a node: from `anyOf`, `oneOf`, or a list of types."""
        for keyword in ("anyOf", "oneOf"):
            if isinstance(node.get(keyword), list):
                return [self.merged(option) for option in node[keyword] if isinstance(option, dict)]
        kind = node.get("type")
        if isinstance(kind, list):
            shared = {
                key: value for key, value in node.items() if key not in ("type", "description", "title", "default")
            }
            return [{**shared, "type": each} for each in kind]
        return []

    def single(self, node: dict[str, Any], depth: int) -> dict[str, Any]:
        listed = [node["const"]] if "const" in node else node.get("enum")
        listed = listed if isinstance(listed, list) else []
        kind = node.get("type")
        if not isinstance(kind, str):
            kind = _implied(node, listed)
        written = _described(node, {"type": kind})
        if "default" in node:
            written["default"] = node["default"]
        notes = []
        if listed and kind == "string":
            written["enum"] = [value for value in listed if isinstance(value, str)]
        elif listed:
            notes.append("one of " + ", ".join(map(str, listed)))
        if isinstance(form := node.get("format"), str):
            if form in _FORMATS.get(kind, ()):
                written["format"] = form
            else:
                notes.append(f"format: {form}")
        written |= {key: node[key] for key in _KEPT if key in node and key not in written}
        if kind == "integer":
            for edge, inclusive, step in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
                if isinstance(node.get(edge), int):
                    written.setdefault(inclusive, node[edge] + step)
        if kind == "object":
            self.object(node, written, depth)
        elif kind == "array":
            written["items"] = self.items(node, depth)
        if notes:
            written["description"] = " ".join(filter(None, [written.get("description", ""), f"({'; '.join(notes)})"]))
        return written | _nullable(node)

    def object(self, node: dict[str, Any], written: dict[str, Any], depth: int) -> None:
        held = node.get("properties")
        if isinstance(held, dict) and held:
            written["properties"] = {name: self.write(part, depth + 1) for name, part in held.items()}
            required = [name for name in node.get("required", ()) if name in held]
            if required:
                written["required"] = required

    def items(self, node: dict[str, Any], depth: int) -> dict[str, Any]:
        first = node.get("prefixItems", node.get("items"))
        if isinstance(first, list):
            written = _distinct(self.write(part, depth + 1) for part in first)
            return written[0] if len(written) == 1 else {"anyOf": written} if written else {"type": "string"}
        return self.write(first, depth + 1)


def _described(node: dict[str, Any], written: dict[str, Any]) -> dict[str, Any]:
    return written | {key: node[key] for key in ("title", "description") if isinstance(node.get(key), str)}


def _nullable(node: dict[str, Any]) -> dict[str, Any]:
    return {"nullable": True} if node.get("nullable") is True else {}


def _implied(node: dict[str, Any], listed: list[Any]) -> str:
    """The type of a schema without `type`: Gemini requires one."""
    kinds = {json_type(value) for value in listed}
    if len(kinds) == 1 and (kind := kinds.pop()) != "null":
        return kind
    if "properties" in node or "additionalProperties" in node:
        return "object"
    return "array" if "items" in node or "prefixItems" in node else "string"


def _distinct(schemas: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for schema in schemas:
        if schema not in found:
            found.append(schema)
    return found
