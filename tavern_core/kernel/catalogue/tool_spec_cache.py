"""The current specification of each registered tool, and which tools a caller may see.

A specification comes from a tool's declaration, from the last activation or from the code, passes the
`tavern_before_register_tool` hooks, and is cached until registry, hooks or lists change. Nothing is imported here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from tavern_core.contract.decisions import Deny
from tavern_core.contract.tools import Offer, ToolFactory
from tavern_core.errors import CallError, Finding, PluginError, PolicyDenied, UpstreamError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.access.tool_access import AccessPolicy, compile_access
from tavern_core.kernel.access.tool_pins import ToolPins
from tavern_core.kernel.access.tool_selectors import plugin_key
from tavern_core.kernel.catalogue.call_plan import CallPlan
from tavern_core.kernel.catalogue.changed_tool_check import changed_parts, why_not
from tavern_core.kernel.catalogue.missing_tools import MissingTool, absence
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.execution.sync_async_drivers import ExecutionMode, step_by_hand
from tavern_core.kernel.hooks.argument_copies import copy_for_plugin
from tavern_core.kernel.plugins.lifecycle import Lifecycle
from tavern_core.kernel.plugins.plugin_record import PluginRecord
from tavern_core.kernel.plugins.tool_spec_reading import OfferingPlugin, merge_declaration, specs_of, with_marks
from tavern_core.kernel.registry import RegistryEntry
from tavern_core.model.call import CallContext, Rights, host_context
from tavern_core.model.capability import is_capability, is_dangerous
from tavern_core.model.naming_rules import spellings, split_id
from tavern_core.model.nearest import fold
from tavern_core.model.plain_data import frozen
from tavern_core.model.safe_printing import printed
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.kernel.catalogue.search import ToolIndex


@dataclass(slots=True)
class CachedSpecs:
    """The results for one state of registry, hooks and lists."""

    stamp: tuple[int, int, int]
    specs: dict[str, ToolSpec | str] = field(default_factory=dict)
    """Id → the tool after the hooks, or why a hook hides it."""
    listed: tuple[ToolSpec, ...] | None = None
    by_id: dict[str, ToolSpec] = field(default_factory=dict)
    """The listed tools by id."""
    has_factories: bool = False
    policy: AccessPolicy | None = None
    is_indexed: bool = False
    moving: dict[str, CallPlan] = field(default_factory=dict)
    """Id → compiled plan, for tools that are looked up at each call: their files may have changed."""


class ToolSpecs:
    """The specifications of all tools of one host. Safe for threads."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        base = self.base = lifecycle.tables.base
        self.lifecycle = lifecycle
        self.registry = lifecycle.tables.registry
        self.hooks = lifecycle.tables.hooks
        self.config = base.config
        self.diagnostics = base.diagnostics
        self.default = host_context(frozen(base.config.config))
        """The host itself as a caller."""
        self.pins = ToolPins(base.home, base.diagnostics.add_finding)
        self._file = base.file
        self._calls = lifecycle.tables.calls
        self._inline = base.inline
        self._lock = threading.RLock()
        self._changes = 0
        self._has_read_workflows = False
        self.plans: dict[str, CallPlan] = {}
        """Written id → compiled plan, for the current state; cleared by each change."""
        self._cache = CachedSpecs((-1, -1, -1))
        self._index: ToolIndex | None = None
        base.signals.tools.subscribe(self.changed)

    def catch_up(self, tool: str | None = None) -> None:
        """Before tools are looked up, read changed files again, and list upstreams.

        Args:
            tool: the only one that is looked up. Nothing else is read for the id of a tool that comes from elsewhere.
        """
        if self.pins.is_outdated:
            self.changed()
        entry = self.registry.entries().get(tool) if isinstance(tool, str) else None
        if entry is None or entry.id.startswith("workflow:") or self._is_of_upstream(entry):
            self._has_read_workflows = True
            self.base.signals.lookup.emit()

    def read_workflows_for(self, unknown: Iterable[Finding]) -> bool:
        """Read the workflow files, if that was never done and one of these unknown names may be that of a workflow.

        Args:
            unknown: findings about entries of lists or inventories; other findings have no effect.

        Returns:
            whether they were read now.
        """
        written = [finding.details.get("entry") or finding.details.get("id") or "" for finding in unknown]
        names = {split_id(i)[0] for each in written for i in spellings(each)}
        if self._has_read_workflows or not any(name == "workflow" or "*" in name or not name for name in names):
            return False
        self._has_read_workflows = True
        self.base.signals.workflow_lookup.emit()
        return True

    def _is_of_upstream(self, entry: RegistryEntry) -> bool:
        return self.lifecycle.records[entry.plugin].candidate.source == "upstream"

    def kinds(self) -> frozenset[str]:
        """The kinds of tools that can be run: by registered executors, and by those that usable plugins declare."""
        records = self.lifecycle.records.values()
        declared = [r.candidate.facts.declared.get("executors", ()) for r in records if r.usable]
        return frozenset(self.lifecycle.tables.contributions.all("executors")).union(*declared)

    def is_host(self, context: CallContext) -> bool:
        """Whether a context is the one with which this host itself calls, or a copy of it."""
        return context.is_host and context.ledger is self.default.ledger

    def changed(self) -> None:
        """Drop the cached results, because registry, hooks, grants, lists or listeners have changed."""
        with self._lock:
            self._changes += 1
            self.plans.clear()

    def cache_plan(self, plan: CallPlan, ids: Iterable[str], state: int) -> None:
        """Cache a compiled plan under `ids`, unless anything has changed since `state`."""
        with self._lock:
            if state == self._changes:
                self.plans.update(dict.fromkeys(ids, plan))

    @property
    def state(self) -> int:
        """A number that differs after each change."""
        return self._changes

    def current(self) -> CachedSpecs:
        """The cache for the current state; empty after a change."""
        stamp = (self.registry.generation, self.hooks.generation, self._changes)
        if self._cache.stamp != stamp:
            with self._lock:
                if self._cache.stamp != stamp:
                    self._cache = CachedSpecs(stamp)
        return self._cache

    def of(self, entry: RegistryEntry) -> ToolSpec | None:
        return step_by_hand(self.specify(entry, self._inline))

    async def specify(self, entry: RegistryEntry, mode: ExecutionMode) -> ToolSpec | None:
        """The tool of an entry after `tavern_before_register_tool`; None: a hook hides it."""
        cache = self.current()
        known = cache.specs.get(entry.id)
        if known is None:
            try:
                known = await self.decorated(self._plain_spec(entry), entry, mode)
                if aliases := self.registry.given_aliases(entry.id):
                    known = replace(known, aliases=tuple(dict.fromkeys((*known.aliases, *aliases))))
            except PolicyDenied as error:
                known = error.message
            cache.specs[entry.id] = known
        return None if isinstance(known, str) else known

    def _plain_spec(self, entry: RegistryEntry) -> ToolSpec:
        if entry.spec is not None:
            return entry.spec
        record = self.lifecycle.records[entry.plugin]
        return self.lifecycle.tables.cache.specs(record).get(entry.id) or self.placeholder(entry)

    def absence(self, written: str) -> MissingTool | None:
        """Why there is no tool with this id, if known."""
        if not isinstance(written, str):
            return None
        target = self.registry.missing_target(written)
        found = absence(target or written, self.lifecycle.records, self.registry.shadowed(), self.diagnostics)
        if (
            found is None
            and not self.config.workflows.as_tools
            and "workflow" in {split_id(i)[0] for i in spellings(written)}
        ):
            found = MissingTool(
                f"workflows.asTools is false in {self._file}", "remove that key, or run the workflow itself"
            )
        if found is None or not target:
            return found
        return replace(found, reason=f"it is an alias of {target!r:.200}: {found.reason}")

    def is_whole(self, tool_id: str) -> bool:
        """False: only the tool's id is known, so its plugin must be activated to learn more."""
        entry = self.registry.entries().get(tool_id)
        if entry is None or entry.spec is not None or entry.factory is not None:
            return True
        return tool_id in self.lifecycle.tables.cache.specs(self.lifecycle.records[entry.plugin])

    def placeholder(self, entry: RegistryEntry) -> ToolSpec:
        """The known facts about a tool whose plugin was never active."""
        record = self.lifecycle.records[entry.plugin]
        self.lifecycle.tables.cache.specs(record)
        draft = record.drafts.get(entry.id) or ToolSpec(entry.id, version=record.candidate.version, plugin=entry.plugin)
        return replace(draft, optional=entry.optional or draft.optional)

    async def decorated(self, spec: ToolSpec, entry: RegistryEntry, mode: ExecutionMode) -> ToolSpec:
        """Call all `tavern_before_register_tool` hooks in a chain.

        Each gets a copy, the result is validated, and every change is reported with its plugin.

        Raises:
            PolicyDenied: a hook hides the tool, or failed (POLICY_DENIED).
        """
        for impl in self.hooks.of("tavern_before_register_tool"):
            if impl.plugin == entry.plugin:
                continue
            try:
                answer = await self._calls.call_one(impl, {"tool": copy_for_plugin(spec), "owner": entry.plugin}, mode)
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                answer = Deny(f"it failed with {printed(error)}")
            if answer is None:
                continue
            is_foreign = self.lifecycle.records[entry.plugin].candidate.has_foreign_schemas
            reason = answer.reason if isinstance(answer, Deny) else why_not(answer, spec, is_foreign=is_foreign)
            if not reason:
                schema = with_marks(answer.input_schema, spec.input_schema)
                answer = replace(answer, impl=spec.impl, input_schema=schema)
                text = f"{impl.plugin} changed {', '.join(changed_parts(spec, answer)) or 'nothing'} of tool {spec.id}"
                self.diagnostics.add("TOOL_CHANGED", text, plugin=impl.plugin, severity="info")
                spec = answer
                continue
            text = f"{spec.id} was left out by {impl.plugin}: {reason}"
            self.diagnostics.add("TOOL_LEFT_OUT", text, plugin=impl.plugin, hint=f"see {impl.where}")
            raise PolicyDenied(text, plugin=impl.plugin)
        return spec

    async def made_for(
        self, entry: RegistryEntry, record: PluginRecord, context: CallContext, mode: ExecutionMode
    ) -> ToolSpec | None:
        """The tool that a factory makes for this caller."""
        assert entry.factory is not None
        if context.config is None:
            context = replace(context, config=self.default.config)
        try:
            made = await self._calls.work(f"the factory of {entry.id}", entry.factory.make, context, mode=mode)
            return _pick(made, entry, record, self.diagnostics)
        except CallError:
            raise
        except Exception as error:
            if isinstance(error, PluginError):  # an error about what it made
                reason, hint = f"made no tool: {error.message}", error.hint
            else:
                reason, hint = f"failed with {printed(error)}", ""
            text = f"the factory of {entry.id} {reason}"
            self.diagnostics.add("FACTORY_FAILED", text, plugin=entry.plugin, hint=hint, severity="error")
            raise UpstreamError(
                f"{entry.id} cannot be used: its factory {reason}", hint=hint, outcome="none"
            ) from error

    def for_caller(self, spec: ToolSpec, caller: CallContext) -> ToolSpec | None:
        """The tool as this caller sees it; None: it does not exist. Factories are called, other tools are fixed."""
        try:
            return self.asked_for(spec, caller)
        except CallError:
            return None

    def asked_for(self, spec: ToolSpec, caller: CallContext) -> ToolSpec | None:
        """`for_caller`, but raises a CallError with the reason if a factory fails or a hook refuses."""
        entry = self.registry.entries().get(spec.id)
        if entry is None or entry.factory is None:
            return spec
        record = self.lifecycle.records[entry.plugin]
        made = step_by_hand(self.made_for(entry, record, caller, self._inline))
        return None if made is None else step_by_hand(self.decorated(made, entry, self._inline))

    async def made_openly(self, record: PluginRecord, context: CallContext, mode: ExecutionMode) -> list[ToolSpec]:
        """The tools that a plugin's factories without names make for this caller, besides those with known ids."""
        if context.config is None:
            context = replace(context, config=self.default.config)
        owner, known = OfferingPlugin.of(record.candidate), self.registry.entries()
        found: dict[str, ToolSpec] = {}
        for factory in record.open_factories:
            try:
                made = await self._calls.work(f"a factory of {record.name}", factory.make, context, mode=mode)
                specs = [] if made is None else specs_of(Offer(made, factory.name, optional=factory.optional), owner)
                for spec in specs:
                    if spec.id not in known and record.may_offer(spec.id):
                        entry = RegistryEntry(spec.id, record.name, spec, factory, spec.optional)
                        found.setdefault(spec.id, await self.decorated(spec, entry, mode))
            except Exception as error:  # noqa: BLE001 - any error of a plugin affects only its own tools
                text = f"a factory failed with {printed(error)} when the host called it"
                self.diagnostics.add("FACTORY_FAILED", text, plugin=record.name, severity="error")
        return list(found.values())

    def open_for(self, caller: CallContext) -> list[ToolSpec]:
        """`made_openly` of all active plugins, for sync code."""
        records = [r for r in self.lifecycle.records.values() if r.active and r.open_factories]
        return [spec for r in records for spec in step_by_hand(self.made_openly(r, caller, self._inline))]

    def policy(self) -> AccessPolicy:
        cache = self.current()
        if cache.policy is None:
            entries = self.registry.entries()
            aliases = self.registry.aliases() if self._config_has_lists() else {}
            policy = compile_access(
                self.config,
                list(entries),
                list(self.lifecycle.records),
                aliases=aliases,
                file=self._file,
                host=self.host_plugins(),
            )
            if self.read_workflows_for(policy.diagnostics):
                return self.policy()
            cache.policy = policy
            unlisted = self.unlisted_upstreams()
            for finding in (*self.registry.mismatches(), *policy.diagnostics):
                ids = spellings(str(finding.details.get("entry", "")))
                if unlisted.isdisjoint(plugin_key(split_id(i)[0]) for i in ids):
                    self.diagnostics.add_finding(finding)
        return cache.policy

    def unlisted_upstreams(self) -> set[str]:
        """The upstreams whose tools are not known yet, as names are compared."""
        candidates = (record.candidate for record in self.lifecycle.records.values())
        return {plugin_key(each.name) for each in candidates if each.source == "upstream" and not each.tool_ids}

    def judge_pin(self, spec: ToolSpec) -> None:
        """Return if a tool is not pinned, or is as it was reviewed. Raises ToolQuarantined (TOOL_QUARANTINED)."""
        self.pins.check(spec, self.policy().pinned, self.registry.entries())

    def without_changed(self, specs: Iterable[ToolSpec]) -> list[ToolSpec]:
        """The tools whose texts a model may read: those that changed under their pin are left out."""
        found = list(specs)
        changed = {tool_id for tool_id in self.pins.changed(found) if self.is_whole(tool_id)}
        return [spec for spec in found if spec.id not in changed] if changed else found

    def rights(self, record: PluginRecord, spec: ToolSpec) -> Rights:
        """The rights of a plugin's tool and of the calls that it makes, as the host allows them, without scopes."""
        capabilities, host = record.capabilities(spec), self.config.capabilities
        return Rights(
            capabilities,
            frozenset(
                c for c in capabilities if is_capability(c) and not is_dangerous(c)
            ),  # of a caller; hooks are the plugin's own
            None if host.allow is None else frozenset(host.allow),
            frozenset(host.deny),
            asked=None if record.candidate.implicit else record.candidate.requested,
        )

    def host_plugins(self) -> list[str]:
        """The host's own plugins."""
        return [name for name, record in self.lifecycle.records.items() if record.candidate.source == "builtin"]

    def _config_has_lists(self) -> bool:
        config = self.config
        tools, approval = config.tools, config.approval
        return any((
            tools.allow, tools.only, tools.deny, tools.groups, tools.pin, tools.trusted, tools.untrusted,
            approval.ask, approval.allow, approval.deny, config.callers, config.limits.tools,
        ))  # fmt: skip

    def index(self) -> ToolIndex:
        """All tools, searchable. Kept across states: only changed tools are indexed again."""
        cache = self.current()
        if self._index is None:
            from tavern_core.kernel.catalogue.search import ToolIndex

            self._index = ToolIndex()
        if not cache.is_indexed:
            self._index.sync(self.all())
            cache.is_indexed = True
        return self._index

    def all(self, entries: Mapping[str, RegistryEntry] | None = None) -> list[ToolSpec]:
        """The tools of one snapshot of the registry: the current one, or `entries`."""
        entries = self.registry.entries() if entries is None else entries
        found = (self.of(entries[tool_id]) for tool_id in sorted(entries))
        return [spec for spec in found if spec is not None]

    def visible_to_host(self) -> tuple[ToolSpec, ...]:
        cache = self.current()
        entries = self.registry.entries()
        if cache.listed is None:
            policy = self.policy()
            usable = {n for n, r in self.lifecycle.records.items() if r.usable}
            kinds = self.kinds()
            listed = tuple(
                s
                for s in self.without_changed(self.all(entries))
                if entries[s.id].plugin in usable and s.executor in kinds and policy.host_verdict(s).allowed
            )
            cache.by_id = {s.id: s for s in listed}
            cache.has_factories = any(e.factory for e in entries.values())
            cache.listed = listed  # last: a reader that sees it finds the rest
        if not cache.has_factories:
            return cache.listed
        policy = self.policy()
        shown = (self.for_caller(s, self.default) for s in cache.listed)
        return tuple(self.without_changed(s for s in shown if s is not None and policy.host_verdict(s).allowed))


