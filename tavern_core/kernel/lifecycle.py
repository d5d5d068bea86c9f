"""The life of the plugins of one host.

    found --judge--> reviewed --grants--> granted --activate--> active --stop--> stopped
                        |                    |                    |
                        +--- failed (reason) +--------------------+        disabled: by the operator
                        +--> pending_consent: something it asks for was never decided on; the rest of it works

Judging needs no plugin code (`eligibility.py`). Activating is a transaction: everything a plugin offers is collected and
checked first, then registered at once; after an error nothing of it is left. A broken plugin is a row in a table and
harms nobody else.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from tavern_core.contract.context import PluginContext, Runtime
from tavern_core.errors import (
    ActivationFailed,
    DependencyUnmet,
    HookRefused,
    PluginError,
    PluginNotFound,
    TavernError,
)
from tavern_core.kernel.candidates import Candidate
from tavern_core.kernel.contributions import SECTIONS, Contributions, named
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.doors import Doors
from tavern_core.kernel.hook_calls import HookCalls
from tavern_core.kernel.hook_table import HookTable, Implementation, read_implementations, unmarked_lookalikes
from tavern_core.kernel.modes import Mode
from tavern_core.kernel.offers import Described, Owner, describe, spec_from_mapping, specs_of
from tavern_core.kernel.records import Record
from tavern_core.kernel.registry import Entry, Registry
from tavern_core.kernel.services import Services
from tavern_core.kernel.settings_store import SettingsStore
from tavern_core.kernel.trouble import as_activation_error
from tavern_core.model.call import CallContext
from tavern_core.model.event import PLUGIN_STATE
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.tool import ToolSpec

LIFE = ("tavern_start", "tavern_stop")


class SpecCache(Protocol):
    """Remembers the tools of plugins between runs, so that they can be listed without import."""

    def store(self, candidate: Candidate, specs: tuple[ToolSpec, ...]) -> None: ...

    def load(self, candidate: Candidate) -> tuple[ToolSpec, ...] | None: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the host gives to every plugin."""

    version: str
    config: Mapping[str, Any]
    data_root: Path
    secret: Callable[[str], str]
    safe_mode: bool
    drain_s: float
    tell: Callable[[str, Mapping[str, Any], str], Awaitable[None]]
    """Announce an event: (type, data, plugin)."""


