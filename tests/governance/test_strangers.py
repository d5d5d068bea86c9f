"""What belongs to one caller is never shown to another, nor joined by him, whatever he guesses."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tavern_core import CallContext, Plugin, Tavern, tool
from tavern_core.errors import ArtifactNotFound, JobNotFound, PolicyDenied, TavernError, UsageError
from tavern_core.kernel.calls import pending_approval_store, plan_tokens

SECRET = "the plans of ann"
ANN = CallContext(principal="user:ann", user_id="ann")
STRANGERS = [
    CallContext(principal="user:bob", user_id="ann"),
    CallContext(principal="user:ann", user_id="bob"),
    CallContext(principal="user:ann"),
    CallContext(principal="user:ann\x1fann"),
    CallContext(principal="host"),
    CallContext(principal=""),
    CallContext(principal="user:bob", roles=frozenset({"admin", "host"})),
]
ran: list[str] = []


@tool(limits={"cache_ms": 60_000}, read_only=True)
def looks(word: str) -> str:
    ran.append("looks")
    return f"{SECRET} {word}"


@tool(requires_approval=True)
def pays(word: str) -> str:
    return f"{SECRET} {word}"


@tool
async def slow(word: str) -> str:
    ran.append("slow")
    await asyncio.sleep(0.05)
    return f"{SECRET} {word}"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Tavern]:
    ran.clear()
    with Tavern.open({}, home=tmp_path / "home", plugins=[Plugin([looks, pays, slow], name="t")]) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tavern]:
    """One host for all strangers: each test asks about words, and with keys, of its own."""
    home = tmp_path_factory.mktemp("strangers")
    with Tavern.open({}, home=home, plugins=[Plugin([looks, pays, slow], name="t")]) as opened:
        yield opened


@pytest.fixture
def words() -> dict[str, str]:
    ran.clear()
    return {"word": f"x{next(NUMBERS)}"}


strangers = pytest.mark.parametrize("stranger", STRANGERS, ids=lambda one: repr((one.principal, one.user_id)))
WORDS = {"word": "x"}
NUMBERS = itertools.count()


@pytest.mark.slow
@strangers
def test_a_key_in_flight_is_not_joined_and_its_answer_not_replayed(
    shared: Tavern, words: dict[str, str], stranger: CallContext
) -> None:
    first, second = f"first {words['word']}", f"second {words['word']}"

    async def both() -> list[Any]:
        calls = (shared.invoke("t:slow", words, context=who, idempotency_key=first) for who in (ANN, stranger))
        return await asyncio.gather(*calls)

    assert all(result.ok for result in asyncio.run(both()))
    assert ran == ["slow", "slow"]
    again = shared.invoke_sync("t:slow", {"word": "other"}, context=stranger, idempotency_key=first)
    assert again.error is not None
    assert again.error.kind == "IDEMPOTENCY_CONFLICT"
    assert shared.invoke_sync("t:slow", {"word": "other"}, context=ANN, idempotency_key=second).ok
    assert "idempotency" not in shared.invoke_sync("t:slow", words, context=stranger, idempotency_key=second).meta


@strangers
def test_a_kept_answer_is_its_callers(shared: Tavern, words: dict[str, str], stranger: CallContext) -> None:
    for who in (ANN, stranger, ANN, stranger):
        assert shared.invoke_sync("t:looks", words, context=who).ok
    assert ran == ["looks", "looks"]


@strangers
def test_a_plan_is_its_callers(shared: Tavern, words: dict[str, str], stranger: CallContext) -> None:
    token = shared.invoke_sync("t:looks", words, context=ANN, dry_run=True).value["planToken"]
    refused = shared.commit_sync(token, context=stranger).error
    assert refused is not None
    assert refused.kind == "POLICY_DENIED"
    assert SECRET not in str(refused)
    assert shared.commit_sync(token, context=ANN).ok


@strangers
def test_an_approval_is_for_its_caller(shared: Tavern, words: dict[str, str], stranger: CallContext) -> None:
    waiting = shared.invoke_sync("t:pays", words, context=ANN).error
    assert waiting is not None
    with pytest.raises(PolicyDenied):
        shared.approvals.approve(waiting.details["approval"], by=stranger)
    shared.approvals.approve(waiting.details["approval"])
    assert shared.invoke_sync("t:pays", words, context=stranger).status == "input_required"
    assert shared.invoke_sync("t:pays", words, context=ANN).ok


@pytest.mark.slow
@strangers
def test_jobs_and_artifacts_are_their_callers(shared: Tavern, words: dict[str, str], stranger: CallContext) -> None:
    job = str(shared.invoke_sync("t:slow", words, context=ANN, job=True).job)
    shared.wait(shared.jobs.wait(job, 30))
    kept = shared.artifacts.put(SECRET, "text/plain", context=ANN)
    asks: list[tuple[Callable[..., Any], str, type[TavernError]]] = [
        (shared.jobs.find, job, JobNotFound), (shared.jobs.result, job, JobNotFound), (shared.jobs.cancel, job, JobNotFound),
        (shared.artifacts.get, kept.id, ArtifactNotFound), (shared.artifacts.read, kept.uri, ArtifactNotFound),
        (shared.artifacts.remove, kept.id, ArtifactNotFound),
    ]  # fmt: skip
    for ask, name, error in asks:
        with pytest.raises(error) as refusal:
            ask(name, context=stranger)
        assert job not in refusal.value.hint
        assert kept.id not in refusal.value.hint
    assert shared.jobs.list(context=stranger) == shared.artifacts.list(context=stranger) == ()
    for name in ("getStatus", "getResult", "cancel"):
        result = shared.invoke_sync(f"jobs:{name}", {"jobId": job}, context=stranger)
        assert result.error is not None, name
        assert SECRET not in str(result)
    assert shared.invoke_sync("jobs:list", context=stranger).value in ([], {"jobs": []})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("user:ann\x1fx", "y"), ("user:ann", "x\x1fy")),
        (("user:ann\x1e1", "y"), ("user:ann\x1f", "y")),
        (("\x1f", ""), ("", "\x1f")),
    ],
)
def test_no_two_callers_share_anything_whatever_their_names_hold(
    host: Tavern, one: tuple[str, str], other: tuple[str, str]
) -> None:
    first, second = (CallContext(principal=principal, user_id=user) for principal, user in (one, other))
    for who in (first, second):
        assert host.invoke_sync("t:slow", WORDS, context=who, idempotency_key="k").ok
    assert ran == ["slow", "slow"]
    token = host.invoke_sync("t:looks", WORDS, context=first, dry_run=True).value["planToken"]
    assert host.commit_sync(token, context=second).error.kind == "POLICY_DENIED"  # type: ignore[union-attr]
    host.artifacts.put(SECRET, "text/plain", context=first)
    assert len(host.artifacts.list(context=first)) == 1
    assert host.artifacts.list(context=second) == ()
    waiting = host.invoke_sync("t:pays", WORDS, context=first).error
    assert waiting is not None
    host.approvals.approve(waiting.details["approval"], remember="tool")
    assert host.invoke_sync("t:pays", WORDS, context=first).ok
    assert host.invoke_sync("t:pays", WORDS, context=second).status == "input_required"


@pytest.mark.parametrize("name", ["user:\ud800", "x" * 1_001])
def test_a_caller_whose_name_cannot_be_stored_is_refused_when_it_is_named(name: str) -> None:
    for field in ("principal", "user_id"):
        with pytest.raises(UsageError, match=f"CallContext.{field}"):
            CallContext(**{field: name})


LEFT_BEHIND: dict[str, Callable[[Tavern, str], Any]] = {
    "requests for approval": lambda host, word: host.invoke_sync("t:pays", {"word": word}, context=ANN),
    "plans": lambda host, word: host.invoke_sync("t:looks", {"word": word}, context=ANN, dry_run=True),
}


@pytest.mark.parametrize("what", LEFT_BEHIND)
def test_what_one_caller_leaves_behind_is_bounded_and_keeps_no_other_out(
    host: Tavern, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_approval_store, "MOST_PENDING", 20)
    monkeypatch.setattr(plan_tokens, "MOST_OPEN", 20)
    one = LEFT_BEHIND[what]
    first = [one(host, f"word {number}") for number in range(20)]
    assert all(result.error is None or result.error.kind == "APPROVAL_REQUIRED" for result in first)
    refused = one(host, "one more").error
    assert (refused.kind, refused.details["most"]) == ("BUDGET_EXCEEDED", 20)
    assert refused.details["limit"].endswith("of one caller")
    assert refused.retry_after_ms > 0
    again = one(host, "word 7").error
    assert again.kind == ("APPROVAL_REQUIRED" if what != "plans" else "BUDGET_EXCEEDED")
    other = CallContext(principal="user:bob")
    assert host.invoke_sync("t:pays", WORDS, context=other).error.kind == "APPROVAL_REQUIRED"  # type: ignore[union-attr]
    assert host.invoke_sync("t:looks", WORDS, context=other, dry_run=True).ok
