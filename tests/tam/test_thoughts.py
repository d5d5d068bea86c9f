"""Further names of tags whose content is a thought: what is in them is hidden, however the text arrives."""

from __future__ import annotations

from pathlib import Path

import pytest

from tavern_core import Plugin, Tavern, tam, tool
from tavern_core.errors import ConfigInvalid, UsageError
from tests.rows import each_row

CALL = "<|[REQUEST_TOOL]|>\ncommand:「始」t:add「末」\na:「始」1「末」\n<|[END_TOOL]|>"
SCHEMAS = {"t:add": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}
HIDDEN = {
    "a tag": f"<reasoning>{CALL}</reasoning>",
    "attributes and blanks": f'< Reasoning effort="high" >{CALL}</ REASONING >',
    "nesting": f"<reasoning>a<reasoning>b</reasoning>{CALL}</reasoning>",
    "another thought in it": f"<reasoning><think></reasoning>{CALL}",
    "no end": f"<reasoning>{CALL}",
    "a near miss": "<reasoning><|[TOOL_REQUEST]|>\ncommand:「始」t:add「末」\na:「始」1「末」\n<|[END_TOOL]|></reasoning>",
    "a name with a sign": f"<inner-voice_2>{CALL}</inner-voice_2>",
    "the usual tags": f"<think>{CALL}</think><thinking>{CALL}</thinking>",
}
SHOWN = {
    "its own end first": f"</reasoning>{CALL}",
    "an empty tag": f"<reasoning/>{CALL}",
    "a longer name": f"<reasonings>{CALL}",
    "behind it": f"<reasoning>x</reasoning>{CALL}",
}
NAMES = ["reasoning", "inner-voice_2"]


@each_row("what", [*HIDDEN, *SHOWN])
def test_what_is_in_a_thought_is_hidden_however_the_text_arrives(what: str) -> None:
    text = {**HIDDEN, **SHOWN}[what]
    document = tam.parse(text, thoughts=NAMES)
    plan = tam.bind(document, SCHEMAS)
    hidden = what in HIDDEN and what != "another thought in it"
    assert (len(plan.calls), plan.problems) == (0 if hidden else 1, ())
    for step in (1, 2, 7):
        scanner = tam.Scanner(thoughts=NAMES)
        for at in range(0, len(text), step):
            scanner.feed(text[at : at + step])
        scanner.close()
        assert scanner.document == document
        assert tam.bind(scanner.document, SCHEMAS) == plan


def test_other_names_hide_nothing_unless_they_are_given() -> None:
    assert len(tam.bind(tam.parse(HIDDEN["a tag"]), SCHEMAS).calls) == 1


@each_row("names", ["reasoning", ["a b"], ["<x>"], [""], [5], ["9x"], ["x" * 65]])
def test_what_is_no_name_of_a_tag_is_refused(names: list[str]) -> None:
    for make in (lambda: tam.parse("", thoughts=names), lambda: tam.Scanner(thoughts=names)):
        with pytest.raises(UsageError):
            make()


def test_the_host_takes_them_from_its_configuration(tmp_path: Path) -> None:
    @tool
    def add(a: int) -> int:
        return a + 1

    plugins = [Plugin([add], name="t")]
    with Tavern.open(
        {"plugins": {"entryPoints": False}, "tam": {"thoughts": ["reasoning"]}}, plugins=plugins, home=tmp_path
    ) as tavern:
        assert [len(tavern.run_text_sync(text).results) for text in (HIDDEN["a tag"], SHOWN["behind it"])] == [0, 1]
    with pytest.raises(ConfigInvalid, match=r"tam\.thoughts"):
        Tavern.open({"tam": {"thoughts": ["a b"]}}, plugins=plugins, home=tmp_path)
