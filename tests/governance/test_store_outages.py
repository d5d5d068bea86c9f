"""A Redis server that goes away, does not answer, and comes back, under an open host."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tavern_core import Budget, CallContext, Plugin, Tavern, ToolContext, ToolResult, tool
from tavern_core.builtin.stores.redis_records import RedisRecords
from tavern_core.errors import StateDamaged
from tests import programs
from tests.governance.redis_server import Server

pytestmark = pytest.mark.slow

QUICK = "?socket_timeout=0.5"
"""When the client of Redis gives up, what the server does may be done nevertheless."""
SOON = CallContext(principal="user:ann", budget=Budget(timeout_ms=300))
LATER = CallContext(principal="user:ann", budget=Budget(timeout_ms=20_000))
RATE = {"limits": {"tools": {"t:rated": {"rate": "5/minute"}}}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path, is_durable=True)
    yield made
    made.kill()


class Home:
    """A host on a server, whose tools count their runs."""

    def __init__(self, server: Server, folder: Path, options: str = "") -> None:
        self.runs: list[int] = []
        self.seen: list[str] = []
        self.during: Callable[[], None] = lambda: None
        self.gate, self.over = threading.Event(), threading.Event()

        @tool
        def pay(n: int) -> int:
            self.runs.append(n)
            self.during()
            return n

        @tool
        def rated() -> int:
            return 1

        @tool(requires_approval=True)
        def guarded() -> int:
            return 1

        @tool(job=True)
        async def slow() -> str:
            await asyncio.to_thread(self.gate.wait, 20)
            self.over.set()
            return "done"

        @tool(job=True)
        async def patient(ctx: ToolContext) -> None:
            asyncio.get_running_loop().call_later(0.6, self.over.set)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ctx.ask("How many?", {"type": "object", "properties": {}}), 0.5)
            self.seen += [job.status for job in self.tavern.jobs.list(tool="t:patient")]

        @tool
        async def threaded() -> int:
            return await asyncio.to_thread(int, "1")

        @tool
        async def turn() -> None:
            await asyncio.sleep(0.05)

        plugins = [Plugin([pay, rated, guarded, slow, patient, threaded, turn], name="t")]
        self.tavern = Tavern.open({"state": {"store": server.address + options}, **RATE}, home=folder, plugins=plugins)


@pytest.fixture
def home(server: Server, tmp_path: Path) -> Iterator[Home]:
    home = Home(server, tmp_path / "home")
    with home.tavern:
        yield home


WAYS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("t:pay", {"n": 1}, {"idempotency_key": "k"}),
    ("t:rated", {}, {}),
    ("t:guarded", {}, {}),
    ("t:pay", {"n": 1}, {"dry_run": True}),
    ("t:pay", {"n": 1}, {"job": True}),
]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_server_that_does_not_answer_keeps_no_call_beyond_its_deadline(
    home: Home, server: Server, is_async: bool
) -> None:
    server.pause()
    for name, arguments, options in WAYS:
        if is_async:
            result = asyncio.run(home.tavern.invoke(name, arguments, context=SOON, **options))
        else:
            result = home.tavern.invoke_sync(name, arguments, context=SOON, **options)
        assert result.error is not None
        assert (result.error.kind, result.error.outcome) == ("TIMEOUT", "none"), name
        assert "state.store" in result.error.fix
    assert home.runs == []


def test_a_key_whose_call_found_no_answer_is_free_when_the_server_is_back(home: Home, server: Server) -> None:
    server.pause()
    assert not keyed(home).ok
    server.go_on()
    assert keyed(home, LATER).value == 1
    assert keyed(home, LATER).value == 1
    assert home.runs == [1]


def test_a_key_that_was_written_when_its_call_had_failed_is_free_for_other_processes(
    server: Server, tmp_path: Path
) -> None:
    home, other = Home(server, tmp_path / "home", QUICK), Home(server, tmp_path / "other")
    with home.tavern, other.tavern:
        assert home.tavern.invoke_sync("t:pay", {"n": 0}, context=LATER, idempotency_key="earlier").ok
        server.pause()
        assert not keyed(home, LATER).ok
        server.go_on()
        assert keyed(other, LATER).value == 1
    assert (home.runs, other.runs) == ([0], [1])


def test_other_processes_get_an_answer_that_could_not_be_stored_without_asking_its_host(
    home: Home, server: Server, tmp_path: Path
) -> None:
    home.during = server.kill
    assert keyed(home).value == 1
    server.start()
    other = Home(server, tmp_path / "other")
    with other.tavern:
        assert keyed(other, LATER).value == 1
    assert (home.runs, other.runs) == ([1], [])


@pytest.mark.parametrize("options", [{}, {"idempotency_key": "k"}], ids=["without key", "with key"])
def test_a_job_that_was_stored_when_its_call_had_failed_does_not_stand_as_queued(
    server: Server, tmp_path: Path, options: dict[str, Any]
) -> None:
    home = Home(server, tmp_path / "home", QUICK)
    with home.tavern as tavern:
        first = str(tavern.invoke_sync("t:pay", {"n": 1}, context=LATER, job=True).job)
        assert tavern.wait(tavern.jobs.wait(first, 20)).status == "completed"
        server.pause()
        assert not tavern.invoke_sync("t:pay", {"n": 2}, context=LATER, job=True, **options).ok
        server.go_on()
        while any(not job.is_over for job in tavern.jobs.list()):
            pass
        again = str(tavern.invoke_sync("t:pay", {"n": 2}, context=LATER, job=True, **options).job)
        assert tavern.wait(tavern.jobs.wait(again, 20)).status == "completed"
        assert {job.status for job in tavern.jobs.list() if job.id not in (first, again)} <= {"cancelled"}
    assert home.runs == [1, 2]


def test_async_tools_have_threads_while_ends_of_jobs_wait_for_the_server(home: Home, server: Server) -> None:
    jobs = [str(home.tavern.invoke_sync("t:slow").job) for _ in range(10)]
    while any(home.tavern.jobs[job].status != "running" for job in jobs):
        pass
    server.pause()
    home.gate.set()
    assert home.over.wait(20)
    for _ in range(10):
        soon = CallContext(budget=Budget(timeout_ms=2_000))
        assert home.tavern.invoke_sync("t:threaded", context=soon).value == 1
    server.go_on()


def test_a_tool_that_asked_goes_on_when_the_store_says_so(home: Home, server: Server) -> None:
    job = str(home.tavern.invoke_sync("t:patient").job)
    while home.tavern.jobs[job].status != "input_required":
        pass
    server.kill()
    assert home.over.wait(20)
    server.start()
    while not home.tavern.jobs[job].is_over:
        pass
    assert home.seen == ["running"]


def test_a_question_that_is_given_up_while_it_is_stored_is_closed(home: Home, server: Server) -> None:
    @tool(job=True)
    async def hasty(ctx: ToolContext) -> None:
        server.pause()
        asyncio.get_running_loop().call_later(0.3, server.go_on)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ctx.ask("How many?", {"type": "object", "properties": {}}), 0.1)
        home.seen += [job.status for job in home.tavern.jobs.list(tool="app:hasty")]

    home.tavern.tools.register(hasty)
    job = str(home.tavern.invoke_sync("app:hasty").job)
    while not home.tavern.jobs[job].is_over:
        pass
    assert home.seen == ["running"]


def test_a_server_that_is_gone_is_one_clear_error_until_it_is_back(home: Home, server: Server) -> None:
    assert keyed(home).ok
    server.kill()
    for name, arguments, options in WAYS:
        if name == "t:guarded":  # its approval cannot be asked for
            continue
        error = home.tavern.invoke_sync(name, arguments, **options).error
        assert error is not None
        assert (error.kind, error.outcome) == ("INTERNAL", "none"), name
        assert "state.store" in error.message + error.fix
    server.start()
    assert [home.tavern.invoke_sync(name, arguments, **options).error for name, arguments, options in WAYS[:2]] == [
        None,
        None,
    ]
    assert keyed(home).value == 1


@pytest.mark.parametrize("ends", ["open", "closed"])
def test_an_answer_that_could_not_be_stored_is_stored_when_the_server_is_back(
    home: Home, server: Server, tmp_path: Path, ends: str
) -> None:
    home.during = server.kill
    assert keyed(home).value == 1
    assert keyed(home).value == 1  # the host knows it meanwhile
    server.start()
    if ends == "open":
        assert keyed(home).value == 1
    else:
        home.tavern.wait(home.tavern.close())
    other = Home(server, tmp_path / "other")
    with other.tavern:
        assert keyed(other).value == 1
    assert (home.runs, other.runs) == ([1], [])


def test_a_caller_gets_its_answer_in_time_though_the_server_does_not_take_it(home: Home, server: Server) -> None:
    home.during = server.pause
    assert keyed(home).value == 1
    server.go_on()
    assert keyed(home).value == 1
    assert home.runs == [1]


def test_the_end_of_a_job_is_stored_when_the_server_is_back(home: Home, server: Server) -> None:
    job = home.tavern.invoke_sync("t:slow").job
    assert job is not None
    while home.tavern.jobs[job].status != "running":
        pass
    server.kill()
    home.gate.set()
    assert home.over.wait(20)
    home.tavern.invoke_sync("t:turn")  # on the loop of the job, after its end
    with pytest.raises(StateDamaged):
        home.tavern.jobs.find(job)
    server.start()
    assert home.tavern.wait(home.tavern.jobs.wait(job, 30)).status == "completed"
    assert home.tavern.jobs.result(job).value == "done"


def test_who_leaves_a_silent_server_does_not_wait_for_it_again(server: Server) -> None:
    store = RedisRecords(server.address + QUICK)
    store.enter("a")
    server.pause()
    with pytest.raises(StateDamaged):
        store.get("job", "x")
    store.leave("a")  # else this would fail in the same way
    store.close()


def test_metrics_and_doctor_work_while_the_server_is_gone(server: Server, tmp_path: Path) -> None:
    state = {"state": {"store": server.address}, "metrics": {"enabled": True}}
    (tmp_path / "tavern.yaml").write_text(json.dumps(state), encoding="utf-8")

    def found() -> str:
        done = programs.tavern("doctor", "--json", cwd=tmp_path, home=tmp_path / "home")
        return next(row["verdict"] for row in json.loads(done.stdout)["host"] if row["what"] == "state.store")

    assert found() == "ok"
    with Tavern.open(tmp_path / "tavern.yaml", home=tmp_path / "home") as tavern:
        tavern.invoke_sync("system:get_current_time")
        server.kill()
        names = {family.name for family in text_string_to_metric_families(tavern.metrics.text())}
    assert "tool_invocations" in names
    assert "jobs" not in names
    assert found() == "error"


def keyed(home: Home, context: CallContext = SOON) -> ToolResult:
    return home.tavern.invoke_sync("t:pay", {"n": 1}, context=context, idempotency_key="order-1")
