"""A small MCP server on standard streams, of either era: ``mini_mcp.py 2026|2025 [LOG]``. By hand, so that it starts at once and says what a test wants.

Lines of LOG say what reached it.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

ERA = sys.argv[1]
LOG = Path(sys.argv[2]) if len(sys.argv) > 2 else None
IS_NEW = ERA == "2026"
ANY = {"type": "object"}
PIXEL = base64.b64encode(b"\x89PNG pixel").decode()
FORM = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "size": {"type": "string", "default": "medium"}},
    "required": ["name"],
}

tools: dict[str, dict[str, Any]] = {}
handlers: dict[str, Callable[[Call], Awaitable[Any]]] = {}
running: dict[Any, asyncio.Task[None]] = {}
asked: dict[Any, asyncio.Future[Any]] = {}
tasks: dict[str, dict[str, Any]] = {}
numbers = itertools.count(1)


def say(message: dict[str, Any]) -> None:
    os.write(1, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def log(line: str) -> None:
    if LOG is not None:
        with LOG.open("a") as file:
            file.write(line + "\n")


class Failed(Exception):
    """A JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Call:
    """One ``tools/call``."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.arguments: dict[str, Any] = params.get("arguments", {})
        self.responses: dict[str, Any] = params.get("inputResponses", {})
        self.state = params.get("requestState")
        meta = params.get("_meta", {})
        self.token = meta.get("progressToken")
        if trace := meta.get("traceparent"):
            log(f"trace {trace} {meta.get('tracestate')}")

    def progress(self, done: float, total: float, message: str) -> None:
        params = {"progressToken": self.token, "progress": done, "total": total, "message": message}
        say({"method": "notifications/progress", "params": params})


def tool(**definition: Any) -> Callable[[Callable[[Call], Awaitable[Any]]], None]:
    def added(handler: Callable[[Call], Awaitable[Any]]) -> None:
        name = handler.__name__
        handlers[name] = handler
        tools[name] = {"name": name, "description": f"Tool {name}.", "inputSchema": ANY, **definition}

    return added


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


ECHO = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


@tool(inputSchema=ECHO, annotations={"readOnlyHint": True}, title="Says it again")
async def echo(call: Call) -> Any:
    return {**text(call.arguments["text"]), "structuredContent": {"text": call.arguments["text"]}}


@tool()
async def parts(call: Call) -> Any:
    return {
        "content": [
            {"type": "text", "text": "words"},
            {"type": "image", "data": PIXEL, "mimeType": "image/png"},
            {"type": "audio", "data": PIXEL, "mimeType": "audio/wav"},
            {"type": "resource_link", "uri": "mini://note", "name": "note", "_meta": {"x": 1}},
            {
                "type": "resource_link",
                "uri": "mini://odd",
                "name": {"a": 1},
                "title": 5,
                "size": "large",
                "mimeType": [],
            },
            {"type": "resource", "resource": {"uri": "mini://text", "mimeType": "text/plain", "text": "inside"}},
            {"type": "resource", "resource": {"uri": "mini://a/blob.bin", "blob": PIXEL}},
            {"type": "hologram", "data": "?"},
            "not even a part",
        ]
    }


@tool(inputSchema={"type": "object", "additionalProperties": True})
async def encoded(call: Call) -> Any:
    return {"content": [{"type": call.arguments["kind"], "data": call.arguments["data"], "mimeType": "image/png"}]}


@tool()
async def fail(call: Call) -> Any:
    return {**text("the disk is full"), "isError": True}


@tool()
async def refuse(call: Call) -> Any:
    raise Failed(-32602, "x must be a number")


@tool()
async def missing(call: Call) -> Any:
    raise Failed(-32602, "Unknown tool: missing")


@tool()
async def broken(call: Call) -> Any:
    raise Failed(-32603, "out of order")


@tool()
async def strange(call: Call) -> Any:
    return {"resultType": "riddle"}


@tool()
async def steps(call: Call) -> Any:
    for number in range(3):
        call.progress(number, 3, f"step {number}")
    return text("walked")


@tool()
async def wait(call: Call) -> Any:
    log("waiting")
    call.progress(0, 1, "waiting")
    await asyncio.sleep(60)


@tool()
async def die(call: Call) -> Any:
    os.write(2, b"I cannot go on; token=sk-abcdefghijklmnopqrstuvwx\n")
    os._exit(3)


@tool()
async def change(call: Call) -> Any:
    tools["added"] = {"name": "added", "description": "New.", "inputSchema": ANY}
    say({"method": "notifications/tools/list_changed"})
    for number in listeners:
        meta = {"io.modelcontextprotocol/subscriptionId": number}
        say({"method": "notifications/tools/list_changed", "params": {"_meta": meta}})
    return text("changed")


@tool()
async def ask(call: Call) -> Any:
    """A question to the person, in the way of the era."""
    question = {"message": "Who are you?", "requestedSchema": FORM}
    if not IS_NEW:
        answer = await request("elicitation/create", question)
    elif "who" not in call.responses:
        requests = {"who": {"method": "elicitation/create", "params": {"mode": "form", **question}}}
        return {"resultType": "input_required", "inputRequests": requests, "requestState": "  exactly\tthis\u00a0"}
    else:
        assert call.state == "  exactly\tthis\u00a0"
        answer = call.responses["who"]
    return text(json.dumps(answer))


@tool()
async def nag(call: Call) -> Any:
    requests = {"again": {"method": "elicitation/create", "params": {"message": "And?", "requestedSchema": FORM}}}
    return {"resultType": "input_required", "inputRequests": requests}


@tool()
async def pry(call: Call) -> Any:
    requests = {"model": {"method": "sampling/createMessage", "params": {"messages": []}}}
    return {"resultType": "input_required", "inputRequests": requests}


@tool()
async def lure(call: Call) -> Any:
    asked = {"mode": "url", "message": "Log in", "url": "javascript:alert(1)", "elicitationId": "1"}
    return {"resultType": "input_required", "inputRequests": {"who": {"method": "elicitation/create", "params": asked}}}


@tool(inputSchema={"type": "object", "additionalProperties": True})
async def later(call: Call) -> Any:
    """A task, which says how it goes when it is asked."""
    number = f"task-{next(numbers)}"
    tasks[number] = {
        "taskId": number,
        "status": "working",
        "wants": call.arguments.get("wants", "completed"),
        "every": call.arguments.get("every", 50),
        "asked": 0,
    }
    return {"resultType": "task", **shown(tasks[number])}


if not IS_NEW:
    tools["later"]["execution"] = {"taskSupport": "required"}


def shown(task: dict[str, Any]) -> dict[str, Any]:
    return {
        "taskId": task["taskId"],
        "status": task["status"],
        "ttlMs": None,
        "pollIntervalMs": task["every"],
        "statusMessage": f"asked {task['asked']} times",
    }


async def tasks_get(params: dict[str, Any]) -> dict[str, Any]:
    task = tasks[params["taskId"]]
    if task["wants"] == "forgotten":
        raise Failed(-32602, "there is no such task")
    task["asked"] += 1
    if task["status"] == "working" and task["asked"] > 1:
        task["status"] = "input_required" if task["wants"] == "nagging" else task["wants"]
    found = shown(task)
    if task["status"] == "input_required":
        found["inputRequests"] = {
            "who": {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": FORM}}
        }
    elif task["status"] == "failed":
        found["error"] = {"code": -32603, "message": "it broke"}
    elif task["status"] == "completed":
        found["result"] = text("at last")
    return found


async def tasks_update(params: dict[str, Any]) -> dict[str, Any]:
    log(f"update {json.dumps(params['inputResponses'], sort_keys=True)}")
    task = tasks[params["taskId"]]
    if task["wants"] != "nagging":
        task |= {"status": "working", "wants": "completed"}
    return {}


async def tasks_cancel(params: dict[str, Any]) -> dict[str, Any]:
    log("task cancelled")
    tasks[params["taskId"]]["status"] = "cancelled"
    return {}


async def tasks_result(params: dict[str, Any]) -> dict[str, Any]:
    return text("at last")


async def request(method: str, params: dict[str, Any]) -> Any:
    """Ask the client something, as the old era does."""
    number = f"s{next(numbers)}"
    asked[number] = asyncio.get_running_loop().create_future()
    say({"id": number, "method": method, "params": params})
    return await asked[number]


listeners: list[Any] = []


async def listen(params: dict[str, Any], number: Any) -> dict[str, Any]:
    meta = {"io.modelcontextprotocol/subscriptionId": number}
    listeners.append(number)
    say(
        {
            "method": "notifications/subscriptions/acknowledged",
            "params": {"notifications": params["notifications"], "_meta": meta},
        }
    )
    await asyncio.sleep(3600)
    return {}


CAPABILITIES = {"tools": {"listChanged": True}, "resources": {}, "prompts": {}}
INFO = {"name": "mini", "version": "7"}


async def answer(method: str, params: dict[str, Any], number: Any) -> Any:
    if method == "server/discover" and IS_NEW:
        meta = {"io.modelcontextprotocol/serverInfo": INFO}
        return {
            "supportedVersions": ["2026-07-28"],
            "capabilities": CAPABILITIES,
            "instructions": "Be brief.",
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": meta,
        }
    if method == "initialize" and not IS_NEW:
        return {
            "protocolVersion": "2025-06-18",
            "capabilities": CAPABILITIES,
            "serverInfo": INFO,
            "instructions": "Be brief.",
        }
    if method == "tools/list":
        names = sorted(tools)
        start = int(params.get("cursor", 0))
        page = {"tools": [tools[name] for name in names[start : start + 4]], "ttlMs": 90_000}
        return page | ({"nextCursor": str(start + 4)} if start + 4 < len(names) else {})
    if method == "tools/call":
        result = await handlers[params["name"]](Call(params))
        if "task" in params and result.get("resultType") == "task":
            return {"task": {key: value for key, value in result.items() if key != "resultType"}}
        return result
    if method == "resources/list":
        return {"resources": [{"uri": "mini://note", "name": "note"}]}
    if method == "resources/templates/list":
        return {"resourceTemplates": [{"uriTemplate": "mini://{id}", "name": "any"}]}
    if method == "resources/read" and params["uri"] == "mini://note":
        return {"contents": [{"uri": "mini://note", "mimeType": "text/plain", "text": "a note"}]}
    if method == "resources/read" and params["uri"] == "mini://half":
        return {"contents": [{"uri": "mini://half", "text": "half \ud83d"}]}
    if method == "prompts/list":
        return {"prompts": [{"name": "greet", "arguments": [{"name": "who"}]}]}
    if method == "prompts/get":
        content = {"type": "text", "text": f"Greet {params['arguments']['who']}."}
        return {"messages": [{"role": "user", "content": content}]}
    if method == "subscriptions/listen":
        return await listen(params, number)
    if method == "ping" and "NO_PING" not in os.environ:
        return {}
    known = {
        "tasks/get": tasks_get,
        "tasks/update": tasks_update,
        "tasks/cancel": tasks_cancel,
        "tasks/result": tasks_result,
    }
    if method in known:
        return await known[method](params)
    raise Failed(-32601, f"no method {method}")


async def serve(message: dict[str, Any]) -> None:
    number = message["id"]
    try:
        say({"id": number, "result": await answer(message["method"], message.get("params", {}), number)})
    except Failed as error:
        say({"id": number, "error": {"code": error.code, "message": str(error)}})
    except asyncio.CancelledError:
        if message["method"] == "tools/call":
            log("cancelled")
    finally:
        running.pop(number, None)


async def main() -> None:
    reader = asyncio.StreamReader(limit=10_000_000)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print("mini_mcp: this line is not a message")
    sys.stdout.flush()
    while line := await reader.readline():
        message = json.loads(line)
        if message.get("method") == "notifications/cancelled":
            if (task := running.get(message["params"]["requestId"])) is not None:
                task.cancel()
        elif "method" in message and "id" in message:
            running[message["id"]] = asyncio.create_task(serve(message))
        elif "id" in message and message["id"] in asked:
            asked.pop(message["id"]).set_result(message.get("result", message.get("error")))


asyncio.run(main())
