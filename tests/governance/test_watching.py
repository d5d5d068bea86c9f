"""Metrics, spans, statistics and traces of calls."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client.parser import text_string_to_metric_families

from tavern_core import Budget, CallContext, Plugin, Tavern, ToolContext, ToolResult, tool
from tavern_core.errors import UpstreamError, UsageError
from tests import programs
from tests.mcp_server.shop import ERAS as MCP_ERAS
from tests.mcp_server.shop import client, open_shop
from tests.server.desk import served
from tests.state.processes import run, start
from tests.upstreams.mcp_hosts import ERAS, program
from tests.upstreams.mcp_hosts import host as mcp_host
from tests.upstreams.n8n_stub import N8nStub, answers
from tests.upstreams.opening import opened as upstream_host

EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def _tracer() -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(provider)


@tool(limits={"concurrency": 3})
def works() -> int:
    with trace.get_tracer("test").start_as_current_span("inside"):
        return 1


@tool(capabilities=["write:fs"])
def writes() -> int:
    return 1


@tool(idempotent=True)
def fails() -> int:
    raise UpstreamError("away", retry_after_ms=1)


IS_WAITING = threading.Event()


@tool
async def hangs() -> int:
    IS_WAITING.set()
    await asyncio.Event().wait()
    return 1


def opened(tmp_path: Path, **config: Any) -> Tavern:
    return Tavern.open(config, home=tmp_path / "home", plugins=[Plugin([works, writes, fails, hangs], name="t")])


@pytest.mark.slow
def test_calls_are_counted_as_prometheus_reads_them(tmp_path: Path) -> None:
    with opened(tmp_path, metrics={"enabled": True}) as host:
        for _ in range(3):
            host.invoke_sync("t:works")
        host.invoke_sync("t:writes", context=CallContext(principal="user:ann"))
        host.invoke_sync("t:fails", context=CallContext(budget=Budget(max_retries=2)))
        for name in ("t:x", "t:y", "odd\n"):
            host.invoke_sync(name)
        job = host.invoke_sync("t:works", job=True)
        host.wait(host.jobs.wait(job.job, 30))
        host.invoke_sync("jobs:getResult", {"jobId": job.job})
        host.invoke_sync("jobs:getResult", {"jobId": "none"})
        waiting = host.invoke_sync("t:hangs", job=True)
        IS_WAITING.wait(30)
        host.jobs.cancel(waiting.job)
        host.wait(host.jobs.wait(waiting.job, 30))
        families = {family.name: family for family in text_string_to_metric_families(host.metrics.text())}
    counts = {
        (s.labels["toolName"], s.labels["ok"]): s.value
        for s in families["tool_invocations"].samples
        if s.name == "tool_invocations_total"
    }
    assert counts["t:writes", "false"] == counts["t:fails", "false"] == 1
    assert counts["t:works", "true"] == 4
    assert counts["jobs:getResult", "true"] == counts["jobs:getResult", "false"] == 1
    assert counts["t:hangs", "false"] == 1
    assert counts["unknown", "false"] == 3
    assert {name for name, _ in counts} == {"t:works", "t:writes", "t:fails", "t:hangs", "jobs:getResult", "unknown"}
    latency = families["tool_latency_ms"]
    assert {s.labels["le"] for s in latency.samples if s.name == "tool_latency_ms_bucket"} >= {"1.0", "60000.0", "+Inf"}
    retries = [s for s in families["tool_retries"].samples if s.name == "tool_retries_total"]
    assert [(s.labels["toolName"], s.value) for s in retries] == [("t:fails", 2)]
    (denied,) = [s for s in families["policy_denied"].samples if s.name == "policy_denied_total"]
    assert (denied.labels["toolName"], denied.labels["reason"], denied.value) == ("t:writes", "core-capabilities", 1)
    assert families["tool_concurrency_running"].samples
    assert sum(s.value for s in families["jobs"].samples) == 2


@pytest.mark.parametrize(("inline_ms", "status"), [(60_000, "ok"), (1, "job")])
def test_a_call_that_may_become_a_job_counts_once(tmp_path: Path, inline_ms: int, status: str) -> None:
    answered = threading.Event()

    @tool(limits={"inline_ms": inline_ms})
    async def looks() -> int:
        if status == "job":
            await asyncio.to_thread(answered.wait, 30)
        return 1

    with Tavern.open({"metrics": {"enabled": True}}, home=tmp_path, plugins=[Plugin([looks], name="m")]) as host:
        result = host.invoke_sync("m:looks")
        answered.set()
        host.wait(host.jobs.wait(str(result.job), 30))
        text = host.metrics.text()
    assert result.status == status
    assert 'tool_invocations_total{ok="true",toolName="m:looks"} 1.0' in text


@pytest.mark.parametrize(
    ("is_job", "answer", "expected"),
    [
        (True, None, {}),
        (True, True, {"true": 1}),
        (True, False, {"false": 1}),
        (False, None, {}),
        (False, True, {"true": 1}),
        (False, False, {"false": 1}),
    ],
)
def test_a_call_that_waits_for_approval_counts_once_it_is_decided(
    tmp_path: Path, is_job: bool, answer: bool | None, expected: dict[str, int]
) -> None:
    @tool(requires_approval=True)
    def pays() -> int:
        return 1

    with Tavern.open({"metrics": {"enabled": True}}, home=tmp_path, plugins=[Plugin([pays], name="t")]) as host:
        ann, boss = CallContext(principal="user:ann"), CallContext(principal="user:boss", roles={"approver"})
        result = host.invoke_sync("t:pays", job=is_job, context=ann)
        if is_job:
            host.wait(host.jobs.wait(str(result.job), 30))
        (asked,) = host.approvals.list()
        if answer is not None:
            (host.approvals.approve if answer else host.approvals.reject)(asked.id, by=boss)
            if is_job:
                host.wait(host.jobs.wait(str(result.job), 30))
            else:
                host.invoke_sync("t:pays", context=ann)
        families = {family.name: family for family in text_string_to_metric_families(host.metrics.text())}
    samples = families["tool_invocations"].samples
    counts = {s.labels["ok"]: s.value for s in samples if s.name == "tool_invocations_total"}
    assert counts == expected


def test_limits_breakers_and_kept_answers_are_gauges(tmp_path: Path) -> None:
    @tool(limits={"breaker": {"failures": 1}, "concurrency": 1}, name="breaks")
    def breaks() -> int:
        raise UpstreamError("away")

    @tool(limits={"cache_ms": 60_000}, read_only=True, name="looks")
    def looks() -> int:
        return 1

    config = {"metrics": {"enabled": True}}
    with Tavern.open(config, home=tmp_path / "home", plugins=[Plugin([breaks, looks], name="m")]) as host:
        host.invoke_sync("m:breaks")
        for _ in range(3):
            host.invoke_sync("m:looks")
        samples = [s for family in text_string_to_metric_families(host.metrics.text()) for s in family.samples]
    values = {(s.name, *sorted(s.labels.values())): s.value for s in samples}
    assert values["tool_breaker_state", "m:breaks"] == 2
    assert (values["tool_cache_lookups_total", "true"], values["tool_cache_lookups_total", "false"]) == (2, 1)
    assert values["tool_cache_bytes",] > 0
    assert {s.labels["limit"]: s.value for s in samples if s.name == "tool_concurrency_waiting"}
    assert values["tool_latency_ms_count", "m:looks"] == values["tool_invocations_total", "m:looks", "true"] == 3


@pytest.mark.parametrize(("after_s", "value", "state"), [(0, 2, "open"), (29, 2, "open"), (30, 1, "half-open")])
def test_a_breaker_is_half_open_as_soon_as_its_rest_is_over(
    tmp_path: Path, after_s: float, value: float, state: str
) -> None:
    @tool(limits={"breaker": {"failures": 1}})
    def breaks() -> int:
        raise UpstreamError("away")

    plugin, now = Plugin([breaks], name="m"), 0.0
    with Tavern.open({"metrics": {"enabled": True}}, home=tmp_path / "home", plugins=[plugin]) as host:
        host.limits._table.clock = lambda: now
        for _ in range(2):  # after the trial it is open anew
            host.invoke_sync("m:breaks")
            now += after_s
            samples = [s for family in text_string_to_metric_families(host.metrics.text()) for s in family.samples]
            assert [s.value for s in samples if s.name == "tool_breaker_state"] == [value]
            assert [limit.breaker for limit in host.limits.list() if limit.breaker] == [state]
            now += 30


def test_metrics_that_are_off_say_so(tmp_path: Path) -> None:
    with opened(tmp_path) as host, pytest.raises(UsageError, match="metrics are off"):
        host.metrics.text()


def test_each_call_is_a_span_with_what_belongs_to_it_inside(tmp_path: Path) -> None:
    EXPORTER.clear()
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with opened(tmp_path) as host:
        result = host.invoke_sync("t:works", context=CallContext(trace_id=parent, agent_id="a1"))
        host.invoke_sync("t:writes", context=CallContext())
    spans = {span.name: span for span in EXPORTER.get_finished_spans()}
    call, inside = spans["execute_tool t:works"], spans["inside"]
    assert call.attributes is not None and call.parent is not None and inside.parent is not None
    assert call.attributes["gen_ai.operation.name"] == "execute_tool"
    assert call.attributes["gen_ai.tool.name"] == "t:works"
    assert call.attributes["gen_ai.tool.call.id"] == result.call_id
    assert f"{call.context.trace_id:032x}" == parent.split("-")[1]
    assert f"{call.parent.span_id:016x}" == parent.split("-")[2]
    assert inside.parent.span_id == call.context.span_id
    refused = spans["execute_tool t:writes"]
    assert refused.attributes is not None and refused.attributes["error.type"] == "POLICY_DENIED"
    assert not refused.status.is_ok


@tool
def clear() -> None:
    """Clear the table."""


@pytest.mark.parametrize("written", ["t:clear", "t.clear", "t/clear"])
def test_a_span_names_and_describes_the_tool_however_its_caller_writes_it(tmp_path: Path, written: str) -> None:
    EXPORTER.clear()
    with Tavern.open({}, home=tmp_path / "home", plugins=[Plugin([clear], name="t")]) as host:
        assert host.invoke_sync(written).ok
    (span,) = EXPORTER.get_finished_spans()
    assert span.name == "execute_tool t:clear"
    assert span.attributes is not None
    assert span.attributes["gen_ai.tool.name"] == "t:clear"
    assert span.attributes["gen_ai.tool.description"] == "Clear the table."


@tool
def shows_trace(ctx: ToolContext) -> dict[str, str]:
    return dict(ctx.trace_headers)


@pytest.mark.parametrize("named", [False, True], ids=["by the current span", "by the context"])
def test_a_job_belongs_to_the_trace_of_the_call_that_began_it(tmp_path: Path, named: bool) -> None:
    EXPORTER.clear()
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    events = []
    with Tavern.open({}, home=tmp_path / "home", plugins=[Plugin([shows_trace], name="t")]) as host:
        host.events.subscribe(events.append, "JOB_CHANGED")
        token = context.attach(TraceContextTextMapPropagator().extract({} if named else {"traceparent": parent}))
        try:
            caller = CallContext(principal="user:ann", trace_id=parent) if named else None
            started = host.invoke_sync("t:shows_trace", job=True, context=caller)
        finally:
            context.detach(token)
        job = host.wait(host.jobs.wait(str(started.job), 30))
        seen = host.jobs.result(job.id).unwrap()
    asked, made = sorted(EXPORTER.get_finished_spans(), key=lambda span: span.start_time or 0)
    assert asked.parent is not None
    assert made.parent is not None
    assert f"{asked.parent.span_id:016x}" == parent.split("-")[2]
    assert made.parent.span_id == asked.context.span_id
    assert made.context.trace_id == asked.context.trace_id == int(parent.split("-")[1], 16)
    assert job.trace == {"traceparent": f"{parent[:36]}{asked.context.span_id:016x}-01"}
    assert seen == {"traceparent": f"{parent[:36]}{made.context.span_id:016x}-01"}
    assert {event.data["traceparent"] for event in events} == {job.trace["traceparent"]}
    assert [event.data["status"] for event in events] == ["queued", "running", "completed"]


@tool
async def waits(ctx: ToolContext) -> None:
    ctx.progress(0)
    await asyncio.Event().wait()


@pytest.mark.parametrize("how", ["its job is cancelled", "its caller goes away"])
def test_a_call_that_is_cancelled_has_failed_for_those_who_watch(tmp_path: Path, how: str) -> None:
    EXPORTER.clear()

    async def cancelled() -> None:
        begun, loop = asyncio.Event(), asyncio.get_running_loop()
        async with Tavern.open(
            {"metrics": {"enabled": True}}, home=tmp_path / "home", plugins=[Plugin([waits], name="t")]
        ) as host:
            host.events.subscribe(lambda _: loop.call_soon_threadsafe(begun.set), "TOOL_PROGRESS")
            is_job = how == "its job is cancelled"
            call = asyncio.ensure_future(host.invoke("t:waits", job=is_job))
            await begun.wait()
            if is_job:
                job = str((await call).job)
                host.jobs.cancel(job)
                await host.jobs.wait(job, 30)
            else:
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
            assert 'tool_invocations_total{ok="false",toolName="t:waits"} 1.0' in host.metrics.text()

    asyncio.run(cancelled())
    failed = [span for span in EXPORTER.get_finished_spans() if not span.status.is_ok]
    assert [(span.attributes or {})["error.type"] for span in failed] == ["CANCELLED"]


BEGINS = """
import json, queue, sys
from tavern_core import CallContext, Plugin, Tavern, ToolContext, tool

