"""Builds one host from its configuration.

    foundation → tables of what plugins contribute → isolation → plugins → catalogue of tools → state → calls → workflows

The parts are built in this order, because each needs those before it. Each is complete before it is passed on. There is one
cycle: calls run workflows, and nodes of workflows make calls. `Engines` closes it: a tool looks up its engine there when it is
bound. The caller passes the built-in plugins; this module does not know them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tavern_core.contract.stores import RecordStore
from tavern_core.flow.composition import WorkflowServices
from tavern_core.flow.node_catalogue import Retrieval
from tavern_core.flow.workflow_files import WorkflowFiles
from tavern_core.frozen_dataclass import dataclass
from tavern_core.gc_pause import collector_paused
from tavern_core.host.host import CallServices, Host, PluginManagement
from tavern_core.host.services_for_plugins import ServiceBackends, core_services
from tavern_core.isolation.placement import Isolation
from tavern_core.isolation.plugin_sandboxes import Sandboxes
from tavern_core.isolation.work_folders import WorkFolders
from tavern_core.kernel.access.profile_files import ProfileFiles
from tavern_core.kernel.access.tokens import Tokens
from tavern_core.kernel.artifacts.artifacts import Artifacts
from tavern_core.kernel.calls.approvals import Approvals
from tavern_core.kernel.calls.compiler import Compiler
from tavern_core.kernel.calls.cross_process_cancellation import Cancellation
from tavern_core.kernel.calls.idempotency import Idempotency
from tavern_core.kernel.calls.pending_approval_store import StoredApprovals
from tavern_core.kernel.calls.pipeline import Pipeline
from tavern_core.kernel.calls.plan_tokens import PlanTokens
from tavern_core.kernel.calls.scope_narrowing import CallerScopes
from tavern_core.kernel.catalogue.limit_status import HostLimits
from tavern_core.kernel.catalogue.namespace_resolvers import Namespaces
from tavern_core.kernel.catalogue.profile_resolution import Inventories, UnresolvedProfiles
from tavern_core.kernel.catalogue.tool_catalogue import ToolCatalogue
from tavern_core.kernel.catalogue.tool_spec_cache import ToolSpecs
from tavern_core.kernel.config.configuration import LoadedConfig
from tavern_core.kernel.execution.sync_async_drivers import step_by_hand
from tavern_core.kernel.foundation import Foundation
from tavern_core.kernel.grants.grant_store import GrantStore
from tavern_core.kernel.hooks.hook_calls import HookCalls
from tavern_core.kernel.hooks.quarantine import HookQuarantine
from tavern_core.kernel.hooks.table import HookTable
from tavern_core.kernel.jobs.job_records import JobRecords
from tavern_core.kernel.jobs.jobs import Jobs
from tavern_core.kernel.jobs.new_jobs import NewJobs
from tavern_core.kernel.jobs.running_jobs import RunningJobs
from tavern_core.kernel.limits.limiter_registry import LimitTable
from tavern_core.kernel.plugins.candidate_discovery import IndexedSpecs
from tavern_core.kernel.plugins.consent import Consent
from tavern_core.kernel.plugins.contribution_registry import Contributions
from tavern_core.kernel.plugins.decision_watch import DecisionFiles, DecisionWatch, SettingsFile
from tavern_core.kernel.plugins.effective_scopes import EffectiveScopes
from tavern_core.kernel.plugins.enabled_state import PluginStates
from tavern_core.kernel.plugins.host_registries import HostRegistries
from tavern_core.kernel.plugins.inactive_setting_declarations import PluginSettings
from tavern_core.kernel.plugins.lazy_contribution_lookup import LazyContributions
from tavern_core.kernel.plugins.lifecycle import Lifecycle
from tavern_core.kernel.plugins.lock_check import lock_path
from tavern_core.kernel.plugins.plugin_record import PluginRecords
from tavern_core.kernel.plugins.plugins import Plugins
from tavern_core.kernel.plugins.reconciler import PluginSources, Reconciler
from tavern_core.kernel.plugins.services import Services
from tavern_core.kernel.plugins.skill_catalogue import Skills
from tavern_core.kernel.plugins.tool_homes import ToolHomes
from tavern_core.kernel.registry import Registry
from tavern_core.kernel.settings.result_redaction import StorageRedactor
from tavern_core.kernel.settings.setting_layers import SettingLayers, user_file
from tavern_core.kernel.settings.store import SettingsStore
from tavern_core.kernel.state import State
from tavern_core.kernel.stores.memory_records import MemoryRecords
from tavern_core.kernel.stores.sqlite_records import SqliteRecords
from tavern_core.knowledge.knowledge import KnowledgeBases
from tavern_core.model.approval import Approver
from tavern_core.model.event import SETTINGS_CHANGED
from tavern_core.observability.metrics import Metrics
from tavern_core.review.import_crash_guard import ImportWatch
from tavern_core.review.permitted_service_methods import ReadOnlyServiceMethods
from tavern_core.upstreams.composition import ConfiguredUpstreams

if TYPE_CHECKING:
    from tavern_core.agents.agents import Agents

_KB: Final = ("core-knowledge", "tavern_core.builtin.tools.knowledge", False)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the program besides the configuration.

    Args:
        builtin: (name, module, whether it only contributes node types) of the host's own plugins.
        given: plugins as objects.
        approve: called for calls that need approval.
    """

    version: str
    builtin: Sequence[tuple[str, str, bool]]
    given: Sequence[Any] = ()
    is_safe_mode: bool = False
    approve: Approver | None = None


