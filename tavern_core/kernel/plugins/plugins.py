"""`tavern.plugins`: all plugins with state and reason; and the operator's actions on them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, ItemsView, Iterator, Mapping, ValuesView
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from tavern_core.errors import PluginError, UsageError
from tavern_core.kernel.plugins.consent import Consent, user_name
from tavern_core.kernel.plugins.enabled_state import PluginStates
from tavern_core.kernel.plugins.host_registries import ImportGuard
from tavern_core.kernel.plugins.lifecycle import Lifecycle, unusable
from tavern_core.kernel.plugins.plugin_record import PluginRecord
from tavern_core.kernel.plugins.reconciler import Reconciler
from tavern_core.model.plugin_status import PluginStatus


class Plugins(Mapping[str, PluginStatus]):
    """Plugin name → status, in order of precedence. Actions are coroutines; with `_sync`, they block."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        consent: Consent,
        reconciler: Reconciler,
        states: PluginStates,
        imports: ImportGuard,
    ) -> None:
        base = lifecycle.tables.base
        self._lifecycle = lifecycle
        self._consent = consent
        self._reconciler = reconciler
        self._states = states
        self._off = set(states.disabled())
        """The disabled plugins that `catch_up` knows of."""
        self._on_again: set[str] = set()
        """Plugins that another process enabled again, and whose files have not been read since."""
        self._outdated: set[str] = set()
        """Plugins whose newer files another process has decided about."""
        self._quarantine = lifecycle.tables.calls.quarantine
        self._imports = imports
        self._wait = base.portal.run
        self._ready = base.portal.check
        self._changed = base.signals.tools.emit

    def __getitem__(self, name: str) -> PluginStatus:
        if name not in self._lifecycle.records:
            raise KeyError(name)
        return self._status(self._lifecycle.records[name])

    def values(self) -> ValuesView[PluginStatus]:
        """All current statuses; not affected by the removal of a plugin in the meantime."""
        return self._picture().values()

    def items(self) -> ItemsView[str, PluginStatus]:
        """All current names and statuses."""
        return self._picture().items()

    def _picture(self) -> dict[str, PluginStatus]:
        return {name: self._status(record) for name, record in self._lifecycle.records.items()}

    def _status(self, record: PluginRecord) -> PluginStatus:
        needs = tuple(record.candidate.facts.depends_on)
        status = replace(record.status(), resting=self._quarantine.of(record.name), depends_on=needs)
        if record.active or not record.usable or (refusal := self._imports.refusal(record.candidate)) is None:
            return status
        return replace(
            status, refusal=refusal, reason="; ".join(filter(None, (status.reason, refusal.message, refusal.hint)))
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._lifecycle.records)

    def __len__(self) -> int:
        return len(self._lifecycle.records)

    async def activate(self, name: str) -> PluginStatus:
        """Activate a plugin now instead of on first use.

        Raises:
            PluginNotFound: it does not exist (PLUGIN_NOT_FOUND).
            PluginError: it cannot be activated; the status says why.
        """
        self._ready()
        return (await self._lifecycle.activate(name)).status()

    async def activate_all(self) -> None:
        """Activate all plugins that can be activated; failures are in the statuses."""
        self._ready()
        await self._lifecycle.activate_all(lambda record: True)

    async def disable(self, name: str, *, reason: str = "") -> PluginStatus:
        """Stop a plugin (running calls get time to end) and keep it disabled, also in later runs."""
        record = self._changeable(name)
        self._states.disable(name, reason=reason, by=user_name())
        self._off.add(name)
        await self._stop(record)
        return record.status()

    async def _stop(self, record: PluginRecord) -> None:
        """Stop a plugin that was disabled."""
        record.paused = False
        await self._lifecycle.deactivate(record.name)
        await self._check_again()
        await self._lifecycle.announce(record)

    async def catch_up(self) -> bool:
        """Apply decisions of other processes; False: a plugin is being changed, so try again."""
        disabled = set(self._states.disabled())
        self._on_again = (self._on_again | (self._off - disabled)) - disabled
        self._off = disabled
        await self._read_what_is_on_again()
        records = [record for record in self._lifecycle.records.values() if not record.candidate.fixed_id]
        inactive = {record.name for record in records if not record.active}
        # First: plugins that are activated from now on get their current rights.
        others = self._reconciler.check_plugins_again()
        newer = await asyncio.to_thread(self._reconciler.decided_anew)  # compares every tool of upstreams that changed
        self._outdated |= newer

        async def caught_up(record: PluginRecord) -> bool:
            name = record.name
            if self._lifecycle.is_changing(name) or (record.active and name in inactive):
                return False  # plugins that became active meanwhile were not compared with the current decisions
            await self._caught_up(record, is_off=name in disabled, has_other_rights=name in others)
            return True

        # Concurrently, so that none waits for the running calls of another.
        are_done = await asyncio.gather(*map(caught_up, records))
        await self._check_again()
        await self._lifecycle.resume(self._reconciler.starts_with_host)
        return all(are_done)

    async def _read_what_is_on_again(self) -> None:
        """Read plugins that were enabled again, before they can be used: their code may have changed meanwhile."""
        for name in sorted(self._on_again):
            record = self._lifecycle.records.get(name)
            if record is None or not (record.active or self._lifecycle.is_changing(name)):
                self._on_again.discard(name)
                if record is not None:
                    with suppress(PluginError):  # the record gives the reason, or the plugin no longer exists
                        await self._renewed(record)

    async def _caught_up(self, record: PluginRecord, *, is_off: bool, has_other_rights: bool) -> None:
        is_on_again, is_outdated = record.name in self._on_again, record.name in self._outdated
        self._on_again.discard(record.name)
        self._outdated.discard(record.name)
        if is_off and record.active:
            await self._stop(record)
            return
        with suppress(PluginError):  # the record gives the reason, or the plugin no longer exists
            if record.active and (has_other_rights or is_on_again):
                read_again = partial(self._read_again, record) if is_outdated or is_on_again else None
                await self._reconciler.decided(record, read_again)
            elif not record.active and (is_on_again or is_outdated):
                await self._renewed(record)

    async def enable(self, name: str) -> PluginStatus:
        """Allow a disabled or failed plugin again: it starts now if it starts with the host, else on first use.

        Its files and code are read again, as by `reload`: they may have changed meanwhile.

        Raises:
            PluginError: it no longer exists, or should start now and cannot; the status says why.
        """
        record = self._changeable(name)
        record.candidate.end_pause()
        self._states.enable(name)
        self._off.discard(name)
        self._forget_failures(name)
        record.activation_error = None
        record = await self._renewed(record)
        await self._check_again()
        if record.can_start and (record.paused or self._reconciler.starts_with_host(record)):
            await self._lifecycle.activate(name)
        else:
            await self._lifecycle.announce(record)
        await self._lifecycle.resume(self._reconciler.starts_with_host)
        return record.status()

    async def reload(self, name: str) -> PluginStatus:
        """Stop a plugin, read its files and code again, and activate it again if it was active. Calls wait meanwhile.

        Raises:
            UsageError: it has no files: an upstream, or an object that the program passed (USAGE).
            PluginError: it no longer exists, or its new form cannot be activated; the status gives the reason.
        """
        record = self._changeable(name)
        origin = record.candidate.origin
        if not origin.can_reload:
            raise UsageError(f"{name} {origin.why_not_reloaded}", hint=origin.instead_of_reload)

        def change() -> None:
            record.candidate.end_pause()
            self._forget_failures(name)
            self._read_again(record)

        try:
            record = await self._lifecycle.renew(name, change, wanted=self._reconciler.starts_with_host)
            if record.state == "failed":  # its plugin.yaml is now invalid; an error of its code was raised by `renew`
                raise unusable(record)
            return record.status()
        finally:
            await self._check_again()
            await self._lifecycle.resume(self._reconciler.starts_with_host)

    async def grant(self, name: str, *permissions: str, all_requested: bool = False) -> PluginStatus:
        """Grant requests of a plugin, in the lock file.

        Args:
            permissions: ids, aliases, or patterns such as ``hook:*``; ``danger:*`` only by its full name.
            all_requested: instead of names: all requests except ``danger:*``. A separate argument, because a list that
                a program computed may be empty, which must not mean all.

        Raises:
            PluginNotFound, UsageError: no such plugin, it does not request that, or no permission is named.
        """
        self._ready()
        await self._consent.grant(name, permissions, all_requested=all_requested)
        return self._lifecycle.record(name).status()

    async def refuse(self, name: str, *permissions: str) -> PluginStatus:
        """Record in the lock file that requests of a plugin are refused, so that they are no longer pending.

        Raises:
            PluginNotFound, UsageError: no such plugin, or it does not request that.
        """
        self._ready()
        await self._consent.refuse(name, permissions)
        return self._lifecycle.record(name).status()

    async def revoke(self, name: str, *permissions: str) -> PluginStatus:
        """Revoke grants; all of them if no permission is named.

        Raises:
            PluginNotFound: it does not exist (PLUGIN_NOT_FOUND).
        """
        self._ready()
        await self._consent.revoke(name, permissions)
        return self._lifecycle.record(name).status()

    def activate_sync(self, name: str) -> PluginStatus:
        """`activate` for code without an event loop."""
        return self._blocking("activate", self.activate(name))

    def disable_sync(self, name: str, *, reason: str = "") -> PluginStatus:
        """`disable` for code without an event loop."""
        return self._blocking("disable", self.disable(name, reason=reason))

    def enable_sync(self, name: str) -> PluginStatus:
        """`enable` for code without an event loop."""
        return self._blocking("enable", self.enable(name))

    def reload_sync(self, name: str) -> PluginStatus:
        """`reload` for code without an event loop."""
        return self._blocking("reload", self.reload(name))

    def grant_sync(self, name: str, *permissions: str, all_requested: bool = False) -> PluginStatus:
        """`grant` for code without an event loop."""
        return self._blocking("grant", self.grant(name, *permissions, all_requested=all_requested))

    def refuse_sync(self, name: str, *permissions: str) -> PluginStatus:
        """`refuse` for code without an event loop."""
        return self._blocking("refuse", self.refuse(name, *permissions))

    def revoke_sync(self, name: str, *permissions: str) -> PluginStatus:
        """`revoke` for code without an event loop."""
        return self._blocking("revoke", self.revoke(name, *permissions))

    def _blocking(self, method: str, coroutine: Coroutine[Any, Any, PluginStatus]) -> PluginStatus:
        """Wait for a coroutine; refused inside an event loop, where running calls could then never end.

        Raises:
            UsageError: inside a running event loop (USAGE).
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._wait(coroutine)
        coroutine.close()
        raise UsageError(
            f"plugins.{method}_sync was called inside a running event loop, which it would block",
            hint=f"use `await tavern.plugins.{method}(...)`",
        )

    def _forget_failures(self, name: str) -> None:
        """Forget failures of a plugin's code, because the operator enabled or reloaded it."""
        self._quarantine.forget(name)
        self._imports.forget(name)

    def _changeable(self, name: str) -> PluginRecord:
        self._ready()
        record = self._lifecycle.record(name)
        if record.candidate.fixed_id:
            raise UsageError(f"{name} is part of the host and cannot be changed")
        return record

    async def _renewed(self, record: PluginRecord) -> PluginRecord:
        """The plugin as its files are now; it is not active. Raises PluginError: it no longer exists."""
        if record.active or not record.candidate.origin.can_reload:
            return record
        return await self._lifecycle.renew(record.name, partial(self._read_again, record), wanted=lambda _: False)

    def _read_again(self, record: PluginRecord) -> None:
        """Replace its record by a new one. Raises PluginError: it no longer exists."""
        record.candidate.unload()
        self._reconciler.read_again(record.name)
        self._lifecycle.record(record.name).paused = record.paused

    async def _check_again(self) -> None:
        """Check again: dependent plugins may have to stop, or become usable."""
        self._reconciler.check_plugins()
        for name, record in list(self._lifecycle.records.items()):
            if record.active and not _still_fit(record, self._lifecycle.records):
                await self._lifecycle.deactivate(name)
                record.paused = True
        self._reconciler.check_plugins()
        self._changed()


def _still_fit(record: PluginRecord, records: Mapping[str, PluginRecord]) -> bool:
    """Whether an active plugin can still be used; False: one of its dependencies cannot."""
    if record.candidate.fixed_id:
        return True
    return all(n in records and records[n].usable for n in record.candidate.facts.depends_on)
