"""Findings of a traced run: undeclared use is an error at its line; requested and unused is a remark."""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tavern_core.contract.hookspecs import HOOKS
from tavern_core.contract.permissions import describe_permission, requested_permissions
from tavern_core.errors import Finding, Location
from tavern_core.kernel.files.plugin_file_reader import FolderFiles
from tavern_core.kernel.manifest.declared_tools import read_declared_tools
from tavern_core.kernel.text.yaml_reader import YamlDocument
from tavern_core.model.capability import ENV_PREFIX, SECRET_PREFIX
from tavern_core.model.manifest import Manifest
from tavern_core.model.safe_printing import and_more
from tavern_core.review.audit.observed_use import EVERYTHING, ObservedUse
from tavern_core.review.declared_permissions import SEEN, DeclaredPermissions, entries, need, short_entry
from tavern_core.review.permission_block import permission_block
from tavern_core.review.plugin_check import CheckReport
from tavern_core.review.trace_record import TraceResult
from tavern_core.schema.secret_names import is_secret_name

HARMLESS: Final = frozenset({
    "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LOGNAME", "NO_COLOR", "PATH", "PWD", "TERM", "TMPDIR", "TZ", "USER",
})  # fmt: skip
"""Variables that describe the machine and contain no secrets; also ``LC_*``."""
_MOST_NAMED: Final = 3


def _host_changed(change: tuple[str, tuple[str, int]]) -> Finding:
    name, (file, line) = change
    text = f"it puts its own code in the place of {name}"
    hint = "use a hook, or override the service; what is not offered cannot be relied on"
    return Finding("HOST_CHANGED", text, hint, Location(file, line, 1), details={"changed": name})


def trace_findings(
    traced: TraceResult,
    manifest: Manifest,
    document: YamlDocument,
    *,
    named: Collection[str] = (),
    elsewhere: bool = False,
    folder: Path | None = None,
) -> Iterator[Finding]:
    """The findings of a run, the most severe first.

    Args:
        document: plugin.yaml, for the lines of it.
        named: capabilities that tools declare.
        folder: of the plugin.
        elsewhere: part of the plugin runs in its own processes, without a guard.
    """
    yield from _not_ended(traced)
    yield from _import_findings(traced.at_import)
    yield from _hidden_hooks(traced, manifest, folder)
    asked = DeclaredPermissions.of(manifest)
    yield from _undeclared(asked, traced.uses)
    yield from _environment(traced.uses, requested_permissions(manifest))
    yield from map(_host_changed, traced.changes)
    for test, printed in traced.printed:
        message = f"{printed:,} characters were printed in {test}: they fill the host's output or log"
        hint = "answer with what it has to say, or use ctx.logger"
        yield Finding("OUTPUT_TOO_LARGE", message, hint, severity="warning")
    for use in _by_line(traced.uses, "native"):
        message = f"it {use[0].said}: what that does, no guard sees"
        yield Finding("USE_UNDECLARED", message, "", _place(use[0]), "warning", _details(use))
    if traced.is_complete and not elsewhere:
        yield from _unused(asked, manifest, document, traced.uses, named)


def _not_ended(traced: TraceResult) -> Iterator[Finding]:
    if traced.ended:
        hint = "correct it, or name tests that end: tavern plugins check NAME --trace -- -k NAME_OF_TEST"
        yield Finding("TRACE_INCOMPLETE", f"{traced.ended}; later events are not recorded", hint)
    elif traced.failed:
        message = f"{traced.failed} of its {traced.collected} tests failed; what they would use is not seen"
        yield Finding("TRACE_INCOMPLETE", message, "correct them")
    elif not traced.collected:
        hint = "write tests, or name them: tavern plugins check NAME --trace -- FOLDER"
        yield Finding("TRACE_INCOMPLETE", "no tests were found; only its import was traced", hint, severity="warning")
    for failure in traced.failures[:1]:
        message = f"the guard itself failed, so something may be missing: {failure}"
        yield Finding("TRACE_INCOMPLETE", message, "please report it", severity="warning")


def _import_findings(uses: Iterable[ObservedUse]) -> Iterator[Finding]:
    for use in uses:
        is_outside = use.kind == "write" and use.target.partition("/")[0] != "$plugin"
        if is_outside or use.kind in ("connect", "listen", "spawn", "thread"):
            message = f"importing it {use.said}: every listing of plugins pays for that"
            hint = "do it in tavern_start, or when it is first needed"
            yield Finding("IMPORT_NOT_PURE", message, hint, _place(use), details=use.to_json())


def _hidden_hooks(traced: TraceResult, manifest: Manifest, folder: Path | None) -> Iterator[Finding]:
    """Hooks that are created during the import; the static check reports those in the source."""
    requested = requested_permissions(manifest)
    for name, where in traced.hooks:
        hook = HOOKS[name]
        if hook.permissions and not requested & set(hook.permissions):
            file, _, line = where.rpartition(":")
            is_inside = folder is not None and Path(file).is_relative_to(folder)
            shown = str(Path(file).relative_to(folder)) if folder is not None and is_inside else file
            message = f"{name} is implemented once it is imported, and plugin.yaml does not request it"
            hint = f'add to permissions.hooks in plugin.yaml the line `- "{hook.permissions[0]}"`'
            yield Finding("HOOK_REFUSED", message, hint, Location(shown, int(line) if line.isdigit() else 0, 1))


