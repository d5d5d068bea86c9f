"""Calls with a key: the same call runs once, however often and from whichever process it is requested.

    the key is new                 it is recorded, and the tool runs
    the same call is running       wait for its answer, also from another process
    the same call has an answer    return that answer
    another call used the key      IDEMPOTENCY_CONFLICT
    its process died               CONNECTION_LOST, outcome unknown: it may have happened
    it became a run that asked     the run's state: it waits, its outputs, its failure

A key belongs to one tool and one caller. It is stored before the tool runs. A failure without an effect releases it.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final

from pydantic_core import from_json, to_json

from tavern_core.contract.stores import DAMAGED, Record, RecordStore
from tavern_core.errors import CallError, CallMisused, ConnectionLost, IdempotencyConflict, StateDamaged
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.calls.background_call_request import has_asked, resume_point
from tavern_core.kernel.calls.result_serialization import result_of, result_text
from tavern_core.kernel.calls.retry_rules import is_harmless_again
from tavern_core.kernel.calls.running_call import RunningCall
from tavern_core.kernel.calls.unstored_keys import RUNNING, UNKNOWN, UnstoredKeys
from tavern_core.kernel.catalogue.call_plan import CallPlan
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.execution.sync_async_drivers import ExecutionMode, StoreTimeout, TimeLimit, has_begun
from tavern_core.kernel.limits.result_cache import OF_ITS_CALLER
from tavern_core.kernel.limits.slots import held, waiting_for
from tavern_core.kernel.plugins.host_registries import Engines
from tavern_core.kernel.settings.result_redaction import StorageRedactor
from tavern_core.kernel.stores.store_offload import ask, at_once
from tavern_core.model.call import owner_of
from tavern_core.model.result import ToolResult
from tavern_core.schema.integers import whole_numbers

KIND: Final = "answer"
LONGEST_KEY: Final = 255
DONE: Final = "done"
_PLAIN: Final = frozenset({int, bool, str, type(None)})
_MOST_RECENT: Final = 1_000
_SHORT: Final = 4_096
"""Characters of an answer that is also held in memory."""
_Answer = tuple[str, str, float]
"""Digest of the arguments, JSON of the result, when it expires (seconds since the epoch)."""
_LONGEST_WAIT_S: Final = 90 * 86_400.0
"""Time for which a key is held if its call became a run that waits for a person; as long as a job is stored."""
_FIRST_LOOK_S: Final = 0.005
_LONGEST_LOOK_S: Final = 0.1
_LOOK_S: Final = 600.0
"""Interval at which a process with keyed calls looks for keys of ended processes."""
_MOST_ENDED: Final = 10_000
_LEAST_WRITE_S: Final = 0.25
"""The minimum time that a caller waits until its answer is stored."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A key that this call holds: meanwhile no other process runs the call."""

    record: Record
    digest: str
    waiting: list[Future[ToolResult]]
    """Calls in this process that wait for this one's answer."""


@dataclass(frozen=True, slots=True)
class _ClaimRequest:
    """A key that a call is to claim."""

    plan: CallPlan
    call: RunningCall
    mode: ExecutionMode
    key: str
    digest: str
    """The digest of the arguments."""
    record: Record
    """The record of the claim, without its final time."""


