"""Worked cases of the text protocol: a sentence, a text, the calls, errors and warnings it must give.

Data only; `test_cases.py` runs them, whole and in pieces.
"""

from __future__ import annotations

from typing import Any, NamedTuple

S, E = "<|[REQUEST_TOOL]|>", "<|[END_TOOL]|>"


def _object(properties: dict[str, Any], *required: str, extra: object = False) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": extra}
    if required:
        schema["required"] = list(required)
    return schema


TEXT, WHOLE, NUMBER, FLAG = {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}

TOOLS: dict[str, dict[str, Any]] = {
    "any": {"type": "object"},
    "file.write": _object({"filePath": TEXT, "content": TEXT}, "filePath", "content"),
    "file.append": _object({"filePath": TEXT, "content": TEXT}, "filePath", "content"),
    "file.delete": _object({"filePath": TEXT}, "filePath"),
    "file.edit": _object(
        {"filePath": TEXT, "search_string": TEXT, "replace_string": TEXT}, "filePath", "search_string", "replace_string"
    ),
    "img.compose": _object({"image_url_1": TEXT, "image_url_2": TEXT, "prompt": TEXT}, "prompt"),
    "search.hybrid": _object({"query": TEXT, "BM25": NUMBER, "top_k": WHOLE}, "query"),
    "media.render": _object({"format": TEXT, "svg": TEXT, "html": TEXT}),
    "twins": _object({"file_path": TEXT, "filePath": TEXT}),
    "typed": _object(
        {
            "n": WHOLE,
            "f": NUMBER,
            "b": FLAG,
            "o": {"type": "object"},
            "a": {"type": "array", "items": WHOLE},
            "s": TEXT,
            "e": {"enum": ["简短", "中等", "详细"]},
            "z": {"type": "null"},
        }
    ),
    "unions": _object(
        {
            "maybe": {"anyOf": [TEXT, {"type": "null"}]},
            "count": {"type": ["integer", "null"]},
            "either": {"type": ["integer", "string"]},
            "mixed": {"enum": [1, "1", True, None, "x "]},
            "fixed": {"const": 7},
            "level": {"oneOf": [{"enum": ["low", "high"]}, {"type": "integer", "minimum": 0}]},
            "point": {"$ref": "#/$defs/point"},
            "tags": {"type": "array", "items": {"anyOf": [TEXT, {"$ref": "#/$defs/point"}]}},
            "free": {},
        }
    )
    | {"$defs": {"point": _object({"x": WHOLE, "y": WHOLE}, "x", "y")}},
    "bounds": _object(
        {
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "name": {"type": "string", "minLength": 2, "maxLength": 5},
            "list": {"type": "array", "minItems": 1, "maxItems": 2},
        }
    ),
    "patterned": {
        "type": "object",
        "properties": {"id": TEXT},
        "patternProperties": {"^x-": WHOLE},
        "additionalProperties": False,
    },
    "extras": _object({"id": TEXT}, extra={"type": "integer"}),
    "defaults": _object({"path": TEXT, "mode": {"type": "string", "default": "w"}}, "path", "mode"),
    "unicode": _object({"文件路径": TEXT, "Größe": WHOLE, "कि": TEXT}),
    "shell": _object({"command": TEXT, "command2": TEXT, "request_id": TEXT, "comment": TEXT, "uri_x": TEXT}),
    "numbered": _object({"x": TEXT, "x1": TEXT}),
}


class Case(NamedTuple):
    """One case. `calls` are (step, tool, arguments) or, for other blocks than the first, (step, tool, arguments, block)."""

    says: str
    text: str
    calls: list[tuple[Any, ...]]
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def block(*lines: str) -> str:
    return "\n".join([S, *lines, E])


def one(says: str, *lines: str, errors: str = "", warnings: str = "", **arguments: Any) -> Case:
    """A block that calls `any`; with errors it calls nothing."""
    calls = [] if errors else [(1, "any", arguments)]
    return Case(says, block("command:「始」any「末」", *lines), calls, tuple(errors.split()), tuple(warnings.split()))


def typed(says: str, tool: str, *lines: str, errors: str = "", warnings: str = "", **arguments: Any) -> Case:
    """A block that calls `tool`."""
    calls = [] if errors else [(1, tool, arguments)]
    return Case(
        says, block(f"command:「始」{tool}「末」", *lines), calls, tuple(errors.split()), tuple(warnings.split())
    )


def second(says: str, *lines: str, errors: str = "", warnings: str = "", **arguments: Any) -> Case:
    """A block of the second dialect that calls `any`."""
    calls = [] if errors else [(1, "any", arguments)]
    return Case(says, block("command:»»»any«««", *lines), calls, tuple(errors.split()), tuple(warnings.split()))


BLANKS = " \t"