def _undeclared(asked: DeclaredPermissions, uses: Sequence[ObservedUse]) -> Iterator[Finding]:
    lines: dict[tuple[str, str, int], list[ObservedUse]] = {}
    for use in uses:
        if (permission := need(use)) and not asked.covers(use):
            lines.setdefault((permission, use.file, use.line), []).append(use)
    for (permission, _, _), group in lines.items():
        is_wider = permission in asked.scopes
        beyond = " further than plugin.yaml requests" if is_wider else ", and plugin.yaml does not request"
        message, hint = f"it {_uses(group)}{beyond} {permission!r}", _line(permission, group, is_wider)
        yield Finding("USE_UNDECLARED", message, hint, _place(group[0]), "error", _details(group, permission))


def _uses(group: Sequence[ObservedUse]) -> str:
    first, *rest = dict.fromkeys(use.said for use in group)
    named = [
        text.partition(" ")[2] if text.partition(" ")[0] == first.partition(" ")[0] else text
        for text in rest[: _MOST_NAMED - 1]
    ]
    return ", ".join([first, *named]) + and_more(len(rest) - len(named))


def _line(permission: str, group: Sequence[ObservedUse], is_wider: bool) -> str:
    """The line to write into plugin.yaml."""
    row = describe_permission(permission)
    if row.section != "permissions.capabilities" or permission.startswith(SECRET_PREFIX):
        return f"add to {row.section} in plugin.yaml `- {json.dumps(row.written or permission)}`"
    scope = list(dict.fromkeys(short_entry(use) for use in group if entries(use)))[:_MOST_NAMED]
    if is_wider:
        entries_ = ", ".join(map(json.dumps, scope))
        return f"add to its scope in plugin.yaml {entries_}" if scope else "leave its scope out in plugin.yaml"
    shown = f", scope: {json.dumps(scope)}" if scope else ""
    return f"add to {row.section} in plugin.yaml `- {{name: {json.dumps(permission)}{shown}}}`"


def _environment(uses: Iterable[ObservedUse], asked: Container[str]) -> Iterator[Finding]:
    for use in uses:
        is_harmless = use.target in HARMLESS or use.target.startswith("LC_")
        if use.kind != "variable" or is_harmless or f"{ENV_PREFIX}{use.target}" in asked:
            continue
        severity: Any = "error" if use.target == EVERYTHING or is_secret_name(use.target) else "warning"
        hint = "a worker does not have it: declare a setting (configOptions), a secret (`secrets:<name>` and ctx.secret(name)), or ask for `env:<NAME>`"
        yield Finding("USE_UNDECLARED", f"it {use.said}", hint, _place(use), severity, _details([use]))


def _unused(
    asked: DeclaredPermissions,
    manifest: Manifest,
    document: YamlDocument,
    uses: Sequence[ObservedUse],
    named: Collection[str],
) -> Iterator[Finding]:
    used = asked.used(uses)
    for index, request in enumerate(manifest.permissions.capabilities):
        if request.name in used or not (request.name in SEEN or request.name.startswith(SECRET_PREFIX)):
            continue
        hint = "test what needs it" + ("; a tool names it" if request.name in named else ", or delete the line")
        where = document.locate(("permissions", "capabilities", index))
        message = f"plugin.yaml requests {request.name!r}, and its tests never used it"
        yield Finding("USE_UNSEEN", message, hint, where, "info")
    for key, names in (("use", manifest.permissions.services.use), ("write", manifest.permissions.services.write)):
        for index, name in enumerate(names):
            if not any(use.kind == "service" and use.target == name for use in uses):
                where = document.locate(("permissions", "services", key, index))
                message = f"plugin.yaml requests to {key} the service {name!r}, and its tests never did"
                yield Finding("USE_UNSEEN", message, "test what needs it, or delete the line", where, "info")


def _by_line(uses: Iterable[ObservedUse], kind: str) -> Iterator[list[ObservedUse]]:
    lines: dict[tuple[str, int], list[ObservedUse]] = {}
    for use in uses:
        if use.kind == kind:
            lines.setdefault((use.file, use.line), []).append(use)
    yield from lines.values()


def _place(use: ObservedUse) -> Location:
    return Location(use.file, use.line, 1)


def _details(group: Sequence[ObservedUse], permission: str = "") -> dict[str, object]:
    return {"permission": permission, "uses": [{"kind": use.kind, "target": use.target} for use in group]}


# Trace verdict --------------------------------------------------------------------------------------------------------
# A traced run compared with everything that is known about the plugin: findings, and the permissions to request.


def verdict(report: CheckReport, traced: TraceResult) -> tuple[tuple[Finding, ...], str]:
    """The findings, and the `permissions:` block as YAML; no block if plugin.yaml is unreadable."""
    reading = report.reading
    manifest = reading.manifest if reading is not None else None
    if reading is None or manifest is None:
        return (), ""
    tools = read_declared_tools(manifest, reading.document, FolderFiles(Path(report.location)))
    specs = (*tools.specs, *tools.drafts)
    named = {capability for spec in specs for capability in spec.capabilities}
    named |= {capability for tool in report.tools_found for capability in tool.capabilities}
    elsewhere = any(spec.kind == "script" for spec in specs)
    hooks = {
        permission
        for hook in report.hooks_found
        if hook.name in HOOKS
        for permission in HOOKS[hook.name].permissions[:1]
    }
    folder = Path(report.location)
    found = trace_findings(traced, manifest, reading.document, named=named, elsewhere=elsewhere, folder=folder)
    known = {(finding.code, finding.where.line) for finding in report.findings if finding.where is not None}
    new = (f for f in found if f.code != "HOOK_REFUSED" or f.where is None or (f.code, f.where.line) not in known)
    return tuple(new), permission_block(manifest, traced.uses, hooks, named)
