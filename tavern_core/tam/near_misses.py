"""Text that is nearly a call: a misspelt marker, fields or an end marker outside a block, a call in another notation.

Nothing of it runs. Each becomes one problem `looks_like_call`, whose hint is the same call as `render` writes it, if it
can be read. Text about the protocol is ignored: thoughts, code fences, inline code, quotations.

    prose --leave out quotations ----> markers, bare fields, foreign calls --parse again--> the corrected call

Times are linear in the text: every search is bounded, and at most `MOST` near misses are checked.
"""

from __future__ import annotations

import html
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from tavern_core.errors import UsageError
from tavern_core.model.message_translation import say
from tavern_core.model.nearest import fold
from tavern_core.model.text_call import TamCall, TextProblem
from tavern_core.tam.document import Document
from tavern_core.tam.grammar import END, HEAD, KEY_CHAR, LAST_FENCE, START, TAIL, ThoughtPatterns, closing_fence
from tavern_core.tam.problems import problem_of
from tavern_core.tam.wording import WORDS
from tavern_core.tam.writer import render

MOST: Final = 20
_LONGEST_MARKER: Final = 100
_LONGEST: Final = 20_000
"""Characters of one near miss."""
_PLAIN: Final = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {
    ord("【"): "[", ord("】"): "]", ord("〔"): "[", ord("〕"): "]", ord("《"): "<", ord("》"): ">", ord("〈"): "<", ord("〉"): ">", ord("｜"): "|",
}  # fmt: skip
"""Full-width signs and their plain forms, one for one, so that offsets stay the same."""

_LEFT = r"(?:[<\[{(|\\*]|&(?:lt|#60|#x3c|#91|#x5b|#124|#x7c|lbrack|lsqb|vert|verbar);)"
_RIGHT = r"(?:[>\]})|\\*]|&(?:gt|#62|#x3e|#93|#x5d|#124|#x7c|rbrack|rsqb|vert|verbar);)"
_GAP = r"[ \t]{0,4}"
_JOIN = r"[ \t_\\\-]{0,4}"
_MARKER: Final = re.compile(
    rf"(?:{_LEFT}{_GAP}){{1,12}}(?:(?P<start>REQUEST{_JOIN}TOOLS?|TOOLS?{_JOIN}REQUEST|USE{_JOIN}TOOL)|(?P<end>END{_JOIN}(?:REQUEST{_JOIN})?TOOLS?|TOOLS?{_JOIN}END|/{_GAP}REQUEST{_JOIN}TOOLS?))(?:{_GAP}{_RIGHT}){{1,12}}",
    re.IGNORECASE,
)
_FIELD: Final = re.compile(
    rf"^[ \t]{{0,64}}(?:[-*][ \t])?{KEY_CHAR}(?:{KEY_CHAR}|[ \t]){{0,127}}:\s{{0,8}}「始(?:ESCAPE)?」", re.MULTILINE
)
_TAG: Final = re.compile(
    r"<(?P<tag>tool_?call|function_?call|tool_use|invoke|function)\b(?P<rest>[^<>\n]{0,300})>", re.IGNORECASE
)
_JSON: Final = re.compile(r"(?:\[TOOL_CALLS\][ \t]{0,8}|\|>[ \t]{0,8}|^[ \t]{0,64})[\[{]", re.MULTILINE)
"""JSON at the start of a line, or after a special token of a model, such as ``<|tool_call|>``."""
_ACTION: Final = re.compile(
    r"^[ \t]{0,64}\**Action\**[ \t]{0,8}:\**[ \t]{0,8}(?P<tool>[^\s`*]{1,256})[ \t`*]{0,8}$",
    re.MULTILINE | re.IGNORECASE,
)
_ACTION_INPUT: Final = re.compile(r"\s{0,64}\**Action[ _]?Input\**[ \t]{0,8}:\**[ \t]{0,8}", re.IGNORECASE)
_QUOTED: Final = re.compile(
    r"^[ \t]{0,64}(?P<fence>`{3,}|~{3,})[^\n]*\n(?:.*?^[ \t]{0,64}(?P=fence)[`~]*[ \t]*$|.*\Z)|(?P<ticks>`{1,2})[^`\n]{1,400}(?P=ticks)"
    r"|\"[^\"\n]{1,200}\"|“[^”\n]{1,200}”|(?<!\w)'[^'\n]{1,200}'(?!\w)|‘[^’\n]{1,200}’|『[^』\n]{1,200}』",
    re.MULTILINE | re.DOTALL,
)
_CODE: Final = re.compile(r"[`~]")
_SIGNS: Final = re.compile(
    r"「始|TOOL|tool|Tool|Action|ACTION|ＴＯＯＬ|function|invoke|\|>[ \t]{0,8}[\[{]|^[ \t]*[\[{][ \t\r\n]*[\[{\"]",
    re.MULTILINE,
)
"""Every near miss contains one of these."""
_LINE: Final = re.compile(
    rf"^[ \t]*(?:[-*][ \t]+)?[\"']?({KEY_CHAR}{{1,64}})[\"']?[ \t]*[:=][ \t]*(.*?)[ \t]*,?[ \t]*$", re.MULTILINE
)
_PARAMETER: Final = re.compile(
    rf"<(?:parameter(?:=|[ \t]+name=)[\"']?)?({KEY_CHAR}{{1,64}})[\"']?>(.*?)</[^<>]{{1,80}}>", re.DOTALL
)
_COMMAND_NAMES: Final = ("command", "tool_name", "tool_id", "tool", "function_name", "name", "function", "action")
COMMAND_KEYS: Final = tuple(map(fold, _COMMAND_NAMES))
"""Folded keys that other notations use in place of `command`, the more specific ones first."""
_VALUE_KEYS: Final = tuple(
    map(fold, ("arguments", "parameters", "input", "args", "params", "action_input", "tool_input"))
)
_OTHER_COMMAND: Final = re.compile(
    rf"^([ \t]*)(?:{'|'.join(name.replace('_', '[ _]?') for name in _COMMAND_NAMES[1:])})(?=[ \t]*[:：]\s{{0,8}}「始)",
    re.MULTILINE | re.IGNORECASE,
)
_BRACKETS: Final = {"「": "」", "[": "]", '"': '"', "'": "'", "`": "`", "“": "”", "<": ">", "(": ")"}


