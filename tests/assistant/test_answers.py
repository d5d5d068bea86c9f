"""What models really write, and what is made of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tavern_core import LLMAnswer, ScriptedLLM

from .answers import CAPITALS, Models, answer, host

pytestmark = pytest.mark.anyio
PATCH = json.dumps(CAPITALS)
GOOD: dict[str, str | LLMAnswer] = {
    "a bare list": PATCH,
    "an object": answer(CAPITALS),
    "a code fence": f"```json\n{PATCH}\n```",
    "a fence with tildes and prose": f"Certainly! Here it is:\n\n~~~\n{answer(CAPITALS)}\n~~~\nTell me if it helps.",
    "prose with footnotes": f"As you asked [1], see {{note}}: {PATCH} [1] the request",
    "thoughts with another patch": f'<think>perhaps [{{"op": "remove", "path": "/nodes/x"}}]?</think>\n{PATCH}',
    "unused thoughts that never end": f"{PATCH}\n<thinking>was that right?",
    "structured data": LLMAnswer("", data={"patch": CAPITALS, "reason": "done"}),
    "a fence that does not end": f"```json\n{PATCH}\n",
    "two equal patches": f"```json\n{PATCH}\n```\nthat is\n```json\n{PATCH}\n```",
    "a comment beside the patch": answer(CAPITALS, explanation="as you wished"),
}
COMMA = "line 2, column 39" if sys.version_info >= (3, 13) else "line 3, column 1"
BAD: dict[str, tuple[str | LLMAnswer, str, str]] = {
    "an apology": ("I am sorry, I cannot help with that.", "NO_PATCH", "no JSON"),
    "nothing": ("", "NO_PATCH", "no JSON"),
    "a trailing comma": ('{"patch": [\n  {"op": "remove", "path": "/nodes/a"},\n]}', "BAD_JSON", COMMA),
    "single quotes in a fence": ("Here:\n```json\n[{'op': 'add'}]\n```", "BAD_JSON", "line 3, column 3"),
    "a key twice": ('{"patch": [], "patch": []}', "BAD_JSON", "twice"),
    "NaN": ('[{"op": "add", "path": "/nodes/a", "value": NaN}]', "BAD_JSON", "line 1"),
    "an answer that was cut": (LLMAnswer(PATCH[:200], finish_reason="length"), "CUT_OFF", "ended before"),
    "the whole workflow": ('{"nodes": [{"id": "a", "type": "core:Text"}], "edges": []}', "WHOLE_WORKFLOW", "whole document"),
    "the workflow in an object": ('{"workflow": {"nodes": {}}}', "WHOLE_WORKFLOW", "whole document"),
    "another key": ('{"patches": [{"op": "remove", "path": "/nodes/a"}]}', "NOT_A_PATCH", "'patches'"),
    "changes beside the patch": ('{"patch": [], "interfaceInputs": {"a": {}}}', "UNKNOWN_KEY", "interfaceInputs"),
    "a list of numbers": ("[1, 2]", "NOT_A_PATCH", "not operations"),
    "two patches": (f"```json\n{PATCH}\n```\nor\n```json\n[]\n```", "SEVERAL_PATCHES", "2 patches"),
    "an empty patch without a reason": ("[]", "NO_CHANGE", "empty"),
    "deep brackets": ("[" * 100_000, "NO_PATCH", "no JSON"),
    "a megabyte of openings": ('{"op": ' * 200_000, "CUT_OFF", "ended before"),
    "a patch that ends too early": (PATCH[:200], "BAD_JSON", "line 1"),
}  # fmt: skip


async def test_a_patch_is_found_in_every_form_that_models_write(tmp_path: Path) -> None:
    async with host(tmp_path, Models()) as tavern:
        for form, text in GOOD.items():
            proposal = await tavern.assistant.propose("capitals, please", model=ScriptedLLM([text]), rounds=0)
            assert proposal.ok, (form, proposal.problems)
            types = [node.type for node in proposal.workflow.nodes]
            assert types == ["core:GroupInput", "core:Case", "core:GroupOutput"], form


async def test_an_answer_without_a_patch_is_reported_with_its_place_and_the_model_may_correct_it(
    tmp_path: Path,
) -> None:
    async with host(tmp_path, Models()) as tavern:
        for form, (text, code, said) in BAD.items():
            model = ScriptedLLM([text, answer(CAPITALS)])
            proposal = await tavern.assistant.propose("capitals, please", model=model)
            assert [problem.code for problem in proposal.rounds[0].problems] == [code], form
            assert said in proposal.rounds[0].problems[0].message, form
            assert f"[{code}]" in str(model.asked[1][-1]["content"]), form
            assert proposal.ok, form
            assert len(proposal.rounds) == 2, form


HOSTILE = {
    "back-quotes": "`" * 1_000_000,
    "thoughts": "<think>" * 200_000,
    "fences": "```\n" * 250_000,
    "quotes": '["' * 500_000,
    "footnotes": "[1] " * 250_000,
    "openings": '{"patch": [' * 100_000,
    "blanks": " " * 1_000_000 + "[",
}


@pytest.mark.slow
async def test_a_hostile_answer_costs_little_and_is_not_kept_whole(tmp_path: Path) -> None:
    async with host(tmp_path, Models()) as tavern:
        for kind, text in HOSTILE.items():
            model = ScriptedLLM([text, answer(CAPITALS)])
            proposal = await tavern.assistant.propose("capitals, please", model=model)
            assert proposal.ok, kind
            assert len(proposal.rounds[0].answer) <= 200_000, kind
            assert len(str(model.asked[1][2]["content"])) <= 20_000, kind


async def test_a_model_may_decline_with_a_reason(tmp_path: Path) -> None:
    async with host(tmp_path, Models(answer([], "there is no node that cooks"))) as tavern:
        proposal = await tavern.assistant.propose("cook dinner")
    assert (proposal.ok, proposal.declined, proposal.problems) == (False, "there is no node that cooks", ())
    assert proposal.workflow is proposal.before
    assert len(proposal.rounds) == 1
