"""Runs of agents begin with the built prompt, also after they are resumed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tavern_core import LLMAnswer, Plugin, ScriptedLLM, Tavern, hookimpl, tool
from tavern_core.__main__ import main
from tavern_core.kernel.calls.running_call import current
from tavern_core.model.token_estimate import tokens_of
from tests.agents.shop import CLERK, LATE, TOOLS, shop, write

TASK = "A customer wants a refund after a month"


class Noted(ScriptedLLM):
    """A scripted model with a small window that notes its options."""

    context_tokens = 1_200

    def __init__(self, answers: Sequence[str]) -> None:
        super().__init__(answers)
        self.options: list[dict[str, Any]] = []

    async def complete(self, messages: Any, /, **options: Any) -> LLMAnswer:
        self.options.append(options)
        return await super().complete(messages, **options)


class Model:
    """A plugin with one model, and a tool that notes which untrusted content its caller has read."""

    def __init__(self, *answers: str) -> None:
        self.model = Noted(answers)
        self.read: list[list[str]] = []

    @hookimpl
    def tavern_register_llms(self) -> Any:
        return {"m": self.model}

    @hookimpl
    def tavern_register_tools(self) -> Any:
        @tool(read_only=True)
        def look(n: int) -> int:
            """Look around."""
            self.read.append(list(current.get().caller.ledger.content_read.sources))
            return n

        return [look]


def open_with(tmp_path, model: Model) -> Tavern:
    """The shop again, with a model."""
    with shop(tmp_path):
        pass
    config = {
        "plugins": {"entryPoints": False},
        "profiles": [str(tmp_path / "profiles")],
        "skills": {"roots": [], "user": [str(tmp_path / "user")]},
        "knowledge": {"handbook": {"path": str(tmp_path / "handbook")}},
    }
    return Tavern.open(
        config, home=tmp_path / "home", plugins=[Plugin(TOOLS, name="shop"), Plugin(model, name="models")]
    )


def test_a_run_begins_with_the_prompt_within_half_of_the_model_window(tmp_path):
    model = Model("It is done.")
    with open_with(tmp_path, model) as tavern:
        outcome = tavern.agents.run_sync("clerk", TASK)
        record = tavern.agents.get(outcome.run_id)
        preview = tavern.agents.prompt_sync("clerk", TASK)
    ((system, task),) = model.model.asked
    assert LATE in system["content"]
    assert task["content"] == TASK
    assert record.facts["system"] == system["content"]
    assert tokens_of(system["content"]) <= 600 < preview.tokens
    assert any("no room" in warning for warning in record.facts["warnings"])


@pytest.mark.slow
def test_untrusted_knowledge_in_the_prompt_counts_as_read_also_after_resuming(tmp_path):
    model = Model(
        *(f"<|[REQUEST_TOOL]|>\ncommand:「始」models:look「末」\nn:「始」{n}「末」\n<|[END_TOOL]|>" for n in (1, 2)),
        "done",
    )
    looker = {**CLERK, "tool_ids_inventory": ["models:look"], "skills": [], "calling": "tam"}
    write(tmp_path / "profiles", {"looker.json": looker})
    model.model.context_tokens = 32_000
    with open_with(tmp_path, model) as tavern:
        outcome = tavern.agents.run_sync("looker", "what does a competitor sell for euros", budget={"steps": 1})
        assert (outcome.state, model.read) == ("stopped", [["kb:handbook/web/prices.md#prices-elsewhere"]])
        outcome = tavern.agents.resume_sync(outcome.run_id, budget={"steps": 9})
    assert outcome.state == "done"
    assert model.read == [["kb:handbook/web/prices.md#prices-elsewhere"]] * 2


@pytest.mark.parametrize(("calling", "names"), [("tam", None), ("native", ["shop__find_order", "shop__pay_back"])])
def test_models_get_the_schemas_of_the_prompt(tmp_path, calling, names):
    model = Model("done")
    write(
        tmp_path / "profiles",
        {"small.json": {**CLERK, "tool_ids_inventory": CLERK["tool_ids_inventory"][:2], "calling": calling}},
    )
    with open_with(tmp_path, model) as tavern:
        tavern.agents.run_sync("small", TASK)
    tools = model.model.options[0].get("tools")
    assert tools == names or [tool["function"]["name"] for tool in tools][:-1] == names


def test_the_command_line_shows_the_prompt_with_warnings_and_what_was_left_out(tmp_path, monkeypatch, capsys):
    odd = {"tool_ids_inventory": ["system:get_current_time"], "model": "gtp", "context_tokens": 620, "calling": "tam"}
    write(tmp_path, {"tavern.yaml": "language: en\n", "profiles/odd.json": odd})
    monkeypatch.chdir(tmp_path)
    main(["--home", str(tmp_path / "home"), "agent", "prompt", "odd", "What time is it?"])
    shown = capsys.readouterr()
    assert shown.out.startswith("You are odd.")
    assert "there is no model 'gtp'" in shown.err
    assert "620 tokens leave no room for tools and results" in shown.err
    assert "no room for all examples and texts of the manual" in shown.err
    main(["--home", str(tmp_path / "home"), "agent", "prompt", "odd", "--json"])
    assert set(json.loads(capsys.readouterr().out)) == {"system", "tokens", "sources", "leftOut", "tools", "findings"}


@pytest.mark.parametrize("form", ["mapping", "file", "path", "resolved"])
def test_a_key_that_is_nearly_one_of_a_profile_is_a_warning_of_the_run_and_the_prompt(tmp_path, form):
    model, odd = Model("done"), {"name": "odd", "tool_ids_inventory": ["shop:refnd"], "bugdet": {}, "model": "m"}
    write(tmp_path / "profiles", {"odd.json": odd})
    given = {"mapping": odd, "file": "odd", "path": tmp_path / "profiles" / "odd.json"}
    with open_with(tmp_path, model) as tavern:
        profile = tavern.profile("odd") if form == "resolved" else given[form]
        warnings = tavern.agents.run_sync(profile, TASK).warnings
        findings = tavern.agents.prompt_sync(profile, TASK).findings
    for said in ("bugdet", "shop:refnd"):
        assert sum(said in warning for warning in warnings) == 1, warnings
        assert sum(said in finding.message for finding in findings) == 1
