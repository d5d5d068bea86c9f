"""A JSON Schema as a tree of subschemas: which keywords contain schemas, and the target of a local `$ref`.

Only values of these keywords are schemas: a `$ref` in an `enum`, a `default` or an `x-` keyword is data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeAlias, TypeVar
from urllib.parse import unquote, urldefrag, urljoin

from tavern_core.model.json_pointer import split_pointer
from tavern_core.schema.bounded_json_copying import json_copy

T = TypeVar("T")
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
Schema: TypeAlias = "dict[str, Any] | bool"

SAME_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
SAME_PLACE = ("if", "then", "else", "not")
SAME_PLACE_MAPS = ("dependentSchemas", "dependencies")
"""Keywords whose schemas apply to the same value as their parent."""

_DEEPER = (
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "items",
)
_DEEPER_LISTS = ("prefixItems", "items")
_DEEPER_MAPS = ("properties", "patternProperties")
_DEFINITIONS = ("$defs", "definitions")

_ONE = frozenset((*SAME_PLACE, *_DEEPER))
_LIST = frozenset((*SAME_PLACE_LISTS, *_DEEPER_LISTS))
_MAP = frozenset((*SAME_PLACE_MAPS, *_DEEPER_MAPS, *_DEFINITIONS))
SAME = frozenset((*SAME_PLACE, *SAME_PLACE_LISTS, *SAME_PLACE_MAPS))
_DEFS = frozenset(_DEFINITIONS)


def children(node: dict[str, Any]) -> Iterator[tuple[tuple[object, ...], dict[str, Any]]]:
    """The schemas directly inside `node` (booleans left out), each with its path from there."""
    for keyword, value in node.items():
        if isinstance(value, dict):
            if keyword in _MAP:
                for name, inner in value.items():
                    if isinstance(inner, dict):
                        yield (keyword, name), inner
            elif keyword in _ONE:
                yield (keyword,), value
        elif isinstance(value, list) and keyword in _LIST:
            for at, inner in enumerate(value):
                if isinstance(inner, dict):
                    yield (keyword, at), inner


def same_place(node: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas inside `node` that apply to the same value, each with its keyword; `$ref` is not followed."""
    for path, inner in children({keyword: node[keyword] for keyword in node if keyword in SAME}):
        yield str(path[0]), inner


def deeper(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas inside `node` that apply to a part of the value: each starts its own place."""
    for path, inner in children(node):
        if path[0] not in SAME and path[0] not in _DEFS:
            yield inner


def walk(schema: Schema) -> Iterator[tuple[tuple[object, ...], dict[str, Any]]]:
    """Every subschema that is an object, the root first, each with its path. Iterative: depth does not matter."""
    stack: list[tuple[tuple[object, ...], dict[str, Any]]] = [((), schema)] if isinstance(schema, dict) else []
    while stack:
        path, node = stack.pop()
        yield path, node
        for step, inner in children(node):
            stack.append(((*path, *step), inner))


def nodes_of(schema: Schema) -> list[dict[str, Any]]:
    """Every subschema that is an object, the root first."""
    found = [schema] if isinstance(schema, dict) else []
    for node in found:  # the list grows while it is read
        for _, inner in children(node):
            found.append(inner)
    return found


class SchemaReferences:
    """The targets of the `$ref`s of one schema, never outside of it.

    Args:
        schema: the root. `$id` sets a new base, `$anchor` names a place, `#/…` is a JSON pointer.
    """

    def __init__(self, schema: Schema) -> None:
        self._roots: dict[str, Schema] = {}
        self._anchors: dict[tuple[str, str], dict[str, Any]] = {}
        self._base: dict[int, str] = {}
        self._schemas: set[int] = set()
        self._index(schema)

    def _index(self, schema: Schema) -> None:
        self._roots[""] = schema
        stack: list[tuple[dict[str, Any], str]] = [(schema, "")] if isinstance(schema, dict) else []
        while stack:
            node, base = stack.pop()
            identifier = node.get("$id")
            if isinstance(identifier, str) and not identifier.startswith("#"):
                base = _join(base, urldefrag(identifier)[0])
                self._roots.setdefault(base, node)
            elif isinstance(identifier, str):  # draft 7 names a place by `$id: "#name"`
                self._anchors.setdefault((base, identifier[1:]), node)
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(name := node.get(keyword), str):
                    self._anchors.setdefault((base, name), node)
            self._base[id(node)] = base
            self._schemas.add(id(node))
            stack.extend((inner, base) for _, inner in children(node))

    def resolve(self, node: dict[str, Any], keyword: str = "$ref") -> Schema | None:
        """The schema that `node[keyword]` names; None if the target is not a schema in this root."""
        ref = node.get(keyword)
        if not isinstance(ref, str):
            return None
        address, fragment = urldefrag(_join(self._base.get(id(node), ""), ref))
        root = self._roots.get(address)
        if root is None:
            return None
        if fragment and not fragment.startswith("/"):
            return self._anchors.get((address, unquote(fragment)))
        found = follow(root, split_pointer(unquote(fragment)))
        return found if isinstance(found, bool) or id(found) in self._schemas else None

    def together(self, schemas: Iterable[Any], keywords: Collection[str] = SAME) -> Iterator[dict[str, Any]]:
        """The schemas that apply to one place: `schemas`, those they reference, and those under their `keywords`."""
        stack, visited = list(schemas)[::-1], set()
        while stack:
            node = stack.pop()
            if isinstance(node, dict) and id(node) not in visited:
                visited.add(id(node))
                yield node
                stack += [inner for keyword, inner in same_place(node) if keyword in keywords][::-1]
                stack.append(self.resolve(node))


def _join(base: str, ref: str) -> str:
    if ref.startswith("#"):  # urljoin forgets the base of schemes it does not know, such as `urn:`
        return base + ref
    try:
        return urljoin(base, ref) if base else ref
    except ValueError:
        return ref


def follow(document: Any, parts: list[str]) -> Any:
    """The value at a JSON pointer in a document, or None."""
    for part in parts:
        if isinstance(document, dict) and part in document:
            document = document[part]
        elif isinstance(document, list) and part.isascii() and part.isdecimal() and int(part) < len(document):
            document = document[int(part)]
        else:
            return None
    return document


def leading_to(found: Iterable[T], places: Iterable[T], inside: Callable[[T], Iterable[T]]) -> set[int]:
    """The ids of the places from which one of `found` can be reached, including `found` themselves.

    Args:
        inside: the places that are reached from one in a single step.
    """
    above: dict[int, list[T]] = {}
    for place in places:
        for inner in inside(place):
            above.setdefault(id(inner), []).append(place)
    reached: set[int] = set()
    waiting = list(found)
    while waiting:
        place = waiting.pop()
        if id(place) not in reached:
            reached.add(id(place))
            waiting += above.get(id(place), ())
    return reached


# Normalise ------------------------------------------------------------------------------------------------------------
# One spelling for keywords that other documents spell differently: `defaultValue` (plugin.yaml examples) is `default`.


def normalise_schema(schema: Any) -> Any:
    """A copy in which `defaultValue` is `default`; if both exist, `default` wins.

    Args:
        schema: any value; a value that is not JSON is returned unchanged, for the checks to refuse.
    """
    copy, problem = json_copy(schema)
    if problem is not None:
        return schema
    for node in nodes_of(copy):
        if "defaultValue" in node:
            value = node.pop("defaultValue")
            node.setdefault("default", value)
    return copy
