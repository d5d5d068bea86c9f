"""``tavern plugins lock``: record the installed plugins, or check the record. Runs no plugin code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tavern_core.cli.errors import FAILED, ReportedExit, nothing_found, print_note, print_problem
from tavern_core.cli.session import CliSession, command

if TYPE_CHECKING:
    from tavern_core.kernel.grants.grants import GrantRecord


@command()
@click.option("--check", "only_check", is_flag=True, help="Change nothing; exit code 1 if the file is out of date.")
@click.option("--prune", is_flag=True, help="Remove decisions about plugins that are not installed.")
def lock(session: CliSession, only_check: bool, prune: bool) -> None:
    """Record every installed plugin in the lock file, and print the file.

    It records version, plugin.yaml and code. It grants nothing.

    Decisions stay; additional requests still wait. Exit code 5 if there is nothing to lock.
    """
    if only_check and prune:
        raise click.UsageError("--check changes nothing, so it cannot prune")
    from tavern_core.kernel.grants.lock_file import render_lock
    from tavern_core.kernel.plugins.lock_check import lock_path

    path = lock_path(session.loaded())
    records = _records_of(path)
    host = session.host("none", deciding=not only_check)
    behind = host.unlocked()
    absent = sorted(records.keys() - host.plugins.keys())
    if not only_check:
        records = host.lock(prune=prune)
    print_note(str(path))
    for name in absent if not (prune and not only_check) else ():
        print_problem(
            "warning",
            "PLUGIN_NOT_FOUND",
            f"{name} is in the lock file, but not installed",
            "tavern plugins lock --prune",
        )
    shown = {name: _record_json(record) for name, record in sorted(records.items())}
    session.out.result({"path": str(path), "behind": behind, "notInstalled": absent, "plugins": shown})
    if only_check:
        session.out.table(("plugin", "why it differs from the lock file"), sorted(behind.items()))
    elif records:
        session.out.text(_text(path) or render_lock(records))
    if only_check and behind:
        raise ReportedExit(FAILED)
    if not records and not behind:
        raise nothing_found("there is nothing to lock")


def _records_of(path: Path) -> Mapping[str, GrantRecord]:
    from tavern_core.errors import StateDamaged
    from tavern_core.kernel.grants.grant_store import GrantStore

    before = GrantStore(path).read()
    if before.is_damaged:
        raise StateDamaged(
            f"{path} has errors", hint="correct it; unclear entries grant nothing", findings=before.findings
        )
    return before.records


def _text(path: Path) -> str:
    """The file with its comments."""
    from tavern_core.kernel.files.atomic_file import read_text
    from tavern_core.kernel.text.document import LARGEST_FILE

    return read_text(path, LARGEST_FILE) or ""


def _record_json(record: GrantRecord) -> dict[str, Any]:
    return {
        "version": record.version,
        "manifestHash": record.manifest_hash,
        "artifactHash": record.artifact_hash,
        "tier": record.tier or None,
        "requested": sorted(record.requested),
        "granted": sorted(record.granted),
        "refused": sorted(record.refused),
        "scopes": {name: list(scope) for name, scope in sorted(record.scopes.items())},
        "grantedAt": record.granted_at,
        "grantedBy": record.granted_by,
    }
