"""`tavern.tools`, and the pipeline's view of the same tools: find one, judge who may use it, compile its path.

Listing works on declarations and on what is remembered from earlier activations; nothing is imported for it. Compiling a
plan needs the plugin to be active.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tavern_core.contract.decisions import Deny
from tavern_core.contract.protocols import ToolHome
from tavern_core.contract.tools import ToolFactory
from tavern_core.errors import CallError, PluginError, PolicyDenied, TavernError, ToolNotFound, UpstreamError
from tavern_core.kernel.access import AccessPolicy, compile_access
from tavern_core.kernel.contributions import Contributions
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.hook_calls import HookCalls
from tavern_core.kernel.hook_table import HookTable, Implementation
from tavern_core.kernel.lifecycle import Lifecycle
from tavern_core.kernel.modes import Mode, step_by_hand
from tavern_core.kernel.offers import Owner, specs_of
from tavern_core.kernel.plans import Plan
from tavern_core.kernel.profiles import Profile
from tavern_core.kernel.recorder import Recorder
from tavern_core.kernel.records import Record
from tavern_core.kernel.registry import Entry, Registry
from tavern_core.kernel.search import ToolIndex
from tavern_core.model.call import HOST_PRINCIPAL, CallContext, Rights
from tavern_core.model.capability import is_dangerous
from tavern_core.model.config import HostConfig
from tavern_core.model.ids import split_id
from tavern_core.model.nearest import nearest
from tavern_core.model.tool import ToolSpec
from tavern_core.schema.defaults import compile_defaults
from tavern_core.schema.redact import compile_redactor
from tavern_core.schema.validate import compile_output_validator, compile_validator


@dataclass(frozen=True, slots=True)
class Why:
    """Why a tool can or cannot be seen and called, for a person."""

    id: str
    visible: bool
    reason: str
    fix: str = ""
    plugin: str = ""

    def __bool__(self) -> bool:
        return self.visible

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "visible": self.visible, "reason": self.reason, "fix": self.fix or None, "plugin": self.plugin or None}


@dataclass(frozen=True, slots=True)
class ToolsDiff:
    """What a refresh changed, by tool id."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def to_json(self) -> dict[str, Any]:
        return {"added": list(self.added), "removed": list(self.removed), "changed": list(self.changed)}


@dataclass(slots=True)
class _Seen:
    """What was worked out for one state of registry, hooks and lists."""

    stamp: tuple[int, int, int]
    plans: dict[str, Plan] = field(default_factory=dict)
    specs: dict[str, ToolSpec | str] = field(default_factory=dict)
    """Id → the tool as the hooks left it, or why they left it out."""
    listed: tuple[ToolSpec, ...] | None = None
    policy: AccessPolicy | None = None
    index: ToolIndex | None = None


