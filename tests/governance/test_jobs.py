"""Calls in the background: kept, followed, answered, cancelled and taken up, from any process."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import re
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from tavern_core import Budget, CallContext, Plugin, Tavern, ToolContext, hookimpl, tool
from tavern_core.contract.protocols import BoundTool
from tavern_core.contract.stores import Record
from tavern_core.errors import (
    ApprovalRequired,
    CallMisused,
    ConnectionLost,
    JobNotFound,
    PolicyDenied,
    StateDamaged,
    ToolFailed,
    UsageError,
)
from tavern_core.model.job import JOB_STATUSES, Job
from tavern_core.model.result import ToolResult
from tavern_core.model.tool import ToolSpec
from tests import programs
from tests.governance import redis_server
from tests.state.processes import run, start

ANN = CallContext(principal="user:ann", user_id="ann")
BOB = CallContext(principal="user:bob", user_id="bob")
BOSS = CallContext(principal="user:boss", user_id="boss", roles=frozenset({"approver"}))


@tool
async def work(ctx: ToolContext, steps: int = 3) -> int:
    for step in range(steps):
        ctx.progress(step, steps, "working")
        await asyncio.sleep(0.005)
    ctx.progress(steps, steps, "done")
    return steps


@tool
async def forever() -> int:
    await asyncio.sleep(3600)
    return 1


@tool(read_only=True)
async def reads() -> None:
    await asyncio.sleep(3600)


@tool(limits={"concurrency": 1})
async def alone() -> None:
    await asyncio.sleep(3600)


@tool
def cut() -> None:
    raise ConnectionLost("the connection was cut", outcome="unknown")


@tool
def fails() -> int:
    raise ToolFailed("no such thing")


@tool(requires_approval=True)
def pay(amount: int, password: str = "") -> int:
    return amount


@tool(job=True)
def always(n: int) -> int:
    return n


@tool(limits={"inline_ms": 30_000})
def quick() -> int:
    return 1


@tool(limits={"inline_ms": 0})
async def later() -> int:
    await asyncio.sleep(0.01)
    return 1


@tool
async def outer() -> dict[str, Any]:
    result = await host.invoke("t:always", {"n": 2})
    return {"status": result.status, "value": result.value}


@tool
async def asks(ctx: ToolContext) -> Any:
    return await ctx.ask("which?", {"type": "string"})


@tool
async def spawns() -> str:
    result = await host.invoke("t:always", {"n": 2})
    return str(result.job)


host: Tavern
TOOLS = [work, forever, reads, alone, cut, fails, pay, always, quick, later, outer, asks, spawns]
QUESTION = {
    "name": "ask", "description": "asks",
    "nodes": [{"id": "q", "type": "core:AskUser", "inputValues": {"question": "which?"}}], "edges": [],
}  # fmt: skip


@contextmanager
def opened(home: Path, **config: Any) -> Iterator[Tavern]:
    global host
    with Tavern.open(config, home=home, plugins=[Plugin(TOOLS, name="t")]) as host:
        yield host


@pytest.fixture(autouse=True)
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the open host. A test that takes a folder of its own (`tmp_path`) opens what it needs there."""
    with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as name:
        folder = Path(name)
        with contextlib.nullcontext() if "tmp_path" in request.fixturenames else opened(folder):
            yield folder


def begun(name: str, arguments: dict[str, Any] | None = None, **options: Any) -> str:
    result = host.invoke_sync(f"t:{name}", arguments, job=True, **options)
    assert (result.ok, result.status) == (True, "job")
    assert set(result.value) == {"jobId", "status", "progress", "pollIntervalMs", "ttlMs"}
    assert result.job == result.value["jobId"]
    return str(result.job)


def waited(job: str) -> Job:
    found: Job = host.wait(host.jobs.wait(job, 30))
    return found


def test_a_job_runs_tells_how_far_it_is_and_keeps_its_result() -> None:
    events: list[Any] = []
    host.events.subscribe(events.append, "JOB_CHANGED")
    job = begun("work", purpose="to see")
    found = waited(job)
    assert (found.status, found.tool, found.principal, found.purpose) == ("completed", "t:work", "host", "to see")
    assert found.progress == {"done": 3, "total": 3, "message": "done"}
    result = host.jobs.result(job)
    assert (result.value, result.job) == (3, job)
    statuses = [e.data["status"] for e in events]
    assert (statuses[0], statuses[1], statuses[-1]) == ("queued", "running", "completed")


@pytest.mark.slow
def test_a_stored_result_says_which_call_it_is_of(tmp_path: Path) -> None:
    calls: list[tuple[str, dict[str, Any], str]] = [("t:always", {"n": 2}, "ok"), ("t:fails", {}, "TOOL_ERROR")]
    with opened(tmp_path):
        jobs = [waited(str(host.invoke_sync(name, arguments, job=True).job)) for name, arguments, _ in calls]
    with opened(tmp_path):
        for job, (name, _, how) in zip(jobs, calls, strict=True):
            result = host.jobs.result(job.id)
            assert result.call_id == job.call_id != "", name
            assert (result.meta["tool"], result.meta["durationMs"] > 0) == (name, True)
            assert result.evidence[0].summary.startswith(f"{name} {how} in ")


def test_a_failure_is_a_failed_job_with_its_error() -> None:
    job = begun("fails")
    found = waited(job)
    assert found.status == "failed"
    assert found.error is not None and found.error.kind == "TOOL_ERROR"
    assert host.jobs.result(job).error == found.error


def test_a_call_that_cannot_be_made_says_so() -> None:
    for name, arguments in (("fails", {"x": 1}), ("nothing", {})):
        result = host.invoke_sync(f"t:{name}", arguments, job=True)
        if result.ok:
            assert waited(str(result.job)).status == "failed", name
        else:
            assert result.error is not None and result.error.kind == "TOOL_NOT_FOUND", name


def test_a_tool_may_always_be_a_job_or_become_one_when_it_takes_long() -> None:
    assert host.invoke_sync("t:always", {"n": 5}).status == "job"
    assert host.invoke_sync("t:quick").value == 1
    slow = host.invoke_sync("t:later")
    assert slow.status == "job"
    assert waited(str(slow.job)).status == "completed"


@pytest.mark.slow
def test_a_caller_who_waits_gets_the_answer_however_quick_it_is() -> None:
    assert {host.invoke_sync("t:quick").status for _ in range(300)} == {"ok"}


@pytest.mark.slow
def test_a_call_that_took_too_long_says_how_far_its_job_is() -> None:
    @tool(limits={"inline_ms": 100})
    async def slow() -> int:
        await asyncio.sleep(3600)
        return 1

    host.tools.register(slow)
    result = host.invoke_sync("app:slow")
    assert (result.status, result.value["status"]) == ("job", "running")


def test_a_job_begins_while_the_loop_that_began_another_one_is_busy() -> None:
    has_begun, is_over = threading.Event(), threading.Event()

    async def busy() -> None:
        await host.jobs.start("t:always", {"n": 1})
        has_begun.set()
        is_over.wait(60)  # and its loop with it

    thread = threading.Thread(target=lambda: asyncio.run(busy()))
    thread.start()
    try:
        assert has_begun.wait(30)
        assert waited(str(host.invoke_sync("t:always", {"n": 2}).job)).status == "completed"
    finally:
        is_over.set()
        thread.join()


def test_inside_of_a_job_calls_are_calls() -> None:
    job = begun("outer")
    waited(job)
    assert host.jobs.result(job).value == {"status": "ok", "value": 2}


def test_a_tool_that_is_no_job_gets_one() -> None:
    job = host.invoke_sync("t:spawns").value
    assert waited(job).status == "completed"


def test_jobs_are_shown_to_their_callers_alone() -> None:
    mine, other = begun("work", context=ANN), begun("work", context=BOB)
    assert [job.id for job in host.jobs.list(context=ANN)] == [mine]
    assert {job.id for job in host.jobs.list()} == {mine, other}
    for ask in (host.jobs.find, host.jobs.result, host.jobs.cancel):
        with pytest.raises(JobNotFound) as error:
            ask(other, context=ANN)  # type: ignore[operator]
        assert other not in error.value.hint


def test_jobs_are_a_mapping_and_can_be_filtered() -> None:
    done, failed = begun("work"), begun("fails")
    waited(done), waited(failed)
    assert set(host.jobs) == {done, failed}
    assert host.jobs[done].status == "completed"
    assert host.jobs.get("job-nothing", None) is None
    assert [job.id for job in host.jobs.list(status="failed")] == [failed]
    assert [job.id for job in host.jobs.list(status=("failed", "completed"), tool="t:work")] == [done]
    with pytest.raises(UsageError, match="not a status"):
        host.jobs.list(status="finished")
    with pytest.raises(KeyError):
        host.jobs["job-nothing"]


def test_wrong_questions_about_jobs_are_refused_and_harm_no_store() -> None:
    job = begun("always", {"n": 1})
    questions: list[dict[str, Any]] = [
        {"status": 5}, {"status": "odd"}, {"tool": 5}, {"most": -1}, {"most": "x"}, {"most": 10**30}, {"context": "ann"},
    ]  # fmt: skip
    for asked in questions:
        with pytest.raises(UsageError):
            pytest.fail(f"{asked}: {host.jobs.list(**asked)}")
    with pytest.raises(UsageError):
        host.jobs.find(job, context="ann")  # type: ignore[arg-type]
    for wrong in ({"state": "odd"}, {"state": 5}, {"most": -1}, {"most": "x"}):
        with pytest.raises(UsageError):
            host.approvals.list(**wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="most="):
        host.workflows.kept(most=10**30)
    for seconds in ("5", float("nan")):
        with pytest.raises(UsageError, match="seconds="):
            host.wait(host.jobs.wait(job, seconds))  # type: ignore[arg-type]
    assert waited(job).status == "completed"


def test_a_job_can_be_cancelled() -> None:
    job = begun("forever")
    assert host.jobs.cancel(job)
    assert waited(job).status == "cancelled"
    assert host.jobs.result(job).error.kind == "CANCELLED"  # type: ignore[union-attr]
    assert not host.jobs.cancel(job)


def test_a_job_that_is_cancelled_says_what_its_call_may_have_changed() -> None:
    called = threading.Semaphore(0)
    host.events.subscribe(lambda event: called.release(), "TOOL_CALLED")
    for name, outcome in (("forever", "unknown"), ("reads", "none"), ("alone", "none")):
        jobs = [begun(name) for _ in range(2 if name == "alone" else 1)]  # the second one waits for the first
        assert all(called.acquire(timeout=30) for _ in jobs)
        assert host.jobs.cancel(jobs[-1])
        assert waited(jobs[-1]).status == "cancelled"
        error = host.jobs.result(jobs[-1]).error
        assert error is not None
        assert (error.kind, error.outcome) == ("CANCELLED", outcome), name
        assert ("check" in error.fix, "again" in error.fix) == (outcome == "unknown", outcome == "none"), name


def test_a_job_that_needs_approval_waits_for_an_approver() -> None:
    job = begun("pay", {"amount": 5}, context=ANN)
    found = waited(job)
    assert (found.status, found.questions[0]["type"]) == ("input_required", "approval")
    with pytest.raises(PolicyDenied):
        host.jobs.answer(job, True, context=ANN)
    with pytest.raises(JobNotFound):
        host.jobs.answer(job, True, context=BOB)
    with pytest.raises(UsageError, match="waits for approval"):
        host.jobs.answer(job, "yes", context=BOSS)
    assert host.jobs.answer(job, True, context=BOSS)
    while not host.jobs[job].is_over:
        time.sleep(0.001)
    assert host.jobs.result(job).value == 5
    assert not host.jobs.answer(job, True, context=BOSS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("by", "answers", "approves"),
    [(ANN, True, PolicyDenied), (BOB, JobNotFound, JobNotFound), (BOSS, JobNotFound, True), (None, True, True)],
    ids=["its caller", "another caller", "an approver", "the host"],
)
def test_an_approver_approves_and_answers_no_questions_of_others(
    tmp_path: Path, by: CallContext | None, answers: Any, approves: Any
) -> None:
    (tmp_path / "ask.json").write_text(json.dumps(ASK), encoding="utf-8")
    with opened(tmp_path / "home2", workflows={"roots": [str(tmp_path)]}):
        for name, is_job in (("t:asks", True), ("workflow:ask", True), ("workflow:ask", False), ("t:pay", True)):
            arguments, expected, value = ({"amount": 1}, approves, True) if name == "t:pay" else ({}, answers, "red")
            job = str(host.invoke_sync(name, arguments, job=is_job, context=ANN).job)
            assert waited(job).status == "input_required", name
            if expected is True:
                assert host.jobs.answer(job, value, context=by), name
                assert waited(job).status == "completed", name
            else:
                with pytest.raises(expected):
                    question = "no such question" if by is BOSS else ""
                    pytest.fail(f"{name}: {host.jobs.answer(job, value, question, context=by)}")
                assert host.jobs[job].status == "input_required", name
                if by is not None:
                    tool = host.invoke_sync("jobs:answer", {"jobId": job, "value": value}, context=by)
                    assert not tool.ok, name
                assert host.jobs[job].status == "input_required", name


