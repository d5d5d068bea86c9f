"""A call that continues in the background: what the pipeline hands over, and to whom."""

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
"""The job that this code belongs to; empty: none."""

has_asked: Final[ContextVar[str]] = ContextVar("tavern_has_asked", default="")
"""The key of a job that waited for an answer when its process ended, so its call is made again from its beginning; empty: none."""


without_slot: Final[ContextVar[Callable[[], AbstractAsyncContextManager[None]] | None]] = ContextVar(
    "tavern_without_slot", default=None
)
"""Gives the slot of the job that this code belongs to back while it waits for a person or a job; the runner of a job sets it."""


def while_run_waits(run_id: str) -> AbstractAsyncContextManager[None]:
    """Around the time in which a run waits for a person: where it is a job, other jobs may run meanwhile."""
    return while_job_waits() if job_id.get() == run_id else nullcontext()


def while_job_waits() -> AbstractAsyncContextManager[None]:
    """Around the time in which code waits for a person or a job: where it is of a job, other jobs may run meanwhile."""
    beside = without_slot.get()
    return nullcontext() if beside is None else beside()


class ResumePoint(Protocol):
    """What finds the work of a job at another system again, once the process of the job has ended."""

    @property
    def text(self) -> str:
        """What a process that has ended kept; empty: nothing."""
        ...

    @property
    def followed(self) -> str:
        """The definition of the tool whose adapter only follows that work, and never starts it anew; empty: it may do so."""
        ...

    @property
    def is_left(self) -> bool:
        """Whether the host closes, and leaves the job to be resumed from what was kept."""
        ...

    def is_of(self, arguments: object) -> bool:
        """Whether a call with exactly this object of arguments is the job's own; a call that is made within it has another."""
        ...

    async def keep(self, text: str, followed: str) -> None: ...


resume_point: Final[ContextVar[ResumePoint | None]] = ContextVar("tavern_resume_point", default=None)
"""That of the job that this code belongs to; the runner of a job sets it."""


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
    """Whether it runs a workflow, so that the job has the id of a run."""
    named: tuple[str, ...] = ()
    """Of a run: names with which a single output is an object and not the value itself."""
    is_harmless_again: bool = False
    """Whether its tool may do the same twice."""
    has_copy: bool = False
    """Whether `arguments` are plain JSON of the host's own."""
    done: Future[ToolResult] | None = None
    """For a caller who waits: done when the job is."""
    marked: Callable[[Any], list[str]] | None = None
    """Lists the texts of the arguments that the schema of its tool marks as secret; None: it marks none."""

    def of(self, plan: CallPlan) -> BackgroundCallRequest:
        """The same request, with what is known of its tool."""
        spec, has_key = plan.spec, self.key is not None
        again = spec.may_be_repeated(has_key=has_key) or (has_key and spec.finds_by_key)
        is_run = spec.kind == "workflow"
        named = tuple(sorted(spec.output_names)) if is_run else ()
        return replace(
            self, tool=plan.id, is_run=is_run, named=named, is_harmless_again=again, marked=plan.arguments.marked
        )


class BackgroundCalls(Protocol):
    """Where calls go on."""

    async def begin(self, request: BackgroundCallRequest, mode: ExecutionMode, left: float | None) -> Job:
        """Keep a job and let it run as soon as there is a place.

        Args:
            left: seconds until the deadline of who wants it; None: there is none.

        Raises:
            CallError: it cannot be stored (INTERNAL).
            TimeLimit: a slow store did not answer in time.
        """
        ...

    async def now(self, job: Job, mode: ExecutionMode, left: float | None) -> Job:
        """A job of this process as it is now; as it was, where the store does not say."""
        ...
