"""`Tavern.invoke_from`: calls through an entry point of the embedding program, awaited or not, are recorded with its name."""

from __future__ import annotations

import asyncio

from tavern_core import CallContext, tool

from .conftest import Opened, run, tools


@tool
async def wait(seconds: float = 0.0) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "done"


def test_a_call_of_an_async_server_is_awaited_and_recorded_with_its_name(opened: Opened) -> None:
    host = opened(tools(wait))

    async def serve() -> list[str]:
        results = await asyncio.gather(*(host.invoke_from("bot", "t:wait", {"seconds": 0.01}) for _ in range(3)))
        return [result.unwrap() for result in results]

    assert run(serve()) == ["done"] * 3
    assert [record.data["door"] for record in host.logs.records("TOOL_CALLED")] == ["bot"] * 3


def test_the_deadline_of_an_entry_point_counts_with_and_without_a_context(opened: Opened) -> None:
    host = opened(tools(wait))

    async def serve(context: CallContext | None) -> str:
        result = await host.invoke_from("bot", "t:wait", {"seconds": 60}, context=context, timeout_ms=20)
        return result.error.kind if result.error else ""

    assert [run(serve(context)) for context in (None, CallContext())] == ["TIMEOUT"] * 2


def test_without_an_event_loop_it_returns_the_result_as_its_sync_twin_does(opened: Opened) -> None:
    host = opened(tools(wait))
    assert host.invoke_from("shell", "t:wait").ok  # type: ignore[attr-defined]
    assert host.invoke_from_sync("shell", "t:wait").ok
    assert [record.data["door"] for record in host.logs.records("TOOL_CALLED")] == ["shell"] * 2


def test_the_sync_twin_refuses_inside_a_loop_and_a_closed_host_answers_both(opened: Opened) -> None:
    host = opened(tools(wait))

    async def inside() -> tuple[str, str]:
        error = host.invoke_from_sync("bot", "t:wait").error
        assert error is not None
        return error.message, error.fix

    message, fix = run(inside())
    assert message.startswith("invoke_from_sync was called inside a running event loop")
    assert fix == "use `await tavern.invoke_from('bot', 't:wait', ...)`"
    host.__exit__(None, None, None)

    async def late() -> str:
        result = await host.invoke_from("bot", "t:wait")
        return result.error.kind if result.error else ""

    assert (run(late()), host.invoke_from_sync("bot", "t:wait").ok) == ("USAGE", False)