@pytest.mark.slow
def test_a_budget_counts_the_call_of_a_job_once_although_it_is_made_again_after_the_approval(tmp_path: Path) -> None:
    ran: list[int] = []

    @tool(requires_approval=True)
    def pay(amount: int) -> bool:
        ran.append(amount)
        return host.invoke_sync("t:more").ok

    @tool
    def more() -> None:
        ran.append(0)

    once = CallContext(principal="user:ann", budget=Budget(max_tool_calls=1))
    with Tavern.open({}, home=tmp_path, plugins=[Plugin([pay, more], name="t")]) as host:
        job = host.invoke_sync("t:pay", {"amount": 1}, context=once, job=True).job
        assert job is not None
        (question,) = host.wait(host.jobs.wait(job, 30)).questions
        host.approvals.approve(question["id"], by=BOSS)
        while host.wait(host.jobs.wait(job, 30)).status == "input_required":
            pass  # the decision reaches it in a moment
        assert host.jobs.result(job).value is False
    assert ran == [1]


def test_a_job_whose_approval_is_refused_fails() -> None:
    job = begun("pay", {"amount": 5}, context=ANN)
    (question,) = waited(job).questions
    host.approvals.reject(question["id"], by=BOSS)
    while not host.jobs[job].is_over:
        time.sleep(0.001)
    assert host.jobs[job].error.kind == "APPROVAL_REJECTED"  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "memory", "redis"])
@pytest.mark.parametrize("days", [2, 30])
def test_a_job_whose_approval_is_jumped_over_by_the_clock_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, days: int
) -> None:
    real, shift = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + shift)
    with (
        redis_server.database() as address,
        opened(tmp_path / "other", state={"store": address if store == "redis" else store}),
    ):
        job = begun("pay", {"amount": 5}, context=ANN)
        waited(job)
        shift = days * 86_400.0
        while not host.jobs[job].is_over:
            time.sleep(0.001)
        error = host.jobs.result(job, context=ANN).error
        assert error is not None
        assert (error.kind, error.outcome) == ("APPROVAL_REJECTED", "none")
        assert "no answer came in time" in error.message


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "memory", "redis"])
@pytest.mark.parametrize("days", [400, -400])
def test_a_job_that_runs_while_the_clock_jumps_has_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, days: int
) -> None:
    real, shift, goes_on = time.time, 0.0, threading.Event()
    monkeypatch.setattr(time, "time", lambda: real() + shift)

    @tool
    def holds() -> str:
        goes_on.wait(30)
        return "done"

    with redis_server.database() as address:
        state = {"store": address if store == "redis" else store}
        with Tavern.open({"state": state}, home=tmp_path / "other", plugins=[Plugin([holds], name="t")]) as other:
            job = str(other.invoke_sync("t:holds", job=True).job)
            shift = days * 86_400.0
            assert [one.id for one in other.jobs.list(status=("queued", "running"))] == [job]
            goes_on.set()
            assert other.wait(other.jobs.wait(job, 30)).status == "completed"
            assert other.jobs.result(job).value == "done"


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize(("outcome", "times"), [("none", 2), ("unknown", 1)])
def test_a_tool_that_needs_an_approval_of_its_own_is_called_again_only_if_it_did_nothing(
    tmp_path: Path, outcome: Any, times: int, key: str | None
) -> None:
    done: list[str] = []
    hurried = CallContext(principal="user:ann", user_id="ann", budget=Budget(timeout_ms=30_000))

    @tool
    def buy() -> None:
        done.append("buy")
        if (error := host.invoke_sync("t:pay").error) is not None:
            raise ApprovalRequired("pay waits", outcome=outcome, approval=error.details["approval"])

    @tool(requires_approval=True)
    def pay() -> None:
        done.append("pay")

    with Tavern.open({}, home=tmp_path, plugins=[Plugin([buy, pay], name="t")]) as host:
        job = host.invoke_sync("t:buy", context=ANN, job=True, idempotency_key=key).job
        assert job is not None
        host.wait(host.jobs.wait(job, 30))
        (pending,) = host.approvals.list()
        host.approvals.approve(pending.id, by=BOSS)
        while not host.jobs[job].is_over:
            host.wait(host.jobs.wait(job, 30))
        error = host.jobs.result(job).error
        if key is not None:
            again = host.invoke_sync("t:buy", context=hurried, idempotency_key=key).error
            assert (again and again.kind) == (error and error.kind)
    assert (error and (error.kind, error.outcome)) == (("APPROVAL_REQUIRED", "unknown") if times == 1 else None)
    assert done == ["buy"] * times + ["pay"] * (times - 1)


def test_a_job_that_was_stored_although_its_store_failed_is_cancelled(tmp_path: Path) -> None:
    with redis_server.database() as address:
        link = redis_server.LossyLink(address)
        with opened(tmp_path / "lossy", state={"store": link.address}):
            first = begun("work", {"steps": 1})
            link.lost = b"lost on its way"
            result = host.invoke_sync("t:work", {"steps": 1}, purpose="lost on its way", job=True)
            assert result.error is not None
            assert (result.error.kind, "the job cannot be stored" in result.error.message) == ("INTERNAL", True)
            link.lost = b""
        with opened(tmp_path / "later", state={"store": address}):
            (lost,) = (job for job in host.jobs.list() if job.id != first)
            assert (lost.status, lost.purpose) == ("cancelled", "lost on its way")
        link.close()


PAYS = """
import json, sys, time
from tavern_core import CallContext, Plugin, Tavern, tool

@tool(requires_approval=True)
def pay(amount: int, password: str = "") -> int:
    return amount

ann = CallContext(principal="user:ann", user_id="ann")
with Tavern.open(json.loads(sys.argv[2]), home=sys.argv[1], plugins=[Plugin([pay], name="t")]) as host:
    jobs = [host.invoke_sync("t:pay", {"amount": n}, context=ann, job=True).job for n in range(4)]
    while any(host.jobs[job].status != "input_required" for job in jobs):
        time.sleep(0.01)
    print(json.dumps(jobs), flush=True)
    time.sleep(3600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "redis"])
@pytest.mark.parametrize("days", [0, 2, 30])
def test_an_approval_that_is_denied_while_no_host_runs_ends_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, days: int
) -> None:
    real, shift = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + shift)
    with redis_server.database() as address:
        config = {"state": {"store": address if store == "redis" else store}}
        with start(PAYS, tmp_path / "kept", json.dumps(config)) as other:
            jobs = json.loads(other.stdout.readline())
            other.kill()
            other.wait()
        with opened(tmp_path / "kept", **config):
            assert {one.id for one in host.jobs.list(status="input_required")} == set(jobs)
            host.jobs.answer(jobs[0], False, context=BOSS)
            host.approvals.reject(host.jobs[jobs[1]].questions[0]["id"], by=BOSS, reason="too much")
            host.approvals.approve(host.jobs[jobs[2]].questions[0]["id"], by=BOSS)
            shift = days * 86_400.0
            for listed in (host.jobs.list(context=ANN), host.jobs.list(status=("failed", "input_required"))):
                failed = {one.id for one in listed if one.status == "failed"}
                assert failed == set(jobs[:2] if days == 0 else jobs)
            assert {one.id for one in host.jobs.list(status="failed")} == failed
            assert {one.id for one in host.jobs.list(status="input_required")} == set(jobs) - failed
            for job in failed:
                found = host.jobs.find(job, context=ANN)
                error = host.jobs.result(job, context=ANN).error
                assert error is not None
                assert found.error == error
                assert (error.kind, error.outcome, found.questions) == ("APPROVAL_REJECTED", "none", ())
                assert host.wait(host.jobs.wait(job, 5)).status == "failed"
                assert not host.jobs.answer(job, True, context=BOSS)
                assert not host.jobs.cancel(job)
                with pytest.raises(UsageError, match="nothing to resume"):
                    host.wait(host.jobs.resume(job))
            assert ("user:boss: too much" in str(host.jobs[jobs[1]].error)) == (days < 30)
            if days == 2:
                assert "or it was not used in time" in str(host.jobs[jobs[2]].error)
                assert str(host.jobs[jobs[3]].error.message).endswith("no answer came in time")
            if days == 0:
                host.wait(host.jobs.resume(jobs[2]))
                assert host.wait(host.jobs.wait(jobs[2], 30)).status == "completed"


@pytest.mark.slow
def test_no_more_jobs_run_at_a_time_than_the_configuration_says(tmp_path: Path) -> None:
    with opened(tmp_path / "other", jobs={"concurrency": 1}):
        first, second = begun("forever"), begun("work")
        assert waited_for(second, "queued")
        host.jobs.cancel(first)
        assert waited(second).status == "completed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "answer", "status"),
    [
        ("t:pay", True, "completed"),
        ("t:pay", False, "failed"),
        ("t:pay", None, "cancelled"),
        ("t:asks", "red", "completed"),
        ("t:asks", None, "cancelled"),
        ("workflow:ask", "red", "completed"),
        ("workflow:ask", None, "cancelled"),
    ],
)
def test_a_job_that_waits_for_a_person_takes_no_slot_and_needs_one_to_go_on(
    tmp_path: Path, name: str, answer: Any, status: str
) -> None:
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "ask.json").write_text(json.dumps(ASK), encoding="utf-8")
    config = {"workflows": {"roots": [str(tmp_path / "flows")]}, "jobs": {"concurrency": 2}}
    with opened(tmp_path / "other", **config):
        waiting = []
        for number in range(5):
            arguments = {"amount": number} if name == "t:pay" else {}
            waiting.append(str(host.invoke_sync(name, arguments, job=True, context=ANN).job))
            assert waited(waiting[-1]).status == "input_required"
        assert waited(begun("always", {"n": 1})).status == "completed"
        busy = [begun("forever"), begun("forever")]
        until(lambda: all(host.jobs[job].status == "running" for job in busy))
        by = BOSS if name == "t:pay" else None
        for job in waiting:
            assert host.jobs.cancel(job) if answer is None else host.jobs.answer(job, answer, context=by)
        if status == "completed":
            last = begun("always", {"n": 1})
            until(lambda: name != "t:pay" or {host.jobs[job].status for job in waiting} == {"queued"})
            assert not any(host.jobs[job].is_over for job in [*waiting, last])
            for job in busy:
                host.jobs.cancel(job)
        assert {waited(job).status for job in waiting} == {status}
        for job in busy:
            host.jobs.cancel(job)
        assert [waited(begun("always", {"n": 1})).status for _ in range(3)] == ["completed"] * 3


def test_a_job_that_waits_for_another_one_takes_no_slot(tmp_path: Path) -> None:
    @tool
    async def waits() -> str:
        return (await host.jobs.wait((await host.jobs.start("t:always", {"n": 1})).id)).status

    @tool
    def waits_in_a_thread() -> str:
        return waited(host.wait(host.jobs.start("t:always", {"n": 1})).id).status

    @tool
    def waits_on_a_loop() -> str:
        return asyncio.run(waits())

    with opened(tmp_path / "other", jobs={"concurrency": 1}):
        for name, each in (
            ("waits", waits),
            ("waits_in_a_thread", waits_in_a_thread),
            ("waits_on_a_loop", waits_on_a_loop),
        ):
            host.tools.register(each)
            job = str(host.invoke_sync(f"app:{name}", job=True).job)
            assert waited(job).status == "completed"
            assert host.jobs.result(job).value == "completed"


def test_a_job_that_waits_for_another_one_takes_no_slot_once_its_last_thread_has_ended(tmp_path: Path) -> None:
    ends = threading.Event()

    @tool(timeout_ms=50)
    def stuck() -> None:
        assert ends.wait(60)

    @tool
    async def waits() -> str:
        assert (await host.invoke("app:stuck")).error.details["stopped"] is False  # type: ignore[union-attr]
        asyncio.get_running_loop().call_later(0.1, ends.set)
        return (await host.jobs.wait((await host.jobs.start("t:always", {"n": 1})).id, 20)).status

    with opened(tmp_path / "other", jobs={"concurrency": 1}):
        host.tools.register(stuck)
        host.tools.register(waits)
        job = str(host.invoke_sync("app:waits", job=True).job)
        assert waited(job).status == "completed"
        assert host.jobs.result(job).value == "completed"


def test_a_question_that_a_job_leaves_behind_takes_no_slot_when_it_ends(tmp_path: Path) -> None:
    left: list[asyncio.Task[Any]] = []

    @tool
    async def leaves(ctx: ToolContext) -> None:
        left.append(asyncio.create_task(ctx.ask("which?", {"type": "string"})))
        while not host.jobs.list(status="input_required"):  # noqa: ASYNC110 - the store has no event
            await asyncio.sleep(0.001)

    @tool
    async def stops_what_is_left() -> None:
        for task in left:
            task.cancel()
        await asyncio.wait(left)

    with opened(tmp_path / "other", jobs={"concurrency": 1}):
        host.tools.register(leaves)
        host.tools.register(stops_what_is_left)
        job = str(host.invoke_sync("app:leaves", job=True).job)
        until(lambda: host.jobs[job].is_over)
        last = str(host.invoke_sync("app:stops_what_is_left", job=True).job)
        assert [waited(one).status for one in (last, begun("always", {"n": 1}))] == ["completed"] * 2


def test_a_tool_that_asks_from_its_own_loop_gets_its_answer() -> None:
    @tool
    def asks_in_a_thread(ctx: ToolContext) -> str:
        return str(asyncio.run(ctx.ask("which?", {"type": "string"})))  # type: ignore[arg-type]

    host.tools.register(asks_in_a_thread)
    job = str(host.invoke_sync("app:asks_in_a_thread", job=True).job)
    assert waited(job).status == "input_required"
    assert host.jobs.answer(job, "red")
    assert waited(job).status == "completed"
    assert host.jobs.result(job).value == "red"


ANSWERED = """
import asyncio, json, sys, time
from tavern_core import Plugin, Tavern, ToolContext, tool

