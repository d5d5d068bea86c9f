"""Keeps the plugins of a host as they should be: after the start, after a decision, and when files have changed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from tavern_core.errors import PluginError
from tavern_core.kernel.foundation import Foundation
from tavern_core.kernel.hooks.quarantine import Quarantine
from tavern_core.kernel.plugins.host_registries import ImportGuard
from tavern_core.kernel.plugins.lifecycle import Lifecycle
from tavern_core.kernel.plugins.plugin_diagnostics import report
from tavern_core.kernel.plugins.record import Record
from tavern_core.kernel.plugins.roster import Activate, Roster


class Reconciler:
    """Checks plugins, activates those that do not wait for their first use, and looks for new ones."""

    def __init__(
        self, base: Foundation, roster: Roster, lifecycle: Lifecycle, quarantine: Quarantine, imports: ImportGuard
    ) -> None:
        self._base = base
        self._roster = roster
        self._lifecycle = lifecycle
        self._quarantine = quarantine
        self._imports = imports

    async def start(self, activate: Activate) -> None:
        """Activate what must be active from the start."""
        self._roster.activate = activate
        records = list(self._lifecycle.records.values())
        # Without other plugins that may have nodes, the host's nodes are first needed by name.
        is_alone = all(record.candidate.fixed_id or record.candidate.source == "upstream" for record in records)
        for record in records:
            if record.candidate.fixed_id and not (record.candidate.is_nodes_alone and is_alone):
                await self._lifecycle.activate(record.name)
        self.judge()  # the host's own tools are known now: no plugin may have the name of one
        await self._activate_early()

    def judge(self) -> None:
        """Work out the state of every plugin that is not active, and list what it declares."""
        wrong_files = self._roster.judge()
        self._lifecycle.list_declared()
        self._base.diagnostics.judged([*wrong_files, *report(list(self._lifecycle.records.values()))])

    def starts_with_host(self, record: Record) -> bool:
        """Whether a plugin is activated when the host opens (DESIGN §5)."""
        return (
            (record.candidate.fixed_id and not record.candidate.is_nodes_alone)
            or self._roster.activate == "all"
            or (self._roster.activate != "none" and record.starts_early)
        )

    async def decided(self, record: Record, read_again: Callable[[], None] | None = None) -> None:
        """Apply a decision about a plugin's rights: check it again, and activate it again if it was active.

        Args:
            read_again: puts a new record in its place.
        """

        def change() -> None:
            record.broken = None  # what it lacked may be what it was granted now
            self.judge()
            self._base.signals.tools.emit()

        await self._lifecycle.renew(record.name, read_again or change, wanted=self.starts_with_host)

    def judge_again(self) -> set[str]:
        """`judge`, after another process has decided; the active plugins that run with other rights than they have now.

        What failed for want of rights may have them now.
        """
        others = self._roster.with_other_rights()
        for name in others:
            self._lifecycle.records[name].broken = None
        self.judge()
        return others

    def decided_anew(self) -> set[str]:
        """Show of upstreams what was accepted elsewhere; the plugins about whose newer files another process has decided."""
        newer, upstreams = self._roster.decided_anew()
        for candidate in upstreams:
            self._lifecycle.tools_changed(candidate.name, candidate)
        return newer

    def forget_failures(self, name: str) -> None:
        """The operator enabled or reloaded a plugin: what was held against its code is forgotten."""
        self._quarantine.forget(name)
        self._imports.forget(name)

    def read_again(self, name: str) -> None:
        """A new record for one plugin, from its files as they are now. Raises PluginError: it is no longer there."""
        self._roster.read_again(name)
        self.judge()
        self._base.signals.tools.emit()

    async def look_again(self) -> None:
        """Look for plugins again: removed or replaced ones stop, new ones are checked and started."""
        leaving, take_new = self._roster.look_again()
        for name in leaving:
            await self._lifecycle.deactivate(name)
            record = self._lifecycle.records.pop(name)
            record.candidate.unload()
            self._lifecycle.tables.registry.drop(name)
        take_new()
        self.judge()
        await self._activate_early()

    async def _activate_early(self) -> None:
        """Activate plugins that do not wait for their first use; a failure is in the record and does not affect others."""
        has_tried = False
        with self._lifecycle.burst():
            for record in list(self._lifecycle.records.values()):
                if record.usable and not record.active and self.starts_with_host(record):
                    has_tried = True
                    with suppress(PluginError):
                        await self._lifecycle.activate(record.name)
        if has_tried:
            self.judge()
