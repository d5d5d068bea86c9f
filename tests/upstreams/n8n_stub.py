"""An n8n that answers as version 1.123 did when it was recorded, and can stop executions as later ones do: a real server on a free port."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

KEY = "n8n-api-key-of-the-tests"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def webhook_node(path: str, method: str = "POST", **more: Any) -> dict[str, Any]:
    parameters = {"path": path, "responseMode": "lastNode", "options": {}}
    if method != "GET":  # n8n leaves out what is the default
        parameters["httpMethod"] = method
    return {
        "id": f"node-{path}", "name": "Webhook", "type": "n8n-nodes-base.webhook", "typeVersion": 2, "position": [0, 0],
        "webhookId": "0b5e7bd1-9c1c-4a3e-8d6f-000000000001", "parameters": parameters, **more,
    }  # fmt: skip


def sticky(content: str) -> dict[str, Any]:
    return {
        "id": "note", "name": "Sticky Note", "type": "n8n-nodes-base.stickyNote", "typeVersion": 1, "position": [0, 0],
        "parameters": {"content": content},
    }  # fmt: skip


def workflow(name: str, *nodes: dict[str, Any], active: bool = True, **more: Any) -> dict[str, Any]:
    return {
        "id": f"wf-{name}", "name": name, "active": active, "nodes": list(nodes), "connections": {}, "settings": {},
        "tags": [], "createdAt": "2026-11-20T10:00:00.000Z", "updatedAt": "2026-11-20T10:00:00.000Z", **more,
    }  # fmt: skip


class N8nStub:
    """One instance. Tests add webhooks, workflows and executions; `asked` holds ``METHOD path`` of every request."""

    def __init__(self) -> None:
        self.webhooks: dict[str, Handler] = {}
        """``POST slack`` → what the workflow answers."""
        self.workflows: list[Any] = []
        self.executions: dict[str, list[Any]] = {}
        """Id → what the API says of it, one after the other; the last stays. None: it breaks off."""
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[Any] = []
        self.page = 100
        self.stops = False
        """Whether its API can stop an execution, as it does since 2026."""
        self.url = ""
        self.most_open = 0
        """How many connections there were at once, at most."""

    async def __aenter__(self) -> N8nStub:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{rest:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0]
        self.asked.append(f"{request.method} {path}")
        self.most_open = max(self.most_open, len(self._runner.server.connections) if self._runner.server else 0)
        self.headers.append({k.lower(): v for k, v in request.headers.items()})
        body = await request.read()
        self.bodies.append(json.loads(body) if body else dict(request.query))
        if path == "/healthz":
            return web.json_response({"status": "ok"})
        if path.startswith("/webhook/"):
            return await self._webhook(request, path.removeprefix("/webhook/"))
        if path.startswith("/api/v1/"):
            if request.headers.get("X-N8N-API-KEY") != KEY:
                return web.json_response({"message": "unauthorized"}, status=401)
            return self._api(request, path.removeprefix("/api/v1/"))
        return web.json_response({"message": "not found"}, status=404)

    async def _webhook(self, request: web.Request, path: str) -> web.StreamResponse:
        known = self.webhooks.get(f"{request.method} {path}")
        if known is not None:
            return await known(request)
        return web.json_response(
            {
                "code": 404,
                "message": f'The requested webhook "{request.method} {path}" is not registered.',
                "hint": "The workflow must be active for a production URL to run successfully. You can activate the workflow using the "
                "toggle in the top-right of the editor. Note that unlike test URL calls, production URL calls aren't shown on the canvas "
                "(only in the executions list)",
            },
            status=404,
        )

    def _api(self, request: web.Request, path: str) -> web.StreamResponse:
        if request.method == "GET" and path == "workflows":
            start = int(request.query.get("cursor", "0"))
            rows = [row for row in self.workflows if not isinstance(row, dict) or row.get("active")]
            end = start + min(self.page, int(request.query["limit"]))
            return web.json_response({"data": rows[start:end], "nextCursor": str(end) if end < len(rows) else None})
        if request.method == "GET" and path.startswith("executions/"):
            states = self.executions.get(path.removeprefix("executions/"), [])
            if states:
                state = states.pop(0) if len(states) > 1 else states[0]
                if state is None and request.transport is not None:
                    request.transport.abort()
                if isinstance(state, dict) and request.query.get("includeData") != "true":
                    state = {key: value for key, value in state.items() if key != "data"}
                return web.json_response(state)
            return web.json_response({"message": "Not Found"}, status=404)
        if self.stops and request.method == "POST" and path.startswith("executions/") and path.endswith("/stop"):
            self.executions[path.split("/")[1]] = [execution("canceled")]
            return web.json_response({"mode": "webhook", "status": "canceled", "finished": False})
        if request.method == "POST" and path.endswith(("/execute", "/run")):
            return web.json_response({"message": "POST method not allowed"}, status=405)
        return web.json_response({"message": "not found"}, status=404)


def answers(data: Any = None, status: int = 200, **headers: str) -> Handler:
    """A workflow that answers JSON."""

    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response(data, status=status, headers=headers)

    return handler


def execution(status: str, rows: list[Any] | None = None, error: Any = None, id: str = "7") -> dict[str, Any]:  # noqa: A002
    """What the API says of an execution, with its data."""
    result: dict[str, Any] = {"runData": {}, "lastNodeExecuted": "Last"}
    if rows is not None:
        result["runData"]["Last"] = [{"data": {"main": [[{"json": row, "pairedItem": {"item": 0}} for row in rows]]}}]
    if error is not None:
        result["error"] = error
    return {
        "id": id, "finished": status == "success", "mode": "webhook", "status": status, "workflowId": "wf-1",
        "startedAt": "2026-11-20T10:00:00.000Z", "stoppedAt": None, "data": {"resultData": result},
    }  # fmt: skip
