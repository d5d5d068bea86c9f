"""Keeps the worker process of one isolated plugin running.

There is one worker at a time. If it dies, the next request starts another; after repeated deaths, only after a pause.

request ──> alive? ──yes──> worker ──> answer
            |                  |
            no                 +── dies: the calls in it fail, the next one finds a new worker
            |
            +──> restart: import, and repeat the recorded requests in the same order
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any, Final

from tavern_core.contract.context import PluginContext
from tavern_core.errors import ActivationFailed, PluginError, UpstreamError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.isolation.backoff import Backoff
from tavern_core.isolation.host_requests import Answering
from tavern_core.isolation.transport import BrokenChannel, judged
from tavern_core.isolation.worker.facilities import facts_of_context
from tavern_core.isolation.worker_client import WorkerClient
from tavern_core.isolation.worker_connections import Kind, Undelivered
from tavern_core.isolation.worker_epoll_thread import Watch
from tavern_core.isolation.worker_launch import WorkerLaunch
from tavern_core.isolation.worker_output import Printed
from tavern_core.isolation.worker_process import DEATH_S, STOPPED, BoxMissing, Terms
from tavern_core.kernel.execution.portal import Portal
from tavern_core.kernel.execution.sync_async_drivers import NeverBegan, TimeLimit, settled
from tavern_core.kernel.execution.threads import ThreadPool

MOST_IN_A_ROW: Final = 5
"""Deaths without an answer in between, after which a plugin is paused."""
WAIT_S: Final = (0.0, 0.0, 0.05, 0.1, 0.2, 0.4)
"""The delay of the next start after so many deaths in a row, in seconds."""
ATTEMPTS: Final = 3


THREADS: Final = 32
"""Requests of one plugin that are answered at the same time, with separate threads per plugin."""


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """The limits of a worker."""

    answer_bytes: int
    artifact_bytes: int
    calls: int
    """Connections of one kind."""
    start_s: float
    """For importing the plugin."""
    hook_s: float
    """For a callback of the plugin."""


class Supervisor:
    """The workers of one plugin."""

    def __init__(
        self,
        plugin: str,
        launch: WorkerLaunch,
        limits: WorkerLimits,
        *,
        watch: Watch,
        portal: Portal,
        printed: Printed,
        backoff: Backoff,
    ) -> None:
        self.plugin = plugin
        self.hook_s = limits.hook_s
        self._launch = launch
        self._start_s = limits.start_s
        self._backoff = backoff
        threads = ThreadPool(THREADS, f"tavern-questions-{plugin}")
        self._answering = Answering(plugin, threads, portal, printed, limits.artifact_bytes, self._setting_changed)
        self._terms = Terms(plugin, watch, printed, limits.answer_bytes, limits.calls, self._answering.hear, self._died)
        self.lent = self._answering.lent
        """What its adapters use of the host."""
        self.nodes = self._answering.nodes
        """Token → context and event loop of a running node."""
        self._starting = threading.RLock()
        self._asking = threading.Lock()
        self._reviving: Future[WorkerClient] | None = None
        self._now: WorkerClient | None = None
        self._beginning: WorkerClient | None = None
        """The last forked worker; it may not have imported the plugin yet."""
        self._deaths = 0
        self._closed = False
        self._history: list[dict[str, Any]] = []
        """The recorded one-time requests to the plugin, in order, which a new worker repeats."""

    # Lifecycle ------------------------------------------------------------------------------------------------------------

    @property
    def worker_client(self) -> WorkerClient | None:
        """The last started worker."""
        return self._now

    def begin(self) -> Mapping[str, Any]:
        """Start the first worker; returns what the plugin implements.

        Raises:
            PluginError: it cannot be started or imported, or is paused.
        """
        with self._starting:
            self._backoff.refuse(self.plugin)
            worker, report = self._begun()
            self._now = worker
            return report

    def close(self) -> None:
        """End the worker; no code of the plugin runs from now on. Returns when its process has ended."""
        self._closed = True
        if (worker := self._beginning) is not None and worker.pid:  # its import may take any time
            worker.kill(STOPPED)
        with self._starting:
            worker, self._now = self._now, None
        if worker is not None:
            worker.end(STOPPED)
        self._answering.close()

    def meet(self, ctx: PluginContext) -> None:
        """Set the plugin's context, which limits the requests of its code."""
        self._answering.ctx = ctx

    def remember(self, request: dict[str, Any]) -> None:
        """Record a request that a new worker must repeat."""
        self._history.append(request)

    def forget(self, request: dict[str, Any]) -> None:
        """Remove a recorded request."""
        if request in self._history:
            self._history.remove(request)

    def _begun(self) -> tuple[WorkerClient, Mapping[str, Any]]:
        """A worker that has imported the plugin."""
        worker = self._beginning = WorkerClient(self._terms)
        try:
            self._refuse_closed()
            worker.begin(self._launch.request(), self._launch.modules, self._start_s)
            self._refuse_closed()  # meanwhile
            deadline = (
                time.perf_counter() + self._start_s
            )  # not before, because the fork server itself may just have started
            self._launch.confined(worker.layers)
            report = judged(worker.ask("start", {"setup": self._launch.setup()}, deadline=deadline))
        except BoxMissing as error:
            worker.end("it did not start")
            raise ActivationFailed(
                f"{self.plugin} is not started: its box has no {error.layer} layer: {error.reason}",
                hint="`tavern doctor` lists the layers; `isolation: {level: best-effort}` in tavern.yaml starts it without",
                layer=error.layer,
            ) from None
        except TimeLimit:
            worker.end("its import did not end")
            raise ActivationFailed(
                f"{self.plugin} could not be imported within {self._start_s:g} s",
                hint="what does it do at import? isolation.startTimeoutMs is the limit",
            ) from None
        except (UpstreamError, Undelivered) as error:
            worker.end("it did not start")
            lost = error if isinstance(error, UpstreamError) else worker.lost()
            text = f"{self.plugin} could not be imported: {lost.message}"
            raise ActivationFailed(text, hint="look at what it does at import", **lost.details) from None
        except BaseException:
            worker.end("its import failed")
            raise
        return worker, report

    def _refuse_closed(self) -> None:
        if self._closed:
            raise UpstreamError(
                f"plugin {self.plugin} is stopped",
                hint=f"`tavern plugins info {self.plugin}` says why; call it again when it is active",
                outcome="none",
                retryable=True,
            )

    def _living(self) -> WorkerClient | None:
        """The worker, if one is alive."""
        worker = self._now
        return None if worker is None or worker.is_over else worker

    def _revival(self) -> Future[WorkerClient]:
        """The restarting worker: in its own thread, for several callers with different deadlines."""
        with self._asking:
            if (future := self._reviving) is None or future.done():
                future = self._reviving = Future()
                threading.Thread(target=self._revive, args=(future,), name="tavern-revival", daemon=True).start()
            return future

    def _revive(self, future: Future[WorkerClient]) -> None:
        try:
            worker = self._alive()
        except BaseException as error:  # noqa: BLE001 - passed to the waiting callers
            future.set_exception(error)
        else:
            future.set_result(worker)

    def _alive(self) -> WorkerClient:
        """The worker, restarted if necessary; waits for that.

        Raises:
            PluginError, UpstreamError, CircuitOpen: it cannot be started.
        """
        with self._starting:
            worker = self._now
            self._refuse_closed()
            if worker is not None and not worker.is_over:
                return worker
            if worker is not None:
                worker.dead.wait(DEATH_S)  # so that it is counted before the next one starts
            self._backoff.refuse(self.plugin)
            time.sleep(WAIT_S[min(self._deaths, len(WAIT_S) - 1)])
            try:
                worker = self._revived()
            except PluginError as error:
                self._count(error.message)
                text = f"the worker of {self.plugin} could not be started again: {error.message}"
                raise UpstreamError(text, hint=error.hint, outcome="none", retryable=True) from error
            self._now = worker
            return worker

    def _revived(self) -> WorkerClient:
        """A worker in the state of the previous one: all recorded requests are repeated."""
        worker, _ = self._begun()
        deadline = time.perf_counter() + self._start_s
        try:
            for asked in self._history:
                request = {**asked, **self._context(worker)} if asked["do"] in ("offer", "hook") else asked
                worker.ask(request["do"], {k: v for k, v in request.items() if k != "do"}, deadline=deadline)
        except (TimeLimit, UpstreamError, Undelivered) as error:
            worker.end("it could not be restarted")
            raise PluginError(f"{self.plugin} did not restart: {error}") from error
        except Exception as error:
            worker.end("it could not be restarted")
            raise error if isinstance(error, PluginError) else PluginError(f"it failed with {error!r}") from error
        return worker

    def _died(self, worker: WorkerClient) -> None:
        """In the watching thread: a worker has died."""
        self._answering.forget(worker)
        if worker is self._now and not self._closed and not worker.was_stopped:
            self._count(f"its worker {worker.how_it_died()}")

    def _count(self, how: str) -> None:
        self._deaths += 1
        if self._deaths >= MOST_IN_A_ROW:
            self._backoff.begin(self.plugin, f"its worker died {self._deaths} times in a row; the last time {how}")

    def works(self) -> None:
        """A worker has answered."""
        if self._deaths:
            self._deaths = 0
            self._backoff.end(self.plugin)

    # Requests -------------------------------------------------------------------------------------------------------------

    def ask(self, do: str, given: Mapping[str, Any], kind: Kind = "sync", seconds: float | None = None) -> Any:
        """Send a request to the plugin, from a thread that may block.

        Args:
            seconds: None: until the deadline of the running call, if it has one.
        """
        return self.with_worker(
            lambda worker: worker.ask(do, {**given, **self._context(worker, given)}, kind, worker.deadline(seconds))
        )

    async def ask_later(self, do: str, given: Mapping[str, Any], kind: Kind, what: str) -> Any:
        """`ask` under an event loop, whose caller limits the time."""
        return await self.with_worker_later(
            lambda worker: worker.ask_later(do, {**given, **self._context(worker, given)}, kind, what)
        )

    def with_worker(self, ask: Callable[[WorkerClient], Any]) -> Any:
        """Call a living worker; one that died before it got the request is replaced."""
        for attempt in range(1, ATTEMPTS + 1):
            worker = self._living() or self._revived_by(WorkerClient.deadline())
            try:
                answer = ask(worker)
            except Undelivered:
                worker.dead.wait(1)
                if attempt == ATTEMPTS:
                    raise worker.lost("none") from None
                continue
            self.works()
            return answer
        raise AssertionError("not reached")

    def _revived_by(self, deadline: float | None) -> WorkerClient:
        """The new worker. Raises TimeLimit if the caller's time is over before; the worker still starts."""
        future = self._revival()
        wait([future], None if deadline is None else max(deadline - time.perf_counter(), 0))
        if not future.done():
            raise TimeLimit(stopped=True, begun=False)
        return future.result()

    async def with_worker_later(self, ask: Callable[[WorkerClient], Awaitable[Any]]) -> Any:
        """`with_worker` under an event loop."""
        for attempt in range(1, ATTEMPTS + 1):
            if (worker := self._living()) is None:
                revival = self._revival()
                try:
                    await settled(revival, None)
                except asyncio.CancelledError:
                    raise NeverBegan from None
                worker = revival.result()
            try:
                answer = await ask(worker)
            except Undelivered:
                await asyncio.get_running_loop().run_in_executor(None, worker.dead.wait, 1)
                if attempt == ATTEMPTS:
                    raise worker.lost("none") from None
                continue
            self.works()
            return answer
        raise AssertionError("not reached")

    def stop(self, call_id: str) -> bool:
        """End a call for which a thread of the host waits, from any other; see `BoundTool.stop`."""
        worker = self._living()
        return worker is not None and worker.stop(call_id)

    def unused(self) -> list[str]:
        """Unused factory tools, which the worker may remove."""
        worker = self._now
        if worker is None or not worker.dropped:
            return []
        keys, worker.dropped[:] = worker.dropped[:], []
        return keys

    def _context(self, worker: WorkerClient, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The plugin's context for the worker, if it was not sent yet."""
        ctx = self._answering.ctx
        if ctx is None or worker.knows_context is ctx or (given is not None and "impl" not in given):
            return {}
        worker.knows_context = ctx
        return {"ctx": facts_of_context(ctx)}

    def _setting_changed(self, worker: WorkerClient, watch: int, value: Any) -> None:
        if worker is self._now and not worker.is_over:
            deadline = time.perf_counter() + self.hook_s
            try:
                worker.ask("setting_changed", {"watch": watch, "value": value}, deadline=deadline)
            except TimeLimit:
                raise TimeoutError(f"it took longer than {self.hook_s:g} s (limits.hookTimeoutMs)") from None
            except (Undelivered, BrokenChannel):
                return
