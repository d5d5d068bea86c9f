"""The program of a worker, after its process is confined: it answers requests until the host closes the connection.

    side channel   main thread         more connections, cancellations, the host's answers to the plugin's requests
    sync           a thread for each   one request at a time, run in the reading thread
    loop           one event loop      one request at a time for each connection, all concurrently

A connection carries one call at a time, so answers need no sorting and wake no other thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from tavern_core.errors import OutputTooLarge, UpstreamError
from tavern_core.isolation.codec import WorkerSetup
from tavern_core.isolation.error_codec import pack_error
from tavern_core.isolation.stream_window import Outbox, bounded_frame
from tavern_core.isolation.transport import MOST_AT_ONCE, BrokenChannel, FrameChannel, FrameDecoder, encode
from tavern_core.isolation.worker.facilities import HostLogHandler
from tavern_core.isolation.worker.host_client import HostClient, running
from tavern_core.isolation.worker.loop_thread import LoopThread
from tavern_core.isolation.worker.plugin_request_handlers import WorkerPlugin
from tavern_core.isolation.worker.running_call import WorkerCalls
from tavern_core.isolation.worker.streams import StreamingCall

MOST_FDS: Final = 16
LONGEST_FRAME: Final = 1 << 30
"""Bytes of one frame of the host, which limits their size itself."""

RequestWork = tuple[Callable[[], Any], Callable[[Any], Any]]
"""The function that starts the work, and the one that packs its answer."""


def run(side: socket.socket, connection: socket.socket, longest: int) -> None:
    """Serve until the host closes the connection; does not return.

    Args:
        connection: the first one; a sync one.
        longest: maximum bytes of one message to the host.
    """
    worker = Worker(side, longest)
    worker.add_lane("sync", connection)
    try:
        worker.listen()
    finally:
        os._exit(0)  # threads of the plugin must not keep the process


class _Connection:
    """A connection of the event loop, and its streaming call."""

    __slots__ = ("channel", "incoming", "out", "streaming_call")

    def __init__(self, channel: FrameChannel, loop: asyncio.AbstractEventLoop) -> None:
        self.channel = channel
        self.incoming = FrameDecoder(channel.limit)
        self.out = Outbox(channel, loop)
        self.streaming_call: StreamingCall | None = None


class Worker:
    """Serves one plugin."""

    def __init__(self, side: socket.socket, longest: int) -> None:
        self._side = side
        self._host_client = HostClient(side, longest)
        self._calls = WorkerCalls(self._host_client)
        self._loop = LoopThread()
        self._plugin: WorkerPlugin | None = None
        """None until its first request has imported it."""
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        root = logging.getLogger()
        root.addHandler(HostLogHandler(self._host_client))
        root.setLevel(logging.INFO)

    def listen(self) -> None:
        """Read the side channel until its end."""
        stream, fds = FrameDecoder(LONGEST_FRAME), list[int]()
        while True:
            try:
                chunk, found, _, _ = socket.recv_fds(self._side, MOST_AT_ONCE, MOST_FDS)
            except OSError:
                return
            fds += found
            if not chunk:
                return
            for message in stream.feed(chunk):
                if (kind := message.get("connection")) is not None:
                    self.add_lane(kind, socket.socket(fileno=fds.pop(0)))
                elif (number := message.get("cancel")) is not None:
                    self._calls.cancelled(number)
                    self._loop.loop.call_soon_threadsafe(self._cancel, number)
                else:
                    self._host_client.answered(message)

    def add_lane(self, kind: str, sock: socket.socket) -> None:
        """Serve another connection, ``sync`` or ``loop``."""
        channel = FrameChannel(sock, LONGEST_FRAME)
        if kind == "sync":
            threading.Thread(target=self._serve, args=(channel,), name="tavern-connection", daemon=True).start()
        else:
            loop = self._loop.started()
            loop.call_soon_threadsafe(loop.add_reader, channel.fd, self._readable, _Connection(channel, loop))

    # Sync connections-----------------------------------------------------------------------------------------------------

    def _serve(self, channel: FrameChannel) -> None:
        try:
            while True:
                message = channel.receive()
                token = running.set(message["id"])
                answer = self._answer(message)
                running.reset(token)
                channel.send(answer)
                del message, answer
        except BrokenChannel:
            channel.close()

    def _answer(self, message: dict[str, Any]) -> bytes:
        number = message["id"]
        try:
            begin, finish = self._step(message)
            answer = begin()
            if inspect.isawaitable(answer):
                answer = self._loop.wait(answer)
            return bounded_frame({"id": number, "ok": finish(answer)}, self._host_client.longest)
        except BaseException as error:  # noqa: BLE001 - any error of the plugin, including sys.exit()
            return self._failed(number, message, error)
        finally:
            self._calls.end(number)

    def _failed(self, number: int, message: dict[str, Any], error: BaseException) -> bytes:
        plugin = self._plugin
        if plugin is not None and message.get("honest"):
            error = plugin.honest(error)
        elif isinstance(error, StopIteration) or (message["do"] == "hook" and not isinstance(error, Exception)):
            # As in the host, where such an error must not leave its hook.
            what = plugin.name_of(message["impl"]) if plugin is not None and message["do"] == "hook" else "the tool"
            error = RuntimeError(f"{what} raised {type(error).__name__}")
        try:
            packed = pack_error(error)
            try:
                return bounded_frame({"id": number, "error": packed}, self._host_client.longest)
            except OutputTooLarge:
                return encode({"id": number, "error": {**packed, "details": {}, "findings": []}})
        except (Exception, SystemExit) as problem:  # noqa: BLE001 - an error that cannot be packed
            reported = UpstreamError(
                f"{type(error).__name__}, which cannot be sent: {problem!r:.200}", outcome="unknown"
            )
            return encode({"id": number, "error": pack_error(reported)})

    # Loop connections-----------------------------------------------------------------------------------------------------

    def _readable(self, connection: _Connection) -> None:
        try:
            messages = connection.incoming.feed(connection.channel.received())
        except BrokenChannel:
            self._loop.loop.remove_reader(connection.channel.fd)
            connection.out.close()
            connection.channel.close()
            return
        for message in messages:
            if "do" in message:
                # Now and not in its task, because the first chunks may have arrived with the request.
                connection.streaming_call = (
                    StreamingCall(message["id"], message["streams"], connection.out, self._host_client.longest)
                    if "streams" in message
                    else None
                )
                task = self._loop.loop.create_task(self._answer_later(connection, message))
                self._tasks[message["id"]] = task
            elif connection.streaming_call is not None and connection.streaming_call.number == message["id"]:
                connection.streaming_call.receive_message(message)

    async def _answer_later(self, connection: _Connection, message: dict[str, Any]) -> None:
        number = message["id"]
        running.set(number)
        talk = connection.streaming_call
        try:
            begin, finish = self._step(message, talk)
            answer = begin()
            if inspect.isawaitable(answer):
                answer = await answer
            frame = bounded_frame({"id": number, "ok": finish(answer)}, self._host_client.longest)
        except BaseException as error:  # noqa: BLE001 - any error of the plugin, including its own CancelledError
            frame = self._failed(number, message, error)
        finally:
            self._tasks.pop(number, None)
            self._calls.end(number)
            connection.streaming_call = None
        with contextlib.suppress(BrokenChannel, OSError):
            if talk is not None:
                talk.end()
            connection.out.put(frame)

    def _cancel(self, number: int) -> None:
        if (task := self._tasks.get(number)) is not None:
            task.cancel()

    # Requests -----------------------------------------------------------------------------------------------------------

    def _step(self, message: dict[str, Any], talk: StreamingCall | None = None) -> RequestWork:
        if (inside := self._plugin) is None:  # the first request
            return lambda: self._start(message["setup"]), _same
        request = message
        match message["do"]:
            case "call":
                return lambda: inside.tools.call(request), lambda answer: inside.tools.result(request["key"], answer)
            case "hook":
                return lambda: inside.hook(request["impl"], request["given"]), inside.answer
            case "wants":
                return lambda: inside.wants(request["impl"], request["tool"]), _same
            case "make":
                inside.tools.drop(request.get("drop", []))
                return lambda: inside.tools.make(request["factory"], request["context"]), inside.tools.factory_tools
            case "service":
                return lambda: inside.service(
                    request["name"], request["method"], request["args"], request["kwargs"]
                ), inside.served
            case "setting_changed":
                return lambda: inside.setting_changed(request["watch"], request["value"]), _nothing
            case "bind":
                asked = request["key"], request["tool"], request.get("handler"), bool(request.get("preview"))
                return lambda: inside.tools.bind(*asked), _same
            case "offer":
                return lambda: inside.offer(request["impl"]), _same
            case "handler":
                return lambda: inside.tools.handler(request["target"], request["tool"]), _same
            case "service_life":
                return lambda: inside.service_life(request["name"], request["end"]), _nothing
            case "command":
                return lambda: inside.command(request["name"], request["args"]), _same
            case "node":
                return lambda: inside.nodes.run(request, talk), _same if request.get("yields") else inside.nodes.answer
            case "node_needs":
                return lambda: inside.nodes.needs(request), inside.nodes.needed
            case "node_asked":
                return lambda: inside.nodes.call_optional(request), inside.nodes.packed_answer
            case "nodes_below":
                return lambda: inside.nodes_below(request["entry"]), _same
        raise ValueError(f"no request {message['do']!r}")

    def _start(self, setup: Mapping[str, Any]) -> dict[str, Any]:
        """Import the plugin; returns what it implements."""
        self._plugin = WorkerPlugin(WorkerSetup.from_json(setup), self._host_client, self._calls, self._loop)
        return self._plugin.report()


def _same(answer: Any) -> Any:
    return answer


def _nothing(answer: Any) -> None:
    return None
