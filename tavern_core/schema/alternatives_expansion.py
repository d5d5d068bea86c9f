"""The alternatives that a JSON Schema allows: unions taken apart, `allOf` merged, local references followed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

from tavern_core.model import depths
from tavern_core.schema.tree import SchemaReferences

_MAX_ALTERNATIVES: Final = 100
_UNIONS: Final = ("anyOf", "oneOf")


class SchemaRoot:
    """The root of a schema, in which the references of its parts point.

    Args:
        schema: anything but a JSON object allows everything.
    """

    def __init__(self, schema: object) -> None:
        self.schema: dict[str, Any] = dict(schema) if isinstance(schema, Mapping) else {}

    @cached_property
    def _refs(self) -> SchemaReferences:
        return SchemaReferences(self.schema)

    def resolve(self, schema: Any) -> Any:
        """Follow the local `$ref` of `schema`; other references and endless ones mean anything."""
        for _ in range(depths.WRAPPED):
            if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
                return schema
            target = self._refs.resolve(schema)
            siblings = {key: value for key, value in schema.items() if key != "$ref"}
            schema = (
                {**target, **siblings} if isinstance(target, dict) else siblings or (True if target is None else target)
            )
        return {}

    def alternatives(self, schema: Any, depth: int = 0) -> list[Any]:
        """The alternatives of one of its parts."""
        schema = self.resolve(schema)
        if not isinstance(schema, dict) or depth > depths.BRANCHES:
            return [schema]
        if isinstance(parts := schema.get("allOf"), list):
            without_all_of = {key: value for key, value in schema.items() if key != "allOf"}
            parts = [part for each in parts if isinstance(part := self.resolve(each), dict)]
            schema = {key: value for part in (*parts, without_all_of) for key, value in part.items()}
        found: list[Any] = []
        for word in _UNIONS:
            if isinstance(options := schema.get(word), list) and options:
                without_unions = {key: value for key, value in schema.items() if key not in _UNIONS}
                for option in options:
                    for leaf in self.alternatives(option, depth + 1):
                        found.append({**without_unions, **leaf} if isinstance(leaf, dict) else leaf)
                        if len(found) >= _MAX_ALTERNATIVES:
                            return found
        return found or [schema]

    @cached_property
    def properties(self) -> dict[str, list[Any]]:
        """The declared properties, each with all its schemas: those inside `allOf`, `anyOf`, `oneOf` and `$ref` at the top, too."""
        found: dict[str, list[Any]] = {}
        waiting: list[Any] = [self.schema]
        visited: set[int] = set()
        for node in waiting:  # the list grows while it is read
            if not isinstance(node, dict) or id(node) in visited:
                continue
            visited.add(id(node))
            if isinstance(properties := node.get("properties"), dict):
                for name, schema in properties.items():
                    if isinstance(name, str):
                        found.setdefault(name, []).append(schema)
            if "$ref" in node:
                waiting.append(self._refs.resolve(node))
            for keyword in ("allOf", *_UNIONS):
                waiting.extend(node[keyword] if isinstance(node.get(keyword), list) else ())
        return found


def types_of(leaf: Any) -> frozenset[str]:
    """The JSON types that one alternative allows; without `type`: string, and the type that its keywords are about."""
    if not isinstance(leaf, dict):
        return frozenset(("string",)) if leaf is not False else frozenset()
    declared = leaf.get("type")
    if isinstance(declared, str):
        return frozenset((declared,))
    if isinstance(declared, list):
        return frozenset(name for name in declared if isinstance(name, str))
    if "properties" in leaf:
        return frozenset(("object", "string"))
    if "items" in leaf or "prefixItems" in leaf:
        return frozenset(("array", "string"))
    return frozenset(("string",))


def literals_of(leaf: Any) -> list[Any] | None:
    """The values that an alternative lists; None if it lists none."""
    if isinstance(leaf, dict):
        if "const" in leaf:
            return [leaf["const"]]
        if isinstance(listed := leaf.get("enum"), list):
            return listed
    return None
