"""Workflows with nodes whose calls need approval: what happens before and after the answer, and what runs only once."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from typing import Any

import pytest

from tavern_core import CallContext, Plugin, Tavern, tool
from tavern_core.errors import UpstreamError, UsageError
from tests.workflows.folder import CALLS, Flows

ANN = CallContext(principal="user:ann")
BOSS = CallContext(principal="user:boss", roles=frozenset({"approver"}))
PAY = {"type": "core:CallTool", "tool": "bank:pay"}
ALONE: dict[str, Any] = {"p": PAY}
AFTER_A_NODE: dict[str, Any] = {"n": {"type": "t:Plain"}, "p": {**PAY, "more": 1}}
NOTE = {"type": "core:CallTool", "tool": "bank:note"}
AFTER_A_CALL: dict[str, Any] = {"n": NOTE, "p": {**PAY, "more": 1}}


class Bank:
    def __init__(self) -> None:
        self.done: list[str] = []

        @tool(requires_approval=True)
        def pay(more: Any = None) -> int:
            self.done.append("pay")
            return 5

        @tool
        def note() -> int:
            self.done.append("note")
            return 1

        self.plugin = Plugin([pay, note], name="bank")


@pytest.fixture
def bank() -> Bank:
    return Bank()


def approve(host: Tavern) -> None:
    (pending,) = host.approvals.list()
    host.approvals.approve(pending.id, by=BOSS)


def test_a_call_with_a_key_runs_after_the_approval(flows: Flows, bank: Bank) -> None:
    flows.write("w", ALONE)
    with flows.open(bank.plugin) as host:
        waiting = host.invoke_sync("workflow:w", context=ANN, idempotency_key="k")
        assert waiting.error is not None
        assert (waiting.status, waiting.error.outcome) == ("input_required", "none")
        assert waiting.error.details["approval"] == host.approvals.list()[0].id
        assert waiting.error.message.count("bank:pay") == 1
        approve(host)
        assert [host.invoke_sync("workflow:w", context=ANN, idempotency_key="k").ok for _ in range(2)] == [True, True]
    assert bank.done == ["pay"]


@pytest.mark.parametrize(
    ("nodes", "edges", "before"), [(AFTER_A_NODE, "n.y>p.more", []), (AFTER_A_CALL, "n.value>p.more", ["note"])]
)
def test_after_a_node_that_may_have_changed_something_the_run_is_resumed(
    flows: Flows, bank: Bank, nodes: dict[str, Any], edges: str, before: list[str]
) -> None:
    flows.write("w", nodes, edges)
    with flows.open(bank.plugin) as host:
        waiting = host.invoke_sync("workflow:w", context=ANN, idempotency_key="k")
        assert waiting.error is not None
        assert (waiting.error.kind, waiting.error.outcome) == ("APPROVAL_REQUIRED", "unknown")
        assert "approval" not in waiting.error.details
        run = waiting.error.details["runId"]
        assert f"`tavern workflows resume {run}`" in waiting.error.fix
        approve(host)
        assert host.workflows.resume_sync(run, context=ANN).ok
    assert bank.done == [*before, "pay"]
    assert CALLS.count("plain") <= 1


def test_the_token_of_a_plan_stays_valid_until_the_approval(flows: Flows, bank: Bank) -> None:
    flows.write("w", ALONE)
    with flows.open(bank.plugin) as host:
        token = host.invoke_sync("workflow:w", context=ANN, dry_run=True).value["planToken"]
        assert host.commit_sync(token, context=ANN).status == "input_required"
        approve(host)
        assert [host.commit_sync(token, context=ANN).status for _ in range(2)] == ["ok", "error"]
    assert bank.done == ["pay"]


@pytest.mark.parametrize(
    ("after", "moved", "holds"),
    [({"n": NOTE}, 9, True), ({"n": PAY}, 0, False), ({"n": NOTE, "m": NOTE}, 0, False)],
    ids=["its layout", "the tool of a node", "a second node"],
)
def test_an_approval_and_a_plan_hold_for_the_steps_of_a_workflow(
    flows: Flows, bank: Bank, after: dict[str, Any], moved: int, holds: bool
) -> None:
    flows.write("w", {"n": NOTE})
    with flows.open(bank.plugin, approval={"ask": ["workflow:w"]}) as host:
        token = host.invoke_sync("workflow:w", context=ANN, dry_run=True).value["planToken"]
        assert host.commit_sync(token, context=ANN).status == "input_required"
        approve(host)
        file = flows.write("w", after)
        document = json.loads(file.read_text("utf-8"))
        document["nodes"][0]["position"] = {"x": moved, "y": 0}
        file.write_text(json.dumps(document), "utf-8")
        committed = host.commit_sync(token, context=ANN)
        assert (committed.ok, committed.error and committed.error.kind) == (holds, None if holds else "POLICY_DENIED")
        assert holds or host.invoke_sync("workflow:w", context=ANN).status == "input_required"
    assert bank.done == ["note"] * holds


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("fate", ["approved", "rejected", "cancelled"])
def test_a_job_waits_for_the_approval_also_after_a_node_that_may_have_changed_something(
    flows: Flows, bank: Bank, key: str | None, is_closed: bool, fate: str
) -> None:
    flows.write("w", AFTER_A_CALL, "n.value>p.more")
    with flows.open(bank.plugin) as host:
        job = host.invoke_sync("workflow:w", context=ANN, job=True, idempotency_key=key).job
        assert job is not None
        assert host.wait(host.jobs.wait(job, 30)).status == "input_required"
        if key is not None:
            assert host.invoke_sync("workflow:w", context=ANN, job=True, idempotency_key=key).job == job
            assert not host.invoke_sync("workflow:w", context=ANN, idempotency_key=key).ok
        if not is_closed:
            _decide(host, job, fate)
    if is_closed:
        with flows.open(bank.plugin) as host:
            assert host.jobs[job].status == "input_required"
            _decide(host, job, fate)
    with flows.open(bank.plugin) as host:
        ended = host.jobs[job]
        error = host.jobs.result(job).error
        again = host.invoke_sync("workflow:w", context=ANN, idempotency_key=key) if key is not None else None
    assert bank.done == ["note", "pay"][: 2 if fate == "approved" else 1]
    assert ended.status == {"approved": "completed", "rejected": "failed", "cancelled": "cancelled"}[fate]
    kind = {"approved": None, "rejected": "APPROVAL_REJECTED", "cancelled": "CANCELLED"}[fate]
    assert (error and (error.kind, error.outcome)) == (kind and (kind, "unknown"))
    assert again is None or again.ok == (fate == "approved")


def _decide(host: Tavern, job: str, fate: str) -> None:
    if fate == "cancelled":
        host.jobs.cancel(job)
    else:
        (pending,) = host.approvals.list()
        (host.approvals.approve if fate == "approved" else host.approvals.reject)(pending.id, by=BOSS)
        with suppress(UsageError):  # it runs here, or is over
            host.wait(host.jobs.resume(job))
    while host.wait(host.jobs.wait(job, 30)).status == "input_required":
        pass  # the decision reaches it in a moment


@pytest.mark.parametrize("is_approved", [True, False])
def test_a_job_waits_for_the_approval_and_goes_on_as_the_same_run(flows: Flows, bank: Bank, is_approved: bool) -> None:
    flows.write("w", ALONE)
    with flows.open(bank.plugin) as host:
        job = host.invoke_sync("workflow:w", context=ANN, job=True).job
        assert job is not None
        asking = host.wait(host.jobs.wait(job, 30))
        assert (asking.status, asking.questions[0]["type"]) == ("input_required", "approval")
        assert host.jobs[job].status == "input_required"
        assert host.jobs.answer(job, is_approved, context=BOSS)
        done = host.wait(host.jobs.wait(job, 30))
        result = host.jobs.result(job)
    assert (done.id, done.status, bank.done) == (job, "completed" if is_approved else "failed", ["pay"] * is_approved)
    assert is_approved or (result.error is not None and result.error.kind == "APPROVAL_REJECTED")


def test_a_job_with_secrets_goes_on_with_them(flows: Flows, bank: Bank) -> None:
    secret = {"dataFlowType": "OBJECT", "required": True}
    flows.write("w", {"in": {"type": "core:GroupInput"}, **ALONE}, "in.more>p.more", interfaceInputs={"more": secret})
    with flows.open(bank.plugin) as host:
        job = host.invoke_sync("workflow:w", {"more": {"password": "hunter2-very-secret"}}, context=ANN, job=True).job
        assert job is not None
        assert host.wait(host.jobs.wait(job, 30)).status == "input_required"
        approve(host)
        assert host.wait(host.jobs.wait(job, 30)).status == "completed"
    assert bank.done == ["pay"]


@pytest.mark.parametrize(("failure", "status"), [("", "completed"), ("the bank is away", "failed")])
def test_a_job_has_the_result_of_its_run_that_another_host_resumed_after_the_approval(
    flows: Flows, failure: str, status: str
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    @tool(requires_approval=True)
    def pay(more: Any = None) -> int:
        done.append("pay")
        begun.set()
        assert go_on.wait(30)
        if failure:
            raise UpstreamError(failure)
        return 5

    flows.write("w", ALONE)
    with flows.open(Plugin([pay], name="bank")) as host, flows.open(Plugin([pay], name="bank")) as other:
        job = host.invoke_sync("workflow:w", context=ANN, job=True).job
        assert job is not None
        assert host.wait(host.jobs.wait(job, 30)).status == "input_required"
        (pending,) = host.approvals.list()

        def resume() -> None:
            with suppress(UsageError):  # the job was faster
                other.workflows.resume_sync(job, context=ANN)

        resumed = threading.Thread(target=resume)
        other.approvals.approve(pending.id, by=BOSS)
        resumed.start()
        assert begun.wait(30)
        go_on.set()
        resumed.join(30)
        ended = host.wait(host.jobs.wait(job, 30))
        result = host.jobs.result(job)
    assert (ended.status, done) == (status, ["pay"])
    assert result.value == (None if failure else {"value": 5})
    assert result.error is None or (result.error.kind, result.error.outcome) == ("UPSTREAM_ERROR", "unknown")


@pytest.mark.parametrize("door", ["jobs", "workflows"])
def test_a_job_whose_process_ended_while_it_waited_is_resumed_after_the_approval(
    flows: Flows, bank: Bank, door: str
) -> None:
    flows.write("w", ALONE)
    with flows.open(bank.plugin) as host:
        job = host.invoke_sync("workflow:w", context=ANN, job=True).job
        assert job is not None
        host.wait(host.jobs.wait(job, 30))
    with flows.open(bank.plugin) as host:
        assert host.jobs[job].status == "input_required"
        approve(host)
        host.wait(getattr(host, door).resume(job))
        assert host.wait(host.jobs.wait(job, 30)).status == "completed"
        assert host.jobs.result(job).ok
    assert bank.done == ["pay"]
