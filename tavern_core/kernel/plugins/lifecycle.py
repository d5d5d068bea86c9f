"""The lifecycle of the plugins of one host.

    found --judge--> reviewed --grants--> granted --activate--> active --stop--> stopped
                        |                    |                    |
                        +--- failed (reason) +--------------------+        disabled: by the operator
                        +--> pending_consent: a request has no decision; the rest of the plugin works

Checking needs no plugin code (`eligibility.py`). Activation is a transaction (`activation.py`). Only one caller at a
time changes a plugin (`PluginTransitions`). The dependencies of a plugin are activated before it and stop after it. A
broken plugin keeps its entry with the reason, and does not affect others.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace

from tavern_core.contract.permissions import TIER, TRUST
from tavern_core.errors import ActivationFailed, DependencyUnmet, PluginError, PluginNotFound, SettingsInvalid
from tavern_core.kernel.grants.grant_store import GrantStore
from tavern_core.kernel.hooks.event_emitter import EventEmitter
from tavern_core.kernel.plugins import activation, deactivation
from tavern_core.kernel.plugins.candidate import PluginCandidate
from tavern_core.kernel.plugins.eligibility import missing_reason, undecided_reason
from tavern_core.kernel.plugins.host_registries import HostRegistries, ImportGuard
from tavern_core.kernel.plugins.lock_check import decision_at_activation
from tavern_core.kernel.plugins.plugin_record import PluginCondition, PluginRecord, PluginRecords
from tavern_core.kernel.plugins.registry_entries import aliases_of, offered_entries
from tavern_core.kernel.registry import RegistryEntry
from tavern_core.model.event import PLUGIN_CHANGED, PLUGIN_STATE
from tavern_core.model.naming_rules import split_id
from tavern_core.model.nearest import did_you_mean
from tavern_core.schema.secret_scanning import redact_sentence

_mine: ContextVar[frozenset[Future[None]]] = ContextVar("tavern_transitions", default=frozenset())
"""The changes within which the running code is; hooks run in threads, and listeners start tasks, with a copy of this set."""


class PluginTransitions:
    """The running changes of a host's plugins: one at a time for each plugin, across threads and event loops.

    ``async with transitions.of("text"):`` waits for the running change; then only the block changes the plugin.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, Future[None]] = {}

    def under_way(self, name: str) -> bool:
        """Whether the plugin is being changed."""
        return name in self._running

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """Hold the exclusive right to change the plugin.

        Raises:
            PluginError: the caller runs inside a change of the same plugin, and would wait for itself (PLUGIN_FAILED).
        """
        while True:
            with self._lock:
                before = self._running.get(name)
                if before is None:
                    transition = self._running[name] = Future()
                    break
            if before in _mine.get():
                raise PluginError(
                    f"{name} cannot be used by its own code while it is being activated or stopped",
                    hint="do it when a tool is called",
                )
            # Not awaited directly: cancelling one waiter must not cancel what others wait for.
            await asyncio.wait([asyncio.wrap_future(before)])
        token = _mine.set(_mine.get() | {transition})
        try:
            yield
        finally:
            _mine.reset(token)
            with self._lock:
                del self._running[name]
            transition.set_result(None)