MARKERS = [
    Case(
        "prose around a block is not part of it",
        "I will do it.\n\n" + block("command:「始」any「末」", "a:「始」1\n2\n「末」") + " done",
        [(1, "any", {"a": "1\n2\n"})],
    ),
    Case(
        "markers in lower case are understood",
        "<|[request_tool]|>\ncommand:「始」any「末」\n<|[end_tool]|>",
        [(1, "any", {})],
        (),
        ("nonstandard_marker",),
    ),
    Case(
        "markers with inner blanks are understood",
        "<| [ REQUEST_TOOL ] |>\ncommand:「始」any「末」\n< |[END_TOOL]| >",
        [(1, "any", {})],
        (),
        ("nonstandard_marker",),
    ),
    Case(
        "a marker with an ideographic blank is understood",
        "<|[\u3000REQUEST_TOOL]|>\ncommand:「始」any「末」\n" + E,
        [(1, "any", {})],
        (),
        ("nonstandard_marker",),
    ),
    Case(
        "a marker with a line break inside is none",
        "<|[\nREQUEST_TOOL]|>\ncommand:「始」any「末」\n" + E,
        [],
        ("looks_like_call",),
    ),
    Case(
        "a block on one line is a block", f"{S} command:「始」any「末」 x:「始」1「末」 {E}", [(1, "any", {"x": "1"})]
    ),
    Case(
        "a block without any blank is a block",
        f"{S}command:「始」any「末」x:「始」1「末」{E}",
        [(1, "any", {"x": "1"})],
    ),
    Case(
        "an end marker without a beginning looks like a call",
        f"{E} hello {E}",
        [],
        ("looks_like_call", "looks_like_call"),
    ),
    Case(
        "two blocks in one line are two blocks",
        f"{S}command:「始」any「末」{E}{S}command:「始」any「末」{E}",
        [(1, "any", {}), (1, "any", {}, 2)],
    ),
    Case("a block inside prose brackets", f"a < b <|[ {block('command:「始」any「末」')} |> c", [(1, "any", {})]),
    Case(
        "a start marker closes an open block",
        f"{S}\ncommand:「始」any「末」\nwords\n" + block("command:「始」any「末」", "x:「始」1「末」"),
        [(1, "any", {"x": "1"}, 2)],
        ("unterminated_block",),
    ),
    Case(
        "a start marker on the line of the last value closes the block",
        f"{S}command:「始」any「末」{S}command:「始」any「末」x:「始」1「末」{E}",
        [(1, "any", {"x": "1"}, 2)],
        ("unterminated_block",),
    ),
    Case(
        "three starts make two unterminated blocks",
        f"{S}\n{S}\n" + block("command:「始」any「末」"),
        [(1, "any", {}, 3)],
        ("unterminated_block", "unterminated_block"),
    ),
    Case("an empty block names no tool", f"{S}{E}", [], ("missing_command",)),
    Case("a block that holds only blanks names no tool", f"{S} \n\t\n {E}", [], ("missing_command",)),
    Case(
        "a text that ends in a block runs nothing",
        f"text {S}\ncommand:「始」any「末」\nx:「始」1「末」\n",
        [],
        ("unterminated_block",),
    ),
    Case(
        "a text that ends in the end marker runs nothing",
        f"{S}\ncommand:「始」any「末」\n<|[END_TOOL]|",
        [],
        ("unterminated_block",),
    ),
    Case(
        "CRLF line ends are line ends",
        block("command:「始」any「末」", "x:「始」a\nb「末」").replace("\n", "\r\n"),
        [(1, "any", {"x": "a\r\nb"})],
    ),
    Case(
        "lone carriage returns are line ends",
        block("command:「始」any「末」", "x:「始」1「末」").replace("\n", "\r"),
        [(1, "any", {"x": "1"})],
    ),
    Case("a byte order mark is prose", "\ufeff" + block("command:「始」any「末」"), [(1, "any", {})]),
    Case(
        "NUL and lone surrogates are characters",
        "\0" + block("command:「始」any「末」", "x:「始」\0\ud800「末」"),
        [(1, "any", {"x": "\0\ud800"})],
    ),
]

HIDDEN = [
    Case("a thought hides a block", f"<think>{block('command:「始」any「末」')}</think>", []),
    Case(
        "a block after a thought is read",
        f"<think>maybe {S}</think> " + block("command:「始」any「末」"),
        [(1, "any", {})],
    ),
    Case("the long thought tag hides too", f"<thinking>{block('command:「始」any「末」')}</thinking>", []),
    Case("a thought ends only with its own tag", f"<thinking>a</think>{block('command:「始」any「末」')}", []),
    Case(
        "thoughts nest",
        f"<think><think></think>{block('command:「始」any「末」')}</think>{block('command:「始」any「末」', 'x:「始」1「末」')}",
        [(1, "any", {"x": "1"})],
    ),
    Case(
        "a thought may have attributes and blanks in its tags",
        f"< Think id='1' >{block('command:「始」any「末」')}</ think >{block('command:「始」any「末」')}",
        [(1, "any", {})],
    ),
    Case("a tag that closes itself hides nothing", f"<think/>{block('command:「始」any「末」')}", [(1, "any", {})]),
    Case("an unclosed thought hides the rest", f"ok <think>{block('command:「始」any「末」')}", []),
    Case("thought tags in capitals hide too", f"<THINK>{block('command:「始」any「末」')}</Think>", []),
    Case("a closing thought tag alone is prose", f"</think>{block('command:「始」any「末」')}", [(1, "any", {})]),
    one(
        "thought tags in a value are text",
        "x:「始」<think>a「末」",
        "y:「始」b</think>「末」",
        x="<think>a",
        y="b</think>",
    ),
    Case(
        "thought tags between fields do not hide",
        block("command:「始」any「末」", "<think>hm</think>", "x:「始」1「末」"),
        [(1, "any", {"x": "1"})],
        (),
        ("stray_text",),
    ),
    Case("a code fence does not hide a block", f"```\n{block('command:「始」any「末」')}\n```", [(1, "any", {})]),
    Case("an almost thought is prose", f"<thinker>{block('command:「始」any「末」')}", [(1, "any", {})]),
]

