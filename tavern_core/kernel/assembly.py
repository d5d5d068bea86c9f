"""Everything one host is made of, put together once.

Configuration and plugins in the box come in from above; nothing here knows which plugins those are.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tavern_core.contract.protocols import ToolHome
from tavern_core.errors import Finding, PluginError, SettingsInvalid, TavernError, ToolFailed, ToolNotFound, UsageError
from tavern_core.kernel.candidates import Candidate, builtin_candidate, object_candidate
from tavern_core.kernel.compiler import Compiler
from tavern_core.kernel.configuration import LoadedConfig, prepare_home
from tavern_core.kernel.contributions import SECTIONS, Contributions
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.discovered import IndexedSpecs, find_candidates
from tavern_core.kernel.eligibility import Circumstances, judge
from tavern_core.kernel.event_log import EventLog
from tavern_core.kernel.extensions import Extension, extension
from tavern_core.kernel.grant_store import GrantStore
from tavern_core.kernel.grants import Decision, PluginFacts, Review, decide
from tavern_core.kernel.hook_calls import HookCalls
from tavern_core.kernel.hook_table import HookTable
from tavern_core.kernel.installed import Plugins
from tavern_core.kernel.lifecycle import Lifecycle, Surroundings, aliases_of, declared_entries
from tavern_core.kernel.log_files import audit_log
from tavern_core.kernel.modes import InlineMode, LoopMode, step_by_hand
from tavern_core.kernel.pipeline import Pipeline
from tavern_core.kernel.plugin_state import PluginStates
from tavern_core.kernel.portal import Portal
from tavern_core.kernel.profile_shelf import ProfileShelf
from tavern_core.kernel.profiles import Profile, resolve_profile
from tavern_core.kernel.recorder import Recorder
from tavern_core.kernel.records import Record
from tavern_core.kernel.registry import Registry
from tavern_core.kernel.secrets import KnownSecrets
from tavern_core.kernel.services import Services
from tavern_core.kernel.setting_view import DescribedSetting
from tavern_core.kernel.settings_store import SettingsStore
from tavern_core.kernel.specs import ToolSpecs
from tavern_core.kernel.threads import Workers
from tavern_core.kernel.tools import Tools, ToolsDiff
from tavern_core.model.call import CallContext
from tavern_core.model.event import SETTINGS_CHANGED, TOOLS_CHANGED, Event
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.outcome import TextOutcome
from tavern_core.model.profile import AgentProfile
from tavern_core.model.result import ToolResult
from tavern_core.model.tool import ToolSpec

Activate = Literal["needed", "all", "none"]
PLACEHOLDER = "system:available_tools"


@dataclass
class Assembly:
    """The parts of one host."""

    loaded: LoadedConfig
    version: str
    safe_mode: bool
    builtin: Sequence[tuple[str, str]]
    given: Sequence[Any]
    portal: Portal
    diagnostics: Diagnostics
    recorder: Recorder
    known_secrets: KnownSecrets
    log: EventLog | None
    hooks: HookTable
    calls: HookCalls
    registry: Registry
    contributions: Contributions
    services: Services
    settings: SettingsStore
    states: PluginStates
    grants: GrantStore
    shelf: ProfileShelf
    workers: tuple[Workers, Workers]
    loop_mode: LoopMode
    inline_mode: InlineMode
    specs: IndexedSpecs

    _profiles: dict[str, tuple[tuple[int, int], Profile]]
    """Name → what it was resolved for, and the profile."""
    _activate: Activate
    """As the host was opened: with ``none`` a new grant starts nothing either."""
    lifecycle: Lifecycle
    tool_specs: ToolSpecs
    compiler: Compiler
    tools: Tools
    plugins: Plugins
    pipeline: Pipeline

    @classmethod
    def build(
        cls,
        loaded: LoadedConfig,
        *,
        builtin: Sequence[tuple[str, str]],
        version: str,
        given: Sequence[Any],
        safe_mode: bool,
    ) -> Assembly:
        """Put a host together; no plugin code runs.

        Raises:
            UsageError: something in `given` cannot be a plugin (USAGE).
            StateDamaged: the state folder cannot be used (STATE_DAMAGED).
        """
        self = cls.__new__(cls)
        self.loaded, self.version, self.safe_mode, self.builtin, self.given = loaded, version, safe_mode, builtin, given
        config, home = loaded.config, prepare_home(loaded)
        self.diagnostics = Diagnostics()
        for finding in loaded.findings:
            self.diagnostics.add(finding.code, str(finding), hint=finding.hint)
        self.portal = Portal()
        self.workers = Workers(config.limits.threads, "tavern-tool"), Workers(config.limits.threads, "tavern-hook")
        self.loop_mode = LoopMode(*self.workers)
        self.inline_mode = InlineMode(self.workers[1], self.portal)
        self.known_secrets = KnownSecrets()
        self.known_secrets.add(*(value for value in config.secrets.values() if isinstance(value, str)))
        self.log = _event_log(loaded, self.diagnostics, self.known_secrets) if config.audit.enabled else None
        self.recorder = Recorder(
            self.log, self.diagnostics, required=config.audit.required, arguments=config.audit.arguments
        )
        self.hooks = HookTable()
        self.calls = HookCalls(config.limits.hook_timeout_ms / 1000, self.diagnostics)
        self.registry = Registry(self.diagnostics)
        self.contributions = Contributions()
        self.services = Services(self.contributions)
        self.settings = SettingsStore(
            home / "settings.json",
            instance=config.settings,
            base_dir=loaded.base_dir,
            origins=loaded.origins,
            known=self.known_secrets,
            on_saved=self._settings_saved,
            on_finding=_keep(self.diagnostics),
        )
        self.states = PluginStates(home / "plugins.json")
        self.grants = GrantStore(lock_path(loaded))
        self.shelf = ProfileShelf([Path(p) for p in config.profiles])
        self.specs = IndexedSpecs()
        self._profiles = {}
        self._activate = "needed"
        self._put_together()
        return self

    @property
    def config(self) -> Any:
        """The host's configuration."""
        return self.loaded.config

    def _put_together(self) -> None:
        records = {c.name: Record(c, rank) for rank, c in enumerate(self._candidates())}
        self.lifecycle = Lifecycle(
            records,
            around=self._surroundings(),
            mode=self.loop_mode,
            hooks=self.hooks,
            calls=self.calls,
            registry=self.registry,
            contributions=self.contributions,
            settings=self.settings,
            cache=self.specs,
            diagnostics=self.diagnostics,
        )
        self.tool_specs = ToolSpecs(
            registry=self.registry,
            lifecycle=self.lifecycle,
            hooks=self.hooks,
            calls=self.calls,
            config=self.loaded.config,
            diagnostics=self.diagnostics,
            inline=self.inline_mode,
        )
        self.registry.on_change = self.hooks.on_change = self.recorder.on_change = self.tool_specs.changed
        self.compiler = Compiler(
            self.tool_specs,
            contributions=self.contributions,
            profiles=self.profile,
            prepare_profile=self.prepare_profile,
            recorder=self.recorder,
            known_secrets=lambda: self.known_secrets.values,
            mode=self.loop_mode,
            home_of=self._home_of,
        )
        self.tools = Tools(self.tool_specs, profiles=self._profile_now, wait=self.portal.run)
        self.plugins = Plugins(
            self.lifecycle,
            wait=self.portal.run,
            switch=self._switch,
            judge=self.judge,
            refresh=self._read_again,
            changed=self.tool_specs.changed,
        )
        self.settings.before_save = self._before_save
        self.pipeline = Pipeline.create(self.compiler, self.calls, self.recorder, self.loaded.config.limits)
        self.judge()

    def _candidates(self) -> list[Candidate]:
        """All plugins in order of precedence: built-in, passed as objects, found. A name counts once."""
        found = [builtin_candidate(name, module, self.version) for name, module in self.builtin]
        passed = [object_candidate(thing) for thing in self.given]
        names = [c.name for c in passed]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(
                    f"two of the given plugins are called {name!r}", hint="name them: Plugin(thing, name='other')"
                )
        found += passed
        found += find_candidates(self.loaded, self.diagnostics, self.specs)
        unique: dict[str, Candidate] = {}
        for candidate in found:
            winner = unique.setdefault(candidate.name, candidate)
            if winner is not candidate:
                self.diagnostics.add(
                    "NAME_CONFLICT",
                    f"plugin {candidate.name!r} is there twice: {_place(winner)} is used, {_place(candidate)} is not",
                    plugin=candidate.name,
                    hint="uninstall or rename one",
                )
        return list(unique.values())

    def _surroundings(self) -> Surroundings:
        config = self.loaded.config
        return Surroundings(
            self.version,
            config.config,
            self.loaded.home / "data",
            self._secret,
            self.safe_mode,
            config.limits.drain_ms / 1000,
            self.announce,
        )

    # Life -------------------------------------------------------------------------------------------------------------

    async def start(self, activate: Activate) -> None:
        """Activate what must be active from the start."""
        self._activate = activate
        records = list(self.lifecycle.records.values())
        for record in records:
            if record.candidate.fixed_id:
                await self.lifecycle.activate(record.name)
        self.judge()  # the host's own tools are known now: no plugin may have the name of one
        for record in records:
            if record.usable and record.candidate.may_hide_tools and not record.candidate.implicit:
                message = f"{record.name} is activated at every start: its code offers tools that plugin.yaml does not name"
                hint = f"tavern plugins check {record.name} --write"
                self.diagnostics.add("TOOLS_UNDECLARED", message, plugin=record.name, hint=hint, severity="info")
            if record.usable and not record.active and _at_open(record, activate):
                try:
                    await self.lifecycle.activate(record.name)
                except PluginError as error:
                    self.diagnostics.add(error.code, error.message, plugin=record.name, hint=error.hint, severity="error")
        self.judge()

    async def close(self) -> None:
        """Stop all plugins."""
        await self.lifecycle.close()

    def release(self) -> None:
        """Give back threads and files."""
        self.portal.close()
        for workers in self.workers:
            workers.close()
        if self.log is not None:
            self.log.close()

    def judge(self) -> None:
        """Work out the state of every plugin that is not active, and list what it declares."""
        grants = self.grants.read()
        for finding in grants.findings:
            self.diagnostics.add(finding.code, str(finding), hint=finding.hint, severity=finding.severity)
        off = self.states.disabled()
        core = {e.id.partition(":")[2] for e in self.registry.entries().values() if e.plugin.startswith("core-")}

        def decide_on(candidate: Candidate) -> Decision:
            return decide(facts_for(candidate, grants.get(candidate.name)), grants.get(candidate.name))

        def granted_to(name: str) -> frozenset[str]:
            decided = grants.get(name)
            return decided.granted if decided is not None else frozenset()

        circumstances = Circumstances(
            self.version, self.loaded.config, off, self.safe_mode, core, decide_on, granted_to
        )
        judge(self.lifecycle.records, circumstances, self.diagnostics)
        changes: dict[str, Any] = {}
        for record in self.lifecycle.records.values():
            if not record.active:
                entries = tuple(declared_entries(record.candidate)) if record.state != "disabled" else ()
                changes[record.name] = record.rank, entries, aliases_of(record.candidate, {})
                self._declare_settings(record)
        self.registry.put_all(changes)

    def _declare_settings(self, record: Record) -> None:
        """Make the settings of a plugin known that is not active, so that they can be seen and changed."""
        self.settings.withdraw(record.name)
        if record.usable and "configOptions" in record.candidate.facts.sections:
            try:
                self.settings.declare(record.name, record.candidate.manifest().config_options)
            except SettingsInvalid as error:
                record.fail(error)

    def describe_settings(self, plugin: str | None) -> list[DescribedSetting]:
        """All settings, those of tools that were never used included; see `Tavern.describe_settings`."""
        for record in self.lifecycle.records.values():
            if record.usable and not record.active and plugin in (None, record.name):
                for spec in self.lifecycle.specs(record).values():
                    if spec.config_schema:
                        self.settings.declare(record.name, spec.config_schema, tool=spec.local_name)
        return self.settings.describe(plugin)

    async def announce(self, type_: str, data: Mapping[str, Any], plugin: str) -> None:
        """Tell log, subscribers and observers of something that is no call."""
        event = self.recorder.note(type_, data, plugin)
        await self.tell(event)

    async def tell(self, event: Event) -> None:
        if observers := self.hooks.of("tavern_on_event"):
            await self.calls.tell(observers, {"event": event}, self.loop_mode)

    async def refresh(self) -> ToolsDiff:
        """Look for plugins again; see `Tavern.refresh`."""
        before = {s.id: s for s in self.tools.snapshot()}
        fresh = {c.name: (rank, c) for rank, c in enumerate(self._candidates())}
        records = self.lifecycle.records
        for name in list(records):
            record = records[name]
            gone = name not in fresh
            if gone or (record.candidate.source in ("folder", "entry_point") and fresh[name][1].stamp != record.candidate.stamp):
                await self.lifecycle.deactivate(name)
                if record.candidate.unload is not None:
                    record.candidate.unload()
                self.registry.drop(name)
                del records[name]
        for name, (rank, candidate) in fresh.items():
            if name in records:
                records[name].rank = rank
            else:
                records[name] = Record(candidate, rank)
        self.judge()
        self.tool_specs.changed()
        after = {s.id: s for s in self.tools.snapshot()}
        diff = ToolsDiff(
            tuple(sorted(after.keys() - before.keys())),
            tuple(sorted(before.keys() - after.keys())),
            tuple(sorted(k for k in after.keys() & before.keys() if after[k] != before[k])),
        )
        if diff:
            await self.announce(TOOLS_CHANGED, diff.to_json(), "")
        return diff

    def _read_again(self, name: str) -> Record:
        """A new record for one plugin, from its files as they are now."""
        fresh = {c.name: (rank, c) for rank, c in enumerate(self._candidates())}
        if name not in fresh:
            raise PluginError(f"plugin {name} is no longer there", hint="tavern plugins list")
        rank, candidate = fresh[name]
        record = self.lifecycle.records[name] = Record(candidate, rank)
        return record

    def _before_save(self, changes: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Ask the `tavern_before_save_settings` hooks; secrets are masked on the way in and kept on the way out."""
        hooks = self.hooks.of("tavern_before_save_settings")
        return step_by_hand(self.calls.change_settings(hooks, changes, self.inline_mode)) if hooks else None

    def _settings_saved(self, saved: Any) -> None:
        """Announce changed settings, secrets masked."""
        self.recorder.note(SETTINGS_CHANGED, {"changes": {c.key: c.new for c in saved.changes}}, "")

    def _switch(self, name: str, on: bool, reason: str) -> None:
        if on:
            self.states.enable(name)
        else:
            self.states.disable(name, reason=reason, by=_who())

    # Grants -----------------------------------------------------------------------------------------------------------

    def review(self, name: str) -> Review:
        """What a plugin asks for and what was decided; see `Tavern.review`."""
        candidate = self.lifecycle.record(name).candidate
        facts = facts_for(candidate, record := self.grants.read().get(name))
        if candidate.source in ("builtin", "object"):
            return Review(facts, Decision(granted=facts.requested))  # whoever passed it granted it
        asked = candidate.manifest().permissions.capabilities if candidate.requested else ()
        return Review(facts, decide(facts, record), {c.name: c.reason for c in asked if c.reason})

    def extensions(self) -> list[Extension]:
        """What usable plugins bring for the browser."""
        return [
            extension(record.candidate.manifest(), record.candidate.folder)
            for record in self.lifecycle.records.values()
            if record.usable and not record.candidate.fixed_id
        ]

    async def grant(self, name: str, permissions: Iterable[str]) -> None:
        """Grant what a plugin asks for and let it take effect."""
        record = self.lifecycle.record(name)
        self.grants.grant(facts_for(record.candidate, None), tuple(permissions) or ("*",), by=_who())
        await self._regrant(record)

    async def refuse(self, name: str, permissions: Iterable[str]) -> None:
        """Note that requests are refused and let that take effect."""
        record = self.lifecycle.record(name)
        self.grants.refuse(facts_for(record.candidate, None), tuple(permissions) or ("*",), by=_who())
        await self._regrant(record)

    async def revoke(self, name: str, permissions: Iterable[str]) -> None:
        """Take grants back and let that take effect."""
        record = self.lifecycle.record(name)
        self.grants.revoke(name, tuple(permissions) or ("*",), by=_who())
        await self._regrant(record)

    async def _regrant(self, record: Record) -> None:
        was_active = record.active
        await self.lifecycle.deactivate(record.name)
        self.judge()
        self.tool_specs.changed()
        if record.usable and (was_active or _at_open(record, self._activate)):
            await self.lifecycle.activate(record.name)

    # What tools and descriptions need -----------------------------------------------------------------------------------

    def profile(self, name: str) -> Profile:
        """An agent profile with its inventory resolved; see `prepare_profile` for what plugins bring.

        Raises:
            ProfileInvalid: there is none of that name, or its file is wrong (PROFILE_INVALID).
        """
        written, findings = self._written_profile(name)
        stamp = (self.registry.generation, id(written))
        known = self._profiles.get(name)
        if known is not None and known[0] == stamp:
            return known[1]
        namespaces = self.contributions.all("namespaces")
        resolved = resolve_profile(written, self._find_id, self.tools.known_ids(), namespaces)
        for finding in (*findings, *resolved.findings):
            self.diagnostics.add(finding.code, str(finding), hint=finding.hint)
        self._profiles[name] = stamp, resolved
        return resolved

    def _profile_now(self, name: str) -> Profile:
        """`profile` for sync code: prepared first."""
        if any(not r.active and r.usable and _brings_profiles(r) for r in self.lifecycle.records.values()):
            self.portal.run(self.prepare_profile(name))
        return self.profile(name)

    async def prepare_profile(self, name: str) -> None:
        """Activate the plugins that bring this profile, or a namespace of its inventory."""
        records = [r for r in self.lifecycle.records.values() if r.usable and not r.active]
        for record in records:
            if name in record.candidate.facts.declared.get("profiles", ()):
                await self.lifecycle.activate(record.name)
        if not any("namespaces" in r.candidate.facts.sections for r in records):
            return
        prefixes = {i.partition(":")[0] for i in self._written_profile(name)[0].tool_ids_inventory}
        for record in records:
            if not record.active and prefixes & set(record.candidate.facts.declared.get("namespaces", ())):
                await self.lifecycle.activate(record.name)

    def _written_profile(self, name: str) -> tuple[AgentProfile, tuple[Finding, ...]]:
        brought = self.contributions.get("profiles", name)
        if brought is not None and name not in self.shelf.names():
            return brought, ()
        return self.shelf.get(name)

    def _find_id(self, written: str) -> str | None:
        try:
            return self.registry.resolve(written).id
        except ToolNotFound:
            return None

    def _home_of(self, record: Record, spec: ToolSpec) -> ToolHome:
        """What an executor may know of the plugin whose tool it runs."""

        def service(name: str) -> Any:
            return self.services.get(name)

        def settings() -> Mapping[str, Any]:
            return self.settings.resolve(record.name, tool=spec.local_name)

        def load(target: str) -> Any:
            return load_handler(record, target)

        folder = record.candidate.folder
        if folder is None and record.candidate.unpack is not None:
            folder = record.candidate.unpack(self.loaded.home / "cache" / "unpacked")
        return ToolHome(record.name, folder, self.loaded.config.limits, service, settings, load)

    def _secret(self, name: str) -> str:
        return self.settings.secret(name, self.loaded.config.secrets)

    def contributions_of(self, section: str, wait: Callable[[Any], Any]) -> dict[str, Any]:
        """Everything of one section, after activating the plugins that declare some."""
        if section not in SECTIONS:
            raise UsageError(f"there is no section {section!r}", hint=did_you_mean(section, SECTIONS) or ", ".join(SECTIONS))

        async def activate_declarers() -> None:
            for record in list(self.lifecycle.records.values()):
                if record.usable and not record.active and section in record.candidate.facts.sections:
                    try:
                        await self.lifecycle.activate(record.name)
                    except PluginError:
                        continue  # the record says why

        wait(activate_declarers())
        return self.contributions.all(section)

    async def contribution(self, section: str, name: str) -> Any:
        """One thing of a section; see `Tavern.contribution`."""
        for record in sorted(self.lifecycle.records.values(), key=lambda r: r.rank):
            if name in record.candidate.facts.declared.get(section, ()):
                await self.lifecycle.activate(record.name)
                break
        return self.contributions.get(section, name)

    async def invoke_from(
        self,
        door: str,
        tool: str,
        arguments: Mapping[str, Any] | None,
        context: CallContext | None,
        purpose: str,
        timeout_ms: int | None,
    ) -> ToolResult:
        """One call that came in by another door than the API; see `Tavern.invoke_from`."""
        if timeout_ms is not None and context is None:
            try:
                context = (await self.compiler.find(tool, None)).host
            except TavernError:
                timeout_ms = None  # the call itself says why there is nothing to call
        if timeout_ms is not None and context is not None:
            context = replace(context, budget=replace(context.budget, timeout_ms=timeout_ms))
        return await self.pipeline.run(self.loop_mode, tool, arguments, context, purpose, None, door)

    def tool_schema(self, tool: str, dialect: str) -> dict[str, Any]:
        from tavern_core.schema.dialects import DIALECTS, export_tool

        if dialect not in DIALECTS:
            raise UsageError(f"there is no dialect {dialect!r}", hint=did_you_mean(dialect, DIALECTS) or ", ".join(DIALECTS))
        return export_tool(self.tools.get(tool), dialect)

    def tool_id(self, wire_name: str) -> str:
        from tavern_core.schema.dialects import WireNames

        names = WireNames(self.tools.known_ids())
        found = names.tool_id(wire_name)
        if found is None:
            raise ToolNotFound(f"no tool has the wire name {wire_name!r}", hint=did_you_mean(wire_name, names.all()))
        return found

    def whole(self, profile: str | None, context: CallContext | None) -> list[ToolSpec]:
        """The tools that a caller may see, each with its parameters: what is only declared is activated.

        A plugin that cannot be activated costs its own tools and nobody else's; its status and a diagnostic say why.
        """
        found: list[ToolSpec] = []
        for spec in self.tools.list(profile, context=context):
            try:
                found.append(spec if self.tool_specs.is_whole(spec.id) else self.tools.get(spec.id))
            except (PluginError, ToolNotFound) as error:
                self.diagnostics.add(error.code, error.message, plugin=spec.plugin, hint=error.hint, severity="error")
        return found

    def manual(
        self, profile: str | None, context: CallContext | None, query: str | None, language: Any, max_chars: int | None
    ) -> str:
        from tavern_core.kernel.manual import render_manual

        whole = self.whole(profile, context)
        if profile is not None:
            order = {tool_id: i for i, tool_id in enumerate(self.profile(profile).tools)}
            whole.sort(key=lambda s: order.get(s.id, len(order)))
        limit = max_chars or self.loaded.config.limits.manual_chars
        return render_manual(
            whole, max_chars=limit, language=language or self.loaded.config.language, query=query
        )

    def fill_prompt(self, prompt: str, profile: str | None, context: CallContext | None) -> str:
        from tavern_core.kernel.manual import fill_prompt

        if "{{{" not in prompt:
            return prompt
        return fill_prompt(prompt, {PLACEHOLDER: self.manual(profile, context, None, None, None)})

    async def run_text(self, text: str, context: CallContext | None, invoke: Any) -> TextOutcome:
        from tavern_core.kernel.transcript import Transcript

        config = self.loaded.config
        refused = self.pipeline.refused
        return await Transcript(self.tools, self.compiler, config.tam, invoke, refused, config.language).run(text, context)


def facts_for(candidate: Candidate, record: Any) -> PluginFacts:
    """What the lock file needs to know of a plugin.

    The hash of its files is only worked out for a decision: at open it is taken as reviewed when version and manifest are
    the same, because reading every file of every plugin at every start would cost more than all the rest.
    """
    same = record is not None and (record.version, record.manifest_hash) == (candidate.version, candidate.manifest_hash)
    artifact = record.artifact_hash if same else candidate.artifact()
    scopes: dict[str, tuple[str, ...]] = {}
    if candidate.requested:
        scopes = {c.name: c.scope for c in candidate.manifest().permissions.capabilities if c.scope}
    return PluginFacts(candidate.name, candidate.version, candidate.requested, candidate.manifest_hash, artifact, scopes)


def lock_path(loaded: LoadedConfig) -> Path:
    """tavern.lock beside the project's file, else in the state folder."""
    return (loaded.project_file.parent if loaded.project_file else loaded.home) / "tavern.lock"


def load_handler(record: Record, target: str) -> Any:
    """The object that ``module:name`` names inside the plugin's own package.

    Raises:
        ToolFailed: there is none (TOOL_ERROR).
    """
    import importlib

    module_name, _, path = target.partition(":")
    package = getattr(record.thing, "__name__", "")
    if not package:
        raise ToolFailed(f"{record.name} has no package in which {target!r} could be", hint="add an __init__.py")
    inside = module_name if module_name in ("", package) or module_name.startswith(package + ".") else f"{package}.{module_name}"
    try:
        found: Any = importlib.import_module(inside or package)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ToolFailed(f"{record.name}: the handler {target!r} cannot be found: {error}") from error
    return found


def _at_open(record: Record, activate: Activate) -> bool:
    """Whether a plugin is activated when the host opens (DESIGN §5)."""
    candidate = record.candidate
    if candidate.fixed_id or activate == "all":
        return True
    if activate == "none":
        return False
    if candidate.implicit or candidate.may_hide_tools or candidate.facts.start or "services" in candidate.facts.sections:
        return True
    return any(p.startswith("hook:") and record.may(p) for p in candidate.requested)


def _brings_profiles(record: Record) -> bool:
    return bool({"profiles", "namespaces"} & record.candidate.facts.sections)


def _event_log(loaded: LoadedConfig, diagnostics: Diagnostics, known: KnownSecrets) -> EventLog:
    audit = loaded.config.audit
    return EventLog(
        audit_log(loaded.home),
        fsync=audit.fsync,
        max_bytes=audit.max_bytes,
        known_secrets=known,
        on_finding=_keep(diagnostics),
    )


def _keep(diagnostics: Diagnostics) -> Callable[[Any], None]:
    return lambda finding: diagnostics.add(finding.code, str(finding), hint=finding.hint, severity=finding.severity)


def _place(candidate: Candidate) -> str:
    what = f"distribution {candidate.distribution}" if candidate.distribution else candidate.location or "the given object"
    return f"{candidate.source} ({what})"


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid()) if hasattr(os, "getuid") else ""

