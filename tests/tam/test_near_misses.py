"""Text that is nearly a call: nothing of it runs, it is never silent, and what the feedback shows instead runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Plugin, Tavern, tam, tool
from tests.counting import calls_made
from tests.rows import each_row

FIELDS = "command:「始」text:repeat「末」\ntext:「始」hi there「末」\ntimes:「始」2「末」"
CALL = {"name": "text:repeat", "arguments": {"text": "hi there", "times": 2}}
JSON = '{"name": "text:repeat", "arguments": {"text": "hi there", "times": 2}}'
END = "<|[END_TOOL]|>"
MARKERS = [
    ("<|[TOOL_REQUEST]|>", END), ("<<<[REQUEST_TOOL]>>>", "<<<[END_TOOL]>>>"), ("<|REQUEST_TOOL|>", "<|END_TOOL|>"), ("[REQUEST_TOOL]", "[END_TOOL]"),
    ("＜｜［ＲＥＱＵＥＳＴ＿ＴＯＯＬ］｜＞", "＜｜［ＥＮＤ＿ＴＯＯＬ］｜＞"), ("&lt;|[REQUEST_TOOL]|&gt;", "&lt;|[END_TOOL]|&gt;"), ("&#60;|[REQUEST_TOOL]|&#62;", "&#60;|[END_TOOL]|&#62;"),
    (r"\<\|\[REQUEST\_TOOL\]\|\>", r"\<\|\[END\_TOOL\]\|\>"), ("<REQUEST_TOOL>", "</REQUEST_TOOL>"), ("<|[REQUEST-TOOL]|>", END), ("<|[REQUEST TOOLS]|>", END),
    ("<|[REQUESTTOOL]|>", "<|[ENDTOOL]|>"), ("【REQUEST_TOOL】", "【END_TOOL】"), ("<|{REQUEST_TOOL}|>", "<|{END_TOOL}|>"), ("{{REQUEST_TOOL}}", "{{END_TOOL}}"),
    ("|[REQUEST_TOOL]|", "|[END_TOOL]|"), ("**[REQUEST_TOOL]**", "**[END_TOOL]**"), ("<[REQUEST_TOOL]>", ""), ("<|[USE_TOOL]|>", END),
]  # fmt: skip
MISSES: dict[str, str] = {
    **{f"{start} … {end}": f"Let me see.\n{start}\n{FIELDS}\n{end}\nDone." for start, end in MARKERS},
    "fields and an end marker": f"Let me see.\n{FIELDS}\n{END}\n",
    "bare fields": f"Let me see.\n{FIELDS}\n\nThat is all.",
    "fields without delimiters": f"<|[TOOL_REQUEST]|>\ncommand: text:repeat\ntext: hi there\ntimes: 2\n{END}",
    "fields in other brackets": f'<|[TOOL_REQUEST]|>\ntool_name: "text:repeat"\ntext:「hi there」\ntimes: [2]\n{END}',
    "JSON between markers": f"<|[TOOL_REQUEST]|>\n{JSON}\n{END}",
    "a tool_call tag": f"<tool_call>\n{JSON}\n</tool_call>",
    "a tool_call tag without its end": f"<tool_call>{JSON}",
    "an invoke tag": '<function_calls>\n<invoke name="text:repeat">\n<parameter name="text">hi there</parameter>\n<parameter name="times">2</parameter>\n</invoke>\n</function_calls>',
    "a function tag": "<function=text:repeat>\n<parameter=text>hi there</parameter>\n<parameter=times>2</parameter>\n</function>",
    "JSON": f"I call it now:\n{JSON}\n",
    "a list of calls": f"[{JSON}]",
    "the request of the design": '{"toolName": "text:repeat", "arguments": {"text": "hi there", "times": 2}}',
    "JSON with another name of the tool": '{"tool_id": "text:repeat", "text": "hi there", "times": 2}',
    "JSON after a special token": f"Now.<|tool_call|> {JSON}<|/tool_call|>",
    "JSON after a token in brackets": f"[TOOL_CALLS][{JSON}]",
    "fields with another name of the tool": "<<<[TOOL_REQUEST]>>>\nTool_Name:「始」text:repeat「末」,\ntext:「始」hi there「末」,\ntimes:「始」2「末」\n<<<[END_TOOL_REQUEST]>>>",
    "what an API returns": '{"tool_calls": [{"id": "1", "type": "function", "function": {"name": "text:repeat", "arguments": "{\\"text\\": \\"hi there\\", \\"times\\": 2}"}}]}',
    "an Action line": 'Thought: now.\nAction: text:repeat\nAction Input: {"text": "hi there", "times": 2}\n',
}
UNREADABLE = {
    "an end marker alone": f"That was it. {END}",
    "a tool that does not exist": f"<|[TOOL_REQUEST]|>\ncommand:「始」text:nothing「末」\n{END}",
    "an argument that does not fit": f"<|[TOOL_REQUEST]|>\n{FIELDS.replace('2', 'two')}\n{END}",
}
TALK = {
    "in quotation marks": 'Never write "<|[TOOL_REQUEST]|>" or “<|REQUEST_TOOL|>”.',
    "in inline code": f"A call ends with `{END}`, a field is `key:「始」value「末」`.",
    "in a fence": f"For example:\n```\n<|[TOOL_REQUEST]|>\n{FIELDS}\n{END.replace('END', 'FIN')}\n```\n",
    "in a thought": "<think>\n<|[TOOL_REQUEST]|>\n</think>",
    "one field as an example": "key:「始」value「末」 is how a field looks.",
    "prose about tools": "The request tool ends here; no action: required. Tool calls are [sic] fine.",
    "JSON that is not a call": '{"name": "Ada", "arguments": {"x": 1}}',
    "JSON after an arrow": '<|x|>{"name": "Ada"}',
    "a tag about nothing": "<tool_call>later</tool_call>",
    "an Action that is not a tool": "Action: go home\n",
    "a list of names": '["text:repeat"]',
}


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def host(tmp_path: Path, ran: list[str]) -> Iterator[Tavern]:
    @tool
    def repeat(text: str, times: int = 1) -> str:
        """Repeat a text."""
        ran.append(text)
        return text * times

    with Tavern.open(
        {"language": "en", "plugins": {"entryPoints": False}}, plugins=[Plugin([repeat], name="text")], home=tmp_path
    ) as tavern:
        yield tavern


def block_in(feedback: str) -> str:
    start = feedback.index("<|[REQUEST_TOOL]|>")
    return feedback[start : feedback.index(END, start) + len(END)]


def test_a_near_miss_runs_nothing_and_what_the_feedback_shows_instead_runs(host: Tavern, ran: list[str]) -> None:
    for what, text in MISSES.items():
        ran.clear()
        outcome = host.run_text_sync(text)
        assert (ran, outcome.ok, outcome.calls) == ([], False, ()), what
        [problem] = outcome.problems
        assert (problem.code, problem.severity) == ("looks_like_call", "error"), what
        assert text.splitlines()[problem.line - 1][problem.column - 1 :].strip(), what
        again = host.run_text_sync(block_in(outcome.feedback))
        assert (again.ok, [result.value for result in again.results]) == (True, ["hi therehi there"]), what
        assert ran == ["hi there"], what


@pytest.mark.parametrize("start", ["", "<|[TOOL_REQUEST]|>\n", "<|[REQUEST_TOOL]|>\n"])
def test_the_shown_call_keeps_the_lines_and_tabs_of_its_values(host: Tavern, ran: list[str], start: str) -> None:
    written = "all:\n\tmake it\n\n\tdone"
    outcome = host.run_text_sync(
        start + json.dumps({"name": "text:repeat", "arguments": {"text": written}}) + f"\n{END}" * bool(start)
    )
    assert (ran, outcome.ok) == ([], False)
    assert host.run_text_sync(block_in(outcome.feedback)).ok
    assert ran == [written]


@each_row("name", ["command" + "1" * 5000, "retry_" + "1" * 5000, "", "k" * 129])
@each_row("form", ["{}", "<tool_call>{}</tool_call>", "<|[REQUEST_TOOL]|>\n{}\n<|[END_TOOL]|>"])
def test_a_json_call_with_an_odd_name_is_reported(name: str, form: str) -> None:
    for call in ({"name": "t", "arguments": {name: "1"}}, {"name": "t", name: {"a": 1}}):
        found = tam.bind(tam.parse(form.replace("{}", json.dumps(call))), {"t": {"type": "object"}})
        assert not found.calls and found.errors


@each_row("body", ["[1]", '[{"x": "1"}]', "[]", "{", "null"])
def test_a_tag_that_names_a_tool_is_reported_whatever_json_it_contains(body: str) -> None:
    found = tam.bind(tam.parse(f'<invoke name="t">{body}</invoke>'), {"t": {"type": "object"}})
    assert not found.calls and found.errors


def test_a_json_call_of_any_depth_is_reported() -> None:
    for depth in range(500, 1000, 5):
        text = f'<|[REQUEST_TOOL]|>\n{{"name": "t", "arguments": {{"x": {"[" * depth}{"]" * depth}}}}}\n<|[END_TOOL]|>'
        assert tam.bind(tam.parse(text), {"t": {"type": "object"}}).errors


def test_a_near_miss_that_cannot_be_read_shows_how_a_call_is_written(host: Tavern, ran: list[str]) -> None:
    for what, text in UNREADABLE.items():
        outcome = host.run_text_sync(text)
        assert (ran, outcome.ok, [p.code for p in outcome.problems]) == ([], False, ["looks_like_call"]), what
        assert tam.parse(block_in(outcome.feedback)).blocks[0].ok, what


@each_row("written", ["null", "5", "{{step1}}", "the tail 「末」\nand 「始」 the head"])
@each_row("form", ["{}", "<tool_call>{}</tool_call>", "<|[REQUEST_TOOL]|>\n{}\n<|[END_TOOL]|>"])
def test_a_string_of_a_json_call_stays_the_same_string_in_the_hint(written: str, form: str) -> None:
    schemas = {"t": {"type": "object", "properties": {"x": {"type": ["string", "integer", "null"]}}}}
    text = form.replace("{}", json.dumps({"name": "t", "arguments": {"x": written}}))
    (problem,) = tam.bind(tam.parse(text), schemas).problems
    (call,) = tam.bind(tam.parse(block_in(problem.hint)), schemas).calls
    assert call.arguments == {"x": written}


def test_a_near_miss_of_a_chain_that_cannot_be_written_has_a_hint() -> None:
    text = f"<|[TOOL_REQUEST]|>\ncommand1:»»»t«««\ncommand2:»»»t«««\ncommon_retry:»»»5«««\n{END}"
    (problem,) = tam.bind(tam.parse(text), {"t": {}}).problems
    assert (problem.code, "command:「始」t「末」" in problem.hint) == ("looks_like_call", True)


def test_text_about_calls_is_no_near_miss(host: Tavern) -> None:
    for what, text in TALK.items():
        outcome = host.run_text_sync(text)
        assert (outcome.problems, outcome.feedback, outcome.text, outcome.ok) == ((), "", text, True), what


def test_the_place_of_a_near_miss_counts_the_blocks_before_it(host: Tavern, ran: list[str]) -> None:
    good = f"<|[REQUEST_TOOL]|>\n{FIELDS}\n{END}\n"
    outcome = host.run_text_sync(f"One.\n{good}Two.\n  {good.replace('REQUEST_TOOL', 'TOOL_REQUEST')}")
    assert ran == ["hi there"]
    assert [(p.code, p.line, p.column) for p in outcome.problems] == [("looks_like_call", 8, 3)]
    assert [result.ok for result in outcome.results].count(True) == 1
    assert not outcome.ok


@each_row(
    "piece",
    [
        "<|[TOOL_REQUEST]|>",
        "a:「始」b「末」\n",
        END,
        "<tool_call>",
        '{"name": ',
        "[[[[",
        "{{{{\n",
        "Action: x\n",
        "```",
        '"',
        "<think>",
        "&lt;",
        "<invoke name='text:repeat'>\n",
        "`a` ",
    ],
)
def test_looking_for_near_misses_takes_time_in_proportion_to_the_text(piece: str) -> None:
    def work(count: int) -> Any:
        text = piece * count
        return calls_made(lambda: tam.bind(tam.parse(text), {"text:repeat": {}}))

    work(10)
    few, many = work(200), work(1_600)
    assert many <= 9 * few + 20_000


def test_texts_above_a_limit_run_nothing_and_say_so(tmp_path: Path) -> None:
    count: list[int] = []

    @tool
    def one() -> int:
        """One."""
        count.append(1)
        return 1

    block = f"<|[REQUEST_TOOL]|>\ncommand:「始」t:one「末」\n{END}\n"
    config = {"language": "en", "plugins": {"entryPoints": False}, "tam": {"maxText": 10_000, "maxCalls": 20}}
    with Tavern.open(config, plugins=[Plugin([one], name="t")], home=tmp_path) as tavern:
        assert tavern.run_text_sync(block * 20).ok
        for text in (block * 21, "x" * 10_001):
            count.clear()
            outcome = tavern.run_text_sync(text)
            assert (outcome.ok, count, [p.code for p in outcome.problems]) == (False, [], ["text_too_large"])
            assert "the limit is" in outcome.feedback