FIELDS = [
    one(
        "blanks and line breaks may stand around the colon",
        "x :「始」1「末」",
        "y\n:\n「始」2「末」",
        "z:  「始」3「末」",
        x="1",
        y="2",
        z="3",
    ),
    one("a comma may follow", "x:「始」1「末」,", "y:「始」2「末」 ,", x="1", y="2"),
    one("commas separate fields of one line", "x:「始」1「末」, y:「始」2「末」,z:「始」3「末」", x="1", y="2", z="3"),
    one(
        "full-width punctuation is understood",
        "x：「始」1「末」，",
        "y：「始」2「末」",
        warnings="fullwidth_punctuation",
        x="1",
        y="2",
    ),
    one("a full-width comma alone is reported", "x:「始」1「末」，", warnings="fullwidth_punctuation", x="1"),
    one("lines may be indented", "    x:「始」1「末」", "\ty:「始」2「末」", x="1", y="2"),
    one("values are verbatim", "x:「始」 a \n  b\n「末」", x=" a \n  b\n"),
    one("nothing is unescaped", r"x:「始」a\nb\「末」", x=r"a\nb" + "\\"),
    one("a value may be empty", "x:「始」「末」", x=""),
    one("a key may have digits, dots, hyphens and blanks", "a.b-c_1 d:「始」1「末」", **{"a.b-c_1 d": "1"}),
    one("a key may begin with a digit", "1st:「始」1「末」", **{"1st": "1"}),
    one(
        "a key may be of any script",
        "文件:「始」1「末」",
        "ключ:「始」2「末」",
        "कि:「始」3「末」",
        文件="1",
        ключ="2",
        कि="3",
    ),
    Case(
        "a key with a combining accent is one key",
        block("command:「始」any「末」", "cafe\u0301:「始」1「末」"),
        [(1, "any", {"cafe\u0301": "1"})],
    ),
    one("a key of 128 letters is a key", "k" * 128 + ":「始」1「末」", **{"k" * 128: "1"}),
    one("a key of 129 letters is none", "k" * 129 + ":「始」1「末」", errors="malformed_field"),
    one("a field without a key is damaged", ":「始」1「末」", errors="malformed_field"),
    one("a field without a colon is damaged", "x「始」1「末」", errors="malformed_field"),
    one("a quoted key is damaged", '"x":「始」1「末」', errors="malformed_field"),
    one("a line with a tail and no head is damaged", "x: 1「末」", errors="malformed_field"),
    one("a head spelled wrong is damaged", "x:「始 」1「末」", errors="malformed_field"),
    one("a list sign before a key belongs to the key", "- x:「始」1「末」", **{"- x": "1"}),
    one("prose before a field on its line is stray", "* x:「始」1「末」", warnings="stray_text", x="1"),
    one("many blanks before a field do not matter", " " * 250 + "x:「始」1「末」", x="1"),
    one("a value may be long", "x:「始」" + "长文" * 20000 + "「末」", x="长文" * 20000),
    one(
        "a long value that talks of the end is kept",
        "x:「始」" + "末日「末日」" * 3000 + "「末」",
        x="末日「末日」" * 3000,
    ),
]

