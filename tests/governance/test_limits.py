"""Rates, places, breakers and answers that hold, as a caller meets them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tavern_core import Budget, CallContext, Out, Plugin, Tavern, ToolCall, ToolResult, hookimpl, node, tool
from tavern_core.errors import ConfigInvalid, ToolFailed, UpstreamError, UsageError
from tavern_core.kernel.limits import result_cache
from tavern_core.kernel.limits.breakers import CircuitBreaker
from tavern_core.kernel.limits.slots import QueueFull, Slots
from tavern_core.model.call_limits import Breaker, ToolLimits, parse_rate
from tavern_core.model.result import ToolError
from tests import programs
from tests.governance import redis_server
from tests.rows import each_row

ANN = CallContext(principal="user:ann")
BOB = CallContext(principal="user:bob")
BATCH = CallContext(principal="job", roles=frozenset({"batch"}))


@contextmanager
def host_of(
    tmp_path: Path, tools: list[Callable[..., Any]], limits: Mapping[str, Any] | None = None, **config: Any
) -> Any:
    config = {"limits": limits or {}, **config}
    with Tavern.open(config, home=tmp_path / "home", plugins=[Plugin(tools, name="t")]) as host:
        yield host


@tool
def ping() -> int:
    return 1


@tool
def pong() -> int:
    return 1


@each_row(
    ("text", "rate"),
    [
        ("10/minute", (10, 60)),
        ("1 / s", (1, 1)),
        ("100/15minutes", (100, 900)),
        ("5/2H", (5, 7200)),
        ("3/days", (3, 86400)),
    ],
)
def test_rates_read_as_people_write_them(text: str, rate: tuple[int, float]) -> None:
    assert parse_rate(text) == rate


@each_row(
    "text",
    [
        "",
        "ten/minute",
        "10",
        "0/minute",
        "10/0s",
        "10/00s",
        "10/500ms",
        "10/hs",
        "10/year",
        "-1/s",
        "10/minute/x",
        "9" * 50,
    ],
)
def test_what_is_no_rate_is_refused_where_it_stands(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a rate"):
        tool(limits={"rate": text})
    with pytest.raises(ConfigInvalid) as refused:
        Tavern.open({"limits": {"tools": {"t:ping": {"rate": text}}}}, home=tmp_path)
    assert "limits.tools.t:ping.rate" in str(refused.value.findings[0])


@each_row("limits", [{"rat": "1/s"}, {"concurrency": 0}, {"retries": 1.5}, {"breaker": {"fail": 1}}, 7])
def test_what_is_no_limit_is_refused_by_the_decorator(limits: Any) -> None:
    with pytest.raises(UsageError):
        tool(limits=limits)


@pytest.mark.parametrize(
    ("limits", "place"),
    [
        ({"tools": {"t:ping": {"rate": "2/hour"}}}, "limits.tools.t:ping"),
        ({"tools": {"t:*": {"rate": "9/hour"}, "t:ping": {"rate": "2/hour"}}}, "limits.tools.t:ping"),
        ({"plugins": {"t": {"rate": "2/hour"}}}, "limits.plugins.t"),
        ({"callers": {"user:ann": {"rate": "2/hour"}}}, "limits.callers.user:ann"),
        ({"callers": {"*": {"rate": "2/hour"}}}, "limits.callers.*"),
    ],
)
def test_a_rate_that_is_used_up_says_which_and_when_to_come_again(tmp_path: Path, limits: Any, place: str) -> None:
    with host_of(tmp_path, [ping], limits) as host:
        results = [host.invoke_sync("t:ping", context=ANN) for _ in range(3)]
        used = {state.place: state.used for state in host.limits.list()}
    assert [r.ok for r in results] == [True, True, False]
    assert used[place] == (None if "callers" in limits else 2)
    error = results[2].error
    assert (error.kind, error.outcome, error.retryable) == ("BUDGET_EXCEEDED", "none", True)
    assert error.details["limit"] == f"{place}.rate"
    assert 3_590_000 < error.retry_after_ms <= 3_600_000


OWN = {"rate": "2/hour", "concurrency": 3}


@pytest.mark.parametrize(
    ("tools", "own"),
    [
        ({}, OWN),
        ({"t:rare": {"retries": 1}}, OWN),
        ({"t:*": {"rate": "9/hour"}}, {"concurrency": 3}),
        ({"t:rare": {"rate": "9/hour"}, "t:*": {"concurrency": 1}}, None),
    ],
)
def test_a_limit_of_a_definition_is_listed_where_no_entry_replaces_it(
    tmp_path: Path, tools: Any, own: dict[str, Any] | None
) -> None:
    @tool(limits=OWN)
    def rare() -> int:
        return 1

    with host_of(tmp_path, [rare], {"tools": tools}) as host:
        assert host.invoke_sync("t:rare").ok
        listed = {state.place: state.limits.to_json() for state in host.limits.list()}
    assert listed.pop("the tool t:rare", None) == own
    assert listed == {f"limits.tools.{entry}": limits for entry, limits in tools.items()}


def test_the_limit_of_a_definition_is_raised_where_its_refusal_says(tmp_path: Path) -> None:
    @tool(limits={"rate": "1/hour"})
    def rare() -> int:
        return 1

    with host_of(tmp_path, [rare]) as host:
        assert host.invoke_sync("t:rare").ok
        refused = host.invoke_sync("t:rare").error
    assert "or raise limits.tools.t:rare.rate in tavern.yaml" in refused.fix
    with host_of(tmp_path, [rare], {"tools": {"t:rare": {"rate": "9/hour"}}}) as host:
        assert host.invoke_sync("t:rare").ok


def test_each_caller_has_his_own_rate_and_the_host_none(tmp_path: Path) -> None:
    limits = {"callers": {"*": {"rate": "1/hour"}, "role:batch": {"rate": "2/hour"}}}
    with host_of(tmp_path, [ping], limits) as host:
        assert [host.invoke_sync("t:ping", context=c).ok for c in (ANN, BOB, ANN, BATCH, BATCH, BATCH)] == [
            True, True, False, True, True, False,
        ]  # fmt: skip
        assert all(host.invoke_sync("t:ping").ok for _ in range(5))


def test_who_is_refused_uses_up_nothing_that_others_share(tmp_path: Path) -> None:
    limits = {"tools": {"t:ping": {"rate": "3/hour"}}, "callers": {"user:ann": {"rate": "1/hour"}}}
    with host_of(tmp_path, [ping], limits) as host:
        for _ in range(10):
            host.invoke_sync("t:ping", context=ANN)
        assert [host.invoke_sync("t:ping", context=BOB).ok for _ in range(3)] == [True, True, False]


def test_all_tools_of_a_plugin_share_its_rate(tmp_path: Path) -> None:
    with host_of(tmp_path, [ping, pong], {"plugins": {"t": {"rate": "2/hour"}}}) as host:
        assert [host.invoke_sync(f"t:{name}").ok for name in ("ping", "pong", "ping")] == [True, True, False]


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_all_processes_share_a_rate(tmp_path: Path, store: str) -> None:
    with redis_server.database() as address:
        state = {"store": address if store == "redis" else store}
        answers = []
        for _ in range(3):
            with host_of(tmp_path, [ping], {"tools": {"t:ping": {"rate": "2/hour"}}}, state=state) as host:
                answers.append(host.invoke_sync("t:ping").ok)
    assert answers == [True, True, False]


def test_further_calls_wait_in_line_and_too_many_are_refused(tmp_path: Path) -> None:
    seen: list[int] = []
    now = 0

    @tool(limits={"concurrency": 2, "queue": 3})
    async def work() -> int:
        nonlocal now
        now += 1
        seen.append(now)
        await asyncio.sleep(0.01)
        now -= 1
        return 1

    async def many(host: Tavern) -> list[Any]:
        return await asyncio.gather(*(host.invoke("t:work") for _ in range(9)))

    with host_of(tmp_path, [work]) as host:
        results = asyncio.run(many(host))
    assert sum(r.ok for r in results) == 5
    assert max(seen) == 2
    refused = next(r for r in results if not r.ok)
    assert refused.error.kind == "BUDGET_EXCEEDED"
    assert refused.error.details["limit"] == "the tool t:work.queue"
    assert refused.error.retry_after_ms == 1_000


def test_a_caller_who_fills_the_queue_keeps_no_one_else_out(tmp_path: Path) -> None:
    gate = asyncio.Event()

    @tool(limits={"concurrency": 1, "queue": 4})
    async def work() -> int:
        await gate.wait()
        return 1

    async def crowd(host: Tavern) -> tuple[list[Any], list[Any]]:
        greedy = [asyncio.ensure_future(host.invoke("t:work", context=ANN)) for _ in range(20)]
        while sum(call.done() for call in greedy) < 15:  # noqa: ASYNC110
            await asyncio.sleep(0)
        modest = [asyncio.ensure_future(host.invoke("t:work", context=BOB)) for _ in range(3)]
        while not any(call.done() for call in modest):  # noqa: ASYNC110
            await asyncio.sleep(0)
        (state,) = host.limits.list()
        assert (state.running, state.waiting, state.used, state.breaker) == (1, 4, None, "")
        gate.set()
        return await asyncio.gather(*greedy), await asyncio.gather(*modest)

    with host_of(tmp_path, [work]) as host:
        greedy, modest = asyncio.run(crowd(host))
        (state,) = host.limits.list()
        assert (state.running, state.waiting) == (0, 0)
    assert [r.ok for r in modest] == [True, True, False]  # an equal share of the queue
    assert sum(r.ok for r in greedy) == 3
    assert {r.error.kind for r in (*greedy, *modest) if not r.ok} == {"BUDGET_EXCEEDED"}


def test_threads_wait_in_line_too(tmp_path: Path) -> None:
    lock, now, most = threading.Lock(), 0, 0
    gate = threading.Event()

    @tool(limits={"concurrency": 2})
    def work() -> int:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
            if now == 2:
                gate.set()
        gate.wait(5)
        with lock:
            now -= 1
        return 1

    with host_of(tmp_path, [work]) as host:
        results: list[Any] = []
        threads = [threading.Thread(target=lambda: results.append(host.invoke_sync("t:work"))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [r.ok for r in results] == [True] * 8
    assert most == 2


@pytest.mark.slow
def test_sync_work_that_outlives_its_deadline_keeps_its_place(tmp_path: Path) -> None:
    gate = threading.Event()

    @tool(timeout_ms=200, limits={"concurrency": 1, "queue": 0})
    def stuck() -> int:
        gate.wait(10)
        return 1

    async def both(host: Tavern) -> Any:
        late = await host.invoke("t:stuck")
        refused = await host.invoke("t:stuck")
        gate.set()
        return late, refused

    with host_of(tmp_path, [stuck]) as host:
        late, refused = asyncio.run(both(host))
    assert (late.error.kind, late.error.details["stopped"]) == ("TIMEOUT", False)
    assert refused.error.kind == "BUDGET_EXCEEDED"


def test_a_tool_that_calls_itself_has_its_place_already(tmp_path: Path) -> None:
    @tool(limits={"concurrency": 1})
    async def down(n: int) -> int:
        return n if n == 0 else (await host.invoke("t:down", {"n": n - 1})).unwrap()

    with host_of(tmp_path, [down]) as host:
        assert host.invoke_sync("t:down", {"n": 3}).value == 0


def test_a_refused_call_gives_none_of_a_large_rate_back(tmp_path: Path) -> None:
    @tool
    def busy() -> int:
        return 1

    with host_of(tmp_path, [busy], {"tools": {"busy": {"rate": "200/hour"}}}) as host:
        kinds = [None if (error := host.invoke_sync("t:busy").error) is None else error.kind for _ in range(204)]
    assert kinds == [None] * 200 + ["BUDGET_EXCEEDED"] * 4


def test_a_breaker_opens_tries_and_closes_again(tmp_path: Path) -> None:
    ran: list[bool] = []

    @tool(limits={"breaker": {"failures": 2, "rest_ms": 1000}})
    def shaky(works: bool) -> int:
        ran.append(works)
        if not works:
            raise UpstreamError("away")
        return 1

    with host_of(tmp_path, [shaky]) as host:
        now = 0.0
        host.limits._table.clock = lambda: now
        events: list[Any] = []
        host.events.subscribe(events.append, "CIRCUIT_CHANGED")
        assert host.limits.list()[0].to_json()["state"] == "closed"
        kinds = [host.invoke_sync("t:shaky", {"works": False}).error.kind for _ in range(3)]
        assert kinds == ["UPSTREAM_ERROR", "UPSTREAM_ERROR", "CIRCUIT_OPEN"]
        refused = host.invoke_sync("t:shaky", {"works": True}).error
        assert (refused.retry_after_ms, refused.outcome, refused.retryable) == (1000, "none", True)
        assert host.limits.list()[0].to_json()["state"] == "open"
        now = 1.0
        assert host.invoke_sync("t:shaky", {"works": False}).error.kind == "UPSTREAM_ERROR"
        assert host.invoke_sync("t:shaky", {"works": True}).error.kind == "CIRCUIT_OPEN"
        now = 2.0
        assert host.invoke_sync("t:shaky", {"works": True}).ok
        assert host.invoke_sync("t:shaky", {"works": True}).ok
        assert [e.data["state"] for e in events] == ["open", "half-open", "open", "half-open", "closed"]
        assert "CIRCUIT_OPEN" in {d.code for d in host.diagnostics}
    assert ran == [False, False, False, True, True]


def test_wrong_arguments_open_no_breaker(tmp_path: Path) -> None:
    @tool(limits={"breaker": {"failures": 1}})
    def strict(n: int) -> int:
        return n

    with host_of(tmp_path, [strict]) as host:
        assert host.invoke_sync("t:strict", {"n": "x"}).error.kind == "INPUT_SCHEMA_INVALID"
        assert host.invoke_sync("t:strict", {"n": 1}).ok


def test_an_answer_holds_for_its_caller_and_his_arguments(tmp_path: Path) -> None:
    ran: list[int] = []

    @tool(read_only=True, limits={"cache_ms": 60_000})
    def look(n: int = 1) -> dict[str, list[int]]:
        ran.append(n)
        return {"found": [n]}

    with host_of(tmp_path, [look]) as host:
        first = host.invoke_sync("t:look")
        first.value["found"].append(99)
        assert host.invoke_sync("t:look", {"n": 1}).value == {"found": [1]}
        host.invoke_sync("t:look", {"n": 2})
        host.invoke_sync("t:look", context=ANN)
        host.invoke_sync("t:look", context=CallContext(principal="user:ann", roles=frozenset({"admin"})))
    assert ran == [1, 2, 1, 1]


def test_equal_arguments_share_an_answer_in_whatever_order_they_are_written(tmp_path: Path) -> None:
    made: list[Any] = []
    cases: list[tuple[Any, Any, int]] = [
        ({"a": 1, "b": [{"c": 2, "d": 3}]}, {"b": [{"d": 3, "c": 2}], "a": 1}, 1),
        ([1, 2], [2, 1], 2),
        ({"a": 1}, {"a": True}, 2),
        ({"a": 1}, {"a": "1"}, 2),
    ]

    @tool(read_only=True, limits={"cache_ms": 60_000})
    def look(x: Any, case: int) -> int:
        made.append(x)
        return len(made)

    with host_of(tmp_path, [look]) as host:
        for case, (earlier, later, ran) in enumerate(cases):
            made.clear()
            answers = {host.invoke_sync("t:look", {"x": x, "case": case}).value for x in (earlier, later)}
            assert len(answers) == len(made) == ran, (earlier, later)


def test_an_answer_that_may_depend_on_the_context_is_not_shared(tmp_path: Path) -> None:
    others: list[dict[str, Any]] = [
        {"config": {"unit": {"name": "mm"}}},
        {"session_key": "two"},
        {"message_channel": "web"},
        {"agent_account_id": "two"},
        {"sandboxed": True},
    ]

    @tool(read_only=True, limits={"cache_ms": 60_000})
    def look(names: list[str], ctx: CallContext) -> dict[str, Any]:
        return {name: getattr(ctx, name) for name in names}

    plain = CallContext(principal="user:ann", config={"unit": {"name": "m"}})
    with host_of(tmp_path, [look]) as host:
        for other in others:
            special, asked = replace(plain, **other), {"names": list(other)}
            contexts = (plain, special, plain, special)
            answers = [host.invoke_sync("t:look", asked, context=context) for context in contexts]
            assert answers[0].value != answers[1].value == other
            assert [bool(answer.meta.get("cached")) for answer in answers] == [False, False, True, True], other


@pytest.mark.parametrize(
    ("place", "ran"),
    [({}, 1), ({"tools": {"t:look": {"cacheMs": 0}}}, 3), ({"tools": {"t:*": {"cacheMs": 0}}}, 3),
     ({"tools": {"t:*": {"cacheMs": 0}, "t:look": {"cacheMs": 60_000}}}, 1)],
)  # fmt: skip
def test_a_cached_answer_says_so_and_an_operator_can_turn_the_cache_off(tmp_path: Path, place: Any, ran: int) -> None:
    made: list[int] = []

    @tool(read_only=True, limits={"cache_ms": 60_000})
    def look() -> int:
        made.append(1)
        return 1

    with host_of(tmp_path, [look], place) as host:
        results = [host.invoke_sync("t:look") for _ in range(3)]
    assert len(made) == ran
    assert [result.meta.get("cached") for result in results] == [None] + [True if ran == 1 else None] * 2


async def turns() -> None:
    """Let all other tasks go on until they wait."""
    for _ in range(200):
        await asyncio.sleep(0)


class Oven:
    """Read-only tools that wait until they are released."""

    def __init__(self) -> None:
        self.ran = 0
        self.begun = asyncio.Event()
        self.released = asyncio.Event()

    async def _baked(self) -> None:
        self.ran += 1
        self.begun.set()
        await self.released.wait()

    @tool(read_only=True, limits={"cache_ms": 60_000})
    async def bread(self, n: int = 1) -> dict[str, int]:
        await self._baked()
        return {"n": n}

    @tool(read_only=True, limits={"cache_ms": 60_000})
    async def burnt(self, n: int = 1) -> int:
        await self._baked()
        raise UpstreamError("burnt")

    @tool(read_only=True, limits={"cache_ms": 60_000})
    async def huge(self, n: int = 1) -> str:
        await self._baked()
        return "x" * 10_000

    @tool(read_only=True)
    async def plain(self, n: int = 1) -> int:
        await self._baked()
        return n


@pytest.mark.parametrize(
    ("name", "others", "ran", "answer"),
    [
        ("bread", {"n": 1}, 1, {"n": 1}),
        ("bread", {"n": 2}, 2, {"n": 1}),
        ("burnt", {"n": 1}, 1, "UPSTREAM_ERROR"),
        ("huge", {"n": 1}, 20, "x" * 10_000),
        ("plain", {"n": 1}, 20, 1),
    ],
)
def test_equal_calls_at_the_same_time_run_once_where_the_answer_is_cached(
    tmp_path: Path, name: str, others: dict[str, int], ran: int, answer: Any
) -> None:
    async def main() -> None:
        oven = Oven()
        plugin = Plugin([oven.bread, oven.burnt, oven.huge, oven.plain], name="t")
        async with Tavern.open({"limits": {"cacheBytes": 40_000}}, home=tmp_path / "home", plugins=[plugin]) as host:
            calls = [asyncio.ensure_future(host.invoke(f"t:{name}", {"n": 1}))]
            await oven.begun.wait()
            calls += [asyncio.ensure_future(host.invoke(f"t:{name}", others)) for _ in range(19)]
            await turns()
            oven.released.set()
            results = await asyncio.gather(*calls)
            assert (results[0].error.kind if results[0].error else results[0].value) == answer
            assert oven.ran == ran
            assert len({result.call_id for result in results}) == 20
            if name == "bread":
                results[1].value["n"] = 7
                assert results[2].value == others
            if name == "burnt":  # a failure is for those who waited for it
                await host.invoke("t:burnt", {"n": 1})
                assert oven.ran == 2

    asyncio.run(main())


def test_when_the_call_that_others_wait_for_is_cancelled_one_of_them_makes_it(tmp_path: Path) -> None:
    async def main() -> None:
        oven = Oven()
        async with Tavern.open({}, home=tmp_path / "home", plugins=[Plugin([oven.bread], name="t")]) as host:
            first = asyncio.ensure_future(host.invoke("t:bread"))
            await oven.begun.wait()
            others = [asyncio.ensure_future(host.invoke("t:bread")) for _ in range(5)]
            await turns()
            oven.begun.clear()
            first.cancel()
            await oven.begun.wait()
            oven.released.set()
            assert [result.value for result in await asyncio.gather(*others)] == [{"n": 1}] * 5
            assert oven.ran == 2

    asyncio.run(main())


@pytest.mark.parametrize("how", ["another loop", "no loop"])
def test_a_call_does_not_wait_for_an_equal_one_on_an_event_loop_that_has_stopped(tmp_path: Path, how: str) -> None:
    ran: list[int] = []

    @tool(read_only=True, limits={"cache_ms": 60_000})
    async def look() -> int:
        ran.append(1)
        if len(ran) == 1:
            await asyncio.Event().wait()
        return len(ran)

    stopped = asyncio.new_event_loop()
    with Tavern.open({}, home=tmp_path / "home", plugins=[Plugin([look], name="t")]) as host:
        first = stopped.create_task(host.invoke("t:look"))
        stopped.run_until_complete(turns())
        assert ran == [1]
        for _ in range(2):
            result = host.invoke_sync("t:look") if how == "no loop" else asyncio.run(host.invoke("t:look"))
            assert result.value == 2
        first.cancel()
        stopped.run_until_complete(asyncio.gather(first, return_exceptions=True))
        stopped.close()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["reload", "disable and enable"])
def test_a_cached_answer_does_not_outlive_the_code_that_gave_it(tmp_path: Path, how: str) -> None:
    plugin = tmp_path / "plugins" / "shelf"
    plugin.mkdir(parents=True)
    (plugin / "plugin.yaml").write_text(
        "name: shelf\nversion: '1'\ntools: [{id: look, implementation: {type: python}}]\n", "utf-8"
    )
    code = """