class Lifecycle:
    """Activates and stops plugins, and updates their records."""

    def __init__(
        self,
        records: PluginRecords,
        tables: HostRegistries,
        grants: GrantStore,
        imports: ImportGuard,
    ) -> None:
        self.records = records
        self.tables = tables
        self._grants = grants
        self._imports = imports
        self.events = EventEmitter(tables.base, tables.hooks, tables.calls)
        self._transitions = PluginTransitions()
        self._listing = threading.Lock()
        self._declared: dict[str, tuple[PluginCandidate, tuple[RegistryEntry, ...]]] = {}
        self._order: list[str] = []  # the order of activation; plugins stop in reverse

    # Looking ----------------------------------------------------------------------------------------------------------

    def record(self, name: str) -> PluginRecord:
        """The record of a plugin.

        Raises:
            PluginNotFound: it does not exist; names the nearest (PLUGIN_NOT_FOUND).
        """
        if name not in self.records:
            raise PluginNotFound(f"there is no plugin {name!r}", hint=did_you_mean(name, self.records))
        return self.records[name]

    def is_changing(self, name: str) -> bool:
        """Whether a plugin is being activated or stopped."""
        return self._transitions.under_way(name)

    def list_declared(self) -> None:
        """Register the declarations of inactive plugins, so that they can be seen, and used on first call."""
        with self._listing:
            changes: dict[str, tuple[int, tuple[RegistryEntry, ...], Mapping[str, str]]] = {}
            have_values = self.tables.settings.plugins_with_values()
            for record in list(self.records.values()):
                if record.claimed:
                    continue
                entries = self._entries_of(record.candidate) if record.state != "disabled" else ()
                changes[record.name] = record.rank, entries, aliases_of(record.candidate, {})
                self._declare_settings(record, has_values=record.name in have_values)
            self.tables.registry.put_all(changes)

    def _entries_of(self, candidate: PluginCandidate) -> tuple[RegistryEntry, ...]:
        """The entries that it declares; cached, because everything is listed several times while a host opens."""
        known = self._declared.get(candidate.name)
        if known is None or known[0] is not candidate:
            known = self._declared[candidate.name] = (
                candidate,
                tuple(RegistryEntry(tool_id, candidate.name) for tool_id in candidate.tool_ids),
            )
        return known[1]

    def tools_changed(self, name: str, candidate: PluginCandidate) -> None:
        """Replace the tools of a plugin without code by their new declarations; running calls continue."""
        if (record := self.records.get(name)) is None or record.candidate.source != candidate.source:
            return
        with self._listing:
            record.candidate, record.specs = candidate, None
            if record.active:
                entries = offered_entries(record, (), self.tables.diagnostics)
                specs = {entry.id: entry.spec for entry in entries if entry.spec is not None}
                self.tables.registry.put(name, record.rank, entries, aliases_of(candidate, specs))
                record.provides["tools"] = tuple(entry.id for entry in entries)
        if not record.active:
            self.list_declared()
        self.tables.base.signals.tools.emit()  # the ids may be the same

    def _declare_settings(self, record: PluginRecord, *, has_values: bool) -> None:
        """Declare the settings of an inactive plugin, so that they can be seen and changed.

        Plugins from files were checked when found. Their settings are declared on first use (`PluginSettings`), or now
        if a value is stored for one of them: it may be secret or invalid.
        """
        settings = self.tables.settings
        if record.has_settings and self.is_changing(record.name):
            settings.outdate(record.name)  # they can be saved meanwhile
        else:
            settings.withdraw(record.name)
        record.settings_complete = False
        is_checked = record.candidate.source != "object"
        if is_checked and not has_values:
            return
        if record.has_settings and "configOptions" in record.candidate.facts.sections:
            try:
                settings.declare(record.name, record.candidate.origin.manifest().config_options)
            except SettingsInvalid as error:
                record.activation_error = error
                record.apply_decision(record.failed(error))

    # Activating -------------------------------------------------------------------------------------------------------

    async def activate(self, name: str, *, wait: bool = True) -> PluginRecord:
        """Activate a plugin; quick if it is active. Several callers, from any thread, share one activation.

        Args:
            wait: False for a nested call: stopping the calling tool's plugin waits for the call.

        Raises:
            PluginError: it cannot be activated; the record says why.
        """
        record = self.record(name)
        if record.active:
            return record
        if not wait and record.state == "stopped" and self._transitions.under_way(name):
            raise PluginError(f"plugin {name} is being stopped", hint="call again", state=record.state)
        async with self._change_of(name):
            return await self._bring_up(name)

    @asynccontextmanager
    async def _change_of(self, name: str) -> AsyncIterator[None]:
        """`PluginTransitions.of`; meanwhile, the settings of the plugin can be saved."""
        async with self._transitions.of(name):
            try:
                yield
            finally:
                self.tables.settings.drop_outdated(name)

    async def activate_all(self, wanted: Callable[[PluginRecord], bool]) -> bool:
        """Activate all plugins for which `wanted` is true and that can be activated.

        A failure affects no other plugin; its record gives the reason.

        Returns:
            Whether there was such a plugin.
        """
        has_tried = False
        with self.tables.cache.burst():
            for record in list(self.records.values()):
                if record.can_start and wanted(record):
                    has_tried = True
                    await self._try(record.name)
        return has_tried

    async def activate_section(self, section: str) -> None:
        """Activate the plugins that declare something in a section."""
        await self.activate_all(lambda record: section in record.candidate.facts.sections)

    async def hooks_ready(self, *, wait: bool = True) -> None:
        """Activate every plugin that was granted a hook, so that no call misses one during a reload.

        Args:
            wait: as for `activate`.

        Raises:
            PluginError: a plugin with a gate is being changed, and the caller cannot wait for it (PLUGIN_FAILED).
        """
        for record in list(self.records.values()):
            if record.active or not record.uses_hooks:
                continue
            if wait and self._transitions.under_way(record.name):
                async with self._change_of(record.name):
                    record = self.records.get(record.name, record)
            if record.active or not record.usable:
                continue
            if not wait and record.has_gate:
                raise PluginError(f"plugin {record.name}, which checks every call, is being changed", hint="call again")
            if wait:
                try:
                    await self.activate(record.name)
                except PluginError:
                    continue  # the record gives the reason; the gate of a failed plugin refuses the call

    async def _bring_up(self, name: str) -> PluginRecord:
        """Activate within a transition."""
        record = self.record(name)
        if record.active:
            return record
        if not record.usable:
            raise unusable(record)
        self.tables.diagnostics.forget(name)
        try:
            with self.tables.cache.burst():
                await self._bring_up_needed(record)
                await self._look_at(record)
                with self._listing:
                    record.claimed = True
                begun = record.condition  # later decisions are applied once the plugin is active
                await activation.activate(record, self.tables, self._imports)
        except PluginError as error:
            error.message = redact_sentence(
                error.message, self.tables.settings.known_secrets.values
            )  # the hint quotes an error of the plugin's code
            error.args = (error.message,)
            if _waits_for(error.details.get("missing"), record.condition.undecided):
                error.hint = f"tavern plugins grant {name}"  # rather than one right after the other
            if not isinstance(error, DependencyUnmet):  # dependencies are checked again after every change
                record.activation_error = error
            self.tables.diagnostics.add(error.code, error.message, plugin=name, hint=error.hint, severity="error")
            record.became(record.failed(error), active=False)
            self.list_declared()
            await self.announce(record)
            raise
        except BaseException:
            self.list_declared()
            raise
        self._order.append(name)
        record.paused = False
        record.became(_standing_of(record, begun), active=True)
        await self.announce(record)
        return record

    async def _look_at(self, record: PluginRecord) -> None:
        """Compare the code that is about to run with the reviewed code; report a difference.

        Raises:
            LockMismatch: they differ, and the host is locked (LOCK_MISMATCH).
        """
        files = (
            record.candidate.origin.fingerprint() if TRUST.id in record.candidate.requested else None
        )  # before they are hashed
        decision = decision_at_activation(record.candidate, self._grants)
        if decision is None:
            return
        record.trusted_files = files
        record.note_changes(changed=decision.changed, note=decision.note)
        if TRUST.id in record.candidate.requested - decision.granted:
            skill = record.candidate.facts.display_name
            raise ActivationFailed(
                f"the files of the skill {skill} are not those that were trusted", hint=f"tavern skills trust {skill}"
            )
        if decision.note:
            if change := record.changed_since_review():
                self.tables.diagnostics.put(change)
            data = {"note": decision.note, "changed": sorted(decision.changed), "version": record.candidate.version}
            await self.events.emit(PLUGIN_CHANGED, data, record.name)

    async def _bring_up_needed(self, record: PluginRecord) -> None:
        if replaces := frozenset(filter(record.may_override, record.candidate.overrides)):
            # The replaced service must exist for the comparison; whether it works is its own matter.
            await self.activate_all(lambda other: other is not record and _offers_one(other, replaces))
        drafts = record.read_tools().drafts
        if any(split_id(str(draft.implementation.get("nodeType", "")))[0] == "core" for draft in drafts):
            # Its tools run nodes of the host, which determine their parameters.
            await self.activate_all(lambda other: other.candidate.is_nodes_alone)
        for needed in record.candidate.facts.depends_on:
            try:
                await self.activate(needed)
            except PluginError as error:
                raise DependencyUnmet(
                    f"{record.name} needs {needed}, which failed: {error.message}", hint=error.hint
                ) from error

    # Stopping ---------------------------------------------------------------------------------------------------------

    async def deactivate(self, name: str) -> None:
        """Stop a plugin after the plugins that depend on it; running calls get time to end."""
        for other in self._dependents(name):
            await self.deactivate(other)
            if other in self.records:
                self.records[other].paused = True
        async with self._change_of(name):
            await self._bring_down(self.record(name))

    async def renew(
        self, name: str, change: Callable[[], None], *, wanted: Callable[[PluginRecord], bool]
    ) -> PluginRecord:
        """Stop a plugin, let `change` replace it, and activate again what was active.

        Calls wait meanwhile. Dependent plugins are stopped before and activated again after.

        Args:
            change: may replace the record; checks it.
            wanted: whether to activate the plugin even if it was not active.

        Raises:
            PluginError: it cannot be activated now; the record says why.
        """
        dependents = self._dependents(name)
        for other in dependents:
            await self.deactivate(other)
        try:
            async with self._change_of(name):
                was_active = self.record(name).active
                await self._bring_down(self.record(name))
                change()
                record = self.record(name)
                if record.usable and (was_active or wanted(record)):
                    await self._bring_up(name)
                return record
        finally:
            for other in reversed(dependents):
                await self._try(other)

    async def resume(self, wanted: Callable[[PluginRecord], bool]) -> None:
        """Activate plugins that waited for another one or should be active."""
        await self.activate_all(lambda record: record.paused or wanted(record))

    async def close(self) -> None:
        """Stop everything, the last started first; built-in plugins last of all."""
        for name in reversed(self._order.copy()):
            if name in self.records:
                await self.deactivate(name)

    async def _bring_down(self, record: PluginRecord) -> None:
        """Stop within a transition. Findings from its use are removed; findings from stopping it are kept."""
        self.tables.diagnostics.forget(record.name)
        if not record.active:
            return
        record.became(replace(record.condition, state="stopped", reason=""), active=False)
        try:
            await deactivation.stop(record, self.tables, self.tables.base.config.limits.drain_ms / 1000)
        finally:
            self._order.remove(record.name)
        await self.announce(record)

    def _dependents(self, name: str) -> list[str]:
        """The active plugins that depend on this one, last activated first."""
        return [
            other for other in reversed(self._order)
            if other in self.records and name in self.records[other].candidate.facts.depends_on
        ]  # fmt: skip

    async def _try(self, name: str) -> None:
        try:
            if name in self.records and self.records[name].usable:
                await self.activate(name)
        except PluginError:
            return  # the record gives the reason

    async def announce(self, record: PluginRecord) -> None:
        """Report the current state of a plugin to listeners."""
        if record.candidate.fixed_id:
            return  # the host's own plugins start and stop with it, which needs no event
        await self.events.emit(PLUGIN_STATE, {"state": record.state, "reason": record.reason}, record.name)