VALUE_ENDS = [
    one("an end marker in a value is text", f"x:「始」see {E} there「末」", x=f"see {E} there"),
    one("a start marker in a value is text", f"x:「始」see {S} there「末」", x=f"see {S} there"),
    one("both markers in a value are text", f"x:「始」{E}{S}「末」", x=f"{E}{S}"),
    one("a nested pair on one line survives", "x:「始」a 「始」b「末」 c「末」", x="a 「始」b「末」 c"),
    one(
        "two nested pairs survive",
        "x:「始」「始」a「末」 and 「始」b「末」 .「末」",
        x="「始」a「末」 and 「始」b「末」 .",
    ),
    one("a doubled tail is not content", "x:「始」「末」「末」", errors="ambiguous_value"),
    one("a doubled tail behind a value is not content", "x:「始」a「末」「末」", errors="ambiguous_value"),
    one("a doubled head is not content", "x:「始」「始」a「末」", errors="ambiguous_value"),
    one("a pair that is whole is content", "x:「始」「始」a「末」「末」", x="「始」a「末」"),
    one("a doubled delimiter may be escaped", "x:「始ESCAPE」「始」a「末ESCAPE」", x="「始」a"),
    one("a tail in the middle of a line is text when another follows", "x:「始」a「末」b「末」", x="a「末」b"),
    one("a tail in the middle survives over lines", "x:「始」a「末」b\nc「末」", x="a「末」b\nc"),
    one(
        "the last tail before the next field counts",
        "x:「始」a「末」b\nc「末」",
        "y:「始」2「末」",
        x="a「末」b\nc",
        y="2",
    ),
    one("the word for doomsday is not a tail", "x:「始」「末日」到了「末」", x="「末日」到了"),
    one("half a tail at the end of a value is text", "x:「始」a「末「末」", x="a「末"),
    one(
        "what follows the only tail is stray",
        "x:「始」1「末」 garbage",
        "y:「始」2「末」",
        warnings="stray_text",
        x="1",
        y="2",
    ),
    one("stray words at the end marker", "x:「始」1「末」 garbage", warnings="stray_text", x="1"),
    one("no tail has a boundary: the first one counts", "x:「始」a「末」b「末」c", warnings="stray_text", x="a"),
    one("an unbalanced head and no boundary is ambiguous", "x:「始」a「始」b「末」c", errors="ambiguous_value"),
    one("a nested pair over lines is damaged", "x:「始」a 「始」b「末」\n c「末」", errors="malformed_field"),
    one(
        "a full-width comma ends a value, so the rest is damaged",
        "x:「始」他说「末」，然后走了「末」",
        errors="malformed_field",
        warnings="fullwidth_punctuation",
    ),
    one(
        "a block quoted in a plain value does not cut it",
        f"x:「始」like {S}command:「始」any「末」{E}",
        errors="ambiguous_value",
    ),
    one(
        "a later field on the line of a value without boundary",
        "x:「始」a「末」b; y:「始」2「末」",
        x="a「末」b; y:「始」2",
    ),
    Case(
        "a value without tail before the next field",
        block("command:「始」any「末」", "x:「始」abc", "y:「始」2「末」"),
        [],
        ("unterminated_value",),
    ),
    Case(
        "a value without tail before an indented field",
        block("command:「始」any「末」", "x:「始」abc", "   y :「始」2「末」"),
        [],
        ("unterminated_value",),
    ),
    Case(
        "a value without tail before an escaped field",
        block("command:「始」any「末」", "x:「始」abc", "y:「始ESCAPE」2「末ESCAPE」"),
        [],
        ("unterminated_value",),
    ),
    Case(
        "a value that never ends", f"{S}\ncommand:「始」any「末」\nx:「始」abc\n{E}\nbye", [], ("unterminated_value",)
    ),
    Case("a command that never ends", f"{S}\ncommand:「始」any\n{E}\n", [], ("unterminated_value",)),
    Case(
        "after a value that never ended the next block runs",
        f"{S}\ncommand:「始」any「末」\nx:「始」abc\n{E}\n" + block("command:「始」any「末」"),
        [(1, "any", {}, 2)],
        ("unterminated_value",),
    ),
    Case(
        "a value that never ended is closed by a start marker",
        f"{S}\ncommand:「始」any「末」\nx:「始」abc\n" + block("command:「始」any「末」"),
        [(1, "any", {}, 2)],
        ("unterminated_value",),
    ),
    Case(
        "a tail forgotten before a block on one line does not swallow it",
        f"{S}\ncommand:「始」any「末」\nx:「始」abc\n{E}\n{S}command:「始」any「末」{E}",
        [],
        ("ambiguous_value",),
    ),
    one(
        "second dialect delimiters in a value are text",
        "x:「始」a\nkey:»»»b«««\n>>> c <<<「末」",
        x="a\nkey:»»»b«««\n>>> c <<<",
    ),
    one("a python session in a value is text", "x:「始」Example:\n>>> f()\n「末」", x="Example:\n>>> f()\n"),
    one(
        "a field in the middle of a line of a value is text",
        "x:「始」use y:「始」2「末」 there「末」",
        x="use y:「始」2「末」 there",
    ),
    one("a hash in a value is not a comment", "x:「始」# a\n# b「末」", x="# a\n# b"),
]

ESCAPES = [
    one(
        "an escaped value takes a whole block",
        f"x:「始ESCAPE」{block('command:「始」any「末」', 'y:「始」1「末」')}「末ESCAPE」",
        x=block("command:「始」any「末」", "y:「始」1「末」"),
    ),
    one(
        "an escaped value takes lone delimiters", "x:「始ESCAPE」「始」「末」「始」「末ESCAPE」", x="「始」「末」「始」"
    ),
    one(
        "an escaped value takes a line-start field",
        "x:「始ESCAPE」a\ny:「始」2「末」「末ESCAPE」",
        x="a\ny:「始」2「末」",
    ),
    one("an escaped value may be empty", "x:「始ESCAPE」「末ESCAPE」", x=""),
    one(
        "an escaped value takes a lone escape head",
        "x:「始ESCAPE」use 「始ESCAPE」 here「末ESCAPE」",
        x="use 「始ESCAPE」 here",
    ),
    one(
        "an escaped value takes a block that escapes",
        f"x:「始ESCAPE」{S}\ny:「始ESCAPE」a「末ESCAPE」\n{E}「末ESCAPE」",
        x=f"{S}\ny:「始ESCAPE」a「末ESCAPE」\n{E}",
    ),
    one("a plain tail does not end an escaped value", "x:「始ESCAPE」a「末」\nb「末ESCAPE」", x="a「末」\nb"),
    one("an escaped tail does not end a plain value", "x:「始」a「末ESCAPE」b「末」", x="a「末ESCAPE」b"),
    one("a second escaped tail is damaged", "x:「始ESCAPE」a「末ESCAPE」 b「末ESCAPE」", errors="malformed_field"),
    one("words behind an escaped tail are stray", "x:「始ESCAPE」a「末ESCAPE」 b", warnings="stray_text", x="a"),
    Case(
        "an escaped value that never closes hides the rest",
        f"{S}\ncommand:「始」any「末」\nx:「始ESCAPE」a「末」\n{E}\n" + block("command:「始」any「末」"),
        [],
        ("unterminated_value",),
    ),
    one(
        "a colon forgotten before an escaped value",
        f"x「始ESCAPE」{block('command:「始」any「末」')}「末ESCAPE」",
        errors="malformed_field",
    ),
]