from tavern_core import hookimpl, tool

@tool(read_only=True, limits={"cache_ms": 60_000})
def look() -> int:
    return NUMBER

@hookimpl
def tavern_register_tools():
    return [look]
"""
    (plugin / "__init__.py").write_text(code.replace("NUMBER", "1"), "utf-8")
    with Tavern.open({"plugins": {"roots": [str(tmp_path / "plugins")]}}, home=tmp_path / "home") as host:
        assert [host.invoke_sync("shelf:look").value for _ in range(2)] == [1, 1]
        (plugin / "__init__.py").write_text(code.replace("NUMBER", "2000"), "utf-8")
        if how == "reload":
            host.plugins.reload_sync("shelf")
        else:
            host.plugins.disable_sync("shelf")
            host.plugins.enable_sync("shelf")
        assert host.invoke_sync("shelf:look").value == 2000


def test_what_was_begun_before_a_setting_changed_is_not_cached(tmp_path: Path) -> None:
    async def main() -> None:
        oven = Oven()
        async with Tavern.open({}, home=tmp_path / "home", plugins=[Plugin([oven.bread], name="t")]) as host:
            first = asyncio.ensure_future(host.invoke("t:bread"))
            await oven.begun.wait()
            host._host.base.signals.answers.emit()
            oven.released.set()
            assert (await first).ok and (await host.invoke("t:bread")).ok
            assert (await host.invoke("t:bread")).meta["cached"]
            assert oven.ran == 2

    asyncio.run(main())


OF_ITS_CALLER: dict[str, tuple[Any, Any]] = {
    "session_key": ("a", "b"), "message_channel": ("a", "b"), "agent_account_id": ("a", "b"), "agent_id": ("a", "b"),
    "sandboxed": (True, False), "config": ({"a": 1}, {"a": 2}), "user_id": ("a", "b"), "roles": ({"a"}, {"b"}),
}  # fmt: skip


def test_a_cached_answer_is_of_one_caller_session_and_configuration(tmp_path: Path) -> None:
    ran: list[Any] = []

    @tool(read_only=True, limits={"cache_ms": 60_000})
    def look(field: str, call: ToolCall) -> str:
        ran.append(call)
        return str(getattr(call.context, field))

    with Tavern.open({}, home=tmp_path / "home", plugins=[Plugin([look], name="t")]) as host:
        for field, values in OF_ITS_CALLER.items():
            ran.clear()
            for value in values * 2:
                context = CallContext(**{field: value})
                answer = host.invoke_sync("t:look", {"field": field}, context=context)
                assert answer.value == str(getattr(context, field)), field
            assert len(ran) == 2, field


def test_a_caller_that_is_only_called_host_gets_no_cached_answer_of_the_host(tmp_path: Path) -> None:
    ran: list[str] = []

    @tool(read_only=True, limits={"cache_ms": 60_000})
    def look(call: ToolCall) -> str:
        ran.append("host" if call.context.is_host else "caller")
        return ran[-1]

    with Tavern.open({}, home=tmp_path / "home", plugins=[Plugin([look], name="t")]) as host:
        for _ in range(2):
            assert host.invoke_sync("t:look").value == "host"
            assert host.invoke_sync("t:look", context=CallContext(principal="host")).value == "caller"
    assert ran == ["host", "caller"]


def test_an_error_because_of_the_budget_of_a_caller_is_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        @tool
        def part() -> int:
            return 1

        @tool(read_only=True, limits={"cache_ms": 60_000})
        async def whole(call: ToolCall) -> Any:
            await turns()
            return (await host.invoke("t:part", context=call.context)).unwrap()

        async with Tavern.open({}, home=tmp_path / "home", plugins=[Plugin([part, whole], name="t")]) as host:
            poor, rich = CallContext(budget=Budget(max_tool_calls=1)), CallContext()
            first = asyncio.ensure_future(host.invoke("t:whole", context=poor))
            await asyncio.sleep(0)
            second = asyncio.ensure_future(host.invoke("t:whole", context=rich))
            failed = await first
            assert failed.error is not None and failed.error.kind == "BUDGET_EXCEEDED"
            assert (await second).value == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("config", "budget", "limit", "most"),
    [({}, Budget(max_tool_calls=0), "budget.maxToolCalls", 0), ({"limits": {"depth": 2}}, Budget(), "limits.depth", 2)],
)
def test_a_call_that_is_over_a_budget_says_which_and_how_much_it_is(
    tmp_path: Path, config: dict[str, Any], budget: Budget, limit: str, most: int
) -> None:
    @tool
    def again() -> Any:
        return host.invoke_sync("t:again").unwrap()

    with Tavern.open(config, home=tmp_path, plugins=[Plugin([again], name="t")]) as host:
        error = host.invoke_sync("t:again", context=CallContext(budget=budget)).error
    while error is not None and "error" in error.details:
        error = error.details["error"]
    assert error is not None
    assert (error.kind, error.details["limit"], error.details["most"]) == ("BUDGET_EXCEEDED", limit, most)


def test_a_call_within_a_call_that_has_a_place_waits_for_no_equal_call(tmp_path: Path) -> None:
    async def main() -> None:
        held = asyncio.Event()

        @tool(read_only=True, limits={"cache_ms": 60_000})
        async def look() -> int:
            return 1

        @tool(read_only=True)
        async def outer() -> Any:
            held.set()
            await turns()  # the call of the other now waits for the only place
            return (await host.invoke("t:look")).value

        config = {"limits": {"plugins": {"t": {"concurrency": 1}}}}
        async with Tavern.open(config, home=tmp_path / "home", plugins=[Plugin([look, outer], name="t")]) as host:
            first = asyncio.ensure_future(host.invoke("t:outer"))
            await held.wait()
            second = asyncio.ensure_future(host.invoke("t:look"))
            results = await asyncio.wait_for(asyncio.gather(first, second), 20)
            assert [result.value for result in results] == [1, 1]

    asyncio.run(main())


def test_of_two_calls_that_would_wait_for_each_others_places_one_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        both = asyncio.Barrier(2)

        def calling(own: str, other: str) -> Plugin:
            @tool
            async def go(deep: bool = False) -> Any:
                if deep:
                    return "done"
                await both.wait()
                result = await host.invoke(f"{other}:go", {"deep": True})
                return (result.error.kind, result.error.retryable, result.error.outcome) if result.error else "done"

            return Plugin([go], name=own)

        config = {"limits": {"plugins": {"a": {"concurrency": 1}, "b": {"concurrency": 1}}}}
        plugins = [calling("a", "b"), calling("b", "a")]
        async with Tavern.open(config, home=tmp_path / "home", plugins=plugins) as host:
            calls = host.invoke("a:go"), host.invoke("b:go")
            results = await asyncio.wait_for(asyncio.gather(*calls), 20)
            assert sorted(str(result.value) for result in results) == ["['BUDGET_EXCEEDED', True, 'none']", "done"]
            again = await asyncio.wait_for(host.invoke("a:go", {"deep": True}), 20)
            assert again.value == "done"

    asyncio.run(main())


def test_a_call_that_has_a_place_waits_for_no_key_of_a_call_that_waits_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        begun, ran = asyncio.Event(), []

        @tool
        async def pay() -> int:
            ran.append(1)
            return 1

        @tool
        async def outer() -> Any:
            begun.set()
            await turns()  # the call of the other has the key and waits for the only place
            return (await host.invoke("t:pay", idempotency_key="k")).error

        config = {"limits": {"plugins": {"t": {"concurrency": 1}}}}
        async with Tavern.open(config, home=tmp_path / "home", plugins=[Plugin([pay, outer], name="t")]) as host:
            first = asyncio.ensure_future(host.invoke("t:outer"))
            await begun.wait()
            second = asyncio.ensure_future(host.invoke("t:pay", idempotency_key="k"))
            refused, paid = await asyncio.wait_for(asyncio.gather(first, second), 20)
            assert (refused.value["kind"], refused.value["retryable"]) == ("BUDGET_EXCEEDED", True)
            assert "without end" in refused.value["message"] and "concurrency" in refused.value["fix"]
            again = await host.invoke("t:pay", idempotency_key="k")
            assert (paid.value, again.value, ran) == (1, 1, [1])

    asyncio.run(main())


def test_answers_of_a_tool_that_may_change_something_are_not_kept(tmp_path: Path) -> None:
    ran: list[int] = []

    @tool(limits={"cache_ms": 60_000})
    def write() -> int:
        ran.append(1)
        return 1

    with host_of(tmp_path, [write]) as host:
        host.invoke_sync("t:write")
        host.invoke_sync("t:write")
        assert "CACHE_IGNORED" in {d.code for d in host.diagnostics}
    assert len(ran) == 2


def test_failures_are_not_kept_and_old_answers_make_room(tmp_path: Path) -> None:
    ran: list[int] = []

    @tool(read_only=True, limits={"cache_ms": 60_000})
    def look(n: int) -> str:
        ran.append(n)
        if n < 0:
            raise UpstreamError("away")
        return "x" * 1000

    with host_of(tmp_path, [look], {"cacheBytes": 20_000}) as host:
        for n in (-1, -1, *range(30), 29, 0):
            host.invoke_sync("t:look", {"n": n})
        assert host.limits._table.cache.bytes <= 20_000
    assert ran == [-1, -1, *range(30), 0]


def test_a_changed_setting_makes_answers_old(tmp_path: Path) -> None:
    ran: list[int] = []

    @tool(read_only=True, limits={"cache_ms": 60_000})
    def look() -> int:
        ran.append(1)
        return 1

    manifest = {"configOptions": [{"key": "extensions.t.unit", "type": "string", "default": "a", "label": "Unit"}]}
    plugin = Plugin([look], name="t", manifest=manifest)
    with Tavern.open({}, home=tmp_path / "home", plugins=[plugin]) as host:
        host.invoke_sync("t:look")
        host.invoke_sync("t:look")
        assert len(ran) == 1
        host.settings.save({"extensions.t.unit": "b"})
        host.invoke_sync("t:look")
    assert len(ran) == 2


def test_retries_wait_and_end_with_the_deadline(tmp_path: Path) -> None:
    ran: list[int] = []

    @tool(limits={"retries": 20})
    def away() -> int:
        ran.append(1)
        raise UpstreamError("away", retry_after_ms=1 if len(ran) < 3 else 60_000)

    with host_of(tmp_path, [away]) as host:
        events: list[Any] = []
        host.events.subscribe(events.append, "RETRY")
        caller = CallContext(budget=Budget(timeout_ms=5_000))
        assert host.invoke_sync("t:away", context=caller).error.kind == "UPSTREAM_ERROR"
    assert len(ran) == 3
    assert [e.data["attempt"] for e in events] == [2, 3]


def test_a_call_without_a_deadline_does_not_wait_for_as_long_as_an_upstream_likes(tmp_path: Path) -> None:
    @tool(limits={"retries": 1})
    def away() -> int:
        raise UpstreamError("away", retry_after_ms=86_400_000)

    with host_of(tmp_path, [away]) as host:
        error = host.invoke_sync("t:away").error
    assert error is not None
    assert (error.kind, error.retry_after_ms) == ("UPSTREAM_ERROR", 86_400_000)


@pytest.mark.parametrize("outcome", ["none", "unknown"])
def test_a_call_that_is_cancelled_between_two_attempts_has_the_outcome_of_the_first(
    tmp_path: Path, outcome: Any
) -> None:
    ran: list[int] = []

    @tool(idempotent=outcome == "unknown", limits={"retries": 1})
    async def away() -> int:
        ran.append(1)
        raise UpstreamError("away", retryable=True, outcome=outcome, retry_after_ms=60_000)

    with host_of(tmp_path, [away]) as host:
        waiting: list[str] = []
        host.events.subscribe(lambda event: waiting.append(event.call_id), "RETRY")

        async def cancelled() -> Any:
            call = asyncio.ensure_future(host.invoke("t:away", idempotency_key="k"))
            while not waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            assert host.cancel(waiting.pop())
            return (await call).error

        for count in (1, 2):  # the key is free again
            error = asyncio.run(cancelled())
            assert (error.kind, error.outcome, len(ran)) == ("CANCELLED", outcome, count)


@pytest.mark.parametrize(
    ("limits", "second", "kind"),
    [
        ({"rate": "1/minute"}, None, "BUDGET_EXCEEDED"),
        ({"breaker": {"failures": 1, "restMs": 60_000}}, None, "CIRCUIT_OPEN"),
        ({}, ToolFailed("no"), "TOOL_ERROR"),
        ({}, ToolResult(False, error=ToolError("TOOL_ERROR", "no", outcome="none")), "TOOL_ERROR"),
    ],
)
def test_what_an_attempt_may_have_done_stays_the_outcome_of_the_call(
    tmp_path: Path, limits: dict[str, Any], second: Any, kind: str
) -> None:
    ran: list[int] = []

    @tool(idempotent=True)
    def pay() -> Any:
        ran.append(1)
        if len(ran) == 1:
            raise UpstreamError("the answer was lost", outcome="unknown", retryable=True)
        if isinstance(second, Exception):
            raise second
        return second

    with host_of(tmp_path, [pay], {"retries": 1, "tools": {"t:pay": limits}}) as host:
        error = host.invoke_sync("t:pay").error
    assert (error.kind, error.outcome, len(ran)) == (kind, "unknown", 1 if second is None else 2)


def test_any_number_of_callers_leaves_bounded_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tavern_core.kernel.limits.limiter_registry._MOST_CALLERS", 20)
    config = {"limits": {"callers": {"*": {"concurrency": 2}}}, "metrics": {"enabled": True}}
    with Tavern.open(config, home=tmp_path / "home", plugins=[Plugin([ping], name="t")]) as host:
        for number in range(100):
            assert host.invoke_sync("t:ping", context=CallContext(principal=f"user:{number}")).ok
        assert len(host.metrics._table._slots) <= 21
        text = host.metrics.text()
    assert 'tool_concurrency_running{limit="limits.callers.*"} 0.0' in text
    assert "user:" not in text


RETRIES = [
    # outcome, retryable, idempotent, destructive, tries
    ("none", True, False, False, 3),
    ("none", True, False, True, 3),
    ("unknown", True, False, False, 1),
    ("unknown", True, True, False, 3),
    ("unknown", True, False, True, 1),
    ("done", True, True, False, 1),
]


@pytest.mark.slow
def test_only_what_can_do_nothing_twice_is_tried_again(tmp_path: Path) -> None:
    ran: list[str] = []

    def failing(name: str, outcome: Any, retryable: bool, idempotent: bool, destructive: bool, tries: int) -> Any:
        needs = ["danger:destructive"] if destructive else []

        @tool(name=name, idempotent=idempotent, destructive=destructive, capabilities=needs)
        def fails() -> int:
            ran.append(name)
            raise UpstreamError("x", outcome=outcome, retryable=retryable, retry_after_ms=1)

        return fails

    tools = [failing(f"fails{number}", *case) for number, case in enumerate(RETRIES)]
    plugin = Plugin(tools, name="t", manifest={"permissions": {"capabilities": ["danger:destructive"]}})
    with Tavern.open({}, home=tmp_path / "home", plugins=[plugin]) as host:
        for number, case in enumerate(RETRIES):
            needs = frozenset(["danger:destructive"] if case[3] else [])
            context = CallContext(permissions=needs, budget=Budget(max_retries=2))
            host.invoke_sync(f"t:fails{number}", context=context)
            assert ran.count(f"fails{number}") == case[-1], case


def test_a_try_does_not_see_what_an_earlier_one_did_to_its_arguments(tmp_path: Path) -> None:
    seen: list[list[int]] = []

    @tool(idempotent=True)
    def eat(items: list[int]) -> int:
        seen.append(list(items))
        items.clear()
        if len(seen) < 2:
            raise UpstreamError("away", retry_after_ms=1)
        return 1

    with host_of(tmp_path, [eat], {"retries": 1}) as host:
        assert host.invoke_sync("t:eat", {"items": [1, 2]}).ok
    assert seen == [[1, 2], [1, 2]]


@pytest.mark.parametrize(
    ("callers", "rate", "places"),
    [
        ({}, "", ""),
        ({"*": {"rate": "8/s"}}, ", 8/s (limits.callers.*)", ""),
        (
            {"*": {"rate": "8/s"}, "role:batch": {"concurrency": 1}},
            ", 8/s (limits.callers.*)",
            ", 1 at a time, 100 may wait (limits.callers.role:batch)",
        ),
    ],
)
def test_limits_of_a_tool_file_and_of_the_configuration_are_steps_of_its_plan(
    tmp_path: Path, callers: dict[str, Any], rate: str, places: str
) -> None:
    @tool(read_only=True, limits={"rate": "5/s", "cache_ms": 1000, "breaker": {}, "attempt_ms": 400, "idle_ms": 500})
    def busy() -> int:
        return 1

    limits = {"tools": {"busy": {"rate": "9/s", "concurrency": 3, "queue": 7, "retries": 2}}, "callers": callers}
    with host_of(tmp_path, [busy], limits) as host:
        steps = [step.name for step in host.tool_plan("t:busy")]
        words = {step.name: step.does for step in host.tool_plan("t:busy")}
    at = steps.index("execute")
    assert steps[at - 6 : at] == ["result_cache", "retry", "breaker", "rate", "concurrency", "deadlines"]
    assert words["deadlines"] == "ends an attempt after 0.4 s and what says nothing for 0.5 s"
    assert words["rate"] == f"9/s (limits.tools.busy){rate}"
    assert words["concurrency"] == f"3 at a time, 7 may wait (limits.tools.busy){places}"


@pytest.mark.slow
def test_the_command_line_shows_limits_and_what_is_used(tmp_path: Path) -> None:
    folder = tmp_path / "plugins" / "echo"
    folder.mkdir(parents=True)
    limits = {"rate": "3/hour", "concurrency": 1, "breaker": {"failures": 4}, "attemptMs": 500_000, "inlineMs": 20_000}
    (folder / "plugin.yaml").write_text("name: echo\nversion: '1'\ntools: {entry: ./tools}\n", encoding="utf-8")
    (folder / "tools").mkdir()
    (folder / "tools" / "say.tool.json").write_text(
        json.dumps(
            {
                "id": "say", "description": "d", "limits": limits, "parameters": {"type": "object", "properties": {}},
                "implementation": {"type": "script", "command": ["python", "say.py"]},
            }
        ),
        encoding="utf-8",
    )  # fmt: skip
    (folder / "say.py").write_text("print('{\"ok\": true}')", encoding="utf-8")
    (tmp_path / "tavern.yaml").write_text(
        "isolation: {level: none}\nlimits: {callers: {'*': {rate: 9/s}}}\n", encoding="utf-8"
    )

    def tavern(*words: str) -> subprocess.CompletedProcess[str]:
        return programs.tavern(*words, cwd=tmp_path, home=tmp_path / "home")

    assert tavern("tools", "call", "echo:say").returncode == 0
    shown = json.loads(tavern("limits", "--json").stdout)
    assert [(row["place"], row["rate"], row["used"]) for row in shown] == [
        ("limits.callers.*", "9/s", None), ("the tool echo:say", "3/hour", 1),
    ]  # fmt: skip
    shown_row = tavern("limits").stdout.split("\n")[-2]
    assert "3/hour" in shown_row
    assert "attempt 500 s, job after 20 s" in shown_row
    codes = [tavern("tools", "call", "echo:say").returncode for _ in range(3)]
    assert codes == [0, 0, 1]


class SlotsAsAModel(RuleBasedStateMachine):
    """Places beside what they must be: never more than there are, nobody forgotten, callers in turn."""

    displaces = False

    def __init__(self) -> None:
        super().__init__()
        self.slots = Slots(2, 4, displaces=self.displaces)
        self.inside = 0
        self.waiting: list[tuple[str, Any]] = []

    @rule(caller=st.sampled_from("abc"))
    def enter(self, caller: str) -> None:
        try:
            place = self.slots.enter(caller)
        except QueueFull:
            assert len([1 for _, p in self.waiting if not p.done()]) >= 4
            if self.displaces:
                lines = Counter(one for one, _ in self.waiting)
                assert max(lines.values()) <= lines[caller] + 1
            return
        self.waiting = [entry for entry in self.waiting if not (entry[1].done() and entry[1].exception())]
        if place is None:
            self.inside += 1
        else:
            self.waiting.append((caller, place))

    @precondition(lambda self: self.inside)
    @rule()
    def leave(self) -> None:
        self.slots.leave()
        self.inside -= 1
        self.collect()

    @precondition(lambda self: self.waiting)
    @rule(at=st.integers(0, 10))
    def give_up(self, at: int) -> None:
        caller, place = self.waiting.pop(at % len(self.waiting))
        self.slots.give_up(caller, place)
        self.collect()

    def collect(self) -> None:
        done = [entry for entry in self.waiting if entry[1].done()]
        self.waiting = [entry for entry in self.waiting if not entry[1].done()]
        self.inside += len(done)

    @invariant()
    def adds_up(self) -> None:
        assert self.slots.taken == self.inside <= 2
        assert self.slots.waiting == len(self.waiting)
        assert self.inside == 2 or not self.waiting


class BreakerAsAModel(RuleBasedStateMachine):
    """A breaker beside the rule: so many failures in a row open it, and one call at a time tries after the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.breaker = CircuitBreaker(Breaker(3, 1000), clock=lambda: self.now)
        self.in_a_row = 0
        self.open_until = 0.0
        self.running: list[object] = []
        self.trial: object = None

    @rule()
    def begin(self) -> None:
        call = object()
        state = self.breaker.state
        left = self.breaker.enter(call)
        if self.open_until > self.now:
            assert left == pytest.approx(self.open_until - self.now)
        elif state == "half-open" and self.trial in self.running:
            assert left == 1.0
        else:
            assert left is None
            self.running.append(call)
            self.trial = call if state == "half-open" else self.trial

    @precondition(lambda self: self.running)
    @rule(data=st.data(), failed=st.sampled_from([True, False, None]))
    def end(self, data: st.DataObject, failed: bool | None) -> None:
        call = data.draw(st.sampled_from(self.running))
        self.running.remove(call)
        before = self.breaker.state if self.open_until <= self.now else "open"
        self.breaker.leave(call, failed)
        if failed:
            self.in_a_row += 1
            if before == "half-open" or self.in_a_row >= 3:
                self.open_until = self.now + 1.0
        elif failed is False and self.breaker.state == "closed":
            self.in_a_row = 0

    @rule(seconds=st.floats(0, 1.5))
    def wait(self, seconds: float) -> None:
        self.now += seconds