class NearMiss(NamedTuple):
    """A near miss of a call."""

    tool: str
    """The id of a known tool that it names; empty if it names none."""
    block: str
    """The corrected call; empty if it cannot be parsed."""


class CallReader:
    """Reads calls in other notations.

    Args:
        known: the id of the tool that a name means, or an empty text.
        write: the calls of a text of blocks as `render` writes them; empty if a block of it is invalid.
    """

    def __init__(self, known: Callable[[str], str], write: Callable[[str], str]) -> None:
        self._known = known
        self._write = write

    def of_body(self, body: str) -> NearMiss:
        """The call that the text between two markers means."""
        as_written = f"{START}\n{body.strip()}\n{END}"
        for text in (
            as_written,
            _OTHER_COMMAND.sub(r"\1command", as_written, count=1),
            *(_block(dict(_pairs(body, keep_lists=keeps))) for keeps in (True, False)),
        ):
            if block := self._write(text):
                return NearMiss(self._known(_command_in(block)), block)
        if isinstance(value := _json_in(body), Mapping | list) and (reading := self._of_value(value)).tool:
            return reading
        return NearMiss(self._known(_command_in(body)), "")

    def of_tag(self, match: re.Match[str], text: str, depth: int = 2) -> tuple[int, NearMiss]:
        tag, begin = match["tag"], match.end() - match.start()
        end = text.lower().find(f"</{tag.lower()}", begin)
        body = text[begin : end if end >= 0 else len(text)]
        stop = len(text) if end < 0 else min(len(text), end + len(tag) + 3)
        named = re.search(rf"(?:name=|=)[ \t]*[\"']?({KEY_CHAR}[^\s\"'<>]{{0,255}})", match["rest"])
        if named:
            return stop, self._call(named[1], dict(_PARAMETER.findall(body)) or _json_in(body))
        inner = _TAG.search(body) if depth else None
        if inner is not None:
            return stop, self.of_tag(inner, body[inner.start() :], depth - 1)[1]
        return stop, self._of_value(_json_in(body))

    def of_json(self, match: re.Match[str], text: str) -> tuple[int, NearMiss]:
        begin = match.end() - match.start() - 1
        try:
            value, end = json.JSONDecoder().raw_decode(text[begin:])
        except (ValueError, RecursionError):
            return 0, NearMiss("", "")
        return begin + end, self._of_value(value)

    def of_action(self, match: re.Match[str], text: str) -> tuple[int, NearMiss]:
        end = match.end() - match.start()
        given = _ACTION_INPUT.match(text, end)
        value = _json_in(text[given.end() :]) if given else None
        return end, self._call(match["tool"], value)

    def _of_value(self, value: Any, depth: int = 4) -> NearMiss:
        """The call that a JSON value contains, in one of the usual forms."""
        if isinstance(value, list) and value and depth:
            return self._of_value(value[0], depth - 1)
        if not isinstance(value, Mapping) or not depth:
            return NearMiss("", "")
        for key in ("tool_calls", "tool_call", "function_call", "function"):
            if isinstance(value.get(key), list | dict):
                return self._of_value(value[key], depth - 1)
        folded = {fold(key): value[key] for key in reversed(value) if fold(key)}
        named = next((key for key in COMMAND_KEYS if isinstance(folded.get(key), str)), "")
        arguments = next((folded[key] for key in _VALUE_KEYS if key in folded), None)
        if isinstance(arguments, str):
            arguments = _json_in(arguments)
        if not isinstance(arguments, Mapping):
            arguments = {key: item for key, item in value.items() if fold(key) not in (named, *_VALUE_KEYS)}
        return self._call(folded[named] if named else "", arguments)

    def _call(self, name: str, given: Any) -> NearMiss:
        tool = self._known(name.strip()) if name else ""
        if not tool:
            return NearMiss("", "")
        arguments = given if isinstance(given, Mapping) else {}
        try:
            typed = render(TamCall(1, 1, tool, arguments))
        except UsageError:
            typed = ""
        try:
            fields = {
                key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                for key, value in arguments.items()
            }
        except RecursionError:
            return NearMiss(tool, "")
        return NearMiss(tool, self._write(typed) or self._write(_block({"command": tool, **fields})))


