"""Approvals that are given later and elsewhere, and calls that are made in two phases."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tavern_core import CallContext, Plugin, Tavern, deny, hookimpl, require_approval, tool
from tavern_core.errors import PolicyDenied, UpstreamError, UsageError
from tavern_core.kernel.stores.sqlite_records import SqliteRecords
from tests import programs
from tests.governance import redis_server

ANN = CallContext(principal="user:ann", user_id="ann")
BOSS = CallContext(principal="user:boss", user_id="boss", roles=frozenset({"approver"}))


class Office:
    def __init__(self, home: Path, config: dict[str, Any] | None = None) -> None:
        self.ran: list[Any] = []
        self.home = home
        self.config = config or {}
        office = self

        @tool(requires_approval=True)
        def pay(amount: int, password: str = "") -> int:
            office.ran.append(amount)
            return amount

        def preview(amount: int) -> dict[str, int]:
            return {"would pay": amount}

        @tool(preview=preview)
        def send(amount: int = 1) -> int:
            office.ran.append(amount)
            return amount

        @tool(requires_approval=True)
        def decide(approval: str) -> str:
            try:
                office.host.approvals.approve(approval)
            except PolicyDenied as error:
                return error.message
            return "approved"

        self.tools = [pay, send, decide]
        self.host: Tavern

    @contextmanager
    def open(self, **options: Any) -> Iterator[Tavern]:
        with Tavern.open(self.config, home=self.home, plugins=[Plugin(self.tools, name="o")], **options) as self.host:
            yield self.host


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path / "home")


def pending(host: Tavern, **options: Any) -> str:
    result = host.invoke_sync("o:pay", {"amount": 5}, context=ANN, **options)
    assert (result.status, result.error.kind) == ("input_required", "APPROVAL_REQUIRED")  # type: ignore[union-attr]
    return str(result.error.details["approval"])  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_call_runs_once_when_it_was_approved_and_is_made_again(office: Office) -> None:
    with office.open() as host:
        approval = pending(host)
        assert pending(host) == approval
    with office.open() as host:  # another process would do
        assert [one.id for one in host.approvals.list()] == [approval]
        assert host.approvals.approve(approval, by=BOSS, reason="fine").state == "approved"
    with office.open() as host:
        assert host.invoke_sync("o:pay", {"amount": 6}, context=ANN).error.kind == "APPROVAL_REQUIRED"  # type: ignore[union-attr]
        assert host.invoke_sync("o:pay", {"amount": 5}, context=BOSS).error.kind == "APPROVAL_REQUIRED"  # type: ignore[union-attr]
        assert host.invoke_sync("o:pay", {"amount": 5}, context=ANN).value == 5
        assert host.invoke_sync("o:pay", {"amount": 5}, context=ANN).error.kind == "APPROVAL_REQUIRED"  # type: ignore[union-attr]
    assert office.ran == [5]


def test_a_rejection_is_reported_with_its_reason(office: Office) -> None:
    with office.open() as host:
        host.approvals.reject(pending(host), by=BOSS, reason="too much")
        error = host.invoke_sync("o:pay", {"amount": 5}, context=ANN).error
        assert error is not None and error.kind == "APPROVAL_REJECTED"
        assert "by user:boss: too much" in error.message
    assert office.ran == []


NO_APPROVERS: list[tuple[CallContext, str]] = [
    (ANN, "calls it and cannot approve it"),
    (CallContext(principal="user:ann", roles=frozenset({"approver"})), "cannot approve it"),
    (CallContext(principal="other", user_id="ann", roles=frozenset({"approver"})), "cannot approve it"),
    (CallContext(principal="user:bob"), "may not approve"),
]


def test_neither_the_caller_nor_just_anybody_approves(office: Office) -> None:
    with office.open() as host:
        approval = pending(host)
        for by, says in NO_APPROVERS:
            with pytest.raises(PolicyDenied, match=says):
                pytest.fail(f"{by}: {host.approvals.approve(approval, by=by)}")
            assert host.approvals.get(approval).state == "pending", by


def test_what_the_host_calls_itself_it_does_not_approve_itself(office: Office) -> None:
    with office.open() as host:
        result = host.invoke_sync("o:pay", {"amount": 5})
        with pytest.raises(PolicyDenied):
            host.approvals.approve(result.error.details["approval"])  # type: ignore[union-attr]
        host.approvals.approve(pending(host))


def test_a_tool_approves_with_the_rights_of_its_caller(office: Office) -> None:
    office.config = {"approval": {"allow": ["o:decide"]}}
    with office.open() as host:
        approval = pending(host)
        asked = host.invoke_sync("o:decide", {"approval": approval}, context=ANN)
        assert "cannot approve it" in asked.value
        assert host.approvals.get(approval).state == "pending"


def test_no_answer_in_time_is_a_denial(office: Office) -> None:
    office.config = {"approval": {"keepMs": 1}}
    with office.open() as host:
        approval = pending(host)
        while host.approvals.get(approval).state == "pending":
            pass
        with pytest.raises(UsageError, match="expired already"):
            host.approvals.approve(approval, by=BOSS)
        error = host.invoke_sync("o:pay", {"amount": 5}, context=ANN).error
        assert error is not None and (error.kind, error.details["timedOut"]) == ("APPROVAL_REJECTED", True)
    assert office.ran == []


@pytest.mark.parametrize(("remember", "amounts"), [("call", [5, 5]), ("tool", [5, 7, 9])])
def test_a_rule_answers_what_is_asked_later(office: Office, remember: Any, amounts: list[int]) -> None:
    with office.open() as host:
        host.approvals.approve(pending(host), by=BOSS, remember=remember)
    with office.open() as host:
        for amount in amounts:
            assert host.invoke_sync("o:pay", {"amount": amount}, context=ANN).ok
        assert not host.invoke_sync("o:pay", {"amount": 5}, context=CallContext(principal="user:bob")).ok
        (rule,) = host.approvals.rules()
        assert (rule.tool, rule.principal, rule.by, rule.scope) == ("o:pay", "user:ann", "user:boss", remember)
        host.approvals.forget(rule.id)
        assert not host.invoke_sync("o:pay", {"amount": amounts[-1]}, context=ANN).ok


def test_a_rule_for_a_tool_ends_when_the_tool_changes(office: Office) -> None:
    with office.open() as host:
        host.approvals.approve(pending(host), by=BOSS, remember="tool")

    @tool(requires_approval=True, description="Pays more than it says.")
    def pay(amount: int, password: str = "") -> int:
        return amount

    office.tools = [pay]
    with office.open() as host:
        assert host.invoke_sync("o:pay", {"amount": 7}, context=ANN).error.kind == "APPROVAL_REQUIRED"  # type: ignore[union-attr]


def test_an_approval_is_used_by_one_of_many_calls_at_once(office: Office) -> None:
    with office.open() as host:
        host.approvals.approve(pending(host), by=BOSS)
        results: list[Any] = []
        threads = [
            threading.Thread(target=lambda: results.append(host.invoke_sync("o:pay", {"amount": 5}, context=ANN)))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(r.ok for r in results) == 1
    assert office.ran == [5]


def test_a_keyed_call_is_repeated_under_the_approval_it_had(office: Office) -> None:
    with office.open() as host:
        host.approvals.approve(pending(host, idempotency_key="k"), by=BOSS)
        for _ in range(3):
            assert host.invoke_sync("o:pay", {"amount": 5}, context=ANN, idempotency_key="k").value == 5
        assert not host.invoke_sync("o:pay", {"amount": 5}, context=ANN, idempotency_key="other").ok
    assert office.ran == [5]


def test_each_approval_is_a_request_of_its_own_and_keeps_its_key(office: Office) -> None:
    with office.open() as host:

        def paid(key: str | None) -> Any:
            result = host.invoke_sync("o:pay", {"amount": 5}, context=ANN, idempotency_key=key)
            return (result.meta or {}).get("idempotency", "ran") if result.ok else result.status

        approvals = []
        for key in ("a", "b", "c"):
            approvals.append(pending(host, idempotency_key=key))
            assert paid("a") == ("replayed" if key != "a" else "input_required")
            host.approvals.approve(approvals[-1], by=BOSS)
            for earlier in ("a", "b", "c")[: len(approvals) - 1]:
                assert paid(earlier) == "replayed", (earlier, key)
            assert paid(key) != "input_required"
        host.approvals.reject(pending(host), by=BOSS)
        assert [paid(key) for key in ("a", "b", "c", "d", None)] == ["replayed"] * 3 + ["error"] * 2
        for approval in approvals:
            with pytest.raises(UsageError, match="is used already"):
                host.approvals.approve(approval, by=BOSS)
        assert sorted(one.state for one in host.approvals.list(None)) == ["rejected", "used", "used", "used"]
    assert office.ran == [5, 5, 5]


def test_a_call_that_looks_for_its_key_while_an_equal_one_runs_requests_no_further_approval(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    with office.open() as host, office.open() as other:
        host.approvals.approve(pending(host, idempotency_key="k"), by=BOSS)
        get, asked, meanwhile = host.approvals.records.get, list[str](), ["k", "another key"]

        def get_slowly(kind: str, key: str) -> Any:
            record = get(kind, key)
            asked.append(kind)
            while asked[-2:] == ["approval-key", "approval"] and meanwhile:
                options = {"context": ANN, "idempotency_key": meanwhile.pop(0)}
                thread = threading.Thread(target=other.invoke_sync, args=("o:pay", {"amount": 5}), kwargs=options)
                thread.start()
                thread.join()
            return record

        monkeypatch.setattr(host.approvals.records, "get", get_slowly)
        assert host.invoke_sync("o:pay", {"amount": 5}, context=ANN, idempotency_key="k").ok
        assert not meanwhile and len(host.approvals.list()) == 1  # that of the other key
    assert office.ran == [5]


@pytest.mark.parametrize(("hours", "is_repeated"), [(23, True), (25, False)])
def test_an_approval_that_an_earlier_version_used_holds_as_long_as_its_key(
    office: Office, hours: int, is_repeated: bool
) -> None:
    with office.open() as host:
        host.approvals.approve(pending(host, idempotency_key="k"), by=BOSS)
        assert host.invoke_sync("o:pay", {"amount": 5}, context=ANN, idempotency_key="k").ok
    store = SqliteRecords(next(office.home.rglob("state.sqlite")))
    (used,) = store.list("approval")
    data = {name: value for name, value in json.loads(used.data).items() if name != "keyUntil"}
    assert store.replace(replace(used, data=json.dumps(data), expires=used.expires - hours * 3600))
    store.close()
    with office.open() as host:
        assert host.invoke_sync("o:pay", {"amount": 5}, context=ANN, idempotency_key="k").ok == is_repeated
    assert office.ran == [5]


def test_what_lets_a_keyed_call_run_ends_with_its_key(office: Office) -> None:
    office.config = {"idempotency": {"ttlMs": 1}}
    with office.open() as host:
        host.approvals.approve(pending(host, idempotency_key="k"), by=BOSS)
        while host.invoke_sync("o:pay", {"amount": 5}, context=ANN, idempotency_key="k").ok:
            assert office.ran == [5]
        token = plan_of(host)["planToken"]
        while host.commit_sync(token, idempotency_key="k").ok:
            assert office.ran == [5, 3]
        assert host.commit_sync(token, idempotency_key="k").error.kind == "POLICY_DENIED"  # type: ignore[union-attr]
        pending(host, idempotency_key="k")
    assert office.ran == [5, 3]


def test_secrets_of_a_waiting_call_are_not_kept(office: Office) -> None:
    with office.open() as host:
        host.invoke_sync("o:pay", {"amount": 5, "password": "hunter2-very-secret"}, context=ANN)
        (one,) = host.approvals.list()
        assert one.request["arguments"]["password"] == "***"
    for file in office.home.rglob("*"):
        assert not file.is_file() or b"hunter2-very-secret" not in file.read_bytes()


def test_requests_and_decisions_are_on_the_record(office: Office) -> None:
    with office.open() as host:
        host.approvals.approve(pending(host), by=BOSS)
        host.invoke_sync("o:pay", {"amount": 5}, context=ANN)
        types = [r.type for r in host.logs.records("APPROVAL_REQUESTED", "APPROVAL_DECIDED")]
    assert types == ["APPROVAL_REQUESTED", "APPROVAL_DECIDED", "APPROVAL_DECIDED"]


# Two phases ----------------------------------------------------------------------------------------------------------


def plan_of(
    host: Tavern, arguments: dict[str, Any] | None = None, name: str = "o:send", **options: Any
) -> dict[str, Any]:
    result = host.invoke_sync(name, {"amount": 3} if arguments is None else arguments, dry_run=True, **options)
    assert result.ok, result.error
    return result.value  # type: ignore[no-any-return]


def test_a_dry_run_shows_what_would_happen_and_commit_makes_it_happen_once(office: Office) -> None:
    with office.open() as host:
        plan = plan_of(host)
        assert (plan["tool"], plan["arguments"], plan["preview"]) == ("o:send", {"amount": 3}, {"would pay": 3})
        assert plan["needsApproval"] is False
        assert "execute" in [step["step"] for step in plan["steps"]]
        assert office.ran == []
        assert host.commit_sync(plan["planToken"]).value == 3
        again = host.commit_sync(plan["planToken"])
        assert again.error is not None and again.error.kind == "POLICY_DENIED"
    assert office.ran == [3]


def test_defaults_are_part_of_a_plan_and_gates_are_asked_for_it(office: Office) -> None:
    office.config = {"tools": {"deny": ["o:pay"]}}
    with office.open() as host:
        assert plan_of(host, {})["arguments"] == {"amount": 1}
        assert host.invoke_sync("o:pay", {"amount": 1}, dry_run=True).error.kind == "POLICY_DENIED"  # type: ignore[union-attr]
        assert host.invoke_sync("o:send", {"amount": "x"}, dry_run=True).error.kind == "INPUT_SCHEMA_INVALID"  # type: ignore[union-attr]


def test_a_call_that_is_cancelled_in_a_queue_leaves_its_approval(tmp_path: Path) -> None:
    ran: list[int] = []

    @tool(requires_approval=True, limits={"concurrency": 1})
    async def pay(amount: int) -> int:
        ran.append(amount)
        await asyncio.sleep(3600 if amount == 1 else 0)
        return amount

    async def main(host: Tavern) -> None:
        called = asyncio.Semaphore(0)
        host.events.subscribe(lambda event: called.release(), "TOOL_CALLED")

        async def begun(amount: int) -> asyncio.Task[Any]:
            await host.invoke("o:pay", {"amount": amount}, context=ANN)
            host.approvals.approve(host.approvals.list()[0].id, by=BOSS)
            call = asyncio.create_task(host.invoke("o:pay", {"amount": amount}, context=ANN))
            await called.acquire()
            return call

        for call in [await begun(1), await begun(2)][::-1]:  # the second one waits for the first
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert [(await host.invoke("o:pay", {"amount": n}, context=ANN)).status for n in (1, 2)] == [
            "input_required",
            "ok",
        ]

    with Tavern.open(home=tmp_path, plugins=[Plugin([pay], name="o")]) as host:
        asyncio.run(main(host))
    assert ran == [1, 2]


def test_a_dry_run_passes_the_gates_of_plugins(tmp_path: Path) -> None:
    class Gate:
        @tool
        def pay(self, amount: int) -> int:
            return amount

        @hookimpl
        def tavern_register_tools(self) -> list[Any]:
            return [self.pay]

        @hookimpl
        def tavern_check_call(self, call: Any) -> Any:
            return {7: deny("not seven"), 8: require_approval("eight is much")}.get(call.arguments["amount"])

    with Tavern.open(home=tmp_path, plugins=[Plugin(Gate(), name="g")]) as host:
        refused = host.invoke_sync("g:pay", {"amount": 7}, dry_run=True).error
        assert refused is not None and (refused.kind, refused.details["plugin"]) == ("POLICY_DENIED", "g")
        needs = [plan_of(host, {"amount": amount}, "g:pay")["needsApproval"] for amount in (6, 8)]
    assert needs == [False, True]


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError("no text")


def test_what_is_no_token_commits_nothing(office: Office) -> None:
    wrong: list[Any] = ["", "plan-", "plan-0000", 7, None, "x" * 1000, Unprintable(), 10**5000]
    with office.open() as host:
        for number, token in enumerate(wrong):
            result = host.commit_sync(token)
            assert result.error is not None and result.error.kind in ("USAGE", "POLICY_DENIED"), number
            assert office.ran == [], number


def test_a_token_is_its_callers_and_ends(office: Office) -> None:
    with office.open() as host:
        plan = plan_of(host, context=ANN)
        assert host.commit_sync(plan["planToken"], context=BOSS).error.kind == "POLICY_DENIED"  # type: ignore[union-attr]
        assert host.commit_sync(plan["planToken"]).error.kind == "POLICY_DENIED"  # type: ignore[union-attr]
        assert host.commit_sync(plan["planToken"], {"amount": 4}, context=ANN).error.kind == "POLICY_DENIED"  # type: ignore[union-attr]
        assert host.commit_sync(plan["planToken"], context=ANN).value == 3
    office.config = {"approval": {"planMs": 1}}
    with office.open() as host:
        plan = plan_of(host)
        threading.Event().wait(0.01)
        assert host.commit_sync(plan["planToken"]).error.kind == "POLICY_DENIED"  # type: ignore[union-attr]
    assert office.ran == [3]


def test_a_plan_is_no_approval(office: Office) -> None:
    with office.open() as host:
        plan = plan_of(host, {"amount": 5}, "o:pay", context=ANN)
        assert plan["needsApproval"] is True
        waiting = host.commit_sync(plan["planToken"], context=ANN)
        assert waiting.status == "input_required"
        host.approvals.approve(waiting.error.details["approval"], by=BOSS)  # type: ignore[union-attr]
        assert host.commit_sync(plan["planToken"], context=ANN).value == 5
    assert office.ran == [5]


def test_a_plan_with_secrets_is_committed_with_its_arguments(office: Office) -> None:
    office.config = {"approval": {"allow": ["o:pay"]}}
    secret = {"amount": 5, "password": "hunter2-very-secret"}
    with office.open() as host:
        plan = plan_of(host, secret, "o:pay")
        assert host.commit_sync(plan["planToken"]).error.kind == "USAGE"  # type: ignore[union-attr]
        assert host.commit_sync(plan["planToken"], secret).value == 5
    for file in office.home.rglob("*"):
        assert not file.is_file() or b"hunter2-very-secret" not in file.read_bytes()


def test_nobody_is_asked_to_approve_a_commit_that_its_token_does_not_let_run(office: Office) -> None:
    secret = {"amount": 5, "password": "hunter2-very-secret"}
    with office.open() as host:
        plan = plan_of(host, secret, "o:pay", context=ANN)
        for arguments in ({"amount": 6, "password": "x"}, {**secret, "amount": 6}):
            refused = host.commit_sync(plan["planToken"], arguments, context=ANN)
            assert refused.error is not None
            assert (refused.error.kind, host.approvals.list()) == ("POLICY_DENIED", ())
        waiting = host.commit_sync(plan["planToken"], secret, context=ANN)
        assert waiting.status == "input_required"
        host.approvals.approve(waiting.error.details["approval"], by=BOSS)
        assert host.commit_sync(plan["planToken"], secret, context=ANN).ok


def test_a_commit_with_a_key_is_repeated_for_its_answer(office: Office) -> None:
    with office.open() as host:
        token = plan_of(host)["planToken"]
        assert host.commit_sync(token, idempotency_key="k").value == 3
        again = host.commit_sync(token, idempotency_key="k")
        assert (again.value, again.meta["idempotency"]) == (3, "replayed")
        for other in (None, "j"):
            assert host.commit_sync(token, idempotency_key=other).error.kind == "POLICY_DENIED"  # type: ignore[union-attr]
        assert host.commit_sync(token, idempotency_key="k", context=ANN).error.kind == "POLICY_DENIED"  # type: ignore[union-attr]
    assert office.ran == [3]


def test_a_commit_that_names_another_tool_than_its_plan_is_refused(office: Office) -> None:
    with office.open() as host:
        token = plan_of(host)["planToken"]
        refused = host.commit_sync(token, tool="o:pay").error
        assert refused is not None
        assert (refused.kind, refused.message) == ("USAGE", "the plan token is for o:send, not for o:pay")
        assert office.ran == []
        assert host.commit_sync(token, tool="o.send").value == 3


def test_a_tool_that_changed_does_not_run_by_an_old_plan(office: Office) -> None:
    with office.open() as host:
        plan = plan_of(host)

    @tool(destructive=False, description="Another one.")
    def send(amount: int = 1) -> int:
        return amount

    office.tools = [send]
    with office.open() as host:
        refused = host.commit_sync(plan["planToken"])
        assert refused.error is not None and "would not run as planned" in refused.error.message


@pytest.mark.slow
def test_the_command_line_plans_approves_and_commits(tmp_path: Path) -> None:
    folder = tmp_path / "plugins" / "pen"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text(
        "name: pen\nversion: '1'\ntools: [{id: add, implementation: {type: python}}]\n", encoding="utf-8"
    )
    (folder / "__init__.py").write_text(
        "from tavern_core import hookimpl, tool\n\n\n@tool(requires_approval=True)\ndef add(line: str) -> str:\n"
        "    return line * 2\n\n\n@hookimpl\ndef tavern_register_tools():\n    return [add]\n",
        encoding="utf-8",
    )
    (tmp_path / "tavern.yaml").write_text("{}", encoding="utf-8")

    def tavern(*words: str) -> tuple[int, str, str]:
        done = programs.tavern(*words, cwd=tmp_path, home=tmp_path / "home")
        return done.returncode, done.stdout, done.stderr

    code, out, _ = tavern("tools", "call", "pen:add", "line=x", "--dry-run", "--json")
    token = json.loads(out)["value"]["planToken"]
    code, _, err = tavern("tools", "call", "pen:add", "--commit", token)
    assert code == 3 and "tavern approvals approve apr-" in err
    (waiting,) = json.loads(tavern("approvals", "--json")[1])
    assert waiting["request"]["arguments"] == {"line": "x"}
    assert waiting["id"] in tavern("approvals", "list")[1]
    assert "pen:add" in tavern("approvals", "show", waiting["id"])[1]
    assert tavern("approvals", "approve", "apr-nothing")[0] == 5
    assert tavern("approvals", "approve", waiting["id"], "--reason", "ok")[0] == 0
    for odd in (["pen:add", "--commit", token, "--dry-run"], ["system:get_current_time", "--commit", token]):
        assert tavern("tools", "call", *odd)[0] == 2
    assert tavern("tools", "call", "pen:add", "--commit", token)[:2] == (0, "xx\n")
    assert json.loads(tavern("approvals", "list", "--all", "--json")[1])[0]["state"] == "used"


REFUSALS: dict[str, dict[str, Any]] = {
    "a rate": {"rate": "1/hour"},
    "a full queue": {"concurrency": 1, "queue": 0},
    "an open breaker": {"breaker": {"failures": 1, "restMs": 3_600_000}},
}


@pytest.mark.slow
@pytest.mark.parametrize("refused_by", REFUSALS)
@pytest.mark.parametrize("way", ["an approval", "a plan token"])
def test_what_lets_a_call_run_once_is_not_used_up_by_a_call_that_a_limit_refuses(
    tmp_path: Path, refused_by: str, way: str
) -> None:
    ran: list[int] = []
    inside, leave = threading.Event(), threading.Event()

    @tool(limits=REFUSALS[refused_by], requires_approval=way == "an approval")
    def pay(amount: int) -> int:
        ran.append(amount)
        if amount == 1:
            inside.set()
            leave.wait(10)
            raise ConnectionError("gone")
        return amount

    def opened(limits: dict[str, Any] | None = None) -> Tavern:
        config = {"limits": {"tools": {"o:pay": limits}}} if limits else {}
        return Tavern.open(config, home=tmp_path / "home", plugins=[Plugin([pay], name="o")])

    def let(host: Tavern, amount: int) -> Any:
        """How to make the call, once."""
        if way == "a plan token":
            token = host.invoke_sync("o:pay", {"amount": amount}, dry_run=True, context=ANN).value["planToken"]
            return lambda host: host.commit_sync(token, context=ANN)
        waiting = host.invoke_sync("o:pay", {"amount": amount}, context=ANN).error
        assert waiting is not None
        host.approvals.approve(waiting.details["approval"], by=BOSS)
        return lambda host: host.invoke_sync("o:pay", {"amount": amount}, context=ANN)

    wide = {"rate": "1000/second", "concurrency": 8, "breaker": {"failures": 9}}
    with opened(wide) as host:
        first, second = let(host, 1), let(host, 2)
    with opened() as host:
        before = threading.Thread(target=first, args=(host,))
        before.start()
        assert inside.wait(10)
        if refused_by == "an open breaker":
            leave.set()
            before.join()
        for _ in range(2):
            refused = second(host).error
            assert refused.kind in ("BUDGET_EXCEEDED", "CIRCUIT_OPEN") and refused.details["limit"], refused
        leave.set()
        before.join()
        assert not first(host).ok  # it ran: whatever came of it, it was used
    with opened(wide) as host:
        assert second(host).value == 2
        assert not second(host).ok
    assert ran == [1, 2]


@pytest.mark.parametrize("way", ["an approval", "a plan token"])
@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_equal_calls_with_a_key_share_what_lets_one_of_them_run(tmp_path: Path, store: str, way: str) -> None:
    ran: list[int] = []

    @tool(requires_approval=way == "an approval")
    async def pay(amount: int) -> int:
        ran.append(amount)
        return amount

    async def main(address: str) -> None:
        config = {"state": {"store": address if store == "redis" else store}}
        plugins = [Plugin([pay], name="o")]
        async with (
            Tavern.open(config, home=tmp_path / "home", plugins=plugins) as host,
            Tavern.open(config, home=tmp_path / "home", plugins=plugins) as other,
        ):
            for amount in range(5):
                plan = await host.invoke("o:pay", {"amount": amount}, dry_run=True, context=ANN)
                token = plan.value["planToken"]
                waiting = (await host.commit(token, context=ANN)).error if way == "an approval" else None
                if waiting is not None:
                    host.approvals.approve(waiting.details["approval"], by=BOSS)
                results = await asyncio.gather(
                    *(at.commit(token, context=ANN, idempotency_key=f"k{amount}") for at in [host, other] * 3)
                )
                assert [result.value for result in results] == [amount] * 6, results

    with redis_server.database() as address:
        asyncio.run(main(address))
    assert ran == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("way", ["an approval", "a plan token"])
def test_what_lets_a_call_run_once_does_so_also_when_another_call_takes_its_key_over(tmp_path: Path, way: str) -> None:
    """The first call with the key gives up while it waits for a slot; the second one gets the slot."""
    ran: list[str] = []

    @tool(requires_approval=way == "an approval")
    async def pay() -> str:
        ran.append("pay")
        return "paid"

    async def main() -> None:
        inside, leave = asyncio.Event(), asyncio.Event()

        @tool
        async def block() -> None:
            inside.set()
            await leave.wait()

        config = {"limits": {"plugins": {"o": {"concurrency": 1}}}}
        async with Tavern.open(config, home=tmp_path / "home", plugins=[Plugin([pay, block], name="o")]) as host:
            token = ""
            if way == "a plan token":
                token = (await host.invoke("o:pay", dry_run=True, context=ANN)).value["planToken"]
            else:
                waiting = (await host.invoke("o:pay", context=ANN)).error
                assert waiting is not None
                host.approvals.approve(waiting.details["approval"], by=BOSS)

            def paid(key: str | None) -> Any:
                if token:
                    return host.commit(token, context=ANN, idempotency_key=key)
                return host.invoke("o:pay", context=ANN, idempotency_key=key)

            blocked = asyncio.create_task(host.invoke("o:block"))
            await inside.wait()
            called = asyncio.Semaphore(0)
            host.events.subscribe(lambda event: called.release(), "TOOL_CALLED")
            first, second = asyncio.create_task(paid("k")), asyncio.create_task(paid("k"))
            for _ in (first, second):
                await called.acquire()
            for _ in range(100):
                await asyncio.sleep(0)  # the second one waits for the first
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            leave.set()
            await blocked
            assert (await second).value == "paid"
            assert not (await paid(None)).ok
            assert (await paid("k")).value == "paid"

    asyncio.run(main())
    assert ran == ["pay"]


@pytest.mark.parametrize("way", ["an approval", "a plan token"])
def test_what_lets_a_call_run_once_is_not_given_back_by_a_call_that_repeats_one_that_began(
    tmp_path: Path, way: str
) -> None:
    ran: list[str] = []

    @tool(requires_approval=way == "an approval")
    def pay() -> None:
        ran.append("pay")
        raise UpstreamError("the bank is closed", outcome="none", retryable=True)

    config = {"limits": {"tools": {"o:pay": {"breaker": {"failures": 1, "restMs": 60_000}}}}}
    with Tavern.open(config, home=tmp_path / "home", plugins=[Plugin([pay], name="o")]) as host:
        token = host.invoke_sync("o:pay", dry_run=True, context=ANN).value["planToken"]

        def paid(key: str | None) -> Any:
            if way == "a plan token":
                return host.commit_sync(token, context=ANN, idempotency_key=key)
            return host.invoke_sync("o:pay", context=ANN, idempotency_key=key)

        if way == "an approval":
            host.approvals.approve(paid("k").error.details["approval"], by=BOSS)
        assert [paid("k").error.kind for _ in range(2)] == ["UPSTREAM_ERROR", "CIRCUIT_OPEN"]
        assert paid(None).error.kind == ("APPROVAL_REQUIRED" if way == "an approval" else "POLICY_DENIED")
    assert ran == ["pay"]


def test_an_approval_lets_one_of_many_calls_run_also_when_limits_refuse_some_of_them(tmp_path: Path) -> None:
    ran: list[int] = []

    @tool(requires_approval=True, limits={"concurrency": 1, "queue": 0})
    def pay(amount: int) -> int:
        ran.append(amount)
        return amount

    with Tavern.open({}, home=tmp_path / "home", plugins=[Plugin([pay], name="o")]) as host:
        waiting = host.invoke_sync("o:pay", {"amount": 5}, context=ANN).error
        assert waiting is not None
        host.approvals.approve(waiting.details["approval"], by=BOSS)
        calls = [
            threading.Thread(target=host.invoke_sync, args=("o:pay", {"amount": 5}), kwargs={"context": ANN})
            for _ in range(20)
        ]
        for call in calls:
            call.start()
        for call in calls:
            call.join()
    assert ran == [5]