class DisplacingSlotsAsAModel(SlotsAsAModel):
    displaces = True


DisplacingSlotsAsAModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestDisplacingSlots = pytest.mark.slow(DisplacingSlotsAsAModel.TestCase)
SlotsAsAModel.TestCase.settings = BreakerAsAModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestSlots = pytest.mark.slow(SlotsAsAModel.TestCase)
TestBreaker = pytest.mark.slow(BreakerAsAModel.TestCase)


def test_callers_take_turns() -> None:
    slots = Slots(1, 10)
    slots.enter("greedy")
    order: list[str] = []
    for caller in ("greedy", "greedy", "greedy", "modest"):
        place = slots.enter(caller)
        assert place is not None
        place.add_done_callback(lambda _, who=caller: order.append(who))
    for _ in range(4):
        slots.leave()
    assert order == ["greedy", "modest", "greedy", "greedy"]


def test_limits_survive_json() -> None:
    limits = ToolLimits("5/s", 2, 3, 4, 5, Breaker(6, 7), 8, 9, 10)
    assert ToolLimits.from_json(limits.to_json()) == limits


# The same rule in workflows and texts ---------------------------------------------------------------------------------


def test_nodes_are_tried_again_by_the_rule_of_calls(tmp_path: Path) -> None:
    ran: list[str] = []
    cases: list[tuple[dict[str, Any], Exception, int]] = [
        ({}, RuntimeError("x"), 3),
        ({"capabilities": ["read:web"]}, RuntimeError("x"), 3),
        ({"capabilities": ["write:fs"]}, RuntimeError("x"), 1),
        ({"capabilities": ["write:fs"], "idempotent": True}, RuntimeError("x"), 3),
        ({"capabilities": ["write:fs"]}, UpstreamError("x", outcome="none"), 3),
        ({}, UpstreamError("x", outcome="unknown"), 1),
        ({"cache": True}, UpstreamError("x", outcome="unknown"), 3),
        ({"idempotent": True}, UpstreamError("x", outcome="done"), 1),
    ]

    def failing(name: str, options: dict[str, Any], error: Exception) -> Any:
        @node(name, **options)
        def fails() -> int:
            ran.append(name)
            raise error

        return fails

    class Nodes:
        @hookimpl
        def tavern_register_nodes(self) -> list[Any]:
            return [failing(f"Fails{number}", *case[:2]) for number, case in enumerate(cases)]

    named = [{"name": f"Fails{number}"} for number in range(len(cases))]
    manifest = {"nodes": named, "permissions": {"capabilities": ["read:web", "write:fs"]}}
    with Tavern.open({}, home=tmp_path / "home", plugins=[Plugin(Nodes(), name="n", manifest=manifest)]) as host:
        for number, case in enumerate(cases):
            failing_node = {"id": "a", "type": f"n:Fails{number}", "configValues": {"$exec": {"retry": 2}}}
            assert host.workflows.run_sync({"nodes": [failing_node], "edges": []}).state == "error", case
            assert ran.count(f"Fails{number}") == case[-1], case