class _FoundMiss(NamedTuple):
    at: int
    end: int
    what: str
    reading: NearMiss


def has_signs(prose: str) -> bool:
    """Whether there may be a near miss in `prose`; quick."""
    return _SIGNS.search(prose) is not None


def near_misses(document: Document, reader: CallReader) -> list[TextProblem]:
    """The near misses in the prose of a text, in its order."""
    prose = document.prose
    if not has_signs(prose):
        return []
    found = _NearMissSearch(prose, reader, document.thoughts).found()
    places = _ProsePositions(document)
    problems = []
    damaged = next((block.line for block in document.blocks if not block.ok), None)
    for miss in found:
        line, column = places.of(miss.at)
        if (
            miss.reading.tool or miss.end - miss.at > _LONGEST_MARKER or damaged is None or line < damaged
        ):  # else the rest of an invalid block
            problems.append(_problem(miss, line, column))
    return problems


def _problem(miss: _FoundMiss, line: int, column: int) -> TextProblem:
    tool, block = miss.reading
    hint = say(WORDS["write_call"], block=block or _block({"command": tool or "tool id", "parameter": "value"}))
    message = say(WORDS["nearly_of" if tool else "nearly"], tool=tool, what=miss.what)
    return problem_of("looks_like_call", message, hint, place=(line, column))


class _ProsePositions:
    """From offsets of the prose to lines and columns of the text, whose blocks are not in the prose."""

    def __init__(self, document: Document) -> None:
        self._prose = document.prose
        self._cuts: list[tuple[int, int, int]] = []  # where the prose had a block, its characters, its line breaks
        removed = 0
        for block in document.blocks:
            self._cuts.append((block.start - removed, block.end - block.start, block.text.count("\n")))
            removed += block.end - block.start
        self._seen, self._line = 0, 1

    def of(self, at: int) -> tuple[int, int]:
        self._line += self._prose.count("\n", self._seen, at)  # called in order, so all calls cost one pass
        self._seen = at
        lines = sum(breaks for place, _, breaks in self._cuts if place <= at)
        return self._line + lines, at - self._prose.rfind("\n", 0, at)


