"""Worker threads for sync code that may block: tools, nodes and hooks.

Daemon threads, unlike those of `concurrent.futures`: a tool that never returns must not keep the process from ending.

    owner of the work              when it runs
    a tool with no running work    at once, if need be in a thread beyond the limit
    a tool that runs already       when fewer threads than the limit are busy, and its plugin is below its share
    no owner                       when fewer threads than the limit are busy

So slow work does not block other tools. Abandoned work that cannot be stopped no longer counts as busy,
but still counts in its plugin's share: it takes no thread from others and cannot pile up.
"""

from __future__ import annotations

import contextvars
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tavern_core.errors import CallMisused
from tavern_core.kernel.execution.portal import COPIED_HINT, fork_problem
from tavern_core.model.event import THREADS_STUCK

if TYPE_CHECKING:
    from tavern_core.kernel.diagnostics import Diagnostics
    from tavern_core.kernel.log.recorder import Recorder

Owner: TypeAlias = "tuple[str, str] | None"
"""(plugin, tool, node type or hook) that owns the work; None: work without an owner, which has neither share nor privilege."""
MOST_BEYOND: Final = 256
"""Threads beyond the limit, for owners with no running work."""
_MOST_KEPT: Final = 1_000
"""Owners that are stored without work; further ones only while they have work."""


class _PluginQueue:
    """The work of all tools of a plugin."""

    __slots__ = ("running",)

    def __init__(self) -> None:
        self.running = 0


class _OwnerQueue:
    """The work of one owner."""

    __slots__ = ("owner", "plugin", "running", "stuck", "waiting")

    def __init__(self, owner: Owner, plugin: _PluginQueue) -> None:
        self.owner = owner
        self.plugin = plugin
        self.running = 0
        """Stuck ones included."""
        self.stuck = 0
        self.waiting: deque[_WorkItem] = deque()


class _WorkItem(Future[Any]):
    """A function to run."""

    is_running = is_stuck = False
    call: Callable[[], Any] | None = None
    line: _OwnerQueue