@collector_paused()
def compose(loaded: LoadedConfig, options: Options) -> Host:
    """Build a host; no plugin code runs.

    Raises:
        UsageError: something in `options.given` cannot be a plugin (USAGE).
        StateDamaged: the state folder cannot be used (STATE_DAMAGED).
    """
    base = Foundation(loaded, version=options.version, is_safe_mode=options.is_safe_mode)
    config, home = base.config, base.home
    contributions, records = Contributions(base.signals.rights), PluginRecords(base.signals.rights)
    decisions = DecisionFiles(
        GrantStore(lock_path(loaded), is_frozen=config.plugins.locked), PluginStates(home / "plugins.json")
    )
    reach = EffectiveScopes(loaded.base_dir, home / "data", config.net.allow)
    profiles = UnresolvedProfiles(ProfileFiles([Path(p) for p in config.profiles]), contributions)
    tables = _tables(base, contributions, records, CallerScopes(config.capabilities, records, reach, profiles))

    sandboxes = _sandboxes(base, records)
    isolation = Isolation(base, records, reach, sandboxes, contributions)
    upstreams = ConfiguredUpstreams.read(base, decisions.grants)
    knowledge = KnowledgeBases(config.knowledge, home / "cache" / "knowledge")
    sources = PluginSources(_builtin(options, knowledge), options.given, isolation, upstreams.candidates)
    plugins = _plugins(tables, records, decisions, sources)

    specs = ToolSpecs(plugins.lifecycle)
    inventories = Inventories(specs, profiles, Namespaces(specs))
    connected = upstreams.build(inventories, reach, sandboxes)
    catalogue = ToolCatalogue.build(inventories, connected() if upstreams.entries else None, plugins.reconciler)
    state = _state(base)
    calls = _calls(catalogue, state, reach, ToolHomes(tables, sandboxes), options.approve)
    flow = WorkflowServices.build(catalogue, calls.pipeline, _retrieval)

    _contribute(ServiceBackends(base, catalogue.tools, flow, calls.jobs, knowledge, calls.pipeline), tables)
    plugins.reconciler.check_plugins()
    return Host(plugins, catalogue, state, calls, flow, connected, isolation, knowledge)


def _tables(
    base: Foundation, contributions: Contributions, records: PluginRecords, callers: CallerScopes
) -> HostRegistries:
    """The registries of plugin contributions."""
    limits, changed = base.config.limits, base.signals.tools
    hooks = HookTable(base.diagnostics, changed)
    hook_calls = HookCalls(limits.hook_timeout_ms / 1000, base.diagnostics, HookQuarantine(base))
    cache = IndexedSpecs()
    return HostRegistries(
        base,
        hooks,
        hook_calls,
        Registry(base.diagnostics, changed, base.config.tools.aliases, base.file),
        contributions,
        Services(contributions, limits, callers, base.signals.rights),
        _settings(base, hooks, hook_calls, PluginSettings(records, cache, base.diagnostics)),
        cache,
    )