@tool
async def asks(ctx: ToolContext) -> str:
    return await ctx.ask("which?", {"type": "string"})

@tool
async def forever() -> None:
    await asyncio.sleep(3600)

def until(job, status):
    while host.jobs[job].status != status:
        time.sleep(0.001)

_, home, config, name, ending = sys.argv
with Tavern.open(json.loads(config), home=home, plugins=[Plugin([asks, forever], name="t")]) as host:
    job = host.invoke_sync(name, {}, job=True, idempotency_key="k").job
    until(job, "input_required")
    until(host.invoke_sync("t:forever", {}, job=True).job, "running")
    host.jobs.answer(job, "red")
    until(job, "queued" if name == "t:asks" else "running")
    while name != "t:asks" and "red" not in host.workflows.kept_run(job).answers.values():
        time.sleep(0.001)
    print(job, flush=True)
    if ending == "kill":
        time.sleep(3600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["kill", "close"])
@pytest.mark.parametrize("name", ["t:asks", "workflow:ask"])
def test_a_job_that_waits_for_a_slot_with_its_answer_is_resumed_with_it(tmp_path: Path, name: str, ending: str) -> None:
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "ask.json").write_text(json.dumps(ASK_AND_PARSE), encoding="utf-8")
    config: dict[str, Any] = {"workflows": {"roots": [str(tmp_path / "flows")]}, "jobs": {"concurrency": 1}}
    answer = '"red"' if name == "t:asks" else '"[1]"'
    with start(ANSWERED.replace('"red"', answer), tmp_path / "kept", json.dumps(config), name, ending) as other:
        assert other.stdout is not None
        job = other.stdout.readline().strip()
        if ending == "kill":
            other.kill()
        other.wait()
    with opened(tmp_path / "kept", **config):
        assert not host.jobs[job].questions
        host.wait(host.jobs.resume(job))
        until(lambda: host.jobs[job].is_over)
        assert host.jobs.result(job).value == ("red" if name == "t:asks" else [1])


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def waited_for(job: str, status: str) -> bool:
    return host.jobs[job].status == status


def test_secrets_of_a_job_are_not_kept(home: Path) -> None:
    job = begun("pay", {"amount": 5, "password": "hunter2-very-secret"}, context=ANN)
    waited(job)
    for file in home.rglob("*"):
        assert not file.is_file() or b"hunter2-very-secret" not in file.read_bytes()


MARKED = "Xk29dkf-marked-value"
SECRETS: dict[str, Any] = {
    "type": "object",
    "$defs": {"entry": {"properties": {"text": {"type": "string", "x-tavern": {"secret": True}}}}},
    "properties": {
        "word": {"type": "string", "format": "password"},
        "either": {"anyOf": [{"type": "string", "format": "password"}, {"type": "null"}]},
        "named": {"type": "object", "additionalProperties": {"type": "string", "writeOnly": True}},
        "rows": {"type": "array", "items": {"$ref": "#/$defs/entry"}},
        "asks": {"type": "boolean"},
    },
}


