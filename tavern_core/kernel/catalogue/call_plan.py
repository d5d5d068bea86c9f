"""The compiled plan of one tool: which steps its calls have, and what these steps need.

A feature that is off is None here, and the pipeline skips it with one test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from tavern_core.contract.protocols import BoundTool
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.access.approval_rules import ApprovalRule
from tavern_core.kernel.access.tool_access import ToolAccess
from tavern_core.kernel.hooks.argument_copies import ToolSnapshot
from tavern_core.kernel.hooks.table import HookImplementation
from tavern_core.kernel.limits.limiter_registry import ToolLimiter
from tavern_core.kernel.log.recorder import Redactor
from tavern_core.kernel.plugins.plugin_record import ActiveCalls
from tavern_core.model.call import CallContext, Rights
from tavern_core.model.capability import Effect
from tavern_core.model.result import ToolResult
from tavern_core.model.tool import ToolSpec
from tavern_core.schema.validate import Validator

Execute = Callable[[Any, Any], Any]
"""``execute(running_call, mode)`` runs the tool: see `calls/attempt.py`."""


class InternalOperation:
    """An operation that passes the pipeline like a tool call without being a tool: only the host can call it."""

    __slots__ = ("spec",)

    def __init__(self, spec: ToolSpec) -> None:
        self.spec = spec


@dataclass(frozen=True, slots=True)
class Runner:
    """The way in which a tool is run: depends on the kind of function, and on whether its time can be watched."""

    bound: BoundTool
    execute: Execute
    is_awaited: bool
    """Whether `execute` returns an awaitable instead of the value."""
    preview: Execute | None
    """``preview(running_call, mode)`` shows what the tool would do, if it can."""
    description: str
    """The way in which it is run, in words: for people who read the plan."""


@dataclass(frozen=True, slots=True)
class ArgumentRules:
    """The rules that turn a caller's arguments into those of the tool."""

    validator: Validator
    intake: Callable[[Any], dict[str, Any] | None]
    """A quick copy of the arguments; None: the full validator copies and checks them."""
    intake_judges: bool
    """Whether the result of `intake` is known to fit the schema."""
    fill: Callable[[Mapping[str, Any]], dict[str, Any]] | None
    """Fills in defaults; None: the schema has none."""
    whole: Callable[[Any], Any] | None
    """Turns integers written as 2.0 into 2; None: the schema has no integers."""
    marked: Callable[[Any], list[str]] | None
    """Lists the texts among the arguments that the schema marks as secret; None: it marks none."""


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """The rules for an answer."""

    validator: Validator | None
    """None: the tool has no output schema."""
    accepted_types: frozenset[type]
    """Types of answers that are plain JSON already, and of which the output schema accepts every value."""
    is_annotated: bool
    """Whether the output schema is the function's return annotation, and not written for the answer."""
    accepts: Callable[[Any], bool] | None = field(init=False)
    """A quick check whether an answer fits; only for plain JSON."""
    stage: str = field(init=False)
    """The step that checks an answer."""

    def __post_init__(self) -> None:
        validator = self.validator
        object.__setattr__(self, "accepts", None if validator is None else validator.accepts)
        object.__setattr__(self, "stage", "normalise" if validator is None else "validate_output")

    def apply_to(self, result: ToolResult) -> bool:
        """Whether the output schema applies to this answer.

        An annotation such as ``-> dict`` describes the return value of the function. For the `content` and `details`
        of seed 002, that is the whole mapping, and neither the details nor the text of the content. Nor does a schema
        apply to a job's description of itself: its answer is still to come.
        """
        return result.status != "job" and not (self.is_annotated and result.has_content)


@dataclass(frozen=True, slots=True)
class PlanHooks:
    """The hooks for the calls of one tool."""

    tool_snapshot: ToolSnapshot
    """The tool as hooks see it."""
    before: tuple[HookImplementation, ...]
    gates: tuple[HookImplementation, ...]
    transforms: tuple[HookImplementation, ...]
    after: tuple[HookImplementation, ...]
    events: tuple[HookImplementation, ...]

    def all(self) -> tuple[HookImplementation, ...]:
        return (*self.before, *self.gates, *self.transforms, *self.after, *self.events)