BETWEEN = [
    one("a comment is ignored", "# x:「始」fake「末」", "y:「始」2「末」", y="2"),
    one("an indented comment is ignored", "   # tail 「末」 here", "y:「始」2「末」", y="2"),
    one("markers in a comment are ignored", f"# {S} {E}", "y:「始」2「末」", y="2"),
    Case(
        "a comment may follow the start marker",
        f"{S} # first x:「始」1「末」\ncommand:「始」any「末」\n{E}",
        [(1, "any", {})],
    ),
    Case(
        "an end marker in a comment does not end the block",
        f"{S}\ncommand:「始」any「末」\n# the end {E}",
        [],
        ("unterminated_block",),
    ),
    one("a note after a value is ignored", "x:「始」1「末」 // note", warnings="trailing_comment", x="1"),
    one(
        "a note with a tail in it is ignored", "x:「始」1「末」 // ends with 「末」", warnings="trailing_comment", x="1"
    ),
    one(
        "a note with a field in it is ignored",
        "x:「始」1「末」 # was y:「始」0「末」",
        warnings="trailing_comment",
        x="1",
    ),
    one(
        "a note in brackets is ignored",
        "x:「始」1「末」 (optional)",
        "y:「始」2「末」（可选）",
        warnings="trailing_comment",
        x="1",
        y="2",
    ),
    one(
        "a note after a comma is ignored",
        "x:「始」1「末」, // note",
        "y:「始」2「末」,# note",
        warnings="trailing_comment",
        x="1",
        y="2",
    ),
    one(
        "a field may follow a note in brackets",
        "x:「始」1「末」 (a) y:「始」2「末」",
        warnings="trailing_comment",
        x="1",
        y="2",
    ),
    one("an unclosed bracket is stray", "x:「始」1「末」 (oh", warnings="stray_text", x="1"),
    one("prose between fields is stray", "Please note: this is prose", "y:「始」2「末」", warnings="stray_text", y="2"),
    one("a slash line hides a field", "// x:「始」1「末」", "y:「始」2「末」", warnings="stray_text", y="2"),
    one("a lone comma line is nothing", ",", "y:「始」2「末」", y="2"),
    one("a zero-width space is nothing", "\u200b", "y:「始」2「末」", y="2"),
    one("half a marker is stray", "<|[END_", "y:「始」2「末」", warnings="stray_text", y="2"),
    one("python prompts between fields are stray", ">>> f()", "y:「始」2「末」", warnings="stray_text", y="2"),
    one("a lone tail of the second dialect is damaged", "«««", "y:「始」2「末」", errors="malformed_field"),
    one(
        "a lone head swallows what follows and is damaged",
        "we use 「始」 here",
        "y:「始」2「末」",
        errors="malformed_field unterminated_value",
    ),
]

BINDING = [
    Case("the tool id is trimmed", block("command:「始」 any\n「末」"), [(1, "any", {})]),
    Case(
        "the tool id is folded when that is clear",
        block("command:「始」FILE-WRITE「末」", "filePath:「始」a「末」", "content:「始」b「末」"),
        [(1, "file.write", {"filePath": "a", "content": "b"})],
    ),
    Case("the word command is folded", block("Command:「始」any「末」"), [(1, "any", {})]),
    Case("the word command in capitals", block("COMMAND:「始」any「末」"), [(1, "any", {})]),
    Case("command may come last", block("x:「始」1「末」", "command:「始」any「末」"), [(1, "any", {"x": "1"})]),
    Case("a block without command", block("filePath:「始」/a「末」"), [], ("missing_command",)),
    Case("an empty command is none", block("command:「始」 「末」"), [], ("missing_command",)),
    Case("an unknown tool", block("command:「始」file.wriet「末」"), [], ("unknown_tool",)),
    Case("two commands", block("command:「始」any「末」", "command:「始」any「末」"), [], ("duplicate_key",)),
    Case(
        "two spellings of command", block("command:「始」any「末」", "Command:「始」any「末」"), [], ("duplicate_key",)
    ),
    typed(
        "keys fold to the declared name",
        "file.write",
        "FILE_PATH:「始」/a「末」",
        "Content:「始」x「末」",
        filePath="/a",
        content="x",
    ),
    typed(
        "keys with blanks and hyphens fold",
        "file.write",
        "file path:「始」/a「末」",
        "con-tent:「始」x「末」",
        filePath="/a",
        content="x",
    ),
    typed(
        "the exact spelling wins",
        "twins",
        "filePath:「始」1「末」",
        "file_path:「始」2「末」",
        filePath="1",
        file_path="2",
    ),
    typed("a fold of two parameters is ambiguous", "twins", "FILEPATH:「始」1「末」", errors="ambiguous_key"),
    typed(
        "two fields for one parameter",
        "file.write",
        "filePath:「始」/a「末」",
        "file_path:「始」/b「末」",
        "content:「始」x「末」",
        errors="duplicate_key",
    ),
    typed(
        "the same field twice",
        "file.write",
        "filePath:「始」/a「末」",
        "filePath:「始」/a「末」",
        "content:「始」x「末」",
        errors="duplicate_key",
    ),
    typed(
        "a misspelt parameter",
        "file.write",
        "filePth:「始」/a「末」",
        "content:「始」x「末」",
        errors="invalid_arguments",
    ),
    typed("a missing parameter", "file.write", "filePath:「始」/a「末」", errors="invalid_arguments"),
    typed("a missing parameter with a default is the host's business", "defaults", "path:「始」/a「末」", path="/a"),
    typed(
        "letters of any script fold by case",
        "unicode",
        "文件 路径:「始」a「末」",
        "GRÖSSE:「始」3「末」",
        文件路径="a",
        Größe=3,
    ),
    typed("a parameter with combining signs", "unicode", "कि:「始」a「末」", कि="a"),
    one(
        "undeclared keys keep their spelling",
        "parameter_A:「始」1「末」",
        "b C:「始」2「末」",
        **{"parameter_A": "1", "b C": "2"},
    ),
    one("undeclared keys that differ in case are two", "x:「始」1「末」", "X:「始」2「末」", x="1", X="2"),
    one("an undeclared key twice", "x:「始」1「末」", "x:「始」2「末」", errors="duplicate_key"),
    one("a key of signs only keeps its spelling", "_-:「始」1「末」", **{"_-": "1"}),
    typed("pattern properties are typed", "patterned", "x-a:「始」5「末」", **{"x-a": 5}),
    typed("what no pattern allows is unknown", "patterned", "y:「始」5「末」", errors="invalid_arguments"),
    typed("typed additional properties", "extras", "n:「始」5「末」", n=5),
    typed("wrong additional properties", "extras", "n:「始」five「末」", errors="invalid_arguments"),
    typed("parameters called like commands", "shell", "command2:「始」ls「末」", command2="ls"),
    Case(
        "a damaged block does not hinder the next",
        block("x:「始」1「末」") + block("command:「始」any「末」"),
        [(1, "any", {}, 2)],
        ("missing_command",),
    ),
]