class Lifecycle:
    """Activates and stops plugins; owns their records."""

    def __init__(
        self,
        records: Mapping[str, Record],
        *,
        around: Surroundings,
        mode: Mode,
        hooks: HookTable,
        calls: HookCalls,
        registry: Registry,
        contributions: Contributions,
        settings: SettingsStore,
        cache: SpecCache,
        diagnostics: Diagnostics,
    ) -> None:
        self.records = dict(records)
        self._around = around
        self._mode = mode
        self._hooks = hooks
        self._calls = calls
        self._registry = registry
        self._contributions = contributions
        self._services = Services(contributions)
        self._settings = settings
        self._cache = cache
        self._diagnostics = diagnostics
        self._lock = threading.Lock()
        self._order: list[str] = []  # in which plugins became active; stopped in reverse

    # Looking ----------------------------------------------------------------------------------------------------------

    def record(self, name: str) -> Record:
        """The record of a plugin.

        Raises:
            PluginNotFound: there is none; names the nearest (PLUGIN_NOT_FOUND).
        """
        try:
            return self.records[name]
        except KeyError:
            raise PluginNotFound(f"there is no plugin {name!r}", hint=did_you_mean(name, self.records)) from None

    def specs(self, record: Record) -> dict[str, ToolSpec]:
        """Tools of a plugin whose definition is known without importing it: from tool files and from the last activation."""
        if record.specs is None:
            declared, findings = record.candidate.specs()
            known = {spec.name: spec for spec in self._cache.load(record.candidate) or ()}
            known |= {spec.name: spec for spec in declared}
            allowed = set(record.candidate.tool_ids)
            if findings:
                record.findings = (*record.findings, *(f for f in findings if f not in record.findings))
            record.specs = {k: v for k, v in known.items() if k in allowed}
        return record.specs

    # Activating -------------------------------------------------------------------------------------------------------

    async def activate(self, name: str) -> Record:
        """Make a plugin active; quick when it is already. Several callers, from any thread, share one activation.

        Raises:
            PluginError: it cannot be activated; the record says why.
        """
        record = self.record(name)
        if record.active:
            return record
        while True:
            with self._lock:
                if record.active:
                    return record
                if not record.usable:
                    raise _unusable(record)
                shared = record.activation
                if shared is None:
                    mine: Future[None] = Future()
                    record.activation, record.activating_thread = mine, threading.get_ident()
                    break
            await asyncio.wait([asyncio.wrap_future(shared)])
        try:
            await self._activate(record)
        except TavernError as error:
            record.fail(error)
            await self._announce(record)
            raise
        finally:
            with self._lock:
                record.activation = None
            mine.set_result(None)  # whoever waited looks at the record again
        await self._announce(record)
        return record

    def activating_here(self, record: Record) -> bool:
        """True when this very thread is in the middle of activating the plugin."""
        return record.activation is not None and record.activating_thread == threading.get_ident()

    async def _activate(self, record: Record) -> None:
        candidate, began = record.candidate, time.perf_counter()
        self._diagnostics.forget(record.name)
        for needed in candidate.facts.depends_on:
            try:
                await self.activate(needed)
            except PluginError as error:
                raise DependencyUnmet(f"{record.name} needs {needed}, which failed: {error.message}", hint=error.hint) from error
        try:
            await self._load(record)
            record.ctx = self._context(record)
            implementations = self._permitted(record)
            record.implementations = tuple(implementations)
            self._settings.withdraw(record.name)
            if "configOptions" in candidate.facts.sections:
                self._settings.declare(record.name, candidate.manifest().config_options)
            offered, described = await self._collect(record, implementations)
            entries = self._entries(record, described)
            self._commit(record, implementations, offered, entries)
            try:
                await self._start(record, offered)
            except BaseException:
                await self._stop_started(record)
                raise
        except (Exception, SystemExit, GeneratorExit) as error:
            self._roll_back(record)
            raise as_activation_error(error, candidate) from error
        except BaseException:
            self._roll_back(record)
            raise
        record.active, record.code, record.reason = True, "", _reason(record)
        record.state = "pending_consent" if record.undecided else "active"
        self._order.append(record.name)
        record.timings["activate"] = (time.perf_counter() - began) * 1000

    async def _load(self, record: Record) -> None:
        """Import the code; in a thread, because it may take seconds."""
        candidate, began = record.candidate, time.perf_counter()
        if candidate.has_code:
            inline = candidate.source in ("builtin", "object")
            record.thing = candidate.load() if inline else await self._mode.blocking(candidate.load, seconds=None)
        record.timings["import"] = (time.perf_counter() - began) * 1000

    def _context(self, record: Record) -> PluginContext:
        candidate, around = record.candidate, self._around
        doors = Doors(
            record.name, record.may, self._services, self._settings, around.secret, around.data_root
        )
        return PluginContext(
            record.name,
            candidate.facts.display_name or record.name,
            candidate.version,
            candidate.facts.description,
            candidate.source,
            around.config,
            Runtime(around.version, platform.python_version(), around.safe_mode),
            logging.getLogger(f"tavern.plugin.{record.name}"),
            candidate.folder,
            doors,
        )

    def _permitted(self, record: Record) -> list[Implementation]:
        """The plugin's hookimpls that are declared and granted.

        Raises:
            HookRefused: one is unknown, malformed or undeclared (HOOK_REFUSED).
        """
        if record.thing is None:
            return []
        for place in unmarked_lookalikes(record.thing):
            self._diagnostics.add(
                "HOOK_UNMARKED", f"{place} has the name of a hook but no @hookimpl", plugin=record.name,
                hint="write @hookimpl above it",
            )  # fmt: skip
        permitted = []
        for impl in read_implementations(record.thing, record.name):
            if self._allows(record, impl):
                permitted.append(replace(impl, plugin=record.name, ctx=record.ctx))
        return permitted

    def _allows(self, record: Record, impl: Implementation) -> bool:
        hook = impl.hook
        if not hook.is_called:
            self._diagnostics.add(
                "HOOK_RESERVED", f"{hook.name} is reserved: this version of the host does not call it", plugin=record.name,
                hint=f"see {impl.where}",
            )  # fmt: skip
            return False
        if record.candidate.implicit or hook.name in LIFE or hook.section == "tools":
            return True
        requested = record.candidate.requested
        if hook.section:
            if hook.section not in record.candidate.facts.sections:
                raise HookRefused(
                    f"{record.name}: {impl.where}: {hook.name} is not declared in plugin.yaml",
                    hint=f"add the line `{hook.section}: [<names>]`",
                )
            return True
        if not any(p in requested for p in hook.permissions):
            raise HookRefused(
                f"{record.name}: {impl.where}: {hook.name} is not declared in plugin.yaml",
                hint=f'add to permissions.hooks the line `- "{hook.permissions[0]}"`',
                missing=list(hook.permissions),
            )
        if impl.tryfirst and not record.may("tryfirst"):
            raise HookRefused(
                f"{record.name}: {impl.where}: {hook.name} asks for tryfirst without the right to",
                hint="add to permissions the line `tryfirst: true` and have it granted, or leave tryfirst out",
            )
        if any(record.may(p) for p in hook.permissions):
            return True
        self._diagnostics.add(
            "HOOK_NOT_GRANTED",
            f"{hook.name} ({impl.where}) is not used: {hook.permissions[0]} is not granted",
            plugin=record.name,
            hint=f"tavern plugins grant {record.name} {hook.permissions[0]}",
        )
        return False

    async def _collect(
        self, record: Record, implementations: list[Implementation]
    ) -> tuple[dict[str, dict[str, Any]], list[Described]]:
        """Ask the plugin for everything it offers, and check it; nothing is registered yet."""
        answers: dict[str, list[Any]] = {}
        for impl in implementations:
            if impl.hook.kind == "contribute" and impl.hook.name not in LIFE:
                answers.setdefault(impl.hook.name, []).append(await self._calls.ask(impl, {}, self._mode))
        offered: dict[str, dict[str, Any]] = {}
        for section, hook in SECTIONS.items():
            for answer in answers.get(hook, ()):
                found = named(section, answer, record.name)
                _refuse_undeclared(record, section, found)
                offered.setdefault(section, {}).update(found)
        for answer in answers.get("tavern_register_settings", ()):
            self._settings.declare(record.name, tuple(answer or ()))
        owner = self._owner(record)
        described = [d for answer in answers.get("tavern_register_tools", ()) for d in describe(answer, owner)]
        return offered, described

    def _owner(self, record: Record) -> Owner:
        candidate = record.candidate
        return Owner(
            candidate.name,
            candidate.version,
            candidate.facts.aliases,
            candidate.source == "builtin",
            lambda data: spec_from_mapping(data, candidate.manifest()),
        )

    def _entries(self, record: Record, described: list[Described]) -> list[Entry]:
        """The tools that become registered, checked against what was declared.

        Raises:
            ActivationFailed: a declared id was not returned, a tool has a bad schema … (ACTIVATION_FAILED, SCHEMA_INVALID).
        """
        candidate = record.candidate
        declared = dict.fromkeys(candidate.tool_ids)
        files, findings = candidate.specs()
        record.findings = (*candidate.findings, *findings)
        entries: dict[str, Entry] = {
            spec.name: Entry(spec.name, record.name, spec, optional=spec.optional)
            for spec in files
        }
        for item in described:
            for entry in _entries_of(item, record):
                if declared and entry.id not in declared:
                    self._diagnostics.add(
                        "TOOL_UNDECLARED", f"{entry.id} is not declared in plugin.yaml and was left out", plugin=record.name,
                        hint=f"add to tools: `- {{id: {entry.id.partition(':')[2]}, implementation: {{type: python}}}}`"
                        f", or run `tavern plugins check {record.name} --write`",
                    )  # fmt: skip
                    continue
                entries[entry.id] = entry
        broken = {f.details.get("tool") for f in findings}
        missing = [i for i in declared if i not in entries and i not in broken]
        if missing and not any(d.factory and not d.names for d in described):
            raise ActivationFailed(
                f"{record.name} declares the tool {missing[0]!r} but does not offer it",
                hint="return it from tavern_register_tools, or take it out of plugin.yaml",
                missing=missing,
            )
        return list(entries.values())

    def _commit(
        self,
        record: Record,
        implementations: list[Implementation],
        offered: Mapping[str, Mapping[str, Any]],
        entries: list[Entry],
    ) -> None:
        """Register everything at once; the only step that changes what others see."""
        facts = record.candidate.facts
        self._contributions.add_all(record.name, offered, is_builtin=record.candidate.source == "builtin")
        running = [i for i in implementations if i.hook.kind != "contribute"]
        self._hooks.add(record.name, running, before=facts.before, after=facts.after)
        record.specs = {e.id: e.spec for e in entries if e.spec is not None}
        for spec in record.specs.values():
            if spec.config_schema:
                self._settings.declare(record.name, spec.config_schema, tool=spec.local_name)
        self._registry.put(record.name, record.rank, entries, aliases_of(record.candidate, record.specs))
        if record.candidate.tool_ids:
            self._cache.store(record.candidate, tuple(record.specs.values()))
        record.provides = {section: tuple(sorted(things)) for section, things in offered.items() if things}
        if entries:
            record.provides["tools"] = tuple(e.id for e in entries)
        if running:
            record.provides["hooks"] = tuple(sorted({i.hook.name for i in running}))

    async def _start(self, record: Record, offered: Mapping[str, Mapping[str, Any]]) -> None:
        for service in offered.get("services", {}).values():
            record.started.append(service)
            if service.start is not None:
                await _maybe_await(service.start())
        for impl in record.implementations:
            if impl.hook.name == "tavern_start":
                await self._calls.ask(impl, {}, self._mode)

    def _roll_back(self, record: Record) -> None:
        self._forget(record)
        entries = declared_entries(record.candidate)
        if entries:
            self._registry.put(record.name, record.rank, entries, aliases_of(record.candidate, {}))

    def _forget(self, record: Record) -> None:
        self._registry.drop(record.name)
        self._hooks.remove(record.name)
        self._contributions.remove(record.name)
        self._settings.withdraw(record.name)
        record.active = False
        record.thing = record.ctx = None
        record.implementations = ()
        record.provides = {}
        record.specs = None

    # Stopping ---------------------------------------------------------------------------------------------------------

    async def deactivate(self, name: str, *, drain: bool = True) -> int:
        """Stop a plugin: no new calls, running ones get time to end, then `tavern_stop`, services in reverse.

        Returns:
            How many of its calls were still running when the time was over.
        """
        record = self.record(name)
        if not record.active:
            return 0
        self._registry.drop(name)
        left = await self._drained(record) if drain else len(record.usage.calls)
        for impl in record.implementations:
            if impl.hook.name == "tavern_stop":
                await self._calls.tell([impl], {}, self._mode)
        await self._stop_started(record)
        await self._close_executors(record)
        self._forget(record)
        if name in self._order:
            self._order.remove(name)
        record.state = "stopped"
        return left

    async def close(self) -> None:
        """Stop everything, the last started first; built-in plugins last of all."""
        for name in reversed(self._order.copy()):
            await self.deactivate(name)

    async def _drained(self, record: Record) -> int:
        """Wait until no call of the plugin is running, for at most the drain time."""
        end = time.monotonic() + self._around.drain_s
        pause = 0.001
        while record.usage.calls and time.monotonic() < end:
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.05)
        if left := len(record.usage.calls):
            self._diagnostics.add(
                "CALLS_STILL_RUNNING", f"{left} calls were still running after {self._around.drain_s:g} s", plugin=record.name,
                hint="raise limits.drainMs, or give its tools a timeout",
            )  # fmt: skip
        return len(record.usage.calls)

    async def _stop_started(self, record: Record) -> None:
        while record.started:
            service = record.started.pop()
            if service.stop is None:
                continue
            try:
                await _maybe_await(service.stop())
            except Exception as error:  # noqa: BLE001 - one service that fails to stop must not keep the others running
                self._diagnostics.add(
                    "SERVICE_STOP_FAILED", f"service {service.name!r} failed to stop: {error!r}", plugin=record.name,
                    severity="error",
                )  # fmt: skip

    async def _close_executors(self, record: Record) -> None:
        """An executor that keeps processes or connections has a `close`, sync or async."""
        for kind, executor in self._contributions.all("executors").items():
            close = getattr(executor, "close", None)
            if self._contributions.owner("executors", kind) != record.name or not callable(close):
                continue
            try:
                await _maybe_await(close())
            except Exception as error:  # noqa: BLE001 - the plugin is stopped all the same
                self._diagnostics.add(
                    "EXECUTOR_CLOSE_FAILED", f"executor {kind!r} failed to close: {error!r}", plugin=record.name,
                    severity="error",
                )  # fmt: skip

    async def _announce(self, record: Record) -> None:
        await self._around.tell(PLUGIN_STATE, {"state": record.state, "reason": record.reason}, record.name)


def declared_entries(candidate: Candidate) -> list[Entry]:
    """What can be listed of a plugin that is not active."""
    return [Entry(tool_id, candidate.name) for tool_id in candidate.tool_ids]


def aliases_of(candidate: Candidate, specs: Mapping[str, ToolSpec]) -> dict[str, str]:
    """Other id → id, from the manifest and the tools."""
    found = {
        alias: f"{candidate.name}:{target.rpartition(':')[2]}" for alias, target in candidate.facts.aliases.items()
    }
    for spec in specs.values():
        found |= dict.fromkeys(spec.aliases, spec.name)
    return found


def _entries_of(item: Described, record: Record) -> list[Entry]:
    if item.spec is not None:
        from tavern_core.schema.check import check_schema

        errors = [f for f in check_schema(item.spec.input_schema, item.spec.name) if f.severity == "error"]
        if item.spec.output_schema is not None:
            errors += [
                f for f in check_schema(item.spec.output_schema, f"{item.spec.name} output", output=True) if f.severity == "error"
            ]
        if errors:
            raise ActivationFailed(f"{item.spec.name}: {errors[0]}", hint=errors[0].hint, findings=tuple(errors))
        return [Entry(item.spec.name, record.name, item.spec, optional=item.spec.optional)]
    factory = item.factory
    assert factory is not None
    names = item.names
    if not names:
        names = tuple(spec.name for spec in _probe(factory, record))
    return [Entry(name, record.name, factory=factory, optional=factory.optional) for name in names]