def _offers_one(record: PluginRecord, services: frozenset[str]) -> bool:
    """Whether a plugin declares one of these services as its own."""
    candidate = record.candidate
    declared = candidate.facts.declared.get("services", ())
    return not services.isdisjoint(declared) and services.isdisjoint(candidate.overrides)


def _waits_for(missing: object, undecided: Collection[str]) -> bool:
    """Whether a refused permission, or another one for the same object, waits for a decision."""
    objects = {_object(permission) for permission in undecided}
    return isinstance(missing, list) and any(isinstance(one, str) and _object(one) in objects for one in missing)


def _object(permission: str) -> tuple[str, str]:
    """``service:use:clock`` → service, clock."""
    return permission.partition(":")[0], permission.rpartition(":")[2]


def _standing_of(record: PluginRecord, begun: PluginCondition) -> PluginCondition:
    undecided, candidate = begun.undecided, record.candidate
    missing = (
        frozenset()
        if candidate.implicit
        else candidate.requested - begun.granted | ({TIER.id} if begun.kept_apart else frozenset())
    )
    return replace(
        begun,
        state="pending_consent" if undecided else "active",
        reason=undecided_reason(record.name, undecided) if undecided else missing_reason(record.name, missing),
        code="",
        findings=candidate.findings,
    )


def unusable(record: PluginRecord) -> PluginError:
    """The error of a plugin that cannot be used now, with the repair."""
    text = f"plugin {record.name} is {record.state}: {record.reason}"
    return PluginError(text, hint=record.fix, state=record.state)