CHAINS = [
    Case(
        "steps run in the order of their numbers",
        block("command10:「始」any「末」", "x10:「始」ten「末」", "command2:「始」any「末」", "x2:「始」two「末」"),
        [(2, "any", {"x": "two"}), (10, "any", {"x": "ten"})],
    ),
    Case(
        "underscores before numbers",
        block("command_1:「始」file.write「末」", "file_path_1:「始」/a「末」", "Content1:「始」x「末」"),
        [(1, "file.write", {"filePath": "/a", "content": "x"})],
    ),
    Case(
        "blanks and hyphens before numbers",
        block("Command 1:「始」any「末」", "x-1:「始」a「末」", "y 1:「始」b「末」"),
        [(1, "any", {"x": "a", "y": "b"})],
    ),
    Case(
        "comments between steps",
        block(
            "# one",
            "command1:「始」file.write「末」",
            "filePath1:「始」/l「末」",
            "content1:「始」a「末」",
            "",
            "# two",
            "command2:「始」file.append「末」",
            "filePath2:「始」/l「末」",
            "content2:「始」\\nb「末」",
        ),
        [
            (1, "file.write", {"filePath": "/l", "content": "a"}),
            (2, "file.append", {"filePath": "/l", "content": "\\nb"}),
        ],
    ),
    Case(
        "parameters that end in digits",
        block(
            "command1:「始」img.compose「末」",
            "prompt1:「始」p「末」",
            "image_url_11:「始」u「末」",
            "image_url_2_1:「始」v「末」",
        ),
        [(1, "img.compose", {"prompt": "p", "image_url_1": "u", "image_url_2": "v"})],
    ),
    Case(
        "a declared name with digits is shared when its number is not a step",
        block("command1:「始」search.hybrid「末」", "query1:「始」a「末」", "BM25:「始」0.5「末」"),
        [(1, "search.hybrid", {"query": "a", "BM25": 0.5})],
    ),
    Case(
        "a declared name with digits and a step number",
        block(
            "command1:「始」search.hybrid「末」", "query1:「始」a「末」", "BM251:「始」1「末」", "top_k_1:「始」3「末」"
        ),
        [(1, "search.hybrid", {"query": "a", "BM25": 1, "top_k": 3})],
    ),
    Case(
        "a declared name that ends like a step of its own is shared",
        block("command1:「始」img.compose「末」", "prompt1:「始」p「末」", "image_url_1:「始」u「末」"),
        [(1, "img.compose", {"prompt": "p", "image_url_1": "u"})],
    ),
    Case(
        "keys without number are shared by the steps that declare them",
        block(
            "format:「始」png「末」",
            "command1:「始」media.render「末」",
            "svg1:「始」s「末」",
            "command2:「始」search.hybrid「末」",
            "query2:「始」q「末」",
        ),
        [(1, "media.render", {"format": "png", "svg": "s"}), (2, "search.hybrid", {"query": "q"})],
    ),
    Case(
        "a step's own value wins over the shared one",
        block(
            "format:「始」png「末」",
            "command1:「始」media.render「末」",
            "format1:「始」gif「末」",
            "command2:「始」media.render「末」",
        ),
        [(1, "media.render", {"format": "gif"}), (2, "media.render", {"format": "png"})],
    ),
    Case(
        "two shared fields for one parameter",
        block("format:「始」png「末」", "FORMAT:「始」gif「末」", "command1:「始」media.render「末」"),
        [],
        ("duplicate_key",),
    ),
    Case(
        "a shared key nobody declares goes to the open tools",
        block("x:「始」1「末」", "command1:「始」any「末」", "command2:「始」media.render「末」"),
        [(1, "any", {"x": "1"}), (2, "media.render", {})],
    ),
    Case(
        "a shared key nobody takes",
        block("x:「始」1「末」", "command1:「始」media.render「末」", "command2:「始」media.render「末」"),
        [],
        ("invalid_arguments",),
    ),
    Case(
        "a number that is not a step",
        block("command1:「始」any「末」", "x3:「始」1「末」", "command2:「始」any「末」"),
        [],
        ("orphan_parameter",),
    ),
    Case(
        "a huge number that is not a step",
        block("command1:「始」any「末」", "x" + "9" * 100 + ":「始」1「末」"),
        [],
        ("orphan_parameter",),
    ),
    Case(
        "huge step numbers",
        block("command99999999999999999999:「始」any「末」", "x99999999999999999999:「始」1「末」"),
        [(99999999999999999999, "any", {"x": "1"})],
    ),
    Case("step zero", block("command0:「始」any「末」", "x0:「始」1「末」"), [(0, "any", {"x": "1"})]),
    Case(
        "leading zeros are the same step",
        block("command01:「始」any「末」", "command1:「始」any「末」"),
        [],
        ("duplicate_key",),
    ),
    Case(
        "a leading zero in a parameter",
        block("command1:「始」any「末」", "x01:「始」a「末」"),
        [(1, "any", {"x": "a"})],
    ),
    Case(
        "full-width digits are digits",
        block("command１:「始」any「末」", "x１:「始」a「末」"),
        [(1, "any", {"x": "a"})],
    ),
    Case("a superscript is not a step number", block("command²:「始」any「末」"), [], ("missing_command",)),
    Case(
        "command beside command1",
        block("command:「始」any「末」", "command1:「始」any「末」"),
        [],
        ("mixed_command_forms",),
    ),
    Case(
        "the whole chain falls with one unknown tool",
        block("command1:「始」any「末」", "command2:「始」nope「末」"),
        [],
        ("unknown_tool",),
    ),
    Case(
        "the whole chain falls with one wrong argument",
        block("command1:「始」any「末」", "command2:「始」typed「末」", "n2:「始」x「末」"),
        [],
        ("invalid_arguments",),
    ),
    Case(
        "two fields for one parameter of a step",
        block("command1:「始」any「末」", "x1:「始」a「末」", "x_1:「始」b「末」"),
        [],
        ("duplicate_key",),
    ),
    Case(
        "no suffix is split off outside a chain",
        block("command:「始」any「末」", "x1:「始」a「末」"),
        [(1, "any", {"x1": "a"})],
    ),
    Case(
        "a key that two steps could own is ambiguous",
        block("command1:「始」numbered「末」", "command11:「始」numbered「末」", "x11:「始」a「末」"),
        [],
        ("ambiguous_key",),
    ),
    Case(
        "a separator settles whose key it is",
        block("command1:「始」numbered「末」", "command11:「始」numbered「末」", "x_11:「始」a「末」"),
        [(1, "numbered", {}), (11, "numbered", {"x": "a"})],
    ),
    Case(
        "an ambiguous key in a chain",
        block("command1:「始」twins「末」", "FILEPATH1:「始」a「末」"),
        [],
        ("ambiguous_key",),
    ),
]