class Idempotency:
    """The keys of one host.

    Args:
        records: the store.
        seconds: how long an answer is stored.
        disk: redacts secrets before storing.
        engines: knows the runs of workflows.
    """

    def __init__(
        self, records: RecordStore, seconds: float, diagnostics: Diagnostics, disk: StorageRedactor, engines: Engines
    ) -> None:
        self._disk = disk
        self._engines = engines
        self._records = records
        self._seconds = seconds
        self._diagnostics = diagnostics
        self._process = secrets.token_hex(8)
        self._entered = self._is_closing = False
        self._looked_at = 0.0
        """Time of the last look-up of keys of ended processes."""
        self._lock = threading.Lock()
        self._running: dict[str, Claim] = {}
        self._unstored = UnstoredKeys(records)
        self._recent: dict[str, _Answer] = {}
        self._older: dict[str, _Answer] = {}
        """Recent answers, in two generations. They are final until they expire, so the store is not read again."""

    def close(self) -> None:
        self._is_closing = True
        with suppress(StateDamaged):
            self._unstored.close()
            if self._entered:
                self._records.leave(self._process)

    async def claim(self, plan: CallPlan, call: RunningCall, mode: ExecutionMode) -> Claim | ToolResult:
        """The claimed key, or the answer that is stored already.

        Raises:
            CallMisused: the key is malformed (USAGE).
            IdempotencyConflict: another call used the key, or an enclosing call holds it (IDEMPOTENCY_CONFLICT).
            BudgetExceeded: the same call is running and waits for a slot of an enclosing call (BUDGET_EXCEEDED).
            ConnectionLost: the process of the call ended before it stored the answer (CONNECTION_LOST, unknown).
            TimeLimit: the same call is running, and this one's time is over.
        """
        wanted = self._claim_request(plan, call, mode)
        if (answer := self._remembered_answer(wanted)) is not None:
            return _again(answer, wanted, "replayed")
        pause = _FIRST_LOOK_S
        if has_asked.get() == wanted.key:
            has_asked.set("")
            call.is_again = True
        while True:
            known = self._running.get(wanted.record.key)
            if known is not None:  # in this process: the answer is passed on directly
                if (joined := await self._shared_answer(known, wanted)) is not None:
                    return joined
                continue
            found = await self._claim_or_read(wanted)
            if found is not None:
                return found
            seconds = call.time_left()
            await mode.pause(pause if seconds is None else min(pause, seconds))
            pause = min(pause * 2, _LONGEST_LOOK_S)

    def _claim_request(self, plan: CallPlan, call: RunningCall, mode: ExecutionMode) -> _ClaimRequest:
        """The key that a call is to claim. Raises CallMisused, IdempotencyConflict: it cannot."""
        key, context = call.key, call.context
        assert context is not None
        if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY or not key.isprintable():
            raise CallMisused(
                f"{plan.id}: {key!r:.80} is not an idempotency key",
                hint=f"1 to {LONGEST_KEY} printable characters, for example the id of the request",
            )
        owner = owner_of(context)
        full_key = f"{plan.id}\x1f{key}\x1f{owner}"
        name = sha256(full_key.encode("utf-8", "surrogatepass")).hexdigest()[:32]  # hashed: a key may contain secrets
        digest = digest_of(call.values or {} if call.caller_values is None else call.caller_values)
        if name in held.get():
            raise IdempotencyConflict(
                f"{plan.id}: the key {key!r} belongs to a call that contains this one",
                hint="use a separate key for each call",
                key=key,
            )
        data = f'{{"digest":"{digest}","process":"{self._process}","call":{call.number}}}'
        return _ClaimRequest(plan, call, mode, key, digest, Record(KIND, name, owner, RUNNING, data, time.time()))

    def _remembered_answer(self, wanted: _ClaimRequest) -> ToolResult | None:
        """This call's answer from memory; None: there is none. Raises IdempotencyConflict: it is another call's."""
        answer: ToolResult | None = None
        name = wanted.record.key
        recent = self._recent.get(name) or self._older.get(name)
        if recent is not None and time.time() < recent[2]:
            of, answer = recent[0], result_of(from_json(recent[1]))
        elif (unstored := self._unstored.answer(name)) is not None:
            answer, of = unstored
        if answer is not None and of != wanted.digest:
            raise _conflict(wanted)
        return answer

    async def _claim_or_read(self, wanted: _ClaimRequest) -> Claim | ToolResult | None:
        """Claim the key in the store, or read what is stored; None: another process runs the call."""
        records, now = self._records, time.time()
        claim_record = replace(wanted.record, created=now)  # the call may have waited for another one in the meantime
        if not self._entered:
            await ask(wanted.mode, records, records.enter, self._process, seconds=wanted.call.seconds)
            self._entered = True
        if not 0 <= now - self._looked_at < _LOOK_S:
            self._looked_at = now
            self._unstored.defer("dead", self._let_dead_expire)
        known = (
            at_once(records.add, claim_record)
            if records.is_quick
            else await self._claim_in_store(records.add, claim_record, wanted)
        )
        return self._claimed(claim_record, wanted) if known is None else await self._from_stored(known, wanted)

    def _claimed(self, record: Record, wanted: _ClaimRequest) -> Claim:
        """The claim of a key that the store has given to this call."""
        claim = self._running[record.key] = Claim(record, wanted.digest, [])
        return claim

    def _let_dead_expire(self) -> None:
        """Expire the keys of calls whose process has died, even if no call uses them again."""
        # Left to the next process: closing does not wait for a slow store.
        if self._is_closing and not self._records.is_quick:
            return
        until, alive = time.time() + self._seconds, {self._process: True}
        for record in self._records.list(KIND, states=(RUNNING,), most=_MOST_ENDED):
            process = str(json.loads(record.data).get("process", "")) if record.data else ""
            if process not in alive:
                alive[process] = self._records.is_present(process)
            if not alive[process]:
                self._records.replace(replace(record, state=UNKNOWN, expires=until))

    async def _claim_in_store(
        self, method: Callable[[Record], Any], claim_record: Record, wanted: _ClaimRequest
    ) -> Any:
        """Claim the key in the store. If a slow store claims it after the call gave up, the claim is undone."""
        records, seconds = self._records, wanted.call.seconds
        if records.is_quick:
            return at_once(method, claim_record)
        try:
            return await ask(
                wanted.mode, records, self._unstored.send, claim_record, method, claim_record, seconds=seconds
            )
        except BaseException as error:
            if error.is_asked if isinstance(error, StoreTimeout) else has_begun(error):
                self._unstored.defer_removal(claim_record)
            raise

    async def _from_stored(self, known: Record, wanted: _ClaimRequest) -> Claim | ToolResult | None:
        """Decide on `known`, which the store already holds under the key."""
        plan, call, mode = wanted.plan, wanted.call, wanted.mode
        facts: Mapping[str, Any] = json.loads(known.data) if known.data else {}
        if facts.get("digest", wanted.digest) != wanted.digest:
            raise _conflict(wanted)
        if known.state == DONE:
            return await self._from_answered(known, facts["result"], wanted)
        process = str(facts.get("process", ""))
        if known.state == RUNNING and (
            process == self._process
            or await ask(mode, self._records, self._records.is_present, process, seconds=call.seconds)
        ):
            return None
        # Its process has ended, or its record is corrupt: the call may have had an effect.
        if call.is_again or plan.spec.may_be_repeated(has_key=True) or plan.spec.finds_by_key:
            call.is_again = True
            return await self._taken_over(known, wanted)
        if known.state == RUNNING:
            lost = replace(known, state=UNKNOWN, expires=time.time() + self._seconds)
            if not await ask(mode, self._records, self._records.replace, lost, seconds=call.seconds):
                return None
        raise _unknown(wanted, known)

    async def _from_answered(
        self, known: Record, result: Mapping[str, Any], wanted: _ClaimRequest
    ) -> Claim | ToolResult | None:
        """Decide on `known`, which has an answer."""
        answer = result_of(result)
        if answer.status == "job" and wanted.call.is_again:  # the job of the run goes on with it
            return await self._taken_over(known, wanted)
        if answer.status == "job":
            followed = self._followed(answer, wanted.plan)
            return await self._taken_over(known, wanted) if followed is None else _again(followed, wanted, "replayed")
        if len(text := to_json(result).decode()) <= _SHORT:
            self._remember(known.key, (wanted.digest, text, known.expires))
        return _again(answer, wanted, "replayed")

    async def _taken_over(self, known: Record, wanted: _ClaimRequest) -> Claim | None:
        """The key for this call, replacing what is stored; None: another process was faster, so read again."""
        mine = replace(known, state=RUNNING, data=wanted.record.data, expires=0.0)
        if not await self._claim_in_store(self._records.replace, mine, wanted):
            return None
        return self._claimed(replace(mine, version=known.version + 1), wanted)

    def _followed(self, answer: ToolResult, plan: CallPlan) -> ToolResult | None:
        """The current result of a call that became a run with questions; None: the run is over, and its key is free."""
        runs = self._engines.runs
        job = None if runs is None or answer.job is None else runs.job(answer.job)
        if runs is None or job is None:  # the run is no longer stored
            return answer
        if not job.is_over:
            asked = [dict(question) for question in job.questions]
            return answer.replace(value={**answer.value, "status": job.status, "questions": asked})
        if job.updated + self._seconds <= time.time():
            return None
        if (error := job.error) is not None:
            return (
                None
                if is_harmless_again(error, plan.spec, has_key=True)
                else ToolResult(False, error=error, job=job.id)
            )
        return runs.result(job.id, plan.spec.output_names) or ToolResult(True, job=job.id, meta={"run": job.id})

    async def _shared_answer(self, running: Claim, wanted: _ClaimRequest) -> ToolResult | None:
        """The answer of a call of this process; None: it has just ended, or its own caller ended it."""
        if running.digest != wanted.digest:
            raise _conflict(wanted)
        seconds, answer = wanted.call.time_left(), Future[ToolResult]()
        with self._lock:
            if self._running.get(wanted.record.key) is not running:
                return None
            running.waiting.append(answer)
        with waiting_for(wanted.record.key, wanted.plan.id):
            if not await wanted.mode.until(answer, seconds):
                raise TimeLimit(stopped=True, begun=False)
        result = answer.result()
        return None if _is_of_its_caller(result, wanted.plan) else _again(result, wanted, "joined")

    async def finish(
        self, claim: Claim, plan: CallPlan, call: RunningCall, result: ToolResult, mode: ExecutionMode
    ) -> None:
        """Record the outcome of the call and notify the calls that wait for it.

        A failure without an effect releases the key; so does closing the host if the job of the call will be
        resumed.
        """
        record, done, remaining = claim.record, None, None
        error = result.error
        if (
            error is not None
            and error.kind == "APPROVAL_REQUIRED"
            and error.outcome != "none"
            and plan.spec.kind == "workflow"
            and "approval" in error.details
        ):
            run = str(error.details["runId"])  # its job waits for the approval, and goes on with the run
            result = ToolResult(True, {"jobId": run, "runId": run, "status": "input_required"}, status="job", job=run)
        is_free = _is_freed(plan, call, result)
        if call.deadline is not None and not self._records.is_quick:  # its caller gets the answer in time in any case
            remaining = max(call.deadline - time.perf_counter(), _LEAST_WRITE_S)
        try:
            if is_free:
                remove = self._records.remove
                await ask(
                    mode, self._records, self._unstored.send, record, remove, record.kind, record.key, seconds=remaining
                )
            else:
                done, text = self._answer_record(claim, call, result)
                if self._records.is_quick:
                    self._unstored.write(done)
                else:
                    await ask(mode, self._records, self._unstored.write, done, seconds=remaining)
                if len(text) <= _SHORT and result.status != "job":
                    self._remember(record.key, (claim.digest, text, done.expires))
        except BaseException as failed:  # including a cancellation
            if not isinstance(failed, TimeLimit | asyncio.CancelledError):  # otherwise it will be written in a moment
                self._diagnostics.add(
                    "ANSWER_NOT_KEPT",
                    f"{plan.id}: the result of a call with a key could not be stored: {failed}",
                    hint="make the store usable again; until it closes, this host remembers the answer",
                    severity="error",
                )
            if is_free:
                self._unstored.defer_removal(record)
            else:
                self._unstored.defer_answer(record.key, result, claim.digest, done)
            if not isinstance(failed, CallError | StateDamaged | ValueError | OSError | TimeLimit):
                raise
        finally:
            with self._lock:
                self._running.pop(record.key, None)
            for waiting in claim.waiting:
                waiting.set_result(result)

    def _answer_record(self, claim: Claim, call: RunningCall, result: ToolResult) -> tuple[Record, str]:
        """The answer as it is stored, and its text."""
        record, text = claim.record, result_text(self._disk.result(result, call.arguments, call.values))
        # A waiting run is not an answer yet: its key is held as long as the run may wait, and then from its end.
        until = time.time() + (max(self._seconds, _LONGEST_WAIT_S) if result.status == "job" else self._seconds)
        data = f'{{"digest":"{claim.digest}","result":{text}}}'
        return Record(KIND, record.key, record.owner, DONE, data, record.created, until, record.version), text

    def _remember(self, name: str, answer: _Answer) -> None:
        if len(self._recent) >= _MOST_RECENT // 2:
            self._recent, self._older = {}, self._recent
        self._recent[name] = answer


