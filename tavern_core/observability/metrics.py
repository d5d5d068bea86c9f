"""Metrics of a host in the text format of Prometheus (seed 004 §10.2), by prometheus-client.

    tool_invocations_total{toolName,ok}        tool_latency_ms_bucket{toolName,le}
    tool_retries_total{toolName}               policy_denied_total{toolName,reason}
    llm_requests_total{llm,ok}                 llm_tokens_total{llm,direction}

and gauges, computed at each scrape: running and waiting calls, breakers, cached answers, and, if the store can be read, jobs by status.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate
from typing import Any, Final

from tavern_core.errors import StateDamaged, UsageError
from tavern_core.kernel.jobs.jobs import Jobs
from tavern_core.kernel.limits.limiter_registry import LimitTable
from tavern_core.kernel.log.recorder import DENIALS, Recorder
from tavern_core.kernel.registry import Registry
from tavern_core.model.job import JOB_STATUSES
from tavern_core.model.result import CallTrace, ToolError, ToolResult

_BUCKETS_MS: Final = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000)
_AT_ONCE: Final = 1_000
"""Calls that are added up at a time."""
_UNKNOWN: Final = "unknown"
"""The name for unknown tools: a caller could invent any number of them."""
_STATES: Final = {"closed": 0, "half-open": 1, "open": 2}
_MOST_JOBS: Final = 10_000
_MOST_TOOLS: Final = 10_000
"""Names from namespaces."""


class Metrics:
    """`tavern.metrics`.

    Args:
        is_on: `metrics.enabled` of tavern.yaml.
        registry: knows which tools there are.

    Raises:
        UsageError: prometheus-client is not installed (USAGE).
    """

    def __init__(self, is_on: bool, table: LimitTable, jobs: Jobs, recorder: Recorder, registry: Registry) -> None:
        self.is_on = is_on
        self._table = table
        self._jobs = jobs
        self._recorder = recorder
        self._tool_registry = registry
        self._lock = threading.Lock()
        self._ended: deque[tuple[CallTrace | None, bool]] = deque()
        """Calls that are not added up yet, and whether they went well."""
        self._counted: set[CallTrace] = set()
        """The traces of jobs whose callers are about to get the result."""
        self._tools: set[str] = set()
        """Names that are known to be of tools."""
        self._counts: Counter[tuple[str, bool]] = Counter()
        self._times: dict[str, _CallTimes] = {}
        self._denied: Counter[tuple[str, str]] = Counter()
        if not is_on:
            return
        try:
            from prometheus_client import CollectorRegistry
        except ImportError as error:
            raise UsageError(
                "metrics.enabled is set, and the package prometheus-client is not installed",
                hint="pip install 'tavern-core[metrics]'",
            ) from error
        self._registry = CollectorRegistry()
        self._registry.register(self)

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
        """Count a call that has ended: it is noted, and added up later, for many calls at once.

        A call that became a job counts when the job ends, and one that waits for a person when it is made again.
        """
        trace, error, ended = result._trace, result.error, self._ended
        if result.status == "job":
            return
        if self._counted and trace in self._counted:
            self._counted.discard(trace)
            return
        if result.status != "input_required":
            ended.append((trace, result.ok))
        if trace is not None and trace[0] not in self._tools and self._is_found(trace[0], error):
            self._tools.add(trace[0])
        if error is not None and error.kind in DENIALS:
            tool = self._name(trace)
            reason = str(error.details.get("plugin") or error.details.get("rule") or error.kind)[:80]
            with self._lock:
                self._denied[tool, reason] += 1
        if len(ended) >= _AT_ONCE:
            self._add_up()

    def is_counted(self, result: ToolResult) -> None:
        """Mark the result of a job, so that it does not count again when its caller gets it."""
        if result.status != "job" and result._trace is not None:
            self._counted.add(result._trace)

    def cut_off(self, tool: str) -> None:
        """Count a call that was cancelled, and has no result, as a failure."""
        with self._lock:
            self._counts[tool if tool in self._tools or tool in self._tool_registry.entries() else _UNKNOWN, False] += 1

    def _is_found(self, tool: str, error: ToolError | None) -> bool:
        """Whether there is a tool of this id; tools of namespaces are in no list, and any number of ids may lead to them."""
        return tool in self._tool_registry.entries() or (
            (error is None or error.details.get("stage") != "resolve") and len(self._tools) < _MOST_TOOLS
        )

    def _add_up(self) -> None:
        with self._lock:
            for _ in range(len(self._ended)):
                trace, ok = self._ended.popleft()
                tool = self._name(trace)
                self._counts[tool, ok] += 1
                if trace is not None:
                    (self._times.get(tool) or self._times.setdefault(tool, _CallTimes())).add(trace[3] * 1000)

    def _name(self, trace: CallTrace | None) -> str:
        return trace[0] if trace is not None and trace[0] in self._tools else _UNKNOWN

    def collect(self) -> Iterator[Any]:
        """Called by prometheus-client at each scrape: the computed metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        yield from self._calls()
        retries = CounterMetricFamily("tool_retries", "Further tries of calls.", labels=["toolName"])
        for tool, count in dict(self._recorder.retries).items():
            retries.add_metric([tool], count)
        yield from self._model_use()
        running = GaugeMetricFamily("tool_concurrency_running", "Calls that have a place.", labels=["limit"])
        waiting = GaugeMetricFamily("tool_concurrency_waiting", "Calls that wait for one.", labels=["limit"])
        for name, (taken, in_line) in self._table.slots().items():
            running.add_metric([name], taken)
            waiting.add_metric([name], in_line)
        breakers = GaugeMetricFamily("tool_breaker_state", "0 closed, 1 half-open, 2 open.", labels=["breaker"])
        for key, breaker in self._table.breakers().items():
            breakers.add_metric([key], _STATES[breaker.state])
        cache = self._table.cache
        hits = CounterMetricFamily("tool_cache_lookups", "Look-ups in the result cache.", labels=["hit"])
        hits.add_metric(["true"], cache.hits)
        hits.add_metric(["false"], cache.misses)
        size = GaugeMetricFamily("tool_cache_bytes", "Bytes of cached answers.", value=cache.bytes)
        yield from (retries, running, waiting, breakers, hits, size)
        with suppress(StateDamaged):  # the rest is wanted most while the store is away
            counts = Counter(job.status for job in self._jobs.list(most=_MOST_JOBS))
            jobs = GaugeMetricFamily("jobs", "Jobs by status.", labels=["status"])
            for status in JOB_STATUSES:
                jobs.add_metric([status], counts[status])
            yield jobs

    def _model_use(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily

        requests = CounterMetricFamily("llm_requests", "Requests to language models.", labels=["llm", "ok"])
        tokens = CounterMetricFamily("llm_tokens", "Tokens of language models.", labels=["llm", "direction"])
        for (name, kind), count in dict(self._recorder.model_use).items():
            if kind in ("ok", "failed"):
                requests.add_metric([name, str(kind == "ok").lower()], count)
            else:
                tokens.add_metric([name, kind], count)
        yield from (requests, tokens)

    def _calls(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
        from prometheus_client.utils import floatToGoString

        self._add_up()
        calls = CounterMetricFamily("tool_invocations", "Calls of tools.", labels=["toolName", "ok"])
        latency = HistogramMetricFamily("tool_latency_ms", "How long calls took, in milliseconds.", labels=["toolName"])
        denied = CounterMetricFamily("policy_denied", "Calls that were refused.", labels=["toolName", "reason"])
        with self._lock:
            for (tool, ok), count in self._counts.items():
                calls.add_metric([tool, str(ok).lower()], count)
            for tool, times in self._times.items():
                sums = zip((*_BUCKETS_MS, float("inf")), accumulate(times.counts), strict=True)
                buckets = [(str(floatToGoString(most)), count) for most, count in sums]  # type: ignore[no-untyped-call]
                latency.add_metric([tool], buckets, times.total)
            for names, count in self._denied.items():
                denied.add_metric(names, count)
        yield from (calls, latency, denied)


class _CallTimes:
    """The durations of the calls of one tool."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BUCKETS_MS) + 1)
        """For each bucket, and for what is longer than all."""
        self.total = 0.0

    def add(self, ms: float) -> None:
        self.counts[bisect_left(_BUCKETS_MS, ms)] += 1
        self.total += ms
