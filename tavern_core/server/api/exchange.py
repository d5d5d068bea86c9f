"""A request as the handlers of routes see it: its caller, its content, and the parts of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import Receive

from tavern_core.contract.trace_context import traceparent_of
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.access.tokens import Token
from tavern_core.kernel.text.json_document import read_json
from tavern_core.schema.validate import Validator
from tavern_core.server.api.problem import RequestFailed

if TYPE_CHECKING:
    from tavern_core.host import Tavern
    from tavern_core.model.call import CallContext
    from tavern_core.model.config import ServerConfig
    from tavern_core.server.api.etag_cache import CachedResponse, CachedResponses
    from tavern_core.server.api.event_feed import EventFeed

_MOST_VALUES: Final = 1_000_000
_CLOSE: Final = {"connection": "close"}
_BODIES: Final = "GET /api/openapi.json describes the bodies"


@dataclass(frozen=True, slots=True)
class ApiState:
    """The state that all requests to one server share."""

    tavern: Tavern
    config: ServerConfig
    feed: EventFeed
    kept: CachedResponses
    document: CachedResponse
    """The OpenAPI document."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request, with the state of its server."""

    connection: HTTPConnection[Any]
    receive: Receive
    state: ApiState
    caller: Token | None
    """None if the route needs no token."""
    path: Mapping[str, str]
    """Name → value of the variables in the path."""
    is_valid: Callable[[], Coroutine[Any, Any, bool]]
    """Whether the caller's token is valid still."""

    @property
    def tavern(self) -> Tavern:
        """The host."""
        return self.state.tavern

    @property
    def holder(self) -> Token:
        """The token of the request."""
        assert self.caller is not None
        return self.caller

    @property
    def context(self) -> CallContext:
        """The caller of calls that this request makes, in the trace that its header `traceparent` names."""
        context = self.holder.context()
        trace = traceparent_of(self.connection.headers.get("traceparent", ""))
        return replace(context, trace_id=trace["traceparent"]) if trace else context

    @property
    def query(self) -> QueryParams:
        """The part of the address behind ``?``."""
        return self.connection.query_params

    def number(self, name: str, default: int, most: int) -> int:
        """A whole number of the query. Raises RequestFailed: it is not one, or not from 1 to `most` (USAGE)."""
        text = self.query.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= most):
            raise RequestFailed(
                400, "USAGE", f"{name}={text:.40} is not a number from 1 to {most}", f"?{name}={default}"
            )
        return int(text)

    def flag(self, name: str) -> bool:
        """Whether the query has ``name=true``. Raises RequestFailed: it has another value than true and false (USAGE)."""
        text = self.query.get(name, "false")
        if text not in ("true", "false"):
            raise RequestFailed(400, "USAGE", f"{name}={text:.40} is neither true nor false", f"?{name}=true")
        return text == "true"

    async def json(self, validator: Validator) -> dict[str, Any]:
        """Read the body as JSON and validate it.

        Raises RequestFailed: it is too large, too slow, or invalid (USAGE).
        """
        media = self.connection.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != "application/json":
            raise RequestFailed(415, "USAGE", "the body of this request is JSON", "content-type: application/json")
        if self.connection.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise RequestFailed(
                415, "USAGE", "the body of this request is not compressed", "leave content-encoding out"
            )
        document = read_json(
            await self._body(), "body", code="USAGE", largest=self.state.config.body_bytes, most_values=_MOST_VALUES
        )
        if document.findings:
            first = document.findings[0]
            where = first.where
            place = {"line": where.line, "column": where.column} if where and where.line else {}
            finding: dict[str, Any] = {"message": first.message, **place}
            raise RequestFailed(
                400, "USAGE", f"the body cannot be read: {first.message}", first.hint or _BODIES, findings=[finding]
            )
        if violations := validator.problems(document.data):
            problems = [one.to_json() for one in violations]
            raise RequestFailed(
                422,
                "USAGE",
                f"the body does not fit: {violations[0]}",
                violations[0].hint or _BODIES,
                findings=problems,
            )
        return dict(document.data)

    async def _body(self) -> bytes:
        most, seconds = self.state.config.body_bytes, self.state.config.client_ms / 1000
        announced = self.connection.headers.get("content-length", "")
        too_large = RequestFailed(
            413, "USAGE", f"the body has more than {most} bytes", "send less, or raise server.bodyBytes"
        )
        if announced.isdecimal() and int(announced[:20]) > most:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(seconds):
                while True:
                    message = await self.receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise RequestFailed(
                408, "USAGE", f"the body did not arrive within {seconds:g} s", "send it faster", headers=_CLOSE
            ) from None