seen = queue.Queue()

@tool(idempotent=True)
async def shows_trace(ctx: ToolContext) -> None:
    import asyncio
    seen.put([*ctx.trace_headers.values(), *[n for n in sys.modules if "opentelemetry" in n]])
    await asyncio.sleep(3600)

with Tavern.open({}, home=sys.argv[1], plugins=[Plugin([shows_trace], name="t")]) as host:
    started = host.invoke_sync("t:shows_trace", context=CallContext(principal="user:ann", trace_id=sys.argv[2]), job=True)
    print(json.dumps([started.job, *seen.get()]), flush=True)
    host.wait(host.jobs.wait(started.job))
"""


@pytest.mark.slow
def test_a_job_that_another_process_takes_up_stays_in_its_trace(tmp_path: Path) -> None:
    EXPORTER.clear()
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with start(BEGINS, tmp_path / "home", parent) as other:
        assert other.stdout is not None
        job, *seen = json.loads(other.stdout.readline())
        other.kill()
    assert seen == [parent]  # without OpenTelemetry, too
    with Tavern.open({}, home=tmp_path / "home", plugins=[Plugin([shows_trace], name="t")]) as host:
        host.wait(host.jobs.resume(job))
        assert host.wait(host.jobs.wait(job, 30)).status == "completed"
        assert host.jobs[job].trace == {"traceparent": parent}
    (made,) = EXPORTER.get_finished_spans()
    assert made.parent is not None
    assert f"{made.context.trace_id:032x}-{made.parent.span_id:016x}" == parent[3:52]


@pytest.mark.slow
def test_spans_can_be_switched_off_and_nothing_is_imported_for_them(tmp_path: Path) -> None:
    EXPORTER.clear()
    with opened(tmp_path, metrics={"spans": False}) as host:
        host.invoke_sync("t:works")
    assert [span.name for span in EXPORTER.get_finished_spans()] == ["inside"]
    code = """
