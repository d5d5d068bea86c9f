"""From text to the declared type, where everything is text: fields of TAM, the command line's `key=value`, form fields.

    enum, const                                 the trimmed text, as one of the declared values
    integer number boolean object array null    the trimmed text, as strict JSON
    string, or no type declared                 the text itself, verbatim

In a union the listed values come first, then every type but string, then string: `5` is a number where a number is
allowed, `null` is nothing where nothing is allowed, and everything else stays text. Only the type is checked; the
validator decides whether the value fits the rest of its schema. The API, HTTP bodies and MCP do not use this module:
JSON has types, and a tool with a number parameter refuses a string there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from tavern_core.errors import SchemaInvalid
from tavern_core.schema.alternatives_expansion import SchemaRoot, literals_of, types_of
from tavern_core.schema.json_reader import NotJson, read_json
from tavern_core.schema.problem import SchemaProblem, json_type, pointer, printable
from tavern_core.schema.secret_encodings import MASK
from tavern_core.schema.secret_names import is_secret_name
from tavern_core.schema.secret_scanning import redact_text
from tavern_core.schema.validate import Validator

_WORDS: Final = ("null", "boolean", "integer", "number", "object", "array")
_ANNOTATIONS: Final = frozenset(
    {"type", "title", "description", "default", "defaultValue", "examples", "deprecated", "format", "$comment"}
)
"""Keywords that forbid nothing; `type` is looked at first."""
_WHOLE_NUMBER: Final = re.compile("-?(?:0|[1-9][0-9]{0,17})")
_HINTS: Final = {
    "boolean": "write true or false",
    "object": 'write JSON: {"key": value}',
    "array": "write JSON: [1, 2]",
}


class CoercionFailure(NamedTuple):
    """Why a text has none of the declared types: it is not JSON (`error`), or JSON of another type (`value`)."""

    error: str
    value: Any = None


class TextReader:
    """Reads the text of one parameter. Created once per parameter, used for every text.

    Args:
        schemas: all declared schemas of the parameter.
        root: the schema that contains them.

    Attributes:
        verbatim: whether the text is the value, so that no text can be wrong.
        literals: the listed values. kinds: the JSON types that are read, without string.
        alternatives: the expanded alternatives of the schemas.
    """

    __slots__ = ("_fits", "_has_text", "_is_bare", "_root", "_whole", "alternatives", "kinds", "literals", "verbatim")

    def __init__(self, schemas: Iterable[Any], root: SchemaRoot) -> None:
        self._root = root
        self.alternatives = [leaf for schema in schemas for leaf in root.alternatives(schema)]
        listed = [literals_of(leaf) for leaf in self.alternatives]
        self.literals = [value for values in listed if values is not None for value in values]
        free = [leaf for leaf, values in zip(self.alternatives, listed, strict=True) if values is None]
        self.kinds: frozenset[str] = frozenset().union(*(types_of(leaf) for leaf in free)) - {"string"}
        self._has_text = any("string" in types_of(leaf) for leaf in free)
        self._is_bare = not self.literals and all(
            leaf is True or (isinstance(leaf, dict) and leaf.keys() <= _ANNOTATIONS) for leaf in free
        )
        self._whole = self._is_bare and not self._has_text and self.kinds <= {"integer", "number"}
        self.verbatim = self._is_bare and self._has_text and not self.kinds
        self._fits: Callable[[Any], bool] | None = None

    @property
    def takes_strings(self) -> bool:
        return self._has_text or any(isinstance(value, str) for value in self.literals)

    def read(self, text: str) -> tuple[Any, CoercionFailure | None]:
        """The value of a text, and the reason if there is none (None: there is a value)."""
        if self.verbatim:
            return text, None
        trimmed = text.strip()
        if self._whole and _WHOLE_NUMBER.fullmatch(trimmed):
            return int(trimmed), None
        for literal in self.literals:
            if isinstance(literal, str) and literal == text:
                return literal, None
        for literal in self.literals:
            if isinstance(literal, str) and literal.strip() == trimmed:
                return literal, None
        unread = None
        if self.kinds or self.literals:
            try:
                value = read_json(trimmed)
            except NotJson as error:
                unread = CoercionFailure(error.args[0])
            else:
                if self._is_typed(value) and (not self._has_text or self._is_bare or self._does_fit(value)):
                    return value, None
                unread = CoercionFailure("", value)
        return (text, None) if self._has_text else (None, unread or CoercionFailure(""))

    def _is_typed(self, value: Any) -> bool:
        kind = json_type(value)
        if kind == "string":
            return False  # strings are never quoted: "a" is no way to write a
        if kind in self.kinds or (kind == "integer" and "number" in self.kinds):
            return True
        if kind == "number" and "integer" in self.kinds and value.is_integer():
            return True
        return any(isinstance(value, bool) == isinstance(each, bool) and bool(value == each) for each in self.literals)

    def _does_fit(self, value: Any) -> bool:
        """Whether an alternative accepts a whole value that could also be text."""
        if self._fits is None:
            root = self._root.schema
            around: dict[str, Any] = {key: root[key] for key in ("$schema", "$defs", "definitions") if key in root}
            validator = Validator({**around, "anyOf": self.alternatives}, "", None, is_foreign=True)
            try:
                self._fits = validator.build().is_valid
            except SchemaInvalid:
                self._fits = _anything
        return self._fits(value)


def _anything(value: Any) -> bool:
    return True


def coerce_text(
    schema: Mapping[str, Any] | bool, given: Mapping[str, str]
) -> tuple[dict[str, Any], list[SchemaProblem]]:
    """Give each text the type its parameter declares.

    Args:
        schema: the tool's parameters.
        given: parameter name -> text; undeclared names keep their text, for the validator to check.

    Returns:
        the values, and a problem for each text that fits no declared type (without its value).
    """
    values: dict[str, Any] = {}
    problems: list[SchemaProblem] = []
    root = SchemaRoot(schema)
    for name, text in given.items():
        reader = TextReader(root.properties.get(name) or (True,), root)
        value, unread = reader.read(text)
        if unread is None:
            values[name] = value
        else:
            problems.append(_problem(text, reader, pointer((name,))))
    return values, problems


def _problem(text: str, reader: TextReader, where: str) -> SchemaProblem:
    words: list[str] = [kind for kind in _WORDS if kind in reader.kinds]
    words += [f'"{printable(value, 40)}"' if isinstance(value, str) else str(value) for value in reader.literals[:12]]
    expected = " or ".join(words) or "left out"
    shown = MASK if is_secret_name(where) else f'"{redact_text(printable(text, 60))}"'
    hint = _HINTS.get(words[0], "") if words else ""
    return SchemaProblem(where, f"must be {expected}, got {shown}", expected, shown, hint, "type")
