"""Parameters in words: one line each, in the layout of seed 000 §11.2.

    - unit (string, optional; one of "words", "characters"; default "words"): What to count

Reads any JSON Schema, even an invalid or circular one, and never raises: an empty schema gives the type `any`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tavern_core.model import depths
from tavern_core.model.json_pointer import split_pointer
from tavern_core.model.message_translation import Language, Row, words_in
from tavern_core.model.safe_printing import listed, seen, shortened

_MOST_LINES: Final = 100
_MOST_CHOICES: Final = 50
_LONGEST_VALUE: Final = 80
_MOST_REFERENCES: Final = 8
_PLACEHOLDER: Final = re.compile(r"\{(?=\{)")


_WORDS: Final[Mapping[str, Row]] = {
    "one_of": ("one of", "可选值"),
    "default": ("default", "默认"),
    "length": ("length", "长度"),
    "items": ("items", "个数"),
    "more": ("{0} more parameters", "另有 {0} 个参数"),
}
"""The words around those of a schema."""


def harmless(line: str) -> str:
    """A finished line of the layout, made safe: it may contain texts of plugins.

    TAM markers are broken up, so that no text, alone or with another, can form a call; and the line cannot contain a
    placeholder of a prompt. It takes whole lines, because the host writes their ends: names and ids stay as they are.
    """
    from tavern_core import tam  # imported when a text is written, as listing and checking tools does not need it

    return _PLACEHOLDER.sub("{ ", tam.neutralise(line, edges=False))


def fold_lines(text: str, most: int = 2_000) -> str:
    """A plugin's `text` on one line of at most `most` characters, without invisible characters.

    Line breaks and control characters become blanks, so that it cannot add lines to the layout.
    """
    text = " ".join(seen(text[: most * 2]).split())
    return shortened(text, most)


def parameter_lines(schema: Mapping[str, Any], language: Language, *, described: bool) -> list[str]:
    """A line per parameter, nested ones indented below their parents; `described` includes their descriptions."""
    words = words_in(_WORDS, language)
    writer = _ParameterWriter(schema, words, described)
    lines = [harmless(line) for line in writer.lines(schema, 0)]
    if len(lines) > _MOST_LINES:
        rest = len(lines) - _MOST_LINES
        lines = [*lines[:_MOST_LINES], f"- … {words['more'].format(rest)}"]
    return lines


class _ParameterWriter:
    """Writes the parameters of one tool."""

    def __init__(self, root: Mapping[str, Any], words: Mapping[str, str], described: bool) -> None:
        self._root, self._words, self._described = root, words, described
        self._written = 0

    def lines(self, schema: Any, depth: int) -> Iterator[str]:
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        if not isinstance(properties, Mapping) or depth >= depths.MANUAL:
            return
        required = schema.get("required")
        needed = set(map(str, required)) if isinstance(required, list | tuple) else set()
        for name, given in properties.items():
            self._written += 1
            if self._written > _MOST_LINES * 4:  # a schema that refers to itself has no end
                return
            part = self._follow(given)
            facts = [f"{self._type(part)}, {'required' if name in needed else 'optional'}", *self._facts(part)]
            line = f"{'  ' * depth}- {fold_lines(str(name), 200)} ({'; '.join(facts)})"
            described = part.get("description") or part.get("title")
            yield f"{line}: {fold_lines(described)}" if self._described and isinstance(described, str) else line
            yield from self.lines(self._inside(part), depth + 1)

    def _inside(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        """The object whose properties are listed: the part itself, or the items of its list."""
        items = part.get("items")
        return self._follow(items) if "properties" not in part and isinstance(items, Mapping) else part

    def _follow(self, part: Any) -> Mapping[str, Any]:
        """`part`, or the target of its ``$ref`` within this schema; its own description stays."""
        for _ in range(_MOST_REFERENCES):
            if not isinstance(part, Mapping):
                return {}
            reference = part.get("$ref")
            if not isinstance(reference, str) or not reference.startswith("#"):
                return part
            target: Any = self._root
            for key in filter(None, split_pointer(reference[1:])):
                target = target.get(key) if isinstance(target, Mapping) else None
            siblings = {key: value for key, value in part.items() if key != "$ref"}
            part = {**target, **siblings} if isinstance(target, Mapping) else {**siblings, "$ref": None}
        return {}

    def _type(self, part: Mapping[str, Any], depth: int = 0) -> str:
        declared = part.get("type")
        if isinstance(declared, list | tuple):
            return " | ".join(fold_lines(str(kind), 40) for kind in declared[:8]) or "any"
        if declared == "array" and depth < depths.MANUAL:
            items = self._follow(part.get("items"))
            return f"array of {self._type(items, depth + 1)}" if items else "array"
        if isinstance(declared, str):
            return fold_lines(declared, 40)
        for keyword in ("anyOf", "oneOf"):
            branches = part.get(keyword)
            if isinstance(branches, list | tuple) and depth < depths.MANUAL:
                kinds = dict.fromkeys(self._type(self._follow(branch), depth + 1) for branch in branches[:8])
                return " | ".join(kinds) or "any"
        return self._type_of_values(part)

    def _type_of_values(self, part: Mapping[str, Any]) -> str:
        """The type of an enum or const that declares none."""
        enum = part.get("enum")
        values = (
            [part["const"]] if "const" in part else list(enum)[:_MOST_CHOICES] if isinstance(enum, list | tuple) else []
        )
        kinds = {bool: "boolean", str: "string", int: "integer", float: "number", list: "array", dict: "object"}
        found = dict.fromkeys(kinds.get(type(value), "null") for value in values)
        return " | ".join(found) or ("object" if "properties" in part else "any")

    def _facts(self, part: Mapping[str, Any]) -> Iterator[str]:
        """Choices, default and limits."""
        enum = [part["const"]] if "const" in part else part.get("enum")
        if isinstance(enum, list | tuple) and enum:
            yield f"{self._words['one_of']} {listed(enum, _MOST_CHOICES, _value)}"
        if "default" in part:
            yield f"{self._words['default']} {_value(part['default'])}"
        low, high = part.get("minimum", part.get("exclusiveMinimum")), part.get("maximum", part.get("exclusiveMaximum"))
        if limits := _limits(low, high, "minimum" not in part, "maximum" not in part):
            yield limits
        if limits := _limits(part.get("minLength"), part.get("maxLength")):
            yield f"{self._words['length']} {limits}"
        if limits := _limits(part.get("minItems"), part.get("maxItems")):
            yield f"{self._words['items']} {limits}"
        for keyword in ("format", "pattern"):
            if isinstance(reported := part.get(keyword), str) and len(reported) <= _LONGEST_VALUE:
                yield f"{keyword} {fold_lines(reported)}"


def _limits(low: Any, high: Any, open_low: bool = False, open_high: bool = False) -> str:
    bounds = [(low, ">" if open_low else ">="), (high, "<" if open_high else "<=")]
    return ", ".join(f"{sign} {_value(bound)}" for bound, sign in bounds if _is_number(bound))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _value(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        text = "…"  # not JSON: a caller could not write it
    return fold_lines(text, _LONGEST_VALUE)
