"""What an MCP server asks the person behind a call, and tasks that go on at the server: at the adapter, with a person who answers at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tavern_core.builtin.adapters.mcp import adapter
from tavern_core.contract.adapters import Connection, UpstreamTool
from tavern_core.errors import CallError, ConnectionLost, PolicyDenied
from tests.upstreams.direct import DirectCall, DirectUpstream
from tests.upstreams.mcp_hosts import ERAS, program

pytestmark = pytest.mark.slow

Use = Callable[[Connection, Mapping[str, UpstreamTool]], Awaitable[None]]


def connected(folder: Path, era: str, use: Use, settings: Mapping[str, Any] = {}) -> list[str]:
    """Use a connection to the server of `mini_mcp.py`; what it wrote down."""
    log = folder / "server.log"

    async def main() -> None:
        upstream = DirectUpstream(folder, command=tuple(program("mini_mcp.py", era, str(log))), settings=settings)
        try:
            connection = await adapter.connect(upstream)
            try:
                listing = await connection.list_tools()
                assert listing is not None and listing.ttl_ms == 90_000
                await use(connection, {tool.name: tool for tool in listing.tools})
            finally:
                await connection.close()
        finally:
            upstream.close()

    asyncio.run(main())
    return log.read_text().splitlines() if log.exists() else []


ANSWERS: dict[str, tuple[Mapping[str, Any] | None, dict[str, Any]]] = {
    "an answer, with the defaults of the form": (
        {"name": "Ada"},
        {"action": "accept", "content": {"name": "Ada", "size": "medium"}},
    ),
    "a refusal": (None, {"action": "decline"}),
}


@pytest.mark.parametrize("era", ERAS)
def test_a_question_is_put_to_the_person_and_the_answer_goes_back(era: str, tmp_path: Path) -> None:
    async def use(connection: Connection, tools: Mapping[str, UpstreamTool]) -> None:
        for case, (answer, sent) in ANSWERS.items():
            call = DirectCall(answer)
            result = await connection.invoke(tools["ask"], {}, call)
            assert json.loads(result.value) == sent, case
            message, schema, name = call.asked[0]
            assert message == "Who are you?"
            assert schema["required"] == ["name"]
            assert name == ("who" if era == "2026" else "answer")

    connected(tmp_path, era, use)


class Deaf(DirectCall):
    """A call behind which no one can be asked."""

    async def ask(self, message: str, schema: Mapping[str, Any], name: str = "answer") -> Mapping[str, Any] | None:
        raise PolicyDenied("no one is there")


@pytest.mark.parametrize("era", ERAS)
def test_where_no_one_can_be_asked_the_call_fails_with_that(era: str, tmp_path: Path) -> None:
    async def use(connection: Connection, tools: Mapping[str, UpstreamTool]) -> None:
        with pytest.raises(PolicyDenied, match="no one is there"):
            await connection.invoke(tools["ask"], {}, Deaf())

    connected(tmp_path, era, use)


@pytest.mark.parametrize("eve", [{"principal": "user:eve"}, {"user_id": "eve"}])
def test_a_question_of_the_old_era_that_may_be_for_two_callers_is_put_to_none(
    eve: dict[str, str], tmp_path: Path
) -> None:
    async def use(connection: Connection, tools: Mapping[str, UpstreamTool]) -> None:
        other = DirectCall({"name": "Eve"}, **eve)
        waiting = asyncio.create_task(connection.invoke(tools["wait"], {}, other))
        await asyncio.wait_for(other.moved.wait(), 10)
        call = DirectCall({"name": "Ada"})
        result = await connection.invoke(tools["ask"], {}, call)
        assert "not known whom" in result.value
        assert call.asked == other.asked == []
        waiting.cancel()
        await asyncio.wait([waiting])

    connected(tmp_path, "2025", use)


REFUSED: dict[str, str] = {
    "nag": "again and again",
    "pry": "'sampling/createMessage', which this host does not give",
    "lure": "'javascript:alert.1.', which is not the address of a web page",
}


def test_what_a_server_may_not_ask_ends_the_call(tmp_path: Path) -> None:
    async def use(connection: Connection, tools: Mapping[str, UpstreamTool]) -> None:
        for tool, message in REFUSED.items():
            with pytest.raises(CallError, match=message):
                await connection.invoke(tools[tool], {}, DirectCall({"name": "Ada"}))

    connected(tmp_path, "2026", use)


TASKS: dict[str, tuple[dict[str, Any], str, str]] = {
    "completed": ({}, "at last", ""),
    "with a question": ({"wants": "input_required"}, "at last", ""),
    "with a time between questions that is none": ({"every": -(10**400)}, "at last", ""),
    "that asks without end": ({"wants": "nagging"}, "", "again and again"),
    "failed": ({"wants": "failed"}, "", "it broke"),
    "cancelled by the server": ({"wants": "cancelled"}, "", "cancelled its task"),
    "in a state that there is not": ({"wants": "dreaming"}, "", "the task failed"),
}


def test_a_task_of_the_new_era_is_followed_to_its_end(tmp_path: Path) -> None:
    updates: dict[str, list[str]] = {}

    async def use(connection: Connection, tools: Mapping[str, UpstreamTool]) -> None:
        log = tmp_path / "server.log"
        for case, (arguments, value, error) in TASKS.items():
            call = DirectCall({"name": "Ada"})
            if error:
                with pytest.raises(CallError, match=error):
                    await connection.invoke(tools["later"], arguments, call)
            else:
                assert (await connection.invoke(tools["later"], arguments, call)).value == value, case
            updates[case] = log.read_text().splitlines() if log.exists() else []
            log.unlink(missing_ok=True)

    connected(tmp_path, "2026", use)
    sent = 'update {"who": {"action": "accept", "content": {"name": "Ada", "size": "medium"}}}'
    assert updates["completed"] == [] and updates["with a question"] == [sent]


def test_cancelling_a_call_cancels_its_task(tmp_path: Path) -> None:
    async def use(connection: Connection, tools: Mapping[str, UpstreamTool]) -> None:
        call = DirectCall()
        task = asyncio.create_task(connection.invoke(tools["later"], {"wants": "working"}, call))
        await asyncio.wait_for(call.moved.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert connected(tmp_path, "2026", use) == ["task cancelled"]


def test_a_tool_that_needs_a_task_is_a_job(tmp_path: Path) -> None:
    async def use(connection: Connection, tools: Mapping[str, UpstreamTool]) -> None:
        assert tools["later"].is_job
        assert not tools["echo"].is_job

    connected(tmp_path, "2025", use)


@pytest.mark.parametrize("era", ERAS)
def test_what_is_asked_of_a_server_that_has_ended_was_never_sent(era: str, tmp_path: Path) -> None:
    async def use(connection: Connection, tools: Mapping[str, UpstreamTool]) -> None:
        for outcome in ("unknown", "none"):
            with pytest.raises(ConnectionLost) as lost:
                await connection.invoke(tools["die"], {}, DirectCall({}))
            assert lost.value.outcome == outcome

    connected(tmp_path, era, use)