def calling(name: str, **settings: Any) -> dict[str, Any]:
    """A workflow that calls a tool, with these settings of its node."""
    node = {"id": "a", "type": "core:CallTool", "inputValues": {"tool": name}, "configValues": {"$exec": settings}}
    return {"nodes": [node], "edges": []}


def test_a_node_that_calls_a_tool_is_tried_again_as_its_tool_says(tmp_path: Path) -> None:
    ran: list[str] = []
    cases: list[tuple[dict[str, Any], Any, int]] = [
        ({}, "none", 3),
        ({}, "unknown", 1),
        ({"idempotent": True}, "unknown", 3),
        ({"read_only": True}, "unknown", 3),
        ({"idempotent": True}, "done", 1),
    ]

    def failing(name: str, options: dict[str, Any], outcome: Any) -> Any:
        @tool(name=name, **options)
        def away() -> int:
            ran.append(name)
            raise UpstreamError("away", outcome=outcome)

        return away

    with host_of(tmp_path, [failing(f"away{number}", *case[:2]) for number, case in enumerate(cases)]) as host:
        for number, case in enumerate(cases):
            error = host.workflows.run_sync(calling(f"t:away{number}", retry=2)).errors[0]
            assert (error.message, ran.count(f"away{number}")) == (f"t:away{number}: away", case[-1]), case


