"""``tavern doctor``: reports problems and their repairs. Runs no plugin code."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from tavern_core.cli.errors import FAILED, INVALID, ReportedExit
from tavern_core.cli.output import shorten
from tavern_core.cli.session import CliSession, command
from tavern_core.errors import ERROR_CODES, ProfileInvalid, StateDamaged, TavernError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.plugin_status import Diagnostic

if TYPE_CHECKING:
    from tavern_core.host import Tavern
    from tavern_core.model.plugin_status import PluginStatus

Verdict = Literal["ok", "warning", "error"]
LARGEST_LOG_CHECKED: Final = 32_000_000
"""Maximum bytes of audit log to verify here; a longer log is left to ``tavern logs verify``."""
EXTRAS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "comfyui": (("httpx2", "wsproto"), "follows the runs of ComfyUI"),
    "fast": ((), "has no effect: its packages are dependencies now"),
    "http": (("httpx2", "idna"), "adds the service net"),
    "keyring": (("keyring",), "reads secrets from the keyring of the system"),
    "langchain": (("langchain_core",), "gives tools to agents of LangChain"),
    "llm": (("pydantic_ai",), "asks language models through pydantic-ai"),
    "mcp": (("mcp",), "adds the MCP server, `tavern mcp`, and tools of MCP servers"),
    "metrics": (("prometheus_client",), "counts calls for Prometheus"),
    "otel": (("opentelemetry",), "makes a span of each call"),
    "redis": (("redis",), "shares keys, approvals, jobs and rates across machines"),
    "scaffold": (("cookiecutter",), "adds `tavern new`"),
    "server": (("mcp", "uvicorn"), "serves over HTTP, `tavern mcp --http`"),
    "sql": (("sqlglot",), "lets tools run checked SQL"),
    "testing": (("pytest",), "runs the tests of plugins"),
}
"""Extra of the package → the modules that it installs, and what it is for."""
_WIDTH: Final = 300


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check."""

    what: str
    verdict: Verdict
    found: str
    fix: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"what": self.what, "verdict": self.verdict, "found": self.found, "fix": self.fix or None}


@command()
def doctor(session: CliSession) -> None:
    """Report problems and their repairs.

    Checks the host, every plugin and the audit log. Exit code 4 if a plugin failed or one of its files is wrong, 1 if something else is broken.
    """
    session.silence()  # all of it is printed below
    host = session.host("none")
    looked = [*_about_host(session, host)]
    known = [s for s in host.plugins.values() if s.source != "builtin" or s.state == "failed"]
    hidden = [host.tools.why(tool) for tool in _hidden(host)]
    listed = (d for d in host.diagnostics if d.code != "WORKFLOW_INVALID")  # already part of `looked`
    reports = (*listed, *_found(host, known), *_undeclared(known), *_resting(known), *_probed(known))
    wrong = any(s.state == "failed" for s in known) or any(d.severity == "error" and d.plugin for d in reports)
    session.out.result(
        {
            "ok": not wrong and all(e.verdict != "error" for e in looked),
            "host": [e.to_json() for e in looked],
            "plugins": [s.to_json() | {"fix": fix_of(s, host.diagnostics) or None} for s in known],
            "hiddenTools": [why.to_json() for why in hidden],
            "diagnostics": [d.to_json() for d in reports],
        }
    )
    _show(session, looked, [_row(s, host.diagnostics) for s in known], hidden, reports)
    if any(e.verdict == "error" for e in looked):
        raise ReportedExit(FAILED)
    if wrong:
        raise ReportedExit(INVALID)


def fix_of(status: PluginStatus, reports: Iterable[Diagnostic]) -> str:
    """The repair for a plugin's state; empty if none is needed.

    Args:
        reports: the diagnostics of the host; their repair for this failure is more specific than that of the code.
    """
    match status.state:
        case "failed":
            row = ERROR_CODES.get(status.error_code)
            general = row.fix if row is not None else f"tavern plugins check {status.name}"
            return next(iter(_hints(status, reports)), general)
        case "pending_consent":
            return f"tavern plugins grant {status.name}"
        case "disabled":
            return f"tavern plugins enable {status.name}" if "operator" in status.reason else ""
        case _:
            return ""


def _hints(status: PluginStatus, reports: Iterable[Diagnostic]) -> list[str]:
    """The repairs of a failed plugin, the most specific first: of the single problem, of the failure."""
    errors = [f.hint for f in status.findings if f.severity == "error"]
    failures = [d.hint for d in reports if d.plugin == status.name and d.code == status.error_code]
    return [hint for hint in (*(errors if len(errors) == 1 else ()), *failures) if hint]