def test_what_a_schema_marks_as_secret_is_in_no_record_of_a_job(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    @tool(parameters=SECRETS)
    async def repeat(
        ctx: ToolContext, word: str = "", either: str = "", named: Any = None, rows: Any = None, asks: bool = False
    ) -> Any:
        said = json.dumps([word, either, named, rows])
        ctx.progress(1, 1, said)
        ctx.log(said)
        return await ctx.ask(f"really {said}?", {"type": "object", "properties": {}}) if asks else said

    host.tools.register(repeat)
    events: list[Any] = []
    host.events.subscribe(events.append)
    caplog.set_level("DEBUG", "tavern")
    for arguments in ({"word": MARKED}, {"either": MARKED}, {"named": {"k": MARKED}}, {"rows": [{"text": MARKED}]}):
        for asks in (False, True):
            job = host.wait(host.jobs.start("app:repeat", {**arguments, "asks": asks}, context=ANN))
            job = waited(job.id)
            assert job.status == ("input_required" if asks else "completed"), arguments
            assert "***" in str(job.progress), (arguments, asks)
            assert MARKED not in f"{job} {events} {caplog.text}", (arguments, asks)
            for file in home.rglob("*"):
                assert not file.is_file() or MARKED.encode() not in file.read_bytes(), (arguments, asks, file)


def test_a_finished_job_shows_the_progress_that_was_reported_last() -> None:
    @tool
    def read(ctx: ToolContext) -> int:
        ctx.progress(1, 3, "one")
        while len(moved) < 2:  # reports that follow each other too closely are not passed on
            ctx.progress(2, 3, "two")
        return 3

    host.tools.register(read)
    moved: list[Any] = []
    host.events.subscribe(moved.append, "TOOL_PROGRESS")
    job = waited(host.wait(host.jobs.start("app:read")).id)
    assert (job.status, job.progress) == ("completed", {"done": 2, "total": 3, "message": "two"})


def test_a_line_of_the_log_has_one_of_the_levels() -> None:
    @tool
    def say(ctx: ToolContext, level: str) -> None:
        ctx.log("hello", level)  # type: ignore[arg-type]

    host.tools.register(say)
    assert host.invoke_sync("app:say", {"level": "warning"}).ok
    refused = host.invoke_sync("app:say", {"level": "loud"})
    assert "'loud' is not a level" in refused.error.message
    assert "warning" in refused.error.fix


def test_a_callers_jobs_are_tools_for_it() -> None:
    job = begun("work", context=ANN)
    waited(job)

    def called(name: str, arguments: dict[str, Any], context: CallContext = ANN) -> Any:
        return host.invoke_sync(f"jobs:{name}", arguments, context=context)

    assert called("getStatus", {"jobId": job}).value["status"] == "completed"
    assert called("getResult", {"jobId": job}).value["value"] == 3
    assert [row["jobId"] for row in called("list", {}).value] == [job]
    assert called("cancel", {"jobId": job}).value is False
    assert called("answer", {"jobId": job, "value": 1}).value is False
    foreign = called("getStatus", {"jobId": job}, BOB)
    assert (foreign.error.kind, foreign.error.message) == ("TOOL_ERROR", f"there is no job {job!r}")
    assert called("list", {}, BOB).value == []
    waiting = begun("pay", {"amount": 1}, context=ANN)
    waited(waiting)
    assert called("answer", {"jobId": waiting, "value": True}).error.kind == "POLICY_DENIED"
    assert called("answer", {"jobId": waiting, "value": True}, BOSS).value is True


# Workflows -----------------------------------------------------------------------------------------------------------


def test_the_tools_of_jobs_are_found_as_they_may_be_written() -> None:
    job = begun("always", {"n": 1})
    for name in ("jobs.getStatus", "jobs/getStatus", "jobs:getStatus"):
        assert host.invoke_sync(name, {"jobId": job}).value["jobId"] == job, name
        assert host.tools.get(name).id == "jobs:getStatus"


@pytest.mark.slow
def test_a_run_of_a_workflow_is_a_job_with_the_same_id(tmp_path: Path) -> None:
    folder = tmp_path / "flows"
    folder.mkdir()
    document = {
        "name": "hi", "description": "says hi",
        "nodes": [{"id": "t", "type": "core:Text", "inputValues": {"text": "hi"}}], "edges": [],
    }  # fmt: skip
    (folder / "hi.json").write_text(json.dumps(document), encoding="utf-8")
    with opened(tmp_path / "home2", workflows={"roots": [str(folder)]}):
        result = host.invoke_sync("workflow:hi", {}, job=True)
        assert str(result.job).startswith("run-")
        assert waited(str(result.job)).status == "completed"
        kept = [run.run_id for run in host.workflows.kept()]
        assert kept == [result.job]
        assert [job.id for job in host.jobs.list()] == [result.job]
        direct = host.workflows.run_sync("hi", {})
        assert (host.jobs[direct.run_id].status, host.jobs[direct.run_id].tool) == ("completed", "workflow:hi")


ASK: dict[str, Any] = {
    "name": "ask", "description": "asks", "edges": [],
    "nodes": [{"id": "q", "type": "core:Ask", "inputValues": {"prompt": "which?"}}],
}  # fmt: skip


def test_who_has_answered_or_cancelled_a_job_waits_until_it_is_over(tmp_path: Path) -> None:
    (tmp_path / "ask.json").write_text(json.dumps(ASK), encoding="utf-8")
    with opened(tmp_path / "home2", workflows={"roots": [str(tmp_path)]}):
        for (name, is_job), end in itertools.product(
            [("workflow:ask", False), ("workflow:ask", True), ("t:asks", True)], ["answer", "cancel"]
        ):
            case = (name, is_job, end)
            result = host.invoke_sync(name, {}, job=is_job)
            job = waited(str(result.job))
            prompts = [question["prompt"] for question in job.questions]
            assert (job.status, prompts) == ("input_required", ["which?"]), case
            if not is_job:
                assert (result.value["jobId"], result.value["status"]) == (job.id, "input_required"), case
            assert host.jobs.answer(job.id, "red") if end == "answer" else host.jobs.cancel(job.id), case
            expected = ("completed", None) if end == "answer" else ("cancelled", "CANCELLED")
            ended, error = waited(job.id), host.jobs.result(job.id).error
            assert (ended.status, error and error.kind) == expected, case
            if name == "workflow:ask":
                assert host.wait(host.workflows.record(job.id)).questions == (), case


@pytest.mark.parametrize(("steps", "is_same"), [(1, True), (2, False)])
def test_the_same_call_of_a_workflow_with_the_same_key_is_one_run(tmp_path: Path, steps: int, is_same: bool) -> None:
    ask = {**ASK, "interfaceInputs": {"steps": {"dataFlowType": "INTEGER"}}}
    (tmp_path / "ask.json").write_text(json.dumps(ask), encoding="utf-8")
    options: dict[str, Any] = {"job": True, "idempotency_key": "a"}
    with opened(tmp_path / "home2", workflows={"roots": [str(tmp_path)]}):
        first = str(host.invoke_sync("workflow:ask", {"steps": 1}, **options).job)
        waited(first)
        again = str(host.invoke_sync("workflow:ask", {"steps": steps}, **options).job)
        assert (again == first, again[:4]) == (is_same, "run-")
        if not is_same:
            error = waited(again).error
            assert error is not None and error.kind == "IDEMPOTENCY_CONFLICT"
        assert [run.run_id for run in host.workflows.kept()] == [first]
        assert host.jobs.answer(first, "red")
        assert waited(first).status == "completed"


def test_a_run_whose_job_has_expired_is_not_taken_for_that_of_a_new_call_with_its_key(tmp_path: Path) -> None:
    (tmp_path / "hi.json").write_text(json.dumps({**ASK, "name": "hi"}), encoding="utf-8")
    options: dict[str, Any] = {"job": True, "idempotency_key": "a"}
    config = {"workflows": {"roots": [str(tmp_path)]}, "jobs": {"ttlMs": 1000}, "idempotency": {"ttlMs": 1000}}
    now = time.time()
    with opened(tmp_path / "home2", **config):
        first = str(host.invoke_sync("workflow:hi", {}, **options).job)
        waited(first)
        assert host.jobs.answer(first, "red")
        assert waited(first).status == "completed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: now + 3600)
        with opened(tmp_path / "home2", **config):
            second = str(host.invoke_sync("workflow:hi", {}, **options).job)
            assert second != first and second.startswith("run-")
            assert waited(second).status == "input_required"


# Other processes -----------------------------------------------------------------------------------------------------

PROGRAM = """
import asyncio, json, sys
from tavern_core import CallContext, Plugin, Tavern, tool

@tool(idempotent=True)
async def forever(n: int = 1) -> int:
    if "quick" in sys.argv:
        return n
    await asyncio.sleep(3600)
    return n

@tool
async def once() -> int:
    await asyncio.sleep(3600)
    return 1

async def main():
    config = json.loads(sys.argv[2])
    async with Tavern.open(config, home=sys.argv[1], plugins=[Plugin([forever, once], name="t")]) as host:
        ids = [(await host.invoke(f"t:{name}", {}, job=True)).job for name in ("forever", "once")]
        while any(host.jobs[i].status == "queued" for i in ids):
            await asyncio.sleep(0.01)
        print(json.dumps(ids), flush=True)
        ends = [await host.jobs.wait(i) for i in ids]
        print(json.dumps([job.status for job in ends]), flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_a_job_of_another_process_is_seen_and_cancelled(tmp_path: Path, store: str) -> None:
    with redis_server.database() as address:
        state = {"state": {"store": address if store == "redis" else "sqlite"}}
        with start(PROGRAM, tmp_path / "shared", json.dumps(state)) as other:
            assert other.stdout is not None
            ids = json.loads(other.stdout.readline())
            with opened(tmp_path / "shared", **state):
                assert {host.jobs[job].status for job in ids} == {"running"}
                assert all(host.jobs.cancel(job) for job in ids)
                assert json.loads(other.stdout.readline()) == ["cancelled", "cancelled"]


@pytest.mark.slow
def test_a_request_to_cancel_a_job_ends_with_the_process_that_it_was_for(tmp_path: Path) -> None:
    goes_on = threading.Event()

    @tool(name="forever", idempotent=True)
    async def until_then() -> str:
        while not goes_on.is_set():  # noqa: ASYNC110 - a thread sets it
            await asyncio.sleep(0.01)
        return "done"

    def opened_again() -> Tavern:
        return Tavern.open({}, home=tmp_path / "shared", plugins=[Plugin([until_then], name="t")])

    with start(PROGRAM, tmp_path / "shared", "{}") as other, opened_again() as taken, opened_again() as third:
        assert other.stdout is not None
        harmless, _ = json.loads(other.stdout.readline())
        other.send_signal(signal.SIGSTOP)
        assert taken.jobs.cancel(harmless)
        other.send_signal(signal.SIGKILL)
        other.wait()
        taken.wait(taken.jobs.resume(harmless))
        beside = str(taken.invoke_sync("t:forever", job=True).job)
        assert third.jobs.cancel(beside)
        assert taken.wait(taken.jobs.wait(beside, 30)).status == "cancelled"  # requests are looked for
        goes_on.set()
        assert taken.wait(taken.jobs.wait(harmless, 30)).status == "completed"


@pytest.mark.slow
def test_jobs_of_a_process_that_was_killed_have_failed_and_can_be_taken_up(tmp_path: Path) -> None:
    with start(PROGRAM, tmp_path / "shared", "{}") as other:
        assert other.stdout is not None
        harmless, once = json.loads(other.stdout.readline())
        other.send_signal(signal.SIGKILL)
        other.wait()

    @tool(name="forever", idempotent=True)
    def again(n: int = 1) -> int:
        return n

    with Tavern.open({}, home=tmp_path / "shared", plugins=[Plugin([again], name="t")]) as taken:
        for job in (harmless, once):
            found = taken.jobs[job]
            assert found.status == "failed"
            assert found.error is not None and (found.error.kind, found.error.outcome) == ("CONNECTION_LOST", "unknown")
        assert {job.id for job in taken.jobs.list(status="failed")} == {harmless, once}
        with pytest.raises(UsageError, match="it is unknown whether it happened"):
            taken.wait(taken.jobs.resume(once))
        taken.wait(taken.jobs.resume(harmless))
        assert taken.wait(taken.jobs.wait(harmless, 30)).status == "completed", taken.jobs[harmless]
        assert taken.jobs.result(harmless).value == 1
        with pytest.raises(UsageError, match="nothing to resume"):
            taken.wait(taken.jobs.resume(harmless))


RUNS = """
import asyncio, json, sys
from tavern_core import Plugin, Tavern, hookimpl, node

@node("Waits")
async def waits() -> int:
    print("waits", flush=True)
    await asyncio.sleep(3600)
    return 1

class Nodes:
    @hookimpl
    def tavern_register_nodes(self):
        return [waits]

async def main():
    plugin = Plugin(Nodes(), name="n", manifest={"nodes": [{"name": "Waits"}]})
    config = {"workflows": {"roots": [sys.argv[2]]}}
    async with Tavern.open(config, home=sys.argv[1], plugins=[plugin]) as host:
        print((await host.invoke("workflow:waits", {}, job=True)).job, flush=True)
        await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_run_of_a_process_that_was_killed_is_a_failed_job(tmp_path: Path) -> None:
    flow = {"name": "waits", "description": "waits", "nodes": [{"id": "w", "type": "n:Waits"}], "edges": []}
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "waits.json").write_text(json.dumps(flow), encoding="utf-8")
    home = tmp_path / "shared"
    with start(RUNS, home, tmp_path / "flows") as other:
        assert other.stdout is not None
        job, said = sorted((other.stdout.readline().strip(), other.stdout.readline().strip()))
        assert (job[:4], said) == ("run-", "waits")
        with opened(home):
            assert host.jobs[job].status == "running"
        other.kill()
        other.wait()
    with opened(home):
        found = host.jobs[job]
        assert found.status == "failed" and found.error is not None
        assert (found.error.outcome, found.error.fix) == ("unknown", f"tavern workflows resume {job}")


@pytest.mark.slow
def test_the_command_line_shows_cancels_and_watches_jobs(tmp_path: Path) -> None:
    (tmp_path / "tavern.yaml").write_text("{}", encoding="utf-8")

    def tavern(*words: str) -> tuple[int, str, str]:
        done = programs.tavern("jobs", *words, cwd=tmp_path, home=tmp_path / "shared")
        return done.returncode, done.stdout, done.stderr

    with start(PROGRAM, tmp_path / "shared", "{}") as other:
        assert other.stdout is not None
        first, second = json.loads(other.stdout.readline())
        assert {row["jobId"] for row in json.loads(tavern("--json")[1])} == {first, second}
        assert first in tavern("list", "--status", "running")[1]
        assert "t:forever" in tavern("show", first)[1]
        assert tavern("cancel", first)[0] == 0
        code, out, err = tavern("watch", first)
        assert (code, out) == (130, "")
        assert "cancelled" in err
        assert tavern("cancel", second)[0] == 0
        assert json.loads(other.stdout.readline()) == ["cancelled", "cancelled"]
    assert tavern("cancel", first)[1].strip() == f"{first} has ended already"
    assert json.loads(tavern("show", first, "--json")[1])["result"]["error"]["kind"] == "CANCELLED"
    assert tavern("show", "job-nothing")[0] == 5
    assert tavern("answer", first, "true")[0] == 2
    assert tavern("list", "--status", "odd")[0] == 2


# Cancelling and progress ---------------------------------------------------------------------------------------------


def waiting(ids: list[str]) -> Any:
    """A tool that waits until it is cancelled; it appends the ids of its calls."""

    @tool
    async def waits(ctx: ToolContext) -> int:
        ids.append(ctx.call_id)
        await asyncio.Future()
        return 1

    return waits


def test_a_running_call_is_cancelled_by_its_id() -> None:
    ids: list[str] = []

    waits = waiting(ids)

    @tool
    async def asks() -> str:
        result = await host.invoke("app:waits")
        return result.error.kind if result.error else "ok"

    host.tools.register(waits)
    host.tools.register(asks)

    async def cancelled(name: str) -> Any:
        ids.clear()
        call = asyncio.ensure_future(host.invoke(name))
        await filled(ids)
        assert host.cancel(ids[0])
        result = await call
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
        return result

    assert asyncio.run(cancelled("app:waits")).error.kind == "CANCELLED"
    assert asyncio.run(cancelled("app:asks")).value == "CANCELLED"
    assert not host.cancel(ids[0])
    assert not any(host.cancel(odd) for odd in ("", "x", "a-b-c", 7, None))  # type: ignore[arg-type]


def test_a_call_whose_event_loop_has_been_closed_cannot_be_cancelled() -> None:
    ids: list[str] = []

    waits = waiting(ids)

    host.tools.register(waits)
    loop = asyncio.new_event_loop()
    call = loop.create_task(host.invoke("app:waits"))
    loop.run_until_complete(filled(ids))
    loop.close()
    assert not host.cancel(ids[0])
    call.get_coro().close()  # type: ignore[union-attr]