import sys
from tavern_core import Tavern
with Tavern.open({"metrics": {"spans": False}}, home=sys.argv[1]) as host:
    host.invoke_sync("system:get_current_time")
print([name for name in sys.modules if name.split(".")[0] in ("opentelemetry", "prometheus_client", "redis", "tenacity")])
"""
    assert run(code, tmp_path / "other").strip() == "[]"


LATE = """
import sys
from tavern_core import CallContext, Plugin, Tavern, tool
@tool
def works() -> int:
    return 1
with Tavern.open({}, home=sys.argv[1], plugins=[Plugin([works], name="t")]) as host:
    host.invoke_sync("t:works")
    assert "opentelemetry.trace" not in sys.modules
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    host.invoke_sync("t:works")
print([span.name for span in exporter.get_finished_spans()])
"""


@pytest.mark.slow
def test_spans_begin_when_the_program_loads_the_sdk_after_the_host(tmp_path: Path) -> None:
    assert run(LATE, tmp_path / "home").strip() == "['execute_tool t:works']"


INSTALLED_LATE = """
import sys
from pathlib import Path
from tavern_core import Plugin, Tavern, tool
@tool
def works() -> int:
    return 1
sys.modules["opentelemetry"] = None
with Tavern.open({}, home=Path(sys.argv[1], "one"), plugins=[Plugin([works], name="t")]):
    del sys.modules["opentelemetry"]
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
with Tavern.open({}, home=Path(sys.argv[1], "other"), plugins=[Plugin([works], name="t")]) as host:
    host.invoke_sync("t:works")
