"""What is wrong with plugins and their tools without any of their code having run, as diagnostics.

A check of all plugins replaces the report of the previous one: repaired findings disappear.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tavern_core.errors import Finding
from tavern_core.kernel.plugins.record import Record
from tavern_core.model.plugin_status import Diagnostic


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
            yield _as_diagnostic(finding, record.name)


def _as_diagnostic(finding: Finding, plugin: str) -> Diagnostic:
    where = finding.where
    details = {**({"file": where.file, "line": where.line} if where else {}), **finding.details}
    return Diagnostic(finding.code, finding.located, plugin, finding.hint, finding.severity, details)


def changed_since_review(record: Record) -> Diagnostic | None:
    """A diagnostic of a plugin that is not as it was when its permissions were granted; None if nothing changed.

    Another version needs no action. Other code under the same version does: people review versions.
    """
    standing = record.standing
    if not standing.note:
        return None
    hint = f"tavern plugins review {record.name}; `tavern plugins lock` notes it as reviewed"
    if "version" in standing.changed:
        return Diagnostic("GRANTS_CARRIED_OVER", standing.note, record.name, hint, "info")
    return Diagnostic("CODE_CHANGED", standing.note, record.name, hint, "warning")
