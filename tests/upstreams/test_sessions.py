"""Connections: opened on first use, shared, lost, opened again, closed; and what callers receive."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tavern_core import CallContext, Plugin, hookimpl
from tavern_core.contract.adapters import Connection, Upstream
from tavern_core.errors import ConnectionLost
from tavern_core.kernel.calls.elicitation import conversation
from tavern_core.upstreams import session
from tests.upstreams.toy import ECHO, INTEGER, System, ToyConnection, lost, opened


class HeldCall:
    """A call that the host's loop, which may be that of another thread, answers when the test says so."""

    def __init__(self) -> None:
        self.began = threading.Event()

    async def answer(self, *_: Any) -> str:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self.began.set()
        await self._end.wait()
        return "done"

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)


BOSS = CallContext(principal="user:boss", user_id="boss", roles=frozenset({"approver"}))


@contextmanager
def asked(person: Any) -> Iterator[None]:
    """Questions of calls within the block are put to `person`."""
    token = conversation.set(person)
    try:
        yield
    finally:
        conversation.reset(token)


def test_one_connection_serves_all_calls_and_closes_with_the_host(tmp_path: Path) -> None:
    system = System()
    with opened(system, tmp_path) as host:
        assert [host.invoke_sync("toy:echo", {"x": n}).value for n in range(5)] == [{"x": n} for n in range(5)]
        assert host.upstreams["toy"].state == "open"
    assert (system.connected, system.closed) == (1, 1)


