"""A problem of a value, reported so that a person or a model can repair it; and the notation for places in a value.

Nothing here ever shows a whole value: containers are described by their size and names, scalars are shortened.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from tavern_core.errors import Problem, Severity, sayable
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.json_pointer import exact_pointer
from tavern_core.model.message_translation import Row, say
from tavern_core.model.safe_printing import encodable, shortened

_LONGEST_SCALAR = 60
_MOST_NAMES = 8
_OBJECT: Final[Row] = ("object with {names}", "有 {names} 的 object")
_EMPTY: Final[Row] = ("empty object", "空的 object")
_ARRAY: Final[Row] = ("array of {count}", "{count} 项的 array")
_LONG: Final[Row] = ('string "{text}" ({count} characters)', 'string "{text}"（{count} 个字符）')
_LARGE: Final[Row] = ("a very large integer", "非常大的 integer")


@dataclass(frozen=True, slots=True)
class SchemaProblem(Problem):
    """A problem of a value.

    `path` is a JSON pointer ("" is the whole value), `expected` and `got` are phrases such as ``integer`` and
    ``string "12"``; `hint` is the repair; `keyword` the JSON Schema keyword (or ``json`` / ``limit``) that refused.
    A schema is a value, too: a problem of a schema may be a warning.
    """

    path: str
    message: str
    expected: str = ""
    got: str = ""
    hint: str = ""
    keyword: str = ""
    severity: Severity = "error"

    @property
    def located(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message

    def __str__(self) -> str:
        return sayable(Problem.__str__(self))

    def to_json(self) -> dict[str, str]:
        """The problem as a JSON object; empty members are left out, `path` and `message` never."""
        members = {
            "path": self.path,
            "message": self.message,
            "expected": self.expected,
            "got": self.got,
            "hint": self.hint,
            "keyword": self.keyword,
        }
        return {name: text for name, text in members.items() if text or name in ("path", "message")}


def flaw(
    path: Iterable[object], message: str, hint: str = "", severity: Literal["error", "warning"] = "error"
) -> SchemaProblem:
    """A problem of a schema itself, at a path in it."""
    return SchemaProblem(pointer(path), message, hint=hint, severity=severity)


def pointer(parts: Iterable[object]) -> str:
    """The JSON pointer of a path for display: long names are shortened."""
    return exact_pointer(printable(str(part)) for part in parts)


def printable(text: str, longest: int = 200) -> str:
    """`text` without lone surrogates (which no log can store) and not longer than `longest` characters."""
    return encodable(shortened(text, longest))


def json_type(value: object) -> str:
    """The JSON name of a value's type; the name of the Python type for other types."""
    kind = type(value)
    if value is None:
        return "null"
    if kind is bool:
        return "boolean"
    for base, name in ((dict, "object"), (list, "array"), (str, "string"), (int, "integer"), (float, "number")):
        if issubclass(kind, base):
            return name
    return printable(kind.__name__)


def describe(value: object) -> str:
    """A value in a few words for an error message; the members of objects and arrays are never shown.

    >>> describe({"a": 1})
    'object with a'
    """
    name = json_type(value)
    if name == "object" and isinstance(value, dict):
        keys = [printable(key, 40) for key in list(dict.keys(value))[:_MOST_NAMES] if isinstance(key, str)]
        more = ", …" if dict.__len__(value) > len(keys) else ""
        return say(_OBJECT, names=", ".join(keys) + more) if keys else say(_EMPTY)
    if name == "array" and isinstance(value, list):
        return say(_ARRAY, count=list.__len__(value))
    if name == "string" and isinstance(value, str):
        text = str.__str__(value)
        if len(text) > _LONGEST_SCALAR:
            return say(_LONG, text=printable(text, _LONGEST_SCALAR), count=len(text))
        return f'string "{printable(text)}"'
    if name == "integer" and isinstance(value, int):
        return f"integer {int.__repr__(value)}" if value.bit_length() < 1024 else say(_LARGE)
    if name == "number" and isinstance(value, float):
        return f"number {float.__repr__(value)}"
    return f"boolean {str(value).lower()}" if name == "boolean" else name