print([span.name for span in exporter.get_finished_spans()])
"""


@pytest.mark.slow
def test_a_host_makes_spans_though_the_one_before_it_was_opened_without_opentelemetry(tmp_path: Path) -> None:
    assert run(INSTALLED_LATE, tmp_path).strip() == "['execute_tool t:works']"


SCRIPT = """
import json, os
print(json.dumps({name.lower(): os.environ.get(name) for name in ("TRACEPARENT", "TRACESTATE")}))
"""
WORKER = """
from tavern_core import ToolContext, hookimpl, tool

@tool
def headers(ctx: ToolContext) -> dict:
    return dict(ctx.trace_headers)

@tool
async def headers_later(ctx: ToolContext) -> dict:
    return dict(ctx.trace_headers)

@hookimpl
def tavern_register_tools():
    return [headers, headers_later]
"""
TRACED = (
    "from opentelemetry import trace"
    + WORKER.replace("ctx.trace_headers", "current()")
    + """
def current():
    span = trace.get_current_span().get_span_context()
    parent = f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
    return {"traceparent": parent, "tracestate": span.trace_state.to_header()}
"""
)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Tavern]:
    """A host with a script, and plugins in workers: one knows nothing of traces, one has loaded OpenTelemetry."""
    script = {"type": "script", "command": ["python", "run.py"]}
    tools = [{"id": name, "implementation": {"type": "python"}} for name in ("headers", "headers_later")]
    plugins = {
        "s": (
            "run.py",
            SCRIPT,
            {"tools": [{"id": "headers", "implementation": script, "parameters": {"type": "object"}}]},
        ),
        "w": ("__init__.py", WORKER, {"tools": tools, "isolation": "process"}),
        "o": ("__init__.py", TRACED, {"tools": tools, "isolation": "process"}),
    }
    for name, (file, code, manifest) in plugins.items():
        folder = tmp_path / "plugins" / name
        folder.mkdir(parents=True)
        (folder / file).write_text(code, encoding="utf-8")
        (folder / "plugin.yaml").write_text(json.dumps({"name": name, "version": "1.0", **manifest}), encoding="utf-8")
    with opened(tmp_path, plugins={"roots": [str(tmp_path / "plugins")]}) as host:
        yield host


@pytest.mark.slow
@pytest.mark.parametrize("door", ["sync", "loop"])
def test_the_trace_of_a_call_reaches_scripts_and_workers(elsewhere: Tavern, door: str) -> None:
    parent, state = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1"
    remote = TraceContextTextMapPropagator().extract({"traceparent": parent, "tracestate": state})

    async def call(name: str) -> ToolResult:
        return await elsewhere.invoke(name)

    for name in ("s:headers", "w:headers", "w:headers_later", "o:headers", "o:headers_later"):
        EXPORTER.clear()
        token = context.attach(remote)
        try:
            result = asyncio.run(call(name)) if door == "loop" else elsewhere.invoke_sync(name)
        finally:
            context.detach(token)
        (span,) = [span for span in EXPORTER.get_finished_spans() if span.name == f"execute_tool {name}"]
        expected = f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-01"
        assert result.unwrap() == {"traceparent": expected, "tracestate": state}, name


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def the_span(tool: str) -> Any:
    (span,) = [span for span in EXPORTER.get_finished_spans() if span.name == f"execute_tool {tool}"]
    return span


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
def test_the_trace_of_a_call_reaches_an_mcp_server(tmp_path: Path, era: str) -> None:
    EXPORTER.clear()
    log = tmp_path / "server.log"
    entry = {"command": program("mini_mcp.py", era, str(log)), "trusted": True}
    with mcp_host(tmp_path / "home", mini=entry) as host:
        host.upstreams.refresh_sync("mini")
        token = context.attach(TraceContextTextMapPropagator().extract({"traceparent": PARENT, "tracestate": "v=1"}))
        try:
            assert host.invoke_sync("mini:echo", {"text": "hi"}).ok
        finally:
            context.detach(token)
    span = the_span("mini:echo")
    assert [line for line in log.read_text().split("\n") if line.startswith("trace")] == [
        f"trace {PARENT[:36]}{span.context.span_id:016x}-01 v=1"
    ]


@pytest.mark.slow
def test_the_trace_of_a_call_is_a_header_of_requests_to_upstreams(tmp_path: Path) -> None:
    EXPORTER.clear()
    ann = CallContext(principal="user:ann", trace_id=PARENT, permissions=frozenset({"network", "workflow"}))

    async def headers() -> dict[str, str]:
        async with N8nStub() as n8n:
            n8n.webhooks["POST slack"] = answers({"ok": True})
            upstream = {"kind": "n8n", "url": n8n.url, "settings": {"webhooks": {"slack": {"path": "slack"}}}}
            async with upstream_host(tmp_path, {"n8n": upstream}) as host:
                assert (await host.invoke("n8n:slack", {}, context=ann)).ok
            return n8n.headers[-1]

    sent = asyncio.run(headers())["traceparent"]
    assert sent == f"{PARENT[:36]}{the_span('n8n:slack').context.span_id:016x}-01"


@pytest.mark.slow
def test_a_request_to_a_server_names_the_trace_that_its_call_belongs_to(tmp_path: Path) -> None:
    EXPORTER.clear()
    with served(tmp_path) as desk:
        path, token = "/api/tools/desk:echo/invoke", desk.token()
        assert desk.send("POST", path, token, {"arguments": {"text": "a"}}, traceparent=PARENT).status_code == 200
        span = the_span("desk:echo")
        assert (
            desk.send("POST", path, token, {"arguments": {"text": "b"}}, traceparent="00-no-trace").status_code == 200
        )
        logged = [record.data.get("traceId") for record in desk.tavern.logs.records("TOOL_CALLED")]
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == tuple(PARENT.split("-")[1:3])
    assert logged == [PARENT, None]


@pytest.mark.slow
@pytest.mark.parametrize("era", MCP_ERAS)
def test_a_call_of_an_mcp_client_names_the_trace_that_it_belongs_to(tmp_path: Path, era: str) -> None:
    EXPORTER.clear()

    async def call(url: str, token: str) -> None:
        context.attach(TraceContextTextMapPropagator().extract({"traceparent": PARENT}))
        async with client(url, token, era) as session:  # the client of the library sends its current trace
            assert not (await session.call_tool("shop__price", {"item": "tea"})).is_error

    with open_shop(tmp_path) as (url, tavern, _):
        asyncio.run(call(url, tavern.tokens.create("agent:plain")[1]))
    assert f"{the_span('shop:price').context.trace_id:032x}" == PARENT.split("-")[1]


def test_the_log_tells_in_numbers_how_tools_did(tmp_path: Path) -> None:
    with opened(tmp_path) as host:
        for _ in range(5):
            host.invoke_sync("t:works")
        host.invoke_sync("t:writes", context=CallContext())
        host.invoke_sync("t:fails", context=CallContext(budget=Budget(max_retries=1)))
        found = {one.tool: one for one in host.logs.statistics()}
    assert (found["t:works"].calls, found["t:works"].failed, sum(found["t:works"].histogram)) == (5, 0, 5)
    assert 0 < found["t:works"].p50_ms <= found["t:works"].p95_ms <= found["t:works"].max_ms
    assert (found["t:fails"].retries, found["t:fails"].errors) == (1, {"UPSTREAM_ERROR": 1})
    assert (found["t:writes"].denied, found["t:writes"].failed) == (1, 1)


def test_a_trace_says_how_long_each_step_took(tmp_path: Path) -> None:
    with opened(tmp_path) as host:
        result = host.invoke_from_sync("test", "t:works", trace=True)
        steps = [step["step"] for step in result.meta["trace"]]
        refused = host.invoke_from_sync("test", "t:works", {"x": 1}, trace=True)
    assert steps == ["resolve", "admit", "validate_input", "concurrency", "execute", "validate_output"]
    assert all(step["ms"] >= 0 for step in result.meta["trace"])
    assert refused.error is not None
    assert refused.meta["trace"][-1]["step"] == refused.error.details["stage"] == "validate_input"


def test_the_command_line_draws_times_and_traces(tmp_path: Path) -> None:
    (tmp_path / "tavern.yaml").write_text("{}", encoding="utf-8")

    def tavern(*words: str) -> tuple[int, str, str]:
        done = programs.tavern(*words, cwd=tmp_path, home=tmp_path / "home")
        return done.returncode, done.stdout, done.stderr

    code, _, err = tavern("tools", "call", "system:get_current_time", "--trace")
    assert code == 0
    assert [line.split()[-1] for line in err.splitlines()] == [
        "resolve", "admit", "validate_input", "execute", "validate_output",
    ]  # fmt: skip
    assert "system:get_current_time" in tavern("logs", "stats")[1]
    whole = tavern("logs", "stats", "system:get_current_time")[1]
    assert "█" in whole and "p95" in whole
    (row,) = json.loads(tavern("logs", "stats", "--json")[1])
    assert row["calls"] == 1
    assert tavern("logs", "stats", "no:tool")[0] == 5