def test_a_call_that_takes_longer_than_its_node_may_is_a_timeout(tmp_path: Path) -> None:
    ran: list[str] = []
    cases: list[tuple[dict[str, Any], int]] = [({}, 1), ({"idempotent": True}, 3), ({"read_only": True}, 3)]

    def taking(name: str, options: dict[str, Any]) -> Any:
        @tool(name=name, **options)
        async def slow() -> None:
            ran.append(name)
            await asyncio.sleep(3600)

        return slow

    with host_of(tmp_path, [taking(f"slow{number}", options) for number, (options, _) in enumerate(cases)]) as host:
        for number, (options, tries) in enumerate(cases):
            error = host.workflows.run_sync(calling(f"t:slow{number}", retry=2, timeoutMs=20)).errors[0]
            assert (error.kind, error.message) == ("TIMEOUT", "not ready after 20 ms ($exec.timeoutMs)"), options
            assert ran.count(f"slow{number}") == tries, options


def test_a_node_is_repeated_at_most_as_often_as_the_caller_allows(tmp_path: Path) -> None:
    ran: list[int] = []

    @node("t:Fails")
    async def fails() -> Out(y=int):
        ran.append(1)
        raise ConnectionError("x")

    class Nodes:
        @hookimpl
        def tavern_register_nodes(self) -> list[Any]:
            return [fails]

    workflow = {"nodes": [{"id": "a", "type": "t:Fails", "configValues": {"$exec": {"retry": 3}}}], "edges": []}
    with Tavern.open(home=tmp_path, plugins=[Plugin(Nodes(), name="t")]) as host:
        for allowed, tries in ((None, 4), (0, 1), (2, 3), (9, 4)):
            ran.clear()
            host.workflows.run_sync(workflow, context=CallContext(budget=Budget(max_retries=allowed)))
            assert len(ran) == tries, allowed