def _typed_bad(key: str, *texts: str) -> list[Case]:
    return [
        typed(
            f"{text[:30]!r} is not a value of {key}", "typed", f"{key}:「始」{text}「末」", errors="invalid_arguments"
        )
        for text in texts
    ]


DEEP = "[" * 5000 + "]" * 5000

TYPES = [
    typed(
        "values are read as their declared types",
        "typed",
        "n:「始」 5 「末」",
        "f:「始」0.5「末」",
        "b:「始」true「末」",
        'o:「始」{"k":[1,2]}「末」',
        "a:「始」[1,2]「末」",
        "s:「始」007「末」",
        "e:「始」简短「末」",
        "z:「始」null「末」",
        n=5,
        f=0.5,
        b=True,
        o={"k": [1, 2]},
        a=[1, 2],
        s="007",
        e="简短",
        z=None,
    ),
    typed("enums are trimmed", "typed", "e:「始」\n 简短 「末」", e="简短"),
    typed("strings are not", "typed", "s:「始」 a 「末」", s=" a "),
    typed("a whole number written as a decimal is whole", "typed", "n:「始」5.0「末」", n=5),
    typed(
        "negative and large numbers",
        "typed",
        "n:「始」-12345678901234567890「末」",
        "f:「始」-1e3「末」",
        n=-12345678901234567890,
        f=-1000.0,
    ),
    typed("a number may be whole", "typed", "f:「始」5「末」", f=5),
    *_typed_bad(
        "n", "5.5", "abc", "", "+5", "007", "0x10", "1e999", "٣", "NaN", "true", "null", '"5"', "1 2", "9" * 5000, "[1]"
    ),
    *_typed_bad("f", "NaN", "Infinity", "-Infinity", "1e999", ".5", "1,5", "½"),
    *_typed_bad("b", "True", "FALSE", "yes", "1", "0", "", '"true"'),
    *_typed_bad("o", '{"k":', "[]", "null", "{'k': 1}", '{"k":1,"k":2}', '{"k":NaN}', "text"),
    *_typed_bad("a", "[1,", '[1,"x"]', "{}", "1,2", DEEP, "[1.5]", "[true]"),
    *_typed_bad("e", "长", "简短。", '"简短"', ""),
    *_typed_bad("z", "", "None", "0"),
    typed("an optional string", "unions", "maybe:「始」a「末」", maybe="a"),
    typed("an optional string that is null", "unions", "maybe:「始」null「末」", maybe=None),
    typed("an optional number", "unions", "count:「始」3「末」", count=3),
    typed("a number where text is allowed too", "unions", "either:「始」3「末」", either=3),
    typed("text where a number is allowed too", "unions", "either:「始」3 a「末」", either="3 a"),
    typed("a literal string before a number", "unions", "mixed:「始」1「末」", mixed="1"),
    typed("a literal that is true", "unions", "mixed:「始」true「末」", mixed=True),
    typed("a literal with blanks", "unions", "mixed:「始」x「末」", mixed="x "),
    typed("no such literal", "unions", "mixed:「始」2「末」", errors="invalid_arguments"),
    typed("a constant", "unions", "fixed:「始」7「末」", fixed=7),
    typed("not the constant", "unions", "fixed:「始」8「末」", errors="invalid_arguments"),
    typed("a nested union, a word", "unions", "level:「始」 high「末」", level="high"),
    typed("a nested union, a number", "unions", "level:「始」3「末」", level=3),
    typed("a nested union, neither", "unions", "level:「始」-3「末」", errors="invalid_arguments"),
    typed("a referenced object", "unions", 'point:「始」{"x":1,"y":2}「末」', point={"x": 1, "y": 2}),
    typed(
        "a referenced object with an unknown name",
        "unions",
        'point:「始」{"x":1,"y":2,"z":3}「末」',
        errors="invalid_arguments",
    ),
    typed("a referenced object without a name", "unions", 'point:「始」{"x":1}「末」', errors="invalid_arguments"),
    typed("a list of a union", "unions", 'tags:「始」["a",{"x":1,"y":2}]「末」', tags=["a", {"x": 1, "y": 2}]),
    typed("a list with what no member allows", "unions", "tags:「始」[5]「末」", errors="invalid_arguments"),
    typed("a parameter of any type is text", "unions", "free:「始」5「末」", free="5"),
    typed(
        "within bounds",
        "bounds",
        "age:「始」30「末」",
        "name:「始」Ann「末」",
        "list:「始」[1]「末」",
        age=30,
        name="Ann",
        list=[1],
    ),
    typed("a number too small", "bounds", "age:「始」-1「末」", errors="invalid_arguments"),
    typed("a text too long", "bounds", "name:「始」Annabella「末」", errors="invalid_arguments"),
    typed("a list too long", "bounds", "list:「始」[1,2,3]「末」", errors="invalid_arguments"),
]

