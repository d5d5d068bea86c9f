"""Near misses of fields in a block: lines without delimiters, another name for `command`, JSON instead of fields.

None of it is read as a field. Each is an error whose hint is the field, or the call, as it should be written (TAM rule 13).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from tavern_core.model.message_translation import say
from tavern_core.model.nearest import fold
from tavern_core.model.text_call import TextProblem
from tavern_core.tam.document import Block, Field
from tavern_core.tam.field_key_interpretation import BindableTool, command_number
from tavern_core.tam.grammar import HEAD, KEY_CHAR, TAIL
from tavern_core.tam.near_misses import COMMAND_KEYS, CallReader, is_enclosed
from tavern_core.tam.problems import problem_of
from tavern_core.tam.wording import WORDS

_LINE: Final = re.compile(
    rf"[ \t]*(?:[-*][ \t]+)?[\"'`]?({KEY_CHAR}(?:{KEY_CHAR}|[ \t]){{0,127}}?)[\"'`]?[ \t]*(?>=>|->|→|:|：|=|＝)[ \t]*(\S.*?)?[ \t]*[,，]?[ \t]*\Z"
)
_EQUALS: Final = re.compile(
    rf"[ \t]*({KEY_CHAR}(?:{KEY_CHAR}|[ \t]){{0,127}}?)[ \t]*+(?:(?>=>|->|→|=|＝)[ \t]*+)?(「始(?:ESCAPE)?」.*)"
)
_NEARLY: Final = re.compile(
    r"[【\[『「(（<《{]{1,2}始[】\]』」)）>》}]{1,2}(.*?)(?:[【\[『「(（<《{]{1,2}末[】\]』」)）>》}]{1,2})?\Z"
)
_PAIRS: Final = {
    "「": "」",
    "『": "』",
    "【": "】",
    "[": "]",
    '"': '"',
    "'": "'",
    "`": "`",
    "“": "”",
    "‘": "’",
    "<": ">",
    "(": ")",
    "（": "）",
    "«": "»",
}
_LONGEST: Final = 2_000
"""Maximum characters of a checked line."""
_MOST: Final = 50


class Undelimited(NamedTuple):
    """A line of a block with a known key but without delimiters."""

    name: str
    """The declared parameter, or the key of a command."""
    value: str
    line: int
    column: int


def undelimited(block: Block, tool: Callable[[str], BindableTool | None]) -> list[Undelimited]:
    """The lines of a block that are fields except for their delimiters; only those with a known key."""
    if not any(problem.code in ("stray_text", "malformed_field") for problem in block.problems):
        return []
    if not block.fields and _body_of(block).startswith(("{", "[", "```")):
        return []  # an object instead of fields is reported as a whole call
    lines = list(_lines(block))
    named = [field.value for field in block.fields if _is_command(field.key)] or [
        value for _, key, value in lines if _is_command(key)
    ]
    tools = [found for name in named[:_MOST] if (found := tool(name.strip())) is not None]
    keys = {field.key for field in block.fields}
    steps = {command_number(key) for key in keys}
    meant: list[Undelimited] = []
    for at, key, value in lines:
        name = key if _is_command(key) and command_number(key) not in steps else _declared(key, tools)
        if name and name not in keys:
            meant.append(Undelimited(name, value, *block.place(at)))
    return meant[:_MOST]


def _body_of(block: Block) -> str:
    """The text between the markers."""
    return (block.text.partition("]|>")[2].rpartition("<|[")[0] or block.text).strip()


def _is_command(key: str) -> bool:
    return command_number(key) is not None


def _declared(key: str, tools: list[BindableTool]) -> str:
    """The parameter that a key means to one of the tools, with the number of its step; empty: none."""
    name = key.rstrip("0123456789")
    for tool in tools:
        for size in range(len(key), len(name) - 1, -1):
            written, end = key[:size], key[size:]
            meaning = tool.parameters.meaning(written.rstrip("_- ") if end else written)
            if meaning.declared:
                return meaning.name + end
    return ""


def _lines(block: Block) -> Iterator[tuple[int, str, str]]:
    """Offset, key and value of each line between the fields that reads like `key: value`."""
    spans = sorted(
        [(field.start, field.end) for field in block.fields]
        + [(comment.start, comment.start + len(comment.text)) for comment in block.comments]
    )
    stop = block.start + block.text.rfind("<") if block.closed else block.end
    begin = block.start + block.text.find("\n") + 1 if "\n" in block.text else stop
    gaps = []
    for start, end in [*spans, (stop, stop)]:
        if start > begin:
            gaps.append((begin, start))
        line_end = block.text.find("\n", end - block.start)
        begin = max(begin, block.start + line_end + 1 if line_end >= 0 else stop)  # the rest of the line is a note
    for start, end in gaps:
        at = start
        for line in block.text[start - block.start : end - block.start].splitlines(keepends=True):
            match = _LINE.match(line.rstrip("\r\n")[:_LONGEST]) if "「始" not in line and "「末" not in line else None
            if match is not None and (match[2] or line[-1] in "\r\n"):  # `key: ` before 「始」 is no whole line
                yield at + match.start(1), match[1].strip(), _bare(match[2]) if match[2] else "…"
            at += len(line)


def _bare(value: str) -> str:
    """A value without the brackets or quotes that replace the delimiters."""
    if (nearly := _NEARLY.match(value)) is not None:
        return nearly[1].strip()
    if value[0] != "[" and is_enclosed(value, _PAIRS):
        return value[1:-1]
    return value


def corrected(
    block: Block,
    problems: list[TextProblem],
    lines: list[Undelimited],
    reader: CallReader,
    tool: Callable[[str], BindableTool | None],
) -> list[TextProblem]:
    """The problems of a block with the repairs that its near misses suggest; `lines` is from `undelimited`."""
    found = [
        problem_of(
            "undelimited_field",
            say(WORDS["undelimited"], name=each.name),
            say(WORDS["write_this"], field=f"{each.name}:{HEAD}{each.value}{TAIL}"),
            block=block.number,
            place=(each.line, each.column),
            key=each.name,
        )
        for each in lines
    ]
    places = {each.line for each in lines}
    for problem in problems:
        if problem.code == "stray_text" and (problem.line in places or not block.fields):
            continue
        if problem.code == "malformed_field":
            problem = replace(problem, hint=_with_colon(block, problem) or problem.hint)
        elif problem.code == "missing_command" and not problem.key:
            if has_command(lines):
                continue
            problem = replace(problem, hint=command_hint(block, reader, tool) or problem.hint)
        elif problem.code == "duplicate_key" and command_number(problem.key) == "single":
            problem = replace(problem, hint=say(WORDS["number_or_split"]))
        found.append(problem)
    return found


def has_command(lines: list[Undelimited]) -> bool:
    """Whether one of the lines of `undelimited` names the tool."""
    return any(_is_command(each.name) for each in lines)


def _with_colon(block: Block, problem: TextProblem) -> str:
    line = (
        block.text.splitlines()[problem.line - block.line][:_LONGEST]
        if problem.line - block.line < len(block.text.splitlines())
        else ""
    )
    match = _EQUALS.match(line)
    return say(WORDS["write_this"], field=f"{match[1].strip()}:{match[2].strip()}") if match is not None else ""


def command_hint(block: Block, reader: CallReader, tool: Callable[[str], BindableTool | None]) -> str:
    """Advice on naming the tool if a field has another name for `command`, or a call is in another notation."""
    other: Field | None = next((field for field in block.fields if fold(field.key) in _OTHER_NAMES), None)
    if other is not None:
        known = tool(other.value.strip())
        field = f"command:{HEAD}{known.id if known is not None else other.value.strip()[:200]}{TAIL}"
        return say(WORDS["call_it_command"], field=field, key=other.key)
    call = reader.of_body(_body_of(block)).block
    return say(WORDS["write_call"], block=call) if call else ""


_OTHER_NAMES: Final = frozenset({*COMMAND_KEYS, "cmd", "命令", "指令", "工具", "工具名", "工具名称"}) - {"command"}
