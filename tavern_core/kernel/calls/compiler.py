"""Finds the tool of a call, checks who may use it, and compiles the plan of its calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import NoneType
from typing import Any, Final

from tavern_core.contract.protocols import BoundTool
from tavern_core.contract.python_targets import BindsItself, PythonTarget
from tavern_core.errors import CallError, PluginError, PolicyDenied, TavernError, ToolNotFound, UpstreamError
from tavern_core.kernel.access.limit_rules import LimitRules
from tavern_core.kernel.calls.attempt import execute_of, runner_of
from tavern_core.kernel.calls.cross_process_cancellation import Cancellation
from tavern_core.kernel.calls.optional_steps import steps_of
from tavern_core.kernel.calls.running_call import current
from tavern_core.kernel.catalogue.call_plan import (
    Admission,
    AnswerRules,
    ArgumentRules,
    Bounds,
    CallPlan,
    ContentRules,
    Execute,
    InternalOperation,
    PlanHooks,
)
from tavern_core.kernel.catalogue.namespace_resolvers import canonical
from tavern_core.kernel.catalogue.tool_catalogue import ToolCatalogue
from tavern_core.kernel.hooks.argument_copies import ToolSnapshot
from tavern_core.kernel.limits.limiter_registry import LimitTable, ToolLimiter
from tavern_core.kernel.plugins.effective_scopes import EffectiveScopes
from tavern_core.kernel.plugins.plugin_record import PluginRecord
from tavern_core.kernel.plugins.tool_homes import ToolHomes
from tavern_core.kernel.registry import RegistryEntry
from tavern_core.model.call import CallContext
from tavern_core.model.message_translation import Language
from tavern_core.model.naming_rules import spellings, split_id
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.safe_printing import with_type
from tavern_core.model.tool import ToolSpec
from tavern_core.model.untrusted_content_rules import effect_of, reads_addresses
from tavern_core.schema.bounded_json_copying import ROOM, quick_copy
from tavern_core.schema.compiled_argument_validation import compile_intake
from tavern_core.schema.defaults import compile_defaults
from tavern_core.schema.guarded_value_search import compile_guarded
from tavern_core.schema.integers import compile_integers
from tavern_core.schema.redact import compile_marked, compile_redactor
from tavern_core.schema.validate import compile_output_validator, compile_validator

MOST_SPELLINGS = 50_000
_HOOKS: Final = ("tavern_before_execute", "tavern_check_call", "tavern_transform_result", "tavern_after_execute")
_SURE: Final[Mapping[str, type]] = {"integer": int, "number": int, "boolean": bool, "null": NoneType}


class Compiler:
    """Compiles the plan of each tool at its first call, and again when anything it depends on has changed."""

    def __init__(
        self,
        catalogue: ToolCatalogue,
        homes: ToolHomes,
        reach: EffectiveScopes,
        limit_table: LimitTable,
        cancellation: Cancellation,
    ) -> None:
        specs = catalogue.specs
        base, tables = specs.base, specs.lifecycle.tables
        self.base: Final = base
        self.cancellation: Final = cancellation
        self._limit_table = limit_table
        self._specs = specs
        self._namespaces = catalogue.profiles.namespaces
        self._upstreams = catalogue.upstreams
        self._profile = catalogue.profiles.resolved
        self._homes = homes
        self._reach = reach
        self._contributions = tables.contributions
        self._recorder = base.recorder
        self._mode = base.mode
        self._wait = base.portal.run
        self._known_secrets = base.known_secrets
        self._inner_plans: dict[InternalOperation, tuple[int, CallPlan]] = {}
        self.ready: Callable[[str], CallPlan | None] = specs.plans.get
        """The plan of an active tool that is the same for all callers; None: `find` has more to do."""

    async def find(self, written: str, context: CallContext | None) -> CallPlan:
        """The plan, after activating the plugin if necessary. Also works without an event loop.

        Raises:
            CallError: there is no such tool, or it cannot be used (TOOL_NOT_FOUND, POLICY_DENIED, UPSTREAM_ERROR).
        """
        self.cancellation.watch()  # begins before the first call of a host
        found = self._find(written, context)
        return await found if asyncio._get_running_loop() is not None else self._wait(found)

    async def _find(self, written: str | InternalOperation, context: CallContext | None) -> CallPlan:
        if isinstance(written, InternalOperation):
            return await self._find_inner(written)
        self._specs.catch_up(written)
        try:
            entry = self._specs.registry.resolve(written)
        except ToolNotFound as error:
            meant = self._specs.registry.missing_target(written) or written
            if self._upstreams is not None and await self._upstreams.find(_plugin_of(meant)):
                return await self._find(written, context)
            return await self._made_for(written, context) or await self._elsewhere(written, error)
        await self._stand_guard(entry)
        record = self._specs.lifecycle.records[entry.plugin]
        if not record.active:
            await self._activate(entry)
            entry = self._specs.registry.resolve(entry.id)
            record = self._specs.lifecycle.records[entry.plugin]  # a new record after a reload
        if entry.factory is not None:
            return await self._factory_plan(entry, record, context or self._specs.default)
        if (spec := await self._specs.specify(entry, self._mode)) is None:
            raise PolicyDenied(f"{entry.id} was left out: {self._specs.current().specs.get(entry.id)}")
        await self._provide_executor(spec)
        is_moving = spec.kind == "workflow" and entry.id.startswith("workflow:")
        plans = self._specs.current().moving if is_moving else self._specs.plans
        plan = plans.get(entry.id)
        if plan is None and is_moving:
            plan = plans[entry.id] = self._compile(spec, record, is_kept=True)
        if plan is None:
            state = self._specs.state
            plan = self._compile(spec, record, is_kept=True)
            # Other spellings are found as quickly from now on, up to a limit: callers may invent spellings.
            has_room = isinstance(written, str) and len(self._specs.plans) < MOST_SPELLINGS
            self._specs.cache_plan(plan, {entry.id, written} if has_room else {entry.id}, state)
        return plan

    async def _find_inner(self, inner: InternalOperation) -> CallPlan:
        spec = inner.spec
        await self._stand_guard(RegistryEntry(spec.id, spec.plugin))
        state, known = self._specs.state, self._inner_plans.get(inner)
        if known is None or known[0] != state:
            plan = self._compile(spec, self._specs.lifecycle.records[spec.plugin], is_kept=True)
            access = self._specs.policy().for_inner(spec)
            guarded = bool(access.denied or not access.host.allowed)
            # A model that the operator configured for an agent is neither untrusted nor a destination for data.
            # The maker of such a call waits for its answer, so it never becomes a job.
            plan = replace(
                plan,
                admission=replace(plan.admission, access=access, guarded=guarded),
                bounds=replace(plan.bounds, inline_s=None),
                content=ContentRules(),
            )
            known = self._inner_plans[inner] = state, plan
        return known[1]

    async def admits(self, plan: CallPlan, context: CallContext) -> CallPlan:
        """The plan with the rights of the caller's profile, if lists and profile let the caller use the tool.

        Raises:
            PolicyDenied: they do not (POLICY_DENIED).
        """
        inventory = None
        if context.profile is not None:
            try:
                inventory = await self._profile(context.profile)
            except TavernError as error:
                raise PolicyDenied(
                    f"{plan.id} was refused: {error.message}", hint=error.hint, profile=context.profile
                ) from error
        verdict = plan.admission.access.verdict(context, inventory)
        if not verdict.allowed:
            raise PolicyDenied(f"{plan.id} was refused: {verdict.reason}", hint=verdict.fix, rule=verdict.rule)
        if inventory is not None and inventory.capabilities is not None:
            rights = replace(plan.admission.rights, profile=frozenset(inventory.capabilities))
            plan = replace(plan, admission=replace(plan.admission, rights=rights))
        return plan

    async def still_holds(self, plan: CallPlan, context: CallContext) -> None:
        """Return if the tool and its rights are still those of `plan`, and this caller may still use it.

        Raises:
            CallError: it is not (POLICY_DENIED, TOOL_NOT_FOUND, UPSTREAM_ERROR).
        """
        which: Any = next((inner for inner in tuple(self._inner_plans) if inner.spec is plan.spec), plan.id)
        fresh = await self.find(which, context)
        if fresh.admission.guarded or context.profile is not None:
            fresh = await self.admits(fresh, context)
        if fresh.usage is not plan.usage or fresh.spec != plan.spec or fresh.admission.rights != plan.admission.rights:
            raise PolicyDenied(
                f"{plan.id} was refused: the tool, its plugin or its grants changed while the call waited for approval",
                hint="call it again; approval is requested again",
            )

    async def _made_for(self, written: str, context: CallContext | None) -> CallPlan | None:
        """A tool that a factory without declared names makes for this caller."""
        for spelling in spellings(written) if isinstance(written, str) else ():
            record = self._specs.lifecycle.records.get(split_id(spelling)[0])
            if record is None or not record.active or not record.open_factories:
                continue
            for spec in await self._specs.made_openly(record, context or self._specs.default, self._mode):
                if spec.id == spelling:
                    await self._stand_guard(RegistryEntry(spec.id, record.name))
                    return self._compile(spec, record)
        return None

    async def _elsewhere(self, written: str, error: ToolNotFound) -> CallPlan:
        """A tool of a namespace that a plugin resolves, such as ``kb:``; otherwise raise a more specific error."""
        if isinstance(written, str):
            meant = canonical(written)
            prefix = split_id(meant)[0].strip()
            await self._namespaces.wake({prefix})
            if self._contributions.get("namespaces", prefix) is not None:
                await self._stand_guard(RegistryEntry(meant, ""))
            if (found := await self._namespaces.find(meant, self._mode)) is not None:
                return self._compile(*found)
        if (absent := self._specs.absence(written)) is not None:
            raise absent.error(written, error) from error
        raise error

    async def prepare(self, context: CallContext | None) -> None:
        """Load the caller's profile, which sync code needs. If that fails, each call reports it."""
        if context is not None and context.profile is not None:
            with suppress(TavernError):
                await self._profile(context.profile)

    async def language(self, context: CallContext | None) -> Language | None:
        """The language of the caller's profile; None if the profile names none or cannot be read."""
        if context is not None and context.profile is not None:
            with suppress(TavernError):
                return (await self._profile(context.profile)).language
        return None

    async def _stand_guard(self, entry: RegistryEntry) -> None:
        """Activate the hooks of the host's plugins before a plan is compiled."""
        try:
            # A nested call must not wait for a plugin that may itself be waiting for the enclosing tool to end.
            await self._specs.lifecycle.hooks_ready(wait=current.get() is None)
        except PluginError as error:
            raise PolicyDenied(f"{entry.id} was refused: {error.message}", hint=error.hint, retryable=True) from error

    async def _activate(self, entry: RegistryEntry) -> None:
        try:
            await self._specs.lifecycle.activate(entry.plugin, wait=current.get() is None)
        except PluginError as error:
            state = self._specs.lifecycle.records[entry.plugin].state
            raise UpstreamError(
                f"{entry.id} cannot be used: {error.message}",
                hint=error.hint,
                plugin=entry.plugin,
                code=error.code,
                state=state,
            ) from error

    async def _provide_executor(self, spec: ToolSpec) -> None:
        """Activate the plugin whose executor runs this kind of tool, if it is not active yet."""
        if self._contributions.get("executors", spec.executor) is not None:
            return
        for record in self._specs.lifecycle.records.values():
            declared = record.candidate.facts.declared.get("executors", ())
            if record.can_start and spec.executor in declared:
                await self._specs.lifecycle.activate(record.name)
                return

    def _compile(self, spec: ToolSpec, record: PluginRecord, *, is_kept: bool = False) -> CallPlan:
        """Compile all that can be known about a tool's calls before the first one.

        Args:
            is_kept: the plan serves many calls, so compiling may take longer than it saves in one call.
        """
        if is_kept:
            self._specs.judge_pin(spec)
        bound, preview = self._bound(spec, record)
        policy, config, is_foreign = self._specs.policy(), self._specs.config, record.candidate.has_foreign_schemas
        hooks = self._hooks(spec)
        bounds = self._bounds(spec, policy.limits)
        in_thread = bounds.is_watched and bound.stop is None
        effect = effect_of(spec, record.candidate.requested)
        source = spec.id if policy.is_source(spec) else ""
        return CallPlan(
            spec,
            record.usage,
            runner_of(bound, (record.name, spec.id), spec.kind, preview=preview, in_thread=in_thread),
            _argument_rules(spec, is_foreign, config.limits.argument_bytes, is_kept=is_kept),
            _answer_rules(spec, is_foreign, keeps_raw=config.limits.keep_raw),
            hooks,
            self._admission(spec, record),
            bounds,
            ContentRules(source, effect, reads_addresses(spec), _addresses(spec)),
            compile_redactor(spec.input_schema, known_secrets=lambda: self._known_secrets.values),
            is_recorded=self._recorder.is_on or bool(hooks.events),
            keeps_whole=config.artifacts.over is None,
        )

    def _hooks(self, spec: ToolSpec) -> PlanHooks:
        hooks = self._specs.hooks
        before, gates, transforms, after = (hooks.for_tool(name, spec) for name in _HOOKS)
        return PlanHooks(ToolSnapshot(spec), before, gates, transforms, after, hooks.of("tavern_on_event"))

    def _admission(self, spec: ToolSpec, record: PluginRecord) -> Admission:
        policy = self._specs.policy()
        access = policy.for_tool(spec)
        guarded = bool(access.denied or access.not_allowed or not access.host.allowed)
        scopes, places = tuple(self._reach.scopes(record).items()), tuple(self._reach.places(record).items())
        rights = replace(self._specs.rights(record, spec), scopes=scopes, places=places)
        host = replace(self._specs.default, permissions=rights.caller)
        return Admission(access, guarded, rights, host, policy.approval(spec), self._blocked())

    def _bounds(self, spec: ToolSpec, rules: LimitRules) -> Bounds:
        limiter = self._limit_table.limiter(spec, rules)
        milliseconds = spec.timeout_ms or self._specs.config.limits.timeout_ms
        seconds = None if milliseconds is None else milliseconds / 1000
        return Bounds(limiter, *steps_of(limiter), seconds, _inline(spec, limiter))

    def _bound(self, spec: ToolSpec, record: PluginRecord) -> tuple[BoundTool, Execute | None]:
        """A tool bound by the executor of its kind, and its preview: a function of the same process and signature.

        Raises:
            CallError: there is no such executor, or it cannot use the tool (UPSTREAM_ERROR).
        """
        executor = self._contributions.get("executors", spec.executor)
        if executor is None:
            kinds = self._contributions.all("executors")
            raise UpstreamError(
                f"{spec.id} is of kind {spec.kind!r}, for which there is no executor",
                hint=did_you_mean(spec.kind, kinds, 1) or f"kinds: {', '.join(sorted(kinds))}",
            )
        owner = self._contributions.owner("executors", spec.executor) or ""
        home = partial(self._homes.of, record, executor=owner)
        try:
            bound = executor.bind(spec, home(spec))
        except CallError:
            raise
        except TavernError as error:
            raise UpstreamError(
                f"{spec.id} cannot be used: {error.message}", hint=error.hint, code=error.code
            ) from error
        except (Exception, SystemExit) as error:
            raise _broken_executor(spec, owner, f"failed with {with_type(error)}") from error
        if not isinstance(bound, BoundTool):
            raise _broken_executor(spec, owner, f"answered {type(bound).__name__} from bind, not a BoundTool")
        target: Any = spec.impl
        if not isinstance(target, PythonTarget | BindsItself) or target.preview is None:
            return bound, None
        impl: Any = target.preview
        if isinstance(target, PythonTarget):
            impl = replace(target, function=impl, preview=None)
        shown = replace(spec, impl=impl, output_schema=None)
        return bound, execute_of(executor.bind(shown, home(spec)), (record.name, spec.id))

    def _blocked(self) -> str:
        """Why every call is refused: a plugin with a granted gate could not be activated and is not disabled."""
        for record in self._specs.lifecycle.records.values():
            if record.state == "failed" and record.has_gate:
                if self._specs.config.plugins.on_failure.get(record.name) == "open":
                    continue
                return f"{record.name}: its gate could not be activated, so no call can be checked: {record.reason}"
        return ""

    async def _factory_plan(self, entry: RegistryEntry, record: PluginRecord, context: CallContext) -> CallPlan:
        spec = await self._specs.made_for(entry, record, context, self._mode)
        if spec is None:
            raise ToolNotFound(
                f"{entry.id} does not exist for this caller: its factory made no tool of this name",
                hint=f"tavern tools why {entry.id}",
            )
        return self._compile(await self._specs.decorated(spec, entry, self._mode), record)