def digest_of(values: Mapping[str, Any]) -> str:
    """A digest of these arguments, whatever their order."""
    return sha256(_canonical(values)).hexdigest()[:32]


def _canonical(values: Mapping[str, Any]) -> bytes:
    if not _PLAIN.issuperset(map(type, values.values())):
        values = whole_numbers(values)  # 1.0 is 1 in JSON, and callers in other languages cannot distinguish them
    if _PLAIN.issuperset(map(type, values.values())):  # the usual case, and three times as quick
        try:
            return to_json(sorted(values.items()))
        except ValueError:  # an unpaired surrogate, which the other way escapes
            pass
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _is_freed(plan: CallPlan, call: RunningCall, result: ToolResult) -> bool:
    """Whether the outcome of a call releases its key."""
    if (error := result.error) is None:
        return False
    point = resume_point.get()
    is_own = point is not None and point.is_of(call.arguments)  # and the call is not nested in it
    is_left = error.kind == "CANCELLED" and point is not None and is_own and point.is_left
    return is_left or is_harmless_again(error, plan.spec, has_key=True)


def _is_of_its_caller(answer: ToolResult, plan: CallPlan) -> bool:
    """Whether its own caller ended a call (cancelled, over a limit), which frees the key: a waiting call then runs."""
    error = answer.error
    return error is not None and error.kind in OF_ITS_CALLER and is_harmless_again(error, plan.spec, has_key=True)


def _conflict(wanted: _ClaimRequest) -> IdempotencyConflict:
    key = wanted.key
    return IdempotencyConflict(
        f"{wanted.plan.id}: the key {key!r} was used for a call with other arguments",
        hint="use a new key for another call; the same key only to repeat the same one",
        key=key,
    )


def _again(result: ToolResult, wanted: _ClaimRequest, how: str) -> ToolResult:
    """Convert an earlier answer to the answer of this call."""
    call, meta = wanted.call, {**(result._meta or {}), "idempotency": how, "idempotencyKey": wanted.key}
    trace = (call.name, call.number, call.started, time.perf_counter() - call.clock, "")
    return result.replace(meta=meta, trace=trace)


def _unknown(wanted: _ClaimRequest, known: Record) -> ConnectionLost:
    key, why = wanted.key, "was started, and its process ended before it had an answer"
    if known.state == DAMAGED:
        why = "was started, and its record is corrupt: its answer cannot be read"
    return ConnectionLost(
        f"{wanted.plan.id}: the call with the key {key!r} {why}",
        hint="look whether it happened; if not, call it again with another key",
        outcome="unknown",
        key=key,
    )