@pytest.mark.slow
def test_texts_try_again_by_the_rule_of_calls(tmp_path: Path) -> None:
    ran: list[str] = []
    cases: list[tuple[Any, bool, int]] = [("none", False, 3), ("unknown", False, 1), ("unknown", True, 3)]

    def failing(name: str, outcome: Any, idempotent: bool) -> Any:
        @tool(name=name, idempotent=idempotent)
        def fails() -> int:
            ran.append(name)
            raise UpstreamError("x", outcome=outcome)

        return fails

    with host_of(tmp_path, [failing(f"fails{number}", *case[:2]) for number, case in enumerate(cases)]) as host:
        for number, case in enumerate(cases):
            text = f"<|[REQUEST_TOOL]|>\ncommand_1:»»»t:fails{number}«««\nretry_1:»»»2«««\n<|[END_TOOL]|>"
            host.run_text_sync(text, context=CallContext(budget=Budget(max_retries=5)))
            assert ran.count(f"fails{number}") == case[-1], case


# Deadlines of a try, and of saying nothing ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_try_has_a_deadline_of_its_own(tmp_path: Path) -> None:
    ran: list[int] = []

    @tool(idempotent=True, limits={"attempt_ms": 30, "retries": 2})
    async def slow() -> int:
        ran.append(1)
        await asyncio.sleep(0.001 if len(ran) == 3 else 60)
        return len(ran)

    with host_of(tmp_path, [slow]) as host:
        assert host.invoke_sync("t:slow").value == 3
        ran.clear()
        late = host.invoke_sync("t:slow", context=CallContext(budget=Budget(max_retries=0)))
    assert late.error is not None
    assert (late.error.kind, late.error.details["limit"]) == ("TIMEOUT", "attemptMs of the tool")