class _NearMissSearch:
    def __init__(self, prose: str, reader: CallReader, tags: ThoughtPatterns) -> None:
        self._prose = prose
        self._plain = prose.translate(_PLAIN)
        self._reader = reader
        thoughts = list(_thoughts(self._plain, tags))
        quoted = list(_QUOTED.finditer(self._plain))
        self._code = _Spans([*thoughts, *(m.span() for m in quoted if _CODE.match(m[0].lstrip()))])
        self._quoted = _Spans([*thoughts, *(m.span() for m in quoted)])

    def found(self) -> list[_FoundMiss]:
        markers = [m for m in _MARKER.finditer(self._plain) if m.start() not in self._quoted]
        misses = [*self._marked(markers)]
        reported = _Spans([(miss.at, miss.end) for miss in misses])
        misses += [miss for miss in self._bare_fields(markers, reported) if miss.at not in reported]
        reported = _Spans([(miss.at, miss.end) for miss in misses])
        misses += [miss for miss in self._lone_ends(markers) if miss.at not in reported]
        misses += self._foreign(_Spans([(miss.at, miss.end) for miss in misses]))
        return sorted(misses)[:MOST]

    def _marked(self, markers: list[re.Match[str]]) -> Iterator[_FoundMiss]:
        """Misspelt start markers."""
        for number, marker in enumerate(markers[: 2 * MOST]):
            if marker["start"] is None:
                continue
            after = markers[number + 1] if number + 1 < len(markers) else None
            limit = min(len(self._prose), marker.end() + _LONGEST)
            closed = after is not None and after["end"] is not None and after.start() <= limit
            stop = after.start() if after is not None and after.start() <= limit else limit
            body = _unescaped(self._prose[marker.end() : stop], marker[0])
            if not closed:
                body = body[: _last_field(body)]
            end = after.end() if closed and after is not None else marker.end() + len(body)
            yield _FoundMiss(
                marker.start(), end, say(WORDS["start_misspelt"], marker=_shown(marker[0])), self._reader.of_body(body)
            )

    def _bare_fields(self, markers: list[re.Match[str]], reported: _Spans) -> Iterator[_FoundMiss]:
        """Fields without a start marker."""
        upto, count = -1, 0
        for field in _FIELD.finditer(self._plain):
            at = field.start()
            if at < upto or at in self._code or at in reported or count == MOST:
                continue
            count += 1
            limit = min(len(self._prose), at + _LONGEST)
            after = next((m for m in markers if m.start() > at), None)
            closed = after is not None and after["end"] is not None and after.start() <= limit
            stop = after.start() if after is not None and after.start() <= limit else limit
            body = self._prose[at:stop]
            body = body if closed else body[: _last_field(body)]
            if not (_command_in(body) or closed or len(_FIELD.findall(body)) > 1):
                continue  # one field is an example of a field
            upto = after.end() if closed and after is not None else at + max(len(body), 1)
            yield _FoundMiss(at, upto, say(WORDS["no_start"]), self._reader.of_body(body))

    def _lone_ends(self, markers: list[re.Match[str]]) -> Iterator[_FoundMiss]:
        for marker in markers[:MOST]:
            if marker["end"] is not None:
                yield _FoundMiss(
                    marker.start(), marker.end(), say(WORDS["never_began"], marker=_shown(marker[0])), NearMiss("", "")
                )

    def _foreign(self, reported: _Spans) -> Iterator[_FoundMiss]:
        """Calls in another notation; only those that name a known tool."""
        looked = 0
        upto = -1
        starts = sorted(
            (m.start(), kind, m)
            for kind, pattern in (("tag", _TAG), ("json", _JSON), ("action", _ACTION))
            for m in _first(pattern, self._plain)
        )
        for at, kind, match in starts:
            if at < upto or at in self._code or at in reported:
                continue
            looked += 1
            if looked > 4 * MOST:
                return
            text = self._prose[match.start() : match.start() + _LONGEST]
            end, reading = getattr(self._reader, f"of_{kind}")(match, text)
            if reading.tool:
                upto = at + end
                yield _FoundMiss(at, upto, say(WORDS[f"as_{kind}"]), reading)


