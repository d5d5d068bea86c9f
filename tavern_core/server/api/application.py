"""The ASGI application of the HTTP API: checks each request, finds its route, and turns every error into an answer.

Host and Origin → route → token → role → handler → answer
"""

from __future__ import annotations

import logging
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json
from starlette.datastructures import Headers, QueryParams
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tavern_core.errors import ProfileInvalid, StateDamaged, TavernError
from tavern_core.kernel.access.tokens import Token
from tavern_core.model.nearest import did_you_mean
from tavern_core.server.api.etag_cache import CachedResponses, response_with_etag
from tavern_core.server.api.event_feed import EventFeed
from tavern_core.server.api.exchange import ApiState, Exchange
from tavern_core.server.api.openapi import document
from tavern_core.server.api.problem import RequestFailed, internal_error_response, of_error
from tavern_core.server.api.route import ANY_TOKEN, Route
from tavern_core.server.api.routes import ROUTES
from tavern_core.server.mcp import asgi_app
from tavern_core.server.request_access import RequestAccess, bearer_token, has_role

if TYPE_CHECKING:
    from tavern_core.host import Tavern

_log: Final = logging.getLogger("tavern.server")
_METADATA: Final = "/.well-known/oauth-protected-resource"
"""The path at which MCP clients look for the address of the OAuth server."""
_BEARER: Final = "bearer."
"""Before the token among the subprotocols of a WebSocket."""


class ApiApplication:
    """See `tavern_core.server.app`. It may be mounted anywhere; it starts with its first request."""

    def __init__(self, tavern: Tavern, hosts: tuple[str, ...], origins: tuple[str, ...]) -> None:
        config = tavern.config.server
        hosts, origins = (*config.hosts, *hosts), (*config.origins, *origins)
        self._access = RequestAccess(tavern, "server", hosts, origins)
        self._mcp = asgi_app(tavern, hosts=hosts, origins=origins)
        self.feed = EventFeed(tavern.events, config.events, config.event_bytes)
        """The events of the host for all clients."""
        self.state = ApiState(
            tavern, config, self.feed, CachedResponses(), response_with_etag(to_json(document(ROUTES)))
        )
        self._table = [(re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", route.path)), route) for route in ROUTES]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if scope["type"] == "http" and (path.rstrip("/") == "/mcp" or path.startswith(_METADATA)):
            await self._mcp(scope, receive, send)  # it has the same checks, and the answers that its clients expect
            return
        try:
            answer = await self._answer(scope, path, receive)
        except ClientDisconnect:
            return
        if scope["type"] == "websocket" and isinstance(answer, Response):
            await _refuse(answer, scope, receive, send)
            return
        await answer(scope, receive, send)

    async def close(self) -> None:
        """End all streams and sessions."""
        self.feed.close()
        await self._mcp.close()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                await self.close()
                return

    async def _answer(self, scope: Scope, path: str, receive: Receive) -> ASGIApp:
        connection: HTTPConnection[Any] = HTTPConnection(scope)
        try:
            refusal = self._access.refusal(connection.headers)
            if refusal is not None:
                raise RequestFailed(refusal.status, "POLICY_DENIED", refusal.message, refusal.hint)
            route, variables = self._route(scope, path)
            assert route.handler is not None
            text = _token_in(scope, connection.headers)
            holder = None if route.is_public else await self._authorized(route, text)
            if holder is not None:
                _refuse_unknown_parameters(connection.query_params, route)
            valid = partial(self._access.is_valid, holder)
            return await route.handler(Exchange(connection, receive, self.state, holder, variables, valid))
        except RequestFailed as problem:
            return problem.response
        except StateDamaged as error:  # it names files of this machine
            _log.error("%s: %s", path, error)
            return RequestFailed(503, error.code, "the state of the host cannot be read", "look into its log").response
        except ProfileInvalid as error:
            _log.error("%s: %s", path, error)
            return RequestFailed(
                500, error.code, "the profile of this token cannot be used", "look into the log"
            ).response
        except TavernError as error:
            return of_error(error)
        except ClientDisconnect:
            raise
        except Exception:  # noqa: BLE001 - the client only learns that it failed; the log of the server has the reason
            _log.exception("%s %s failed", scope.get("method", "WEBSOCKET"), path)
            return internal_error_response()

    def _route(self, scope: Scope, path: str) -> tuple[Route, dict[str, str]]:
        """The route of a request, and the variables in its path. Raises RequestFailed: there is none (USAGE)."""
        method = "WEBSOCKET" if scope["type"] == "websocket" else scope["method"]
        allowed: list[str] = []
        for pattern, route in self._table:
            if (found := pattern.fullmatch(path)) is not None:
                if method in (route.method, *route.also):
                    return route, found.groupdict()
                allowed += (route.method, *route.also)
        if not allowed:
            raise RequestFailed(404, "USAGE", f"there is no route {path:.200}", "GET /api/openapi.json lists them")
        if allowed == ["WEBSOCKET"]:
            detail, fix = f"{path:.200} is a WebSocket", "open it with ws:// or wss://"
            raise RequestFailed(426, "USAGE", detail, fix, headers={"upgrade": "websocket"})
        detail = f"{path:.200} is there for {', '.join(allowed)}"
        raise RequestFailed(405, "USAGE", detail, "GET /api/openapi.json", headers={"allow": ", ".join(allowed)})

    async def _authorized(self, route: Route, text: str) -> Token:
        """The token of a request. Raises RequestFailed: no valid token, or not one for this route (POLICY_DENIED)."""
        holder = await self._access.token(text)
        if holder is None:
            challenge = {"www-authenticate": 'Bearer error="invalid_token"'} if text else {"www-authenticate": "Bearer"}
            fix = "Authorization: Bearer tvn_…, a token of `tavern tokens create`"
            raise RequestFailed(401, "POLICY_DENIED", "a token of this server is needed", fix, headers=challenge)
        if ANY_TOKEN not in route.roles and not has_role(holder, *route.roles):
            detail = f"this needs a token with the role {route.needs}"
            raise RequestFailed(403, "POLICY_DENIED", detail, f"tavern tokens create … --role {route.roles[0]}")
        return holder


def _refuse_unknown_parameters(query: QueryParams, route: Route) -> None:
    """Refuse parameters that a route does not have: an answer without them would not be what was asked for. Raises RequestFailed (USAGE)."""
    known = tuple(route.query or ())
    for name in query:
        if name not in known:
            fix = did_you_mean(name, known) or (f"known are {', '.join(known)}" if known else "it takes none")
            raise RequestFailed(400, "USAGE", f"{route.path} has no parameter {name:.40}", fix)


def _token_in(scope: Scope, headers: Headers) -> str:
    """The token of a request: in its header, or, as browsers can set none for WebSockets, among their subprotocols."""
    for protocol in scope.get("subprotocols", ()):
        if protocol.startswith(_BEARER):
            return str(protocol.removeprefix(_BEARER))
    return bearer_token(headers)


async def _refuse(answer: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a WebSocket before it begins."""
    if "websocket.http.response" in scope.get("extensions", {}):
        await answer(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": ""})