@dataclass(frozen=True, slots=True)
class Admission:
    """The callers that may call a tool, and the rights with which it runs."""

    access: ToolAccess
    """The callers that may use the tool, by lists and profile."""
    guarded: bool
    """Whether allow and deny lists may refuse some caller."""
    rights: Rights
    """Without `caller`, which is set for each call."""
    host: CallContext
    """The context of a call without one: the host's own principal with this plugin's rights."""
    approval: ApprovalRule | None
    """Why each call needs approval, or cannot get it; None: no approval is needed."""
    blocked: str
    """Why every call is refused: a plugin with a gate could not be activated; empty: calls are possible."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a tool's calls, and the steps that enforce them."""

    limiter: ToolLimiter | None
    """None: the tool has no limits."""
    around: Callable[[Any, Any, Any, Any], Any]
    """``await around(governance, plan, running_call, mode)`` runs the tool with the steps of its limits: see `calls/optional_steps.py`."""
    steps: tuple[PlanStep, ...]
    """The steps of `around`."""
    seconds: float | None
    """The deadline of one call; None: there is none."""
    inline_s: float | None
    """Seconds that a caller waits before the call becomes a job, 0: not at all; None: until the call ends."""

    @property
    def is_watched(self) -> bool:
        """Whether a call that reports no progress for some time is ended."""
        return self.limiter is not None and bool(self.limiter.limits.idle_ms)


@dataclass(frozen=True, slots=True)
class ContentRules:
    """A tool's relation to untrusted content."""

    source: str = ""
    """Its name as a source of untrusted content; empty: it is not a source."""
    effect: Effect = ""
    """The external effect of its calls, which need approval after untrusted content was read."""
    reads_addresses: bool = False
    """Whether it may read an address that is among its arguments."""
    addresses: Callable[[Any], Sequence[Any]] | None = None
    """Lists the arguments that the schema marks as addresses; None: it marks none."""


@dataclass(frozen=True, slots=True)
class CallPlan:
    """Everything that is needed to call one tool."""

    spec: ToolSpec
    usage: ActiveCalls
    runner: Runner
    arguments: ArgumentRules
    answers: AnswerRules
    hooks: PlanHooks
    admission: Admission
    bounds: Bounds
    content: ContentRules
    redact: Redactor
    is_recorded: bool
    """Whether the log, a subscriber or an observer gets the call."""
    keeps_whole: bool
    """Whether answers are returned whole, whatever their size, and never become artifacts."""
    # Computed once, so that no call has to.
    id: str = field(init=False)
    needs_call: bool = field(init=False)
    """Whether any step uses the ToolCall; otherwise it is never built."""
    gives_copy: bool = field(init=False)
    """Whether the tool gets a copy of the arguments, because the host reads them again after it ran."""
    plain_tool: Callable[..., Any] | None = field(init=False)
    """The function of the tool, for calls by the host that have no other steps; None: they have some."""
    has_steps: bool = field(init=False)
    """Whether each call has steps around its tool: limits, or the control of its progress."""
    is_judged: bool = field(init=False)
    """Whether gates, a rule or what its caller has read may refuse a call, or require approval."""
    is_judged_after_reading: bool = field(init=False)
    """Whether a call may need approval because of what its caller has read."""
    ends_in_hooks: bool = field(init=False)
    """Whether a hook sees the end of a call."""
    ends_quietly: bool = field(init=False)
    """Whether nothing inspects a successful call: no log, no hook, no secret among its arguments."""
    needs_loop: bool = field(init=False)
    """Whether the tool or a hook is async."""

    def __post_init__(self) -> None:
        for name, value in _facts(self).items():
            object.__setattr__(self, name, value)

    def steps(self) -> tuple[PlanStep, ...]:
        """The steps of each direct call of this tool, in order; only those that a list, hook, limit or schema requires.

        A call with a key also has the step `idempotency`, a call whose caller allows retries (`budget.maxRetries`)
        `retry`. A dry run ends before `execute`, possibly with a `preview`.
        """
        return tuple(_steps(self))


@dataclass(frozen=True, slots=True)
class PlanStep:
    """A step of a tool's calls."""

    name: str
    """As in `details.stage` of an error."""
    does: str
    by: tuple[str, ...] = ()
    """The plugins whose hooks it calls, or the line of tavern.yaml that requires it."""

    def to_json(self) -> dict[str, Any]:
        return {"step": self.name, "does": self.does, "by": list(self.by)}


