"""YAML as data with places: a small, safe dialect read from libyaml's event stream.

    text --decode--> characters --libyaml--> events --build--> data + findings
                                                  (again, only when asked) --> marks: path -> line and column

What is read: mappings with text keys, sequences, text, `true`/`false`, `null`, integers and finite numbers, as in YAML 1.2
(`yes`, `no`, `on`, `off` and dates stay text). What is refused, each with its place: anchors, aliases, merge keys, tags,
duplicate keys, keys that are not text, several documents, control characters, NaN and infinity, and anything beyond the
limits below. Nothing here raises on content and nothing here opens a file.

Events, not nodes: an alias bomb or a deep nesting is refused where it begins, before anything of it is built, and building
straight from events costs about two thirds of yaml.CSafeLoader's own constructor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
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

LARGEST_FILE: Final = 1_000_000  # bytes
DEEPEST: Final = 64
MOST_NODES: Final = 50_000
MOST_FINDINGS: Final = 50

Path = tuple[str | int, ...]
Mark = tuple[int, int]
"""Line and column, from 1."""

# libyaml's own parser where it was compiled in, else PyYAML's; both give the same events.
_Parser: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# With the line ends of Unicode: libyaml folds them into spaces, and no editor counts them as lines.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
_INTEGER = re.compile(r"[-+]?[0-9]+\Z")
_BASED = re.compile(r"0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z")
_WORDS: Final[Mapping[str, bool | None]] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_NUMBER_STARTS: Final = frozenset("0123456789+-.")
_LONGEST_INTEGER = 100  # digits; Python itself stops at 4300


@dataclass(frozen=True)
class YamlDocument:
    """What one YAML text holds.

    Args:
        file: shown in findings.
        text: the decoded text, without a byte order mark.
        data: dicts, lists and scalars; None for an empty text. Where there are errors it holds what could be read.
        findings: everything wrong, in the order of the text.
        code: the error code of the findings.
    """

    file: str
    text: str
    data: Any
    findings: tuple[Finding, ...] = ()
    code: str = "MANIFEST_INVALID"

    @property
    def is_readable(self) -> bool:
        """False when anything in it was refused."""
        return not self.findings

    @cached_property
    def _marks(self) -> Mapping[Path, tuple[Mark, Mark]]:
        marks: dict[Path, tuple[Mark, Mark]] = {}
        _Builder(self.text, self.file, self.code, marks).build()
        return marks

    def locate(self, path: Sequence[str | int], *, key: bool = False) -> Location:
        """Where the value at `path` begins, or (`key`) where its key does.

        A path that is not in the text (a missing field) is placed at the nearest part of it that is.
        """
        wanted = tuple(path)
        pointer = ".".join(str(part) for part in wanted)
        for length in range(len(wanted), -1, -1):
            if (found := self._marks.get(wanted[:length])) is not None:
                line, column = found[0 if key or length < len(wanted) else 1]
                return Location(self.file, line, column, pointer)
        return Location(self.file, pointer=pointer)

    def line(self, number: int) -> str:
        """Line `number` (from 1) without its end; empty where there is none."""
        lines = self.text.splitlines()
        return lines[number - 1] if 0 < number <= len(lines) else ""


def read_yaml(text: str | bytes, file: str, *, code: str = "MANIFEST_INVALID") -> YamlDocument:
    """Read one YAML document.

    Args:
        text: characters, or bytes in UTF-8 (with or without a byte order mark).
        file: the name shown in findings.
        code: the error code that findings carry.

    Returns:
        A document; `data` is None and `findings` say why where nothing could be read. Never raises on content.
    """
    if len(text) > LARGEST_FILE:
        message = f"the file is larger than {LARGEST_FILE:,} bytes"
        return YamlDocument(file, "", None, (Finding(code, message, where=Location(file)),), code)
    if isinstance(text, bytes):
        decoded = decode(text, file, code)
        if isinstance(decoded, Finding):
            return YamlDocument(file, "", None, (decoded,), code)
        text = decoded
    text = text.removeprefix("\ufeff")
    if (bad := _FORBIDDEN.search(text)) is not None:
        message = f"the character U+{ord(bad.group()):04X} is not allowed here"
        where = Location(file, *place(text, bad.start()))
        safe = _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
        return YamlDocument(file, safe, None, (Finding(code, message, "delete it", where),), code)
    try:
        return YamlDocument(file, text, _read_good(text), (), code)
    except (_NotSimple, yaml.YAMLError):
        builder = _Builder(text, file, code)  # again, slower, to say what is wrong and where
        data = builder.build()
    return YamlDocument(file, text, data, tuple(builder.findings), code)


def place(text: str, offset: int) -> Mark:
    """Line and column, from 1, of the character at `offset`."""
    before = text[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1


def decode(content: bytes, file: str, code: str) -> str | Finding:
    """The text of a file in UTF-8, or what is wrong with it and where."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return Finding(code, "the file is UTF-16", "save it as UTF-8", Location(file, 1, 1))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        good = content[: error.start].decode("utf-8", "replace")
        where = Location(file, *place(good, len(good)))
        return Finding(code, f"byte 0x{content[error.start]:02X} is not UTF-8", "save the file as UTF-8", where)


class _NotSimple(Exception):
    """The text holds something that may have to be refused."""