def _row(status: PluginStatus, reports: Iterable[Diagnostic]) -> tuple[str, ...]:
    reason = status.reason
    for hint in reversed(_hints(status, reports)):
        reason = reason.removesuffix(f" ({hint})")  # repairs have their own column
    return status.name, status.version, status.state, shorten(reason, _WIDTH), fix_of(status, reports)


def _about_host(session: CliSession, host: Tavern) -> Iterator[CheckResult]:
    from tavern_core import __version__

    yield CheckResult("python", "ok", f"{platform.python_version()} at {sys.executable}")
    yield CheckResult("tavern-core", "ok", __version__)
    yield _extras()
    loaded = session.loaded()
    yield CheckResult("configuration", "ok", str(loaded.project_file or "no project file; defaults"))
    yield _home(loaded.home)
    if host.config.state.store not in ("sqlite", "memory"):
        yield _server(host)
    yield _lock(session)
    yield _log(loaded.home, is_on=host.config.audit.enabled)
    yield from _settings(host)
    yield from _upstreams(host)
    yield from _workflows(host)
    yield from _profiles(host)
    yield from _isolation(host)


def _extras() -> CheckResult:
    """The optional parts of the package, and what the missing ones would add."""
    missing = {name: use for name, (modules, use) in EXTRAS.items() if not all(find_spec(module) for module in modules)}
    installed = ", ".join(name for name in EXTRAS if name not in missing) or "none"
    found = f"{installed}; not installed: {', '.join(missing)}" if missing else installed
    return CheckResult(
        "extras", "ok", found, "; ".join(f"pip install 'tavern-core[{name}]' {use}" for name, use in missing.items())
    )


def _home(home: Path) -> CheckResult:
    if not os.access(home, os.W_OK | os.X_OK):
        return CheckResult(
            "state folder", "error", f"{home} cannot be written", "correct its permissions, or use --home"
        )
    return CheckResult("state folder", "ok", str(home))


def _server(host: Tavern) -> CheckResult:
    """The Redis server that holds keys, approvals, jobs and rates."""
    try:
        host.jobs.list(most=1)
    except StateDamaged as error:
        return CheckResult("state.store", "error", error.message, error.hint)
    return CheckResult("state.store", "ok", "the Redis server answers")


def _lock(session: CliSession) -> CheckResult:
    from tavern_core.kernel.grants.grant_store import GrantStore
    from tavern_core.kernel.plugins.lock_check import lock_path

    path = lock_path(session.loaded())
    grants = GrantStore(path).read()
    if grants.findings:
        first = grants.findings[0]
        return CheckResult("lock file", "error" if grants.is_damaged else "warning", str(first), first.hint)
    return CheckResult("lock file", "ok", f"{path}: {len(grants.records)} plugins decided on")


def _log(home: Path, *, is_on: bool) -> CheckResult:
    from tavern_core.kernel.log import verify as log_verify
    from tavern_core.kernel.log.log_files import audit_log

    if not is_on:
        return CheckResult("audit log", "warning", "switched off", "set audit.enabled: true")
    path = audit_log(home)
    size = sum(file.lstat().st_size for file in path.parent.glob("audit*.jsonl")) if path.parent.is_dir() else 0
    if size > LARGEST_LOG_CHECKED:
        return CheckResult("audit log", "ok", f"{path}: {size:,} bytes, not verified here", "tavern logs verify")
    try:
        report = log_verify.verify(path)
    except TavernError as error:
        return CheckResult("audit log", "error", error.message, error.hint)
    if not report.ok:
        return CheckResult("audit log", "error", f"{len(report.problems)} corrupt lines", "tavern logs verify")
    return CheckResult("audit log", "ok", f"{path}: {report.records} records, chain intact")


def _settings(host: Tavern) -> Iterator[CheckResult]:
    for finding in host.settings.findings():
        yield CheckResult("settings", "error" if finding.severity == "error" else "warning", str(finding), finding.hint)


def _upstreams(host: Tavern) -> Iterator[CheckResult]:
    """Entries that no adapter can use as written, and entries that name tools that do not exist."""
    for name, flaw in host.upstreams.flaws().items():
        found = flaw.findings[0].located if flaw.findings else flaw.message
        yield CheckResult(f"upstream {name}", "error", found, flaw.hint)
    for name in host.upstreams:
        for what, hint in host.upstreams.unknown_overrides(name).items():
            yield CheckResult(f"upstream {name}", "warning", what, hint)


def _workflows(host: Tavern) -> Iterator[CheckResult]:
    """Unreadable workflow files; the doctor does not check the others."""
    for id_, error in host.workflows.broken().items():
        yield CheckResult("workflows", "error", error.message, error.hint or f"tavern workflows check {id_}")