def _facts(plan: CallPlan) -> dict[str, Any]:
    """The computed fields of a plan."""
    bound, arguments, hooks, bounds = plan.runner.bound, plan.arguments, plan.hooks, plan.bounds
    admission, content, all_hooks = plan.admission, plan.content, hooks.all()
    is_outside = bool(content.source or content.effect)
    is_inspected = bool(admission.blocked or admission.approval or all_hooks or is_outside)
    needs_call = bound.wants_call or is_inspected or plan.is_recorded
    is_judged_after_reading = bool(content.effect) or content.reads_addresses
    is_free = not admission.guarded and bounds.limiter is None and bounds.inline_s is None and bounds.seconds is None
    is_taken_over = arguments.intake_judges and arguments.fill is None
    ends_quietly = not needs_call and arguments.marked is None and plan.keeps_whole
    run, function = bound.function or (None, None)
    is_plain = run is bound.run and is_free and is_taken_over and ends_quietly
    return {
        "id": plan.spec.id,
        "needs_call": needs_call,
        "gives_copy": arguments.marked is not None
        or (needs_call and bool(bound.wants_call or hooks.transforms or hooks.after)),
        "plain_tool": function if is_plain and (bound.is_async or not plan.runner.is_awaited) else None,
        "has_steps": bounds.limiter is not None or bound.wants_control,
        "is_judged": bool(hooks.gates or admission.approval) or is_judged_after_reading,
        "is_judged_after_reading": is_judged_after_reading,
        "ends_quietly": ends_quietly,
        "ends_in_hooks": bool(hooks.transforms or hooks.after or hooks.events),
        "needs_loop": bound.is_async or bounds.is_watched or any(impl.is_async for impl in all_hooks),
    }


def _plugins(implementations: Iterable[HookImplementation]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.plugin for one in implementations))


def _steps(plan: CallPlan) -> Iterator[PlanStep]:
    """The steps in the order of `calls/pipeline.py`."""
    own_plugin = (plan.spec.plugin,)
    yield PlanStep("resolve", "finds the tool and activates its plugin", own_plugin)
    if plan.bounds.inline_s is not None:  # the job makes the whole call, so it begins before any check
        when = f"after {plan.bounds.inline_s:g} s" if plan.bounds.inline_s else "at once"
        yield PlanStep("detach", f"becomes a job {when}, and the job makes the call")
    lists = ", the tool lists of tavern.yaml" if plan.admission.guarded else ""
    limit = "" if plan.bounds.seconds is None else f"; it has {plan.bounds.seconds:g} s"
    yield PlanStep("admit", f"checks depth and budget of the caller{lists}{limit}")
    yield PlanStep("copy_arguments", "copies the arguments as plain JSON")
    if plan.hooks.before:
        yield PlanStep("before_execute", "hooks change the arguments", _plugins(plan.hooks.before))
    if plan.arguments.fill is not None:
        yield PlanStep("defaults", "fills in the defaults of the schema")
    yield PlanStep("validate_input", "checks the arguments against the input schema")
    if plan.hooks.gates:
        does = "gates allow or refuse the call, or require approval"
        yield PlanStep("check_call", does, _plugins(plan.hooks.gates))
    if plan.is_judged_after_reading:
        does = "asks before an effect, or a new address, after an agent has read untrusted content"
        yield PlanStep("after_untrusted", does)
    if (rule := plan.admission.approval) is not None:
        does = "refuses the call" if rule.decision == "deny" else "asks for approval"
        yield PlanStep("approval", f"{does}: {rule.reason}", (rule.place,))
    elif gates := [gate for gate in plan.hooks.gates if not gate.is_builtin]:
        yield PlanStep("approval", "asks for approval if a gate requires it", _plugins(gates))
    if plan.is_recorded:
        yield PlanStep("record_call", "writes TOOL_CALLED", _plugins(plan.hooks.events))
    yield from plan.bounds.steps
    yield PlanStep("execute", plan.runner.description, own_plugin)
    yield from _steps_of_answer(plan)


def _steps_of_answer(plan: CallPlan) -> Iterator[PlanStep]:
    yield PlanStep("normalise", "makes plain JSON of the answer")
    if plan.answers.accepts is not None:
        yield PlanStep("validate_output", "holds the answer against the output schema")
    yield PlanStep("redact", "removes secrets from the answer")
    if plan.hooks.transforms:
        yield PlanStep("transform_result", "hooks change the result", _plugins(plan.hooks.transforms))
    if plan.is_recorded:
        yield PlanStep("record_result", "writes TOOL_RESULT", _plugins(plan.hooks.events))
    if plan.hooks.after:
        yield PlanStep("after_execute", "hooks see the result", _plugins(plan.hooks.after))
