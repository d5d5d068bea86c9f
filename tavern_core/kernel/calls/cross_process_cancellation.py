"""Ends running calls. Long calls are recorded, so that every process of the home can end them.

    a call runs for a quarter of a second  a record `call` with its owner is stored until it has ended
    another process asks to end it         a request is stored, as for jobs (`ask_to_end`)

A thread of the host checks its calls periodically, so the calls themselves do no work, and short ones cost nothing.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Final

from tavern_core.contract.stores import Record, RecordStore
from tavern_core.errors import StateDamaged
from tavern_core.kernel.calls.running_call import RunningCall
from tavern_core.kernel.plugins.plugin_record import PluginRecords
from tavern_core.model.call import HOST_PRINCIPAL, CallContext, owner_name, owner_of

KIND: Final = "call"
_LOG: Final = logging.getLogger("tavern.calls")
_LOOK_S: Final = 0.25
_LOOK_OFTEN_S: Final = 0.05
"""The interval while calls are recorded and a look-up in the store takes at most a thousandth of it."""
_KEPT_S: Final = 600.0
"""Time for which the record of a call outlives its process."""
_RENEW_S: Final = 120.0
"""Interval at which a process stores the records of its calls again, which also restores lost ones."""
_CLOSE_S: Final = 1.0


class Cancellation:
    """Cancels the calls of one host, and asks other hosts to end theirs.

    Args:
        records: the store of long calls.
        plugins: each holds its running calls.
    """

    def __init__(self, records: RecordStore, plugins: PluginRecords) -> None:
        self.series: Final = secrets.token_hex(6)
        """Start of this host's call ids; also its name among the processes of the home."""
        self._records = records
        self._plugins = plugins
        self._recorded: set[str] = set()
        """The ids of calls whose records are stored."""
        self._renewed = time.monotonic()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self) -> None:
        """Watch the calls of this host until it closes."""
        with self._lock:
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._watch, name="tavern-calls", daemon=True)
                self._thread.start()

    def cancel(self, call_id: str, context: CallContext | None = None) -> bool:
        """Cancel a running call, from any thread.

        False: no call of this caller has this id, or it is sync code on its caller's thread.

        Scripts and workers are ended, async work is cancelled. Sync code in a thread cannot be stopped: its caller stops
        waiting, and it sees `ToolContext.is_cancelled`. The process that runs a call of another host is asked to end it.

        Args:
            context: who cancels; None: the host.

        Raises:
            StateDamaged: the store cannot be used (STATE_DAMAGED).
        """
        if not isinstance(call_id, str) or not call_id.isprintable():
            return False
        series, _, number = call_id.rpartition("-")
        if series != self.series:
            return self._ask_to_end(call_id, context)
        try:
            known = int(number, 16)
        except ValueError:
            return False
        call = next((call for call in self._running() if call.number == known), None)
        if call is None or (context is not None and owner_of(context) != owner_of_call(call)):
            return False
        return _end(call)

    def _ask_to_end(self, call_id: str, context: CallContext | None) -> bool:
        """Ask the process that runs a call to end it; False: no such call is recorded, or it is another caller's."""
        record = self._records.get(KIND, call_id)
        if record is None or (context is not None and record.owner != owner_of(context)):
            return False
        if not self._is_alive(call_id):
            return False
        ask_to_end(self._records, call_id)
        return True

    def close(self) -> None:
        with self._lock:
            self._closing.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
        with suppress(StateDamaged):
            for id_ in tuple(self._recorded):  # the thread may still be waiting for a slow store
                self._records.remove(KIND, id_)

    def _running(self) -> list[RunningCall]:
        """The running calls; callable from any thread."""
        return [call for plugin in list(self._plugins.values()) for call in plugin.usage.calls.copy()]

    def _watch(self) -> None:
        while not self._closing.wait(_LOOK_OFTEN_S if self._recorded and self._records.is_quick else _LOOK_S):
            try:
                self._check_requests()
            except StateDamaged:
                pass  # tried again in a moment
            except Exception:  # noqa: BLE001 - an executor of a plugin may raise anything
                if not self._closing.is_set():  # else a slow store was closed during the look-up
                    _LOG.exception("a request to end a call failed")  # later requests are still answered

    def _is_alive(self, call_id: str) -> bool:
        """Whether the process that runs a call is alive; if not, the call's record is removed."""
        if self._records.is_present(call_id.rpartition("-")[0]):
            return True
        self._records.remove(KIND, call_id)
        return False

    def _check_requests(self) -> None:
        late = time.perf_counter() - _LOOK_S
        calls = {f"{self.series}-{call.number:x}": call for call in self._running() if call.clock < late}
        for id_ in self._recorded - calls.keys():
            self._records.remove(KIND, id_)
            self._recorded.discard(id_)
        if not calls:
            return
        is_due = time.monotonic() - self._renewed > _RENEW_S
        if wanted := calls.keys() if is_due else calls.keys() - self._recorded:
            self._records.enter(self.series)
            now = time.time()
            for id_ in wanted:
                record = Record(KIND, id_, owner_of_call(calls[id_]), "running", "{}", now, now + _KEPT_S)
                if (known := self._records.add(record)) is not None:
                    self._records.replace(replace(known, expires=record.expires))
                self._recorded.add(id_)
            if is_due:
                self._renewed = time.monotonic()
        for id_ in calls.keys() & asked_to_end(self._records):
            self._records.remove(END, id_)
            _end(calls[id_])


def _end(call: RunningCall) -> bool:
    """End a call of this host; False: it is sync code, or has ended."""
    call.is_cancelled = True
    task, plan = call.task, call.plan
    if task is None:
        stop = None if plan is None else plan.runner.bound.stop
        return stop is not None and call.call is not None and stop(call.call.id)

    def end() -> None:
        if plan is not None and call in plan.usage.calls:
            task.cancel()

    try:
        task.get_loop().call_soon_threadsafe(end)
    except RuntimeError:  # its loop has been closed
        return False
    return True


def owner_of_call(call: RunningCall) -> str:
    """The owner of a call, who may cancel it besides the host."""
    context = call.context or (call.outer.caller if call.outer is not None else None)
    return owner_name(HOST_PRINCIPAL, "") if context is None else owner_of(context)


END: Final = "job-end"
_ASKED_S: Final = 60.0


def ask_to_end(records: RecordStore, id_: str) -> None:
    """Ask the process that runs this job or call to end it."""
    now = time.time()
    records.add(Record(END, id_, "", "asked", "{}", now, now + _ASKED_S))


def asked_to_end(records: RecordStore) -> list[str]:
    """Recent requests of all processes: one read serves all."""
    return [record.key for record in records.list(END, most=10_000)]