class Tools:
    """All tools of a host."""

    def __init__(
        self,
        *,
        registry: Registry,
        lifecycle: Lifecycle,
        hooks: HookTable,
        calls: HookCalls,
        contributions: Contributions,
        config: HostConfig,
        profiles: Callable[[str], Profile],
        recorder: Recorder,
        diagnostics: Diagnostics,
        mode: Mode,
        inline: Mode,
        wait: Callable[[Coroutine[Any, Any, Any]], Any],
        home_of: Callable[[Record, ToolSpec], ToolHome],
    ) -> None:
        self._registry = registry
        self._lifecycle = lifecycle
        self._hooks = hooks
        self._calls = calls
        self._contributions = contributions
        self._config = config
        self._profiles = profiles
        self._recorder = recorder
        self._diagnostics = diagnostics
        self._mode = mode
        self._inline = inline
        self._wait = wait
        self._home_of = home_of
        self._lock = threading.RLock()
        self._changes = 0
        self._seen = _Seen((-1, -1, -1))
        self._default = CallContext(principal=HOST_PRINCIPAL, config=config.config)

    # For people and programs ------------------------------------------------------------------------------------------

    def list(self, profile: str | None = None, *, context: CallContext | None = None) -> list[ToolSpec]:
        """The tools that a caller may see, sorted by id. Nothing is imported; what is only declared has no parameters yet.

        Args:
            profile: only the inventory of this agent profile.
            context: the caller; None: the host itself.

        Raises:
            ProfileInvalid: there is no such profile (PROFILE_INVALID).
        """
        caller = self._caller(profile, context)
        if caller is self._default and not self._config.callers:
            return list(self._visible_to_host())
        inventory = self._profiles(caller.profile) if caller.profile is not None else None
        policy = self._policy()
        shown = (self._for_caller(spec, caller) for spec in self._all_specs())
        return [s for s in shown if s is not None and policy.verdict(s, caller, inventory).allowed]

    def get(self, tool: str) -> ToolSpec:
        """One tool, with everything known about it; activates its plugin when only its id is known.

        Raises:
            ToolNotFound: there is none (TOOL_NOT_FOUND).
            PluginError: its plugin cannot be activated.
        """
        entry = self._registry.resolve(tool)
        spec = self._spec(entry)
        if spec is None or (entry.spec is None and entry.factory is None and not spec.impl and not self._is_whole(entry)):
            self._wait(self._lifecycle.activate(entry.plugin))
            entry = self._registry.resolve(tool)
            spec = self._spec(entry)
        if entry.factory is not None:
            made = self._for_caller(self._placeholder(entry), self._default)
            spec = made or spec
        if spec is None:
            raise ToolNotFound(f"{entry.id} was left out: {self.why(tool).reason}")
        return spec

    def search(
        self,
        query: str,
        *,
        capability: str | None = None,
        tag: str | None = None,
        limit: int = 20,
        profile: str | None = None,
        context: CallContext | None = None,
    ) -> list[ToolSpec]:
        """The tools that fit best, best first; only those the caller may see.

        Args:
            query: an id, a name or words, Chinese or English; empty: all.
            capability: only tools that need it.
            tag: only tools with this tag.
        """
        visible = {spec.id: spec for spec in self.list(profile, context=context)}
        found = self._index().search(query, capability=capability, tag=tag, limit=limit, among=visible)
        return [visible[tool_id] for tool_id, _ in found]

    def why(self, tool: str, *, profile: str | None = None, context: CallContext | None = None) -> Why:
        """Why a tool is there, or is not: plugin state, grants, clashes, lists, the profile. Never raises for an id."""
        try:
            entry = self._registry.resolve(tool)
        except ToolNotFound as error:
            return self._why_unknown(tool, error)
        record = self._lifecycle.records[entry.plugin]
        spec = self._spec(entry)
        if spec is None:
            reason = self._look().specs.get(entry.id)
            return Why(entry.id, False, str(reason), f"tavern plugins disable {entry.plugin}", entry.plugin)
        try:
            caller = self._caller(profile, context)
            inventory = self._profiles(caller.profile) if caller.profile is not None else None
        except TavernError as error:
            return Why(entry.id, False, error.message, error.hint, entry.plugin)
        if not record.usable:
            return Why(entry.id, False, f"plugin {record.name} is {record.state}: {record.reason}", "tavern doctor", record.name)
        verdict = self._policy().verdict(spec, caller, inventory)
        if not verdict.allowed:
            return Why(entry.id, False, verdict.reason, verdict.fix, entry.plugin)
        if self._for_caller(spec, caller) is None:
            return Why(entry.id, False, "its factory makes no tool for this caller", "", entry.plugin)
        if missing := sorted(spec.capabilities - record.capabilities(spec)):
            grant = f"tavern plugins grant {record.name} {' '.join(missing)}"
            return Why(entry.id, True, f"needs {', '.join(missing)}, which {record.name} was not granted", grant, entry.plugin)
        return Why(entry.id, True, f"offered by {entry.plugin}", "", entry.plugin)

    def snapshot(self) -> tuple[ToolSpec, ...]:
        """All tools at this moment, hidden ones included, sorted by id. Does not change later."""
        return tuple(self._all_specs())

    def known_ids(self) -> list[str]:
        """Ids of all tools, hidden ones included."""
        return sorted(self._registry.entries())

    # For the pipeline -------------------------------------------------------------------------------------------------

    def ready(self, written: str) -> Plan | None:
        """The compiled plan of an active tool; None when there is more to do (`find`)."""
        seen = self._seen
        if seen.stamp != (self._registry.generation, self._hooks.generation, self._changes):
            return None
        return seen.plans.get(written)

    async def find(self, written: str, context: CallContext | None) -> Plan:
        """The plan, activating the plugin if need be; see `pipeline.Catalogue`."""
        entry = self._registry.resolve(written)
        record = self._lifecycle.records[entry.plugin]
        if not record.active:
            await self._activate(entry, record)
            entry = self._registry.resolve(entry.id)
        if entry.factory is not None:
            return await self._factory_plan(entry, record, context or self._default)
        if (spec := await self._specify(entry, self._mode)) is None:
            raise PolicyDenied(f"{entry.id} was left out: {self._look().specs.get(entry.id)}")
        await self._provide_executor(spec)
        with self._lock:
            seen = self._look()
            plan = seen.plans.get(entry.id)
            if plan is None:
                plan = seen.plans[entry.id] = self._compile(spec, record)
            if isinstance(written, str) and len(seen.plans) < 50_000:
                seen.plans[written] = plan  # other spellings are as quick from now on
        return plan

    def admits(self, plan: Plan, context: CallContext) -> Plan:
        """Judge the caller by lists and profile; see `pipeline.Catalogue`."""
        inventory = None
        if context.profile is not None:
            try:
                inventory = self._profiles(context.profile)
            except TavernError as error:
                raise PolicyDenied(f"{plan.id} was refused: {error.message}", hint=error.hint, profile=context.profile) from error
        verdict = self._policy().verdict(plan.spec, context, inventory)
        if not verdict.allowed:
            raise PolicyDenied(f"{plan.id} was refused: {verdict.reason}", hint=verdict.fix, rule=verdict.rule)
        if inventory is not None and inventory.capabilities is not None:
            plan = replace(plan, rights=replace(plan.rights, profile=frozenset(inventory.capabilities)))
        return plan

    def changed(self) -> None:
        """Forget what was worked out: grants, lists or profiles have changed."""
        with self._lock:
            self._changes += 1

    # Inside -----------------------------------------------------------------------------------------------------------

    async def _activate(self, entry: Entry, record: Record) -> None:
        if not record.usable:
            raise UpstreamError(
                f"{entry.id} cannot be used: plugin {record.name} is {record.state}: {record.reason}",
                hint="tavern doctor", plugin=record.name, state=record.state,
            )  # fmt: skip
        try:
            await self._lifecycle.activate(entry.plugin)
        except PluginError as error:
            raise UpstreamError(
                f"{entry.id} cannot be used: {error.message}", hint=error.hint, plugin=record.name, code=error.code
            ) from error

    async def _provide_executor(self, spec: ToolSpec) -> None:
        """Activate the plugin that brings the executor of this kind of tool, when it is not active yet."""
        if self._contributions.get("executors", spec.kind) is not None:
            return
        for record in self._lifecycle.records.values():
            if not record.active and record.usable and not record.candidate.implicit:
                part = record.candidate.manifest().executors or ()
                if any(declared.name == spec.kind for declared in part):
                    await self._lifecycle.activate(record.name)
                    return

    def _compile(self, spec: ToolSpec, record: Record) -> Plan:
        """Everything that can be known about the path of a tool's calls before the first one."""
        executor = self._contributions.get("executors", spec.kind)
        if executor is None:
            kinds = self._contributions.all("executors")
            near = nearest(spec.kind, kinds)
            raise UpstreamError(
                f"{spec.id} is of kind {spec.kind!r}, for which there is no executor",
                hint=f"did you mean {near[0]!r}?" if near else f"kinds: {', '.join(sorted(kinds))}",
            )
        try:
            bound = executor.bind(spec, self._home_of(record, spec))
        except CallError:
            raise
        except TavernError as error:
            raise UpstreamError(f"{spec.id} cannot be used: {error.message}", hint=error.hint, code=error.code) from error
        inputs = compile_validator(spec.input_schema, name=spec.id).build()
        outputs = None if spec.output_schema is None else compile_output_validator(spec.output_schema, name=spec.id).build()
        hooked = {name: self._for_tool(name, spec) for name in
                  ("tavern_before_execute", "tavern_check_call", "tavern_transform_result", "tavern_after_execute")}  # fmt: skip
        events = self._hooks.of("tavern_on_event")
        blocked = self._blocked()
        own = record.capabilities(spec)
        limits = self._config.limits
        milliseconds = spec.timeout_ms or limits.timeout_ms
        policy = self._policy()
        all_hooks = (*(i for group in hooked.values() for i in group), *events)
        needs_call = bool(bound.wants_call or blocked or all_hooks or self._recorder.is_on)
        rights = Rights(own, _undangerous(own), _set(self._config.capabilities.allow), frozenset(self._config.capabilities.deny))
        return Plan(
            spec=spec,
            id=spec.id,
            usage=record.usage,
            run=bound.run,
            is_async=bound.is_async,
            blocking=bound.blocking and not bound.is_async,
            wants_call=bound.wants_call,
            stoppable=bound.stoppable,
            accepts=inputs.is_valid,
            inputs=inputs,
            fill=compile_defaults(spec.input_schema),
            returns=outputs.is_valid if outputs else None,
            outputs=outputs,
            seconds=None if milliseconds is None else milliseconds / 1000,
            before=hooked["tavern_before_execute"],
            gates=hooked["tavern_check_call"],
            transforms=hooked["tavern_transform_result"],
            after=hooked["tavern_after_execute"],
            events=events,
            blocked=blocked,
            guarded=bool(self._config.callers) or not policy.host_verdict(spec).allowed,
            rights=rights,
            host=replace(self._default, permissions=rights.caller),
            redact=compile_redactor(spec.input_schema),
            needs_call=needs_call,
            needs_loop=bound.is_async or any(i.is_async for i in all_hooks),
        )

    def _for_tool(self, hook: str, spec: ToolSpec) -> tuple[Implementation, ...]:
        return tuple(i for i in self._hooks.of(hook) if i.when is None or i.when(spec))

    def _blocked(self) -> str:
        """Why every call is refused: a plugin whose granted gate could not be activated, and that nobody disabled."""
        for record in self._lifecycle.records.values():
            gate = "hook:server:tool:check"
            if record.state == "failed" and gate in (record.granted | record.candidate.requested & record.granted):
                if self._config.plugins.on_failure.get(record.name) == "open":
                    continue
                return f"{record.name}: its gate could not be activated, so no call can be judged: {record.reason}"
        return ""

    async def _factory_plan(self, entry: Entry, record: Record, context: CallContext) -> Plan:
        spec = await self._made(entry, record, context, self._mode)
        if spec is None:
            raise ToolNotFound(
                f"{entry.id} does not exist for this caller: its factory made no tool", hint=f"tavern tools why {entry.id}"
            )
        return self._compile(await self._decorated(spec, entry, self._mode), record)

    async def _made(self, entry: Entry, record: Record, context: CallContext, mode: Mode) -> ToolSpec | None:
        """The tool that a factory makes for this caller."""
        assert entry.factory is not None
        if context.config is None:
            context = replace(context, config=self._config.config)
        try:
            made = entry.factory.make(context)
            if isinstance(made, Awaitable):
                made = await mode.awaited(made, self._config.limits.hook_timeout_ms / 1000)
            return _pick(made, entry, record, self._diagnostics)
        except CallError:
            raise
        except Exception as error:
            self._diagnostics.add(
                "FACTORY_FAILED", f"the factory of {entry.id} failed with {error!r}", plugin=entry.plugin, severity="error"
            )
            raise UpstreamError(f"{entry.id} cannot be used: its factory failed with {error!r}", outcome="none") from error

    def _for_caller(self, spec: ToolSpec, caller: CallContext) -> ToolSpec | None:
        """The tool as this caller sees it: a factory is asked, others are the same for all."""
        entry = self._registry.entries().get(spec.id)
        if entry is None or entry.factory is None:
            return spec
        record = self._lifecycle.records[entry.plugin]
        try:
            made = step_by_hand(self._made(entry, record, caller, self._inline))
            return None if made is None else step_by_hand(self._decorated(made, entry, self._inline))
        except CallError:
            return None

    def _spec(self, entry: Entry) -> ToolSpec | None:
        return step_by_hand(self._specify(entry, self._inline))

    async def _specify(self, entry: Entry, mode: Mode) -> ToolSpec | None:
        """The tool of an entry, as `tavern_before_register_tool` left it; None when a hook left it out."""
        seen = self._look()
        known = seen.specs.get(entry.id)
        if known is None:
            try:
                known = await self._decorated(self._plain_spec(entry), entry, mode)
            except PolicyDenied as error:
                known = error.message
            seen.specs[entry.id] = known
        return None if isinstance(known, str) else known

    def _plain_spec(self, entry: Entry) -> ToolSpec:
        if entry.spec is not None:
            return entry.spec
        record = self._lifecycle.records[entry.plugin]
        return self._lifecycle.specs(record).get(entry.id) or self._placeholder(entry)

    def _is_whole(self, entry: Entry) -> bool:
        return entry.id in self._lifecycle.specs(self._lifecycle.records[entry.plugin])

    def _placeholder(self, entry: Entry) -> ToolSpec:
        """What is known of a tool whose plugin was never active."""
        record = self._lifecycle.records[entry.plugin]
        described = _declared_description(record, entry.id)
        return ToolSpec(
            entry.id, described, version=record.candidate.version, plugin=entry.plugin, optional=entry.optional
        )

    async def _decorated(self, spec: ToolSpec, entry: Entry, mode: Mode) -> ToolSpec:
        """Chain `tavern_before_register_tool`; what comes out is validated, id and owner cannot change.

        Raises:
            PolicyDenied: a hook left the tool out, or failed (POLICY_DENIED).
        """
        from tavern_core.schema.check import check_schema

        for impl in self._hooks.of("tavern_before_register_tool"):
            if impl.plugin == entry.plugin:
                continue
            try:
                answer = await self._calls.ask(impl, {"tool": spec, "owner": entry.plugin}, mode)
            except Exception as error:  # noqa: BLE001 - whatever a plugin raises
                answer = Deny(f"it failed with {error!r}")
            if answer is None:
                continue
            if isinstance(answer, ToolSpec):
                errors = [f for f in check_schema(answer.input_schema, spec.id) if f.severity == "error"]
                if (answer.name, answer.plugin) != (spec.name, spec.plugin):
                    answer = Deny("it tried to change the tool's id or owner")
                elif errors:
                    answer = Deny(f"its change is no valid schema: {errors[0]}")
                else:
                    spec = answer
                    continue
            reason = answer.reason if isinstance(answer, Deny) else f"it answered {type(answer).__name__}"
            text = f"{spec.id} was left out by {impl.plugin}: {reason}"
            self._diagnostics.add("TOOL_LEFT_OUT", text, plugin=impl.plugin, hint=f"see {impl.where}")
            raise PolicyDenied(text, plugin=impl.plugin)
        return spec

    def _look(self) -> _Seen:
        """What is worked out for the present state; started anew when anything has changed."""
        stamp = (self._registry.generation, self._hooks.generation, self._changes)
        if self._seen.stamp != stamp:
            with self._lock:
                if self._seen.stamp != stamp:
                    self._seen = _Seen(stamp)
        return self._seen

    def _policy(self) -> AccessPolicy:
        seen = self._look()
        if seen.policy is None:
            entries = self._registry.entries()
            aliases = {a: e.id for e in entries.values() for a in self._registry.aliases_of(e.id)} if self._config_has_lists() else {}
            seen.policy = compile_access(
                self._config.tools, self._config.callers, list(entries), list(self._lifecycle.records), aliases=aliases
            )
            for finding in seen.policy.diagnostics:
                self._diagnostics.add(finding.code, finding.message, hint=finding.hint)
        return seen.policy

    def _config_has_lists(self) -> bool:
        tools = self._config.tools
        return bool(tools.allow or tools.only or tools.deny or tools.groups or self._config.callers)

    def _index(self) -> ToolIndex:
        seen = self._look()
        if seen.index is None:
            seen.index = ToolIndex(self._all_specs())
        return seen.index

    def _all_specs(self) -> list[ToolSpec]:
        entries = self._registry.entries()
        found = (self._spec(entries[tool_id]) for tool_id in sorted(entries))
        return [spec for spec in found if spec is not None]

    def _visible_to_host(self) -> tuple[ToolSpec, ...]:
        seen = self._look()
        entries = self._registry.entries()
        if seen.listed is None:
            policy = self._policy()
            usable = {n for n, r in self._lifecycle.records.items() if r.usable}
            seen.listed = tuple(
                s for s in self._all_specs() if entries[s.id].plugin in usable and policy.host_verdict(s).allowed
            )
        if not any(e.factory for e in entries.values()):
            return seen.listed
        shown = (self._for_caller(s, self._default) for s in seen.listed)
        return tuple(s for s in shown if s is not None)

    def _caller(self, profile: str | None, context: CallContext | None) -> CallContext:
        if profile is None:
            return context or self._default
        return replace(context or self._default, profile=profile)

    def _why_unknown(self, tool: str, error: ToolNotFound) -> Why:
        text = str(tool)
        plugin = split_id(text)[0]
        if (reason := self._registry.shadowed().get(text)) is not None:
            return Why(text, False, reason, "rename one, or disable the other plugin", plugin)
        record = self._lifecycle.records.get(plugin)
        if record is not None and not record.active:
            return Why(text, False, f"plugin {plugin} is {record.state}: {record.reason}", "tavern doctor", plugin)
        if record is not None:
            for diagnostic in self._diagnostics.all():
                if diagnostic.plugin == plugin and text in diagnostic.message:
                    return Why(text, False, diagnostic.message, diagnostic.hint, plugin)
        return Why(text, False, error.message, error.hint, plugin)