@pytest.mark.parametrize("answer", [ValueError("the connection was closed"), None])
@pytest.mark.parametrize("limit", ["attempt_ms", "idle_ms"])
@pytest.mark.parametrize("door", ["loop", "sync"])
def test_a_tool_that_answers_the_end_of_its_time_itself_is_a_timeout(
    tmp_path: Path, door: str, limit: str, answer: Exception | None
) -> None:
    @tool(limits={limit: 10})
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if answer is not None:
                raise answer from None

    async def called(host: Tavern) -> Any:
        late, task = await host.invoke("t:slow"), asyncio.current_task()
        assert task is not None and task.cancelling() == 0
        return late

    with host_of(tmp_path, [slow]) as host:
        late = host.invoke_sync("t:slow") if door == "sync" else asyncio.run(called(host))
    assert late.error is not None
    assert (late.error.kind, late.error.outcome, late.error.details["stopped"]) == ("TIMEOUT", "unknown", True)


@pytest.mark.slow
@pytest.mark.parametrize("door", ["loop", "sync"])
@pytest.mark.parametrize(("name", "stopped"), [("later", True), ("threaded", False), ("fast", False)])
def test_a_tool_that_says_nothing_for_too_long_is_ended(tmp_path: Path, door: str, name: str, stopped: bool) -> None:
    from tavern_core import ToolContext

    ends = threading.Event()

    async def task(ctx: ToolContext, steps: int) -> int:
        for step in range(steps):
            ctx.progress(step)
            await asyncio.sleep(0.05)
        await asyncio.sleep(0 if steps else 60)
        return steps

    def thread(ctx: ToolContext, steps: int) -> int:
        for step in range(steps):
            ctx.progress(step)
            time.sleep(0.05)
        assert steps or ends.wait(60)
        return steps

    function: Callable[..., Any] = task if stopped else thread
    busy = tool(name="busy", limits={"idle_ms": 150}, fast=name == "fast")(function)

    def by_hand(host: Tavern) -> Any:
        return host.invoke_sync("t:busy", {"steps": 6}), host.invoke_sync("t:busy", {"steps": 0})

    async def both(host: Tavern) -> Any:
        fine = await host.invoke("t:busy", {"steps": 6})
        late = await host.invoke("t:busy", {"steps": 0})
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
        return fine, late

    with host_of(tmp_path, [busy]) as host:
        fine, late = by_hand(host) if door == "sync" else asyncio.run(both(host))
        ends.set()
    assert fine.value == 6
    assert (late.error.kind, late.error.details["limit"], late.error.details["stopped"]) == (
        "TIMEOUT", "idleMs of the tool", stopped,
    )  # fmt: skip


def test_a_tool_that_never_says_anything_is_ended_by_the_limit_that_it_has(tmp_path: Path) -> None:
    @tool(limits={"idle_ms": 5})
    async def silent() -> None:
        await asyncio.Event().wait()

    with host_of(tmp_path, [silent]) as host:
        error = host.invoke_sync("t:silent").error
    assert (error.kind, error.details["limit"], error.details["timeoutMs"]) == ("TIMEOUT", "idleMs of the tool", 5)


@pytest.mark.parametrize(("capability", "tries"), [("read:web", 3), ("write:fs", 1)])
def test_a_group_is_tried_again_only_if_nothing_in_it_changes_anything(
    tmp_path: Path, capability: str, tries: int
) -> None:
    from tavern_core import hookimpl, node

    ran: list[int] = []

    class Nodes:
        @hookimpl
        def tavern_register_nodes(self) -> list[Any]:
            @node("Acts", capabilities=[capability])
            def acts() -> int:
                ran.append(1)
                return 1

            @node("Fails")
            def fails(after: int) -> int:
                raise RuntimeError("x")

            return [acts, fails]

    manifest = {"nodes": [{"name": "Acts"}, {"name": "Fails"}], "permissions": {"capabilities": [capability]}}
    inner = {
        "nodes": [{"id": "a", "type": "n:Acts"}, {"id": "f", "type": "n:Fails"}],
        "edges": [{"id": "e", "source": "a", "target": "f", "targetHandle": "after"}],
    }
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "inner.json").write_text(json.dumps(inner), encoding="utf-8")
    group = {
        "id": "g", "type": "core:NodeGroup", "data": {"referencedWorkflowId": "inner"}, "configValues": {"$exec": {"retry": 2}},
    }  # fmt: skip
    config = {"workflows": {"roots": [str(tmp_path / "flows")], "asTools": False}}
    with Tavern.open(config, home=tmp_path / "home", plugins=[Plugin(Nodes(), name="n", manifest=manifest)]) as host:
        result = host.workflows.run_sync({"nodes": [group], "edges": []})
    assert result.state == "error"
    assert len(ran) == tries


