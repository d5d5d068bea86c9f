"""Every message of TAM is there in both languages, and one feedback is in one of them."""

from __future__ import annotations

import re
import string
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from tavern_core import Plugin, Tavern, tam, tool
from tavern_core.schema import json_reader

BLOCK = "<|[REQUEST_TOOL]|>\n{}\n<|[END_TOOL]|>\n"
COUNT = "command:「始」t:count「末」\nn:「始」1「末」"
TEXTS = {
    "looks_like_call": ["<|[TOOL_REQUEST]|>\n" + COUNT + "\n<|[END_TOOL]|>", '{"name": "t:count", "arguments": {"n": 1}}', "<|[END_TOOL]|>", COUNT, "Action: t:count\nAction Input: {}",
                        '<tool_call>{"name": "t:count", "arguments": {"n": 1}}</tool_call>'],
    "unterminated_block": ["<|[REQUEST_TOOL]|>\n" + COUNT, "<|[REQUEST_TOOL]|>\n" + COUNT + "\n" + BLOCK.format(COUNT), "<|[REQUEST_TOOL]|>\n# <|[END_TOOL]|>\n" + COUNT],
    "unterminated_value": [BLOCK.format("command:「始」t:count\nn:「始」1「末」")],
    "ambiguous_value": [BLOCK.format("command:「始」t:count「末」\nn:「始」a 「始」b「末」 c")],
    "malformed_field": [BLOCK.format(COUNT + "\nbroken「末」"), BLOCK.format("command:「始」t:count「末」\nn=「始」1「末」")],
    "undelimited_field": [BLOCK.format("command:「始」t:count「末」\nn: 1"), BLOCK.format("command: t:count\nn:「始」1「末」")],
    "text_too_large": ["x" * 30_000, (BLOCK.format(COUNT)) * 30],
    "block_too_large": [BLOCK.format("command:「始」" + "x" * 20_000 + "「末」")],
    "missing_command": [BLOCK.format("n:「始」1「末」"), BLOCK.format("tool_name:「始」t:count「末」\nn:「始」1「末」"), BLOCK.format('{"name": "t:count", "arguments": {"n": 1}}'), BLOCK.format("command:「始」「末」"), BLOCK.format("command1:「始」t:count「末」\nn:「始」1「末」\ncommand2:「始」「末」")],
    "mixed_command_forms": [BLOCK.format(COUNT + "\ncommand2:「始」t:count「末」")],
    "duplicate_key": [BLOCK.format(COUNT + "\nN:「始」2「末」"), BLOCK.format("command1:「始」t:count「末」\ncommand_1:「始」t:count「末」"), BLOCK.format(COUNT + "\n" + COUNT),
                      BLOCK.format("command1:「始」t:count「末」\ncommand2:「始」t:count「末」\nn1:「始」1「末」\nn_1:「始」1「末」\nn2:「始」1「末」"),
                      BLOCK.format("command:»»»t:count«««\nn:»»»1«««\nuri_n:»»»x«««"), BLOCK.format("command:»»»t:count«««\nn:»»»1«««\nrequest_id:»»»x«««\nrequest_id:»»»y«««")],
    "ambiguous_key": [BLOCK.format("command:「始」t:twins「末」\nA B:「始」1「末」")],
    "orphan_parameter": [BLOCK.format("command1:「始」t:count「末」\ncommand2:「始」t:count「末」\nn:「始」1「末」\nn7:「始」1「末」"), BLOCK.format("command:»»»t:count«««\nn:»»»1«««\ntype_hint_kind:»»»json«««")],
    "invalid_modifier": [BLOCK.format(f"command:»»»t:count«««\nn:»»»1«««\n{one}") for one in ("on_error:»»»maybe«««", "retry:»»»-1«««", "type_hint_n:»»»yaml«««", "request_id:»»»«««")],
    "invalid_reference": [BLOCK.format("command1:「始」t:count「末」\nn1:「始」{{step2.x}}「末」\ncommand2:「始」t:count「末」\nn2:「始」1「末」"), BLOCK.format("command:「始」t:count「末」\nn:「始」{{step1.x}}「末」")],
    "unknown_tool": [BLOCK.format("command:「始」t:cuont「末」"), BLOCK.format("command:「始」nothing like it at all「末」")],
    "invalid_arguments": [BLOCK.format(f"command:「始」{tool_id}「末」\n{fields}") for tool_id, fields in (
        ("t:count", ""), ("t:count", "n:「始」x「末」"), ("t:count", "n:「始」1,000「末」"), ("t:count", "n:「始」null「末」"), ("t:count", "n:「始」1「末」\nkidn:「始」a「末」"), ("t:count", "n:「始」1「末」\nkind:「始」c「末」"), ("t:count", "n:「始」1「末」\nitems:「始」1, 2「末」"),
        ("t:count", "n:「始」1「末」\nflag:「始」True「末」"), ("t:count", "n:「始」1「末」\nitems:「始」['a']「末」"), ("t:count", "n:「始」1「末」\nitems:「始」[1, True]「末」"), ("t:count", "n:「始」1「末」\nitems:「始」[1,]「末」"),
        ("t:count", 'n:「始」1「末」\nitems:「始」["a"]「末」'), ("t:count", 'n:「始」1「末」\nplace:「始」{"x": 1, "x": 2}「末」'), ("t:count", 'n:「始」1「末」\nplace:「始」{"z": "x"}「末」'),
        ("t:bounds", "n:「始」99「末」"), ("t:bounds", "n:「始」0「末」"), ("t:bounds", "n:「始」3「末」\ntext:「始」ab「末」"), ("t:bounds", "n:「始」3「末」\ntext:「始」abcdefgh「末」"), ("t:bounds", "n:「始」3「末」\nlist:「始」[]「末」"),
        ("t:bounds", "n:「始」3「末」\nlist:「始」[1,1]「末」"), ("t:bounds", "n:「始」3「末」\nodd:「始」x1「末」"), ("t:bounds", "n:「始」3「末」\neven:「始」3「末」"), ("t:bounds", 'n:「始」3「末」\nmap:「始」{"a": 1}「末」'),
    )],
    "missing_value_end": [BLOCK.format("command:»»»t:count«««\nn:»»»1"), BLOCK.format("command:»»»t:wipe«««\nn:»»»1")],
    "fenced_call": ["```\n" + BLOCK.format("command:「始」t:wipe「末」\nn:「始」1「末」") + "```"],
    "nonstandard_marker": ["<| [request_tool] |>\n" + COUNT + "\n<|[END_TOOL]|>"],
    "fullwidth_punctuation": [BLOCK.format("command：「始」t:count「末」，\nn:「始」1「末」")],
    "mixed_delimiters_used": [BLOCK.format("command:>>>t:count<<<\nn:>>>1<<<")],
    "trailing_comment": [BLOCK.format(COUNT + " // so many")],
    "stray_text": [BLOCK.format("well then\n" + COUNT)],
}  # fmt: skip
BOUNDS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 1, "maximum": 9}, "text": {"type": "string", "minLength": 3, "maxLength": 5}, "odd": {"type": "string", "pattern": "^[a-z]+$"},
        "list": {"type": "array", "minItems": 1, "uniqueItems": True}, "even": {"type": "integer", "multipleOf": 2}, "map": {"type": "object", "minProperties": 2},
    },
    "required": ["n"],
}  # fmt: skip


