"""A call that continues in the background: the request that the pipeline passes on, and the Protocol that takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final, Protocol

from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.catalogue.call_plan import CallPlan
from tavern_core.kernel.execution.sync_async_drivers import ExecutionMode
from tavern_core.model.call import CallContext
from tavern_core.model.job import Job
from tavern_core.model.result import ToolResult

job_id: Final[ContextVar[str]] = ContextVar("tavern_job", default="")
"""The job that this code runs in; empty: none."""

in_run: Final[ContextVar[bool]] = ContextVar("tavern_in_run", default=False)
"""Whether this code runs in a node of a workflow; its run waits for the calls, whether the run was started as a job or not."""

is_made_again: Final[ContextVar[bool]] = ContextVar("tavern_made_again", default=False)
"""Whether the next call is that of a job, made again after its approval: its caller's budget has counted it."""

has_asked: Final[ContextVar[str]] = ContextVar("tavern_has_asked", default="")
"""The key of a job whose process ended while it waited for an answer, so that its call starts again; empty: none."""


without_slot: Final[ContextVar[Callable[[], AbstractAsyncContextManager[None]] | None]] = ContextVar(
    "tavern_without_slot", default=None
)
"""Releases the job's slot while its code waits for a person or another job. Set by the runner of the job."""


def while_run_waits(run_id: str) -> AbstractAsyncContextManager[None]:
    """Release the slot of a run's job while the run waits for a person; does nothing if the run is not a job."""
    return while_job_waits() if job_id.get() == run_id else nullcontext()


def while_job_waits() -> AbstractAsyncContextManager[None]:
    """Release the slot of the current job while its code waits for a person or a job; does nothing outside of jobs."""
    beside = without_slot.get()
    return nullcontext() if beside is None else beside()


class ResumePoint(Protocol):
    """Finds a job's work in another system again after the job's process has ended."""

    @property
    def text(self) -> str:
        """The text that the ended process stored with `store`; empty: none."""
        ...

    @property
    def followed(self) -> str:
        """The definition of a tool whose adapter only follows that work and never starts it; empty: it may start it."""
        ...

    @property
    def is_left(self) -> bool:
        """Whether the host is closing and leaves the job to be resumed from what was stored."""
        ...

    def is_of(self, arguments: object) -> bool:
        """Whether `arguments`, compared by identity, are those of the job's own call and not of a nested one."""
        ...

    async def store(self, text: str, followed: str) -> None: ...


resume_point: Final[ContextVar[ResumePoint | None]] = ContextVar("tavern_resume_point", default=None)
"""The resume point of the job that this code runs in. Set by the runner of the job."""


@dataclass(frozen=True, slots=True)
class BackgroundCallRequest:
    """A call to be made in the background."""

    tool: str
    arguments: Mapping[str, Any] | None
    context: CallContext | None
    purpose: str = ""
    key: str | None = None
    door: str = "api"
    is_run: bool = False
    """Whether the call runs a workflow; the id of the job is then that of the run."""
    named: tuple[str, ...] = ()
    """For a run: output names. If set, even a single output is returned as an object instead of as its value."""
    is_harmless_again: bool = False
    """Whether calling the tool twice does no harm."""
    has_copy: bool = False
    """Whether `arguments` are already the host's own copy in plain JSON."""
    done: Future[ToolResult] | None = None
    """For a caller that waits: completed when the job ends."""
    marked: Callable[[Any], list[str]] | None = None
    """Lists the texts among the arguments that the tool's schema marks as secret; None: it marks none."""

    def of(self, plan: CallPlan) -> BackgroundCallRequest:
        """The same request, completed with facts of the tool's plan."""
        spec, has_key = plan.spec, self.key is not None
        again = spec.may_be_repeated(has_key=has_key) or (has_key and spec.finds_by_key)
        is_run = spec.kind == "workflow"
        named = tuple(sorted(spec.output_names)) if is_run else ()
        return replace(
            self, tool=plan.id, is_run=is_run, named=named, is_harmless_again=again, marked=plan.arguments.marked
        )


class BackgroundCalls(Protocol):
    """Runs calls in the background."""

    async def begin(self, request: BackgroundCallRequest, mode: ExecutionMode, left: float | None) -> Job:
        """Store a job and start it as soon as a slot is free.

        Args:
            left: seconds until the caller's deadline; None: there is none.

        Raises:
            CallError: the job cannot be stored (INTERNAL).
            TimeLimit: a slow store did not answer in time.
        """
        ...

    async def current(self, job: Job, mode: ExecutionMode, left: float | None) -> Job:
        """The current state of a job of this process; its last known state if the store does not answer."""
        ...