def _pick(made: Any, entry: RegistryEntry, record: PluginRecord, diagnostics: Diagnostics) -> ToolSpec | None:
    """The tool with the entry's id among a factory's tools; undeclared names become diagnostics."""
    if made is None:
        return None
    factory = entry.factory
    assert isinstance(factory, ToolFactory)
    specs: Iterable[ToolSpec] = specs_of(made, OfferingPlugin.of(record.candidate))
    if factory.name is not None:
        specs = [replace(s, name=f"{record.name}:{factory.name}") for s in list(specs)[:1]]
    promised = None if factory.names is None else {fold(split_id(n)[1]) for n in factory.names}
    found = None
    for spec in specs:
        if promised is not None and fold(spec.local_name) not in promised:
            diagnostics.add(
                "FACTORY_NAMES", f"a factory made {spec.id}, which its names do not promise; it was left out", plugin=record.name,
                hint=f"add {spec.local_name!r} to names=[...]",
            )  # fmt: skip
        elif fold(spec.id) == fold(entry.id) and found is not None:
            diagnostics.add(
                "FACTORY_NAMES", f"a factory made two tools called {entry.id}; the second was left out", plugin=record.name,
                hint="rename one of them; case, - and _ do not count",
            )  # fmt: skip
        elif fold(spec.id) == fold(entry.id):
            draft = record.drafts.get(entry.id)
            spec = spec if draft is None else merge_declaration(draft, spec, record.candidate.version)
            found = replace(spec, name=entry.id, optional=spec.optional or entry.optional)
    if found is None and promised is not None:
        diagnostics.add("FACTORY_NAMES", f"a factory promised {entry.id} and did not make it", plugin=record.name)
    return found
