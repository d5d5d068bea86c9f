"""The loop with a real server of the Chat Completions API: streams, calls, failures, and requests that end when they have said enough."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Plugin, Tavern
from tavern_core.model.agent_run import AgentOutcome
from tests.agents.desk import ONLY_GIVEN, PROFILE, Desk, block
from tests.llms.openai_server import OpenAIServer, Reply

FINE = "The sum is 3."
PRICE = {"input": 1, "output": 2}


def run(
    tmp_path: Path, server: OpenAIServer, profile: dict[str, Any] | None = None, resume: str = "", **options: Any
) -> AgentOutcome:
    """One run of an agent whose model is behind the server, or the rest of one."""
    model = {"kind": "openai", "baseUrl": server.url, "model": "m1", "price": PRICE, "retries": 1}
    desk = Desk(None)
    with Tavern.open(
        {**ONLY_GIVEN, "llms": {"remote": model}}, plugins=[Plugin(_Tools(desk), "desk")], home=tmp_path
    ) as tavern:
        if resume:
            return tavern.agents.resume_sync(resume, **options)
        return tavern.agents.run_sync({**PROFILE, "model": "remote", **(profile or {})}, "add", **options)


class _Tools:
    """The tools of the desk without its model."""

    def __init__(self, desk: Desk) -> None:
        self.tavern_register_tools = desk.tavern_register_tools


def test_a_run_over_http_with_native_calls(tmp_path: Path) -> None:
    with OpenAIServer([Reply(calls=[("desk__add", {"a": 1, "b": 2})]), FINE]) as server:
        outcome = run(tmp_path, server)
    assert (outcome.state, outcome.answer, outcome.calls) == ("done", FINE, 1)
    assert outcome.usage == {"input": 14, "output": 10}
    assert outcome.cost == pytest.approx((14 * 1 + 10 * 2) / 1e6)
    first, second = (request.body for request in server.requests)
    assert first["stream"] is True
    assert "desk__add" in [tool["function"]["name"] for tool in first["tools"]]
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "tool"]
    assert json.loads(second["messages"][2]["tool_calls"][0]["function"]["arguments"]) == {"a": 1, "b": 2}


def test_the_request_ends_when_the_block_closes(tmp_path: Path) -> None:
    endless = Reply(text=block("add", a=1, b=2) + "\nThe result is 9. ", fault="endless", piece=1_000)
    replies = iter([endless, Reply(FINE)])
    with OpenAIServer(lambda request: next(replies)) as server:
        outcome = run(tmp_path, server)
        assert server.disconnected.wait(30)
    assert (outcome.state, outcome.answer, outcome.calls) == ("done", FINE, 1)
    said = server.requests[1].body["messages"]
    assert said[2]["content"] == block("add", a=1, b=2)
    assert "Result: 3" in said[3]["content"]


@pytest.mark.parametrize(
    "reply",
    [Reply(status=500), Reply(status=401), Reply(text="half an answer", fault="cut"), Reply(text="x", fault="malformed")],
)  # fmt: skip
def test_a_server_that_fails_ends_the_run_with_the_reason(tmp_path: Path, reply: Reply) -> None:
    with OpenAIServer([reply]) as server:
        outcome = run(tmp_path, server)
    assert outcome.state == "failed"
    assert outcome.reason
    assert outcome.code in ("UPSTREAM_ERROR", "CONNECTION_LOST", "POLICY_DENIED", "TOOL_ERROR", "TIMEOUT")


@pytest.mark.slow
def test_the_seconds_of_the_budget_end_a_request_that_drips(tmp_path: Path) -> None:
    with OpenAIServer([Reply(text="so", fault="drip")]) as server:
        outcome = run(tmp_path, server, budget={"seconds": 0.5})
        assert server.disconnected.wait(30)
    assert (outcome.state, outcome.code) == ("stopped", "TIMEOUT")


def test_bytes_that_are_no_text_do_not_break_the_run(tmp_path: Path) -> None:
    with OpenAIServer([Reply(text="so", fault="invalid_utf8")]) as server:
        outcome = run(tmp_path, server)
    assert outcome.state in ("done", "failed")
    assert outcome.answer or outcome.reason


@pytest.mark.parametrize("reply", [Reply(text="half an answer", fault="cut"), Reply(text="x", fault="error_in_stream")])
def test_a_request_that_breaks_off_is_made_once_more_and_counted(tmp_path: Path, reply: Reply) -> None:
    replies = iter([reply])
    with OpenAIServer(lambda request: next(replies, Reply(FINE))) as server:
        outcome = run(tmp_path, server)
    assert (outcome.state, outcome.answer, outcome.steps, len(server.requests)) == ("done", FINE, 1, 2)
    assert outcome.usage["input"] > 7 + 100, "the prompt of the request that broke off"
    with Tavern.open(ONLY_GIVEN, plugins=[Plugin(_Tools(Desk(None)), "desk")], home=tmp_path) as tavern:
        replay = tavern.agents.replay_sync(outcome.run_id)
        assert (replay.ok, replay.outcome.usage) == (True, outcome.usage)
        (fault,) = [event.data for event in tavern.agents.get(outcome.run_id).events if event.kind == "fault"]
    assert (fault["code"], fault["again"]) == ("UPSTREAM_ERROR", True)


@pytest.mark.parametrize(
    ("reply", "requests"),
    [(Reply(status=401), 1), (Reply(text="half", fault="cut"), 2), (Reply(status=429, headers={"retry-after": "900"}), 1)],
)  # fmt: skip
def test_a_request_is_not_made_again_where_that_cannot_help(tmp_path: Path, reply: Reply, requests: int) -> None:
    with OpenAIServer([reply]) as server:
        outcome = run(tmp_path, server)
    assert (outcome.state, len(server.requests)) == ("failed", requests)
    assert (f"tavern agent resume {outcome.run_id}" in outcome.fix) is (reply.status != 401)
    assert ("after 900 s" in outcome.fix) is (reply.status == 429)


def test_the_budget_ends_a_run_whose_requests_break_off(tmp_path: Path) -> None:
    with OpenAIServer([Reply(text="half", fault="cut")]) as server:
        outcome = run(tmp_path, server, {"calling": "tam"}, budget={"tokens": 900})
        again = run(tmp_path, server, resume=outcome.run_id)
    assert (outcome.state, again.state, len(server.requests)) == ("failed", "stopped", 1)
    assert again.code == "BUDGET_EXCEEDED"


def test_tokens_that_are_not_reported_are_estimated_with_the_schemas_of_the_tools(tmp_path: Path) -> None:
    with OpenAIServer([Reply(FINE, usage=None)]) as server:
        with_schemas, without = (run(tmp_path, server, {"calling": calling}).usage for calling in ("both", "tam"))
        sent = json.dumps(server.requests[0].body["tools"])
    assert with_schemas["input"] - without["input"] == pytest.approx(len(sent) / 4, rel=0.1)


@pytest.mark.slow
def test_a_recorded_run_is_repeated_without_its_model(tmp_path: Path) -> None:
    turns = iter([
        Reply(block("add", a=1) + "\nThe result is 9."), Reply(calls=[("desk__long", {})]), Reply(calls=[("desk__broken", {})]), Reply(FINE),
    ])  # fmt: skip
    recording = {"kind": "recorded", "file": str(tmp_path / "model.jsonl")}
    outcomes: list[AgentOutcome] = []
    with OpenAIServer(lambda request: next(turns)) as server:
        models = {
            "real": {"kind": "openai", "baseUrl": server.url},
            "tape": {**recording, "source": "real", "record": True},
        }
        for llms in (models, {"tape": recording}):
            host = Tavern.open(
                {**ONLY_GIVEN, "llms": llms}, plugins=[Plugin(_Tools(Desk(None)), "desk")], home=tmp_path
            )
            with host as tavern:
                outcomes.append(tavern.agents.run_sync({**PROFILE, "model": "tape"}, "add"))
    assert [(each.state, each.answer, each.steps, each.calls) for each in outcomes] == [("done", FINE, 4, 3)] * 2
    assert len(server.requests) == 4
