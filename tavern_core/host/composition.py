"""Everything one host is made of, put together once.

Configuration and plugins in the box come in from above; nothing here knows which plugins those are.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tavern_core.errors import Finding, PluginError, TavernError
from tavern_core.flow.composition import FlowRoom
from tavern_core.flow.node_permissions import NodeRights
from tavern_core.host.core_services import Parts, core_services
from tavern_core.isolation.placement import Isolation
from tavern_core.isolation.sandbox import Sandboxes
from tavern_core.isolation.work_folders import WorkFolders
from tavern_core.kernel.access.profile_files import ProfileShelf
from tavern_core.kernel.calls.approvals import Approvals
from tavern_core.kernel.calls.compiler import Compiler
from tavern_core.kernel.calls.pipeline import Pipeline
from tavern_core.kernel.calls.running_call import current
from tavern_core.kernel.catalogue.descriptions import Descriptions
from tavern_core.kernel.catalogue.namespaces import Namespaces
from tavern_core.kernel.catalogue.profile_inventories import Inventories
from tavern_core.kernel.catalogue.tool_specs import ToolSpecs
from tavern_core.kernel.catalogue.tools import Tools, ToolsDiff
from tavern_core.kernel.config.configuration import LoadedConfig, prepare_home
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.execution.modes import InlineMode, LoopMode, step_by_hand
from tavern_core.kernel.execution.portal import Portal
from tavern_core.kernel.execution.threads import Workers
from tavern_core.kernel.frontend import Extension, extension
from tavern_core.kernel.grants.grant_store import GrantStore
from tavern_core.kernel.hooks.dispatch import HookCalls
from tavern_core.kernel.hooks.quarantine import FILE as QUARANTINE
from tavern_core.kernel.hooks.quarantine import Quarantine
from tavern_core.kernel.hooks.table import HookTable, Implementation
from tavern_core.kernel.log.event_log import EventLog
from tavern_core.kernel.log.log_files import audit_log
from tavern_core.kernel.log.recorder import Recorder
from tavern_core.kernel.plugin_reports import report
from tavern_core.kernel.plugins.consent import (
    Consent,
    lock_path,
    who,
)
from tavern_core.kernel.plugins.contributions import Contributions
from tavern_core.kernel.plugins.effective_scopes import Reach
from tavern_core.kernel.plugins.enabled_state import PluginStates
from tavern_core.kernel.plugins.executor_facilities import ToolHomes
from tavern_core.kernel.plugins.found_candidates import IndexedSpecs
from tavern_core.kernel.plugins.host_tools import Registration
from tavern_core.kernel.plugins.lifecycle import Lifecycle
from tavern_core.kernel.plugins.plugins import Plugins
from tavern_core.kernel.plugins.record import Record
from tavern_core.kernel.plugins.roster import Activate, Roster, Sources
from tavern_core.kernel.plugins.runtime import Surroundings
from tavern_core.kernel.plugins.section_lookup import Sections
from tavern_core.kernel.plugins.services import Services
from tavern_core.kernel.registry import Registry
from tavern_core.kernel.settings.secrets import KnownSecrets
from tavern_core.kernel.settings.store import SettingsStore
from tavern_core.kernel.settings.view import DescribedSetting
from tavern_core.model.approval import Approver
from tavern_core.model.call import HOST_PRINCIPAL, CallContext
from tavern_core.model.capability import covers, forbids
from tavern_core.model.event import (
    HOOK_QUARANTINED,
    HOOK_RELEASED,
    SETTINGS_CHANGED,
    THREADS_STUCK,
    TOOLS_CHANGED,
    USER_LOGGED_IN,
    Event,
)
from tavern_core.model.plugin import RestingHook
from tavern_core.model.result import ToolResult
from tavern_core.model.scope import Scope, common
from tavern_core.model.text_outcome import TextOutcome
from tavern_core.review.import_guard import ImportWatch
from tavern_core.review.service_reach import ReachedByUse
from tavern_core.schema.redact import redact_text


@dataclass
class Assembly:
    """The parts of one host."""

    loaded: LoadedConfig
    version: str
    safe_mode: bool
    portal: Portal
    diagnostics: Diagnostics
    recorder: Recorder
    known_secrets: KnownSecrets
    log: EventLog | None
    hooks: HookTable
    imports: ImportWatch
    quarantine: Quarantine
    calls: HookCalls
    approvals: Approvals
    registry: Registry
    contributions: Contributions
    services: Services
    settings: SettingsStore
    states: PluginStates
    grants: GrantStore
    shelf: ProfileShelf
    workers: tuple[Workers, Workers]
    _telling: threading.Lock
    loop_mode: LoopMode
    inline_mode: InlineMode
    specs: IndexedSpecs

    roster: Roster
    lifecycle: Lifecycle
    sections: Sections
    inventories: Inventories
    consent: Consent
    reach: Reach
    sandboxes: Sandboxes
    work: WorkFolders
    isolation: Isolation
    descriptions: Descriptions
    tool_specs: ToolSpecs
    compiler: Compiler
    tools: Tools
    plugins: Plugins
    pipeline: Pipeline
    flows: FlowRoom

    @classmethod
    def build(
        cls,
        loaded: LoadedConfig,
        *,
        builtin: Sequence[tuple[str, str, bool]],
        version: str,
        given: Sequence[Any],
        safe_mode: bool,
        approve: Approver | None = None,
    ) -> Assembly:
        """Put a host together; no plugin code runs.

        Raises:
            UsageError: something in `given` cannot be a plugin (USAGE).
            StateDamaged: the state folder cannot be used (STATE_DAMAGED).
        """
        self = cls.__new__(cls)
        self.loaded, self.version, self.safe_mode = loaded, version, safe_mode
        config, home = loaded.config, prepare_home(loaded)
        self.known_secrets = KnownSecrets()
        self.diagnostics = Diagnostics(lambda: self.known_secrets.values)
        self._tell_findings(loaded.findings)
        self.portal = Portal()
        threads, self._telling = config.limits.threads, threading.Lock()
        self.workers = Workers(threads, "tavern-tool", self._stuck), Workers(threads, "tavern-hook", self._stuck)
        self.loop_mode = LoopMode(*self.workers)
        self.inline_mode = InlineMode(self.workers[1], self.portal)
        self.known_secrets.add(*(value for value in config.secrets.values() if isinstance(value, str)))
        self.log = _event_log(loaded, self.diagnostics, self.known_secrets) if config.audit.enabled else None
        self.recorder = Recorder(
            self.log, self.diagnostics, required=config.audit.required, arguments=config.audit.arguments
        )
        self.approvals = Approvals(approve, config.approval.timeout_ms / 1000, self.recorder, self.portal)
        self.hooks = HookTable(self.diagnostics)
        self.imports = ImportWatch(home, config.plugins.probe, config.limits.import_timeout_ms / 1000, self.diagnostics)
        self.quarantine = Quarantine(
            home / QUARANTINE,
            failures=config.limits.hook_failures,
            seconds=config.limits.hook_rest_ms / 1000,
            tell=self._quarantined,
            mask=lambda text: redact_text(text, self.known_secrets.values),
            damaged=self._tell_findings,
        )
        self.calls = HookCalls(config.limits.hook_timeout_ms / 1000, self.diagnostics, self.quarantine)
        self.registry = Registry(self.diagnostics, config.tools.aliases, self._file())
        self.contributions = Contributions()
        self.services = Services(self.contributions, config.limits, self._reach_now)
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
        self.grants = GrantStore(lock_path(loaded), is_frozen=config.plugins.locked)
        self.shelf = ProfileShelf([Path(p) for p in config.profiles])
        self.specs = IndexedSpecs()
        self.isolation = Isolation(
            config,
            self.loaded.home,
            lambda: self.sandboxes,
            lambda: self.reach,
            lambda name: self.lifecycle.records.get(name),
            lambda: self.contributions.get("executors", "python"),
            self.recorder.note,
            self.diagnostics,
            self.known_secrets,
        )
        self.roster = Roster(
            loaded,
            Sources(builtin, given, self.isolation.applied),
            version=version,
            safe_mode=safe_mode,
            specs=self.specs,
            grants=self.grants,
            states=self.states,
            registry=self.registry,
            diagnostics=self.diagnostics,
            changed=self.services.changed,
        )
        self._put_together()
        return self

    @property
    def config(self) -> Any:
        """The host's configuration."""
        return self.loaded.config

    def _put_together(self) -> None:
        self.lifecycle = Lifecycle(
            self.roster.records,
            around=self._surroundings(),
            mode=self.loop_mode,
            hooks=self.hooks,
            calls=self.calls,
            registry=self.registry,
            contributions=self.contributions,
            services=self.services,
            settings=self.settings,
            cache=self.specs,
            diagnostics=self.diagnostics,
        )
        self.sections = Sections(self.lifecycle, self.contributions, self.services)
        self.tool_specs = ToolSpecs(
            registry=self.registry,
            lifecycle=self.lifecycle,
            hooks=self.hooks,
            calls=self.calls,
            config=self.loaded.config,
            diagnostics=self.diagnostics,
            inline=self.inline_mode,
            kinds=self._kinds,
            file=self._file(),
        )
        self.namespaces = Namespaces(
            self.tool_specs,
            self.contributions,
            self.calls,
            inline=self.inline_mode,
            rest_s=self.loaded.config.limits.hook_rest_ms / 1000,
        )
        self.inventories = Inventories(
            self.shelf,
            contributions=self.contributions,
            namespaces=self.namespaces,
            registry=self.registry,
            lifecycle=self.lifecycle,
            diagnostics=self.diagnostics,
            mode=self.loop_mode,
            wait=self.portal.run,
        )
        self.consent = Consent(
            self.grants,
            self.lifecycle,
            self._settle,
            self.judge,
            ReachedByUse(self.services, lambda: [r.candidate for r in [*self.lifecycle.records.values()]]),
        )
        self.reach = Reach(self.loaded.base_dir, self.loaded.home / "data", self.loaded.config.net.allow)
        self.work = WorkFolders(self.loaded.home)
        self.sandboxes = Sandboxes(
            self.loaded.config.isolation,
            self.loaded.home,
            self._kept_files(),
            self.diagnostics,
            self.work,
            tell=self.recorder.tell,
            code=self._code,
        )
        self.flows = self._flow_room()
        homes = ToolHomes(
            self.services,
            self.settings,
            self.loaded.config.limits,
            self.loaded.home / "cache" / "unpacked",
            self.sandboxes.of,
            self.flows.engine,
        )
        self.registry.on_change = self.hooks.on_change = self.recorder.on_change = self.tool_specs.changed
        self.compiler = Compiler(
            self.tool_specs,
            contributions=self.contributions,
            namespaces=self.namespaces,
            profile=self.inventories.resolved,
            recorder=self.recorder,
            known_secrets=lambda: self.known_secrets.values,
            mode=self.loop_mode,
            home_of=homes.of,
            reach=self.reach,
            wait=self.portal.run,
        )
        self.compiler.inner[self.flows.models.spec.id] = self.flows.models.spec
        self.tools = Tools(
            self.tool_specs,
            namespaces=self.namespaces,
            profiles=self.inventories.now,
            registration=Registration(self.lifecycle, self.registry),
            refresh=self.refresh,
            wait=self.portal.run,
        )
        self.descriptions = Descriptions(
            self.tools,
            self.tool_specs,
            profiles=self.inventories.now,
            config=self.loaded.config,
            diagnostics=self.diagnostics,
        )
        self.plugins = Plugins(
            self.lifecycle,
            consent=self.consent,
            wait=self.portal.run,
            ready=self.portal.check,
            switch=self._switch,
            judge=self.judge,
            refresh=self.roster.read_again,
            wanted=self._at_open,
            changed=self.tool_specs.changed,
            try_again=self._try_again,
            resting=self.quarantine.of,
            refusal=self.imports.refusal,
        )
        parts = Parts(self.tools, self.flows.nodes, self.flows.workflows, self.flows.models, self._called_by_plugin)
        self.contributions.add_all("core-flows", {"services": core_services(parts)}, source="builtin")
        self.settings.before_save = self._before_save
        self.settings.declare_more = self.lifecycle.declare_more_settings
        self.pipeline = Pipeline.create(
            self.compiler, self.calls, self.recorder, self.loaded.config.limits, self.approvals, self.known_secrets
        )
        self.judge()

    def _flow_room(self) -> FlowRoom:
        config = self.loaded.config

        async def invoke(
            tool: str, arguments: Mapping[str, Any] | None, context: CallContext | None, purpose: str
        ) -> ToolResult:
            return await self.pipeline.run(self.loop_mode, tool, arguments, context, purpose, None, "workflow")

        host = CallContext(principal=HOST_PRINCIPAL, config=config.config)
        return FlowRoom.build(
            config.workflows,
            self.loaded.home,
            lifecycle=self.lifecycle,
            rights=NodeRights(self.lifecycle, config.capabilities, host, self.inventories.resolved),
            tables=self.lifecycle.tables,
            hooks=self.hooks,
            services=self.services,
            registry=self.registry,
            diagnostics=self.diagnostics,
            threads=self.workers[0],
            host=host,
            is_host=self._is_host,
            invoke=invoke,
            note=lambda type_, data, call_id="": self.recorder.note(type_, data, "", call_id),
            wait=self.portal.run,
            ready=self.portal.check,
            secrets=lambda: self.known_secrets.values,
        )

    async def _called_by_plugin(
        self, tool: str, arguments: Mapping[str, Any] | None, context: CallContext | None, purpose: str
    ) -> ToolResult:
        return await self.pipeline.run(self.loop_mode, tool, arguments, context, purpose, None, "plugin")

    def _file(self) -> str:
        """What messages call the configuration."""
        return self.loaded.project_file.name if self.loaded.project_file else "tavern.yaml"

    def _is_host(self, context: CallContext) -> bool:
        """Whether a context is the host's own: somebody may only be called like it."""
        return context.principal == HOST_PRINCIPAL and context.ledger is self.tool_specs.default.ledger

    def _code(self) -> Iterator[Path]:
        """Where plugins and profiles are looked for, and where those that were found are."""
        config = self.loaded.config
        yield from map(Path, (*config.plugins.roots, *config.profiles))
        for record in list(self.lifecycle.records.values()):
            if record.candidate.folder is not None:
                yield record.candidate.folder

    def _kept_files(self) -> tuple[Path, ...]:
        """Files that decide what is allowed; no plugin writes to them, whatever it was granted."""
        project = self.loaded.project_file
        return (lock_path(self.loaded), *((project,) if project is not None else ()))

    def _surroundings(self) -> Surroundings:
        config = self.loaded.config
        return Surroundings(
            self.version,
            config.config,
            {"core-sql": {"functions": config.sql.functions}},
            self.loaded.home / "data",
            self._secret,
            self.safe_mode,
            config.limits.drain_ms / 1000,
            self.announce,
            self.imports.judge,
            self.imports.load,
            self.imports.look_after,
            config.limits.import_timeout_ms / 1000,
            lambda record: self.consent.look(record),
        )

    def _reach_now(self, plugin: str, capability: str) -> Scope:
        """How far a capability reaches for a plugin at this moment: as granted, and within a call as its caller allows."""
        record = self.lifecycle.records.get(plugin)
        host = self.config.capabilities
        if (
            record is None
            or forbids(host.deny, capability)
            or (host.allow is not None and not covers(host.allow, capability))
        ):
            return ()
        scope = self.reach.scope(record, capability)
        frame = current.get()
        context = frame[2] if frame is not None else None
        if context is None or scope == ():
            return scope
        if not covers(context.permissions, capability) or not self._profile_allows(context, capability):
            return ()
        return common(capability, scope, context.scopes[capability]) if capability in context.scopes else scope

    def _profile_allows(self, context: CallContext, capability: str) -> bool:
        """Whether the agent profile of a call that is running allows a capability; one that cannot be read allows nothing."""
        if context.profile is None:
            return True
        try:
            limit = self.inventories.capabilities(context.profile)
        except TavernError:
            return False
        return limit is None or covers(limit, capability)

    # Life -------------------------------------------------------------------------------------------------------------

    async def start(self, activate: Activate) -> None:
        """Activate what must be active from the start."""
        self.roster.activate = activate
        self.work.sweep()
        records = list(self.lifecycle.records.values())
        # Where there is no other plugin, nobody can ask for the host's nodes before they are looked for by name.
        is_alone = all(record.candidate.fixed_id for record in records)
        for record in records:
            if record.candidate.fixed_id and not (record.candidate.is_nodes_alone and is_alone):
                await self.lifecycle.activate(record.name)
        self.judge()  # the host's own tools are known now: no plugin may have the name of one
        await self._activate_early()
        self._list_workflows()

    async def _activate_early(self) -> None:
        """Activate what does not wait for its first use; a failure is in the record and harms nobody else."""
        with self.lifecycle.burst():
            for record in list(self.lifecycle.records.values()):
                if record.usable and not record.active and self._at_open(record):
                    with suppress(PluginError):
                        await self.lifecycle.activate(record.name)
        self.judge()

    def _at_open(self, record: Record) -> bool:
        """Whether a plugin is activated when the host opens (DESIGN §5)."""
        return (
            (record.candidate.fixed_id and not record.candidate.is_nodes_alone)
            or self.roster.activate == "all"
            or (self.roster.activate != "none" and record.starts_early)
        )

    def _list_workflows(self) -> None:
        """Offer the workflows that are there now as tools."""
        if self.loaded.config.workflows.as_tools and self.roster.activate != "none":
            self.flows.tools.list(self.lifecycle.records["core-flows"].rank)
            self.tool_specs.catch_up = self.flows.tools.catch_up

    async def close(self) -> None:
        """End all runs, stop all plugins."""
        await self.flows.workflows.close()
        await self.lifecycle.close()

    def become_copy(self, owner: int) -> None:
        """In a forked child: no thread came along, and what else there is belongs to the process that opened the host."""
        self.portal.become_copy(owner)
        for workers in self.workers:
            workers.become_copy()

    def release(self) -> None:
        """Give back threads and files."""
        self.isolation.release()
        self.sandboxes.spawner.close()
        self.sandboxes.gateways.close()
        self.work.close()
        self.portal.close()
        for workers in self.workers:
            workers.close()
        self.approvals.close()
        if self.log is not None:
            self.log.close()

    def judge(self) -> None:
        """Work out the state of every plugin that is not active, and list what it declares."""
        self.roster.judge()
        self.lifecycle.list_declared()
        self.diagnostics.judged(report(list(self.lifecycle.records.values())))

    def describe_settings(self, plugin: str | None) -> list[DescribedSetting]:
        """All settings, those of tools that were never used included; see `Tavern.describe_settings`."""
        return self.settings.describe(plugin)

    async def announce(self, type_: str, data: Mapping[str, Any], plugin: str) -> None:
        """Tell log, subscribers and observers of something that is no call."""
        event = self.recorder.note(type_, data, plugin)
        await self.tell(event)

    async def tell(self, event: Event) -> None:
        if observers := self.hooks.of("tavern_on_event"):
            await self.calls.tell(observers, {"event": event}, self.loop_mode)

    async def user_logged_in(self, user: CallContext) -> None:
        """Put a login on the record and tell its observers; see `Tavern.user_logged_in`."""
        self.portal.check()
        who = CallContext(principal=user.principal, user_id=user.user_id, roles=user.roles, profile=user.profile)
        told = {"principal": who.principal, "userId": who.user_id, "roles": sorted(who.roles), "profile": who.profile}
        await self.announce(USER_LOGGED_IN, told, "")
        await self.calls.tell(self.hooks.of("tavern_on_login"), {"user": who}, self.loop_mode)

    async def refresh(self) -> ToolsDiff:
        """Look for plugins again; see `Tavern.refresh`."""
        self.portal.check()
        before = {s.id: s for s in self.tools.snapshot()}
        leaving, take_new = self.roster.look_again()
        for name in leaving:
            await self.lifecycle.deactivate(name)
            record = self.lifecycle.records.pop(name)
            if record.candidate.unload is not None:
                record.candidate.unload()
            self.registry.drop(name)
        take_new()
        self.judge()
        await self._activate_early()
        self._list_workflows()
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

    def _kinds(self) -> frozenset[str]:
        """The kinds of tools that can be run: executors that are there, and those that usable plugins declare."""
        records = self.lifecycle.records.values()
        declared = [r.candidate.facts.declared.get("executors", ()) for r in records if r.usable]
        return frozenset(self.contributions.all("executors")).union(*declared)

    def _before_save(self, changes: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Ask the `tavern_before_save_settings` hooks; secrets are masked on the way in and kept on the way out."""
        hooks = self.hooks.of("tavern_before_save_settings")
        return step_by_hand(self.calls.change_settings(hooks, changes, self.inline_mode)) if hooks else None

    def _settings_saved(self, saved: Any) -> None:
        """Announce changed settings, secrets masked."""
        self.recorder.note(SETTINGS_CHANGED, {"changes": {c.key: c.new for c in saved.changes}}, "")

    def _quarantined(self, what: str, impl: Implementation, rest: RestingHook) -> None:
        """Tell that a hook is left alone, or no longer."""
        if what == "released":
            self.diagnostics.withdraw("HOOK_QUARANTINED", hook=rest.hook, where=rest.where)
            self.recorder.note(HOOK_RELEASED, {"hook": rest.hook, "where": rest.where}, rest.plugin)
            return
        said = rest.to_json()
        del said["plugin"]
        hint = f"see {rest.where}; correct it and `tavern plugins reload {rest.plugin}`"
        self.diagnostics.add(
            "HOOK_QUARANTINED", rest.told, plugin=rest.plugin, hint=hint, severity="error", details=said
        )
        self.recorder.note(HOOK_QUARANTINED, said, rest.plugin)

    def _stuck(self, owner: tuple[str, str]) -> None:
        """Tell of code that goes on though nobody waits for it any more; each time that it is twice as often, and when it is over."""
        plugin, what = owner
        with self._telling:
            count = sum(workers.stuck(owner) for workers in self.workers)
            if count & (count - 1):
                return
            self.diagnostics.withdraw(THREADS_STUCK, of=what)
            if count:
                self.diagnostics.add(
                    "THREADS_STUCK", f"{count} × {what} goes on though nobody waits for it any more, and keeps a thread each", plugin=plugin,
                    hint="sync code cannot be stopped: give what it waits for a time limit of its own; restarting the host ends it",
                    details={"of": what, "threads": count},
                )  # fmt: skip
            self.recorder.note(THREADS_STUCK, {"of": what, "threads": count}, plugin)

    def _tell_findings(self, findings: Iterable[Finding]) -> None:
        """Tell what is wrong in a file."""
        for finding in findings:
            self.diagnostics.add(finding.code, finding.located, hint=finding.hint)

    def _try_again(self, name: str) -> None:
        """The operator enabled or reloaded a plugin: what was held against its code is forgotten."""
        self.quarantine.forget(name)
        self.imports.forget(name)

    def _switch(self, name: str, on: bool, reason: str) -> None:
        if on:
            self.states.enable(name)
        else:
            self.states.disable(name, reason=reason, by=who())

    # Grants -----------------------------------------------------------------------------------------------------------

    def extensions(self) -> list[Extension]:
        """What usable plugins bring for the browser."""
        return [
            extension(record.candidate.manifest(), record.candidate.folder, record.may)
            for record in self.lifecycle.records.values()
            if record.usable and not record.candidate.fixed_id
        ]

    async def _settle(self, record: Record) -> None:
        """Let a decision about a plugin take effect."""

        def change() -> None:
            record.broken = None  # what it lacked may be what it was granted now
            self.judge()
            self.tool_specs.changed()

        await self.lifecycle.renew(record.name, change, wanted=self._at_open)

    # What tools and descriptions need -----------------------------------------------------------------------------------

    def _secret(self, name: str) -> str:
        return self.settings.secret(name, self.loaded.config.secrets)

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

    async def run_text(self, text: str, context: CallContext | None, invoke: Any) -> TextOutcome:
        from tavern_core.kernel.calls.text_calls import Transcript

        config = self.loaded.config
        pipeline = self.pipeline
        foresee = functools.partial(pipeline.foresee, self.loop_mode)
        return await Transcript(
            self.tools, self.compiler, config.tam, invoke, foresee, pipeline.refused, config.language
        ).run(text, context)


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
    return lambda finding: diagnostics.add(finding.code, finding.located, hint=finding.hint, severity=finding.severity)
