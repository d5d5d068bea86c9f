"""What is wrong with plugins and their tools without any of their code having run, as diagnostics.

A check of all plugins replaces the report of the previous one: repaired findings disappear.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tavern_core.errors import Finding
from tavern_core.kernel.plugins.grant_changes import changed_since_review
from tavern_core.kernel.plugins.record import Record
from tavern_core.model.plugin import Diagnostic


def report(records: Iterable[Record]) -> Iterator[Diagnostic]:
    """One diagnostic for each plugin that failed, each finding in a manifest and each finding about a tool."""
    for record in records:
        candidate, error = record.candidate, record.standing.error
        if error is not None and record.state == "failed":
            yield Diagnostic(record.standing.code, error.message, record.name, error.hint, "error", dict(error.details))
        if record.state == "disabled":
            continue  # a plugin that is turned off need not be repaired
        if (changed := changed_since_review(record)) is not None:
            yield changed
        reported = candidate.findings if error is None else ()  # the error of a bad manifest counts its findings
        for finding in (*reported, *record.tool_findings):
            yield _told(finding, record.name)


def _told(finding: Finding, plugin: str) -> Diagnostic:
    where = finding.where
    text = f"{where}: {finding.message}" if where else finding.message
    place = {"file": where.file, "line": where.line} if where else {}
    return Diagnostic(finding.code, text, plugin, finding.hint, finding.severity, {**place, **finding.details})
