"""Reads a YAML text again, with the place of everything, and a finding for each part that is refused.

Reading continues after a refused part, so that one run of `check` reports all errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

import yaml
from yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
    StreamStartEvent,
)

from tavern_core.errors import Finding, Location
from tavern_core.kernel.text.document import MOST_NODES
from tavern_core.kernel.text.yaml_dialect import CONTROL, NUMBER_STARTS, WORDS, EventParser, NotSimple, number
from tavern_core.model import depths
from tavern_core.model.path_problem import FLATTER, MOST_FINDINGS, SMALLER, Mark, Path


@dataclass
class _OpenCollection:
    """A mapping or sequence that is being filled."""

    items: dict[str, Any] | list[Any]
    path: Path
    key: str | None = None
    """The key whose value comes next."""
    key_mark: Mark = (0, 0)
    wants_key: bool = True
    ignored: bool = False
    """The next value belongs to a refused key and is dropped."""
    firsts: dict[str, Mark] = field(default_factory=dict)


_TOO_DEEP: Final = "maximum nesting depth"  # libyaml 0.2.6 and newer


class LocatedReading:
    """Turns the event stream of one text into data. Used once."""

    def __init__(self, text: str, file: str, code: str, marks: dict[Path, tuple[Mark, Mark]] | None = None) -> None:
        self.findings: list[Finding] = []
        self._text, self._file, self._code, self._marks = text, file, code, marks
        self._stack: list[_OpenCollection] = []
        self._root: Any = None
        self._has_root = False

    def build(self) -> Any:
        """Read to the end, or to the first error that prevents reading on."""
        return self._built(EventParser)

    def _built(self, events: Any) -> Any:
        parser = events(self._text)
        try:
            self._read(parser.get_event)
        except yaml.YAMLError as error:
            if _TOO_DEEP in str(error) and events is not yaml.SafeLoader:
                # libyaml looks far ahead: it gives up on deep brackets before its events say where our own limit is passed.
                again = LocatedReading(self._text, self._file, self._code, self._marks)
                self.findings = again.findings
                return again._built(yaml.SafeLoader)
            self.findings.append(self._syntax(error))
        except (RecursionError, UnicodeError, ValueError) as error:
            # Not known to happen; a parser of hostile text must not find out in production.
            self._refuse(f"the text cannot be read as YAML: {error}", (1, 1), ())
        finally:
            parser.dispose()
        return self._root

    def _read(self, next_event: Any) -> None:
        nodes = 0
        while True:
            event = next_event()
            kind = type(event)
            if kind is ScalarEvent:
                self._value(event, self._scalar(event))
            elif kind is MappingEndEvent or kind is SequenceEndEvent:
                self._stack.pop()
                continue
            elif kind is MappingStartEvent:
                self._open(event, {})
            elif kind is SequenceStartEvent:
                self._open(event, [])
            elif kind is AliasEvent:
                self._refuse(
                    f"the alias *{event.anchor} is not allowed here", _mark(event), self._path(), "write it out"
                )
                self._value(event, None)
            elif kind is DocumentStartEvent and self._has_root:
                self._refuse("a second document begins here", _mark(event), (), "keep one document in the file")
                return
            elif kind is StreamEndEvent:
                return
            elif kind in (StreamStartEvent, DocumentStartEvent, DocumentEndEvent):
                continue
            nodes += 1
            if nodes > MOST_NODES or len(self._stack) > depths.VALUE or len(self.findings) >= MOST_FINDINGS:
                if len(self.findings) < MOST_FINDINGS:
                    limit, hint = (
                        (f"more than {MOST_NODES:,} values", SMALLER)
                        if nodes > MOST_NODES
                        else (f"nested deeper than {depths.VALUE}", FLATTER)
                    )
                    self._refuse(limit, _mark(event), self._path(), hint)
                return

    # Values ------------------------------------------------------------------------------------------------------------

    def _open(self, event: Event, items: dict[str, Any] | list[Any]) -> None:
        self._check_properties(event)
        top = self._stack[-1] if self._stack else None
        if top is not None and isinstance(top.items, dict) and top.wants_key:
            self._refuse("a key must be text", _mark(event), top.path, "write the key as plain text")
            top.wants_key, top.ignored = False, True
            self._stack.append(_OpenCollection(items, (*top.path, "?")))
            return
        path = self._value(event, items)
        self._stack.append(_OpenCollection(items, path))

    def _value(self, event: Event, value: Any) -> Path:
        """Put `value` into its collection; a scalar may turn out to be a key. Returns its path."""
        if not self._stack:
            self._root, self._has_root = value, True
            self._note((), _mark(event), _mark(event))
            return ()
        top = self._stack[-1]
        if isinstance(top.items, list):
            path: Path = (*top.path, len(top.items))
            top.items.append(value)
            self._note(path, _mark(event), _mark(event))
            return path
        if top.wants_key:
            self._key(top, event, value)
            return top.path
        path = (*top.path, top.key or "")
        top.wants_key = True
        if top.ignored:
            top.ignored = False
            return (*path, "?")  # beneath a refused key: built, checked, and dropped
        top.items[top.key or ""] = value
        self._note(path, top.key_mark, _mark(event))
        return path

    def _key(self, top: _OpenCollection, event: Event, key: Any) -> None:
        assert isinstance(top.items, dict)
        mark = _mark(event)
        top.wants_key, top.ignored, top.key, top.key_mark = False, True, None, mark
        if not isinstance(key, str):
            written = getattr(event, "value", key)
            self._refuse(f"the key {written!s:.40} is not text", mark, top.path, f'put it in quotes: "{written!s:.40}"')
        elif key == "<<" and not getattr(event, "style", None):
            self._refuse("merge keys (<<) are not allowed here", mark, top.path, "write the fields out")
        elif key in top.firsts:
            first = top.firsts[key]
            message = f"the key {key!r:.80} is here twice, first at line {first[0]}, column {first[1]}"
            self._refuse(message, mark, (*top.path, key), "keep one of them")
        else:
            top.firsts[key] = mark
            top.key, top.ignored = key, False

    def _scalar(self, event: ScalarEvent) -> Any:
        self._check_properties(event)
        text: str = event.value
        if event.style:  # libyaml says "" for plain text, PyYAML None
            if event.style == '"' and CONTROL.search(text) is not None:
                self._refuse("the text holds a control character", _mark(event), self._path(), "delete the escape")
            return text
        if text in WORDS:
            return WORDS[text]
        if text[0] not in NUMBER_STARTS:
            return text
        try:
            return number(text)
        except NotSimple:
            reason = f"a number of {len(text):,} digits" if text.lstrip("+-").isdigit() else f"{text:.40} is not finite"
            self._refuse(reason, _mark(event), self._path(), "put it in quotes, or write a finite number")
            return 0

    # Places and refusals -----------------------------------------------------------------------------------------------

    def _check_properties(self, event: Any) -> None:
        if event.anchor is not None:
            self._refuse(f"the anchor &{event.anchor:.40} is not allowed here", _mark(event), self._path(), "delete it")
        if event.tag is not None:
            hint = "delete the tag; put text in quotes" if event.tag != "!" else "delete the !"
            self._refuse(f"the tag {event.tag:.80} is not allowed here", _mark(event), self._path(), hint)

    def _path(self) -> Path:
        if not self._stack:
            return ()
        top = self._stack[-1]
        if isinstance(top.items, list):
            return (*top.path, len(top.items))
        return top.path if top.wants_key or top.key is None else (*top.path, top.key)

    def _note(self, path: Path, key: Mark, value: Mark) -> None:
        if self._marks is not None:
            self._marks[path] = (key, value)

    def _refuse(self, message: str, mark: Mark, path: Path, hint: str = "") -> None:
        where = Location(self._file, *mark, ".".join(str(part) for part in path))
        self.findings.append(Finding(self._code, message, hint, where))

    def _syntax(self, error: yaml.YAMLError) -> Finding:
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        where = Location(self._file, mark.line + 1, mark.column + 1) if mark is not None else Location(self._file, 1, 1)
        context = getattr(error, "context", None)
        message = f"not YAML: {problem}" + (f" ({context})" if context else "")
        # libyaml does not name the character; a tab looks like spaces and is by far the most frequent one.
        lines = self._text.splitlines()
        tab = mark is not None and mark.line < len(lines) and lines[mark.line][mark.column : mark.column + 1] == "\t"
        hint = "indent with spaces, not tabs" if tab else _syntax_hint(problem)
        if mark is not None and mark.line < len(lines) and not tab:
            hint = _indentation_hint(problem, lines[: mark.line + 1]) or hint
        return Finding(self._code, message, hint, where)


def _mark(event: Event) -> Mark:
    mark: Any = event.start_mark
    return mark.line + 1, mark.column + 1


_KEY: Final = re.compile(r"( *)((?:- +)*)([^\s#][^#]*?):(?:\s|$)|( *)- ")
"""The indentation of a line that begins a key or an item."""


def _indentation_hint(problem: str, lines: list[str]) -> str:
    """The repair if the last of `lines` has an indentation unlike any above it; else empty."""
    *above, line = lines
    if not any(
        part in problem for part in ("expected key", "'-' indicator", "mapping values", "block end", "block mapping")
    ):
        return ""
    found = _KEY.match(line)
    if found is None or ("mapping values" in problem and line.count(": ") > 1):
        return ""
    indentation = len(line) - len(line.lstrip(" "))
    fits: dict[int, tuple[str, int]] = {}
    smallest = 1_000
    for at in range(len(above), 0, -1):
        other = _KEY.match(above[at - 1])
        if other is None:
            continue
        indent = len(above[at - 1]) - len(above[at - 1].lstrip(" "))
        inner = indent + len(other[2] or "")
        if inner < smallest and other[3]:
            fits.setdefault(inner, (other[3], at))
        if indent < smallest and (other[2] or other[4] is not None):
            fits.setdefault(indent, ("-", at))
        smallest = min(smallest, indent)
    if not fits or indentation in fits:
        return ""
    best = min(fits, key=lambda indent: (abs(indent - indentation), -indent))
    name, line_number = fits[best]
    return f"this line is indented by {indentation}; indent it by {best}, like {name!r} in line {line_number}"


def _syntax_hint(problem: str) -> str:
    if "'\\t'" in problem or "tab" in problem:
        return "indent with spaces, not tabs"
    if "mapping values are not allowed" in problem:
        return "put a text that contains ': ' in quotes"
    if "cannot start any token" in problem:
        return "put a text that begins with a special character in quotes"
    if "did not find expected key" in problem or "block mapping" in problem or "block end" in problem:
        return "check the indentation of this line and the one before"
    if "unexpected end" in problem or "end of stream" in problem:
        return "a quote or bracket is not closed"
    return "compare this place with the lines around it: quotes, brackets, colons and the indentation"
