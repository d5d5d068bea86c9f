"""Running the code of one node: attempts, time limits, hooks, and each form of a node's function."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from concurrent.futures import Future
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Final

from tavern_core.contract.nodes import Final as FinalAnswer
from tavern_core.contract.nodes import MismatchedInput, NothingCame, Skip
from tavern_core.errors import (
    ApprovalRejected,
    ApprovalRequired,
    BudgetExceeded,
    CallError,
    CallTimeout,
    ConnectionLost,
    InputInvalid,
    OutputInvalid,
    PolicyDenied,
)
from tavern_core.flow.engine.cache_keys import value_key
from tavern_core.flow.engine.channel import ChannelReader
from tavern_core.flow.engine.eager_task import together
from tavern_core.flow.engine.node_context import RunningNode
from tavern_core.flow.engine.node_errors import time_limit_of
from tavern_core.flow.engine.node_outputs import SettledAnswer, checked_output, outputs_of
from tavern_core.flow.engine.node_value_encoding import deep_copy, private
from tavern_core.flow.engine.plan_tables import PreparedStep, check_inputs
from tavern_core.flow.engine.protocols import SchedulerPart
from tavern_core.graph.plan import FlowPlan
from tavern_core.kernel.calls.retry_rules import LONGEST_WAIT_S
from tavern_core.kernel.calls.taint_tracking import judge_node
from tavern_core.kernel.execution.sync_async_drivers import TimeLimit, wait_bounded
from tavern_core.kernel.execution.threads import Owner
from tavern_core.kernel.nodes.annotation_coercion import adapt, adapt_value
from tavern_core.kernel.views.facility_views import ReadStream
from tavern_core.model.exponential_delay import exponential_delay
from tavern_core.model.node import ABSENT, Slot
from tavern_core.model.safe_printing import with_type

_NEVER_AGAIN: Final = (
    MismatchedInput,
    NothingCame,
    InputInvalid,
    OutputInvalid,
    PolicyDenied,
    ApprovalRejected,
    ApprovalRequired,
)
"""Errors that a second attempt cannot change."""
_ENDED: Final = object()
_CALL: Final = "core:CallTool"
_MODEL: Final = "core:LLM"
"""The node that asks a model of the operator, which is neither an untrusted system nor a transfer of data to one."""
_IN_A_ROW: Final = 64
"""Chunks before the event loop can do other work."""


Threads = list["Future[Any]"]


async def perform(scope: SchedulerPart, number: int, work: PreparedStep, inputs: dict[str, Any]) -> Any:
    """Run a node with its hooks, and retry it if its file says so. Raises Exception: the error of the last attempt."""
    run, around = scope.run, scope.run.around
    path = scope.prefix + work.step.id
    if around is not None and around.is_before:
        inputs, is_changed = await around.before(run, path, work, inputs)
        check_inputs(work, inputs, is_changed=is_changed)
        found = scope.recall(number, work, inputs, _key_of(work, inputs) if is_changed else b"")
        if found is not None:
            return SettledAnswer(found, "recalled")
        scope.begin(number)
    else:
        check_inputs(work, inputs)
    if work.step.spec.capabilities and work.step.type != _MODEL:
        judge_node(run, work.step.type, work.step.spec.capabilities, inputs)
    if not work.step.exec.retry.times or work.step.streams:
        answer = await _once(scope, number, work, inputs, 1)
    else:
        answer = await run_with_retries(
            scope, number, work, lambda attempt: _once(scope, number, work, deep_copy(inputs), attempt)
        )
    if around is None:
        return answer
    if isinstance(answer, SettledAnswer):
        await around.after(path, work, {})
        return answer
    outputs = outputs_of(work, answer)
    await around.after(path, work, outputs)
    return SettledAnswer(outputs, "checked")


async def run_with_retries(
    scope: SchedulerPart, number: int, work: PreparedStep, once: Callable[[int], Coroutine[Any, Any, Any]]
) -> Any:
    """Try as often as the file says and the caller's budget allows; the slots are released during a delay.

    Raises:
        Exception: the error of the last attempt.
    """
    retry, allowed = work.step.exec.retry, scope.run.context.budget.max_retries
    times = retry.times if allowed is None else min(retry.times, allowed)
    attempt = 0
    while True:
        attempt += 1
        try:
            return await once(attempt)
        except (Exception, SystemExit) as error:
            asked_ms = getattr(error, "retry_after_ms", None) or 0
            is_last = attempt > times or asked_ms >= LONGEST_WAIT_S * 1000
            is_used_up = isinstance(error, BudgetExceeded) and not error.retryable
            if is_last or is_used_up or isinstance(error, _NEVER_AGAIN) or not _is_harmless_again(error, work, scope):
                with suppress(Exception):  # an error may refuse new attributes
                    error.__tavern_attempts__ = attempt  # type: ignore[union-attr]
                raise
            pause = max(exponential_delay(attempt, retry.delay_ms, retry.max_delay_ms, retry.backoff), asked_ms)
            reported = {"attempt": attempt, "error": with_type(error)[:500], "pauseMs": pause}
            scope.run.emit("retry", scope.prefix + work.step.id, reported)
        async with scope.without_slots(number):
            await asyncio.sleep(pause / 1000)


def _has_effects(plan: FlowPlan) -> bool:
    """Whether a node of a group, or of a group within it, may have an effect that must not happen twice."""
    plans = [plan]
    while plans:
        for step in plans.pop().steps:
            if step.plan is not None:
                plans.append(step.plan)
            elif step.spec.has_effects and not (step.spec.idempotent or step.spec.cache):
                return True
    return False


def _is_harmless_again(error: Exception | SystemExit, work: PreparedStep, scope: SchedulerPart) -> bool:
    """Whether a retry does no harm; the rule of calls (`kernel/calls/retry_rules.py`).

    A node without effects changes nothing. The error of a call states its own outcome.
    """
    spec = work.step.spec
    if work.step.plan is not None:  # a group: all of it runs again, including completed nodes
        return not _has_effects(work.step.plan)
    unsaid = "unknown" if spec.has_effects else "none"
    outcome = error.outcome if isinstance(error, CallError) else unsaid
    if outcome == "unknown" and work.step.type == _CALL and isinstance(error, CallError):  # its tool says it
        return scope.run.facilities.may_be_repeated(str(error.details.get("tool")))
    return outcome == "none" or (outcome == "unknown" and (spec.idempotent or spec.cache))


async def _once(scope: SchedulerPart, number: int, work: PreparedStep, inputs: dict[str, Any], attempt: int) -> Any:
    timeout = work.step.exec.timeout_ms or work.step.spec.timeout_ms
    threads: Threads = []
    body = _call(scope, number, work, inputs, attempt, threads)
    if timeout is None:
        return await body
    try:
        return await wait_bounded(body, timeout / 1000)
    except TimeLimit as limit:
        lost = limit.__cause__
        if isinstance(lost, ConnectionLost):  # a call of it was cut off, and knows nothing of this limit
            text, hint, details = time_limit_of(work)
            details |= {"stopped": lost.details.get("stopped", True), "tool": lost.details.get("tool")}
            raise CallTimeout(text, hint=hint, outcome=lost.outcome, **details) from None
        if any(not thread.done() for thread in threads):  # only waiting for it was cancelled
            scope.hold_for(number, threads)
            raise TimeLimit(stopped=False) from None
        raise limit from None


async def _call(
    scope: SchedulerPart, number: int, work: PreparedStep, inputs: dict[str, Any], attempt: int, threads: Threads
) -> Any:
    """Make one attempt, for any form of the function."""
    code, run = work.code, scope.run
    if code is None:
        raise InputInvalid(
            f"{work.step.type} has no code in this host",
            hint="install the plugin that contributes it",
            fixFor="operator",
        )
    needs_ctx = code.context or code.cls is not None
    ctx = RunningNode(run, scope, number, work, attempt) if needs_ctx else None  # it costs a few µs
    for binding in work.step.streams:
        if binding.key in inputs:
            inputs[binding.key] = _readable(inputs[binding.key])
    if code.adapters:
        adapt(code.adapters, inputs, MismatchedInput)
    function = code.function
    if code.cls is not None:
        node = code.cls()
        await _ask_needs(node, ctx, scope, number, work, inputs)
        function = node.run
    for binding in work.step.lazy:
        if binding.key not in inputs:
            default = None if binding.slot.default is ABSENT else private(binding.slot.default)
            inputs[binding.key] = adapt_value(code.adapters, binding.key, default, MismatchedInput)
    if code.context:
        inputs[code.context] = ctx
    match code.form:
        case "async":
            answer = await function(**inputs)
        case "stream":
            answer = await _stream(scope, number, work, function(**inputs))
        case "sync_stream":
            answer = await _stream(scope, number, work, _in_threads(scope, function(**inputs), threads, _owner(work)))
        case "sync" if work.step.spec.fast:
            answer = function(**inputs)
        case _:
            answer = await run.in_thread(function, inputs, owner=_owner(work), left=threads)
    return await answer if inspect.isawaitable(answer) else answer


def _key_of(work: PreparedStep, inputs: Mapping[str, Any]) -> bytes:
    streams = {binding.key for binding in work.step.streams}
    return value_key({key: value for key, value in inputs.items() if key not in streams})


async def _ask_needs(
    node: Any, ctx: Any, scope: SchedulerPart, number: int, work: PreparedStep, inputs: dict[str, Any]
) -> None:
    """Ask the class form which lazy inputs it needs, until it needs no more."""
    if not any(slot.lazy for slot in work.step.inputs.values()):
        return
    while True:
        wanted = node.needs(ctx, **inputs)
        if inspect.isawaitable(wanted):
            wanted = await wanted
        new = [key for key in dict.fromkeys([wanted] if isinstance(wanted, str) else wanted or ()) if key not in inputs]
        if not new:
            return
        for key, value in zip(new, await together([scope.need(number, key) for key in new]), strict=True):
            inputs[key] = value


async def _stream(scope: SchedulerPart, number: int, work: PreparedStep, chunks: AsyncGenerator[Any, None]) -> Any:
    """Pass the chunks of a streaming node to its readers; its other outputs are its answer.

    Once every reader has left and no step needs its other outputs, the node is stopped, because it might write forever.
    """
    channels = scope.streams.of(number)
    rest = None if scope.run.concurrency is None else partial(scope.without_slots, number)
    outputs = [key for key, slot in work.step.outputs.items() if slot.is_stream]
    path, count = scope.prefix + work.step.id, 0
    is_only_read = bool(channels) and scope.is_only_read(number)
    async with aclosing(chunks):
        async for chunk in chunks:
            if isinstance(chunk, FinalAnswer):
                return chunk
            count += 1
            named = (
                chunk if len(outputs) != 1 and isinstance(chunk, Mapping) else {outputs[0] if outputs else "": chunk}
            )
            named = {key: value if (gives := work.outputs.get(key)) is None or type(value) is gives.quick else checked_output(work, gives, value)
                     for key, value in named.items()}  # fmt: skip
            scope.run.chunk(path, count, named)
            for key, value in named.items():
                if (channel := channels.get(key)) is not None:
                    await channel.write(value, rest)
            if is_only_read and not any(channel.is_read for channel in channels.values()):
                return SettledAnswer(dict.fromkeys(work.batch, Skip), "unread")
            if count % _IN_A_ROW == 0:
                await asyncio.sleep(0)  # a writer without back pressure must not block the event loop
    if work.batch:
        raise OutputInvalid(
            f"{work.step.type} ended without Final(...)",
            hint=f"yield Final({', '.join(f'{key}=...' for key in work.batch)})",
        )
    return {}


async def _in_threads(
    scope: SchedulerPart, chunks: Generator[Any, None, Any], threads: Threads, owner: Owner
) -> AsyncGenerator[Any, None]:
    """A sync generator, with each step in a worker thread."""
    try:
        while True:
            del threads[:]
            if (chunk := await scope.run.in_thread(next, {}, chunks, _ENDED, owner=owner, left=threads)) is _ENDED:
                return
            yield chunk
    finally:
        if threads and not threads[-1].done():
            threads[-1].add_done_callback(lambda _: _close(chunks))  # it cannot be closed while it runs
        else:
            chunks.close()


def _owner(work: PreparedStep) -> Owner:
    """The owner of the threads for a node's code."""
    return work.step.spec.plugin, work.step.type