def _plugins(
    tables: HostRegistries, records: PluginRecords, decisions: DecisionFiles, sources: PluginSources
) -> PluginManagement:
    base, grants, states = tables.base, decisions.grants, decisions.states
    seconds = base.config.limits.import_timeout_ms / 1000
    imports = ImportWatch(base.home, base.config.plugins.probe, seconds, base.diagnostics)
    lifecycle = Lifecycle(records, tables, grants, imports)
    reconciler = Reconciler(lifecycle, sources, grants, states)
    consent = Consent(grants, lifecycle, reconciler, ReadOnlyServiceMethods(tables.services, records))
    statuses = Plugins(lifecycle, consent, reconciler, states, imports)
    settings = SettingsFile(base.home / "settings.json", tables.settings.reload)
    return PluginManagement(
        lifecycle,
        reconciler,
        consent,
        statuses,
        Skills(lifecycle, consent),
        LazyContributions(lifecycle),
        DecisionWatch(decisions, settings, base.portal, statuses.catch_up),
    )


def _state(base: Foundation) -> State:
    records, config = _records(base), base.config.artifacts
    artifacts = Artifacts(base.home / "artifacts", records, config.ttl_ms / 1000, config.max_bytes)
    return State(records, artifacts, Tokens(records))


def _calls(
    catalogue: ToolCatalogue, state: State, reach: EffectiveScopes, homes: ToolHomes, approver: Approver | None
) -> CallServices:
    tables, records = catalogue.specs.lifecycle.tables, state.records
    base, engines, disk = tables.base, tables.engines, StorageRedactor(tables.base.known_secrets)
    config, key_s = base.config.approval, base.config.idempotency.ttl_ms / 1000
    limit_table = _limit_table(base, records)
    cancellation = Cancellation(records, catalogue.specs.lifecycle.records)
    compiler = Compiler(catalogue, homes, reach, limit_table, cancellation)
    idempotency = Idempotency(records, key_s, base.diagnostics, disk, engines)
    stored = StoredApprovals(records, config.keep_ms / 1000, key_s, base.recorder)
    approvals = Approvals(approver, config.timeout_ms / 1000, base.recorder, base.portal, stored)
    plans = PlanTokens(records, config.plan_ms / 1000, key_s, disk)
    running_jobs, new_jobs, jobs = _jobs(tables, records, stored, disk, compiler)
    pipeline = Pipeline(compiler, tables.calls, approvals, idempotency, plans, new_jobs, state.artifacts)
    metrics = Metrics(base.config.metrics.enabled, limit_table, jobs, base.recorder, tables.registry)
    limits = HostLimits(limit_table, catalogue)
    return CallServices(_watched(base, pipeline, metrics), jobs, running_jobs, limits, metrics)


def _builtin(options: Options, knowledge: KnowledgeBases) -> Sequence[tuple[str, str, bool]]:
    """The host's own plugins; that of knowledge bases where there are any."""
    return (*options.builtin, *((_KB,) if knowledge.names() else ()))


def _sandboxes(base: Foundation, records: PluginRecords) -> Sandboxes:
    return Sandboxes(
        base.config.isolation,
        base.home,
        _kept_files(base.loaded),
        base.diagnostics,
        WorkFolders(base.home),
        emit=base.recorder.emit,
        code=lambda: _code(base, records),
    )


def _limit_table(base: Foundation, kept: RecordStore) -> LimitTable:
    limits = base.config.limits
    callers = {key: rule.limits() for key, rule in limits.callers.items()}
    table = LimitTable(kept, callers, limits.retries, limits.cache_bytes, base.recorder, base.diagnostics)
    base.signals.answers.subscribe(table.cache.clear)
    return table


def _jobs(
    tables: HostRegistries, kept: RecordStore, stored: StoredApprovals, disk: StorageRedactor, compiler: Compiler
) -> tuple[RunningJobs, NewJobs, Jobs]:
    base, config = tables.base, tables.base.config.jobs
    records = JobRecords(kept, config.ttl_ms / 1000, base.recorder, disk, base.mode)
    running = RunningJobs(records, stored, base.portal, tables.engines, config.concurrency)
    key_ms = base.config.idempotency.ttl_ms
    new = NewJobs(running, base.config.limits.argument_bytes, config.poll_ms, config.ttl_ms, key_ms)
    return running, new, Jobs(running, new, stored, compiler)


def _contribute(backends: ServiceBackends, tables: HostRegistries) -> None:
    """Register the host's own contributions, as plugins do: its services, and the language models of tavern.yaml."""
    base, flow = backends.base, backends.flow
    tables.contributions.add_all("core-flows", {"services": core_services(backends)}, source="builtin")
    if base.config.llms:
        from tavern_core.host.configured_llms import configured_llms

        own = configured_llms(base.loaded, tables.settings, flow.models)
        tables.contributions.add_all("core-llms", {"llms": own}, source="builtin")


def _settings(base: Foundation, hooks: HookTable, calls: HookCalls, undeclared: PluginSettings) -> SettingsStore:
    def before_save(changes: Mapping[str, Any]) -> Mapping[str, Any] | None:
        asked = hooks.of("tavern_before_save_settings")
        return step_by_hand(calls.change_settings(asked, changes, base.inline)) if asked else None

    def saved(made: Any) -> None:
        base.signals.answers.emit()
        if not made.is_elsewhere:  # the process that saved them has recorded it
            base.recorder.note(SETTINGS_CHANGED, {"changes": {c.key: c.new for c in made.changes}})

    layers = SettingLayers(
        user_file(base.home / "settings.json"),
        base.config.settings,
        base.loaded.base_dir,
        base.loaded.origins,
        known=base.known_secrets,
    )
    return SettingsStore(
        layers,
        before_save=before_save,
        undeclared=undeclared,
        on_saved=saved,
        on_finding=base.diagnostics.add_finding,
    )


def _watched(base: Foundation, pipeline: Pipeline, metrics: Metrics) -> Pipeline:
    """The pipeline, with metrics and spans if enabled; they are only imported here.

    Raises:
        UsageError: spans are enabled, but OpenTelemetry is not installed (USAGE).
    """
    wanted = base.config.metrics.spans
    # Spans go nowhere until the program has loaded the SDK, and it never does where that is not installed.
    may_come = wanted is None and find_spec("opentelemetry") is not None
    if not (wanted or may_come or metrics.is_on):
        return pipeline
    from tavern_core.observability.observed import ObservedPipeline

    return ObservedPipeline(pipeline, metrics if metrics.is_on else None, base.version, wanted=wanted)


def agents_of(host: Host, wait: Callable[[Any], Any]) -> Agents:
    """`tavern.agents`; imported with its first use."""
    from tavern_core.agents.agent_services import AgentServices
    from tavern_core.agents.agents import Agents
    from tavern_core.agents.profile_resolution import KnownNames
    from tavern_core.agents.read_result_tool import reading_tool

    services = AgentServices(
        host.catalogue, host.calls.pipeline, host.flow, host.state, host.plugins.sections,
        reading_tool(host.state.artifacts), KnownNames(host.flow, host.plugins.skills, host.knowledge),
    )  # fmt: skip
    return Agents(services, wait)


def _retrieval(specs: ToolSpecs, files: WorkflowFiles) -> Retrieval:
    """The search for node types; imported with its first use."""
    from tavern_core.assistant.node_retrieval import NodeRetrieval

    return NodeRetrieval(specs, files, [Path(folder) for folder in specs.base.config.assistant.examples])


def _records(base: Foundation) -> RecordStore:
    """The store of keys, approvals, jobs and rates."""
    where = base.config.state.store
    if where == "memory":
        return MemoryRecords()
    if where != "sqlite":
        from tavern_core.builtin.stores.redis_records import RedisRecords

        return RedisRecords(where)

    on_damage = base.diagnostics.of_damage(
        "earlier keys, approvals and jobs are lost",
        hint="check what was running: a call whose key is lost would be made again",
    )

    def on_garbage(count: int, copy: Path) -> None:
        text = (
            f"{count} records were corrupt and were removed; {copy.name} still has them"
            if count
            else f"its index, or the names of some jobs, were corrupt; {copy.name} is the file as it was"
        )
        base.diagnostics.add(
            "STATE_DAMAGED",
            f"{base.home / 'state.sqlite'}: {text}",
            hint="a call whose key is lost would be made again: see what happened before you repeat one",
            severity="error",
        )

    return SqliteRecords(base.home / "state.sqlite", on_damage, on_garbage)


def _kept_files(loaded: LoadedConfig) -> tuple[Path, ...]:
    """Files that decide what is allowed; no plugin can write to them, whatever its grants."""
    project = loaded.project_file
    return (lock_path(loaded), *((project,) if project is not None else ()))


def _code(base: Foundation, records: PluginRecords) -> Iterator[Path]:
    """The folders that are searched for plugins, profiles and skills, and the folders of found plugins."""
    config = base.config
    yield from map(Path, (*config.plugins.roots, *config.plugins.vcp, *config.profiles))
    yield from map(Path, (*config.skills.roots, *config.skills.user))
    for record in records.values():
        if record.candidate.folder is not None:
            yield record.candidate.folder
