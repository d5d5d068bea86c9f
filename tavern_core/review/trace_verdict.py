"""A traced run compared with everything that is known about the plugin: findings, and the permissions to request."""

from __future__ import annotations

from pathlib import Path

from tavern_core.contract.hookspecs import HOOKS
from tavern_core.errors import Finding
from tavern_core.kernel.files.plugin_files import FolderFiles
from tavern_core.kernel.manifest.declared_tools import read_declared_tools
from tavern_core.review.permission_block import permission_block
from tavern_core.review.plugin_check import CheckReport
from tavern_core.review.trace_findings import trace_findings
from tavern_core.review.trace_record import Traced


def verdict(report: CheckReport, traced: Traced) -> tuple[tuple[Finding, ...], str]:
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