def _read_good(text: str) -> Any:
    """The data of a text in which nothing is to be refused; half the cost of finding out where things stand.

    Raises:
        _NotSimple: something is, or may be.
        yaml.YAMLError: it is not YAML.
    """
    parser = _Parser(text)
    try:
        next_event, nodes = parser.get_event, 0
        stack: list[tuple[Any, str | None]] = []
        root: Any = None
        has_root = False
        items: Any = None  # the open mapping or sequence
        key: str | None = None
        while True:
            event = next_event()
            kind = type(event)
            if kind is ScalarEvent:
                value = event.value
                if event.style:
                    if event.style == '"' and _CONTROL.search(value) is not None:
                        raise _NotSimple
                elif value in _WORDS:
                    value = _WORDS[value]
                elif value[0] in _NUMBER_STARTS:
                    value = _number(value)
            elif kind is MappingStartEvent:
                value = {}
            elif kind is SequenceStartEvent:
                value = []
            elif kind is MappingEndEvent or kind is SequenceEndEvent:
                items, key = stack.pop()
                continue
            elif kind is StreamEndEvent:
                return root
            elif kind is AliasEvent or (kind is DocumentStartEvent and has_root):
                raise _NotSimple
            else:
                continue
            nodes += 1
            if event.anchor is not None or event.tag is not None or nodes > MOST_NODES:
                raise _NotSimple
            if type(items) is dict and key is None:
                if type(value) is not str or value in items or value == "<<":
                    raise _NotSimple
                key = value
                items[key] = None
                continue
            if type(items) is dict:
                items[key] = value
                key = None
            elif type(items) is list:
                items.append(value)
            else:
                root, has_root = value, True
            if kind is not ScalarEvent:
                stack.append((items, key))
                items = value
                if len(stack) > DEEPEST:
                    raise _NotSimple
    finally:
        parser.dispose()


def _number(text: str) -> Any:
    """What a plain text that begins like a number is: an integer, a finite number, or text.

    Raises:
        _NotSimple: it is a number that must be refused.
    """
    if _INTEGER.match(text) is not None:
        if len(text) > _LONGEST_INTEGER:
            raise _NotSimple
        return int(text)
    if _BASED.match(text) is not None and len(text) <= _LONGEST_INTEGER:
        return int(text, 0)
    if _NUMBER.match(text) is not None:
        number = float(text)
        if number - number == 0.0:
            return number
        raise _NotSimple
    if _NOT_FINITE.match(text) is not None:
        raise _NotSimple
    return text


@dataclass
class _Open:
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


class _Builder:
    """Turns the event stream of one text into data. Used once."""

    def __init__(self, text: str, file: str, code: str, marks: dict[Path, tuple[Mark, Mark]] | None = None) -> None:
        self.findings: list[Finding] = []
        self._text, self._file, self._code, self._marks = text, file, code, marks
        self._stack: list[_Open] = []
        self._root: Any = None
        self._has_root = False

    def build(self) -> Any:
        """Read to the end, or to the first thing that cannot be read past."""
        parser = _Parser(self._text)
        try:
            self._read(parser.get_event)
        except yaml.YAMLError as error:
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
            if nodes > MOST_NODES or len(self._stack) > DEEPEST or len(self.findings) >= MOST_FINDINGS:
                if len(self.findings) < MOST_FINDINGS:
                    limit = (
                        f"more than {MOST_NODES:,} values" if nodes > MOST_NODES else f"nested deeper than {DEEPEST}"
                    )
                    self._refuse(limit, _mark(event), self._path())
                return

    # Values ------------------------------------------------------------------------------------------------------------

    def _open(self, event: Event, items: dict[str, Any] | list[Any]) -> None:
        self._check_properties(event)
        top = self._stack[-1] if self._stack else None
        if top is not None and isinstance(top.items, dict) and top.wants_key:
            self._refuse("a key must be text", _mark(event), top.path, "write the key as plain text")
            top.wants_key, top.ignored = False, True
            self._stack.append(_Open(items, (*top.path, "?")))
            return
        path = self._value(event, items)
        self._stack.append(_Open(items, path))

    def _value(self, event: Event, value: Any) -> Path:
        """Put `value` where it belongs; a scalar may turn out to be a key. Returns its path."""
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
            return (*path, "?")  # beneath a refused key: built, checked, and not kept
        top.items[top.key or ""] = value
        self._note(path, top.key_mark, _mark(event))
        return path

    def _key(self, top: _Open, event: Event, key: Any) -> None:
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
            message = f"the key {key!r:.80} stands here twice, first at line {first[0]}, column {first[1]}"
            self._refuse(message, mark, (*top.path, key), "keep one of them")
        else:
            top.firsts[key] = mark
            top.key, top.ignored = key, False

    def _scalar(self, event: ScalarEvent) -> Any:
        self._check_properties(event)
        text: str = event.value
        if event.style:  # libyaml says "" for plain text, PyYAML None
            if event.style == '"' and _CONTROL.search(text) is not None:
                self._refuse("the text holds a control character", _mark(event), self._path(), "delete the escape")
            return text
        if text in _WORDS:
            return _WORDS[text]
        if text[0] not in _NUMBER_STARTS:
            return text
        try:
            return _number(text)
        except _NotSimple:
            reason = f"a number of {len(text):,} digits" if text.lstrip("+-").isdigit() else f"{text:.40} is not finite"
            self._refuse(reason, _mark(event), self._path(), "put it in quotes" if "digits" in reason else "")
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
        return Finding(self._code, message, "indent with spaces, not tabs" if tab else _syntax_hint(problem), where)


def _mark(event: Event) -> Mark:
    mark: Any = event.start_mark
    return mark.line + 1, mark.column + 1


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
    return ""
