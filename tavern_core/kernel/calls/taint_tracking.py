"""Tracks untrusted content in calls: who has read it, which results contain it, and which calls then need approval.

    a tool that is a source runs → the call, the enclosing calls and their contexts have read its content
        → the result is marked, `meta["untrusted"]` → later calls with an effect need approval (`CallContext.after_untrusted`)

All calls pass these steps in the pipeline, so nested calls, nodes of workflows and jobs cannot avoid them. A call
cannot loosen the rules of its enclosing calls, whatever context it is made with.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from tavern_core.errors import PolicyDenied
from tavern_core.kernel.calls.call_errors import MESSAGES
from tavern_core.kernel.calls.running_call import Frame, RunningCall, frame
from tavern_core.kernel.catalogue.call_plan import CallPlan
from tavern_core.kernel.hooks.hook_calls import RequestedApproval
from tavern_core.model.call import CallContext
from tavern_core.model.capability import Effect
from tavern_core.model.message_translation import Said, say
from tavern_core.model.result import ToolResult, with_meta
from tavern_core.model.safe_printing import seen
from tavern_core.model.untrusted_content_rules import (
    MARK,
    AfterUntrusted,
    addresses_in,
    brings_in,
    effect_with,
    links_in,
    sources_in,
    stricter,
    texts_in,
)

AFTER_READING: Final = "after_untrusted"
"""Named as the requester of approvals because of untrusted content, in requests and in the log."""
_INSTEAD: Final = "finish the task without it, or report that it could not be done"
_SHOWN: Final = 5
_LONGEST_ADDRESS: Final = 300


class ContentReader(Protocol):
    """Anything that can read content: a call, or a run of a workflow."""

    reads: Mapping[str, None] | None
    """The sources of untrusted content that it has read; None: not recorded."""

    @property
    def context(self) -> CallContext | None: ...

    @property
    def outer(self) -> Frame | None: ...

    @property
    def is_cancelled(self) -> bool: ...


class JobOrigin:
    """The call that began a job, as the job sees it. It has read what the job reads; its end does not end the job."""

    is_cancelled = False

    def __init__(self, reader: ContentReader) -> None:
        self._reader = reader

    @property
    def reads(self) -> Mapping[str, None] | None:
        return self._reader.reads

    @reads.setter
    def reads(self, sources: Mapping[str, None] | None) -> None:
        self._reader.reads = sources

    @property
    def context(self) -> CallContext | None:
        return self._reader.context

    @property
    def outer(self) -> Frame | None:
        return self._reader.outer


def is_given_up(reader: ContentReader) -> bool:
    """Whether the call, or an enclosing call or run, was cancelled or has timed out."""
    for one in enclosing_readers(reader):
        if isinstance(one, JobOrigin):
            break
        if one.is_cancelled:
            return True
    return False


def enclosing_readers(reader: ContentReader | None) -> Iterator[ContentReader]:
    """A reader and the readers that enclose it, innermost first."""
    while reader is not None:
        yield reader
        reader = None if reader.outer is None else reader.outer.reader


def has_read(reader: ContentReader | None, sources: Iterable[str]) -> None:
    """Record that a call or run, all enclosing ones, and their contexts have read untrusted content."""
    named = dict.fromkeys(sources)
    if not named:
        return
    for one in enclosing_readers(reader):
        one.reads = {**one.reads, **named} if one.reads else named
        if one.context is not None:
            one.context.ledger.content_read.add(named, time.time())


def running_call_has_read(sources: Iterable[str]) -> None:
    """Record the same for the running call, if there is one: it was handed a stored answer, or an artifact."""
    here = frame()
    if here is not None:
        has_read(here.reader, sources)


def sources_of_running_call() -> tuple[str, ...]:
    """The sources that the running call has read so far."""
    here = frame()
    reader: ContentReader | None = None if here is None else here.reader
    return () if reader is None else tuple(reader.reads or ())


def is_watched(context: CallContext, outer: Frame | None) -> bool:
    """Whether any rule depends on what a call with this context reads."""
    reader = None if outer is None else outer.reader
    return context.after_untrusted != "allow" or (reader is not None and reader.reads is not None)


def detached_context(context: CallContext, outer: ContentReader | None) -> CallContext:
    """A context without the enclosing calls: as strict as theirs, and with the sources that they have read."""
    strictest = context.after_untrusted
    for one in enclosing_readers(outer):
        if (context_of_reader := one.context) is None or context_of_reader.after_untrusted == "allow":
            continue
        strictest = stricter(strictest, context_of_reader.after_untrusted)
        if context_of_reader.ledger is not context.ledger:
            context.ledger.content_read.take_over(context_of_reader.ledger.content_read)
    return context if strictest == context.after_untrusted else replace(context, after_untrusted=strictest)


def _is_free(reader: ContentReader | None) -> bool:
    """Whether the reader is outermost and no rule depends on what it reads: the quick answer for most calls."""
    if reader is None or reader.outer is not None:
        return reader is None
    return reader.context is None or reader.context.after_untrusted == "allow"


def restraint(reader: ContentReader | None) -> tuple[AfterUntrusted, tuple[str, ...]]:
    """The strictest rule of this and all enclosing readers for calls with an effect; and the sources behind it."""
    if _is_free(reader):
        return "allow", ()
    strictest: AfterUntrusted = "allow"
    sources: dict[str, None] = {}
    for one in enclosing_readers(reader):
        context = one.context
        if context is None or context.after_untrusted == "allow":
            continue
        if found := context.ledger.content_read.sources:
            sources.update(dict.fromkeys(found))
            strictest = stricter(strictest, context.after_untrusted)
    return strictest, tuple(sources)


def required_approval(
    plan: CallPlan, call: RunningCall, requested: RequestedApproval | None
) -> RequestedApproval | None:
    """The approval that a call needs because its caller has read untrusted content; otherwise `requested`.

    Raises:
        PolicyDenied: such calls are refused now (POLICY_DENIED).
    """
    (how, sources), content = restraint(call), plan.content
    if how == "allow" or not (content.effect or content.reads_addresses):
        return requested
    values = call.values or {}
    marked = () if content.addresses is None else content.addresses(values)
    address = "" if content.effect or not content.reads_addresses else composed_address(call, values, marked)
    if not content.effect and not address:
        return requested
    why = _reason(call, plan.id, content.effect, address, sources)
    facts: dict[str, Any] = {MARK: list(sources), "effect": content.effect or "reads"}
    if how == "deny":
        raise PolicyDenied(why, hint=_INSTEAD, rule=AFTER_READING, **facts)
    if requested is not None:
        why = say(MESSAGES["also"], one=why, other=requested.reason)
        facts = {**requested.details, **facts}
    return RequestedApproval(AFTER_READING, why, facts)


def judge_node(run: ContentReader, type_: str, capabilities: Collection[str], inputs: Mapping[str, Any]) -> None:
    """Check the code of a node that has capabilities itself. It is not a call, so it cannot be approved.

    Raises:
        PolicyDenied: it would have an effect after untrusted content was read (POLICY_DENIED).
    """
    how, sources = restraint(run)
    if how != "allow":
        effect = effect_with(capabilities)
        address = "" if effect else composed_address(run, inputs, ())
        if effect or address:
            facts: dict[str, Any] = {MARK: list(sources), "effect": effect or "reads"}
            why = _reason(run, type_, effect, address, sources)
            raise PolicyDenied(
                why, hint=f"call a tool with core:CallTool, which can be approved, or {_INSTEAD}", **facts
            )
    if brings_in(capabilities):
        has_read(run, (type_,))


def may_act(reader: ContentReader | None, capability: str) -> bool:
    """Whether services may use a capability for the reader.

    After reading untrusted content: only if the reader's own call was judged as one with an effect.
    """
    if not effect_with((capability,)) or restraint(reader)[0] == "allow":
        return True
    return isinstance(reader, RunningCall) and reader.plan is not None and bool(reader.plan.content.effect)


def _reason(reader: ContentReader, what: str, effect: Effect, address: str, sources: Sequence[str]) -> Said:
    does = (
        say(MESSAGES[f"it_{effect}"]) if effect else say(MESSAGES["it_reads"], address=seen(address[:_LONGEST_ADDRESS]))
    )
    named = ", ".join(sources[:_SHOWN]) + (f" (+{len(sources) - _SHOWN})" if len(sources) > _SHOWN else "")
    who = reader.context.principal if reader.context is not None else "?"
    return say(MESSAGES[AFTER_READING], who=who, tool=what, sources=named, what=does)


def composed_address(reader: ContentReader, values: Mapping[str, Any], marked: Iterable[Any]) -> str:
    """An address among the arguments that appeared in no text before; empty if there is none.

    Args:
        marked: arguments that the schema marks as addresses; other arguments count only with a URL scheme.
    """
    known = [
        one.context.ledger.content_read
        for one in enclosing_readers(reader)
        if one.context is not None and one.context.after_untrusted != "allow"
    ]
    found: list[tuple[str, ...]] = [(text.strip(),) for value in marked for text in texts_in(value) if text.strip()]
    found += [forms for text in texts_in(values) for forms in links_in(text)]
    return next((forms[0] for forms in found if not any(read.knows(form) for read in known for form in forms)), "")


def mark_sources(call: RunningCall, result: ToolResult) -> ToolResult:
    """The result, marked with the sources of untrusted content that it may contain."""
    if not call.reads:
        return result
    meta, sources = result._meta or {}, list(call.reads)
    if meta.get(MARK) == sources:  # already marked so
        return result
    sources = list(dict.fromkeys([*sources_in(meta.get(MARK)), *sources]))
    return result if meta.get(MARK) == sources else with_meta(result, {**meta, MARK: sources})


def taken_over(call: RunningCall, result: ToolResult) -> ToolResult:
    """The result with a mark from the tool itself or from an earlier answer; the mark counts as for a new call."""
    if result._meta is not None and MARK in result._meta:
        has_read(call, sources_in(result._meta[MARK]))
    return mark_sources(call, result)


def sources_of(result: ToolResult) -> tuple[str, ...]:
    """The sources of untrusted content that a result may contain."""
    return sources_in((result._meta or {}).get(MARK))


def _addresses_of(values: Any) -> set[str]:
    return {address for text in texts_in(values) for address in addresses_in(text)}


def mark_result(call: RunningCall, result: ToolResult) -> ToolResult:
    """The marked result. Addresses in it and those that the call read can be used without approval from now on.

    Two kinds of answers make no address usable: one that only repeats an argument, and, once untrusted content was
    read, one of a tool that is not a source. The model may have composed it.
    """
    plan = call.plan
    if plan is None or _is_free(call) or (result.error is not None and not call.has_begun):  # the tool did not run
        return mark_sources(call, result)
    watching = [
        one.context
        for one in enclosing_readers(call)
        if one.context is not None and one.context.after_untrusted != "allow"
    ]
    if not watching:
        return mark_sources(call, result)
    argument_addresses = _addresses_of(call.values)
    found = [result.value, [dict(block) for block in result._content]]
    if result.error is not None:
        found.append(result.error.message)
    for context in watching:
        read = context.ledger.content_read
        if plan.content.reads_addresses:
            read.trust(call.values)
        if plan.content.source or call.reads or not read.sources:
            read.learn(found, argument_addresses)
    return mark_sources(call, result)
