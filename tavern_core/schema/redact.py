"""Redaction for logs and output: a bounded copy of a value without its secrets.

A value is secret if it has a mark in its schema (`writeOnly`, `format: password`, `x-tavern: {secret: true}`), by the name of
its key, or looks like one (`secret_scanning`), or the host knows it as one. The copy is plain JSON for any input:
long texts are cut with their size noted, deep and cyclic structures end in a note, objects are named by their type.
Redaction never raises and never changes its input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from tavern_core.model import depths
from tavern_core.model.safe_printing import encodable, with_length
from tavern_core.schema.bounded_json_copying import SCALARS, SMALL
from tavern_core.schema.patterns import fits, pattern_flaw
from tavern_core.schema.problem import printable
from tavern_core.schema.secret_encodings import MASK
from tavern_core.schema.secret_names import is_secret_name, is_secret_schema
from tavern_core.schema.secret_scanning import is_prose, redact_text
from tavern_core.schema.tree import SchemaReferences, children, leading_to, nodes_of

__all__ = ["MASK", "compile_redactor", "redact_text"]


Redactor = Callable[[Any], Any]
Known = Iterable[str] | Callable[[], Iterable[str]]

MAX_TEXT: Final = 2_000
"""Characters shown of one text."""
_MAX_SCANNED: Final = 32_000
"""Characters of one text that are searched for secrets; only MAX_TEXT of them are shown."""
_MAX_NODES: Final = 5_000
_MAX_KEY: Final = 200
_MAX_PAIRS: Final = 20_000
"""Pairs of a declared name and a pattern of names that are tried; with more, every declared member counts as marked."""
_SECRET: Final[dict[str, Any]] = {"writeOnly": True}
_FEW: Final = 32


def compile_redactor(schema: Mapping[str, Any] | bool | None = None, *, known_secrets: Known = ()) -> Redactor:
    """A function that returns a value that is safe to log.

    Args:
        schema: the schema of the values; its marks are followed through `$ref`, combinators, items.
        known_secrets: exact strings to mask wherever they occur, or a function that returns the current ones.

    Returns:
        ``redact(value) -> plain JSON``; it accepts anything and never raises.
    """
    marks = _compile_marks(schema)
    current: Callable[[], Iterable[str]] = known_secrets if callable(known_secrets) else lambda: known_secrets

    def redact(value: Any) -> Any:
        known = current()
        if marks is None and not known:
            if type(value) is dict and (copy := _plain_copy(value)) is not None:
                return copy
            if type(value) is str and len(value) <= MAX_TEXT and value.isascii():
                return redact_text(value)
        return _Copy(frozenset(known)).copy(value, marks, depths.SHOWN)

    return redact


def _plain_copy(value: dict[Any, Any]) -> dict[str, Any] | None:
    """The copy of the usual arguments, a few short plain values under harmless names; None for any others."""
    if len(value) > _FEW:
        return None
    copy: dict[str, Any] = {}
    for key, item in value.items():
        kind = type(item)
        if type(key) is not str or not _is_plain_name(key):
            return None
        if kind is str:
            if len(item) > MAX_TEXT or not item.isascii():
                return None
            copy[key] = redact_text(item)
        elif (kind is int and -SMALL < item < SMALL) or kind is bool or item is None:
            copy[key] = item
        else:
            return None
    return copy


@lru_cache(maxsize=4_096)
def _is_plain_name(name: str) -> bool:
    return len(name) <= 40 and name.isidentifier() and not is_secret_name(name)


def compile_marked(schema: Mapping[str, Any] | bool | None) -> Callable[[Any], list[str]] | None:
    """A function that lists the texts of a value that its schema marks as secret; None without any mark."""
    marks = _compile_marks(schema)
    if marks is None:
        return None
    root = marks

    def texts(value: Any) -> list[str]:
        found: list[str] = []
        _collect(value, root, found, depths.SHOWN)
        return found

    return texts


def named_secrets(value: Any) -> list[str]:
    """The texts of a value under names of secrets (`password`, `apiKey`); bounded, never raises."""
    if type(value) is dict and len(value) <= _FEW and _holds_none(value):
        return []
    found: list[str] = []
    waiting = [(value, False)]
    for _ in range(_MAX_NODES):
        if not waiting:
            break
        here, is_secret = waiting.pop()
        if isinstance(here, dict):
            waiting += [(item, is_secret or _gives_away(key)) for key, item in dict.items(here)]
        elif isinstance(here, list):
            waiting += [(item, is_secret) for item in list.__iter__(here)]
        elif isinstance(here, tuple):
            waiting += [(item, is_secret) for item in tuple.__iter__(here)]
        elif (
            is_secret and isinstance(here, str) and not is_prose(str.__str__(here))
        ):  # `auth: basic` is not a secret to redact elsewhere
            found.append(str.__str__(here))
        elif is_secret and isinstance(here, int) and not isinstance(here, bool) and int.bit_length(here) < 64:
            found.append(int.__repr__(here))
    return found


def _holds_none(value: dict[Any, Any]) -> bool:
    """True for plain values under harmless names, which most arguments are."""
    for key, item in value.items():
        if type(key) is not str or type(item) not in SCALARS or not _is_plain_name(key):
            return False
    return True


def _gives_away(key: object) -> bool:
    return isinstance(key, str) and is_secret_name(str.__str__(key))


def _collect(value: Any, marks: _SecretMarks | None, found: list[str], depth: int) -> None:
    if marks is None or depth == 0 or len(found) >= _MAX_NODES:
        return
    if isinstance(value, str):
        if marks.secret:
            found.append(value)
    elif type(value) is int and marks.secret and -SMALL < value < SMALL:
        found.append(str(value))
    elif isinstance(value, dict):
        for key, item in value.items():
            inner = marks.members.get(key, marks.others)
            _collect(item, _all_secret() if marks.secret else inner, found, depth - 1)
    elif isinstance(value, list):
        for item in value:
            _collect(item, _all_secret() if marks.secret else marks.items, found, depth - 1)


def _all_secret() -> _SecretMarks:
    """The marks below a secret: everything is secret."""
    marks = _SecretMarks()
    marks.secret = True
    return marks


def for_record(text: str, length: int = 0) -> str:
    """`text` for a record: at most 2,000 characters, without surrogates.

    Args:
        length: its original length, if it was cut before.
    """
    if len(text) > MAX_TEXT:
        text = with_length(text, MAX_TEXT, length)
    return text if text.isascii() else encodable(text)  # every text of a record: most need neither call


class _SecretMarks:
    """The places of secrets below one place of a schema."""

    __slots__ = ("below", "items", "members", "others", "secret")

    def __init__(self) -> None:
        self.secret = self.below = False
        self.members: dict[str, _SecretMarks] = {}
        self.others: _SecretMarks | None = None
        self.items: _SecretMarks | None = None

    def inner(self) -> Iterator[_SecretMarks]:
        yield from self.members.values()
        yield from (marks for marks in (self.others, self.items) if marks is not None)

    def hides(self, kind: type) -> bool:
        """Whether a value of this type holds the secrets of another one: an array in place of an object, or the reverse."""
        is_described = self.items is not None if kind is list else bool(self.members) or self.others is not None
        return self.below and not is_described


def _compile_marks(schema: Mapping[str, Any] | bool | None) -> _SecretMarks | None:
    """The marks of a schema, or None if it has none, like most schemas."""
    if not isinstance(schema, dict) or not any(is_secret_schema(node) for node in nodes_of(schema)):
        return None
    refs = SchemaReferences(schema)
    known: dict[frozenset[int], _SecretMarks] = {}
    waiting: list[tuple[_SecretMarks, list[dict[str, Any]]]] = []

    def place(parts: list[dict[str, Any]]) -> _SecretMarks:
        nodes = list(refs.together(parts))
        key = frozenset(map(id, nodes))
        if key not in known:
            known[key] = _SecretMarks()
            waiting.append((known[key], nodes))
        return known[key]

    root = place([schema])
    while waiting and len(known) < _MAX_NODES:
        marks, nodes = waiting.pop()
        marks.secret = any(is_secret_schema(node) for node in nodes)
        members, others, items = _inside(nodes)
        marks.members = {name: place(parts) for name, parts in members.items()}
        marks.others = place(others) if others else None
        marks.items = place(items) if items else None
    leading = leading_to((marks for marks in known.values() if marks.secret), known.values(), _SecretMarks.inner)
    for marks in known.values():
        marks.below = any(id(inner) in leading for inner in marks.inner())
    root.below = False  # answers are recorded by the same marks, and may be arrays
    return root


def _inside(
    nodes: list[dict[str, Any]],
) -> tuple[dict[str, list[dict[str, Any]]], list[dict[str, Any]], list[dict[str, Any]]]:
    """The schemas inside those of one place: of declared members by name, of other members, of items."""
    members: dict[str, list[dict[str, Any]]] = {}
    others: list[dict[str, Any]] = []
    items: list[dict[str, Any]] = []
    patterns: list[tuple[str, dict[str, Any]]] = []
    for node in nodes:
        for path, inner in children(node):
            if path[0] == "properties":
                members.setdefault(str(path[1]), []).append(inner)
            elif path[0] in ("additionalProperties", "patternProperties", "unevaluatedProperties"):
                others.append(inner)
                patterns += [(str(path[1]), inner)] if path[0] == "patternProperties" else []
            elif path[0] in ("items", "prefixItems", "contains", "additionalItems", "unevaluatedItems"):
                items.append(inner)
    is_small = len(members) * len(patterns) <= _MAX_PAIRS
    for name, parts in members.items():
        parts += [inner for pattern, inner in patterns if _may_fit(pattern, name)] if is_small else [_SECRET]
    return members, others, items


def _may_fit(pattern: str, name: str) -> bool:
    """Whether a mark under a pattern of names holds for one; a pattern that cannot be tried may fit every name."""
    return pattern_flaw(pattern) is not None or fits(pattern, name)


class _Copy:
    """A bounded copy of one value."""

    __slots__ = ("known", "left")

    def __init__(self, known: frozenset[str]) -> None:
        self.known = known
        self.left = _MAX_NODES

    def copy(self, value: Any, marks: _SecretMarks | None, depth: int) -> Any:
        self.left -= 1
        if marks is not None and marks.secret:
            return _masked(value)
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is int and -SMALL < value < SMALL and not self.known:
            return value
        if kind is dict:  # nearly all of the rest are these two
            return self.members(value.copy(), marks, depth)
        if issubclass(kind, str):
            return self.text(str.__str__(value))
        if issubclass(kind, int | float):
            return self.number(value)
        if issubclass(kind, dict):
            return self.members(dict.copy(value), marks, depth)
        for base in (list, tuple, set, frozenset):
            if issubclass(kind, base):
                return self.items(list(base.__iter__(value)), marks, depth)
        if issubclass(kind, bytes | bytearray):
            return f"<{len(value):,} bytes>"
        return f"<{printable(str(kind.__name__), 80)}>"

    def text(self, text: str) -> str:
        if not text:
            return text
        length = len(text)
        clean = redact_text(text[:_MAX_SCANNED] if length > _MAX_SCANNED else text, self.known)
        return for_record(clean, length)

    def number(self, value: Any) -> Any:
        if isinstance(value, float):
            number = float.__float__(value)
            if number - number != 0.0:
                return "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"
        else:
            number = int.__int__(value)
            if not -SMALL < number < SMALL:
                return f"<integer of {number.bit_length():,} bits>"
        return MASK if self.known and str(number) in self.known else number

    def members(self, value: dict[Any, Any], marks: _SecretMarks | None, depth: int) -> Any:
        if depth == 0:
            return f"… (object of {len(value):,})"
        if marks is not None and marks.hides(dict):
            return _masked(value)
        copied: dict[str, Any] = {}
        for at, (key, item) in enumerate(value.items()):
            if self.left <= 0:
                copied["…"] = f"{len(value) - at:,} more"
                break
            if type(key) is str:
                name = key
            else:
                name = str.__str__(key) if issubclass(type(key), str) else f"<{printable(type(key).__name__, 80)}>"
            inner = marks.members.get(name, marks.others) if marks is not None else None
            shown = name if len(name) <= 40 and name.isidentifier() and not self.known else self.text(name[:_MAX_KEY])
            if is_secret_name(name):
                copied[shown] = _masked(item)
            elif type(item) is int and inner is None and not self.known and -SMALL < item < SMALL:
                self.left -= 1
                copied[shown] = item
            else:
                copied[shown] = self.copy(item, inner, depth - 1)
        return copied

    def items(self, values: list[Any], marks: _SecretMarks | None, depth: int) -> Any:
        if depth == 0:
            return f"… (array of {len(values):,})"
        if marks is not None and marks.hides(list):
            return _masked(values)
        inner = marks.items if marks is not None else None
        copied = []
        for at, item in enumerate(values):
            if self.left <= 0:
                copied.append(f"… ({len(values) - at:,} more)")
                break
            is_given = (
                at > 0
                and type(values[at - 1]) is str
                and values[at - 1].startswith("-")
                and is_secret_name(values[at - 1])
            )
            copied.append(
                _masked(item) if is_given and isinstance(item, str) else self.copy(item, inner, depth - 1)
            )  # ["--password", "x"]
        return copied


def _masked(value: Any) -> Any:
    """The replacement of a secret: it shows that there is a value, except for an empty one."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    if issubclass(kind, str | list | dict | tuple) and kind.__len__(value) == 0:
        return "" if issubclass(kind, str) else [] if issubclass(kind, list | tuple) else {}
    return MASK
