"""The audit log for programs: read, checked and explained, with the facts that ``tavern logs`` shows.

for record in tavern.logs.records("POLICY_DENIED", last=20):
    print(record.time, record.data["tool"], record.data["reason"])

AuditLog("/var/lib/bot").verify().ok        # without a host: the log of a state folder
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from tavern_core.errors import UsageError
from tavern_core.kernel.log.log_files import audit_log
from tavern_core.model.event import event_types

if TYPE_CHECKING:
    from tavern_core.kernel.log.reader import LogRecord
    from tavern_core.kernel.log.statistics import ToolStatistics
    from tavern_core.kernel.log.story import CallStory
    from tavern_core.kernel.log.verify import VerifyReport


class AuditLog:
    """An audit log with its older files. Iteration gives all records, oldest first. It is read only and need not exist.

    Args:
        place: the state folder of a host, or an ``audit.jsonl``.

    Raises:
        UsageError: `place` is not a path (USAGE).
    """

    def __init__(self, place: str | PathLike[str]) -> None:
        if not isinstance(place, str | PathLike):
            raise UsageError(
                f"AuditLog takes a state folder or a file, got {type(place).__name__}", hint='AuditLog("/var/lib/bot")'
            )
        path = Path(place)
        self.path = path if path.suffix == ".jsonl" else audit_log(path)
        """The current file."""

    def __iter__(self) -> Iterator[LogRecord]:
        return self.records()

    def __repr__(self) -> str:
        return f"AuditLog({str(self.path)!r})"

    def records(
        self, *types: str, call_id: str | None = None, last: int | None = None, after: int = 0
    ) -> Iterator[LogRecord]:
        """Records, oldest first.

        Args:
            types: only these, such as ``"POLICY_DENIED"``; none: all.
            call_id: only records of this call.
            last: only this many of the newest matching records; read from the end, so it is quick in a long log.
            after: only records with a higher number, to continue from there.

        Raises:
            UsageError: there is no such type; names the nearest (USAGE).
            StateDamaged: a file cannot be opened (STATE_DAMAGED). Lines that are not records are skipped.
        """
        from tavern_core.kernel.log import reader

        found = reader.read(self.path, last=last, call_id=call_id, types=event_types(types) or None)
        return (reader.LogRecord.from_json(record) for record in found if record["seq"] > after)

    def statistics(self, tool: str = "", *, last: int | None = None) -> list[ToolStatistics]:
        """Number, failures and times of calls per tool, most called first. Raises as `records`.

        Args:
            tool: only this one.
            last: only this many of the newest records.
        """
        from tavern_core.kernel.log.statistics import TYPES, statistics_of

        return statistics_of(self.records(*TYPES, last=last), tool)

    def verify(self, *, first: int = 1) -> VerifyReport:
        """Verify that the log is unchanged since it was written. A missing log is reported as a problem.

        Args:
            first: number of the first expected record; higher if older files were archived elsewhere.

        Raises:
            StateDamaged: a file cannot be opened (STATE_DAMAGED).
        """
        from tavern_core.kernel.log.verify import LogProblem, verify

        report = verify(self.path, first=first)
        if report.files or report.problems:
            return report
        return replace(report, ok=False, problems=(LogProblem(str(self.path), 0, "missing", "there is no log here"),))

    def explain(self, call_id: str) -> CallStory | None:
        """The caller, purpose, changes, refusals and result of a call, and the calls that it made; None: no record.

        Raises:
            StateDamaged: a file cannot be opened (STATE_DAMAGED).
        """
        from tavern_core.kernel.log.story import TELLING, story

        records = [*self.records(call_id=call_id)]
        return story(call_id, records, self.records(*TELLING)) if records else None