def _broken_executor(spec: ToolSpec, owner: str, what: str) -> UpstreamError:
    return UpstreamError(
        f"{spec.id} cannot be used: the executor of {owner} for tools of kind {spec.kind!r} {what}",
        hint=f"report it to the author of {owner}",
        plugin=owner,
    )


def _argument_rules(spec: ToolSpec, is_foreign: bool, most: int, *, is_kept: bool) -> ArgumentRules:
    """The rules that turn a caller's arguments into those of the tool.

    Args:
        most: characters of text allowed.
        is_kept: as for `Compiler._compile`.
    """
    schema = spec.input_schema
    validator = compile_validator(schema, name=spec.id, is_foreign=is_foreign).build()
    intake = compile_intake(validator.judged_by, most) if is_kept else None
    return ArgumentRules(
        validator,
        intake or _quick_intake(min(ROOM, most)),
        intake is not None,
        compile_defaults(schema),
        compile_integers(schema),
        compile_marked(schema),
    )


def _quick_intake(room: int) -> Callable[[Any], dict[str, Any] | None]:
    """Copies arguments that are a dict; a schema without `type` would accept a list, too."""

    def intake(arguments: Any) -> dict[str, Any] | None:
        return quick_copy(arguments, room) if type(arguments) is dict else None

    return intake


