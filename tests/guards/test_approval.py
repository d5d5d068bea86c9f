"""Calls that wait for somebody: who is asked, what is shown, and that exactly what was approved runs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import os
import pty
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from subprocess import PIPE
from typing import Annotated, Any

import pytest

from tavern_core import (
    Approval,
    ApprovalRequest,
    Budget,
    CallContext,
    Guard,
    Plugin,
    Tavern,
    ToolResult,
    deny,
    hookimpl,
    require_approval,
    tool,
)
from tests.forked_programs import ForkedProgram, run_forked

RAN: list[Any] = []


@tool(requires_approval=True)
def wipe(place: str, keys: list[str] | None = None, password: str = "") -> str:
    RAN.append((place, keys))
    return f"wiped {place}"


@tool(requires_approval=True)
async def wipe_later(place: str) -> str:
    RAN.append(place)
    return place


@tool(capabilities=["write:fs"])
def write(place: str) -> str:
    RAN.append(place)
    return place


@tool(read_only=True)
def look(place: str) -> str:
    return place


class Gate:
    """Wants approval of whatever names a place with a star; forbids what names a cross."""

    @hookimpl
    def tavern_check_call(self, call: Any) -> Any:
        place = call.arguments.get("place", "")
        if "x" in place:
            return deny("no crosses")
        return (
            require_approval("the place is special", where=place, message="not an argument of errors")
            if "*" in place
            else None
        )


WRITES = {"version": "1", "permissions": {"capabilities": ["write:fs"]}}


class Host:
    """Opens hosts with those tools and keeps what they were asked."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._stack = contextlib.ExitStack()
        self.asked: list[ApprovalRequest] = []

    def open(self, answer: Any = None, *more: Plugin, **config: Any) -> Tavern:
        """`answer`: a value, a function of the request, or None when nobody can be asked."""

        def approve(request: ApprovalRequest) -> Any:
            self.asked.append(request)
            return answer(request) if callable(answer) else answer

        tools = Plugin([wipe, wipe_later, write, look], name="desk", manifest=WRITES)
        return self._stack.enter_context(
            Tavern.open(
                config=config,
                home=self._home,
                plugins=[tools, *more, Plugin(Gate(), name="gate")],
                approve=None if answer is None else approve,
            )
        )

    def events(self, tavern: Tavern) -> list[dict[str, Any]]:
        """The types and data of what was recorded."""
        lines = (self._home / "audit" / "audit.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    RAN.clear()
    made = Host(tmp_path / "home")
    yield made
    made.close()


def kind(result: ToolResult) -> str:
    return "" if result.error is None else result.error.kind


def test_an_approved_call_runs_and_is_on_the_record_with_its_request_and_answer(host: Host) -> None:
    tavern = host.open(lambda request: request.approve(by="user:alice", reason="fine"))
    result = tavern.invoke_sync("desk:wipe", {"place": "a", "password": "hunter2"}, purpose="spring cleaning")
    assert result.value == "wiped a"
    (request,) = host.asked
    assert (request.tool, request.plugin, request.principal, request.risk) == ("desk:wipe", "desk", "host", "medium")
    assert request.call_id == result.call_id
    assert request.arguments["password"] == "***"
    assert request.purpose == "spring cleaning"
    assert request.asked_by == "the tool"
    assert time.time() < request.expires_at <= time.time() + 300
    assert json.dumps(request.to_json())
    events = [e for e in host.events(tavern) if e["callId"] == result.call_id]
    assert [e["type"] for e in events] == ["APPROVAL_REQUESTED", "APPROVAL_DECIDED", "TOOL_CALLED", "TOOL_RESULT"]
    assert events[0]["fingerprint"] == events[1]["fingerprint"] == request.fingerprint
    assert (events[1]["approved"], events[1]["by"], events[1]["reason"], events[1]["how"]) == (
        True,
        "user:alice",
        "fine",
        "answered",
    )
    assert "hunter2" not in json.dumps(events)


REFUSALS: list[tuple[Any, str]] = [
    (False, "was not approved"),
    (lambda r: r.reject("too risky", by="user:bob"), "was not approved by user:bob: too risky"),
    (lambda r: Approval(False), "was not approved"),
    (lambda r: None, "answered NoneType"),
    (lambda r: 1, "answered int"),
    (lambda r: "yes", "answered str"),
    (lambda r: {"approved": True}, "answered dict"),
    (lambda r: Approval("yes"), "answered Approval"),  # type: ignore[arg-type]
    (
        lambda r: dataclasses.replace(r, fingerprint="sha256:of-another").approve(by="user:alice"),
        "answered about another call",
    ),
    (lambda r: 1 / 0, "failed with ZeroDivisionError"),
    (lambda r: exec("raise SystemExit(0)"), "failed with SystemExit"),
    (lambda r: exec("raise StopIteration"), "failed with"),
    (lambda r: exec("import asyncio; raise asyncio.CancelledError"), "failed with CancelledError"),
]


@pytest.mark.slow
@pytest.mark.parametrize("door", ["sync", "async", "async callback"])
def test_anything_but_a_plain_yes_refuses_and_says_why(host: Host, door: str) -> None:
    given: dict[str, Any] = {}

    def now(request: ApprovalRequest) -> Any:
        return given["answer"](request) if callable(given["answer"]) else given["answer"]

    async def later(request: ApprovalRequest) -> Any:
        return now(request)

    tavern = host.open(later if door == "async callback" else now)
    call = {"place": "a"}
    for number, (answer, said) in enumerate(REFUSALS):
        given["answer"] = answer
        if door == "sync":
            result = tavern.invoke_sync("desk:wipe", call)
        else:
            result = asyncio.run(tavern.invoke("desk:wipe_later", call))
        assert kind(result) == "APPROVAL_REJECTED", number
        assert result.error is not None
        assert said in result.error.message, number
        assert result.error.outcome == "none", number
        assert result.error.fix, number
        assert not RAN, number
        types = [(e["type"], e.get("approved")) for e in host.events(tavern) if e["callId"] == result.call_id]
        assert ("APPROVAL_DECIDED", False) in types, number
        assert ("POLICY_DENIED", None) in types, number


def test_without_a_callback_the_call_waits_for_approval_and_does_not_run(host: Host) -> None:
    tavern = host.open()
    result = tavern.invoke_sync("desk:wipe", {"place": "a"})
    assert (kind(result), result.status) == ("APPROVAL_REQUIRED", "input_required")
    assert result.error is not None
    assert "Tavern.open(approve=...)" in (result.error.fix or "")
    assert result.error.details["fingerprint"].startswith("sha256:")
    outcome = tavern.run_text_sync(
        "<|[REQUEST_TOOL]|>\ncommand:「始」desk:wipe「末」\nplace:「始」a「末」\n<|[END_TOOL]|>"
    )
    assert "APPROVAL_REQUIRED" in outcome.feedback
    assert not RAN


@pytest.mark.parametrize("wrong", ["yes", 3, True])
def test_a_callback_must_be_callable(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(Exception, match="cannot be called"):
        Tavern.open(config={}, home=tmp_path, approve=wrong)


def test_every_door_asks(host: Host) -> None:
    tavern = host.open(True)
    assert tavern.invoke_sync("desk:wipe", {"place": "sync"}).ok
    assert asyncio.run(tavern.invoke("desk:wipe", {"place": "async"})).ok
    assert tavern.invoke_from_sync("cli", "desk:wipe", {"place": "cli"}).ok
    assert tavern.run_text_sync(
        "<|[REQUEST_TOOL]|>\ncommand:「始」desk:wipe「末」\nplace:「始」tam「末」\n<|[END_TOOL]|>"
    ).ok
    assert [(r.arguments["place"], r.door) for r in host.asked] == [
        ("sync", "api"),
        ("async", "api"),
        ("cli", "cli"),
        ("tam", "tam"),
    ]


# Exactly what was approved --------------------------------------------------------------------------------------------------


def test_nothing_that_the_callback_or_the_caller_does_changes_what_runs(host: Host) -> None:
    arguments = {"place": "a", "keys": ["k"]}

    def meddle(request: ApprovalRequest) -> bool:
        arguments["place"] = "other"
        arguments["keys"].append("more")  # type: ignore[attr-defined]
        if isinstance(request.arguments, dict):
            request.arguments["place"] = "third"
            request.arguments["keys"].append("again")
        return True

    assert host.open(meddle).invoke_sync("desk:wipe", arguments).ok
    assert RAN == [("a", ["k"])]


def test_the_fingerprint_is_that_of_tool_caller_and_all_arguments(host: Host) -> None:
    tavern = host.open(True)
    long = "y" * 10_000
    for arguments, context in [
        ({"place": "a"}, None), ({"place": "b"}, None), ({"place": "a", "keys": []}, None), ({"place": long + "1"}, None), ({"place": long + "2"}, None),
        ({"place": "a"}, CallContext(principal="user:a")), ({"place": "a"}, CallContext(principal="user:b")),
        ({"place": "a"}, CallContext(user_id="a")), ({"place": "a"}, CallContext(user_id="b")), ({"place": "a"}, CallContext(workspace_dir="/a")),
    ]:  # fmt: skip
        assert tavern.invoke_sync("desk:wipe", arguments, context=context).ok
    marks = [r.fingerprint for r in host.asked]
    assert len(set(marks)) == len(marks)
    whole = ["desk:wipe", "1", "host", None, {"keys": None, "password": "", "place": "a"}]
    assert (
        marks[0]
        == "sha256:" + hashlib.sha256(json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    )


@pytest.mark.slow
@pytest.mark.parametrize("change", [
    lambda t: t.revoke("desk", "read:fs"), lambda t: t.wait(t.plugins.disable("desk")), lambda t: t.wait(t.plugins.reload("desk")),
], ids=["revoked", "disabled", "reloaded"])  # fmt: skip
def test_a_tool_whose_rights_or_plugin_change_while_it_waits_does_not_run(
    tmp_path: Path, change: Callable[[Tavern], Any]
) -> None:
    plugin(
        tmp_path, "permissions: {capabilities: [read:fs]}", '@tool(requires_approval=True, capabilities=["read:fs"])'
    )
    hosts: list[Tavern] = []

    def approve(request: ApprovalRequest) -> bool:
        change(hosts[0])
        return True

    config = {"plugins": {"roots": [str(tmp_path / "plugins")]}, "limits": {"drainMs": 10}}
    with Tavern.open(config=config, home=tmp_path / "home", approve=approve) as tavern:
        hosts.append(tavern)
        tavern.grant("desk", all_requested=True)
        result = tavern.invoke_sync("desk:wipe", {"place": "a"}, context=CallContext(permissions={"read:fs"}))
    assert kind(result) in ("POLICY_DENIED", "UPSTREAM_ERROR", "TOOL_NOT_FOUND"), result
    assert not (tmp_path / "ran").exists()


def test_a_path_that_turns_into_a_link_while_the_call_waits_is_judged_again(tmp_path: Path) -> None:
    ran: list[str] = []

    @tool(requires_approval=True)
    def read(path: Annotated[str, Guard.path(root="workspace")]) -> str:
        ran.append(path)
        return path

    def swap(request: ApprovalRequest) -> bool:
        (tmp_path / "a").symlink_to("/etc")
        return True

    with Tavern.open(config={}, home=tmp_path / "home", plugins=[Plugin([read], name="desk")], approve=swap) as tavern:
        result = tavern.invoke_sync("desk:read", {"path": "a/passwd"}, context=CallContext(workspace_dir=str(tmp_path)))
    assert kind(result) == "POLICY_DENIED"
    assert not ran


# Rules ----------------------------------------------------------------------------------------------------------------------

RULES: list[tuple[Mapping[str, Any], str, str]] = [
    ({}, "look", "run"),
    ({}, "wipe", "ask"),
    ({"ask": ["desk:look"]}, "look", "ask"),
    ({"ask": ["look"]}, "look", "ask"),
    ({"ask": ["desk"]}, "look", "ask"),
    ({"ask": ["desk:*"]}, "look", "ask"),
    ({"ask": ["*"]}, "look", "ask"),
    ({"ask": ["group:plugins"]}, "look", "ask"),
    ({"ask": ["lo*"]}, "look", "ask"),
    ({"ask": ["capability:write:fs"]}, "write", "ask"),
    ({"ask": ["capability:write:*"]}, "write", "ask"),
    ({"ask": ["capability:write:fs"]}, "look", "run"),
    ({"ask": ["Desk.Look"]}, "look", "ask"),
    ({"ask": ["no-such-tool"]}, "look", "run"),
    # The most specific decides.
    ({"ask": ["*"], "allow": ["desk:look"]}, "look", "run"),
    ({"ask": ["desk"], "allow": ["desk:look"]}, "look", "run"),
    ({"ask": ["desk:look"], "allow": ["*"]}, "look", "ask"),
    ({"ask": ["desk:look"], "allow": ["desk"]}, "look", "ask"),
    ({"ask": ["desk:lo*"], "allow": ["desk:l*"]}, "look", "ask"),
    ({"ask": ["desk:l*"], "allow": ["desk:lo*"]}, "look", "run"),
    ({"ask": ["capability:write:fs"], "allow": ["desk"]}, "write", "run"),
    ({"ask": ["capability:write:fs"], "allow": ["*"]}, "write", "ask"),
    ({"ask": ["capability:write:fs"], "allow": ["capability:write:*"]}, "write", "ask"),
    ({"deny": ["*"], "ask": ["desk"]}, "look", "ask"),
    ({"deny": ["desk:look"], "ask": ["*"], "allow": ["desk"]}, "look", "deny"),
    # Of equally specific ones the stricter.
    ({"ask": ["desk:look"], "allow": ["desk:look"]}, "look", "ask"),
    ({"deny": ["desk:look"], "ask": ["desk:look"], "allow": ["desk:look"]}, "look", "deny"),
    ({"deny": ["desk"], "ask": ["desk:*"]}, "look", "deny"),
    ({"deny": ["*"], "allow": ["*"]}, "look", "deny"),
    # What a tool asks for itself.
    ({"allow": ["*"]}, "wipe", "ask"),
    ({"allow": ["desk"]}, "wipe", "ask"),
    ({"allow": ["desk:w*"]}, "wipe", "ask"),
    ({"allow": ["desk:wipe"]}, "wipe", "run"),
    ({"allow": ["wipe"]}, "wipe", "run"),
    ({"deny": ["desk"]}, "wipe", "deny"),
    ({"deny": ["*"]}, "wipe", "deny"),
]


def is_about_the_plugin_alone(rules: Mapping[str, Any]) -> bool:
    return all(entry.partition(":")[0] == "desk" for entries in rules.values() for entry in entries)


def assert_decided(host: Host, tavern: Tavern, tool: str, expected: str, first: int = 0) -> None:
    """Args: first: where the first rule about it that denies stands."""
    host.asked.clear()
    result = tavern.invoke_sync(tool, {"place": "a"})
    found = {"": "run", "APPROVAL_REJECTED": "ask", "POLICY_DENIED": "deny"}[kind(result)]
    assert found == expected, tool
    assert len(host.asked) == (expected == "ask"), tool
    if expected == "deny":
        assert f"approval.deny[{first}]" in str(result.error), tool


@pytest.mark.slow
@pytest.mark.parametrize(("rules", "name", "expected"), [row for row in RULES if not is_about_the_plugin_alone(row[0])])
def test_the_most_specific_rule_decides_and_the_stricter_of_equals(
    host: Host, rules: Any, name: str, expected: str
) -> None:
    assert_decided(host, host.open(False, approval=rules), f"desk:{name}", expected)


@pytest.mark.slow
def test_the_most_specific_rule_about_a_plugin_decides(host: Host) -> None:
    """Each row has a plugin of its own in one host."""
    rows = [row for row in RULES if is_about_the_plugin_alone(row[0])]
    written: dict[str, list[str]] = {"deny": [], "ask": [], "allow": []}
    places = []
    for number, (rules, _, _) in enumerate(rows):
        places.append(len(written["deny"]))
        for decision, entries in rules.items():
            written[decision] += [entry.replace("desk", f"desk-{number}", 1) for entry in entries]
    desks = [
        Plugin([wipe, wipe_later, write, look], name=f"desk-{number}", manifest=WRITES) for number in range(len(rows))
    ]
    tavern = host.open(False, *desks, approval=written)
    for number, (_, name, expected) in enumerate(rows):
        assert_decided(host, tavern, f"desk-{number}:{name}", expected, places[number])


def test_rules_may_name_groups_and_misspelt_ones_are_reported(host: Host) -> None:
    tavern = host.open(
        False,
        approval={"ask": ["group:some", "desk:lok"]},
        tools={"groups": {"some": ["desk:look", "capability:write:fs"]}},
    )
    assert kind(tavern.invoke_sync("desk:look", {"place": "a"})) == "APPROVAL_REJECTED"
    assert kind(tavern.invoke_sync("desk:write", {"place": "a"})) == "APPROVAL_REJECTED"
    assert any("approval.ask[1]" in d.message and "desk:look" in d.hint for d in tavern.diagnostics)


def test_of_rules_that_say_the_same_the_first_is_named(host: Host) -> None:
    tavern = host.open(False, approval={"ask": ["desk:wipe", "desk:look", "desk.look", "desk:look"]})
    assert kind(tavern.invoke_sync("desk:look", {"place": "a"})) == "APPROVAL_REJECTED"
    assert "the entry 'desk:look' at approval.ask[1] " in host.asked[0].reason


def test_an_approval_that_a_gate_requests_beats_the_rules_and_a_denial_beats_it(host: Host) -> None:
    tavern = host.open(True, approval={"allow": ["desk:look"]})
    assert tavern.invoke_sync("desk:look", {"place": "*"}).ok
    (request,) = host.asked
    assert (request.reason, request.asked_by, request.details["where"]) == ("the place is special", "gate", "*")
    assert kind(tavern.invoke_sync("desk:look", {"place": "*x"})) == "POLICY_DENIED"
    assert len(host.asked) == 1


@pytest.mark.parametrize(("capabilities", "read_only", "destructive", "risk"), [
    ((), True, False, "low"), ((), False, False, "medium"), (("read:web", "write:fs"), False, False, "high"), ((), False, True, "highest"),
])  # fmt: skip
def test_the_risk_is_the_highest_of_what_the_tool_may_do(
    tmp_path: Path, capabilities: Any, read_only: bool, destructive: bool, risk: str
) -> None:
    @tool(capabilities=capabilities, read_only=read_only, destructive=destructive, requires_approval=True)
    def act() -> None: ...

    asked: list[ApprovalRequest] = []
    with Tavern.open(
        config={}, home=tmp_path, plugins=[Plugin([act], name="desk")], approve=lambda r: bool(asked.append(r))
    ) as tavern:
        context = CallContext(permissions={*capabilities, "danger:destructive"})
        assert kind(tavern.invoke_sync("desk:act", context=context)) == "APPROVAL_REJECTED"
    assert asked[0].risk == risk


# Time -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("how", ["sync", "async", "stubborn"])
@pytest.mark.parametrize("door", ["sync", "async"])
def test_an_answer_that_never_comes_is_a_refusal(tmp_path: Path, how: str, door: str) -> None:
    end = threading.Event()

    def never(request: ApprovalRequest) -> bool:
        return end.wait()

    async def never_async(request: ApprovalRequest) -> bool:
        await asyncio.Event().wait()
        return True

    async def stubborn(request: ApprovalRequest) -> bool:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return True

    approve = {"sync": never, "async": never_async, "stubborn": stubborn}[how]
    RAN.clear()
    try:
        with Tavern.open(
            config={"approval": {"timeoutMs": 50}},
            home=tmp_path,
            plugins=[Plugin([wipe], name="desk")],
            approve=approve,
        ) as tavern:
            if door == "sync":
                result = tavern.invoke_sync("desk:wipe", {"place": "a"})
            else:
                result = asyncio.run(tavern.invoke("desk:wipe", {"place": "a"}))
            assert kind(result) == "APPROVAL_REJECTED"
            assert result.error is not None
            assert "no answer within 0.05 s" in result.error.message
            assert result.error.details["timedOut"] is True
            assert not RAN
    finally:
        end.set()


@pytest.mark.slow
def test_the_callers_own_deadline_ends_the_waiting(host: Host) -> None:
    end = threading.Event()
    tavern = host.open(lambda request: end.wait(20))
    result = tavern.invoke_sync("desk:wipe", {"place": "a"}, context=CallContext(budget=Budget(timeout_ms=500)))
    end.set()
    assert kind(result) == "TIMEOUT"
    assert result.error is not None
    assert (result.error.outcome, result.error.details["stopped"]) == ("none", True)
    assert host.asked[0].expires_at < time.time() + 60
    assert not RAN


class Slow:
    @hookimpl
    async def tavern_before_execute(self, call: Any) -> None:
        end = time.perf_counter() + 0.03
        while time.perf_counter() < end:  # work that nothing can interrupt
            pass


def test_no_approval_is_requested_for_a_call_past_its_deadline(tmp_path: Path) -> None:
    asked: list[ApprovalRequest] = []
    RAN.clear()
    with Tavern.open(
        config={},
        home=tmp_path,
        plugins=[Plugin([wipe], name="desk"), Plugin(Slow(), name="slow")],
        approve=asked.append,
    ) as tavern:
        result = tavern.invoke_sync("desk:wipe", {"place": "a"}, context=CallContext(budget=Budget(timeout_ms=10)))
    assert kind(result) == "TIMEOUT"
    assert result.error is not None
    assert (result.error.outcome, result.error.details["stopped"]) == ("none", True)
    assert not asked
    assert not RAN


@pytest.mark.slow
def test_the_tools_own_time_begins_when_it_runs(tmp_path: Path) -> None:
    @tool(requires_approval=True, timeout_ms=300)
    async def quick() -> str:
        return "done"

    def slow(request: ApprovalRequest) -> bool:
        return not threading.Event().wait(0.4)

    with Tavern.open(config={}, home=tmp_path, plugins=[Plugin([quick], name="desk")], approve=slow) as tavern:
        assert tavern.invoke_sync("desk:quick").value == "done"


async def test_a_caller_that_is_cancelled_while_it_waits_is_on_the_record_and_nothing_runs(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def approve(request: ApprovalRequest) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    RAN.clear()
    async with Tavern.open(
        config={}, home=tmp_path, plugins=[Plugin([wipe_later], name="desk")], approve=approve
    ) as tavern:
        task = asyncio.create_task(_as_coroutine(tavern.invoke("desk:wipe_later", {"place": "a"})))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    lines = [json.loads(line) for line in (tmp_path / "audit" / "audit.jsonl").read_text().splitlines()]
    assert [(e["type"], e.get("how"), e.get("approved")) for e in lines if e["type"].startswith("APPROVAL")] == [
        ("APPROVAL_REQUESTED", None, None),
        ("APPROVAL_DECIDED", "cancelled", False),
    ]
    assert not RAN


async def _as_coroutine(awaitable: Any) -> Any:
    return await awaitable


async def test_many_requests_wait_at_once_and_each_gets_its_own_answer(tmp_path: Path) -> None:
    gate = asyncio.Event()
    waiting = 0

    async def approve(request: ApprovalRequest) -> bool:
        nonlocal waiting
        waiting += 1
        if waiting == 50:
            gate.set()
        await gate.wait()
        return int(request.arguments["place"]) % 2 == 0

    async with Tavern.open(
        config={}, home=tmp_path, plugins=[Plugin([wipe_later], name="desk")], approve=approve
    ) as tavern:
        results = await asyncio.gather(*(tavern.invoke("desk:wipe_later", {"place": str(n)}) for n in range(50)))
    assert [r.ok for r in results] == [n % 2 == 0 for n in range(50)]


@pytest.mark.slow
def test_callbacks_that_never_return_use_up_nothing_that_other_calls_need(tmp_path: Path) -> None:
    end = threading.Event()

    class Slow:
        @hookimpl
        def tavern_check_call(self) -> None:
            return None

    try:
        with Tavern.open(
            config={"approval": {"timeoutMs": 20}, "limits": {"threads": 2}}, home=tmp_path,
            plugins=[Plugin([wipe, look], name="desk"), Plugin(Slow(), name="slow")], approve=lambda r: end.wait(),
        ) as tavern:  # fmt: skip
            for _ in range(5):
                assert kind(tavern.invoke_sync("desk:wipe", {"place": "a"})) == "APPROVAL_REJECTED"
            assert tavern.invoke_sync("desk:look", {"place": "a"}).ok
    finally:
        end.set()


def test_an_answer_may_be_remembered_for_exactly_the_same_call(host: Host) -> None:
    tavern = host.open(
        lambda r: r.approve(remember=True) if r.arguments["place"] != "b" else r.reject("no", remember=True)
    )
    for place, fine in (("a", True), ("b", False), ("a", True), ("b", False)):
        assert tavern.invoke_sync("desk:wipe", {"place": place}).ok is fine
    assert len(host.asked) == 2
    assert tavern.invoke_sync("desk:wipe", {"place": "a"}, context=CallContext(principal="user:x")).ok
    assert len(host.asked) == 3
    hows = [e["how"] for e in host.events(tavern) if e["type"] == "APPROVAL_DECIDED"]
    assert hows == ["answered", "answered", "remembered", "remembered", "answered"]


def test_an_answer_is_remembered_until_its_plugin_is_loaded_again(tmp_path: Path) -> None:
    plugin(tmp_path)
    asked: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> Approval:
        asked.append(request)
        return request.approve(remember=True)

    config = {"plugins": {"roots": [str(tmp_path / "plugins")], "entryPoints": False}}
    with Tavern.open(config, home=tmp_path / "home", approve=approve) as tavern:
        for loads in (1, 2):
            for _ in range(2):
                assert tavern.invoke_sync("desk:wipe", {"place": "a"}).ok
            assert len(asked) == loads
            tavern.plugins.reload_sync("desk")


def test_observers_hear_of_requests_and_answers(host: Host) -> None:
    tavern = host.open(True)
    heard: list[str] = []
    tavern.events.subscribe(lambda event: heard.append(event.type), "APPROVAL_REQUESTED", "APPROVAL_DECIDED")
    assert tavern.invoke_sync("desk:wipe", {"place": "a"}).ok
    assert heard == ["APPROVAL_REQUESTED", "APPROVAL_DECIDED"]


def test_a_tool_that_calls_a_tool_is_asked_about_in_the_name_of_its_caller(tmp_path: Path) -> None:
    hosts: list[Tavern] = []

    @tool
    async def outer() -> str:
        result = await hosts[0].invoke("desk:wipe_later", {"place": "a"})
        return kind(result)

    asked: list[ApprovalRequest] = []
    with Tavern.open(
        config={},
        home=tmp_path,
        plugins=[Plugin([outer, wipe_later], name="desk")],
        approve=lambda r: bool(asked.append(r)),
    ) as tavern:
        hosts.append(tavern)
        assert tavern.invoke_sync("desk:outer", context=CallContext(principal="user:a")).value == "APPROVAL_REJECTED"
    assert asked[0].principal == "user:a"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


pytestmark = pytest.mark.anyio


# The command line -----------------------------------------------------------------------------------------------------------

PLUGIN = """
from pathlib import Path

from tavern_core import hookimpl, tool

MARK
def wipe(place: str) -> str:
    Path(__file__).parents[2].joinpath("ran").touch()
    return "wiped " + place

@hookimpl
def tavern_register_tools():
    return [wipe]
"""


def plugin(folder: Path, manifest: str = "", mark: str = "@tool(requires_approval=True)") -> None:
    """A folder plugin with the tool ``desk:wipe``, which leaves a file ``ran``."""
    place = folder / "plugins" / "desk"
    place.mkdir(parents=True, exist_ok=True)
    tools = "tools: [{id: wipe, implementation: {type: python}}]"
    (place / "plugin.yaml").write_text(f'name: desk\nversion: "1"\n{tools}\n{manifest}\n')
    (place / "__init__.py").write_text(PLUGIN.replace("MARK", mark))


def at_a_terminal(folder: Path, typed: str) -> tuple[int, str, str]:
    """(exit code, stdout, what the terminal showed) of `tavern tools call`, with somebody typing."""
    plugin(folder)
    command = [
        "-m",
        "tavern_core",
        "--home",
        str(folder / "home"),
        "tools",
        "call",
        "desk:wipe",
        "place=a\x1b[2J",
    ]
    ours, theirs = pty.openpty()
    try:
        process = ForkedProgram(command, cwd=folder, stdin=theirs, stderr=theirs, stdout=PIPE)
        os.close(theirs)
        os.write(ours, typed.encode())
        shown = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(ours, 4096):
                shown += part
        out, _ = process.communicate(timeout=60)
        return process.wait(), out, shown.decode()
    finally:
        os.close(ours)


@pytest.mark.slow
@pytest.mark.parametrize(("typed", "code"), [("yes\n", 0), ("yes please\n", 3), ("\x04", 3)])
def test_the_command_line_asks_at_a_terminal(tmp_path: Path, typed: str, code: int) -> None:
    returned, out, shown = at_a_terminal(tmp_path, typed)
    assert returned == code, shown
    assert ("wiped a" in out) is (code == 0)
    assert "desk:wipe needs approval" in shown
    assert "risk       medium" in shown
    assert "\x1b[2J" not in shown
    if code:
        assert "refused at the terminal" in shown


@pytest.mark.slow
def test_without_a_terminal_the_command_line_refuses_and_says_why(tmp_path: Path) -> None:
    plugin(tmp_path)
    command = [
        "-m",
        "tavern_core",
        "--home",
        str(tmp_path / "home"),
        "tools",
        "call",
        "desk:wipe",
        "place=a",
    ]
    done = run_forked(command, cwd=tmp_path, given="yes\n")
    assert done.returncode == 3
    assert "APPROVAL_REQUIRED" in done.stderr
    assert "no approver is reachable" in done.stderr
    assert not done.stdout