LONG = """
import asyncio, sys
from tavern_core import CallContext, Plugin, Tavern, ToolContext, tool

@tool
async def waits(ctx: ToolContext) -> int:
    print(ctx.call_id, flush=True)
    await asyncio.sleep(3600)
    return 1

async def main():
    async with Tavern.open({"state": {"store": sys.argv[2]}}, home=sys.argv[1], plugins=[Plugin([waits], name="t")]) as host:
        while sys.stdin.readline():
            result = await host.invoke("t:waits", context=CallContext(principal="user:ann", user_id="ann"))
            print(result.error.kind, flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_a_call_of_another_process_is_cancelled_by_its_caller_or_the_host_alone(store: str, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        where = stack.enter_context(redis_server.database()) if store == "redis" else store
        config = {"state": {"store": where}}
        (tmp_path / "tavern.yaml").write_text(json.dumps(config), encoding="utf-8")
        other = stack.enter_context(start(LONG, tmp_path / "shared", where))
        assert other.stdin is not None
        assert other.stdout is not None
        with opened(tmp_path / "shared", **config):
            for by in (ANN, None, "the command line"):
                other.stdin.write("\n")
                other.stdin.flush()
                call = other.stdout.readline().strip()
                asked, end = False, time.monotonic() + 30
                while not asked:
                    assert time.monotonic() < end
                    assert not host.cancel(call, context=BOB)
                    if isinstance(by, str):
                        words = ("tools", "cancel", call, "--json")
                        done = programs.tavern(*words, cwd=tmp_path, home=tmp_path / "shared")
                        asked = json.loads(done.stdout)["cancelled"]
                        assert done.returncode == (0 if asked else 5)
                    else:
                        asked = host.cancel(call, context=by)
                assert other.stdout.readline().strip() == "CANCELLED"
            assert not host.cancel(call[:-1] + "f")
        other.stdin.close()
        assert other.wait(30) == 0
    done = programs.tavern("tools", "cancel", "3b2547da4813-1", cwd=tmp_path, home=tmp_path / "none")
    if store == "sqlite":
        assert (done.returncode, done.stdout.strip()) == (5, "no call 3b2547da4813-1 runs in this home")


@pytest.mark.slow
def test_a_call_of_a_process_that_was_killed_cannot_be_cancelled(tmp_path: Path) -> None:
    with start(LONG, tmp_path / "shared", "sqlite") as other, opened(tmp_path / "shared"):
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdin.write("\n")
        other.stdin.flush()
        call = other.stdout.readline().strip()
        while not host.records.list("call"):
            time.sleep(0.001)
        (record,) = host.records.list("call")
        other.kill()
        other.wait()
        assert not host.cancel(call)
        assert not host.records.list("call")
        assert record.expires < time.time() + 3_600, "no record of a killed process stays for long"


def ended_by(other: Tavern, ids: list[str]) -> threading.Thread:
    """A thread that cancels the next call through another host, as soon as that is possible."""

    def end() -> None:
        while not (ids and other.cancel(ids[-1])):
            time.sleep(0.001)

    thread = threading.Thread(target=end, daemon=True)
    thread.start()
    return thread


@pytest.mark.slow
def test_a_first_call_by_invoke_sync_is_cancelled_from_another_host_of_the_home(tmp_path: Path) -> None:
    ids: list[str] = []

    waits = waiting(ids)

    with (
        Tavern.open({}, home=tmp_path, plugins=[Plugin([waits], name="t")]) as first,
        Tavern.open({}, home=tmp_path) as other,
    ):
        ender = ended_by(other, ids)
        assert first.invoke_sync("t:waits").error.kind == "CANCELLED"
        ender.join()


def bound_by(bind: Callable[[], BoundTool]) -> list[Plugin]:
    """Plugins with the tool `t:hold`, and the executor of its kind."""

    @hookimpl
    def tavern_register_executors() -> dict[str, Any]:
        return {"held": SimpleNamespace(bind=lambda spec, home: bind())}

    hold = ToolSpec("hold", "Hold on.", kind="held", input_schema={"type": "object"})
    maker = SimpleNamespace(tavern_register_executors=tavern_register_executors)
    return [Plugin(maker, name="e"), Plugin([hold], name="t")]


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), asyncio.CancelledError()])
def test_a_job_whose_tool_cannot_be_bound_fails_and_its_caller_does_not(tmp_path: Path, error: BaseException) -> None:
    def bind() -> BoundTool:
        raise error

    with Tavern.open({}, home=tmp_path, plugins=bound_by(bind)) as broken:
        job = broken.wait(broken.jobs.start("t:hold", {}))
        assert broken.wait(broken.jobs.wait(job.id, 20)).status in ("failed", "cancelled")
        assert broken.jobs.result(job.id).error.kind in ("UPSTREAM_ERROR", "INTERNAL", "CANCELLED")


@pytest.mark.slow
def test_an_executor_that_fails_to_stop_a_call_does_not_keep_later_calls_from_being_cancelled(tmp_path: Path) -> None:
    ids: list[str] = []
    failed = threading.Event()

    def run(arguments: Any, call: Any) -> int:
        ids.append(call.id)
        return int(failed.wait(30))

    def stop(call_id: str) -> bool:
        failed.set()
        raise ValueError(call_id)

    waits = waiting(ids)

    hold = bound_by(lambda: BoundTool(run, is_async=False, wants_call=True, stop=stop))
    plugins = [*hold, Plugin([waits], name="w")]
    with Tavern.open({}, home=tmp_path, plugins=plugins) as first, Tavern.open({}, home=tmp_path) as other:
        for name, kind in (("t:hold", None), ("w:waits", "CANCELLED")):
            ids.clear()
            ender = ended_by(other, ids)
            result = first.invoke_sync(name)
            assert (result.error and result.error.kind) == kind
            ender.join()


def test_a_closed_host_looks_for_no_call_of_others(tmp_path: Path) -> None:
    with Tavern.open({}, home=tmp_path / "home") as closed:
        pass
    shutil.rmtree(tmp_path / "home")
    assert not closed.cancel("3b2547da4813-1")
    assert not (tmp_path / "home").exists()


def test_a_call_is_cancelled_by_its_caller_or_the_host_alone() -> None:
    ids: list[str] = []

    waits = waiting(ids)

    host.tools.register(waits)

    async def cancelled(owner: CallContext | None) -> Any:
        ids.clear()
        call = asyncio.ensure_future(host.invoke("app:waits", context=owner))
        await filled(ids)
        assert not host.cancel(ids[0], context=BOB)
        assert host.cancel(ids[0], context=owner)
        return (await call).error.kind

    assert [asyncio.run(cancelled(owner)) for owner in (ANN, None)] == ["CANCELLED", "CANCELLED"]
    with pytest.raises(UsageError, match="takes a CallContext"):
        host.cancel("x", context="user:ann")  # type: ignore[arg-type]


@pytest.mark.parametrize("outer", [False, True], ids=["its own", "that of the call around it"])
@pytest.mark.parametrize("checks", [False, True], ids=["is_cancelled", "check"])
def test_sync_work_on_the_thread_of_its_caller_sees_that_its_time_is_over(outer: bool, checks: bool) -> None:
    results: list[Any] = []

    @tool
    def spins(ctx: ToolContext) -> int:
        while not ctx.is_cancelled:
            time.sleep(0.001)
        if checks:
            ctx.check()
        return 1

    @tool
    def around() -> int:
        results.append(host.invoke_sync("app:spins"))
        return 1

    host.tools.register(spins)
    host.tools.register(around)
    context = CallContext(budget=Budget(timeout_ms=50))
    results.append(host.invoke_sync("app:around" if outer else "app:spins", context=context))
    assert [result.error.kind for result in results] == ["TIMEOUT"] * len(results)
    error = results[0].error
    assert (error.outcome, error.details["stopped"]) == (("unknown", True) if checks else ("done", False))
    assert error.details["limit"] and error.message.startswith("app:spins did not finish in time")


def test_sync_work_in_a_thread_is_notified_and_not_awaited() -> None:
    ids: list[str] = []
    saw: list[bool] = []

    @tool
    def spins(ctx: ToolContext) -> int:
        ids.append(ctx.call_id)
        while not ctx.is_cancelled:
            time.sleep(0.001)
        saw.append(True)
        ctx.check()
        return 1

    host.tools.register(spins)

    async def both() -> Any:
        call = asyncio.ensure_future(host.invoke("app:spins"))
        await filled(ids)
        host.cancel(ids[0])
        return await call

    result = asyncio.run(both())
    assert (result.error.kind, result.error.details["stopped"], result.error.outcome) == ("CANCELLED", False, "unknown")
    while not saw:
        time.sleep(0.001)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cancel", "job", "timeout"])
@pytest.mark.parametrize("outer", ["awaits", "blocks"])
def test_a_call_within_one_that_has_ended_sees_that_nobody_waits_for_it(outer: str, how: str) -> None:
    ids: list[str] = []
    saw: list[bool] = []

    @tool
    def inner(ctx: ToolContext) -> int:
        ids.append("inner")
        while not ctx.is_cancelled:
            time.sleep(0.001)
        saw.append(True)
        return 1

    @tool
    async def awaits(ctx: ToolContext) -> int:
        ids.insert(0, ctx.call_id)
        return int((await host.invoke("app:inner")).value or 0)

    @tool
    def blocks(ctx: ToolContext) -> int:
        ids.insert(0, ctx.call_id)
        return int(host.invoke_sync("app:inner").value or 0)

    for one in (inner, awaits, blocks):
        host.tools.register(one)

    async def ended() -> None:
        if how == "timeout":
            budget = Budget(timeout_ms=200)
            result = await host.invoke(f"app:{outer}", context=CallContext(budget=budget))
            assert result.error is not None
            assert result.error.kind == "TIMEOUT"
            return
        started = asyncio.ensure_future(host.invoke(f"app:{outer}", job=how == "job"))
        while "inner" not in ids:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert host.jobs.cancel(str((await started).job)) if how == "job" else host.cancel(ids[0])
        await started

    asyncio.run(ended())
    until = time.monotonic() + 30
    while not saw:
        assert time.monotonic() < until
        time.sleep(0.001)


def test_a_job_goes_on_when_the_call_that_began_it_is_cancelled() -> None:
    ids: list[str] = []
    ends = threading.Event()

    @tool(job=True)
    def inner(ctx: ToolContext) -> bool:
        assert ends.wait(30)
        return ctx.is_cancelled

    @tool
    async def begins(ctx: ToolContext) -> int:
        ids.append(str((await host.invoke("app:inner")).job))
        ids.append(ctx.call_id)
        await asyncio.sleep(3600)
        return 1

    host.tools.register(inner)
    host.tools.register(begins)

    async def cancelled() -> Any:
        call = asyncio.ensure_future(host.invoke("app:begins"))
        while len(ids) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert host.cancel(ids[1])
        return await call

    assert asyncio.run(cancelled()).error.kind == "CANCELLED"
    ends.set()
    assert waited(ids[0]).status == "completed"
    assert host.jobs.result(ids[0]).value is False


@pytest.mark.slow
def test_a_call_that_ends_with_the_time_of_the_one_around_it_has_timed_out() -> None:
    inner: list[Any] = []

    @tool
    def waits(ctx: ToolContext) -> int:
        while not ctx.is_cancelled:
            time.sleep(0.001)
        return 1

    @tool
    async def asks() -> int:
        inner.append(await host.invoke("app:waits"))
        return 1

    host.tools.register(waits)
    host.tools.register(asks)

    async def often() -> list[str]:
        context = CallContext(budget=Budget(timeout_ms=200))  # a busy machine begins both within it
        return [(await host.invoke("app:asks", context=context)).error.kind for _ in range(5)]  # type: ignore[union-attr]

    assert asyncio.run(often()) == ["TIMEOUT"] * 5
    assert [result.error.kind for result in inner] == ["TIMEOUT"] * 5  # whichever timer rings first


def test_a_cancellation_without_a_request_is_a_lost_connection() -> None:
    @tool
    async def breaks() -> int:
        raise asyncio.CancelledError

    host.tools.register(breaks)
    error = asyncio.run(invoked("app:breaks")).error
    assert (error.kind, error.outcome) == ("CONNECTION_LOST", "unknown")


async def filled(ids: list[str]) -> None:
    """Wait for what a thread, or another task, puts there."""
    while not ids:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def invoked(name: str) -> Any:
    return await host.invoke(name)


def test_progress_is_bounded_whatever_a_tool_says() -> None:
    @tool
    def odd(ctx: ToolContext) -> float | None:
        for done in (float("nan"), 1e300, True, "x", None):
            ctx.progress(done, "all", "m" * 100_000)  # type: ignore[arg-type]
        return ctx.seconds_left

    host.tools.register(odd)
    events: list[Any] = []
    host.events.subscribe(events.append, "TOOL_PROGRESS")
    assert host.invoke_sync("app:odd").value is None
    assert events
    assert all(len(e.data["message"]) <= 500 and e.data["total"] is None for e in events)
    assert "ctx" not in host.tools["app:odd"].input_schema["properties"]


def test_a_job_whose_thread_cannot_be_stopped_keeps_its_place(tmp_path: Path) -> None:
    ends, begins = threading.Event(), threading.Event()

    @tool
    def stuck() -> int:
        begins.set()
        assert ends.wait(60)
        return 1

    with opened(tmp_path / "other", jobs={"concurrency": 1}):
        host.tools.register(stuck)
        first = str(host.invoke_sync("app:stuck", job=True).job)
        assert begins.wait(30)
        assert host.jobs.cancel(first)
        assert waited(first).status == "cancelled"
        assert host.jobs.result(first).error.details["stopped"] is False  # type: ignore[union-attr]
        second = begun("always", {"n": 1})
        assert host.jobs[second].status == "queued"
        ends.set()
        assert waited(second).status == "completed"


class JobsAsAModel(RuleBasedStateMachine):
    """Jobs of two callers beside a dictionary that says how each must stand."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: dict[int, asyncio.Event] = {}
        self.expected: dict[str, tuple[CallContext, int, str]] = {}
        machine = self

        @tool
        async def gated(n: int) -> int:
            await machine.gates.setdefault(n, asyncio.Event()).wait()
            return n

        @tool(requires_approval=True)
        async def approved(n: int) -> int:
            return n

        config = {"state": {"store": "memory"}, "audit": {"enabled": False}, "jobs": {"concurrency": 50}}
        self.host = Tavern.open(config, plugins=[Plugin([gated, approved], name="m")])
        self.host.__enter__()

    jobs = Bundle("jobs")

    @rule(target=jobs, caller=st.sampled_from([ANN, BOB]), name=st.sampled_from(["gated", "approved"]))
    def begin(self, caller: CallContext, name: str) -> str:
        number = len(self.expected)
        job = str(self.host.invoke_sync(f"m:{name}", {"n": number}, context=caller, job=True).job)
        self.expected[job] = caller, number, "running" if name == "gated" else "input_required"
        self.reaches(job)
        return job

    @rule(job=jobs)
    def finish(self, job: str) -> None:
        caller, number, status = self.expected[job]
        if status == "running":
            gate = self.gates.setdefault(number, asyncio.Event())
            self.host._host.base.portal.loop().call_soon_threadsafe(gate.set)
            self.expected[job] = caller, number, "completed"
            self.reaches(job)
            assert self.host.jobs.result(job, context=caller).value == number

    @rule(job=jobs, agrees=st.booleans(), by=st.sampled_from([ANN, BOB, BOSS]))
    def answer(self, job: str, agrees: bool, by: CallContext) -> None:
        caller, number, status = self.expected[job]
        if by is not BOSS and by is not caller:
            with pytest.raises(JobNotFound):
                self.host.jobs.answer(job, agrees, context=by)
        elif status == "input_required" and by is caller:
            with pytest.raises(PolicyDenied):
                self.host.jobs.answer(job, agrees, context=by)
        else:
            assert self.host.jobs.answer(job, agrees, context=by) is (status == "input_required")
            if status == "input_required":
                self.expected[job] = caller, number, "completed" if agrees else "failed"
                self.reaches(job)

    @rule(job=jobs, by=st.sampled_from([ANN, BOB]))
    def cancel(self, job: str, by: CallContext) -> None:
        caller, number, status = self.expected[job]
        if by is not caller:
            with pytest.raises(JobNotFound):
                self.host.jobs.cancel(job, context=by)
            return
        is_over = status in ("completed", "failed", "cancelled")
        assert self.host.jobs.cancel(job, context=by) is not is_over
        if not is_over:
            self.expected[job] = caller, number, "cancelled"
            self.reaches(job)

    @invariant()
    def callers_see_their_own(self) -> None:
        for caller in (ANN, BOB):
            own = {job: status for job, (who, _, status) in self.expected.items() if who is caller}
            assert {job.id: job.status for job in self.host.jobs.list(context=caller)} == own

    def reaches(self, job: str) -> None:
        status = self.expected[job][2]
        until = time.monotonic() + 30
        while self.host.jobs[job].status != status:
            assert time.monotonic() < until, (self.host.jobs[job], status)
            time.sleep(0.001)

    def teardown(self) -> None:
        self.host.__exit__(None, None, None)


