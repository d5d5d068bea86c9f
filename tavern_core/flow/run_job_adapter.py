"""Runs of workflows as jobs: the same ids, in the terms of jobs."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from tavern_core.errors import RunNotFound, StateDamaged
from tavern_core.flow.workflow_tools import answer_of
from tavern_core.kernel.jobs.running_jobs import CANCELLED
from tavern_core.kernel.nodes.json_values import from_plain, to_plain
from tavern_core.model.call import HOST_PRINCIPAL
from tavern_core.model.job import OF_RUNS, Job
from tavern_core.model.result import ToolError, ToolResult
from tavern_core.model.untrusted_content_rules import MARK

if TYPE_CHECKING:
    from tavern_core.flow.engine.sqlite_run_store import StoredRun
    from tavern_core.flow.workflow_tools import WorkflowEngine
    from tavern_core.flow.workflows import Workflows
    from tavern_core.model.config import JobsConfig

_LOST: Final = ToolError("CONNECTION_LOST", "the process that ran the workflow ended before it did", outcome="unknown")


class RunJobAdapter:
    """See `contract.protocols.RunJobs`."""

    def __init__(self, workflows: Workflows, engine: WorkflowEngine, config: JobsConfig) -> None:
        self._workflows = workflows
        self._engine = engine
        self._config = config

    def job(self, run_id: str) -> Job | None:
        """A run as a job; None: no run has this id."""
        with suppress(StateDamaged):
            kept = self._workflows.kept_run(run_id)
            return None if kept is None else self._of(kept)
        return None

    def list(
        self, statuses: Collection[str], tools: Collection[str], owner: tuple[str, str] | None, most: int
    ) -> builtins.list[Job]:
        """See `RunJobs`."""
        from tavern_core.flow.engine.sqlite_run_store import MOST_RUNS

        with suppress(StateDamaged):
            runs = (run for run in self._workflows.kept(most=2 * MOST_RUNS) if owner is None or _is_of(run, owner))
            fitting = (
                job
                for job in map(self._of, runs)
                if (not statuses or job.status in statuses) and (not tools or job.tool in tools)
            )
            return [*islice(fitting, most)]
        return []

    def cancel(self, run_id: str) -> bool:
        """End a run; False: it is over."""
        try:
            return self._workflows.cancel(run_id)
        except RunNotFound:
            return False

    def answer(self, run_id: str, question: str, value: Any) -> bool:
        """Answer a question of a run; False: it is not open. Raises InputInvalid."""
        return self._workflows.answer(run_id, question, value)

    async def resume(self, run_id: str) -> None:
        """See `RunJobs`."""
        (await self._workflows.take_up(run_id)).promise()

    def owner(self, run_id: str) -> tuple[str, str] | None:
        """(principal, user) of its caller; None: unknown."""
        with suppress(StateDamaged):
            kept = self._workflows.kept_run(run_id)
            if kept is not None and kept.caller is not None:
                return _who(kept)
        return None

    async def outcome(self, run_id: str) -> ToolResult:
        """See `WorkflowEngine.outcome`."""
        return await self._engine.outcome(run_id)

    def result(self, run_id: str, named: Collection[str] = ()) -> ToolResult | None:
        """See `RunJobs`."""
        with suppress(StateDamaged, ValueError):  # what was masked may not be read again
            stored = self._workflows.kept_run(run_id)
            if stored is not None and stored.outputs is not None:
                value = to_plain(answer_of(from_plain(stored.outputs), named), tagged=False)
                sources = self._workflows.sources(run_id)
                return ToolResult(
                    True, value, job=run_id, meta={"run": run_id, **({MARK: [*sources]} if sources else {})}
                )
        return None

    def _of(self, stored: StoredRun) -> Job:
        status = OF_RUNS.get(stored.state, "failed")
        first = stored.errors[0] if stored.errors else None
        error = CANCELLED if status == "cancelled" else None
        if stored.state == "interrupted":
            error = replace(_LOST, fix=f"tavern workflows resume {stored.run_id}")
        if status == "failed" and first is not None:
            error = ToolError(
                str(first.get("kind", "UPSTREAM_ERROR")),
                str(first.get("message", "")),
                {"path": first.get("path", "")},
                outcome="unknown",
                fix=str(first.get("hint", "")),
            )
        asked: tuple[Mapping[str, Any], ...] = ()
        if status in ("running", "input_required"):
            with suppress(RunNotFound, StateDamaged):
                asked = tuple(question.to_json() for question in self._workflows.questions(stored.run_id))
        if asked:
            status = "input_required"
        elif status == "input_required" and self._workflows.is_going_on(stored.run_id):
            status = "running"  # its process takes up the answer, or its cancellation, in a moment
        principal, _ = _who(stored)
        return Job(
            stored.run_id,
            f"workflow:{stored.workflow}" if stored.workflow else "workflow",
            status,
            principal,
            stored.started,
            stored.updated,
            None,
            asked,
            error,
            poll_ms=self._config.poll_ms,
            ttl_ms=self._config.ttl_ms,
        )


def _is_of(kept: StoredRun, owner: tuple[str, str]) -> bool:
    return kept.caller is not None and _who(kept) == owner


def _who(kept: StoredRun) -> tuple[str, str]:
    caller = kept.caller or {}
    if caller.get("host") or not caller:
        return HOST_PRINCIPAL, ""
    return str(caller.get("principal", "")), str(caller.get("userId", ""))