def _pick(made: Any, entry: Entry, record: Record, diagnostics: Diagnostics) -> ToolSpec | None:
    """The tool with the entry's id among what a factory made; names that were not promised are diagnostics."""
    if made is None:
        return None
    factory = entry.factory
    assert isinstance(factory, ToolFactory)
    candidate = record.candidate
    owner = Owner(record.name, candidate.version, candidate.manifest().aliases, candidate.source == "builtin")
    specs: Iterable[ToolSpec] = specs_of(made, owner)
    if factory.name is not None:
        specs = [replace(s, name=f"{record.name}:{factory.name}") for s in list(specs)[:1]]
    promised = None if factory.names is None else {f"{record.name}:{split_id(n)[1]}" for n in factory.names}
    found = None
    for spec in specs:
        if promised is not None and spec.id not in promised:
            diagnostics.add(
                "FACTORY_NAMES", f"a factory made {spec.id}, which its names do not promise; it was left out", plugin=record.name,
                hint=f"add {spec.local_name!r} to names=[...]",
            )  # fmt: skip
        elif spec.id == entry.id:
            found = replace(spec, optional=spec.optional or entry.optional)
    if found is None and promised is not None:
        diagnostics.add("FACTORY_NAMES", f"a factory promised {entry.id} and did not make it", plugin=record.name)
    return found


def _declared_description(record: Record, tool_id: str) -> str:
    declared = record.candidate.manifest().tools
    if isinstance(declared, tuple):
        for item in declared:
            if item.id.rpartition(":")[2] == split_id(tool_id)[1]:
                return item.description
    return ""


def _undangerous(capabilities: frozenset[str]) -> frozenset[str]:
    return frozenset(c for c in capabilities if not is_dangerous(c))


def _set(names: tuple[str, ...] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)