def _close(chunks: Generator[Any, None, Any]) -> None:
    """Close an abandoned generator."""
    with suppress(BaseException):
        chunks.close()


def _whole(slot: Slot, chunks: list[Any]) -> Any:
    """A stream that was read to its end."""
    is_text = all(isinstance(chunk, str) for chunk in chunks) if chunks else slot.type == "STRING"
    return "".join(chunks) if is_text else chunks


async def collect(scope: SchedulerPart, work: PreparedStep, inputs: dict[str, Any]) -> Any:
    """The streams among the outputs of a workflow: those of a group are forwarded to its own, others are read to their end.

    Text is joined, everything else becomes a list.
    """
    path = scope.prefix + work.step.id

    async def read(key: str, slot: Slot) -> None:
        readers: list[ChannelReader] = inputs[key] if slot.multi else [inputs[key]]
        chunks: list[Any] = []
        out = None if scope.out is None else scope.out.get(key)
        count = 0
        try:
            for reader in readers:
                async for chunk in reader:
                    count += 1
                    if out is not None:
                        await out.write(chunk)
                        if not out.is_read:
                            return
                    elif scope.out is None:
                        chunks.append(chunk)
                        scope.run.chunk(path, count, {key: chunk})
        except Exception as error:  # noqa: BLE001 - its writer has failed, and reports that itself
            if out is not None:
                out.is_handled |= any(reader.is_skipped for reader in readers)
                out.close(error)
            inputs[key] = Skip
            return
        inputs[key] = _whole(slot, chunks)

    streams = {binding.key: binding.slot for binding in work.step.streams}
    await together([read(key, slot) for key, slot in streams.items()])
    collected = {
        key: value
        for key, value in inputs.items()
        if value is not Skip and not (scope.out is not None and key in streams)
    }
    scope.results.update(collected)
    return collected


def _readable(value: Any) -> Any:
    """An input as a node gets it; streams and lists of streams as restricted readers."""
    if isinstance(value, ChannelReader):
        return ReadStream(value)
    return [_readable(part) for part in value] if type(value) is list else value