def _answer_rules(spec: ToolSpec, is_foreign: bool, *, keeps_raw: bool) -> AnswerRules:
    """The rules for answers of the tool."""
    schema = spec.output_schema
    validator = (
        None if schema is None else compile_output_validator(schema, name=spec.id, is_foreign=is_foreign).build()
    )
    is_annotated = isinstance(spec.impl, PythonTarget) and spec.impl.annotation == schema
    return AnswerRules(validator, frozenset() if keeps_raw else _sure(schema), is_annotated)


def _sure(schema: Mapping[str, Any] | None) -> frozenset[type]:
    """The types of which an output schema accepts every value without validation; see `AnswerRules.accepted_types`."""
    if schema is None:
        return frozenset(_SURE.values())
    if schema.keys() != {"type"}:
        return frozenset()
    types = schema["type"]
    return frozenset(_SURE[name] for name in (types if isinstance(types, list) else [types]) if name in _SURE)


def _addresses(spec: ToolSpec) -> Callable[[Any], list[Any]] | None:
    """Lists the values that the schema marks as addresses; None: it marks none."""
    find = compile_guarded(spec.input_schema) if reads_addresses(spec) else None
    if find is None:
        return None
    return lambda values: [one.value for one in find(values) if any(guard.kind == "url" for guard in one.guards)]


def _plugin_of(written: object) -> str:
    return split_id(spellings(written)[-1])[0] if isinstance(written, str) else ""


def _inline(spec: ToolSpec, limiter: ToolLimiter | None) -> float | None:
    """Seconds that a caller waits before the call becomes a job; None: without limit."""
    wait = None if limiter is None else limiter.limits.inline_ms
    return (0.0 if spec.job else None) if wait is None else wait / 1000