def _probe(factory: Any, record: Record) -> list[ToolSpec]:
    """What a factory without `names` makes for the host itself; needed to know its ids."""
    made = factory.make(CallContext(principal="host", config=record.ctx.config if record.ctx else None))
    owner = Owner(record.name, record.candidate.version, record.candidate.facts.aliases)
    return [] if made is None else specs_of(made, owner)


def _refuse_undeclared(record: Record, section: str, found: Mapping[str, Any]) -> None:
    if record.candidate.implicit:
        return
    declared = record.candidate.facts.declared.get(section, ())
    if declared and (extra := sorted(found.keys() - set(declared))):
        raise ActivationFailed(
            f"{record.name} offers {section[:-1]} {extra[0]!r}, which plugin.yaml does not declare",
            hint=f"add it: {section}: [{', '.join(sorted({*declared, *extra}))}]",
        )


def _unusable(record: Record) -> PluginError:
    how = f"tavern plugins enable {record.name}" if record.state == "disabled" else "tavern doctor"
    return PluginError(f"plugin {record.name} is {record.state}: {record.reason}", hint=how, state=record.state)


def _reason(record: Record) -> str:
    if record.undecided:
        return f"asks for {', '.join(sorted(record.undecided))}; decide with `tavern plugins grant {record.name}`"
    return ""


async def _maybe_await(answer: Any) -> None:
    if isinstance(answer, Awaitable):
        await answer