JobsAsAModel.TestCase.settings = settings(max_examples=10, stateful_step_count=15, deadline=None)
TestJobsAsAModel = pytest.mark.slow(JobsAsAModel.TestCase)


@tool(idempotent=True)
async def echoes(words: list[str]) -> list[str]:
    return words


def test_a_job_has_a_copy_of_its_arguments(tmp_path: Path) -> None:
    async def change() -> Any:
        async with Tavern.open({}, home=tmp_path / "other", plugins=[Plugin([echoes], name="t")]) as other:
            words = ["as", "given"]
            asked = {"words": words}
            job = (await other.invoke("t:echoes", asked, job=True)).job
            started = await other.jobs.start("t:echoes", asked)
            words.append("changed")
            asked.clear()
            return [other.jobs.result((await other.jobs.wait(each, 30)).id).value for each in (str(job), started.id)]

    assert asyncio.run(change()) == [["as", "given"], ["as", "given"]]


def test_a_job_begun_by_either_way_and_any_spelling_is_of_one_tool() -> None:
    async def begin() -> set[str]:
        names = ("t:work", "t.work", "t_work", "work")
        invoked = [await host.invoke(name, {}, idempotency_key="k", job=True) for name in names]
        started = [await host.jobs.start(name, {}, idempotency_key="k") for name in names]
        return {str(one.job) for one in invoked} | {one.id for one in started}

    (job,) = asyncio.run(begin())
    assert waited(job).status == "completed"
    assert [one.id for one in host.jobs.list(tool="t:work")] == [job]


def test_a_job_of_wrong_texts_is_refused_before_it_is_stored() -> None:
    wrong_texts: list[dict[str, Any]] = [
        {"tool": 5}, {"tool": None}, {"tool": "\ud800"}, {"purpose": object()}, {"purpose": "\ud800"},
        {"idempotency_key": 7}, {"idempotency_key": b"k"}, {"idempotency_key": "\ud800"},
    ]  # fmt: skip
    for wrong in wrong_texts:
        with pytest.raises(CallMisused, match="are text"):
            pytest.fail(f"{wrong}: {host.wait(host.jobs.start(**{'tool': 't:work', **wrong}))}")
        if "tool" not in wrong:
            refused = host.invoke_sync("t:work", job=True, **wrong)
            assert (refused.error and refused.error.kind) == "USAGE", wrong
        assert len(host.jobs) == 0, wrong


def test_a_key_that_holds_a_secret_is_not_stored_with_its_job() -> None:
    key = "sk-proj-" + "a1B2" * 10
    job = begun("always", {"n": 1}, idempotency_key=key)
    assert host.wait(host.jobs.wait(job, 30)).status == "completed"
    assert host.invoke_sync("t:always", {"n": 2}, idempotency_key=key, job=True).ok
    stored = [record.data for kind in ("job", "answer") for record in host.records.list(kind)]
    assert stored
    assert key not in "".join(stored)


def test_a_job_of_arguments_that_no_call_takes_fails_and_does_not_store_them(tmp_path: Path) -> None:
    with opened(tmp_path / "small", limits={"argumentBytes": 1_000}) as small:
        unfit: list[Any] = [{"n": "x" * 2_000}, {"n": object}, [1], "x"]
        for arguments in unfit:
            job = small.invoke_sync("t:always", arguments, job=True).job
            ended = small.wait(small.jobs.wait(str(job), 30))
            assert (ended.status, ended.error and ended.error.kind) == ("failed", "INPUT_SCHEMA_INVALID"), arguments
        records = small.records.list("job")
        assert len(records) == len(unfit)
        for record in records:
            assert json.loads(record.data)["facts"]["arguments"] is None
            assert len(record.data) < 2_000


# Closing -------------------------------------------------------------------------------------------------------------


@tool(idempotent=True)
async def twice(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"


def test_a_job_begun_by_its_method_can_be_resumed_where_it_may_run_twice(tmp_path: Path) -> None:
    def reopened() -> Tavern:
        return Tavern.open({}, home=tmp_path / "kept", plugins=[Plugin([twice], name="t")])

    with reopened() as first:
        job = first.wait(first.jobs.start("t.twice", {"seconds": 3600})).id
        while first.jobs[job].status != "running":
            time.sleep(0.001)
    with reopened() as second:
        assert second.wait(second.jobs.resume(job)).status == "queued"
        assert second.jobs.cancel(job)


class QuickLoop(asyncio.SelectorEventLoop):
    """Once it is quick, long waits take a twentieth of their time, and are noted."""

    def __init__(self) -> None:
        super().__init__()
        self.is_quick = False
        self.waits: list[float] = []

    def call_later(self, delay: float, *args: Any, **options: Any) -> Any:
        if self.is_quick and delay > 2:
            self.waits.append(delay)
            delay /= 20
        return super().call_later(delay, *args, **options)


@pytest.mark.slow
def test_a_host_that_closes_waits_for_all_its_jobs_together(tmp_path: Path) -> None:
    ends = threading.Event()

    async def closed(count: int) -> list[float]:
        begun = threading.Semaphore(0)

        @tool(job=True)
        async def stubborn() -> int:
            begun.release()
            while not ends.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)
            return 1

        loop = asyncio.get_running_loop()
        assert isinstance(loop, QuickLoop)
        async with Tavern.open({}, home=tmp_path / str(count), plugins=[Plugin([stubborn], name="t")]) as other:
            for _ in range(count):
                await other.invoke("t:stubborn")
            await asyncio.to_thread(lambda: [begun.acquire() for _ in range(count)])
            loop.is_quick = True
        return loop.waits

    def waits(count: int) -> list[float]:
        with asyncio.Runner(loop_factory=QuickLoop) as runner:
            return runner.run(closed(count))

    try:
        with ThreadPoolExecutor(2) as threads:  # each host also waits for its thread, seven seconds
            one, four = threads.map(waits, (1, 4))
    finally:
        ends.set()
    assert one == four


@pytest.mark.slow
def test_a_resume_that_the_store_reported_as_failed_is_undone(tmp_path: Path) -> None:
    home = tmp_path / "kept"
    with opened(home):
        job = begun("pay", {"amount": 3}, context=ANN)
        assert waited(job).status == "input_required"
    with opened(home), contextlib.closing(sqlite3.connect(home / "state.sqlite", isolation_level=None)) as file:
        file.execute(
            "CREATE TRIGGER late AFTER UPDATE ON records WHEN new.kind = 'job' BEGIN SELECT RAISE(FAIL, 'late'); END"
        )
        with pytest.raises(StateDamaged, match="late"):
            host.wait(host.jobs.resume(job))
        assert file.execute("SELECT state FROM records WHERE key = ?", (job,)).fetchone() == ("queued",)
        file.execute("DROP TRIGGER late")
        while host.jobs[job].status != "input_required":
            time.sleep(0.001)
        assert host.wait(host.jobs.resume(job)).status == "queued"
        assert waited(job).status == "input_required"
        assert host.jobs.answer(job, True, context=BOSS)
        assert waited(job).status == "completed"
        assert host.jobs.result(job).value == 3


def test_a_job_whose_process_ended_between_its_result_and_its_end_is_listed_as_it_ended(tmp_path: Path) -> None:
    home = tmp_path / "kept"
    with opened(home):
        begun("always", {"n": 1})
        with contextlib.closing(sqlite3.connect(home / "state.sqlite", isolation_level=None)) as file:
            file.execute(
                "CREATE TRIGGER late BEFORE UPDATE ON records WHEN new.state = 'completed' BEGIN SELECT RAISE(FAIL, 'late'); END"
            )
        job = begun("always", {"n": 2})
        while host.jobs.result(job).value != 2:
            time.sleep(0.001)
    with contextlib.closing(sqlite3.connect(home / "state.sqlite", isolation_level=None)) as file:
        file.execute("DROP TRIGGER late")
    with opened(home):
        assert host.jobs[job].status == "completed"
        listed = {status: job in [one.id for one in host.jobs.list(status=status)] for status in JOB_STATUSES}
        assert [status for status in JOB_STATUSES if listed[status]] == ["completed"]
        with pytest.raises(UsageError, match="nothing to resume"):
            host.wait(host.jobs.resume(job))


@pytest.mark.slow
def test_jobs_that_the_close_of_a_host_ends_can_be_resumed_as_after_a_kill(tmp_path: Path) -> None:
    def reopened(**config: Any) -> Any:
        return Tavern.open(config, home=tmp_path / "kept", plugins=[Plugin([pay, twice, forever], name="t")])

    with reopened(jobs={"concurrency": 2}) as first:
        calls: list[tuple[str, dict[str, Any]]] = [
            ("pay", {"amount": 1}), ("twice", {"seconds": 3600}), ("forever", {}), ("pay", {"amount": 2}),
        ]  # fmt: skip
        ids = [str(first.invoke_sync(f"t:{name}", given, context=ANN, job=True).job) for name, given in calls]
        until = time.monotonic() + 30
        while [first.jobs[job].status for job in ids] != ["input_required", "running", "running", "queued"]:
            assert time.monotonic() < until
            time.sleep(0.001)
    with reopened() as second:
        found = [second.jobs[job] for job in ids]
        assert [job.status for job in found] == ["input_required", "failed", "failed", "failed"]
        assert [job.error and (job.error.kind, job.error.outcome) for job in found] == [
            None, ("CONNECTION_LOST", "unknown"), ("CONNECTION_LOST", "unknown"), ("CONNECTION_LOST", "none"),
        ]  # fmt: skip
        assert second.jobs.answer(ids[0], True, context=BOSS)
        second.wait(second.jobs.resume(ids[0]))
        assert second.wait(second.jobs.wait(ids[0], 30)).status == "completed"
        assert second.jobs.result(ids[0]).value == 1
        second.wait(second.jobs.resume(ids[1]))
        with pytest.raises(UsageError, match="it is unknown whether it happened"):
            second.wait(second.jobs.resume(ids[2]))
        second.wait(second.jobs.resume(ids[3]))
        assert second.wait(second.jobs.wait(ids[3], 30)).status == "input_required"