# Upstreams, and all limits together -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "first", "kind", "place"),
    [
        ({"rate": "1/hour"}, {}, "BUDGET_EXCEEDED", "rate"),
        ({"breaker": {"failures": 1}}, {"fails": True}, "CIRCUIT_OPEN", "breaker"),
    ],
)
def test_tools_behind_one_upstream_share_its_limits(
    tmp_path: Path, limit: dict[str, Any], first: dict[str, Any], kind: str, place: str
) -> None:
    def far(fails: bool = False) -> int:
        if fails:
            raise UpstreamError("away")
        return 1

    with host_of(tmp_path, [ping], {"upstreams": {"api.example.org": limit}}) as host:
        ends = (("a", "https://API.example.org/a"), ("b", "https://api.example.org/b?x"), ("c", "http://other:1/"))
        schema = {"type": "object", "properties": {"fails": {"type": "boolean"}}}
        host.tools.register(
            *({"name": name, "endpoint": end, "impl": far, "inputSchema": schema} for name, end in ends)
        )
        host.invoke_sync("app:a", first)
        error = host.invoke_sync("app:b").error
        assert error is not None
        assert (error.kind, error.details["limit"]) == (kind, f"limits.upstreams.api.example.org.{place}")
        assert error.retry_after_ms
        assert host.invoke_sync("app:c").ok


def test_a_breaker_of_a_tool_stops_no_other_tool_of_its_upstream_and_one_of_the_upstream_stops_both(
    tmp_path: Path,
) -> None:
    def far(fails: bool = False) -> int:
        if fails:
            raise UpstreamError("away")
        return 1

    limits = {
        "tools": {"app:a": {"breaker": {"failures": 1}}, "app:b": {"breaker": {"failures": 2}}},
        "upstreams": {"example.org": {"breaker": {"failures": 3}}},
    }
    schema = {"type": "object", "properties": {"fails": {"type": "boolean"}}}
    own = {"endpoint": "https://example.org/", "impl": far, "inputSchema": schema}

    def called(host: Tavern, name: str, fails: bool = False) -> Any:
        error = host.invoke_sync(f"app:{name}", {"fails": fails}).error
        return "ok" if error is None else error.details.get("limit", error.kind)

    with host_of(tmp_path, [ping], limits) as host:
        host.tools.register(*({"name": name, **own} for name in "abc"))
        assert called(host, "a", True) == "UPSTREAM_ERROR"
        assert (called(host, "a"), called(host, "b")) == ("limits.tools.app:a.breaker", "ok")
        assert [called(host, "b", True) for _ in range(3)] == [*["UPSTREAM_ERROR"] * 2, "limits.tools.app:b.breaker"]
        host.tools.register({"name": "d", **own})  # plans are made again; what is open stays open
        assert (called(host, "a"), called(host, "b")) == ("limits.tools.app:a.breaker", "limits.tools.app:b.breaker")
        assert called(host, "c", True) == "UPSTREAM_ERROR"  # the third in a row behind the upstream
        refused = host.invoke_sync("app:d").error
        assert refused is not None
        assert refused.message == "app:d is left alone: 3 calls in a row failed (limits.upstreams.example.org)"
        assert {limit.place: limit.breaker for limit in host.limits.list()} == {
            "limits.upstreams.example.org": "open", "limits.tools.app:a": "open", "limits.tools.app:b": "open",
        }  # fmt: skip


def test_an_answer_that_is_too_old_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    @tool(read_only=True, limits={"cache_ms": 60_000})
    def looks() -> int:
        ran.append(1)
        return len(ran)

    now = 0.0
    monkeypatch.setattr(result_cache, "time", SimpleNamespace(monotonic=lambda: now))
    with host_of(tmp_path, [looks]) as host:
        assert [host.invoke_sync("t:looks").value for _ in range(2)] == [1, 1]
        now = 61.0
        assert host.invoke_sync("t:looks").value == 2


class LimitsAsAModel(RuleBasedStateMachine):
    """Calls of a tool with a rate and a breaker, through the API and under a clock that we set, beside what must come of them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        self.real, time.time = time.time, lambda: self.now
        self.fails, self.ran = False, 0
        machine = self

        @tool(limits={"rate": "3/10seconds", "breaker": {"failures": 2, "rest_ms": 4_000}})
        def act() -> int:
            machine.ran += 1
            if machine.fails:
                raise UpstreamError("away")
            return 1

        config = {"state": {"store": "memory"}, "audit": {"enabled": False}}
        self.host = Tavern.open(config, plugins=[Plugin([act], name="t")])
        self.host.__enter__()
        self.host.limits._table.clock = lambda: self.now
        self.uses: list[float] = []
        self.in_a_row, self.open_until, self.is_trial = 0, 0.0, False

    @rule(fails=st.booleans())
    def call(self, fails: bool) -> None:
        self.fails, before = fails, self.ran
        error = self.host.invoke_sync("t:act").error
        kind = "ok" if error is None else error.kind
        if self.now < self.open_until:
            assert (kind, self.ran) == ("CIRCUIT_OPEN", before)
        elif len([at for at in self.uses if at > self.now - 10]) >= 3:
            assert (kind, self.ran) == ("BUDGET_EXCEEDED", before)
            assert error is not None
            assert error.retry_after_ms is not None
            assert 0 < error.retry_after_ms <= 10_000
        else:
            assert (kind, self.ran) == ("UPSTREAM_ERROR" if fails else "ok", before + 1)
            self.uses.append(self.now)
            self.in_a_row = self.in_a_row + 1 if fails else 0
            if fails and (self.is_trial or self.in_a_row >= 2):
                self.open_until, self.is_trial = self.now + 4, True
            elif not fails:
                self.is_trial = False

    @rule(seconds=st.integers(1, 6))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    def teardown(self) -> None:
        self.host.__exit__(None, None, None)
        time.time = self.real


LimitsAsAModel.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestLimitsAsAModel = pytest.mark.slow(LimitsAsAModel.TestCase)


def test_dry_runs_have_the_rates_of_calls_counted_apart(tmp_path: Path) -> None:
    looked: list[int] = []

    @tool(preview=lambda: looked.append(1), limits={"rate": "2/hour"})
    def clean() -> int:
        return 1

    @tool
    def other() -> int:
        return 1

    with host_of(tmp_path, [clean, other], {"callers": {"*": {"rate": "3/hour"}}}) as host:
        dry = [host.invoke_sync("t:clean", dry_run=True) for _ in range(3)]
        assert [result.ok for result in dry] == [True, True, False]
        assert dry[2].error is not None and dry[2].error.kind == "BUDGET_EXCEEDED"
        assert dry[2].error.details["limit"] == "the tool t:clean.rate" and dry[2].error.retry_after_ms
        assert len(looked) == 2
        assert [host.commit_sync(one.value["planToken"]).ok for one in dry[:2]] == [True, True]
        assert [host.invoke_sync("t:other", context=ANN, dry_run=True).ok for _ in range(4)] == [True] * 3 + [False]
        assert host.invoke_sync("t:other", context=ANN).ok
        assert host.invoke_sync("t:other", context=BOB, dry_run=True).ok


def test_a_preview_takes_a_place_of_its_tool(tmp_path: Path) -> None:
    inside, leave = threading.Event(), threading.Event()

    def looks() -> int:
        inside.set()
        assert leave.wait(10)
        return 1

    @tool(preview=looks, limits={"concurrency": 1, "queue": 0})
    def clean() -> int:
        return 1

    with host_of(tmp_path, [clean]) as host:
        first = threading.Thread(target=host.invoke_sync, args=("t:clean",), kwargs={"dry_run": True})
        first.start()
        assert inside.wait(10)
        for options in ({"dry_run": True}, {}):
            refused = host.invoke_sync("t:clean", **options).error
            assert refused is not None and refused.kind == "BUDGET_EXCEEDED"
        leave.set()
        first.join()
        assert host.invoke_sync("t:clean", dry_run=True).ok
