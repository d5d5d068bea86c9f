"""``tavern plugins check``: does a plugin match its plugin.yaml? Reads everything, runs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tavern_core.cli import completion
from tavern_core.cli.errors import INVALID, NOTHING_FOUND, ReportedExit, print_note, show_finding
from tavern_core.cli.session import CliCommand, CliSession, command
from tavern_core.errors import Finding, UsageError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.safe_printing import and_more

if TYPE_CHECKING:
    from tavern_core.cli.output import Output
    from tavern_core.review.plugin_check import CheckReport
    from tavern_core.review.trace_record import TraceResult


_WORDS: Final = "tavern_core.pytest"


class _BeforePytest(CliCommand):
    """The arguments after ``--`` are for pytest."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_WORDS] = args[at + 1 :]
        return super().parse_args(ctx, args[:at])


@command(cls=_BeforePytest, options_metavar="[OPTIONS] [-- WORDS FOR PYTEST]")
@click.argument("target", metavar="[PATH|NAME]", default=".", shell_complete=completion.plugins_or_folders)
@click.option("--write", is_flag=True, help="Add the tools that the code returns to plugin.yaml.")
@click.option(
    "--probe", "probing", is_flag=True, help="Also import it in a separate process, to see whether it crashes or hangs."
)
@click.option(
    "--trace", "tracing", is_flag=True, help="Also run its tests, and compare what they use with plugin.yaml."
)
@click.option("--timeout-ms", type=click.IntRange(1), default=300_000, metavar="N", help="How long the tests may take.")
@click.option("--strict", is_flag=True, help="Warnings count as errors.")
@click.pass_context
def check(
    ctx: click.Context,
    session: CliSession,
    target: str,
    write: bool,
    probing: bool,
    tracing: bool,
    timeout_ms: int,
    strict: bool,
) -> None:
    """Check a plugin against its plugin.yaml, without running its code.

    The argument is a folder, a plugin or a distribution. --probe and --trace run code.

    Exit code 4 if something is wrong, 5 if there is no such plugin.
    """
    if not _is_folder(target) and target in session.loaded().config.upstreams:
        report, written = _upstream_report(session, target), tuple[Path, ...]()
        ctx.meta[_WORDS] = []
    else:
        report, written = _checked(session, target, write=write)
    if probing and report.location:
        report = replace(report, findings=(*report.findings, *_probed(session, report)))
    words = ctx.meta[_WORDS]
    if words and not tracing:
        raise UsageError("the words after -- are for pytest, which only runs with --trace", hint="add --trace")
    traced = trace_report(report, words, timeout_ms / 1000) if tracing and report.location else None
    if traced is not None:
        report = replace(report, findings=(*report.findings, *traced.findings))
        traced.show_problem()
    is_ok = report.is_ok and not (strict and any(f.severity == "warning" for f in report.findings))
    if session.as_json:
        session.out.json({**_as_json(report, is_ok), **({"trace": traced.to_json()} if traced is not None else {})})
    else:
        _show(session, report, written, traced)
    if not is_ok:
        raise ReportedExit(NOTHING_FOUND if any(f.code == "PLUGIN_NOT_FOUND" for f in report.findings) else INVALID)


def _checked(session: CliSession, target: str, *, write: bool) -> tuple[CheckReport, tuple[Path, ...]]:
    """The report, and the files that were written for tools that plugin.yaml does not declare, if `write` is set."""
    from tavern_core import __version__
    from tavern_core.review.plugin_check import check_plugin

    roots = [] if _is_folder(target) else [Path(root) for root in session.loaded().config.plugins.roots]
    report = check_plugin(target, roots=roots, host_version=__version__)
    if not write or not report.undeclared_tools:
        return report, ()
    written = _write(report)
    return check_plugin(target, roots=roots, host_version=__version__), written


def _upstream_report(session: CliSession, name: str) -> CheckReport:
    """Whether the entry of an upstream can be used as it is written; nothing is connected to."""
    from tavern_core.review.plugin_check import CheckReport

    flaw = session.host("none").upstreams.flaws().get(name)
    findings = () if flaw is None else flaw.findings or (Finding(flaw.code, flaw.message, flaw.hint),)
    return CheckReport(name, "", findings)


