"""Changes of stored jobs, each of which is an event (`JOB_CHANGED`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.jobs.job_records import JobRecords, KeptJob
from tavern_core.kernel.log.recorder import Recorder
from tavern_core.kernel.settings.result_redaction import ForDisk
from tavern_core.model.event import JOB_CHANGED
from tavern_core.model.job import Job


@dataclass(frozen=True, slots=True)
class JobChanges:
    """Changes jobs in the store, and reports it."""

    records: JobRecords
    recorder: Recorder
    disk: ForDisk
    """Redacts secrets before storing."""

    def change(
        self, id_: str, edit: Callable[[Job], Job], when: Callable[[KeptJob], bool] | None = None, **facts: Any
    ) -> Job | None:
        """Change an unfinished job; None: it is finished or removed, or not as `when` wants it.

        Args:
            facts: what changes of its facts; see `KeptJob.facts`.
        """
        kept = self.records.change(id_, edit, when, **facts)
        if kept is None:
            return None
        self.report(kept.job, str(kept.facts.get("user") or ""))
        return kept.job

    def report(self, job: Job, user: str) -> None:
        """JOB_CHANGED. Progress is for subscribers alone: the log would fill with it.

        Args:
            user: the id of its caller's user; empty: none.
        """
        if not self.recorder.is_on:
            return
        data: dict[str, Any] = {"job": job.id, "tool": job.tool, "status": job.status, "principal": job.principal}
        if user:
            data["userId"] = user
        if job.progress is not None:
            data["progress"] = job.progress
        if job.trace:
            data |= job.trace
        if job.status == "running" and job.progress is not None:
            self.recorder.show(JOB_CHANGED, data, call_id=job.call_id)
        else:
            self.recorder.note(JOB_CHANGED, data, call_id=job.call_id)
