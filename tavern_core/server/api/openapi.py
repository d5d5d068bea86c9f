"""The OpenAPI document, made from the table of routes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from starlette.responses import Response

from tavern_core import __version__
from tavern_core.server.api.exchange import Exchange
from tavern_core.server.api.problem import MEDIA_TYPE
from tavern_core.server.api.route import Route

_PROBLEM: Final = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "description": "A code of the manual page errors.md."},
        "detail": {"type": "string"},
        "fix": {"type": ["string", "null"], "description": "How to repair it."},
    },
    "required": ["title", "status", "code", "detail"],
}


async def openapi(exchange: Exchange) -> Response:
    """The document of the server's own routes."""
    return exchange.state.document.response(exchange.connection.headers)


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The OpenAPI document of some routes. WebSockets and MCP, which OpenAPI cannot describe, are left out."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if route.method in ("GET", "POST"):
            paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "tavern_core", "version": __version__},
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Problem": _PROBLEM},
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    variables = [(name, "path", "") for name in re.findall(r"{(\w+)}", route.path)]
    query = [(name, "query", meaning) for name, meaning in (route.query or {}).items()]
    problem = {"description": "an error", "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "description": f"Needs {route.needs}.",
        "parameters": [
            {
                "name": name,
                "in": place,
                "required": place == "path",
                "schema": {"type": "string"},
                "description": meaning,
            }
            for name, place, meaning in (*variables, *query)
        ],
        "responses": {"200": {"description": route.answer}, "default": problem},
        "security": [] if route.is_public else [{"token": []}],
    }
    if route.body is not None:
        content = {"application/json": {"schema": route.body.schema}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation
