"""``tavern logs``: read, check and explain the audit log. Opens no host, so a log can be read even if nothing else works."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tavern_core.cli import completion
from tavern_core.cli.errors import FAILED, NOTHING_FOUND, ReportedExit, print_problem
from tavern_core.cli.lazy_groups import Group
from tavern_core.cli.output import json_text, shorten
from tavern_core.cli.session import CliSession
from tavern_core.model.nearest import did_you_mean

if TYPE_CHECKING:
    from tavern_core.kernel.log.audit_log_queries import AuditLog
    from tavern_core.kernel.log.statistics import ToolStatistics
    from tavern_core.kernel.log.story import CallStory

LogLine = dict[str, Any]
_COLUMNS: Final = ("seq", "time", "type", "call", "what")
_NOT_SAID: Final = frozenset({"seq", "time", "type", "callId", "plugin", "prev", "hash"})
_IN_SHORT: Final = frozenset({"reason", "by", "error", "durationMs", "ok", "status", "diff"})
_NAMES: Final = {
    "principal": "called by", "userId": "user", "door": "by the door", "purpose": "why", "requestId": "request", "taskId": "task",
    "traceId": "trace", "parent": "made by the call", "idempotencyKey": "idempotency key", "changedBy": "changed by",
}  # fmt: skip
_WHAT_WIDTH: Final = 160
_STATS: Final = ("tool", "calls", "failed", "denied", "retries", "p50", "p95", "longest", "1 ms … 60 s")
_BARS: Final = " ▁▂▃▄▅▆▇█"
_FOLLOW_SECONDS: Final = 0.25


def audit_log(session: CliSession) -> AuditLog:
    """The audit log of the state folder."""
    from tavern_core.kernel.log.audit_log_queries import AuditLog

    return AuditLog(session.loaded().home)


@click.group(cls=Group, default="show")
def logs() -> None:
    """Read, check and explain the audit log.

    `tavern logs` alone shows the newest records.
    """


_types = click.option(
    "--type", "types", metavar="TYPE", multiple=True, help="Only this type, e.g. POLICY_DENIED; may be repeated."
)
_call = click.option("--call", "call_id", metavar="ID", help="Only records of this call.")


@logs.command()
@click.option(
    "--last", type=click.IntRange(0), default=50, show_default=True, metavar="N", help="The newest N records."
)
@click.option("--all", "everything", is_flag=True, help="All records.")
@_types
@_call
@click.option("--follow", "-f", is_flag=True, help="Continue with new records; ends with Ctrl-C.")
def show(
    session: CliSession, last: int, everything: bool, types: tuple[str, ...], call_id: str | None, follow: bool
) -> None:
    """Show the newest records, oldest first."""
    log, wanted = audit_log(session), {t.upper() for t in types}
    found = [r.to_json() for r in log.records(*wanted, last=None if everything else last, call_id=call_id)]
    if follow:
        _follow(session, log.path, found, wanted, call_id)
        return
    session.show_list(found, _COLUMNS, _row, empty=f"no {'such ' if call_id or wanted else ''}records in {log.path}")
    if not found and (call_id or wanted):
        raise ReportedExit(NOTHING_FOUND)


@logs.command()
@_types
@_call
def tail(session: CliSession, types: tuple[str, ...], call_id: str | None) -> None:
    """Show the newest ten records, then new ones until Ctrl-C."""
    log, wanted = audit_log(session), {t.upper() for t in types}
    found = [r.to_json() for r in log.records(*wanted, last=10, call_id=call_id)]
    _follow(session, log.path, found, wanted, call_id)


@logs.command()
@click.argument("tool", metavar="[TOOL]", required=False, default="", shell_complete=completion.tools)
@click.option("--last", type=click.IntRange(1), metavar="N", help="Only the newest N records; default: all.")
def stats(session: CliSession, tool: str, last: int | None) -> None:
    """Show calls, failures and times of tools, with a histogram."""
    found = audit_log(session).statistics(tool, last=last)
    if tool and found and not session.as_json:
        _show_times(session, found[0])
    else:
        session.show_list(found, _STATS, _stats_row, empty="no calls are on record")
    if tool and not found:
        raise ReportedExit(NOTHING_FOUND)


def _stats_row(one: ToolStatistics) -> tuple[Any, ...]:
    times = map(_ms, (one.p50_ms, one.p95_ms, one.max_ms))
    return one.tool, one.calls, one.failed, one.denied, one.retries, *times, _spark(one.histogram)


def _show_times(session: CliSession, one: ToolStatistics) -> None:
    from tavern_core.kernel.log.statistics import BUCKETS_MS

    failures = ", ".join(f"{count} {kind}" for kind, count in one.errors.items())
    session.out.facts(
        [
            ("tool", one.tool),
            ("calls", one.calls),
            ("failed", f"{one.failed}" + (f" ({failures})" if failures else "")),
            ("denied", one.denied),
            ("tried again", one.retries),
            ("p50", _ms(one.p50_ms)),
            ("p95", _ms(one.p95_ms)),
            ("longest", _ms(one.max_ms)),
        ]
    )
    most = max(one.histogram, default=0) or 1
    names = [*(f"≤ {_ms(end)}" for end in BUCKETS_MS), f"> {_ms(BUCKETS_MS[-1])}"]
    used = [at for at, count in enumerate(one.histogram) if count]
    for at in range(used[0], used[-1] + 1) if used else ():
        count = one.histogram[at]
        session.out.text(f"{names[at]:>9}  {count:>7}  {'█' * max(round(40 * count / most), int(count > 0))}")


def _spark(histogram: tuple[int, ...]) -> str:
    """A histogram in one line of text."""
    most = max(histogram, default=0)
    return "".join(_BARS[-(-count * (len(_BARS) - 1) // most)] for count in histogram) if most else ""


def _ms(value: float) -> str:
    return f"{value / 1000:g} s" if value >= 1000 else f"{value:.3g} ms"


@logs.command()
@click.option(
    "--first", type=click.IntRange(1), default=1, metavar="N", help="Number of the first record that must exist."
)
def verify(session: CliSession, first: int) -> None:
    """Check that no record of the log was changed.

    Exit code 1 if one was.
    """
    report = audit_log(session).verify(first=first)
    facts = [
        ("state", "ok" if report.ok else "damaged"),
        ("records", report.records),
        ("numbers", f"{report.first} to {report.last}" if report.records else ""),
        ("head", report.head),
        ("files", report.files),
        ("repaired", report.repairs),
    ]
    session.show_facts(report.to_json(), facts)
    for problem in () if session.as_json else report.problems:
        lines = [f"  --> {problem.file}" + (f":{problem.line}" if problem.line else "")]
        print_problem("error", "STATE_DAMAGED", f"{problem.what}: {problem.message}", lines=lines)
    if not report.ok:
        raise ReportedExit(FAILED)


@logs.command()
@click.argument("call_id", metavar="CALL_ID")
def explain(session: CliSession, call_id: str) -> None:
    """Explain one call: who made it and why, who changed or refused it, what it called.

    Exit code 5 if there are no records of it.
    """
    log = audit_log(session)
    if (reported := log.explain(call_id)) is None:
        near = did_you_mean(call_id, dict.fromkeys(r.call_id for r in log.records(last=200) if r.call_id), 1)
        hint = near or "`tavern logs` shows the newest"
        print_problem("error", "NOT_FOUND", f"no call {call_id!r} is on record in {log.path}", hint)
        raise ReportedExit(NOTHING_FOUND)
    session.out.result(reported.to_json())
    _print_story(session, reported)


def _print_story(session: CliSession, reported: CallStory) -> None:
    """A summary of the call, then its records with further data."""
    out = session.out
    by = f"by {reported.by or 'the host'}" if reported.outcome == "refused" else ""
    outcome = " ".join(filter(None, (reported.outcome, reported.error, by)))
    took = None if reported.duration_ms is None else f"{reported.duration_ms} ms"
    facts = [(_NAMES.get(key, key), _said(key, value)) for key, value in reported.facts.items()]
    ending = [("outcome", outcome), ("reason", reported.reason), ("what it changed", reported.effect), ("took", took)]
    out.facts([("call", reported.call_id), *facts, *ending])
    if reported.diff:
        out.text()
        out.table(("plugin", "changed", "from", "to"), [_difference(row) for row in reported.diff])
    out.text()
    for record in reported.records:
        out.text(f"{record.time}  {record.type}  #{record.seq}")
        rest = {k: v for k, v in record.data.items() if k not in _IN_SHORT and v and reported.facts.get(k) != v}
        out.facts((f"  {key}", _said(key, value)) for key, value in rest.items())
    for made in reported.calls:
        out.text(f"{made.time}  made the call {made.call_id} of {made.data.get('tool')}")


def _difference(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    if "more" in row:
        return str(row.get("plugin")), f"and {row['more']} more places", "", ""
    before, after = ("(absent)" if key not in row else json_text(row[key]) for key in ("before", "after"))
    return str(row.get("plugin")), str(row.get("path")), before, after


def _follow(session: CliSession, path: Path, found: list[LogLine], types: set[str], call_id: str | None) -> None:
    """Print one record per line, and continue with new ones. A rotated log continues in its new file."""
    from tavern_core.kernel.log import reader as log_reader

    at = max((r["seq"] for r in log_reader.read(path, last=1)), default=0)
    for record in found:
        _print_line(session, record)
    while True:
        for record in _newer(path, at):
            at = record["seq"]
            if (not types or record.get("type") in types) and call_id in (None, record.get("callId")):
                _print_line(session, record)
        time.sleep(_FOLLOW_SECONDS)


def _newer(path: Path, seq: int) -> list[LogLine]:
    """Records after number `seq`; read backwards from the end of the log, only as far as needed."""
    from tavern_core.kernel.log import reader as log_reader

    count = 64
    while True:
        found = list(log_reader.read(path, last=count))
        if len(found) < count or found[0]["seq"] <= seq:
            return [r for r in found if r["seq"] > seq]
        count *= 8


def _print_line(session: CliSession, record: LogLine) -> None:
    if session.as_json:
        session.out.json_line(record)
    else:
        session.out.line("  ".join(map(str, _row(record))))


def _row(record: LogLine) -> tuple[Any, ...]:
    said = record.get("tool") or record.get("plugin") or ""
    rest = {k: v for k, v in record.items() if k not in _NOT_SAID and k not in ("tool", "requestId")}
    parts = [f"{key}={value if isinstance(value, str) else json_text(value)}" for key, value in rest.items()]
    what = f"{said} {shorten(' '.join(parts), _WHAT_WIDTH)}".strip()
    return record.get("seq"), record.get("time"), record.get("type"), record.get("callId") or "", what


def _said(key: str, value: Any) -> str:
    if key == "changedBy" and isinstance(value, list):
        return "\n".join(f"{c.get('plugin')} changed {c.get('changed')}" for c in value if isinstance(c, dict))
    return value if isinstance(value, str) else json_text(value)