def _probed(session: CliSession, report: CheckReport) -> Iterator[Finding]:
    """The result of importing the plugin in a separate process; the host itself imports nothing."""
    from tavern_core.review.import_probe import prober
    from tavern_core.review.probe_result import PluginImport

    folder = Path(report.location)
    if not report.module and not (folder / "__init__.py").is_file():
        return
    seconds = session.loaded().config.limits.import_timeout_ms / 1000
    found = prober.probe(PluginImport(report.name, report.module, folder), seconds=seconds)
    if found.outcome == "raised":
        hint = "it would fail in a host, too; correct the import"
        yield Finding("ACTIVATION_FAILED", f"importing it raised {found.said}", hint, severity="error")
    elif found.outcome == "unknown":
        yield Finding("PROBE_UNAVAILABLE", f"importing it could not be tried: {found.said}", severity="error")
    elif found.is_unsafe:
        yield Finding("ACTIVATION_FAILED", found.said, "this import would end a host; correct what runs at import")
    for note in found.notes:
        yield Finding("ACTIVATION_FAILED", note, "do it in tavern_start, and end it in tavern_stop", severity="warning")


def _is_folder(target: str) -> bool:
    try:
        return Path(target).is_dir()
    except OSError as error:  # an impossible file name
        raise UsageError(f"{target[:200]!r} is neither a folder nor a name: {error.strerror}") from error


def _write(report: CheckReport) -> tuple[Path, ...]:
    from tavern_core.review.tools_writer import write_tools

    return write_tools(_folder_of(report, "that can be written to"), report.undeclared_tools)


def _folder_of(report: CheckReport, wanted: str) -> Path:
    folder = Path(report.location)
    if not folder.is_dir():
        raise UsageError(f"{report.location} is not a folder {wanted}", hint="check the plugin's source folder")
    return folder


def _show(session: CliSession, report: CheckReport, written: Sequence[Path], traced: TraceReport | None) -> None:
    folder = Path(report.location) if report.location else None
    for finding in report.findings:
        show_finding(finding, folder=folder)
    for file in written:
        print_note(f"wrote {file}")
    if traced is not None:
        traced.show(session.out)
    session.out.text(_summary(report))


def _summary(report: CheckReport) -> str:
    counts = {kind: sum(f.severity == kind for f in report.findings) for kind in ("error", "warning", "info")}
    reported = [
        f"{number} {kind}{'s' if number != 1 and kind != 'info' else ''}" for kind, number in counts.items() if number
    ]
    return f"{report.name}: {', '.join(reported) or 'ok'}"


def _as_json(report: CheckReport, is_ok: bool) -> dict[str, object]:
    return {
        "name": report.name,
        "ok": is_ok,
        "findings": [f.to_json() for f in report.findings],
        "hooks": [hook.name for hook in report.hooks_found],
        "tools": [tool.name for tool in report.tools_found],
        "undeclaredTools": list(report.undeclared_tools),
    }


# Trace check ----------------------------------------------------------------------------------------------------------
# ``tavern plugins check --trace``: what a plugin used while its tests ran, and the permissions for that.

_LAST_LINES: Final = 30


@dataclass(frozen=True, slots=True)
class TraceReport:
    """The result of a trace."""

    traced: TraceResult
    findings: tuple[Finding, ...]
    block: str
    """The smallest `permissions:` for the observed uses; empty if plugin.yaml is unreadable."""

    def show_problem(self) -> None:
        """Print the end of pytest's output on stderr if the tests did not pass."""
        if not self.traced.is_complete and self.traced.said:
            print_note("\n".join(self.traced.said.splitlines()[-_LAST_LINES:]))

    def show(self, out: Output) -> None:
        """Print the uses as a table; then the block to paste."""
        if rows := self._rows():
            out.table(("what its code does", "where"), rows)
            out.text()
        if self.block:
            out.text("# The smallest permissions for the observed uses, for plugin.yaml:")
            out.text(self.block)

    def _rows(self) -> list[tuple[str, str]]:
        """The rows of the table: one for each line of the plugin with its uses."""
        rows: dict[tuple[str, str], list[str]] = {}
        for use in self.traced.uses:
            if use.kind != "thread":
                rows.setdefault((use.kind, f"{use.file}:{use.line}"), []).append(use.said)
        return [(said[0] + and_more(len(said) - 1), where) for (_, where), said in rows.items()]

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
    from tavern_core.review.trace_findings import verdict
    from tavern_core.review.trace_run import trace

    folder = _folder_of(report, "with tests that can be run")
    manifest = report.reading.manifest if report.reading is not None else None
    if manifest is None:
        return None  # its problems are already reported; no host would accept it
    traced = trace(report.name, manifest.version, module=report.module, folder=folder, words=words, seconds=seconds)
    return TraceReport(traced, *verdict(report, traced))
