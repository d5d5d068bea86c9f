"""Argument intake: copies and validates arguments in one walk that is compiled for their schema.

    intake = compile_intake(validator.judged_by, most_chars)      None: the schema is too complex
    intake(arguments)  ──>  a copy that fits and shares nothing mutable, with the names in the caller's order
                       └─>  None: undecided. The slow path copies, the engine validates and explains.

Copying (`quick_copy`) and validating (jsonschema-rs) visit the same values twice. For known names and simple types,
one walk takes half the time. It is compiled as `dataclasses` compiles an `__init__`: its source holds
comparisons and names that are generated here (``c3``, ``v1``); every name, number and text of the schema is a constant in the
namespace of the function.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from dataclasses import field
from typing import Any, Final, TypeAlias

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model import depths
from tavern_core.model.safe_printing import is_text
from tavern_core.schema.bounded_json_copying import SMALL, quick_copy
from tavern_core.schema.fast_schema_subset import (
    AnyShape,
    ArrayShape,
    MapShape,
    NoShape,
    ObjectShape,
    Rule,
    ScalarShape,
    Shape,
    ShapeReader,
)

Intake: TypeAlias = "Callable[[Any], dict[str, Any] | None]"

MANY: Final = 64
"""Items of one array, members of one table; more take the slow path."""
_LONGEST: Final = 4096
"""Characters of one text, likewise."""
_SHORTEST: Final = 256
_UNPACKED: Final = 16
"""Names of one object that are checked without a loop."""
_LOOSE: Final = 4096
"""Values and characters of a part without a schema, likewise."""


def compile_intake(schema: object, most_chars: int) -> Intake | None:
    """Compile the intake of a tool.

    Args:
        schema: the prepared and closed schema (`Validator.judged_by`).
        most_chars: characters of text in the arguments of one call.

    Returns:
        ``intake(arguments)``, which accepts anything and never raises. None if the schema has no shape (`shapes`), or
        if its defaults would have to be validated together with the rest.
    """
    if not isinstance(schema, dict):
        return None
    reading = ShapeReader(schema)
    try:
        rule = reading.shape(schema).get(dict)
        if not isinstance(rule, ObjectShape):
            return None
        longest = _longest_text(rule, most_chars)
        defaults = ObjectShape({str(at): shape for at, (shape, _) in enumerate(reading.defaults)})
        filled_in = {str(at): value for at, (_, value) in enumerate(reading.defaults)}
        if filled_in and _compiled(defaults, longest)(filled_in) is None:
            return None
        return _compiled(rule, longest)
    except NoShape:
        return None


def _longest_text(rule: Rule, most_chars: int) -> int:
    """The maximum length of each text, so that all texts and names together stay within `most_chars`.

    Raises:
        NoShape: there may be too many of them.
    """
    texts, others = _size(rule)
    longest = min(_LONGEST, (most_chars - others) // max(texts, 1))
    if longest < _SHORTEST:
        raise NoShape("too much text")
    return longest


def _size(rule: Rule) -> tuple[int, int]:
    """The maximum number of texts, and the maximum number of other characters."""
    match rule:
        case ScalarShape():
            return 1, 0
        case AnyShape():
            return 0, _LOOSE
        case ArrayShape(each):
            texts, others = _size_of(each)
            return MANY * texts, MANY * others
        case MapShape(each):
            texts, others = _size_of(each)
            return MANY * (texts + 1), MANY * others
        case ObjectShape(named):
            parts = [_size_of(shape) for shape in named.values()]
            return sum(texts for texts, _ in parts), sum(others for _, others in parts) + sum(map(len, named))


def _size_of(shape: Shape) -> tuple[int, int]:
    parts = [_size(rule) for rule in shape.values()]
    return max((texts for texts, _ in parts), default=0), max((others for _, others in parts), default=0)


def _compiled(rule: ObjectShape, longest: int) -> Intake:
    source = _IntakeSource(longest)
    source.line(0, "def intake(value):")
    source.line(1, "if type(value) is not dict: return None")
    source.line(1, "copy = value.copy()")
    source.members(1, "copy", rule)
    source.line(1, "return copy")
    exec("\n".join(source.lines), source.names)  # nothing of the schema is in it: see the top
    intake: Intake = source.names["intake"]
    return intake


_ABSENT: Final = object()
_NAMES: Final[dict[str, Any]] = {
    "__builtins__": {},
    **{kind.__name__: kind for kind in (str, int, float, bool, list, dict)},
    "NoneType": type(None),
    "type": type,
    "len": len,
    "enumerate": enumerate,
    "KeyError": KeyError,
    "ABSENT": _ABSENT,
    "is_text": is_text,
    "quick_copy": quick_copy,
}
"""The names available to the source of an intake, besides its constants."""


@dataclass(slots=True)
class _IntakeSource:
    """The source of one intake. Every ``return None`` in it means: use the slow path."""

    longest: int
    lines: list[str] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=_NAMES.copy)
    variables: int = 0

    def line(self, level: int, text: str) -> None:
        self.lines.append("    " * level + text)

    def constant(self, value: object) -> str:
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    def variable(self) -> str:
        self.variables += 1
        return f"v{self.variables}"

    def refuse(self, level: int, *doubts: str) -> None:
        if doubts:
            self.line(level, f"if {' or '.join(doubts)}: return None")

    def members(self, level: int, held: str, rule: ObjectShape) -> None:
        """Validate the members of the private copy `held`, and copy the mutable ones."""
        if is_exact := len(rule.required) == len(rule.named):
            self.refuse(level, f"len({held}) != {self.constant(len(rule.named))}")
        self.names_are_text(level, held, len(rule.named), is_exact=is_exact)
        keys = [self.constant(sys.intern(name)) for name in rule.named]
        items = [self.variable() for _ in keys]
        self.fetch(level, held, rule, keys, items, is_exact=is_exact)
        for (name, shape), key, item in zip(rule.named.items(), keys, items, strict=True):
            self.value(level, item, f"{held}[{key}]", shape, may_lack=name not in rule.required)

    def names_are_text(self, level: int, held: str, many: int, *, is_exact: bool) -> None:
        """Validate the names: of exactly `many` members, as most often, at once, which takes a third less; else in a loop.

        Args:
            is_exact: whether there are `many`.
        """
        if 1 < many <= _UNPACKED:
            names = [self.variable() for _ in range(many)]
            if not is_exact:
                self.line(level, f"if len({held}) == {self.constant(many)}:")
                level += 1
            self.line(level, f"{', '.join(names)} = {held}")
            self.refuse(level, *(f"type({name}) is not str" for name in names))
            if is_exact:
                return
            self.line(level - 1, "else:")
        self.line(level, f"for key in {held}:")
        self.refuse(level + 1, "type(key) is not str")

    def fetch(
        self, level: int, held: str, rule: ObjectShape, keys: list[str], items: list[str], *, is_exact: bool
    ) -> None:
        """Assign the members to variables, ABSENT for missing members; other members are refused.

        Args:
            is_exact: whether there are as many as the rule names, all of which are required.
        """
        if len(keys) < 4:
            members = list(zip(rule.named, keys, items, strict=True))
            needed = [f"{item} = {held}[{key}]" for name, key, item in members if name in rule.required]
            if needed:  # a look-up that may fail costs half of one with a default
                self.line(level, f"try: {'; '.join(needed)}")
                self.line(level, "except KeyError: return None")
            there = []
            for name, key, item in members:
                if name not in rule.required:
                    self.line(level, f"{item} = {held}.get({key}, ABSENT)")
                    there.append(f"({item} is not ABSENT)")
            if not is_exact:
                self.refuse(level, f"len({held}) != {' + '.join([self.constant(len(rule.required)), *there])}")
            return
        # All at once costs half as much. Missing members are ABSENT.
        full, names = held, [self.names[key] for key in keys]
        if not is_exact:
            full, count = self.variable(), self.constant(len(keys))
            absent = self.constant(dict.fromkeys(names, _ABSENT))
            self.line(level, f"{full} = {held}")
            self.line(level, f"if len({held}) != {count}:")
            self.line(level + 1, f"{full} = {absent} | {held}")
            self.refuse(level + 1, f"len({full}) != {count}")
        self.line(level, f"try: {', '.join(items)} = {self.constant(operator.itemgetter(*names))}({full})")
        self.line(level, "except KeyError: return None")

    def value(self, level: int, item: str, place: str, shape: Shape, *, may_lack: bool = False) -> None:
        """Validate `item`, which is at `place` in a private copy; it may be ABSENT if `may_lack`."""
        actual, word = f"type({item})", "if"
        if len(shape) > 1:
            actual = self.variable()
            self.line(level, f"{actual} = type({item})")
        for kind, rule in shape.items():
            self.line(level, f"{word} {actual} is {kind.__name__}:")
            before = len(self.lines)
            self.refuse(level + 1, *self.doubts(item, kind, rule))
            self.inside(level + 1, item, place, rule)
            if len(self.lines) == before:
                self.line(level + 1, "pass")
            word = "elif"
        if may_lack:
            self.line(level, f"{word} {item} is not ABSENT: return None")
        else:  # ABSENT has no type that fits
            self.line(level, "else: return None" if shape else "return None")

    def doubts(self, item: str, kind: type, rule: Rule) -> list[str]:
        """The conditions under which an `item` of the right type may not fit."""
        if not isinstance(rule, ScalarShape):
            return []
        found = [] if rule.among is None else [f"{item} not in {self.constant(rule.among)}"]
        if kind is str:
            most = self.longest if rule.most is None else min(rule.most, self.longest)
            if rule.among is None or any(len(text) > most for text in rule.among if isinstance(text, str)):
                found.append(f"len({item}) > {self.constant(most)}")
            if rule.least:
                found.append(f"len({item}) < {self.constant(rule.least)}")
            if rule.among is None:
                found.append(f"not ({item}.isascii() or is_text({item}))")
        elif kind is int or kind is float:
            if kind is int:  # two comparisons with large integers take twice as long
                found.append(f"{item}.bit_length() > 63")
            else:  # NaN is in no range
                found.append(f"not {self.constant(-float(SMALL))} <= {item} <= {self.constant(float(SMALL))}")
            bounds = ((rule.least, "<"), (rule.most, ">"), (rule.above, "<="), (rule.below, ">="))
            found += [f"{item} {sign} {self.constant(bound)}" for bound, sign in bounds if bound is not None]
        return found

    def inside(self, level: int, item: str, place: str, rule: Rule) -> None:
        """Copy a container and validate its members."""
        if isinstance(rule, ScalarShape):
            return
        variable = self.variable()
        if isinstance(rule, AnyShape):
            self.line(
                level,
                f"{place} = {variable} = quick_copy({item}, {self.constant(_LOOSE)}, {self.constant(depths.VALUE - depths.COMPILED)})",
            )
            self.refuse(level, f"{variable} is None")
            return
        self.line(level, f"{place} = {variable} = {item}.copy()")
        if isinstance(rule, ObjectShape):
            self.members(level, variable, rule)
            return
        key, each = self.variable(), self.variable()
        if isinstance(rule, ArrayShape):
            most = MANY if rule.most is None else min(rule.most, MANY)
            self.refuse(level, f"len({variable}) > {self.constant(most)}")
            if rule.least:
                self.refuse(level, f"len({variable}) < {self.constant(rule.least)}")
            scalar = all(isinstance(inner, ScalarShape) for inner in rule.each.values())
            self.line(level, f"for {each} in {variable}:" if scalar else f"for {key}, {each} in enumerate({variable}):")
        else:
            self.refuse(level, f"len({variable}) > {self.constant(MANY)}")
            self.line(level, f"for {key}, {each} in {variable}.items():")
            self.refuse(
                level + 1,
                f"type({key}) is not str",
                f"len({key}) > {self.constant(self.longest)}",
                f"not ({key}.isascii() or is_text({key}))",
            )
        self.value(level + 1, each, f"{variable}[{key}]", rule.each)
