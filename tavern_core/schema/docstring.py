"""The descriptions of a function and its parameters in a docstring: Google, NumPy and reST style, any language."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from tavern_core.frozen_dataclass import dataclass

_PARAMETERS = r"args|arguments|parameters|params|keyword args|keyword arguments|other parameters|参数|参数说明"
_RETURNS = r"returns?|yields?|返回|返回值"
_OTHERS = r"raises|exceptions|warns|warnings?|examples?|notes?|see also|references|attributes|todo|tip|source|异常|示例|例子|说明|注意|备注"
_GOOGLE = re.compile(
    rf"^(?:(?P<parameters>{_PARAMETERS})|(?P<returns>{_RETURNS})|(?P<other>{_OTHERS}))\s*[:：]\s*$", re.I
)
_NUMPY = re.compile(rf"^(?:(?P<parameters>{_PARAMETERS})|(?P<returns>{_RETURNS})|(?P<other>{_OTHERS}))\s*$", re.I)
_INLINE_RETURNS = re.compile(r"^(?:returns?|返回|返回值)\s*[:：]\s*(?P<text>\S.*)$", re.I)
_FIELD = re.compile(r"^:(?P<name>\w+)(?:\s+(?P<rest>[^:]*))?:\s*(?P<text>.*)$")
_ITEM = re.compile(r"^\*{0,2}(?P<names>\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?:[(（][^)）]*[)）])?\s*[:：]\s*(?P<text>.*)$")
_NUMPY_ITEM = re.compile(r"^\*{0,2}(?P<names>\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?:\s*:\s*.*)?$")
_REST_PARAMETERS = frozenset({"param", "parameter", "arg", "argument", "key", "keyword"})
_MAX_LINES = 2_000


@dataclass(frozen=True, slots=True)
class Docstring:
    """`description` is everything before the first section, paragraphs kept; the rest is one line each."""

    description: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    returns: str = ""


def docstring_of(function: Callable[..., Any]) -> Docstring:
    """The docstring of a callable; for a `partial`, of its function; for a callable object, of its class or `__call__`."""
    inner = getattr(function, "func", None)
    if inner is not None and hasattr(function, "keywords"):
        return docstring_of(inner)
    text = getattr(function, "__doc__", None)
    if not inspect.isroutine(function) and not inspect.isclass(function):
        call = type(function).__call__
        text = vars(type(function)).get("__doc__") or getattr(call, "__doc__", None)
    return parse_docstring(text if isinstance(text, str) else "")


def _field_end(lines: list[str], at: int) -> int:
    """The end of the indented lines below a field."""
    while at < len(lines) and lines[at][:1].isspace() and lines[at].strip():
        at += 1
    return at


def parse_docstring(text: str) -> Docstring:
    """Read a docstring. Any text is accepted; unknown parts belong to the description."""
    lines = inspect.cleandoc(text).splitlines()[:_MAX_LINES]
    description: list[str] = []
    parameters: dict[str, list[str]] = {}
    returns: list[str] = []
    at, in_sections = 0, False
    while at < len(lines):
        line = lines[at]
        if kind := _section(lines, at):
            in_sections = True
            underlined = at + 1 < len(lines) and _is_underline(lines[at + 1])
            start = at + 2 if underlined else at + 1
            at = _end(lines, start, underlined)
            body = lines[start:at]
            if kind == "parameters":
                for name, words in (_numpy_items if underlined else _google_items)(body):
                    parameters.setdefault(name, words)
            elif kind == "returns":
                returns += _returned(body, underlined)
        elif found := _FIELD.match(line):
            in_sections = True
            start, at = at + 1, _field_end(lines, at + 1)
            words = [found["text"], *lines[start:at]]
            if found["name"].lower() in _REST_PARAMETERS and found["rest"]:
                parameters.setdefault(found["rest"].split()[-1].lstrip("*"), words)
            elif found["name"].lower() in ("return", "returns"):
                returns += words
        elif inline := _INLINE_RETURNS.match(line):
            in_sections = True
            returns.append(inline["text"])
            at += 1
        else:
            if not in_sections:
                description.append(line)
            at += 1
    joined = {name: _one_line(words) for name, words in parameters.items()}
    return Docstring(
        "\n".join(description).strip(), {name: words for name, words in joined.items() if words}, _one_line(returns)
    )


def _section(lines: list[str], at: int) -> str | None:
    if at + 1 < len(lines) and _is_underline(lines[at + 1]):
        found = _NUMPY.match(lines[at])
    else:
        found = _GOOGLE.match(lines[at])
    return found.lastgroup if found else None


def _is_underline(line: str) -> bool:
    return len(line) >= 3 and not line.strip("-")


def _end(lines: list[str], start: int, underlined: bool) -> int:
    """The end of a section: at the next section, for Google style also at text that is not indented."""
    at = start
    while at < len(lines):
        line = lines[at]
        if line.strip() and not line[0].isspace() and (not underlined or _section(lines, at) or _FIELD.match(line)):
            break
        at += 1
    return at


def _google_items(body: list[str]) -> list[tuple[str, list[str]]]:
    indents = [len(line) - len(line.lstrip()) for line in body if line.strip()]
    first = min(indents, default=0)
    items: list[tuple[list[str], list[str]]] = []
    for line in body:
        indent = len(line) - len(line.lstrip())
        found = _ITEM.match(line.strip()) if line.strip() and indent == first else None
        if found:
            items.append((_split(found["names"]), [found["text"]]))
        elif items:
            items[-1][1].append(line)
    return [(name, words) for names, words in items for name in names]


def _numpy_items(body: list[str]) -> list[tuple[str, list[str]]]:
    items: list[tuple[list[str], list[str]]] = []
    for line in body:
        found = _NUMPY_ITEM.match(line.strip()) if line.strip() and not line[0].isspace() else None
        if found:
            items.append((_split(found["names"]), []))
        elif items:
            items[-1][1].append(line)
    return [(name, words) for names, words in items for name in names]


def _returned(body: list[str], underlined: bool) -> list[str]:
    """The description of the result; in NumPy style the first line is its type."""
    return (
        [line for line in body if line[:1].isspace()]
        if underlined and any(line[:1].isspace() for line in body)
        else body
    )


def _split(names: str) -> list[str]:
    return [name.strip().lstrip("*") for name in names.split(",")]


def _one_line(words: list[str]) -> str:
    return " ".join(" ".join(words).split())