def _profiles(host: Tavern) -> Iterator[CheckResult]:
    """Agent profiles in files: those that cannot be used, and fields that mean nothing."""
    for name in host.agents.profiles():
        try:
            findings = host.agents.check(name)
        except ProfileInvalid as error:
            yield CheckResult(f"profile {name}", "error", error.message, error.hint)
            continue
        for finding in findings:
            yield CheckResult(f"profile {name}", "warning", finding.located, finding.hint)


def _isolation(host: Tavern) -> Iterator[CheckResult]:
    """Each layer of the box for scripts, code and isolated plugins."""
    from tavern_core.box.layer_probe import available_layers
    from tavern_core.box.policy import LAYERS

    config = host.config.isolation
    if config.level == "none":
        fix = "`isolation: {level: required}` in tavern.yaml, or leave the level out"
        yield CheckResult("isolation", "warning", "switched off: programs of plugins run without a box", fix)
        return
    for layer, why in available_layers().items():
        if layer in config.without:
            yield CheckResult(
                f"isolation: {layer}",
                "warning",
                "switched off",
                f"take {layer} out of isolation.without in tavern.yaml",
            )
        elif why:
            fix = "programs that require a complete box are refused; `isolation: {level: best-effort}` in tavern.yaml allows them"
            yield CheckResult(f"isolation: {layer}", "warning", f"missing: {why}", fix)
        else:
            yield CheckResult(f"isolation: {layer}", "ok", LAYERS[layer])


def _hidden(host: Tavern) -> list[str]:
    """Hidden tools that a user may miss, without optional tools of the host."""
    shown = {spec.id for spec in host.tools.list()}
    own = {spec.id for spec in host.tools.snapshot() if spec.optional and host.plugins[spec.plugin].source == "builtin"}
    return [tool for tool in host.tools.known_ids() if tool not in shown | own]


def _found(host: Tavern, known: Sequence[PluginStatus]) -> Iterator[Diagnostic]:
    """Problems in the files of plugins that are not yet diagnostics of the host, each with its place."""
    reported: dict[str, list[str]] = {}
    for report in host.diagnostics:
        reported.setdefault(report.plugin, []).append(report.message)
    for status in known:
        for finding in status.findings if status.state != "disabled" else ():
            if not any(finding.message in message for message in reported.get(status.name, ())):
                text = str(replace(finding, hint=""))
                yield Diagnostic(finding.code, text, status.name, finding.hint, finding.severity)


def _resting(known: Sequence[PluginStatus]) -> Iterator[Diagnostic]:
    """Hooks that are quarantined, in any process."""
    for status in known:
        for hook in status.resting:
            hint = f"see {hook.where}; correct it and `tavern plugins reload {status.name}`"
            yield Diagnostic("HOOK_QUARANTINED", hook.summary, status.name, hint, "warning")


def _probed(known: Sequence[PluginStatus]) -> Iterator[Diagnostic]:
    """Plugins whose import failed in a probe."""
    for status in known:
        if (why := status.refusal) is not None:
            yield Diagnostic(why.code, why.message, status.name, why.hint, "error")


def _undeclared(known: Sequence[PluginStatus]) -> Iterator[Diagnostic]:
    """Plugins without `tools:` that start slowly, because only their source declares tools, or whose tool files are not read."""
    from tavern_core.kernel.manifest.tool_files import TOOL_FILE_SUFFIX
    from tavern_core.review.plugin_check import check_plugin

    for status in known:
        folder = Path(status.location)
        if status.provides.get("tools") or status.state in ("failed", "disabled") or not folder.is_dir():
            continue
        report = check_plugin(folder)
        reported = {finding.message for finding in status.findings}
        for finding in report.findings:
            is_new = finding.message not in reported
            if is_new and finding.where is not None and finding.where.file.endswith(TOOL_FILE_SUFFIX):
                text = str(replace(finding, hint=""))
                yield Diagnostic(finding.code, text, status.name, finding.hint, finding.severity)
        if tools := report.undeclared_tools:
            message = (
                f"{status.name} is activated at every start: plugin.yaml does not name its tools {', '.join(tools)}"
            )
            hint = f"tavern plugins check {status.name} --write"
            yield Diagnostic("TOOLS_UNDECLARED", message, status.name, hint, "info")


def _show(session: CliSession, looked: list[CheckResult], known: Any, hidden: Any, reports: Any) -> None:
    out = session.out
    out.table(("host", "state", "found", "fix"), [(e.what, e.verdict, e.found, e.fix) for e in looked])
    if known:
        out.text()
        out.table(("plugin", "version", "state", "reason", "fix"), known)
    if hidden:
        out.text()
        out.table(("hidden tool", "reason", "fix"), [(w.id, w.reason, w.fix) for w in hidden])
    if reports:
        out.text()
        rows = [(d.severity, d.code, d.plugin, shorten(d.message, _WIDTH), d.hint) for d in reports]
        out.table(("severity", "code", "plugin", "message", "hint"), rows)
