"""Metrics of a host in the text format of Prometheus (seed 004 §10.2), by prometheus-client.

    tool_invocations_total{toolName,ok}        tool_latency_ms_bucket{toolName,le}
    tool_retries_total{toolName}               policy_denied_total{toolName,reason}

and gauges, computed at each scrape: running and waiting calls, breakers, cached answers, jobs by status.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from tavern_core.errors import UsageError
from tavern_core.kernel.jobs.jobs import Jobs
from tavern_core.kernel.limits.limit_table import LimitTable
from tavern_core.kernel.log.recorder import DENIALS, Recorder
from tavern_core.model.job import JOB_STATUSES
from tavern_core.model.result import ToolResult

_BUCKETS_MS: Final = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000)
_UNKNOWN: Final = "unknown"
"""The name for unknown tools: a caller could invent any number of them."""
_STATES: Final = {"closed": 0, "half-open": 1, "open": 2}
_MOST_JOBS: Final = 10_000


class Metrics:
    """`tavern.metrics`.

    Args:
        is_on: `metrics.enabled` of tavern.yaml.
        is_tool: whether there is a tool of this id.

    Raises:
        UsageError: prometheus-client is not installed (USAGE).
    """

    def __init__(
        self, is_on: bool, table: LimitTable, jobs: Jobs, recorder: Recorder, is_tool: Callable[[str], bool]
    ) -> None:
        self.is_on = is_on
        self._table = table
        self._jobs = jobs
        self._recorder = recorder
        self._is_tool = is_tool
        self._children: dict[tuple[str, bool], tuple[Any, Any]] = {}
        if not is_on:
            return
        try:
            from prometheus_client import CollectorRegistry, Histogram
            from prometheus_client import Counter as PrometheusCounter
        except ImportError as error:
            raise UsageError(
                "metrics.enabled is set, and the package prometheus-client is not installed",
                hint="pip install 'tavern-core[metrics]'",
            ) from error
        self._registry = registry = CollectorRegistry()
        self._calls = PrometheusCounter("tool_invocations", "Calls of tools.", ["toolName", "ok"], registry=registry)
        self._latency = Histogram(
            "tool_latency_ms",
            "How long calls took, in milliseconds.",
            ["toolName"],
            buckets=_BUCKETS_MS,
            registry=registry,
        )
        self._denied = PrometheusCounter(
            "policy_denied", "Calls that were refused.", ["toolName", "reason"], registry=registry
        )
        registry.register(self)

    def text(self) -> str:
        """Everything, in the text format of Prometheus.

        Raises:
            UsageError: metrics are off (USAGE).
        """
        if not self.is_on:
            raise UsageError("metrics are off", hint="metrics: {enabled: true} in tavern.yaml")
        from prometheus_client import generate_latest

        return generate_latest(self._registry).decode()

    def called(self, result: ToolResult) -> None:
        """Count a call that has ended."""
        trace = result._trace
        tool = trace[0] if trace is not None else _UNKNOWN
        counter, latency = self._children.get((tool, result.ok)) or self._child(tool, result.ok)
        counter.inc()
        if trace is not None:
            latency.observe(trace[3] * 1000)
        error = result.error
        if error is not None and error.kind in DENIALS:
            reason = str(error.details.get("plugin") or error.details.get("rule") or error.kind)[:80]
            self._denied.labels(self._name(tool), reason).inc()

    def _child(self, tool: str, ok: bool) -> tuple[Any, Any]:
        name = self._name(tool)
        made = self._calls.labels(name, str(ok).lower()), self._latency.labels(name)
        if name == tool:
            self._children[tool, ok] = made
        return made

    def _name(self, tool: str) -> str:
        return tool if self._is_tool(tool) else _UNKNOWN

    def collect(self) -> Iterator[Any]:
        """Called by prometheus-client at each scrape: the computed metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        retries = CounterMetricFamily("tool_retries", "Further tries of calls.", labels=["toolName"])
        for tool, count in dict(self._recorder.retries).items():
            retries.add_metric([tool], count)
        running = GaugeMetricFamily("tool_concurrency_running", "Calls that have a place.", labels=["limit"])
        waiting = GaugeMetricFamily("tool_concurrency_waiting", "Calls that wait for one.", labels=["limit"])
        for key, slots in self._table.slots().items():
            name = key.replace("\x1f", " ").strip()
            running.add_metric([name], slots.taken)
            waiting.add_metric([name], slots.waiting)
        breakers = GaugeMetricFamily("tool_breaker_state", "0 closed, 1 half-open, 2 open.", labels=["breaker"])
        for key, breaker in self._table.breakers().items():
            breakers.add_metric([key], _STATES[breaker.state])
        cache = self._table.cache
        hits = CounterMetricFamily("tool_cache_lookups", "Look-ups in the result cache.", labels=["hit"])
        hits.add_metric(["true"], cache.hits)
        hits.add_metric(["false"], cache.misses)
        size = GaugeMetricFamily("tool_cache_bytes", "Bytes of cached answers.", value=cache.bytes)
        jobs = GaugeMetricFamily("jobs", "Jobs by status.", labels=["status"])
        counts = Counter(job.status for job in self._jobs.list(most=_MOST_JOBS))
        for status in JOB_STATUSES:
            jobs.add_metric([status], counts[status])
        yield from (retries, running, waiting, breakers, hits, size, jobs)
