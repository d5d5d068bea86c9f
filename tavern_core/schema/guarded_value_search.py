"""Finds the values that a schema marks as path, address or statement: compiled once for a tool, used at each call.

It walks arrays and objects, follows `$ref`, and follows every branch of `anyOf`, `oneOf` and `if` that could
apply. It skips a branch only if its `type`, `const`, `enum` or `required` exclude the value. It ignores
`pattern` and `format`, because the tool may read the value less strictly.
A mark on an array or object applies to every text in it. `propertyNames` may be marked, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.json_pointer import exact_pointer
from tavern_core.model.parameter_guard_marks import Guard, guard_of
from tavern_core.schema.patterns import fits, pattern_flaw
from tavern_core.schema.schema_lint_rules import draft_of
from tavern_core.schema.tree import REFERENCES, SchemaReferences, children, leading_to, nodes_of
from tavern_core.schema.uniqueness import identity

_MOST: Final = 100_000
"""Steps of one search; a larger value is refused."""


@dataclass(frozen=True, slots=True)
class GuardedValue:
    """A marked value of a call."""

    pointer: str
    """JSON pointer into the arguments."""
    value: Any
    guards: tuple[Guard, ...]
    """More than one if alternatives that could all apply mark it differently."""


class TooMuchMarked(Exception):
    """The arguments hold too many values to check."""


GuardedValueFinder = Callable[[Any], list[GuardedValue]]


def compile_guarded(schema: Mapping[str, Any] | bool | None) -> GuardedValueFinder | None:
    """A function that lists the marked values of arguments; None if the schema marks nothing.

    The function expects arguments that fit the schema. It raises TooMuchMarked if there are too many values.
    """
    if not isinstance(schema, dict):
        return None
    nodes = nodes_of(schema)
    if not any(guard_of(node) for node in nodes):
        return None
    refs = SchemaReferences(schema)
    alone = draft_of(schema) == "draft-07"
    parts = {id(node): _Subschema(node, guard_of(node), alone) for node in nodes}
    for part in parts.values():
        part.link(parts, refs)
    leading = leading_to((part for part in parts.values() if part.leads), parts.values(), _Subschema.below)
    for part in parts.values():
        part.leads = id(part) in leading
    root = parts[id(schema)]
    return lambda value: _GuardSearch().run(value, root) if root.leads else []


class _Subschema:
    """A subschema, with the parts for the same value and those for its members."""

    __slots__ = (
        "additional",
        "alone",
        "conditional",
        "dependent",
        "each",
        "guard",
        "leads",
        "members",
        "names",
        "node",
        "patterns",
        "places",
        "rest",
        "same",
    )

    def __init__(self, node: dict[str, Any], guard: Guard | None, alone: bool) -> None:
        self.node = node
        self.guard = guard
        self.alone = alone
        """True in draft 7, which ignores everything next to a `$ref`."""
        self.leads = guard is not None
        """True if a mark can be reached from here."""
        self.same: list[_Subschema] = []
        self.conditional: tuple[_Subschema, _Subschema | None, _Subschema | None] | None = None
        self.dependent: list[tuple[str, _Subschema]] = []
        self.members: dict[str, _Subschema] = {}
        self.patterns: list[tuple[str | None, _Subschema]] = []
        """(pattern of names, part); None for an invalid pattern, which then matches every name."""
        self.additional: list[_Subschema] = []
        self.names: list[_Subschema] = []
        self.places: list[_Subschema | None] = []
        self.each: list[_Subschema] = []
        self.rest: list[_Subschema] = []

    def link(self, parts: Mapping[int, _Subschema], refs: SchemaReferences) -> None:
        node = self.node
        for keyword in REFERENCES:
            if isinstance(target := refs.resolve(node, keyword), dict):
                self.same.append(parts[id(target)])
        for path, inner in children(node):
            keyword, part = str(path[0]), parts[id(inner)]
            if keyword in ("allOf", "anyOf", "oneOf"):
                self.same.append(part)
            elif keyword in ("dependentSchemas", "dependencies"):
                self.dependent.append((str(path[1]), part))
            elif keyword == "properties":
                self.members[str(path[1])] = part
            elif keyword == "patternProperties":
                written = str(path[1])
                self.patterns.append((written if pattern_flaw(written) is None else None, part))
            elif keyword in ("additionalProperties", "unevaluatedProperties"):
                self.additional.append(part)
            elif keyword == "propertyNames":
                self.names.append(part)
            elif keyword == "prefixItems" or (keyword == "items" and len(path) == 2):
                at = int(str(path[1]))
                self.places += [None] * (at + 1 - len(self.places))
                self.places[at] = part
            elif keyword == "items":
                (self.rest if "prefixItems" in node else self.each).append(part)
            elif keyword in ("additionalItems", "unevaluatedItems"):
                self.rest.append(part)
            elif keyword == "contains":
                self.each.append(part)
        if isinstance(node.get("if"), dict):
            then, other = (
                parts[id(schema)] if isinstance(schema := node.get(k), dict) else None for k in ("then", "else")
            )
            self.conditional = parts[id(node["if"])], then, other

    def fits(self, value: Any) -> bool | None:
        """Whether this applies to `value`: True, False, or None if types and constants cannot decide it."""
        return _fits(self.node, value, self.alone)

    def below(self) -> Iterator[_Subschema]:
        """Every part that can be reached in one step."""
        yield from self.same
        if self.conditional is not None:
            yield from (part for part in self.conditional if part is not None)
        yield from (part for _, part in self.dependent)
        yield from self.members.values()
        yield from (part for _, part in self.patterns)
        yield from self.additional + self.names + self.each + self.rest
        yield from (part for part in self.places if part is not None)

    def inside(self, value: Any) -> Iterator[tuple[object, Any, _Subschema, bool]]:
        """(key, value, part, whether the key itself is meant) for the members of `value`."""
        if isinstance(value, dict):
            for key, item in value.items():
                found = False
                if (member := self.members.get(key)) is not None or key in self.node.get("properties", ()):
                    found = True
                    if member is not None:
                        yield key, item, member, False
                for pattern, part in self.patterns:
                    if pattern is None or fits(pattern, key):
                        found = True
                        yield key, item, part, False
                if not found:
                    for part in self.additional:
                        yield key, item, part, False
                for part in self.names:
                    yield key, key, part, True
        elif isinstance(value, list):
            for at, item in enumerate(value):
                placed = self.places[at] if at < len(self.places) else None
                if placed is not None:
                    yield at, item, placed, False
                if at >= len(self.places):
                    for part in self.rest:
                        yield at, item, part, False
                for part in self.each:
                    yield at, item, part, False


@dataclass(slots=True)
class _GuardSearch:
    """A search through the arguments of one call."""

    found: dict[str, tuple[Any, dict[Guard, None]]] = field(default_factory=dict)
    steps: int = 0

    def run(self, value: Any, root: _Subschema) -> list[GuardedValue]:
        # (path, value, parts for it, marks of its parent)
        stack: list[tuple[tuple[object, ...], Any, list[_Subschema], tuple[Guard, ...]]] = [((), value, [root], ())]
        while stack:
            path, here, parts, inherited = stack.pop()
            judging = self._judging(here, parts)
            guards = tuple(dict.fromkeys([*inherited, *(p.guard for p in judging if p.guard is not None)]))
            deeper: dict[object, tuple[Any, list[_Subschema]]] = {}
            for part in judging:
                for key, item, inner, is_name in part.inside(here):
                    self._count()
                    if not inner.leads:
                        continue
                    if is_name:
                        self._name((*path, key), item, inner)
                    else:
                        deeper.setdefault(key, (item, []))[1].append(inner)
            if guards and isinstance(here, dict | list):
                for key, item in here.items() if isinstance(here, dict) else enumerate(here):
                    self._count()
                    deeper.setdefault(key, (item, []))
            elif guards and here is not None:
                self._keep(exact_pointer(path), here, guards)
            stack += [((*path, key), item, inners, guards) for key, (item, inners) in deeper.items()]
        return [GuardedValue(pointer, value, tuple(guards)) for pointer, (value, guards) in self.found.items()]

    def _name(self, path: tuple[object, ...], name: str, part: _Subschema) -> None:
        guards = tuple(p.guard for p in self._judging(name, [part]) if p.guard is not None)
        if guards:
            self._keep(f"{exact_pointer(path)} (its name)", name, guards)

    def _keep(self, pointer: str, value: Any, guards: Iterable[Guard]) -> None:
        self.found.setdefault(pointer, (value, {}))[1].update(dict.fromkeys(guards))

    def _judging(self, value: Any, parts: list[_Subschema]) -> list[_Subschema]:
        """All parts that may apply to this value."""
        judging: list[_Subschema] = []
        visited: set[int] = set()
        stack = [part for part in parts if part.leads and part.fits(value) is not False]
        while stack:
            part = stack.pop()
            if id(part) in visited:
                continue
            visited.add(id(part))
            self._count()
            judging.append(part)
            stack += [p for p in part.same if p.leads and p.fits(value) is not False]
            if part.conditional is not None:
                test, then, other = part.conditional
                holds = test.fits(value)
                if holds is not False:
                    stack += [p for p in (test, then) if p is not None and p.leads]
                if holds is not True and other is not None and other.leads:
                    stack.append(other)
            if isinstance(value, dict):
                stack += [p for name, p in part.dependent if name in value and p.leads]
        return judging

    def _count(self) -> None:
        self.steps += 1
        if self.steps > _MOST:
            raise TooMuchMarked


_KINDS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "string": lambda v: isinstance(v, str),
    "integer": lambda v: (isinstance(v, int) and not isinstance(v, bool)) or (isinstance(v, float) and v.is_integer()),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
}
_DECIDED: Final = frozenset({"type", "const", "enum", "required", "properties", "title", "description"})
"""Schemas with only these keywords can be decided."""


def _fits(node: Mapping[str, Any], value: Any, alone: bool, depth: int = 2) -> bool | None:
    if alone and "$ref" in node:
        return None
    kind = node.get("type")
    if isinstance(kind, str | list) and not any(
        _KINDS.get(k, _always)(value) for k in ([kind] if isinstance(kind, str) else kind)
    ):
        return False
    if "const" in node and not _same(node["const"], value):
        return False
    if isinstance(choices := node.get("enum"), list) and not any(_same(choice, value) for choice in choices):
        return False
    certain = not (node.keys() - _DECIDED)
    if isinstance(value, dict):
        if isinstance(needed := node.get("required"), list) and not all(name in value for name in needed):
            return False
        properties = node.get("properties")
        for name, inner in properties.items() if isinstance(properties, dict) and depth else ():
            if name in value:
                fits = inner if isinstance(inner, bool) else _fits(inner, value[name], alone, depth - 1)
                if fits is False:
                    return False
                certain = certain and fits is True
    return True if certain and depth else None


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict | list):
        return bool(identity(one) == identity(other))
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _always(_: Any) -> bool:
    return True
