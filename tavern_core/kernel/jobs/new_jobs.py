"""Starting a job: it is stored before its caller gets its id, and then passed on to run."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from hashlib import sha256
from os import urandom
from typing import Any, Final

from tavern_core.contract.trace_context import trace_headers, traceparent_of
from tavern_core.errors import CallMisused, InputInvalid, InternalError, StateDamaged
from tavern_core.kernel.calls.background_call_request import BackgroundCallRequest
from tavern_core.kernel.calls.call_preparation import own_copy
from tavern_core.kernel.calls.idempotency import digest_of
from tavern_core.kernel.calls.running_call import current
from tavern_core.kernel.calls.taint_tracking import detached_context
from tavern_core.kernel.execution.sync_async_drivers import ExecutionMode, TimeLimit
from tavern_core.kernel.jobs.job_records import StoredJob, ended_job
from tavern_core.kernel.jobs.running_job import RunningJob
from tavern_core.kernel.jobs.running_jobs import NEVER_RAN, RunningJobs
from tavern_core.kernel.stores.store_offload import ask
from tavern_core.model.call import host_context, owner_of, stored_context
from tavern_core.model.job import Job
from tavern_core.model.safe_printing import is_text

_HOST: Final = host_context()
_MOST_TRIED: Final = 100
"""Maximum number of earlier jobs of a key that are searched for the same call."""


class NewJobs:
    """Starts calls in the background (`BackgroundCalls`).

    Args:
        running: runs them.
        argument_bytes: the largest size of a call's arguments, in characters.
        poll_ms: how long callers should wait before they poll again.
        ttl_ms: how long a job stays stored after its end.
        key_ms: how long an idempotency key is held after its end.
    """

    def __init__(self, running: RunningJobs, argument_bytes: int, poll_ms: int, ttl_ms: int, key_ms: int) -> None:
        self.key_s = key_ms / 1000
        self.poll_ms = poll_ms
        self._running = running
        self._records = running.records
        self._argument_bytes = argument_bytes
        self._ttl_ms = ttl_ms

    async def begin(self, request: BackgroundCallRequest, mode: ExecutionMode, left: float | None) -> Job:
        """See `BackgroundCalls`.

        Raises:
            CallMisused: tool, purpose or idempotency key is not text (USAGE).
            InternalError: the store cannot be used (INTERNAL).
            TimeLimit: a slow store did not answer in time.
        """
        records = self._records.store
        job, running = (
            self._stored_job(request)
            if records.is_quick
            else await ask(mode, records, self._stored_job, request, seconds=left, undo=self._withdraw)
        )
        if running is not None:
            self._running.take_up(running)
        return job

    def _withdraw(self, stored: tuple[Job, RunningJob | None]) -> None:
        """Withdraw a job that has not begun and whose caller no longer waits."""
        if stored[1] is not None:
            self._cancel(stored[0])

    def _cancel(self, begun: Job) -> None:
        """End a job that no process runs, if it is stored, as soon as the store works."""

        def is_it(stored: StoredJob) -> bool:
            return (stored.facts.get("process"), stored.job.created) == (self._running.process, begun.created)

        end = partial(ended_job, status="cancelled", error=NEVER_RAN)
        undo = partial(self._records.change, begun.id, end, when=is_it)
        self._running.deferred_changes.defer(begun.id, undo, is_dispensable=True)

    def _stored_job(self, request: BackgroundCallRequest) -> tuple[Job, RunningJob | None]:
        """A new job and its `RunningJob`; None instead of it: the same call with the same key already is a job."""
        texts = request.tool, request.purpose, request.key or ""
        if not all(isinstance(text, str) and is_text(text) for text in texts):
            raise CallMisused(
                f"{request.tool!r:.80}: tool, purpose and idempotency key of a call are text",
                hint='for example "text:count", purpose="why", idempotency_key="a name"',
            )
        outer, context = current.get(), request.context
        if outer is not None:
            context = context or outer.caller
            context = None if context is None else detached_context(context, outer.reader)
        caller = context or _HOST
        owner, now = owner_of(caller), time.time()
        trace = trace_headers() or (traceparent_of(caller.trace_id) if caller.trace_id else {})
        id_ = f"{'run' if request.is_run else 'job'}-{urandom(8).hex()}"
        arguments = request.arguments if request.has_copy else self._copied(request)
        digest = ""
        if request.key and request.done is None and arguments is not None:
            digest, id_ = digest_of(arguments), _named(id_, f"{request.tool}\x1f{request.key}\x1f{owner}")
        job = Job(
            id_, request.tool, "queued", caller.principal, now, now, None, (), None, "", self.poll_ms, self._ttl_ms,
            self._records.disk.text(request.purpose) if request.purpose else "", "" if context is None else caller.request_id,
            caller.task_id, trace,
        )  # fmt: skip
        facts = {
            "process": self._running.process, "caller": None if context is None else stored_context(context), "user": caller.user_id,
            "arguments": arguments and self._stored(arguments, request), "key": request.key and self._records.disk.text(request.key),
            "door": request.door, "again": request.is_harmless_again, **({"digest": digest} if digest else {}),
            **({"named": request.named} if request.named else {}),
        }  # fmt: skip
        job, is_new = self._add(job, owner, facts, digest)
        if not is_new:
            return job, None
        self._records.report(job, caller.user_id)
        arguments_copy = request.arguments if arguments is None else arguments
        return job, RunningJob(job.id, owner, replace(request, arguments=arguments_copy, context=context), trace, outer)

    def _add(self, job: Job, owner: str, facts: dict[str, Any], digest: str) -> tuple[Job, bool]:
        """Store a new job; or return the stored one of the same call with the same key, and False.

        If the key was used before, the new job gets another id.

        Raises:
            InternalError: the store cannot be used (INTERNAL).
        """
        try:
            self._running.enter()
            tried = 0
            while digest and self._is_old_run(job.id):
                job = replace(job, id=_named(job.id, job.id))
            while (known := self._records.add(job, owner, facts)) is not None:
                known = self._with_run(known)
                if self._is_same(known, owner, digest, job.created):
                    return known.job, False
                tried += 1
                job = replace(job, id=_named(job.id, job.id if tried < _MOST_TRIED else urandom(8).hex()))
        except StateDamaged as error:
            self._cancel(job)
            raise InternalError(f"the job cannot be stored: {error.message}", hint=error.hint) from error
        return job, True

    def _run(self, id_: str) -> Job | None:
        """The stored run with this id as a job; None: there is none."""
        runs = self._running.engines.runs
        return runs.job(id_) if runs is not None and id_.startswith("run-") else None

    def _is_old_run(self, id_: str) -> bool:
        """Whether it is a stored run whose job is stored no longer."""
        return self._run(id_) is not None and self._records.get(id_) is None

    def _with_run(self, known: StoredJob) -> StoredJob:
        """Treat a job whose process ended after its run had begun as that run, in the run's current state."""
        run = self._run(known.job.id) if known.is_lost else None
        return known if run is None else replace(known, job=run, is_lost=False)

    async def current(self, job: Job, mode: ExecutionMode, left: float | None) -> Job:
        """See `BackgroundCalls`."""
        records = self._records
        try:
            stored = await ask(mode, records.store, records.get, job.id, seconds=left)
        except (InternalError, TimeLimit):
            return job
        return job if stored is None else stored.job

    def _is_same(self, known: StoredJob, owner: str, digest: str, now: float) -> bool:
        """Whether a job with this key is the same call, and the key is still taken: else the call decides anew."""
        job, facts = known.job, known.facts
        is_old = job.is_over and job.updated + self.key_s <= now
        if known.record.owner != owner or facts.get("digest") != digest or is_old:
            return False
        if known.is_lost:  # what there is of its answer, the key gives to another job
            return False
        return job.error is None or not (job.error.outcome == "none" or facts.get("again"))

    def _copied(self, request: BackgroundCallRequest) -> Any:
        """A copy of the arguments; None where they are not JSON or too large, as the call itself will say."""
        try:
            return own_copy(request.arguments, request.tool, self._argument_bytes)
        except InputInvalid:
            return None

    def _stored(self, arguments: Any, request: BackgroundCallRequest) -> Any:
        """Arguments as they are stored; None: they or the key contain secrets, and the job cannot be resumed."""
        is_marked = request.marked is not None and any(request.marked(arguments))
        holds_secret = is_marked or (request.key is not None and self._records.disk.text(request.key) != request.key)
        return None if holds_secret else self._records.disk.arguments(arguments)


def _named(like: str, whole: str) -> str:
    """An id derived from `whole`, with the prefix of `like`."""
    return f"{like[:4]}{sha256(whole.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
