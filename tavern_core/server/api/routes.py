"""The table of routes of the HTTP API. The server, the OpenAPI document, docs/server.md and the tests follow from it."""

from __future__ import annotations

from typing import Final

from tavern_core.model.job import JOB_STATUSES
from tavern_core.schema.provider_tool_export import DIALECTS
from tavern_core.server.api import calls, catalogues, event_streams, health, jobs
from tavern_core.server.api.answer_schemas import Schema, component, list_of
from tavern_core.server.api.openapi import openapi
from tavern_core.server.api.route import ANY_TOKEN, PUBLIC, Route


def _asked(word: str) -> Schema:
    return {
        "type": "object",
        "properties": {"jobId": {"type": "string"}, word: {"type": "boolean"}},
        "required": ["jobId", word],
    }


_SINCE: Final = {"since": {"type": "string", "description": "the `id` of the last event that the client has"}}
_MESSAGE: Final = {
    "type": "object",
    "properties": {
        "event": {"type": "string"},
        "id": {"type": "string"},
        "data": {"type": "string", "description": "JSON: `type`, `id` and `payload`."},
    },
    "required": ["data"],
}
ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET", "/healthz", (PUBLIC,), "Says that the server runs.", "`ok`", health.alive, media="text/plain",
    ),
    Route(
        "GET", "/readyz", (PUBLIC,), "Says whether the host can take calls.", "`ready`, or a 503", health.ready,
        media="text/plain",
    ),
    Route(
        "GET", "/api/openapi.json", (PUBLIC,), "Describes these routes.", "an OpenAPI 3.1 document", openapi,
        schema={"type": "object"},
    ),
    Route(
        "GET", "/api/nodes", (ANY_TOKEN,), "Lists the node types of all plugins.", "a list of node types", catalogues.nodes,
        {
            "query": {"type": "string", "description": "words that a node type must have, in any language"},
            "plugin": {"type": "string", "description": "only node types of this plugin"},
        },
        schema=list_of(component("NodeType")),
    ),
    Route(
        "GET", "/api/nodes/{type}", (ANY_TOKEN,), "Shows one node type.", "a node type", catalogues.node,
        schema=component("NodeType"),
    ),
    Route(
        "GET", "/api/tools", (ANY_TOKEN,), "Lists the tools that the caller may see.", "a list of tools", catalogues.tools,
        {
            "query": {
                "type": "string", "description": "words to look for, in any language; the tools that fit best come first",
            },
            "usable": {
                "type": "boolean", "description": "`true`: without the tools that the caller can never use, for lack of a permission",
            },
        },
        schema=list_of(component("Tool")),
    ),
    Route(
        "GET", "/api/tools/{id}", (ANY_TOKEN,), "Shows one tool.", "a tool", catalogues.tool,
        {"dialect": {"type": "string", "enum": list(DIALECTS), "description": "in the format of a model API"}},
        schema={"anyOf": [component("Tool"), {"type": "object", "description": "In the format of a model API."}]},
    ),
    Route(
        "POST", "/api/tools/{id}/invoke", ("caller",), "Calls a tool.", "a result; 202 with a job if it goes on in the background",
        calls.invoke, None, calls.INVOKE, schema=component("Result"), statuses=(200, 202),
    ),
    Route(
        "POST", "/api/tam", ("caller",), "Makes the calls in the text of a model.", "results, problems, feedback for the model",
        calls.tam, None, calls.TAM, schema=component("TextOutcome"),
    ),
    Route(
        "GET", "/api/jobs", (ANY_TOKEN,), "Lists the caller's jobs, newest first.", "a list of jobs", jobs.jobs,
        {
            "status": {
                "type": "array", "items": {"type": "string", "enum": list(JOB_STATUSES)},
                "description": "only in this status; may be repeated",
            },
            "tool": {"type": "string", "description": "only calls of this tool"},
            "limit": {
                "type": "integer", "minimum": 1, "maximum": jobs.MOST, "default": 100, "description": "at most so many",
            },
        },
        schema=list_of(component("Job")),
    ),
    Route(
        "GET", "/api/jobs/{id}", (ANY_TOKEN,), "Shows one job.", "a job, with its result when it is over", jobs.job,
        schema=component("JobWithResult"),
    ),
    Route(
        "POST", "/api/jobs/{id}/cancel", ("caller",), "Asks a job to end.", "whether it was still running", jobs.cancel,
        schema=_asked("cancelled"),
    ),
    Route(
        "POST", "/api/jobs/{id}/answer", ("caller", "approver"), "Answers the question of a job.", "whether it had one",
        jobs.answer, None, jobs.ANSWER, schema=_asked("answered"),
    ),
    Route(
        "GET", "/api/events", (ANY_TOKEN,), "Sends events as they happen, as Server-Sent Events.", "a stream of messages",
        event_streams.sse, _SINCE, streams=True, media="text/event-stream", schema=_MESSAGE,
    ),
    Route(
        "WEBSOCKET", "/ws", (ANY_TOKEN,), "Sends the same over a WebSocket.", "a message for each event",
        event_streams.websocket, _SINCE,
    ),
    Route("ANY", "/mcp", ("caller",), "Serves MCP clients.", "see [mcp.md](mcp.md)"),
)  # fmt: skip
"""In the order in which they are looked at."""
