"""The OpenAPI document, made from the table of routes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from starlette.responses import Response

from tavern_core import __version__
from tavern_core.server.api.answer_schemas import COMPONENTS, Schema, component
from tavern_core.server.api.exchange import Exchange
from tavern_core.server.api.problem import MEDIA_TYPE
from tavern_core.server.api.route import Route


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
            "schemas": dict(COMPONENTS),
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    path = [_parameter(name, "path", {"type": "string"}) for name in re.findall(r"{(\w+)}", route.path)]
    query = [_parameter(name, "query", schema) for name, schema in (route.query or {}).items()]
    problem = {"description": "an error", "content": {MEDIA_TYPE: {"schema": component("Problem")}}}
    answer = {"description": route.answer, "content": {route.media: {"schema": route.schema or {"type": "string"}}}}
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "description": f"Needs {route.needs}.",
        "parameters": [*path, *query],
        "responses": {**{str(status): answer for status in route.statuses}, "default": problem},
        "security": [] if route.is_public else [{"token": []}],
    }
    if route.body is not None:
        content = {"application/json": {"schema": route.body.schema}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _parameter(name: str, place: str, schema: Schema) -> dict[str, Any]:
    described = dict(schema)
    text = described.pop("description", "")
    return {"name": name, "in": place, "required": place == "path", "schema": described, "description": text}
