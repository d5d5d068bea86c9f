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
