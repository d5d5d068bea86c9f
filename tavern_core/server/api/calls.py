"""Calls: a tool with its arguments, or the TAM blocks in the text of a model. Each has the rights of the caller's token."""

from __future__ import annotations

from typing import Any, Final

from pydantic_core import to_json
from starlette.responses import Response

from tavern_core.schema.validate import compile_validator
from tavern_core.server.api.exchange import Exchange
from tavern_core.server.api.problem import RequestFailed, of_call

ENTRY_POINT: Final = "http"
"""The name of the entry point of these calls in the audit log."""
INVOKE: Final = compile_validator(
    {
        "type": "object",
        "properties": {
            "arguments": {"type": "object", "description": "By name, as the parameters of the tool say."},
            "purpose": {"type": "string", "maxLength": 2_000, "description": "The reason, for the audit log."},
            "idempotencyKey": {"type": "string", "minLength": 1, "maxLength": 255, "description": "Or the header."},
            "job": {
                "type": "boolean",
                "description": "True: in the background, so that people can be asked meanwhile.",
            },
        },
        "additionalProperties": False,
    },
    name="invoke",
)
TAM: Final = compile_validator(
    {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "What a model wrote."}},
        "required": ["text"],
        "additionalProperties": False,
    },
    name="tam",
)


async def invoke(exchange: Exchange) -> Response:
    """Call a tool."""
    body = await exchange.json(INVOKE)
    result = await exchange.tavern.invoke_from(
        ENTRY_POINT,
        exchange.path["id"],
        body.get("arguments") or {},
        context=exchange.context,
        purpose=body.get("purpose", ""),
        idempotency_key=_key(exchange, body),
        job=body.get("job", False),
    )
    if result.error is not None:
        return of_call(result.error, result.call_id)
    if result.status == "job" and result.job is not None:
        return json_response(result.to_json(), 202, location=f"../../jobs/{result.job}")
    return json_response(result.to_json())


async def tam(exchange: Exchange) -> Response:
    """Make the calls in a text."""
    body = await exchange.json(TAM)
    outcome = await exchange.tavern.run_text(body["text"], context=exchange.context)
    return json_response(outcome.to_json())


def json_response(value: Any, status: int = 200, **headers: str) -> Response:
    """A value as an answer that is not cached."""
    body = to_json(value, inf_nan_mode="null", fallback=str)
    return Response(body, status, {"cache-control": "no-store", **headers}, "application/json")


def _key(exchange: Exchange, body: dict[str, Any]) -> str | None:
    """The idempotency key of a call. Raises RequestFailed: one is empty, or they differ (USAGE)."""
    keys = {*exchange.connection.headers.getlist("idempotency-key")}
    if "" in keys:
        raise RequestFailed(400, "USAGE", "the header Idempotency-Key is empty", "send a key, or leave the header out")
    keys |= {body["idempotencyKey"]} if "idempotencyKey" in body else set()
    if len(keys) > 1:
        raise RequestFailed(400, "USAGE", "the request names different idempotency keys", "send one of them")
    return next(iter(keys), None)
