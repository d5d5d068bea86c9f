"""A program may pass a model, or a function of the messages, where others name one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tavern_core import CallContext, ScriptedLLM, Tavern
from tavern_core.errors import CallError, UsageError

PATCH = json.dumps([{"op": "add", "path": "/nodes/a", "value": {"type": "core:Text", "inputValues": {"text": "hi"}}}])
AGENT = {"name": "writer", "tool_ids_inventory": []}
BLOCK = "<|[REQUEST_TOOL]|>\ncommand:「始」no:such「末」\n<|[END_TOOL]|>"


def answer(host: Tavern, model: Any) -> str:
    return str(host.wait(host.llms.complete("hello", model)).text)


def run(host: Tavern, model: Any) -> str:
    return host.agents.run_sync(AGENT, "hello", model=model).answer


def propose(host: Tavern, model: Any) -> str:
    return str(host.wait(host.assistant.propose("write hi", None, model)).rounds[-1].answer)


MODELS: dict[str, Callable[[], Any]] = {
    "a model": lambda: ScriptedLLM([PATCH]),
    "a function of the messages": lambda: lambda messages: PATCH,
}


@pytest.mark.parametrize("use", [answer, run, propose])
@pytest.mark.parametrize("kind", MODELS)
def test_a_passed_model_answers(tmp_path: Path, use: Callable[[Tavern, Any], str], kind: str) -> None:
    with Tavern.open({}, home=tmp_path) as host:
        assert use(host, MODELS[kind]()) == PATCH


def test_a_passed_model_is_governed_and_is_in_no_list(tmp_path: Path) -> None:
    with Tavern.open({}, home=tmp_path) as host:
        assert answer(host, lambda messages: "yes") == "yes"
        assert host.llms.names() == []
        (called,) = host.logs.records("MODEL_CALLED")
        assert called.data["name"].startswith("passed:")

        class Remote:
            async def complete(self, messages: Any, /, **options: Any) -> Any:
                raise AssertionError("it is not reached")

        with pytest.raises(CallError) as caught:
            host.wait(host.llms.complete("hello", Remote(), context=CallContext(principal="user:ann")))
        assert caught.value.code == "POLICY_DENIED"


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with Tavern.open({}, home=tmp_path) as host, pytest.raises(UsageError, match="a model is a name"):
        answer(host, 3)


@pytest.mark.parametrize("made", [3, None, b"x", {1, 2}])
def test_a_function_that_returns_no_text_is_an_error_that_says_so(tmp_path: Path, made: Any) -> None:
    with Tavern.open({}, home=tmp_path) as host, pytest.raises(CallError, match="returned") as caught:
        answer(host, lambda messages: made)
    assert "LLMAnswer" in caught.value.hint


def test_a_run_is_not_resumed_with_the_passed_model_of_another_process(tmp_path: Path) -> None:
    with Tavern.open({}, home=tmp_path) as host:
        run_id = host.agents.run_sync(AGENT, "hello", model=lambda m: "a", budget={"seconds": 1e-9}).run_id
    with Tavern.open({}, home=tmp_path) as host:
        assert answer(host, lambda messages: "of another") == "of another"
        with pytest.raises(CallError, match="any more") as caught:
            host.agents.resume_sync(run_id)
        assert "model=" in caught.value.hint
        assert host.agents.resume_sync(run_id, model=lambda m: "b", budget={"seconds": 60}).answer == "b"


@pytest.mark.slow
def test_models_in_use_are_kept_however_many_are_passed(tmp_path: Path) -> None:
    with Tavern.open({}, home=tmp_path) as host:

        def slow(messages: Any) -> str:
            for _ in range(600):
                host.llms._models.name_of(ScriptedLLM(["other"]))
            return BLOCK if len(messages) < 6 else "done"

        assert host.agents.run_sync(AGENT, "hello", model=slow).answer == "done"


@pytest.mark.parametrize(
    "arguments",
    [{"messages": None}, {"messages": 3}, {"messages": "x", "options": 3}, {"messages": "x", "options": ["x"]},
     {"messages": "x", "context": {"principal": "x"}}, {"messages": "x", "on_text": 3}],
)  # fmt: skip
def test_an_argument_of_another_type_is_refused(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with Tavern.open({}, home=tmp_path) as host:
        with pytest.raises(UsageError):
            host.llms.complete_sync(model=lambda messages: "yes", **arguments)
        assert host.llms.complete_sync("hello", lambda messages: "yes").text == "yes"