class _Spans:
    """Spans of a text, to check whether an offset is in one of them."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted(spans):
            if self._ends and start < self._ends[-1]:
                self._ends[-1] = max(end, self._ends[-1])
            else:
                self._starts.append(start)
                self._ends.append(end)

    def __contains__(self, at: object) -> bool:
        assert isinstance(at, int)
        number = bisect_right(self._starts, at) - 1
        return number >= 0 and at < self._ends[number]


def _thoughts(text: str, tags: ThoughtPatterns) -> Iterator[tuple[int, int]]:
    """Thoughts as `machine` reads them: one ends with the tag of its own name, and nesting counts."""
    at = 0
    while (opening := tags.opening.search(text, at)) is not None:
        at = opening.end()
        if opening[2] is None:
            continue
        depth, begin = 1, opening.start()
        for tag in tags.tags[opening[2].lower()].finditer(text, at):
            depth += -1 if tag[1] else 1
            if not depth:
                at = tag.end()
                break
        else:
            at = len(text)
        yield begin, at


def fenced_blocks(document: Document) -> frozenset[int]:
    """The numbers of the blocks that stand in a Markdown code fence, closed or not."""
    if not document.blocks or not ("```" in document.prose or "~~~" in document.prose):
        return frozenset()
    prose, places = _with_line_breaks(document)
    thoughts = _Spans(_thoughts(prose, document.thoughts))
    fences: list[tuple[int, int]] = []
    at = 0
    while (opening := LAST_FENCE.search(prose, at)) is not None:
        at = opening.end()
        if opening.start() not in thoughts:
            closing = closing_fence(opening[1] or opening[2]).search(prose, at)
            at = len(prose) if closing is None else closing.end()
            fences.append((opening.start(), at))
    fenced = _Spans(fences)
    return frozenset(block.number for block, place in zip(document.blocks, places, strict=True) if place in fenced)


def _with_line_breaks(document: Document) -> tuple[str, list[int]]:
    """The prose with a mark and a line break in place of each block, and where these are.

    What follows a block begins a line. The mark keeps signs right before a block from closing a fence.
    """
    parts: list[str] = []
    places: list[int] = []
    begin = removed = 0
    for number, block in enumerate(document.blocks):
        place = block.start - removed
        parts += document.prose[begin:place], "\0\n"
        places.append(place + 2 * number)
        begin, removed = place, removed + block.end - block.start
    return "".join([*parts, document.prose[begin:]]), places


def _first(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    for number, found in enumerate(pattern.finditer(text)):
        if number == 8 * MOST:
            return
        yield found


def _unescaped(body: str, marker: str) -> str:
    """`body` without the escapes of its marker."""
    if "&" in marker:
        body = html.unescape(body)
    return re.sub(r"\\([<>\[\]|_*])", r"\1", body) if "\\" in marker else body


def _last_field(body: str) -> int:
    """The end of the last value of `body`, or of its first paragraph if it has no value."""
    ends = [body.rfind(tail) + len(tail) for tail in (TAIL, "「末ESCAPE」", "«««") if tail in body]
    gap = body.find("\n\n", 1)
    return max(ends) if ends else gap if gap >= 0 else len(body)


def _pairs(body: str, *, keep_lists: bool) -> Iterator[tuple[str, str]]:
    """Lines `key: value` without delimiters, or in other brackets; `[2]` may be a list, or a 2 in brackets."""
    for line in _LINE.finditer(body[:_LONGEST]):
        key, value = line[1], line[2]
        if fold(key) in COMMAND_KEYS:
            key = "command"
        while is_enclosed(value, _BRACKETS) and not (keep_lists and value[0] == "[" and key != "command"):
            value = value[1:-1].strip()
        yield key, value


def is_enclosed(value: str, pairs: Mapping[str, str]) -> bool:
    """Whether one pair of brackets or quotes stands around all of `value`: not so in `<b>bold</b>` and `"a" or "b"`."""
    close = pairs.get(value[:1])
    return len(value) > 1 and value[-1] == close and value.find(close, 1) == len(value) - 1


def _json_in(text: str) -> Any:
    text = text.strip().removeprefix("```json").strip("`").strip()
    try:
        return json.JSONDecoder().raw_decode(text[:_LONGEST])[0] if text[:1] in ("{", "[") else None
    except (ValueError, RecursionError):
        return None


def _block(fields: Mapping[str, str]) -> str:
    if "command" not in fields or any("「始" in value or "「末" in value for value in fields.values()):
        return ""
    return "\n".join([START, *(f"{key}:{HEAD}{value}{TAIL}" for key, value in fields.items()), END])


def _command_in(text: str) -> str:
    found = re.search(
        rf"(?:command|tool_name|tool|name)[\"']?[ \t_]{{0,4}}1?\s{{0,8}}[:：=]\s{{0,8}}[「\[\"'`(<»>]{{0,4}}(?:始(?:ESCAPE)?」)?\s{{0,8}}({KEY_CHAR}[^\s「」\"'`,\]<>)«]{{0,255}})",
        text,
        re.IGNORECASE,
    )
    return found[1] if found else ""


def _shown(marker: str) -> str:
    return f"`{marker[:60]}`"