SECOND = [
    second("values of the second dialect are trimmed", "x:»»» a\n «««", x="a"),
    second("and dedented by the field's indent", "    x:»»»a\n      b\n    c«««", x="a\n  b\nc"),
    second("less indented lines stay", "    x:»»»a\n  b«««", x="a\nb"),
    second("angles are understood", "x:>>>a<<<", "y: >>>b<<<", warnings="mixed_delimiters_used", x="a", y="b"),
    second("an angle tail for an arrow head", "x:»»»a<<<", warnings="mixed_delimiters_used", x="a"),
    second("an arrow tail for an angle head", "x:>>>a«««", warnings="mixed_delimiters_used", x="a"),
    second("angles in an arrow value are text", "x:»»»a << b <<<c>>> d«««", x="a << b <<<c>>> d"),
    second("a shell here-string in an arrow value is text", "x:»»»cat <<< word\nnext«««", x="cat <<< word\nnext"),
    second(
        "a conflict marker in an angle value is text",
        "x:>>>a\n<<<<<<< HEAD\nb<<<",
        warnings="mixed_delimiters_used",
        x="a\n<<<<<<< HEAD\nb",
    ),
    second("first dialect delimiters in a value are text", "x:»»»a「始」b「末」«««", x="a「始」b「末」"),
    second("markers in a value are text", f"x:»»»{S} and {E}«««", x=f"{S} and {E}"),
    second("nested arrows on one line", "x:»»»a »»»b««« c«««", x="a »»»b««« c"),
    second("four closing arrows", "x:»»»a««««", x="a«"),
    second("a value without tail ends at the end marker", "x:»»»abc", warnings="missing_value_end", x="abc"),
    Case(
        "a value without tail and a following block",
        block("command:»»»any«««", "x:»»»abc") + "\n" + block("command:»»»any«««"),
        [(1, "any", {"x": "abc"}), (1, "any", {}, 2)],
        (),
        ("missing_value_end",),
    ),
    Case(
        "a value without tail and a following block of the first dialect",
        block("command:»»»any«««", "x:»»»abc") + "\n" + block("command:「始」any「末」"),
        [(1, "any", {"x": "abc"}), (1, "any", {}, 2)],
        (),
        ("missing_value_end",),
    ),
    second("an arrow value without tail before the next field", "x:»»»abc", "y:»»»d«««", errors="unterminated_value"),
    Case("a value without tail or end marker", f"{S}\ncommand:»»»any«««\nx:»»»abc", [], ("unterminated_value",)),
    Case(
        "a value without tail before a start marker",
        f"{S}\ncommand:»»»any«««\nx:»»»abc\n" + block("command:「始」any「末」"),
        [(1, "any", {}, 2)],
        ("unterminated_value",),
    ),
    second("both dialects in one block", "x:「始」 a 「末」", "y:»»» b «««", x=" a ", y="b"),
    second("a python session in a value", "x:»»»Example:\n>>> f()\n1«««", x="Example:\n>>> f()\n1"),
    second("an escape word is text here", "x:»»»ESCAPE「末ESCAPE」«««", x="ESCAPE「末ESCAPE」"),
    Case(
        "the lenient sample",
        f"{S}\n  # plan\n  Command_1: >>>file.write<<<\n  File-Path 1:»»» /l.log «««\n  CONTENT1:»»»start…\n  another«««\n{E}",
        [(1, "file.write", {"filePath": "/l.log", "content": "start…\nanother"})],
        (),
        ("mixed_delimiters_used",),
    ),
    typed("values are typed all the same", "typed", "n:»»» 5 «««", n=5),
]

CASES: list[Case] = [*MARKERS, *HIDDEN, *FIELDS, *VALUE_ENDS, *ESCAPES, *BETWEEN, *BINDING, *CHAINS, *TYPES, *SECOND]
