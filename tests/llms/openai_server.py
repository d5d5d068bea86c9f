"""A small server that speaks the Chat Completions API of OpenAI on a real loopback port: scripted replies, and every failure.

    with OpenAIServer([Reply("hello")]) as server:
        ...  # a client with base URL server.url
    assert server.requests[0].body["messages"][-1]["content"] == "hi"

Replies are used in order, the last one repeatedly; or they are a function of the request. A reply is streamed if the request
says ``"stream": true``. The server runs on a thread of its own, so it also serves programs and code without a loop.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

Fault = Literal[
    "", "timeout", "drip", "cut", "malformed", "error_in_stream", "endless", "invalid_utf8", "huge", "no_end"
]
"""What goes wrong with a reply:

timeout          the request is read and never answered
drip             the first piece of the text arrives, then only comments of SSE, for ever
cut              the connection ends after the first piece, or in the middle of the JSON
malformed        the first event, or the body, is not JSON
error_in_stream  after the first piece comes an event with an error object
endless          pieces without end
invalid_utf8     the text holds bytes that are not UTF-8
huge             one line, or one body, of `HUGE` bytes
no_end           all pieces arrive, then the connection ends without ``[DONE]``
"""
HUGE = 40_000_000


@dataclass(frozen=True)
class Reply:
    """One answer of the model."""

    text: str = ""
    calls: Sequence[tuple[str, Any]] = ()
    """Tool calls: (name, arguments); arguments that are a text are sent as they are, also if they are not JSON."""
    usage: tuple[int, int] | None = (7, 5)
    """Input and output tokens; None: not reported."""
    finish: str = ""
    """finish_reason; empty: stop or tool_calls."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    error: Any = None
    """The error object of a status that is not 200; None: a message with the status."""
    body: bytes | None = None
    """The whole body, as it is, instead of a completion."""
    fault: Fault = ""
    piece: int = 6
    """Characters of one streamed piece."""


@dataclass(frozen=True)
class Request:
    """What a client sent."""

    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: dict[str, Any]


