"""The part of JSON Schema that simple checks can decide, as a table: for each type of value, its conditions.

A shape may accept less than its schema, never more: a value that it does not accept is not refused, but left to
the engine. So the engine decides about 1.0 where an integer is required, and about undeclared
properties. Keywords that depend on several places (`oneOf`, `if`, `minProperties`, `uniqueItems` …) have no
shape, so each place can be checked on its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from types import NoneType
from typing import Any, Final, TypeAlias

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model import depths
from tavern_core.schema.tree import SchemaReferences

MAX_PLACES: Final = 100
_EXACT: Final = 1 << 53
"""The limit up to which integers and floats compare equal in every language."""

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (NoneType,),
    "array": (list,),
    "object": (dict,),
}
_SAYS_NOTHING: Final = frozenset(
    {
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "format",
        "$defs",
        "definitions",
    }
)
_OF_TEXT: Final = frozenset({"minLength", "maxLength"})
_OF_NUMBERS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_OF_ARRAYS: Final = frozenset({"items", "minItems", "maxItems"})
_OF_OBJECTS: Final = frozenset({"properties", "required", "additionalProperties"})
_KNOWN: Final = frozenset({"type", "enum", "const", *_OF_TEXT, *_OF_NUMBERS, *_OF_ARRAYS, *_OF_OBJECTS})


class NoShape(Exception):
    """The schema has a rule that simple checks cannot decide."""


@dataclass(frozen=True, slots=True)
class ScalarShape:
    """Text (with its length), a number, true, false or null."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    among: frozenset[Any] | None = None


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """An array."""

    each: Shape
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """An object with declared properties; undeclared properties are left to the engine."""

    named: dict[str, Shape] = field(default_factory=dict)
    required: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class MapShape:
    """An object with any names and values of one shape."""

    each: Shape


@dataclass(frozen=True, slots=True)
class AnyShape:
    """Any array, any object."""


Rule: TypeAlias = "ScalarShape | ArrayShape | ObjectShape | MapShape | AnyShape"
Shape: TypeAlias = "dict[type, Rule]"

ANYTHING: Final[Shape] = {
    **dict.fromkeys((str, int, float, bool, NoneType), ScalarShape()),
    **dict.fromkeys((list, dict), AnyShape()),
}


class ShapeReader:
    """Reads one prepared schema (`prepare`).

    Attributes:
        defaults: the shape of each place that has a `default`, with that default.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self.defaults: list[tuple[Shape, Any]] = []
        self._refs = SchemaReferences(schema)
        self._places = 0

    def shape(self, node: object, level: int = 0) -> Shape:
        """The shape of one place. Raises NoShape: there is none."""
        self._places += 1
        if self._places > MAX_PLACES or level > depths.COMPILED:
            raise NoShape("too large")
        if node is True:
            return ANYTHING
        if not isinstance(node, dict):
            raise NoShape("false")
        says = {keyword for keyword in node.keys() - _SAYS_NOTHING if not keyword.startswith("x-")}
        if says & {"$ref", "anyOf"}:
            found = self._elsewhere(node, says, level)
        elif says <= _KNOWN:
            found = dict(self._own(node, says, level))
        else:
            raise NoShape(str(sorted(says - _KNOWN)))
        if "default" in node:
            self.defaults.append((found, node["default"]))
        return found

    def _elsewhere(self, node: dict[str, Any], says: set[str], level: int) -> Shape:
        """A choice of shapes, distinguished by their types; or the referenced shape."""
        if "anyOf" not in says:
            found = self.shape(self._refs.resolve(node), level)
        else:
            found = {}
            for branch in node["anyOf"]:
                inner = self.shape(branch, level)
                if not found.keys().isdisjoint(inner):
                    raise NoShape("alternatives of one type")
                found.update(inner)
        if other_keywords := says - {"anyOf"} - {"$ref"}:
            if other_keywords != {"propertyNames"} or not _only_names(found, node["propertyNames"]):
                raise NoShape(str(sorted(other_keywords)))
        elif len(says) > 1:
            raise NoShape("$ref and anyOf")
        return found

    def _own(self, node: Mapping[str, Any], says: set[str], level: int) -> Iterator[tuple[type, Rule]]:
        chosen = [node["const"]] if "const" in node else node.get("enum")
        if "const" in node and "enum" in node:
            raise NoShape("const and enum")
        for kind in _kinds(node, says, chosen):
            if chosen is not None:
                if kind not in (list, dict, float):  # 1.0 equals 1: left to the engine
                    among = frozenset(value for value in chosen if type(value) is kind)
                    if among:
                        yield kind, self._scalar(kind, node, among)
            elif kind is list:
                yield (
                    list,
                    ArrayShape(
                        self.shape(node.get("items", True), level + 1),
                        _count(node, "minItems") or 0,
                        _count(node, "maxItems"),
                    ),
                )
            elif kind is dict:
                yield dict, self._object(node, level + 1)
            else:
                yield kind, self._scalar(kind, node, None)

    def _scalar(self, kind: type, node: Mapping[str, Any], among: frozenset[Any] | None) -> ScalarShape:
        if kind is str:
            return ScalarShape(_count(node, "minLength"), _count(node, "maxLength"), among=among)
        if kind is int or kind is float:
            return ScalarShape(
                _bound(node, "minimum"), _bound(node, "maximum"), _bound(node, "exclusiveMinimum"), _bound(node, "exclusiveMaximum"), among
            )  # fmt: skip
        return ScalarShape(among=among)

    def _object(self, node: Mapping[str, Any], level: int) -> Rule:
        properties, others = node.get("properties"), node.get("additionalProperties", True)
        if properties or others is False:
            named = {name: self.shape(part, level) for name, part in (properties or {}).items()}
            required = frozenset(node.get("required", ()))
            if not required <= named.keys():
                raise NoShape("required, but not declared")
            return ObjectShape(named, required)
        if "required" in node:
            raise NoShape("required, but not declared")
        return AnyShape() if others is True else MapShape(self.shape(others, level))


def _kinds(node: Mapping[str, Any], says: set[str], chosen: list[Any] | None) -> list[type]:
    """The possible types of a value."""
    written = node.get("type")
    if written is None:
        if chosen is not None:
            return list(dict.fromkeys(map(type, chosen)))
        if not says:
            return list(ANYTHING)
        if "properties" in says:
            return [dict]
        raise NoShape("no type")
    names = [written] if isinstance(written, str) else written
    return list(dict.fromkeys(kind for name in names for kind in _TYPES[name]))


def _count(node: Mapping[str, Any], keyword: str) -> int | None:
    number = node.get(keyword)
    if number is None or (type(number) is int and 0 <= number <= _EXACT):
        return number
    raise NoShape(keyword)


def _bound(node: Mapping[str, Any], keyword: str) -> float | None:
    number = node.get(keyword)
    if number is None or (type(number) in (int, float) and -_EXACT <= number <= _EXACT):
        return number
    raise NoShape(keyword)


def _only_names(shape: Shape, rule: object) -> bool:
    """True if an object of this shape has only names that `propertyNames` lists, as `closed` writes it."""
    rules = shape.get(dict)
    if rules is None:
        return True
    listed = rule.get("enum") if isinstance(rule, dict) and rule.keys() == {"enum"} else None
    return isinstance(rules, ObjectShape) and isinstance(listed, list) and rules.named.keys() <= set(listed)