def test_jobs_of_ended_processes_take_no_place_in_a_list_of_running_ones(tmp_path: Path) -> None:
    def opened_again() -> Any:
        return Tavern.open({}, home=tmp_path / "kept", plugins=[Plugin([forever], name="t")])

    with opened_again() as first:
        running = first.invoke_sync("t:forever", {}, job=True).job
        with opened_again() as second:
            lost = second.invoke_sync("t:forever", {}, job=True).job
            while {first.jobs[job].status for job in (running, lost)} != {"running"}:
                pass
        assert first.jobs[lost].status == "failed"
        assert [job.id for job in first.jobs.list(status="running", most=1)] == [running]


def test_a_job_that_has_seen_its_connection_lost_is_not_resumed() -> None:
    for key, why in (("k", "is over: there is nothing to resume"), (None, "it is unknown whether it happened")):
        job = begun("cut", idempotency_key=key)
        assert waited(job).status == "failed"
        with pytest.raises(UsageError, match=why):
            host.wait(host.jobs.resume(job))


@functools.cache
def _asked_and_left(ending: str, flow: str, is_job: bool) -> tuple[str, tempfile.TemporaryDirectory[str]]:
    """A job, and a folder with its workflow and the state that its process has left."""
    place = tempfile.TemporaryDirectory()
    folder = Path(place.name)
    (folder / "flows").mkdir()
    (folder / "flows" / "ask.json").write_text(flow, encoding="utf-8")
    config = {"workflows": {"roots": [str(folder / "flows")]}}
    with start(ASKS, folder / "kept", json.dumps(config), ending, "job" if is_job else "call") as other:
        assert other.stdout is not None
        job = other.stdout.readline().strip()
        if ending == "kill":
            other.kill()
        other.wait()
    return job, place


def asked_and_left(folder: Path, ending: str, flow: Any = ASK, is_job: bool = True) -> tuple[str, dict[str, Any]]:
    """The job of a workflow that asks, whose process has ended, and the configuration of its host. Its key is `k`.

    The process runs once for all tests; each has a copy of what it left.
    """
    job, place = _asked_and_left(ending, json.dumps(flow), is_job)
    shutil.copytree(place.name, folder, dirs_exist_ok=True)
    return job, {"workflows": {"roots": [str(folder / "flows")]}}


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_run_whose_first_process_has_ended_is_over_when_its_job_is_cancelled(
    tmp_path: Path, is_resumed: bool
) -> None:
    job, config = asked_and_left(tmp_path, "kill")
    with opened(tmp_path / "kept", **config):
        if is_resumed:
            host.wait(host.jobs.resume(job))
            assert waited(job).status == "input_required"
        assert host.jobs.cancel(job)
        assert waited(job).status == "cancelled"
        kept = host.workflows.kept_run(job)
        assert kept is not None and kept.state == "cancelled"
        assert not host.jobs.cancel(job)


@pytest.mark.parametrize("ending", ["close", "kill"])
def test_the_same_call_with_the_same_key_is_the_run_that_waits_without_a_process(tmp_path: Path, ending: str) -> None:
    job, config = asked_and_left(tmp_path, ending)
    options: dict[str, Any] = {"job": True, "idempotency_key": "k"}
    with opened(tmp_path / "kept", **config):
        again = host.invoke_sync("workflow:ask", {}, **options)
        assert (again.job, again.value["status"]) == (job, "input_required")
        assert host.jobs.answer(job, "red")
        host.wait(host.jobs.resume(job))
        assert waited(job).status == "completed"
        again = host.invoke_sync("workflow:ask", {}, **options)
        assert (again.job, again.value["status"]) == (job, "completed")


ASK_AND_PARSE: dict[str, Any] = {
    "name": "ask", "description": "asks",
    "nodes": [
        {"id": "q", "type": "core:Ask", "inputValues": {"prompt": "which?"}},
        {"id": "p", "type": "core:JsonParse"},
        {"id": "out", "type": "core:GroupOutput"},
    ],
    "edges": [
        {"id": "1", "source": "q", "sourceHandle": "answer", "target": "p", "targetHandle": "text"},
        {"id": "2", "source": "p", "sourceHandle": "value", "target": "out", "targetHandle": "value"},
    ],
    "interfaceOutputs": {"value": {"dataFlowType": "WILDCARD"}},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["close", "kill"])
@pytest.mark.parametrize(
    ("is_job", "answer", "status", "result"),
    [
        (True, "[1]", "completed", ("ok", [1], None)),
        (True, "{", "failed", ("error", None, "TOOL_ERROR")),
        (True, None, "cancelled", ("error", None, "CANCELLED")),
        (False, "[1]", "completed", ("ok", [1], None)),
        (False, "{", "failed", ("error", None, "TOOL_ERROR")),
        (False, None, "cancelled", ("error", None, "CANCELLED")),
    ],
)
def test_the_same_call_with_the_same_key_follows_the_run_that_ended_in_another_process(
    tmp_path: Path, ending: str, is_job: bool, answer: str | None, status: str, result: tuple[str, Any, str | None]
) -> None:
    job, config = asked_and_left(tmp_path, ending, ASK_AND_PARSE, is_job)
    with opened(tmp_path / "kept", **config):
        waiting = host.invoke_sync("workflow:ask", {}, idempotency_key="k", job=is_job)
        assert (waiting.job, waiting.value["status"]) == (job, "input_required")
        if answer is None:
            assert host.jobs.cancel(job)
        else:
            assert host.jobs.answer(job, answer)
            host.wait(host.jobs.resume(job))
        assert waited(job).status == status
        again = host.invoke_sync("workflow:ask", {}, idempotency_key="k", job=is_job)
        if is_job:
            assert (again.job, again.value["status"]) == (job, status)
            again = host.jobs.result(job)
        assert (again.job, again.status, again.value, again.error and again.error.kind) == (job, *result)
        assert [run.run_id for run in host.workflows.kept()] == [job]
        assert [one.id for one in host.jobs.list()] == [job]


def test_a_job_whose_key_is_that_of_a_run_that_waits_names_that_run(tmp_path: Path) -> None:
    job, config = asked_and_left(tmp_path, "close", ASK_AND_PARSE, is_job=False)
    with opened(tmp_path / "kept", **config):
        options: dict[str, Any] = {"job": True, "idempotency_key": "k"}
        later = waited(str(host.invoke_sync("workflow:ask", {}, **options).job))
        found = host.jobs.result(later.id)
        assert (found.status, found.job, found.value["status"]) == ("job", job, "input_required")
        assert [run.run_id for run in host.workflows.kept()] == [job]


def test_a_key_holds_while_its_run_waits_and_as_long_as_configured_after_its_end(tmp_path: Path) -> None:
    now, day = time.time(), 86_400
    with pytest.MonkeyPatch.context() as patch:

        def called_after(days: float) -> ToolResult:
            patch.setattr(time, "time", lambda: now + days * day)
            with opened(tmp_path / "kept", **config):
                return host.invoke_sync("workflow:ask", {}, idempotency_key="k")

        def answered(job: str) -> None:
            with opened(tmp_path / "kept", **config):
                assert host.jobs.answer(job, "[1]")
                host.wait(host.jobs.resume(job))
                assert waited(job).status == "completed"

        job, config = asked_and_left(tmp_path, "close", ASK_AND_PARSE, is_job=False)
        waiting = called_after(3)
        assert (waiting.job, waiting.value["status"]) == (job, "input_required")
        answered(job)
        assert (called_after(3.9).job, called_after(3.9).value) == (job, [1])
        assert called_after(4.1).job != job


@pytest.mark.slow
@pytest.mark.parametrize("is_job", [True, False])
@pytest.mark.parametrize("end", ["resume", "answer", "cancel"])
def test_what_becomes_of_a_run_later_is_when_it_was_updated(tmp_path: Path, is_job: bool, end: str) -> None:
    job, config = asked_and_left(tmp_path, "close", ASK_AND_PARSE, is_job)
    now = time.time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: now + 86_400)
        with opened(tmp_path / "kept", **config):
            before = host.jobs[job]
            assert before.created <= before.updated <= now
            if end == "cancel":
                assert host.jobs.cancel(job)
            else:
                host.wait(host.jobs.resume(job))
                assert waited(job).status == "input_required"
            if end == "answer":
                assert host.jobs.answer(job, "[1]")
                assert waited(job).status == "completed"
            (listed,) = host.jobs.list()
            (run,) = host.workflows.kept()
            assert [host.jobs[job].updated, listed.updated, run.updated] == [now + 86_400] * 3
            assert host.jobs[job].created == before.created


@pytest.mark.parametrize("ending", ["close", "kill"])
def test_a_run_that_waits_for_an_answer_still_does_after_its_host_has_ended(tmp_path: Path, ending: str) -> None:
    job, config = asked_and_left(tmp_path, ending)
    with opened(tmp_path / "kept", **config):
        assert (host.jobs[job].status, host.jobs[job].error) == ("input_required", None)
        assert [one.id for one in host.jobs.list(status="input_required")] == [job]
        assert host.jobs.list(status="failed") == ()
        assert host.jobs.answer(job, "red")
        assert host.jobs.inspect(job) == (host.jobs[job], True), "no process takes the answer up"
        host.wait(host.jobs.resume(job))
        assert host.wait(host.jobs.wait(job, 30)).status == "completed"
        with pytest.raises(UsageError, match="there is nothing to resume"):
            host.wait(host.jobs.resume(job))
        assert host.jobs.result(job).ok


ASKS = """
import json, sys, time
from tavern_core import Tavern

with Tavern.open(json.loads(sys.argv[2]), home=sys.argv[1]) as host:
    job = host.invoke_sync("workflow:ask", {}, job=sys.argv[4] == "job", idempotency_key="k").job
    while host.jobs[job].status != "input_required":
        time.sleep(0.01)
    print(job, flush=True)
    if sys.argv[3] == "kill":
        time.sleep(3600)
"""


@pytest.mark.parametrize("waits", ["slot", "approval"])
def test_a_job_that_is_cancelled_before_its_tool_ran_changed_nothing(tmp_path: Path, waits: str) -> None:
    with opened(tmp_path / "one", jobs={"concurrency": 1}):
        if waits == "slot":
            begun("forever")
        job = begun("pay" if waits == "approval" else "always", {"amount": 1} if waits == "approval" else {"n": 1})
        until = time.monotonic() + 30
        while host.jobs[job].status != ("input_required" if waits == "approval" else "queued"):
            assert time.monotonic() < until
            time.sleep(0.001)
        assert host.jobs.cancel(job)
        while not host.jobs[job].is_over:
            assert time.monotonic() < until
            time.sleep(0.001)
        error = host.jobs.result(job).error
        assert error is not None
        assert (error.kind, error.outcome) == ("CANCELLED", "none")
        assert error.fix.startswith("call it again")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["jobs answer", "approvals approve"])
