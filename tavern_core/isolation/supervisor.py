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

from tavern_core.errors import ActivationFailed, PluginError, UpstreamError
from tavern_core.isolation.backoff import Backoff
from tavern_core.isolation.host_requests import HostRequestHandler
from tavern_core.isolation.transport import validated_message
from tavern_core.isolation.worker_client import WorkerClient
from tavern_core.isolation.worker_connections import ConnectionKind, Undelivered
from tavern_core.isolation.worker_launch import WorkerLaunch
from tavern_core.isolation.worker_process import DEATH_S, STOPPED, BoxMissing, WorkerSettings, spawn
from tavern_core.kernel.execution.sync_async_drivers import CancelledBeforeStart, TimeLimit, wait_until_settled
from tavern_core.kernel.nodes.node_callable import mark_not_begun

MOST_IN_A_ROW: Final = 5
"""Deaths without an answer in between, after which a plugin is paused."""
WAIT_S: Final = (0.0, 0.0, 0.05, 0.1, 0.2, 0.4)
"""Delays of the next start, in seconds, by the number of deaths in a row."""
ATTEMPTS: Final = 3


class Supervisor:
    """The workers of one plugin, and their `WorkerListener`.

    Args:
        handler: answers their requests.
    """

    def __init__(
        self, launch: WorkerLaunch, settings: WorkerSettings, handler: HostRequestHandler, backoff: Backoff
    ) -> None:
        self.plugin = settings.plugin
        self.hook_s = settings.limits.hook_s
        self.lent_upstreams = handler.lent_upstreams
        self.nodes = handler.nodes
        self._launch = launch
        self._settings = settings
        self._start_s = settings.limits.start_s
        self._handler = handler
        self._backoff = backoff
        self._starting = threading.RLock()
        self._asking = threading.Lock()
        self._reviving: Future[WorkerClient] | None = None
        self._worker: WorkerClient | None = None
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
        return self._worker

    def begin(self) -> Mapping[str, Any]:
        """Start the first worker; returns the plugin's implementations.

        Raises:
            PluginError: it cannot be started or imported, or is paused.
        """
        with self._starting:
            self._backoff.refuse(self.plugin)
            worker, report = self._started_worker()
            self._worker = worker
            return report

    def close(self) -> None:
        """End the worker; no code of the plugin runs from now on. Returns when its process has ended."""
        self._closed = True
        if (worker := self._beginning) is not None:  # its import may take any time
            worker.kill(STOPPED)
        with self._starting:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.end(STOPPED)
        self._handler.close()

    def remember(self, request: dict[str, Any]) -> None:
        """Record a request that a new worker must repeat."""
        self._history.append(request)

    def forget(self, request: dict[str, Any]) -> None:
        """Remove a recorded request."""
        if request in self._history:
            self._history.remove(request)

    def _started_worker(self) -> tuple[WorkerClient, Mapping[str, Any]]:
        """A worker that has imported the plugin."""
        self._refuse_closed()
        request = self._launch.request()
        worker = self._beginning = WorkerClient(self._settings, self, spawn(request))
        try:
            layers = worker.confined(request["policy"], self._start_s)
            self._refuse_closed()  # meanwhile
            # Not before, because the fork server itself may just have started.
            deadline = time.perf_counter() + self._start_s
            self._launch.confined(layers)
            report = validated_message(worker.request("start", {"setup": self._launch.setup()}, deadline=deadline))
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
        worker = self._worker
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
            worker = self._worker
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
            self._worker = worker
            return worker

    def _revived(self) -> WorkerClient:
        """A worker in the state of the previous one: all recorded requests are repeated."""
        worker, _ = self._started_worker()
        deadline = time.perf_counter() + self._start_s
        try:
            for request in self._history:
                worker.request(request["do"], {k: v for k, v in request.items() if k != "do"}, deadline=deadline)
        except (TimeLimit, UpstreamError, Undelivered) as error:
            worker.end("it could not be restarted")
            raise PluginError(f"{self.plugin} did not restart: {error}") from error
        except Exception as error:
            worker.end("it could not be restarted")
            raise error if isinstance(error, PluginError) else PluginError(f"it failed with {error!r}") from error
        return worker

    def on_message(self, worker: WorkerClient, message: dict[str, Any]) -> None:
        """See `WorkerListener`."""
        self._handler.receive_message(worker, message)

    def on_death(self, worker: WorkerClient) -> None:
        """See `WorkerListener`."""
        self._handler.forget(worker)
        if worker is self._worker and not self._closed and not worker.was_stopped:
            self._count(f"its worker {worker.how_it_died()}")

    def _count(self, how: str) -> None:
        self._deaths += 1
        if self._deaths >= MOST_IN_A_ROW:
            self._backoff.begin(self.plugin, f"its worker died {self._deaths} times in a row; the last time {how}")

    def works(self) -> None:
        """Record that a worker has answered."""
        if self._deaths:
            self._deaths = 0
            self._backoff.end(self.plugin)

    # Requests -------------------------------------------------------------------------------------------------------------

    def request(
        self, do: str, given: Mapping[str, Any], kind: ConnectionKind = "sync", seconds: float | None = None
    ) -> Any:
        """Send a request to the plugin, from a thread that may block.

        Args:
            seconds: None: until the deadline of the running call, if it has one.
        """
        return self.with_worker(lambda worker: worker.request(do, given, kind, worker.deadline(seconds)))

    async def request_later(self, do: str, given: Mapping[str, Any], kind: ConnectionKind, what: str) -> Any:
        """`ask` under an event loop, whose caller limits the time."""
        return await self.with_worker_later(lambda worker: worker.request_later(do, given, kind, what))

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
                    await wait_until_settled(revival, None)
                except asyncio.CancelledError:
                    raise CancelledBeforeStart from None
                try:
                    worker = revival.result()
                except Exception as error:
                    mark_not_begun(error)
                    raise
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
        worker = self._worker
        if worker is None or not worker.dropped:
            return []
        keys, worker.dropped[:] = worker.dropped[:], []
        return keys
