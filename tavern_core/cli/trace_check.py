"""``tavern plugins check --trace``: what a plugin used while its tests ran, and the permissions for that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tavern_core.cli.errors import tell_plainly
from tavern_core.frozen_dataclass import dataclass

if TYPE_CHECKING:
    from tavern_core.cli.output import Output
    from tavern_core.errors import Finding
    from tavern_core.review.plugin_check import CheckReport
    from tavern_core.review.trace_record import Traced

_LAST_LINES: Final = 30


@dataclass(frozen=True, slots=True)
class TraceReport:
    """The result of a trace."""

    traced: Traced
    findings: tuple[Finding, ...]
    block: str
    """The smallest `permissions:` for the observed uses; empty if plugin.yaml is unreadable."""

    def show_problem(self) -> None:
        """Print the end of pytest's output on stderr if the tests did not pass."""
        if not self.traced.is_complete and self.traced.said:
            tell_plainly("\n".join(self.traced.said.splitlines()[-_LAST_LINES:]))

    def show(self, out: Output) -> None:
        """Print the uses as a table; then the block to paste."""
        if rows := self._rows():
            out.table(("what its code does", "where"), rows)
            out.text()
        if self.block:
            out.text("# The smallest permissions for what was seen; for plugin.yaml:")
            out.text(self.block)

    def _rows(self) -> list[tuple[str, str]]:
        """One row for each line of the plugin with its uses."""
        rows: dict[tuple[str, str], list[str]] = {}
        for use in self.traced.uses:
            if use.kind != "thread":
                rows.setdefault((use.kind, f"{use.file}:{use.line}"), []).append(use.said)
        return [
            (sent[0] + (f" and {len(sent) - 1:,} more" if sent[1:] else ""), where) for (_, where), sent in rows.items()
        ]

    def to_json(self) -> dict[str, Any]:
        """For --json."""
        traced = self.traced
        return {
            "complete": traced.is_complete,
            "tests": {"collected": traced.collected, "failed": traced.failed, "ended": traced.ended},
            "uses": [use.to_json() for use in traced.uses],
            "atImport": [use.to_json() for use in traced.at_import],
            "permissions": self.block,
        }


def trace_report(report: CheckReport, words: Sequence[str], seconds: float) -> TraceReport | None:
    """Trace a checked plugin.

    Args:
        words: arguments of pytest.
        seconds: how long its tests may take.

    Returns:
        None for a plugin with an invalid plugin.yaml.

    Raises:
        UsageError: it is not a folder, or pytest is missing (USAGE).
    """
    from tavern_core.errors import UsageError
    from tavern_core.review.trace_findings import verdict
    from tavern_core.review.trace_run import trace

    folder = Path(report.location)
    if not folder.is_dir():
        raise UsageError(
            f"{report.location} is not a folder whose tests could be run", hint="check the plugin's source folder"
        )
    manifest = report.reading.manifest if report.reading is not None else None
    if manifest is None:
        return None  # its problems are already reported; no host would accept it
    traced = trace(report.name, manifest.version, module=report.module, folder=folder, words=words, seconds=seconds)
    return TraceReport(traced, *verdict(report, traced))
