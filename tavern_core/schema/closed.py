"""Refuse undeclared arguments, so that a misspelt argument is an error.

JSON Schema accepts undeclared properties. For a tool's parameters that is the wrong default, so a *place* (the whole
object, a property's value, an array's item) whose schema declares properties without a rule for others is closed:

    {"properties": {"a": …}}                    → + additionalProperties: false
    with allOf, anyOf, oneOf, if or $ref beside → + propertyNames: {enum: every name declared anywhere for this place}

The second form refuses exactly the names that no branch declares, so it never refuses a value that a branch allows
(`additionalProperties` in a branch would not see the other branches, and `$ref` targets may be used in two places).
Left open on purpose: a place with additionalProperties, unevaluatedProperties, patternProperties or `$dynamicRef`
anywhere, a nested object that declares no property, and a place one of whose alternatives is a free-form object.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tavern_core.schema.tree import SAME, SAME_PLACE_LISTS, SchemaReferences, deeper, nodes_of, same_place

_SAYS_ITSELF = frozenset(
    {"additionalProperties", "unevaluatedProperties", "patternProperties", "$dynamicRef", "$recursiveRef"}
)
_ALSO_HERE = SAME | {"$ref"}


def close(schema: dict[str, Any], refs_stand_alone: bool = False) -> None:
    """Close every place of `schema` in place (pass a copy).

    Args:
        schema: checked parameters of a tool; all `$ref`s resolve inside it.
        refs_stand_alone: True in draft 7, which ignores everything next to a `$ref`.
    """
    nodes = nodes_of(schema)
    refs = SchemaReferences(schema)
    open_targets = _combined_targets(nodes, refs) if any("$ref" in node for node in nodes) else set()
    places: list[dict[str, Any]] = [schema]
    visited = {id(schema)}
    for node in nodes:
        for place in deeper(node):
            if id(place) not in visited:
                visited.add(id(place))
                places.append(place)
    # All decisions first: closing one place must not count as a declaration for the next.
    closings = [
        (place, names)
        for place in places
        if id(place) not in open_targets and (names := declared_names(place, refs, top=place is schema)) is not None
    ]
    for place, names in closings:
        _close_place(place, names, refs_stand_alone)


def declared_names(place: dict[str, Any], refs: SchemaReferences, top: bool = False) -> set[str] | None:
    """Every property name of a place, or None if it stays open."""
    if _ALSO_HERE.isdisjoint(place):  # only this schema applies to this place
        if not _SAYS_ITSELF.isdisjoint(place):
            return None
        known = place.get("properties") or (top and place.get("type") == "object")
        return set(_names(place)) if known else None
    nodes = list(refs.together([place]))
    if any(keyword in node for node in nodes for keyword in _SAYS_ITSELF):
        return None
    names = {name for node in nodes for name in _names(node)}
    return names if _declares(place, refs, {}) else None


def _close_place(place: dict[str, Any], names: set[str], refs_stand_alone: bool) -> None:
    if _ALSO_HERE.isdisjoint(place) and names <= place.get("properties", {}).keys():
        place["additionalProperties"] = False
        return
    rule: Any = {"enum": sorted(names)} if names else False
    if refs_stand_alone and "$ref" in place:
        reference = {"$ref": place.pop("$ref")}
        place["allOf"] = [reference]  # everything else here was ignored, except definitions that others reference
        for ignored in place.keys() - {"allOf", "definitions", "$id"}:
            del place[ignored]
        place["propertyNames"] = rule
    elif "propertyNames" in place:
        place["allOf"] = [*place.get("allOf", ()), {"propertyNames": rule}]
    else:
        place["propertyNames"] = rule


def _names(node: dict[str, Any]) -> Iterator[str]:
    yield from node.get("properties", ())
    yield from node.get("required", ())
    if "dependentRequired" not in node and "dependencies" not in node and "dependentSchemas" not in node:
        return
    for name, needed in {**node.get("dependentRequired", {}), **node.get("dependencies", {})}.items():
        yield name
        yield from needed if isinstance(needed, list) else ()
    yield from node.get("dependentSchemas", {})


def _declares(node: dict[str, Any] | bool, refs: SchemaReferences, known: dict[int, bool]) -> bool:
    """Does the schema declare the properties of an object here? Every alternative must, or one `allOf` part.

    `known` holds the answers so far; a schema in a cycle declares nothing new.
    """
    if not isinstance(node, dict):
        return False
    if id(node) not in known:
        known[id(node)] = False
        known[id(node)] = _says(node, refs, known)
    return known[id(node)]


def _says(node: dict[str, Any], refs: SchemaReferences, known: dict[int, bool]) -> bool:
    if node.get("properties"):
        return True
    if (target := refs.resolve(node)) is not None and _declares(target, refs, known):
        return True
    if any(_declares(part, refs, known) for part in node.get("allOf", ())):
        return True
    for keyword in ("anyOf", "oneOf"):
        objects = [branch for branch in node.get(keyword, ()) if _may_be_object(branch, refs, set())]
        if objects and all(_declares(branch, refs, known) for branch in objects):
            return True
    return False


def _may_be_object(node: dict[str, Any] | bool, refs: SchemaReferences, visited: set[int]) -> bool:
    if not isinstance(node, dict) or id(node) in visited:
        return node is True
    kind = node.get("type")
    if kind is not None and kind != "object" and "object" not in kind:
        return False
    if "const" in node:
        return isinstance(node["const"], dict)
    if "enum" in node:
        return any(isinstance(value, dict) for value in node["enum"])
    target = refs.resolve(node)
    return target is None or _may_be_object(target, refs, visited | {id(node)})


def _combined_targets(nodes: list[dict[str, Any]], refs: SchemaReferences) -> set[int]:
    """Places that another schema references *and extends*: if closed, they would refuse the extension."""
    found: set[int] = set()
    for node in nodes:
        parts = [node] if "$ref" in node and ("properties" in node or any(k in node for k in SAME_PLACE_LISTS)) else []
        parts += [inner for _, inner in same_place(node) if "$ref" in inner]
        found.update(id(target) for part in parts if isinstance(target := refs.resolve(part), dict))
    return found
