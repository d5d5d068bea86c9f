"""Running the code of one node: tries, time limits, hooks around it, and each form a node's function can have."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing
from typing import Any, Final

from pydantic import ValidationError

from tavern_core.contract.nodes import Final as FinalAnswer
from tavern_core.contract.nodes import Skip
from tavern_core.errors import ApprovalRejected, ApprovalRequired, InputInvalid, OutputInvalid, PolicyDenied
from tavern_core.kernel.engine.channel import Reader
from tavern_core.kernel.engine.parts import ScopePart
from tavern_core.kernel.engine.prepared import Work
from tavern_core.kernel.engine.trouble import MisfitInput
from tavern_core.kernel.running.modes import bounded

_NEVER_AGAIN: Final = (MisfitInput, InputInvalid, OutputInvalid, PolicyDenied, ApprovalRejected, ApprovalRequired)
"""What a second try cannot change."""
_ENDED: Final = object()


async def perform(scope: ScopePart, number: int, work: Work, inputs: dict[str, Any]) -> Any:
    """Run a node, again if it fails and its file asks for that.

    Raises:
        Exception: what its last try raised.
    """
    retry = work.step.exec.retry
    attempt = 0
    while True:
        attempt += 1
        try:
            return await _once(scope, number, work, dict(inputs), attempt)
        except Exception as error:
            if attempt > retry.times or isinstance(error, _NEVER_AGAIN) or work.step.streams:
                error.__tavern_attempts__ = attempt  # type: ignore[attr-defined]
                raise
            pause = min(retry.delay_ms * retry.backoff ** (attempt - 1), retry.max_delay_ms)
            told = {"attempt": attempt, "error": str(error)[:500], "pauseMs": pause}
            scope.run.note("retry", scope.prefix + work.step.id, told)
        await asyncio.sleep(pause / 1000)


async def _once(scope: ScopePart, number: int, work: Work, inputs: dict[str, Any], attempt: int) -> Any:
    run = scope.run
    if run.around is not None:
        inputs = await run.around.before(run, scope.prefix + work.step.id, work, inputs)
    run.check(work, inputs)
    timeout = work.step.exec.timeout_ms or work.step.spec.timeout_ms
    body = _call(scope, number, work, inputs, attempt)
    answer = await (body if timeout is None else bounded(body, timeout / 1000))
    if run.around is not None:
        await run.around.after(run, scope.prefix + work.step.id, work, answer)
    return answer


async def _call(scope: ScopePart, number: int, work: Work, inputs: dict[str, Any], attempt: int) -> Any:
    """One try, whatever form the function has."""
    code, run = work.code, scope.run
    if code is None:
        raise InputInvalid(f"{work.step.type} has no code in this host", hint="install the plugin that brings it")
    ctx = run.context_of(scope, number, work, attempt)
    if code.adapters:
        _adapt(code.adapters, inputs)
    function = code.function
    if code.cls is not None:
        node = code.cls()
        await _ask_needs(node, ctx, scope, number, work, inputs)
        function = node.run
    for binding in work.step.lazy:
        if binding.key not in inputs:
            default = binding.slot.config.get("default")
            inputs[binding.key] = default
    if code.context:
        inputs[code.context] = ctx
    match code.form:
        case "async":
            answer = await function(**inputs)
        case "stream":
            answer = await _stream(scope, number, work, function(**inputs))
        case "sync_stream":
            answer = await _stream(scope, number, work, _in_threads(scope, function(**inputs)))
        case "sync" if work.step.spec.fast:
            answer = function(**inputs)
        case _:
            answer = await run.in_thread(function, inputs)
    return await answer if inspect.isawaitable(answer) else answer


def _adapt(adapters: Mapping[str, Any], inputs: dict[str, Any]) -> None:
    for key, adapter in adapters.items():
        if key in inputs and inputs[key] is not None:
            try:
                inputs[key] = adapter.validate_python(inputs[key])
            except ValidationError as error:
                first = error.errors(include_url=False, include_input=False)[0]
                place = ".".join(str(part) for part in first["loc"])
                raise MisfitInput(key, f"{place}: {first['msg']}" if place else first["msg"]) from None


async def _ask_needs(node: Any, ctx: Any, scope: ScopePart, number: int, work: Work, inputs: dict[str, Any]) -> None:
    """Ask the class form which lazy inputs it needs, until it wants nothing new."""
    if not any(slot.lazy for slot in work.step.inputs.values()):
        return
    while True:
        wanted = node.needs(ctx, **inputs)
        if inspect.isawaitable(wanted):
            wanted = await wanted
        new = [key for key in (wanted or ()) if key not in inputs]
        if not new:
            return
        for key, value in zip(new, await asyncio.gather(*(scope.need(number, key) for key in new)), strict=True):
            inputs[key] = value


async def _stream(scope: ScopePart, number: int, work: Work, chunks: AsyncGenerator[Any, None]) -> Any:
    """Hand the chunks of a streaming node to whoever reads them; what it gives besides is its answer."""
    channels = scope.channels(number)
    outputs = [key for key, slot in work.step.outputs.items() if slot.is_stream]
    path, count = scope.prefix + work.step.id, 0
    async with aclosing(chunks):
        async for chunk in chunks:
            if isinstance(chunk, FinalAnswer):
                return chunk
            count += 1
            named = chunk if len(outputs) != 1 and isinstance(chunk, Mapping) else {outputs[0] if outputs else "": chunk}
            scope.run.chunk(path, count, named)
            for key, value in named.items():
                if (channel := channels.get(key)) is not None:
                    await channel.write(value)
    if work.batch:
        raise OutputInvalid(
            f"{work.step.type} ended without Final(...)", hint=f"yield Final({', '.join(f'{key}=...' for key in work.batch)})"
        )
    return {}


async def _in_threads(scope: ScopePart, chunks: Generator[Any, None, Any]) -> AsyncGenerator[Any, None]:
    """A sync generator, each of its steps in a worker thread."""
    try:
        while (chunk := await scope.run.in_thread(next, {}, chunks, _ENDED)) is not _ENDED:
            yield chunk
    finally:
        chunks.close()


async def collect(scope: ScopePart, work: Work, inputs: dict[str, Any]) -> Any:
    """The streams among the outputs of a workflow, read to their end: text joined, everything else as a list."""
    path = scope.prefix + work.step.id

    async def read(key: str, reader: Reader) -> None:
        chunks = []
        async for chunk in reader:
            chunks.append(chunk)
            scope.run.chunk(path, len(chunks), {key: chunk})
        inputs[key] = "".join(chunks) if chunks and all(isinstance(c, str) for c in chunks) else chunks

    streams = {binding.key for binding in work.step.streams}
    await asyncio.gather(*(read(key, inputs[key]) for key in streams))
    scope.results.update({key: value for key, value in inputs.items() if value is not Skip})
    return {}