class ThreadPool:
    """About `limit` threads, started when needed, each running one thing at a time.

    Args:
        limit: threads that may be busy at once; further work waits, but for the first of each owner.
        name: prefix of the thread names.
        on_stuck: called with the pool and an owner whenever its number of stuck threads changes; in any thread.
    """

    def __init__(
        self, limit: int, name: str, on_stuck: Callable[[ThreadPool, tuple[str, str]], None] | None = None
    ) -> None:
        self._limit = limit
        self._share = max(1, limit - max(1, limit // 4))
        self._name = name
        self._on_stuck = on_stuck
        self._lock = threading.Lock()
        self._ready: queue.SimpleQueue[_WorkItem | None] = queue.SimpleQueue()
        self._lines: dict[Owner, _OwnerQueue] = {}
        self._plugins: dict[str, _PluginQueue] = {}
        self._queue: dict[_OwnerQueue, None] = {}
        """The owners with waiting work; the next one comes first."""
        self._idle = self._busy = self._threads = self._made = 0
        self._closed = False
        self._copied_from = 0

    def submit(self, function: Callable[..., Any], *args: Any, owner: Owner = None) -> Future[Any]:
        """Run `function(*args)` in a worker, with the caller's context variables; the Future carries the answer.

        Raises:
            CallMisused: after `close`, or in a forked copy of the host (USAGE).
        """
        work, context = _WorkItem(), contextvars.copy_context()
        work.call = lambda: context.run(function, *args)
        with self._lock:
            if self._copied_from:
                raise CallMisused(fork_problem(self._copied_from), hint=COPIED_HINT)
            if self._closed:
                raise CallMisused("this host is closed", hint="open another with Tavern.open(...)")
            work.line = line = self._lines.get(owner) or self._new_line(owner)
            if self._may_start(line):
                self._start(work)
            else:
                while line.waiting and line.waiting[0].cancelled():
                    line.waiting.popleft()
                line.waiting.append(work)
                self._queue.setdefault(line)
        return work

    def abandon(self, work: Future[Any]) -> bool:
        """Abandon work; True if it had not started. Running work continues and does not count as busy."""
        if work.cancel():
            return True
        if isinstance(work, _WorkItem):
            with self._lock:
                if work.is_running and not work.is_stuck:
                    work.is_stuck = True
                    self._busy -= 1
                    work.line.stuck += 1
                    if (following := self._next()) is not None:
                        self._start(following)
            self._report_stuck(work)
        return False

    def stuck(self, owner: tuple[str, str]) -> int:
        """The number of an owner's abandoned threads."""
        line = self._lines.get(owner)
        return 0 if line is None else line.stuck

    def close(self) -> None:
        """Let idle workers end; busy ones end after what they are doing, and after what waits."""
        with self._lock:
            self._closed = True
            for _ in range(self._idle):
                self._ready.put(None)

    def become_copy(self, owner: int) -> None:
        """In a forked child: threads are not copied, nor is the holder of the lock.

        Args:
            owner: the process that it belongs to.
        """
        self._lock = threading.Lock()
        self._copied_from = owner

    def _new_line(self, owner: Owner) -> _OwnerQueue:
        plugin = self._plugins.setdefault("" if owner is None else owner[0], _PluginQueue())
        line = self._lines[owner] = _OwnerQueue(owner, plugin)
        return line

    def _may_start(self, line: _OwnerQueue) -> bool:
        if line.owner is None:
            return self._busy < self._limit
        if not line.running:
            return self._busy < self._limit + MOST_BEYOND
        return self._busy < self._limit and line.plugin.running < self._share

    def _next(self) -> _WorkItem | None:
        """Remove and return the next work that may start, from the waiting owners in turn; None: there is none."""
        for line in self._queue:
            if self._may_start(line):
                del self._queue[line]
                work = line.waiting.popleft()
                if line.waiting:
                    self._queue[line] = None
                return work
        return None

    def _start(self, work: _WorkItem) -> None:
        self._count(work)
        if self._idle:
            self._idle -= 1
            self._ready.put(work)
            return
        self._threads += 1
        self._made += 1
        threading.Thread(target=self._work, args=(work,), name=f"{self._name}-{self._made}", daemon=True).start()

    def _count(self, work: _WorkItem) -> None:
        work.is_running = True
        self._busy += 1
        work.line.running += 1
        work.line.plugin.running += 1

    def _work(self, work: _WorkItem | None) -> None:
        while work is not None:
            following = self._run(work)
            work = None  # what one call held must not live until the next
            work = following if isinstance(following, _WorkItem) else self._ready.get() if following else None

    def _run(self, work: _WorkItem) -> _WorkItem | bool:
        """Run one work item. Returns the next item of this thread, True to wait for one, False to end the thread."""
        call, work.call = work.call, None
        if call is None or not work.set_running_or_notify_cancel():
            return self._finished(work)
        try:
            answer = call()
        except BaseException as error:  # noqa: BLE001 - passed to the waiter; the worker goes on
            following = self._finished(work)
            work.set_exception(error)
        else:
            following = self._finished(work)  # first: the waiter may have more work for this thread
            work.set_result(answer)
        return following

    def _finished(self, work: _WorkItem) -> _WorkItem | bool:
        line = work.line
        with self._lock:
            work.is_running = False
            line.running -= 1
            line.plugin.running -= 1
            if work.is_stuck:
                line.stuck -= 1
            else:
                self._busy -= 1
            following = self._next()
            if following is not None:
                self._count(following)
            elif not (ends := self._closed or self._threads > self._limit):
                self._idle += 1
            else:
                self._threads -= 1
            if not line.running and not line.waiting and len(self._lines) > _MOST_KEPT:
                del self._lines[line.owner]
        if work.is_stuck:
            self._report_stuck(work)
        return following if following is not None else not ends

    def _report_stuck(self, work: _WorkItem) -> None:
        if self._on_stuck is not None and work.line.owner is not None:
            self._on_stuck(self, work.line.owner)


class StuckThreads:
    """Counts over all pools of a host. Reports each time that a count has doubled, and when it is over."""

    def __init__(self, diagnostics: Diagnostics, recorder: Recorder) -> None:
        self._diagnostics = diagnostics
        self._recorder = recorder
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], dict[ThreadPool, int]] = {}

    def report(self, pool: ThreadPool, owner: tuple[str, str]) -> None:
        """Report a changed number of an owner's stuck threads in a pool."""
        plugin, what = owner
        with self._lock:
            counts = self._counts.setdefault(owner, {})
            counts[pool] = pool.stuck(owner)
            count = sum(counts.values())
            if not count:
                del self._counts[owner]
            if count & (count - 1):
                return
            self._diagnostics.withdraw(THREADS_STUCK, of=what)
            if count:
                self._diagnostics.add(
                    "THREADS_STUCK", f"{count} × {what} still runs after its caller stopped waiting, and keeps a thread each", plugin=plugin,
                    hint="sync code cannot be stopped: set a time limit on what it waits for; restarting the host ends it",
                    details={"of": what, "threads": count},
                )  # fmt: skip
            self._recorder.note(THREADS_STUCK, {"of": what, "threads": count}, plugin=plugin)