def test_the_command_line_resumes_a_job(command: str, tmp_path: Path) -> None:
    plugin = tmp_path / "plugins" / "app"
    plugin.mkdir(parents=True)
    (plugin / "plugin.yaml").write_text(
        'name: app\nversion: "1.0.0"\ntools:\n  - {id: again, implementation: {type: python}}\n', encoding="utf-8"
    )
    (plugin / "__init__.py").write_text(
        "from tavern_core import hookimpl, tool\n\n@tool(idempotent=True)\ndef again(n: int) -> int:\n    return n\n\n"
        "@hookimpl\ndef tavern_register_tools(ctx):\n    return [again]\n",
        encoding="utf-8",
    )

    @tool(idempotent=True)
    async def again(n: int) -> int:
        await asyncio.sleep(3600)
        return n

    (tmp_path / "tavern.yaml").write_text("approval: {ask: ['app:again']}", encoding="utf-8")
    home = tmp_path / "kept"
    with Tavern.open({}, home=home, plugins=[Plugin([again], name="app")]) as first:
        job = str(first.invoke_sync("app:again", {"n": 5}, job=True).job)
    asks = programs.tavern("jobs", "resume", job, cwd=tmp_path, home=home)
    assert asks.returncode == 3 and f"`tavern jobs answer {job} true`" in asks.stdout + asks.stderr
    asked = re.findall(r"apr-\w+", asks.stdout + asks.stderr)[0]
    given = (job, "true") if command == "jobs answer" else (asked,)
    said = programs.tavern(*command.split(), *given, cwd=tmp_path, home=home)
    assert said.returncode == 0 and job in said.stdout
    assert said.stderr == f"if no process runs it any more: tavern jobs resume {job}\n"
    done = programs.tavern("jobs", "resume", job, "--json", cwd=tmp_path, home=home)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"]["value"] == 5


@pytest.mark.slow
def test_the_command_line_makes_a_call_as_a_job_that_may_be_approved_later(tmp_path: Path) -> None:
    (tmp_path / "tavern.yaml").write_text("approval: {ask: ['system:*']}", encoding="utf-8")

    def tavern(*words: str) -> Any:
        return programs.tavern(*words, cwd=tmp_path, home=tmp_path / "kept")

    asks = tavern("tools", "call", "system:get_current_time", "--job", "--json")
    job = json.loads(asks.stdout)["value"]["jobId"]
    assert asks.returncode == 3
    assert tavern("jobs", "answer", job, "true").returncode == 0
    done = tavern("jobs", "resume", job, "--json")
    assert json.loads(done.stdout)["result"]["ok"], done.stderr
    refused = tavern("tools", "call", "system:get_current_time", "--commit", "plan-0", "--job")
    assert (refused.returncode, "--commit and --job do not go together" in refused.stderr) == (2, True)


class Keyed:
    """A tool whose jobs have keys, in a home that others may open, too."""

    def __init__(self) -> None:
        self.runs = 0

    def open(self, home: Path, store: str = "sqlite") -> Tavern:
        @tool
        async def once(n: int, fails_first: bool = False) -> int:
            self.runs += 1
            await asyncio.sleep(0.01)
            if fails_first and self.runs == 1:
                raise ToolFailed("not yet")
            return n

        state = {"state": {"store": store}}
        return Tavern.open(state, home=home, plugins=[Plugin([once], name="t")])


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "memory", "redis"])
def test_the_same_call_with_the_same_key_is_one_job(tmp_path: Path, store: str) -> None:
    with redis_server.database() as address:
        made = Keyed()
        store = address if store == "redis" else store
        with made.open(tmp_path / "home", store) as first, made.open(tmp_path / "home", store) as second:
            hosts = [first] if store == "memory" else [first, second]
            call = {"n": 1}
            started = [
                host.invoke_sync("t:once", call, job=True, idempotency_key="k", context=ANN)
                for host in hosts
                for _ in range(5)
            ]
            ids = {result.job for result in started}
            assert len(ids) == 1
            job = str(ids.pop())
            assert first.wait(first.jobs.wait(job, 20)).status == "completed"
            assert first.jobs.result(job).value == 1
            over = first.invoke_sync("t:once", call, job=True, idempotency_key="k", context=ANN)
            assert (over.job, over.value["status"]) == (job, "completed")
            others = [
                first.invoke_sync("t:once", {"n": 2}, job=True, idempotency_key="k", context=ANN),
                first.invoke_sync("t:once", call, job=True, idempotency_key="k", context=BOB),
                first.invoke_sync("t:once", call, job=True, idempotency_key="other", context=ANN),
            ]
            ends = [first.wait(first.jobs.wait(str(result.job), 20)) for result in others]
            assert len({job, *(end.id for end in ends)}) == 4
            assert [end.error and end.error.kind for end in ends] == ["IDEMPOTENCY_CONFLICT", None, None]
            assert made.runs == 3


KILLED = """
import os, signal, sys
from tavern_core import Plugin, Tavern, tool

home, effects, when = sys.argv[1:]

def end():
    os.kill(os.getpid(), signal.SIGKILL)

@tool
def pay(n: int) -> int:
    if when == "before":
        end()
    with open(effects, "a") as file:
        file.write("paid\\n")
    return n

with Tavern.open({}, home=home, plugins=[Plugin([pay], name="t")]) as host:
    add = host.records.add

    def added(record):
        if (when, record.kind) == ("its key", "answer"):
            end()
        if (when, record.kind) == ("its result", "job-result"):
            end()
        known = add(record)
        if (when, record.kind) == ("its end", "job-result"):
            end()
        return known

    host.records.add = added
    started = host.invoke_sync("t:pay", {"n": 7}, job=True, idempotency_key="k")
    job = host.wait(host.jobs.wait(started.job, 30))
    print(job.status, job.error and job.error.outcome, host.jobs.result(job.id).value)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "resumed", "effects"),
    [
        ("its key", ("completed", None, 7), 1),
        ("before", ("failed", "unknown", None), 0),
        ("its result", ("completed", None, 7), 1),
        ("its end", ("completed", None, 7), 1),
    ],
)
@pytest.mark.parametrize("how", ["resumed", "called again"])
def test_a_job_with_a_key_whose_process_was_killed_gets_the_answer_that_there_is_and_has_no_second_effect(
    tmp_path: Path, when: str, resumed: tuple[str, str | None, Any], effects: int, how: str
) -> None:
    paid = tmp_path / "paid"
    with start(KILLED, tmp_path / "home", paid, when) as killed:
        killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    if how == "called again":
        out = run(KILLED, tmp_path / "home", paid, "never")
        assert out.split() == [str(part) for part in resumed]
    else:

        @tool
        def pay(n: int) -> int:
            paid.write_text(paid.read_text() + "paid\n" if paid.exists() else "paid\n")
            return n

        with Tavern.open({}, home=tmp_path / "home", plugins=[Plugin([pay], name="t")]) as other:
            (job,) = other.jobs.values()
            if when != "its end":
                assert (job.status, job.error and job.error.outcome) == ("failed", "unknown")
                other.wait(other.jobs.resume(job.id))
                job = other.wait(other.jobs.wait(job.id, 30))
            assert (job.status, job.error and job.error.outcome, other.jobs.result(job.id).value) == resumed
    assert (paid.read_text().count("paid") if paid.exists() else 0) == effects


def test_a_key_that_is_free_again_is_a_new_job(tmp_path: Path) -> None:
    made = Keyed()
    with made.open(tmp_path) as host:
        call = {"n": 1, "fails_first": True}
        ends = []
        for _ in range(2):
            job = host.invoke_sync("t:once", call, job=True, idempotency_key="k").job
            ends.append(host.wait(host.jobs.wait(str(job), 20)))
        assert [end.status for end in ends] == ["failed", "completed"]
        assert ends[0].id != ends[1].id
        assert host.invoke_sync("t:once", call, job=True, idempotency_key="k").job == ends[1].id
    assert made.runs == 2


@pytest.mark.slow
def test_a_job_that_several_processes_resume_at_the_same_time_runs_once(tmp_path: Path) -> None:
    runs: list[int] = []

    @tool
    async def first() -> None:
        await asyncio.sleep(3600)

    @tool
    async def pay(n: int) -> None:
        runs.append(n)

    def open_one() -> Tavern:
        return Tavern.open({"jobs": {"concurrency": 1}}, home=tmp_path, plugins=[Plugin([first, pay], name="t")])

    with open_one() as before:
        before.invoke_sync("t:first", job=True)
        jobs = [str(before.invoke_sync("t:pay", {"n": n}, job=True).job) for n in range(30)]
    with contextlib.ExitStack() as stack:
        hosts = [stack.enter_context(open_one()) for _ in range(4)]
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1e-5)
        for job in jobs:
            together = threading.Barrier(len(hosts))

            def resume(host: Tavern, job: str = job, together: threading.Barrier = together) -> None:
                together.wait()
                with contextlib.suppress(UsageError):  # another one was faster
                    host.wait(host.jobs.resume(job))

            threads = [threading.Thread(target=resume, args=(host,)) for host in hosts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert hosts[0].wait(hosts[0].jobs.wait(job, 20)).status == "completed"
    assert sorted(runs) == list(range(30))


RESUMES = """
import asyncio, json, os, sys
from tavern_core import Plugin, Tavern, hookimpl, node, tool
from tavern_core.errors import UsageError
home, flows, effects, config, what = sys.argv[1:]

async def act():
    with open(effects, "a") as file:
        file.write(f"{os.getpid()}\\n")
    print("acts", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    return "done"

@node("Acts")
async def acts() -> str:
    return await act()

@tool(idempotent=True)
async def slow() -> str:
    return await act()

class Parts:
    @hookimpl
    def tavern_register_nodes(self):
        return [acts]
    @hookimpl
    def tavern_register_tools(self):
        return [slow]

async def main():
    manifest = {"nodes": [{"name": "Acts"}], "tools": [{"id": "slow", "implementation": {"type": "python"}}]}
    plugin = Plugin(Parts(), name="n", manifest=manifest)
    async with Tavern.open({"workflows": {"roots": [flows]}} | json.loads(config), home=home, plugins=[plugin]) as host:
        if ":" in what:
            print((await host.invoke(what, {}, job=True)).job, flush=True)
            await asyncio.sleep(3600)
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            if what.startswith("run-"):
                print("resumed", (await host.workflows.resume(what)).ok, flush=True)
            else:
                await host.jobs.resume(what)
                print("resumed", (await host.jobs.wait(what, 60)).status == "completed", flush=True)
        except UsageError as error:
            print("refused", error.message, flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "redis"])
@pytest.mark.parametrize("what", ["workflow:acts", "n:slow"])
def test_of_two_processes_that_resume_a_job_or_a_run_at_once_one_carries_on(
    tmp_path: Path, what: str, store: str
) -> None:
    flows, effects = tmp_path / "flows", tmp_path / "effects"
    flows.mkdir()
    flow = {"name": "acts", "description": "acts", "nodes": [{"id": "a", "type": "n:Acts"}], "edges": []}
    (flows / "acts.json").write_text(json.dumps(flow), encoding="utf-8")
    with redis_server.database() as address, contextlib.ExitStack() as stack:
        config = json.dumps({"state": {"store": address if store == "redis" else store}})
        with start(RESUMES, tmp_path / "home", flows, effects, config, what) as first:
            said = {first.stdout.readline().strip() for _ in range(2)}
            (job,) = said - {"acts"}
            first.kill()
            first.wait()
        others = [stack.enter_context(start(RESUMES, tmp_path / "home", flows, effects, config, job)) for _ in range(2)]
        for other in others:
            assert other.stdout.readline() == "ready\n"
        for other in others:
            other.stdin.write("\n")
            other.stdin.flush()
        answers = {other.stdout.readline().strip(): other for other in others}
        (refused,) = (each for each in answers if each.startswith("refused"))
        assert job in refused
        answers["acts"].stdin.write("\n")
        answers["acts"].stdin.flush()
        assert answers["acts"].stdout.readline() == "resumed True\n"
        assert len(effects.read_text().split()) == 2


@pytest.mark.slow
def test_a_corrupt_answer_in_the_store_keeps_no_job_from_being_cancelled_or_answered(tmp_path: Path) -> None:
    @tool
    async def asks(ctx: ToolContext) -> Any:
        return await ctx.ask("How?", {"type": "object", "properties": {"how": {"type": "string"}}}, key="q")

    def open_one() -> Tavern:
        return Tavern.open({}, home=tmp_path, plugins=[Plugin([asks], name="t")])

    with open_one() as host, open_one() as other:
        jobs = [str(host.invoke_sync("t:asks", job=True).job) for _ in range(2)]
        for job in jobs:
            assert host.wait(host.jobs.wait(job, 20)).status == "input_required"
            host.records.add(Record("job-answer", f"{job}\x1fq", "", "given", "[not JSON", time.time()))
        other.jobs.cancel(jobs[0])
        other.jobs.answer(jobs[1], {"how": "well"})
        while not all(host.jobs[job].is_over for job in jobs):
            pass
        assert [host.jobs[job].status for job in jobs] == ["cancelled", "completed"]