class OpenAIServer:
    """See above; a context manager.

    Args:
        replies: in order, the last one repeatedly; or a function of the `Request`.
        models: what ``GET /models`` lists; a request for another model is answered with 404. None: any model is known.
        key: the bearer token that requests need; empty: none. Others are answered with 401.
    """

    def __init__(
        self,
        replies: Sequence[Reply | str] | Callable[[Request], Reply | str] = (Reply("ok"),),
        *,
        models: Sequence[str] | None = None,
        key: str = "",
    ) -> None:
        self._replies, self._models, self._key = replies, models, key
        self.requests: list[Request] = []
        """All requests for completions, in order."""
        self.disconnected = threading.Event()
        """Set when a client ended its connection before the end of a reply."""
        self.asked = threading.Event()
        """Set when the first request was read."""
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._port = 0
        self._answered = 0

    @property
    def url(self) -> str:
        """The base URL: ``http://127.0.0.1:PORT/v1``."""
        return f"http://127.0.0.1:{self._port}/v1"

    def __enter__(self) -> OpenAIServer:
        self._thread.start()
        assert self._started.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            if (request := await _read(reader)) is not None:
                await self._answer(request, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.disconnected.set()
        except asyncio.CancelledError:  # the server stops
            pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _answer(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._key and request.headers.get("authorization") != f"Bearer {self._key}":
            return await _send(writer, _failure(401, f"bad key {request.headers.get('authorization', '')}"))
        if request.path.endswith("/models"):
            listed = [{"id": name, "object": "model"} for name in self._models or ()]
            return await _send(writer, _response(200, {}, json.dumps({"object": "list", "data": listed}).encode()))
        if not request.path.endswith("/chat/completions"):
            return await _send(writer, _failure(404, "no such path"))
        self.requests.append(request)
        self.asked.set()
        if self._models is not None and request.body.get("model") not in self._models:
            return await _send(writer, _failure(404, f"the model {request.body.get('model')!r} does not exist"))
        reply = self._next(request)
        answering = asyncio.ensure_future(_reply(reply, request, writer))
        ended = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait([answering, ended], return_when=asyncio.FIRST_COMPLETED)
            if (
                not answering.done() or answering.exception() is not None
            ):  # only the client's end ends the wait before that
                self.disconnected.set()
        finally:
            answering.cancel()
            ended.cancel()
            await asyncio.gather(answering, ended, return_exceptions=True)
        return None

    def _next(self, request: Request) -> Reply:
        if callable(self._replies):
            made = self._replies(request)
        else:
            made = self._replies[min(self._answered, len(self._replies) - 1)]
        self._answered += 1
        return Reply(made) if isinstance(made, str) else made


async def _read(reader: asyncio.StreamReader) -> Request | None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    _, path, _ = head[0].split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(path, headers, json.loads(body) if body else {})


async def _reply(reply: Reply, request: Request, writer: asyncio.StreamWriter) -> None:
    if reply.fault == "timeout":
        await asyncio.Event().wait()
    if reply.status != 200:
        await _send(writer, _failure(reply.status, reply.error or f"failure {reply.status}", reply.headers))
    elif reply.body is not None:
        await _send(writer, _response(200, reply.headers, reply.body))
    elif request.body.get("stream"):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        usage = (request.body.get("stream_options") or {}).get("include_usage")
        async for event in _events(reply, bool(usage), str(request.body.get("model"))):
            writer.write(event)
            await writer.drain()
    else:
        await _send(writer, _whole(reply, str(request.body.get("model"))))


def _whole(reply: Reply, model: str) -> bytes:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.calls:
        message["tool_calls"] = [
            {"id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": _text(arguments)}}
            for at, (name, arguments) in enumerate(reply.calls)
        ]
    body: dict[str, Any] = {
        "id": "c1", "object": "chat.completion", "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(reply)}],
    }  # fmt: skip
    if reply.usage is not None:
        body["usage"] = _usage(reply.usage)
    data = json.dumps(body).encode()
    match reply.fault:
        case "malformed":
            data = b'{"choices": [oops'
        case "error_in_stream":
            data = json.dumps({"error": {"message": "the engine broke", "code": 500}}).encode()
        case "invalid_utf8":
            data = data.replace(json.dumps(reply.text).encode(), b'"\xff\xfe"')
        case "huge":
            data = data.replace(json.dumps(reply.text).encode(), b'"' + b"x" * HUGE + b'"')
        case "endless" | "drip":
            return _response(200, {}, data)[:-1] + b" "
        case "cut":
            return _response(200, {}, data)[: -len(data) // 2]
    return _response(200, reply.headers, data)


async def _events(reply: Reply, with_usage: bool, model: str) -> AsyncIterator[bytes]:
    """The events of a streamed reply."""

    def chunk(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        return _event({"id": "c1", "object": "chat.completion.chunk", "model": model, "choices": choices})

    pieces = [reply.text[at : at + reply.piece] for at in range(0, len(reply.text), reply.piece)] or [""]
    if reply.fault == "malformed":
        yield b'data: {"choices": [oops\n\n'
    if reply.fault == "invalid_utf8":
        yield chunk({"content": "MARK"}).replace(b"MARK", b"\xff\xfe")
    if reply.fault == "huge":
        yield chunk({"content": "x" * HUGE})
    yield chunk({"role": "assistant", "content": pieces[0]})
    match reply.fault:
        case "cut":
            return
        case "error_in_stream":
            yield _event({"error": {"message": "the engine broke", "code": 500}})
            return
        case "drip":
            while True:
                yield b": still here\n\n"
                await asyncio.sleep(0.02)
        case "endless":
            while True:
                yield chunk({"content": "and on " * 500})
    for piece in pieces[1:]:
        yield chunk({"content": piece})
    for event in _call_deltas(reply.calls):
        yield chunk({"tool_calls": [event]})
    yield chunk({}, _finish(reply))
    if with_usage and reply.usage is not None:
        yield _event({"id": "c1", "model": model, "choices": [], "usage": _usage(reply.usage)})
    if reply.fault != "no_end":
        yield b"data: [DONE]\n\n"


def _call_deltas(calls: Sequence[tuple[str, Any]]) -> list[dict[str, Any]]:
    """The parts of all calls: first their heads, then their arguments in halves, alternating."""
    heads = [
        {"index": at, "id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": ""}}
        for at, (name, _) in enumerate(calls)
    ]
    texts = [_text(arguments) for _, arguments in calls]
    halves = [[text[: len(text) // 2] for text in texts], [text[len(text) // 2 :] for text in texts]]
    return heads + [{"index": at, "function": {"arguments": part}} for half in halves for at, part in enumerate(half)]


def _finish(reply: Reply) -> str:
    return reply.finish or ("tool_calls" if reply.calls else "stop")


def _usage(usage: tuple[int, int]) -> dict[str, int]:
    return {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _event(data: Any) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n"


def _failure(status: int, error: Any, headers: Mapping[str, str] | None = None) -> bytes:
    said = error if isinstance(error, dict) else {"message": error, "type": "error"}
    return _response(status, headers or {}, json.dumps({"error": said}).encode())


def _response(status: int, headers: Mapping[str, str], body: bytes) -> bytes:
    head = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close", **headers}
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in head.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    with suppress(ConnectionError):
        writer.write(data)
        await writer.drain()