@pytest.mark.slow
def test_calls_from_several_loops_and_threads_share_the_connection(tmp_path: Path) -> None:
    system = System()
    with opened(system, tmp_path) as host:
        found: list[Any] = []

        def loop() -> None:
            async def calls() -> None:
                found.extend(await asyncio.gather(*(host.invoke("toy:echo", {"x": n}) for n in range(10))))

            asyncio.run(calls())

        threads = [threading.Thread(target=loop) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(result.ok for result in found) and len(found) == 30
    assert system.connected == 1


@pytest.mark.parametrize("outcome", ["none", "unknown"])
def test_a_call_survives_a_lost_connection_only_where_it_had_not_begun(outcome: str, tmp_path: Path) -> None:
    system = System()
    broken = [True]

    def answer(tool: Any, arguments: Any, call: Any) -> Any:
        if broken.pop() if broken else False:
            raise lost(outcome)
        return "well"

    system.answer = answer
    with opened(system, tmp_path) as host:
        first = host.invoke_sync("toy:echo", {"x": 1})
        if outcome == "none":
            assert first.value == "well"
        else:
            assert first.error is not None and (first.error.kind, first.error.outcome) == ("CONNECTION_LOST", outcome)
        host.upstreams.check_sync("toy")  # tries at once
        assert host.invoke_sync("toy:echo", {"x": 1}).value == "well"
    assert system.connected == 2 == system.closed


def test_a_call_that_ends_late_with_the_loss_of_its_connection_leaves_the_next_one_open(tmp_path: Path) -> None:
    begun, ends = asyncio.Event(), asyncio.Event()

    async def answer(tool: Any, arguments: Any, call: Any) -> Any:
        if arguments["x"] == 1:  # still has something to do when its connection was lost
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await ends.wait()
                raise lost() from None
        if arguments["x"] == 2:
            raise lost()
        return "well"

    async def calls() -> None:
        late = asyncio.create_task(host.invoke("toy:echo", {"x": 1}))
        await begun.wait()
        assert not (await host.invoke("toy:echo", {"x": 2})).ok
        await host.upstreams.check("toy")  # tries at once
        ends.set()
        assert not (await late).ok
        assert (await host.invoke("toy:echo", {"x": 3})).value == "well"
        assert host.upstreams["toy"].state == "open"

    system = System(answer=answer)
    with opened(system, tmp_path) as host:
        host.wait(calls())
    assert system.connected == 2 == system.closed


def test_a_call_whose_old_connection_was_replaced_while_it_was_checked_goes_on_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connections: list[Any] = []
    checked, ends = asyncio.Event(), asyncio.Event()

    class Checked(ToyConnection):
        async def check(self) -> None:
            checked.set()
            await ends.wait()
            raise lost("none")

    async def connect() -> Connection:
        connections.append(Checked(System(), asyncio.current_task()))
        return connections[-1]  # type: ignore[no-any-return]

    async def which(connection: Any) -> int:
        return connections.index(connection)

    async def broken(connection: Any) -> None:
        raise lost()

    async def calls() -> None:
        used = session.UpstreamSession("toy", connect, 60.0)
        assert await used.use(which) == 0
        monkeypatch.setattr(session, "CHECK_AFTER_S", -1.0)
        first = asyncio.create_task(used.use(which))
        await checked.wait()
        monkeypatch.setattr(session, "CHECK_AFTER_S", 60.0)
        with pytest.raises(ConnectionLost):
            await used.use(broken)
        used.try_at_once()
        assert await used.use(which) == 1
        ends.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert first.done()
        assert await first == 1
        await used.close()

    asyncio.run(calls())


@pytest.mark.slow
def test_the_host_waits_until_a_lost_connection_is_closed(tmp_path: Path) -> None:
    def answer(*_: Any) -> Any:
        raise lost()

    system = System(answer=answer, turns_to_close=20_000)
    with opened(system, tmp_path) as host:
        assert not host.invoke_sync("toy:echo", {"x": 1}).ok
    assert (system.connected, system.closed) == (1, 1)


def test_a_call_that_reaches_its_upstream_while_the_host_closes_opens_no_connection(tmp_path: Path) -> None:
    begun, closing, refused = threading.Event(), threading.Event(), threading.Event()

    class Connection(ToyConnection):
        async def close(self) -> None:
            closing.set()
            await asyncio.to_thread(refused.wait)
            await super().close()

    class Toy(System):
        async def open(self, upstream: Upstream) -> Connection:
            await super().open(upstream)
            return Connection(self, asyncio.current_task())

    class Gate:
        @hookimpl
        async def tavern_before_execute(self, call: Any) -> None:
            if call.arguments["x"] == 2:
                begun.set()
                await asyncio.to_thread(closing.wait)

    system = Toy()
    with ThreadPoolExecutor(1) as threads:
        with opened(system, tmp_path, plugins=[Plugin(Gate(), name="gate")]) as host:
            assert host.invoke_sync("toy:echo", {"x": 1}).ok
            late = threads.submit(host.invoke_sync, "toy:echo", {"x": 2})
            late.add_done_callback(lambda _: refused.set())
            begun.wait()
        error = late.result().error
    assert error is not None and (error.kind, error.outcome) == ("CONNECTION_LOST", "none")
    assert (system.connected, system.closed) == (1, 1)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_question_of_an_upstream_is_answered_on_the_loop_of_the_caller(is_async: bool, tmp_path: Path) -> None:
    loops: dict[str, Any] = {}

    class Person:
        def can_ask(self, kind: str) -> bool:
            return True

        async def ask(self, questions: Mapping[str, Any]) -> Mapping[str, Any]:
            loops["asked"] = asyncio.get_running_loop()
            return {key: {"x": 7} for key in questions}

    async def answer(tool: Any, arguments: Any, call: Any) -> Any:
        loops["upstream"] = asyncio.get_running_loop()
        return await call.ask("Which?", INTEGER)

    async def called() -> Any:
        loops["caller"] = asyncio.get_running_loop()
        return await host.invoke("toy:echo", {"x": 1})

    with opened(System(answer=answer), tmp_path) as host, asked(Person()):
        result = asyncio.run(called()) if is_async else host.invoke_sync("toy:echo", {"x": 1})
    assert result.value == {"x": 7}
    assert loops["asked"] is loops.get("caller", loops["upstream"])
    assert (loops["asked"] is loops["upstream"]) == (not is_async)


@pytest.mark.anyio
async def test_a_connection_that_is_closed_while_it_is_opened_is_given_up_at_once(tmp_path: Path) -> None:
    begun = threading.Event()

    class Slow(System):
        async def open(self, upstream: Upstream) -> Connection:
            if self.connected:
                begun.set()
                await asyncio.get_running_loop().create_future()
            return await super().open(upstream)

    async with opened(Slow(), tmp_path) as host:
        await host.upstreams.connect("toy")
        await host.upstreams.disconnect("toy")
        waiting = asyncio.create_task(host.invoke("toy:echo", {"x": 1}))
        await asyncio.to_thread(begun.wait)
        await host.upstreams.disconnect("toy")
        error = (await waiting).error
    assert error is not None and (error.kind, error.outcome) == ("CONNECTION_LOST", "none")
    assert "closed while it was being opened" in error.message


@pytest.mark.anyio
async def test_a_connection_that_is_closed_before_it_begins_to_be_opened_keeps_no_call_waiting() -> None:
    async def never(*_: Any) -> Any:
        raise AssertionError

    one = session.UpstreamSession("toy", never, idle_s=1.0)
    waiting = asyncio.create_task(one.use(never))
    await asyncio.sleep(0)  # the call has ordered the connection, and nothing more
    await one.close()
    with pytest.raises(ConnectionLost, match="closed while it was being opened"):
        await waiting


@pytest.mark.parametrize("outcome", ["none", "unknown"])
def test_calls_go_on_where_another_one_could_not_even_be_sent(outcome: str, tmp_path: Path) -> None:
    begun, sent = threading.Event(), asyncio.Event()
    attempts: list[int] = []

    async def answer(_: Any, arguments: Any, call: Any) -> Any:
        if arguments["x"] == 1:
            begun.set()
            await sent.wait()
            return arguments
        attempts.append(1)
        if len(attempts) == 1:
            raise lost(outcome)
        sent.set()
        return arguments

    system = System(answer=answer)
    with ThreadPoolExecutor(1) as threads, opened(system, tmp_path) as host:
        first = threads.submit(host.invoke_sync, "toy:echo", {"x": 1})
        begun.wait()
        second = host.invoke_sync("toy:echo", {"x": 2})
        assert (first.result().ok, second.ok) == ((True, True) if outcome == "none" else (False, False))
    assert system.connected == system.closed == (2 if outcome == "none" else 1)


@pytest.mark.anyio
async def test_what_runs_when_the_host_closes_is_a_lost_connection_and_cancels_no_caller(tmp_path: Path) -> None:
    begun = threading.Event()

    async def log_in(*_: Any) -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    async with opened(System(log_in=log_in), tmp_path) as host:
        waiting = asyncio.create_task(host.upstreams.connect("toy", show=print))
        await asyncio.to_thread(begun.wait)
    with pytest.raises(ConnectionLost, match="the host was closed"):
        await waiting


def test_a_cancellation_that_no_one_asked_for_is_a_lost_connection(tmp_path: Path) -> None:
    async def given_up(*_: Any) -> Any:
        raise asyncio.CancelledError

    system = System(answer=lambda *call: given_up(*call))
    with opened(system, tmp_path) as host:
        result = host.invoke_sync("toy:echo", {"x": 1})
    assert result.error is not None and (result.error.kind, result.error.outcome) == ("CONNECTION_LOST", "unknown")


def test_a_call_survives_one_lost_connection_and_no_more(tmp_path: Path) -> None:
    def answer(*_: Any) -> Any:
        raise lost("none")

    system = System(answer=answer)
    with opened(system, tmp_path) as host:
        host.upstreams.connect_sync("toy")
        error = host.invoke_sync("toy:echo", {"x": 1}).error
    assert error is not None and (error.kind, error.outcome, system.connected) == ("CONNECTION_LOST", "none", 2)


@pytest.mark.slow
def test_an_upstream_that_cannot_be_reached_fails_at_once_the_second_time(tmp_path: Path) -> None:
    system = System()
    with opened(system, tmp_path) as host:
        host.upstreams.connect_sync("toy")
    system.refuses = lost("none")
    with opened(system, tmp_path) as host:
        first, second = (host.invoke_sync("toy:echo", {"x": 1}) for _ in range(2))
    assert first.error is not None and first.error.outcome == "none"
    assert second.error is not None and second.error.retry_after_ms
    assert "tavern upstreams check toy" in second.error.fix


def test_a_job_goes_on_where_its_upstream_had_got_to_when_its_host_was_closed(tmp_path: Path) -> None:
    begun = threading.Event()

    async def answer(tool: Any, arguments: Any, call: Any) -> Any:
        if call.resume_point:
            return f"followed {call.resume_point}"
        await call.keep_resume_point("run 7")
        begun.set()
        try:
            return await asyncio.Event().wait()
        finally:
            left.append(call.will_be_resumed)

    left: list[bool] = []
    with opened(System(answer=answer), tmp_path) as host:
        job = str(host.invoke_sync("toy:echo", {"x": 1}, job=True).job)
        assert begun.wait(20)
    with opened(System(answer=answer), tmp_path, granted=False) as host:
        host.wait(host.jobs.resume(job))
        host.wait(host.jobs.wait(job, 20))
        assert (host.jobs.result(job).value, left) == ("followed run 7", [True])


@pytest.mark.parametrize(
    ("only_followed", "then", "expected"),
    [
        (True, {}, "followed run 7"),
        (False, {}, "input_required"),
        (True, {"tools": {"echo": {"description": "Another."}}}, "input_required"),
        (True, {"config": {"approval": {"deny": ["toy:echo"]}}}, "POLICY_DENIED"),
        (True, {"config": {"tools": {"deny": ["toy:echo"]}}}, "POLICY_DENIED"),
    ],
)
def test_work_that_was_approved_is_followed_without_a_second_approval(
    only_followed: bool, then: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    begun = threading.Event()

    async def answer(tool: Any, arguments: Any, call: Any) -> Any:
        if call.resume_point:
            return f"followed {call.resume_point}"
        await call.keep_resume_point("run 7", only_followed=only_followed)
        begun.set()
        return await asyncio.Event().wait()

    asks = {"approval": {"ask": ["toy:echo"]}}
    with opened(System(answer=answer), tmp_path, config=asks) as host:
        job = str(host.invoke_sync("toy:echo", {"x": 1}, job=True).job)
        asked = host.wait(host.jobs.wait(job, 20)).questions
        host.jobs.answer(job, True, context=BOSS)
        assert begun.wait(20)
    with opened(System(answer=answer), tmp_path, granted=False, **{"config": asks, **then}) as host:
        host.wait(host.jobs.resume(job))
        found = host.wait(host.jobs.wait(job, 20))
        assert len(asked) == 1
        if found.status == "input_required":
            assert expected == found.status and [one["type"] for one in found.questions] == ["approval"]
        else:
            result = host.jobs.result(job)
            assert expected == (result.value if result.error is None else result.error.kind)
            assert result.error is None or result.error.outcome == "unknown"


def test_a_call_that_a_gate_makes_within_a_resumed_job_needs_its_own_approval_and_follows_nothing(
    tmp_path: Path,
) -> None:
    begun, seen = threading.Event(), []

    async def answer(tool: Any, arguments: Any, call: Any) -> Any:
        seen.append((arguments["x"], call.resume_point))
        if call.resume_point or arguments["x"] != 1:
            return "done"
        await call.keep_resume_point("run 7", only_followed=True)
        begun.set()
        return await asyncio.Event().wait()

    class Gate:
        @hookimpl
        async def tavern_check_call(self, call: Any) -> None:
            if call.arguments["x"] == 1:
                result = await host.invoke("toy:echo", {"x": 2})
                inner.append(result.status)

    inner: list[str] = []
    asks = {"approval": {"ask": ["toy:echo"]}}
    with opened(System(answer=answer), tmp_path, config=asks) as host:
        job = str(host.invoke_sync("toy:echo", {"x": 1}, job=True).job)
        host.wait(host.jobs.wait(job, 20))
        host.jobs.answer(job, True, context=BOSS)
        assert begun.wait(20)
    gate = Plugin(Gate(), name="gate")
    with opened(System(answer=answer), tmp_path, granted=False, config=asks, plugins=[gate]) as host:
        host.wait(host.jobs.resume(job))
        assert host.wait(host.jobs.wait(job, 20)).status == "completed"
        assert (inner, seen) == (["input_required"], [(1, ""), (1, "run 7")])


def test_a_setting_that_the_adapter_marks_as_secret_is_masked_in_plain_text(tmp_path: Path) -> None:
    with opened(System(answer=lambda *_: "it was pat-of-ann"), tmp_path, settings={"pat": "pat-of-ann"}) as host:
        assert host.invoke_sync("toy:echo", {"x": 1}).value == "it was ***"


@pytest.mark.slow
def test_a_refused_connection_is_the_error_of_its_caller_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(System(refuses=lost("none")), tmp_path) as host, pytest.raises(ConnectionLost):
        host.upstreams.connect_sync("toy")
    gc.collect()
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


def test_cancelling_a_call_reaches_the_upstream_and_harms_no_other_call(tmp_path: Path) -> None:
    ended: list[str] = []

    async def slow(name: str, until: asyncio.Event) -> Any:
        try:
            await until.wait()
            return name
        except asyncio.CancelledError:
            ended.append(name)
            raise

    async def calls() -> None:
        system = System()
        go: dict[int, asyncio.Event] = {}
        begun = threading.Semaphore(0)

        def answer(tool: Any, arguments: Any, call: Any) -> Any:
            go[arguments["x"]] = asyncio.Event()
            begun.release()
            return slow(str(arguments["x"]), go[arguments["x"]])

        system.answer = answer
        async with opened(system, tmp_path) as host:
            await host.upstreams.connect("toy")
            first, second = (asyncio.create_task(host.invoke("toy:echo", {"x": n})) for n in (1, 2))
            for _ in range(2):
                await asyncio.to_thread(begun.acquire)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            host._host.base.portal.loop().call_soon_threadsafe(go[2].set)
            assert (await second).value == "2"
        assert ended == ["1"]

    asyncio.run(calls())


@pytest.mark.slow
def test_a_deadline_ends_the_work_at_the_upstream(tmp_path: Path) -> None:
    ended = threading.Event()

    async def endless(*_: Any) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    system = System(answer=lambda *call: endless())
    with opened(system, tmp_path, timeoutMs=80) as host:
        result = host.invoke_sync("toy:echo", {"x": 1})
        assert ended.wait(5)
    assert result.error is not None and result.error.kind == "TIMEOUT"


@pytest.mark.slow
def test_callers_with_credentials_of_their_own_have_connections_of_their_own(tmp_path: Path) -> None:
    system = System()
    own = {"user:ann": {"settings": {"key": "of ann"}}, "*": {"settings": {"key": "of others"}}}
    with opened(system, tmp_path, settings={"key": "of the host"}, credentials=own) as host:
        for user in ("ann", "bob", "ann"):
            context = CallContext(principal=user, user_id=user, permissions=frozenset({"network"}))
            assert host.invoke_sync("toy:echo", {"x": 1}, context=context).ok
        assert host.invoke_sync("toy:echo", {"x": 1}).ok
    assert sorted({s["key"] for s in system.settings}) == ["of ann", "of others", "of the host"]


@pytest.mark.slow
def test_a_principal_that_reads_like_a_role_gets_no_credentials_of_that_role(tmp_path: Path) -> None:
    system = System()
    own = {"role:boss": {"settings": {"key": "of the boss"}}}
    with opened(system, tmp_path, settings={"key": "of all"}, credentials=own) as host:
        rights = frozenset({"network"})
        assert host.invoke_sync("toy:echo", {"x": 1}, context=CallContext(principal="role:boss", permissions=rights)).ok
        assert {settings["key"] for settings in system.settings} == {"of all"}
        boss = CallContext(principal="ann", roles=frozenset({"boss"}), permissions=rights)
        assert host.invoke_sync("toy:echo", {"x": 1}, context=boss).ok
    assert system.settings[-1]["key"] == "of the boss"


@pytest.mark.slow
def test_a_principal_called_host_gets_no_credentials_of_the_host(tmp_path: Path) -> None:
    system = System()
    own = {"*": {"settings": {"key": "of others"}}, "host": {"settings": {"key": "of who is named host"}}}
    with opened(system, tmp_path, settings={"key": "of the host"}, credentials=own) as host:
        claim = CallContext(principal="host", permissions=frozenset({"network"}))
        assert host.invoke_sync("toy:echo", {"x": 1}, context=claim).ok
    assert [settings["key"] for settings in system.settings] == [
        "of the host",
        "of others",
    ]  # the host listed the tools


@pytest.mark.slow
def test_an_unused_connection_is_closed_and_opened_again_by_the_next_call(tmp_path: Path) -> None:
    system = System()
    with opened(system, tmp_path, closeAfterMs=200) as host:
        for _ in range(3):
            before = system.connected
            done = host.invoke_sync("toy:echo", {"x": 1})
            assert done.ok, done.error
            assert system.connected > before
            for _ in range(200):
                if host.upstreams["toy"].state == "idle":
                    break
                threading.Event().wait(0.02)
            assert host.upstreams["toy"].state == "idle"
    assert system.connected == system.closed


def test_the_arguments_are_validated_and_the_caller_needs_the_rights_of_the_upstream(tmp_path: Path) -> None:
    with opened(System(), tmp_path) as host:
        assert host.invoke_sync("toy:echo", {"x": "1"}).error.kind == "INPUT_SCHEMA_INVALID"  # type: ignore[union-attr]
        denied = host.invoke_sync("toy:echo", {"x": 1}, context=CallContext(principal="ann"))
    assert denied.error is not None and denied.error.kind == "POLICY_DENIED" and "network" in denied.error.message


@pytest.mark.slow
@pytest.mark.parametrize("entry", [{}, {"url": None, "command": ["srv"]}])
def test_taking_a_grant_back_closes_the_connection_and_refuses_every_call(entry: Any, tmp_path: Path) -> None:
    system = System()
    with opened(system, tmp_path, **entry) as host:
        assert host.invoke_sync("toy:echo", {"x": 1}).ok
        host.revoke("toy")
        refused = host.invoke_sync("toy:echo", {"x": 1})
        assert refused.error is not None and refused.error.kind == "POLICY_DENIED"
    assert system.connected == 1 == system.closed


@pytest.mark.parametrize("drain_ms", [5000, 1])
@pytest.mark.parametrize("how", ["disable", "revoke"])
def test_an_upstream_that_may_no_longer_be_used_is_closed_after_its_calls_within_the_time_for_that(
    how: str, drain_ms: int, tmp_path: Path
) -> None:
    async def changed_during_a_call() -> Any:
        held = HeldCall()
        system.answer = held.answer
        async with opened(system, tmp_path, config={"limits": {"drainMs": drain_ms}}) as host:
            call = asyncio.create_task(host.invoke("toy:echo", {"x": 1}))
            await asyncio.to_thread(held.began.wait, 10)
            change = asyncio.create_task(getattr(host.plugins, how)("toy"))
            for _ in range(50):  # turns in which the connection could be closed
                await asyncio.sleep(0)
            if drain_ms == 1:
                await call
            held.end()
            await change
            assert not (await host.invoke("toy:echo", {"x": 1})).ok
            return await call

    system = System(tools=(ECHO,))
    result = asyncio.run(changed_during_a_call())
    assert (result.value or result.error.kind) == ("CONNECTION_LOST" if drain_ms == 1 else "done")
    assert system.connected == 1 == system.closed


@pytest.mark.slow
def test_a_running_call_ends_before_the_host_is_closed(tmp_path: Path) -> None:
    async def closed_during_a_call() -> Any:
        held = HeldCall()
        system.answer = held.answer
        async with opened(system, tmp_path) as host:
            call = asyncio.create_task(host.invoke("toy:echo", {"x": 1}))
            await asyncio.to_thread(held.began.wait, 10)
            closing = asyncio.create_task(host.close())
            for _ in range(50):  # turns in which the connection could be closed
                await asyncio.sleep(0)
            held.end()
            await closing
        return await call

    system = System(tools=(ECHO,))
    assert asyncio.run(closed_during_a_call()).value == "done"
    assert system.connected == 1 == system.closed


@pytest.mark.slow
def test_the_key_of_a_call_reaches_the_adapter(tmp_path: Path) -> None:
    system = System(tools=(ECHO,), answer=lambda tool, arguments, call: call.key)
    with opened(system, tmp_path) as host:
        assert host.invoke_sync("toy:echo", {"x": 1}, idempotency_key="k-1").value == "k-1"
