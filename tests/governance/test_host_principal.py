"""The exemptions of the host are those of its own calls, not of callers that are called `host`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Budget, CallContext, Plugin, Tavern, ToolContext, tool

CLAIMS = {
    "its principal is host": CallContext(principal="host"),
    "with all permissions": CallContext(principal="host", permissions={"*"}),
    "out of JSON": CallContext.from_json({"principal": "host"}),
    "a copy": replace(CallContext(principal="user:bob"), principal="host"),
    "with the role host": CallContext(principal="host", roles={"host"}),
}
ALL_BUT_HOST: dict[str, Any] = {"callers": {"*": {"deny": ["t:r"]}}}
claims = pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS.keys())
host: Tavern


@tool
def r() -> int:
    """Rest."""
    return 1


@tool
async def nested(context: CallContext, how: str = "none") -> Any:
    """Call another tool, as the caller of this one."""
    given = {
        "none": None,
        "same": context,
        "copy": replace(context, budget=Budget(timeout_ms=60_000)),
        "made": CallContext(principal=context.principal),
    }[how]
    result = await host.invoke("t:r", context=given)
    return result.value if result.error is None else result.error.kind


@tool
async def begin(context: CallContext) -> str:
    """Begin a job with a copy of the caller's context."""
    job = await host.jobs.start("t:asks", context=replace(context, budget=Budget(timeout_ms=600_000)))
    return job.id


@tool
async def asks(ctx: ToolContext) -> Any:
    """Ask, then call another tool."""
    await ctx.ask("Go on?", {"type": "boolean"})
    result = await host.invoke("t:r")
    return result.value if result.error is None else result.error.kind


def opened(home: Path, config: Any) -> Tavern:
    global host
    host = Tavern.open(config, home=home, plugins=[Plugin([r, nested, begin, asks], name="t")])
    return host


@claims
def test_a_caller_with_the_name_of_the_host_falls_under_the_rules_for_all_others(
    tmp_path: Path, claim: CallContext
) -> None:
    with opened(tmp_path, ALL_BUT_HOST) as tavern:
        refused = tavern.invoke_sync("t:r", context=claim)
        assert refused.error is not None
        assert (refused.error.kind, refused.error.details["rule"]) == ("POLICY_DENIED", "callers.*.deny[0]")
        assert "t:r" not in [spec.id for spec in tavern.tool_specs(context=claim)]
        assert not tavern.tools.why("t:r", context=claim)
        assert tavern.invoke_sync("t:r").ok
        assert "t:r" in [spec.id for spec in tavern.tool_specs()]


@pytest.mark.parametrize("how", ["none", "same", "copy"])
def test_what_the_host_calls_may_call_on_as_the_host(tmp_path: Path, how: str) -> None:
    with opened(tmp_path, ALL_BUT_HOST) as tavern:
        assert tavern.invoke_sync("t:nested", {"how": how}).value == 1
        claim = CLAIMS["its principal is host"]
        assert tavern.invoke_sync("t:nested", {"how": how}, context=claim).value == "POLICY_DENIED"


def test_a_context_that_a_tool_makes_is_not_the_host(tmp_path: Path) -> None:
    with opened(tmp_path, ALL_BUT_HOST) as tavern:
        assert tavern.invoke_sync("t:nested", {"how": "made"}).value == "POLICY_DENIED"


def test_a_rule_for_the_name_host_does_not_exempt_from_the_rule_for_others(tmp_path: Path) -> None:
    with opened(tmp_path, {"callers": {**ALL_BUT_HOST["callers"], "host": {"allow": ["t:r"]}}}) as tavern:
        assert not tavern.invoke_sync("t:r", context=CLAIMS["its principal is host"]).ok
        assert tavern.invoke_sync("t:r").ok


@claims
def test_a_caller_with_the_name_of_the_host_has_the_rate_of_all_others(tmp_path: Path, claim: CallContext) -> None:
    with opened(tmp_path, {"limits": {"callers": {"*": {"rate": "1/hour"}}}}) as tavern:
        assert all(tavern.invoke_sync("t:r").ok for _ in range(3))
        assert [tavern.invoke_sync("t:r", context=claim).ok for _ in range(3)] == [True, False, False]
        assert all(tavern.invoke_sync("t:r").ok for _ in range(3))


@pytest.mark.parametrize("claimed", ["host", "role:staff", "profile:staff"])
def test_a_limit_for_a_claimed_name_does_not_exempt_from_the_limit_of_all_others(tmp_path: Path, claimed: str) -> None:
    limits = {claimed: {"rate": "1000/hour"}, "*": {"rate": "1/hour"}}
    with opened(tmp_path, {"limits": {"callers": limits}}) as tavern:
        claim = CallContext(principal=claimed)
        assert [tavern.invoke_sync("t:r", context=claim).ok for _ in range(2)] == [True, False]
        assert all(tavern.invoke_sync("t:r").ok for _ in range(2))
        staff = CallContext(principal="user:ann", roles={"staff"})
        assert [tavern.invoke_sync("t:r", context=staff).ok for _ in range(2)] == [True, claimed == "role:staff"]


WHO: dict[str, tuple[Callable[[], str], Any]] = {
    "the host": (lambda: str(host.invoke_sync("t:asks", job=True).job), 1),
    "a tool of the host, with a copy of its context": (lambda: str(host.invoke_sync("t:begin").value), 1),
    "a caller with its name": (
        lambda: str(host.invoke_sync("t:asks", job=True, context=CLAIMS["its principal is host"]).job),
        "POLICY_DENIED",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("who", WHO)
def test_a_job_that_another_process_resumes_may_do_what_it_might_before(tmp_path: Path, who: str) -> None:
    begins, answer = WHO[who]
    with opened(tmp_path, ALL_BUT_HOST) as tavern:
        job = begins()
        while tavern.jobs[job].status != "input_required":
            assert not tavern.jobs[job].is_over, tavern.jobs[job].error
            tavern.wait(tavern.jobs.wait(job, 0.01))
    with opened(tmp_path, ALL_BUT_HOST) as tavern:
        assert tavern.jobs.answer(job, True)
        tavern.wait(tavern.jobs.resume(job))
        assert tavern.wait(tavern.jobs.wait(job, 30)).status == "completed"
        assert tavern.jobs.result(job).value == answer


def test_no_context_in_json_says_that_it_is_the_host(tmp_path: Path) -> None:
    seen: list[CallContext] = []

    @tool
    def look(context: CallContext) -> int:
        """Look."""
        seen.append(context)
        return 1

    with Tavern.open(ALL_BUT_HOST, home=tmp_path, plugins=[Plugin([r, look], name="t")]) as tavern:
        assert tavern.invoke_sync("t:look").ok
        written = json.loads(json.dumps(seen[0].to_json()))
        assert tavern.invoke_sync("t:r", context=seen[0]).ok
        assert not tavern.invoke_sync("t:r", context=CallContext.from_json(written)).ok


def test_a_profile_and_an_agent_of_the_host_are_not_the_host(tmp_path: Path) -> None:
    with opened(tmp_path, ALL_BUT_HOST) as tavern:
        for name in ("agent:writer", "anonymous", "HOST", "host "):
            assert not tavern.invoke_sync("t:r", context=CallContext(principal=name)).ok