@tool
def count(
    n: int,
    kind: Literal["a", "b"] = "a",
    flag: bool = False,
    items: list[int] | None = None,
    place: dict[str, int] | None = None,
) -> int:
    """Count."""
    return n


@tool(parameters={"type": "object", "properties": {"a_b": {"type": "integer"}, "a-b": {"type": "integer"}}})
def twins(**given: int) -> int:
    """Take two parameters of nearly the same name."""
    return 1


@tool(parameters=BOUNDS)
def bounds(**given: Any) -> int:
    """Take values within bounds."""
    return 1


@tool(destructive=True)
def wipe(n: Annotated[int, "how many"]) -> int:
    """Destroy."""
    return n


def prose(feedback: str) -> str:
    """The feedback without what it quotes: names, values, code, calls written right."""
    text = re.sub(r"(?m)^<\|\[REQUEST_TOOL\]\|>\n(?:.*\n)*?<\|\[END_TOOL\]\|>", "", feedback)
    return re.sub(r"`[^`]*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|「[^」]*」|[a-z]+_[a-z_]+|t:[a-z]+", "", text)


def test_each_message_has_the_same_values_in_both_languages() -> None:
    for name, row in {**tam.WORDS, **json_reader.WORDS}.items():
        english, chinese = ({field for _, field, _, _ in string.Formatter().parse(text) if field} for text in row)
        assert english == chinese, name
        assert re.search("[\u4e00-\u9fff]", row[1]) or not re.search("[A-Za-z]{2}", re.sub(r"\{[^}]*\}", "", row[0])), (
            name
        )


@pytest.mark.slow
@pytest.mark.parametrize("references", [False, True])
@pytest.mark.parametrize("language", ["zh", "en"])
def test_the_feedback_of_every_problem_is_in_one_language(tmp_path: Path, language: str, references: bool) -> None:
    config = {
        "language": language,
        "plugins": {"entryPoints": False},
        "tam": {"maxText": 29_000, "maxCalls": 20, "maxBlock": 10_000, "references": references},
    }
    codes = [code for code in tam.PROBLEM_CODES if (code == "invalid_reference") is references]
    with Tavern.open(config, plugins=[Plugin([count, twins, bounds, wipe], name="t")], home=tmp_path) as tavern:
        for code, text in ((each, text) for each in codes for text in TEXTS[each]):
            outcome = tavern.run_text_sync(text)
            assert code in {problem.code for problem in outcome.problems}, (code, text, outcome.problems)
            said = prose(outcome.feedback)
            if language == "zh":
                assert not re.search(r"[A-Za-z]{2,} [A-Za-z]{2,}", said), outcome.feedback
            else:
                assert not re.search("[\u4e00-\u9fff]", said), outcome.feedback
