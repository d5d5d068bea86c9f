"""A ComfyUI that answers as version 0.3.64 did when it was recorded: queue, history, files and the WebSocket, on a free port.

`comfyui_transcripts.json` holds what was recorded; each run is played from it, with its own id and file name.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiohttp import web

TRANSCRIPTS: dict[str, Any] = json.loads((Path(__file__).parent / "comfyui_transcripts.json").read_text("utf-8"))
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
RECORDED: dict[str, Any] = TRANSCRIPTS["ok"]
RECORDED_ID: str = RECORDED["response"]["prompt_id"]
RECORDED_FILE = "tavern_00054_.png"
JPEG = b"\xff\xd8\xff preview"


class Interrupted(Exception):
    """A run was interrupted between two nodes."""


class ComfyStub:
    """One server. What a test sets changes what the next run does."""

    def __init__(self) -> None:
        self.hold = asyncio.Event()
        """A run waits at its second node until it is set."""
        self.hold.set()
        self.written = asyncio.Event()
        """The history is written when it is set: later than the message that says so."""
        self.written.set()
        self.begun = asyncio.Event()
        """A run is at its second node."""
        self.succeeded = asyncio.Event()
        """A run said that it succeeded."""
        self.queued = asyncio.Event()
        """A run was taken into the queue."""
        self.removed = asyncio.Event()
        """A run was taken out of the queue."""
        self.object_info: dict[str, Any] = dict(TRANSCRIPTS["object_info_sample"])
        self.error: dict[str, Any] | None = None
        self.messages: list[Any] = []
        """What is sent besides, while the second node works."""
        self.sockets = True
        self.padding = ""
        """Makes the queue as large as one with many workflows in it."""
        self.flaws: list[tuple[str, Handler]] = []
        """How method and path begin, and what answers instead."""
        self.runs: list[str] = []
        self.graphs: list[Any] = []
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.uploads: dict[str, bytes] = {}
        self.extra: dict[str, dict[str, Any]] = {}
        """Run → what came with it, which the history keeps."""
        self.interrupted: set[str] = set()
        self.url = ""
        self._cache: dict[str, str] = {}
        self._awaited, self._asked = "", asyncio.Event()
        self._clients: dict[str, web.WebSocketResponse] = {}
        self.restart()

    def restart(self) -> None:
        """Forget queue and history, as a new process does."""
        self.pending: list[tuple[str, Any, str]] = []
        self.running: str | None = None
        self.history: dict[str, Any] = {}

    async def __aenter__(self) -> ComfyStub:
        app = web.Application(client_max_size=1 << 27)
        app.router.add_route("*", "/{rest:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self._wake = asyncio.Event()
        self._worker = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._worker.cancel()
        await asyncio.wait([self._worker])
        await self._runner.cleanup()

    async def crash(self) -> None:
        """End as a process does that is killed, and start anew."""
        self._worker.cancel()
        await asyncio.wait([self._worker])
        for socket in self._clients.values():
            await socket.close()
        self.restart()
        self._worker = asyncio.create_task(self._work())

    async def send(self, message: Any) -> None:
        """Send a message to every client."""
        for client in self._clients:
            await self._send(client, message)

    async def was_asked(self, what: str, *, before: bool = False) -> None:
        """Wait until a request of this kind comes.

        Args:
            before: one that has come already is enough.
        """
        if before and any(asked.startswith(what) for asked in self.asked):
            return
        self._awaited, event = what, asyncio.Event()
        self._asked = event
        async with asyncio.timeout(60):
            await event.wait()

    # HTTP -------------------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.asked.append(f"{request.method} {path}")
        if self._awaited and self.asked[-1].startswith(self._awaited):
            self._asked.set()
        self.headers.append({k.lower(): v for k, v in request.headers.items()})
        for begins, flaw in self.flaws:
            if self.asked[-1].startswith(begins):
                return await flaw(request)
        match request.method, path.split("/")[1:]:
            case "GET", ["ws"] if self.sockets:
                return await self._socket(request)
            case "POST", ["prompt"]:
                return self._prompt(await request.json())
            case "GET", ["queue"]:
                running = [[0, self.running, {"padding": self.padding}, {}, []]] if self.running else []
                waiting = [[n, run, graph, {}, []] for n, (run, graph, _) in enumerate(self.pending)]
                return web.json_response({"queue_running": running, "queue_pending": waiting})
            case "POST", ["queue"]:
                gone = set((await request.json()).get("delete", ()))
                self._remove(gone)
                return web.Response()
            case "POST", ["interrupt"]:
                self.interrupted.add((await request.json()).get("prompt_id") or self.running or "")
                return web.Response()
            case "POST", ["api", "jobs", run, "cancel"]:
                self._remove({run})
                self.interrupted.add(run)
                return web.json_response({})
            case "GET", ["history", run]:
                return web.json_response({run: self.history[run]} if run in self.history else {})
            case "GET", ["object_info", name]:
                return web.json_response({name: self.object_info[name]} if name in self.object_info else {})
            case "GET", ["view"]:
                name = request.query["filename"]
                return web.Response(body=f"picture {name}".encode(), content_type="image/png")
            case "POST", ["upload", "image"]:
                return await self._upload(request)
        return web.Response(status=404)

    def _remove(self, gone: set[str]) -> None:
        left = [row for row in self.pending if row[0] not in gone]
        if len(left) < len(self.pending):
            self.removed.set()
        self.pending = left

    async def _upload(self, request: web.Request) -> web.StreamResponse:
        fields = await request.post()
        image, subfolder = fields["image"], str(fields.get("subfolder", ""))
        assert isinstance(image, web.FileField)
        self.uploads[f"{subfolder}/{image.filename}" if subfolder else image.filename] = image.file.read()
        return web.json_response({"name": image.filename, "subfolder": subfolder, "type": "input"})

    def _prompt(self, body: dict[str, Any]) -> web.StreamResponse:
        graph, run = body["prompt"], body["prompt_id"]
        missing = TRANSCRIPTS["missing_input"]
        if any(node["class_type"] == "ImageInvert" and "image" not in node["inputs"] for node in graph.values()):
            return web.json_response(missing["response"], status=missing["status"])
        self.extra[run] = {**body.get("extra_data", {}), "client_id": body["client_id"]}
        self.graphs.append(graph)
        self.pending.append((run, graph, body["client_id"]))
        self._wake.set()
        self.queued.set()
        return web.json_response({"prompt_id": run, "number": len(self.runs), "node_errors": {}})

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self._clients[request.query["clientId"]] = socket
        await socket.send_json(RECORDED["ws"][0])
        async for _ in socket:
            pass
        return socket

    # A run ------------------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            while not self.pending:
                self._wake.clear()
                await self._wake.wait()
            run, graph, client = self.pending.pop(0)
            self.running = run
            self.runs.append(run)
            await self._play(run, graph, client)
            self.running = None

    async def _play(self, run: str, graph: Any, client: str) -> None:
        """Send the recorded messages, and write the history where the real server does."""
        key = json.dumps(graph, sort_keys=True)
        file, cached = self._cache.get(key), key in self._cache
        file = self._cache[key] = file or f"tavern_{54 + len(self.runs):05}_.png"
        entry = json.loads(_renamed(json.dumps(RECORDED["history"][RECORDED_ID]), run, file))
        entry["prompt"][2:4] = [graph, self.extra[run]]
        messages: list[Any] = entry["status"]["messages"]
        if cached:
            messages[1][1]["nodes"] = ["1", "2", "3"]
        try:
            for message in RECORDED["ws"][3:]:
                if message["type"] == "execution_success":
                    await self._send(client, json.loads(_renamed(json.dumps(message), run, file)))
                    self.succeeded.set()
                    await self.written.wait()
                    self.history[run] = entry
                    continue
                await self._send(client, json.loads(_renamed(json.dumps(message), run, file)))
                if message["type"] == "executing" and message["data"]["node"] == "2":
                    await self._node(run, client)
        except Interrupted:
            self._failed(
                entry,
                run,
                client,
                "execution_interrupted",
                {"node_id": "2", "node_type": "ImageInvert", "executed": ["1"]},
            )
            await self._send(client, {"type": "execution_interrupted", "data": {"prompt_id": run, "node_id": "2"}})
        except RuntimeError:
            assert self.error is not None
            self._failed(entry, run, client, "execution_error", self.error)
            await self._send(client, {"type": "execution_error", "data": {"prompt_id": run, **self.error}})

    async def _node(self, run: str, client: str) -> None:
        for message in self.messages:
            await self._send(client, message)
        self.begun.set()
        await self.hold.wait()
        if run in self.interrupted:
            raise Interrupted
        if self.error is not None:
            raise RuntimeError

    def _failed(self, entry: dict[str, Any], run: str, client: str, kind: str, data: dict[str, Any]) -> None:
        entry["outputs"] = {}
        entry["status"] = {
            "status_str": "error", "completed": False,
            "messages": [*entry["status"]["messages"][:2], [kind, {"prompt_id": run, **data}]],
        }  # fmt: skip
        self.history[run] = entry

    async def _send(self, client: str, message: Any) -> None:
        socket = self._clients.get(client)
        if socket is None or socket.closed:
            return
        with suppress(ConnectionError):  # its process was killed
            if isinstance(message, bytes):
                await socket.send_bytes(message)
            elif isinstance(message, str):
                await socket.send_str(message)
            else:
                await socket.send_json(message)


def preview(data: bytes = JPEG, *, metadata: Any = None) -> bytes:
    """A binary message with a picture, in the older form or the one with metadata."""
    if metadata is None:
        return struct.pack(">II", 1, 1) + data
    about = json.dumps(metadata).encode()
    return struct.pack(">II", 4, len(about)) + about + data


def _renamed(text: str, run: str, file: str) -> str:
    return text.replace(RECORDED_ID, run).replace(RECORDED_FILE, file)
