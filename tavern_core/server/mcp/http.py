"""The ASGI application: it checks the access of a request, and then the library handles it.

    Host and Origin → token → the library (sessions, eras, streams) → pages of lists put into what goes out

A request from another web page's script, or under a name that is not ours, ends before anything else is checked.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, AuthorizationContext
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from tavern_core.errors import StateDamaged
from tavern_core.kernel.access.tokens import Token
from tavern_core.server.mcp.changes import ChangeNotifier
from tavern_core.server.mcp.event_store import RecentEvents, SessionEvents
from tavern_core.server.mcp.service import ListPages, McpService
from tavern_core.server.request_access import RequestAccess, bearer_token, has_role

if TYPE_CHECKING:
    from tavern_core.host import Tavern

_log: Final = logging.getLogger("tavern.server")
_METADATA: Final = "/.well-known/oauth-protected-resource"
_RETRY_MS: Final = 500
"""Milliseconds after which a client should resume a stream that was closed."""
_FRESH_S: Final = 0.1
"""A token that was checked so lately is not checked again before a stream goes on."""
_ANSWERED_AT_ONCE: Final = frozenset(
    {
        "completion/complete", "prompts/list", "resources/list", "resources/templates/list", "server/discover", "tasks/cancel",
        "tasks/get", "tasks/update", "tools/list",
    }
)  # fmt: skip
"""Methods of the 2026 era that send nothing but their answer: no stream is made ready for them, which takes half of their time."""
_holder_now: Final[ContextVar[Token | None]] = ContextVar("tavern_mcp_holder", default=None)
"""The token of the request that the library is handling."""


class McpApplication:
    """See `tavern_core.server.mcp.asgi_app`. It may be mounted anywhere; it starts with its first request."""

    def __init__(self, tavern: Tavern, path: str, hosts: tuple[str, ...], origins: tuple[str, ...]) -> None:
        config = tavern.config.mcp
        self._access = RequestAccess(tavern, "mcp", (*config.hosts, *hosts), (*config.origins, *origins))
        self._service = McpService(tavern)
        self._path = path
        self._managers: tuple[StreamableHTTPSessionManager, StreamableHTTPSessionManager] | None = None
        """For requests that may stream and have sessions, and for those that are answered at once."""
        self._running: asyncio.Task[None] | None = None
        self._ready, self._stop = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        if (refused := self._access.refusal(headers)) is not None:
            body = {"error": refused.code, "hint": refused.hint}
            await JSONResponse(body, refused.status)(scope, receive, send)
            return
        if (other := self._other_path(scope)) is not None:
            await other(scope, receive, send)
            return
        try:
            holder = await self._access.token(bearer_token(headers))
            if holder is not None:
                await self._started_managers()
        except StateDamaged as error:
            _log.error("%s: %s", scope["path"], error)
            await JSONResponse({"error": "temporarily_unavailable"}, 503)(scope, receive, send)
            return
        if holder is None:
            await self._unauthenticated(shown=bearer_token(headers))(scope, receive, send)
            return
        if not has_role(holder, "caller"):
            body = {"error": "insufficient_role", "hint": "a token of `tavern tokens create --role caller` is needed"}
            await JSONResponse(body, 403)(scope, receive, send)
            return
        await self._serve(holder, scope, receive, send)

    async def _serve(self, holder: Token, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve an authenticated request. The text of the token is not passed on."""
        streaming, plain = await self._started_managers()
        access = AccessToken(token="", client_id=holder.id, scopes=[], subject=holder.principal)
        headers = [(name, value) for name, value in scope["headers"] if name != b"authorization"]
        inner = {**scope, "headers": headers, "user": AuthenticatedUser(access), "tavern.holder": holder}
        token = _holder_now.set(holder)
        sending = _with_pages(self._while_valid(holder, send), self._service.pages)
        try:
            manager = plain if _is_answered_at_once(scope) else streaming
            # Only a POST has a body that matters: the end of a session holds although its client has gone at once.
            with suppress(ClientDisconnect):
                await manager.handle_request(
                    inner, _raising_on_disconnect(receive) if scope["method"] == "POST" else receive, sending
                )
        finally:
            _holder_now.reset(token)

    def _while_valid(self, holder: Token, send: Send) -> Send:
        """`send`, which ends a stream of events when the token of its client is not valid any more."""
        is_stream, has_ended, checked = False, False, time.monotonic()

        async def watched(message: Message) -> None:
            nonlocal is_stream, has_ended, checked
            if has_ended:
                return
            if message["type"] == "http.response.start":
                is_stream = any(value.startswith(b"text/event-stream") for _, value in message["headers"])
            elif is_stream and time.monotonic() - checked > _FRESH_S:
                has_ended = not await self._access.is_valid(holder)
                checked = time.monotonic()
            await send({"type": "http.response.body", "body": b""} if has_ended else message)

        return watched

    def _other_path(self, scope: Scope) -> Response | None:
        """The response to a request that is not for the endpoint; None: it is."""
        path, config = scope["path"].removeprefix(scope.get("root_path", "")), self._service.config
        if path.rstrip("/") == self._path.rstrip("/"):
            return None
        if config.issuer and config.resource and path in (_METADATA, _METADATA + self._path):
            metadata = {
                "resource": config.resource,
                "authorization_servers": [config.issuer],
                "bearer_methods_supported": ["header"],
            }
            return JSONResponse(metadata)
        return JSONResponse({"error": "not_found"}, 404)

    def _unauthenticated(self, shown: str) -> Response:
        """The answer to a request without a valid token. To one without any, the challenge names no error (RFC 6750)."""
        facts = ['error="invalid_token"', 'error_description="a token of this server is needed"'] if shown else []
        config = self._service.config
        if config.issuer and config.resource:
            base = config.resource.rstrip("/").removesuffix(self._path)
            facts.append(f'resource_metadata="{base}{_METADATA}{self._path}"')
        challenge = f"Bearer {', '.join(facts)}".strip()
        body = {"error": "invalid_token", "error_description": "a token of this server is needed: tavern tokens create"}
        return JSONResponse(body, 401, {"www-authenticate": challenge})

    # Life ----------------------------------------------------------------------------------------------------------------

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                with suppress(StateDamaged):  # each request reports it, until it is repaired
                    await self._started_managers()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _started_managers(self) -> tuple[StreamableHTTPSessionManager, StreamableHTTPSessionManager]:
        """The session managers.

        The first request starts them in a separate task, because they must end in the task in which they began.

        Raises:
            StateDamaged: they cannot start; the next request tries again (STATE_DAMAGED).
        """
        if self._managers is None:
            running = self._running = self._running or asyncio.ensure_future(self._run())
            ready = asyncio.ensure_future(self._ready.wait())
            await asyncio.wait([ready, running], return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
            if running.done() and running.exception() is not None:
                self._running = None if self._running is running else self._running
                await running
        if self._managers is None:
            raise RuntimeError("the MCP server has ended")
        return self._managers

    async def _run(self) -> None:
        config, service = self._service.config, self._service

        events = RecentEvents(service.pages)
        security = TransportSecuritySettings(enable_dns_rebinding_protection=False)  # the headers were checked before
        schema_of = _schema_of(service)
        streaming = _Sessions(
            service.server(lambda _: service.changes.watching(), schema_of),
            events,
            service.changes,
            retry_interval=_RETRY_MS,
            security_settings=security,
            session_idle_timeout=config.session_idle_ms / 1000,
            max_request_body_size=config.body_bytes,
            max_sessions=config.sessions,
        )
        plain = StreamableHTTPSessionManager(
            service.server(lambda _: nullcontext(), schema_of),
            json_response=True,
            security_settings=security,
            max_request_body_size=config.body_bytes,
        )
        async with streaming.run(), plain.run():
            self._managers = streaming, plain
            self._ready.set()
            await self._stop.wait()
        self._managers = None

    async def close(self) -> None:
        """End all sessions and streams."""
        self._stop.set()
        if self._running is not None:
            await asyncio.wait([self._running])


class _Sessions(StreamableHTTPSessionManager):
    """The library's sessions, each with its own store of events.

    The library would share one, and let one client take all.
    """

    def __init__(self, server: Server[Any], events: RecentEvents, changes: ChangeNotifier, **options: Any) -> None:
        self._events = events
        self._changes = changes
        super().__init__(server, **options)

    @property
    def event_store(self) -> SessionEvents:
        """The store for a new session, which asks for it once, during the request of its client."""
        holder = _holder_now.get()
        return SessionEvents(self._events, "" if holder is None else holder.principal)

    @event_store.setter
    def event_store(self, given: Any) -> None:
        """Do nothing: the library sets the store that it was given."""

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        """Admit a session.

        If there is no room, the caller with the most sessions loses its longest unused one to a caller with fewer.
        """
        if len(self._server_instances) >= (self.max_sessions or 0) and requestor is not None:
            owned = Counter(owner["subject"] for owner in self._session_owners.values())
            largest_owner, count = owned.most_common(1)[0]
            if count > owned[requestor["subject"]] + 1:
                candidates = [name for name, owner in self._session_owners.items() if owner["subject"] == largest_owner]
                name = min(candidates, key=self._unused_since)
                transport = self._server_instances.pop(name)
                del self._session_owners[name]  # others may ask before it is discarded
                self._task_group.start_soon(self._discard_session, name, transport)  # type: ignore[attr-defined]
        if (new_transport := super()._admit_session(requestor)) is not None:
            events, streams = new_transport._event_store, new_transport._request_streams
            assert isinstance(events, SessionEvents)
            events.is_followed = streams.__contains__
        return new_transport

    def _unused_since(self, name: str) -> float:
        scope = self._server_instances[name].idle_scope
        return 0.0 if scope is None else scope.deadline

    async def _discard_session(self, session_id: str, transport: StreamableHTTPServerTransport) -> None:
        self._changes.forget(session_id)
        await super()._discard_session(session_id, transport)


def _raising_on_disconnect(receive: Receive) -> Receive:
    """`receive`, which raises ClientDisconnect when the client goes away within its request: the library would log that as a failure."""
    is_whole = False

    async def received() -> Message:
        nonlocal is_whole
        message = await receive()
        if message["type"] == "http.disconnect" and not is_whole:
            raise ClientDisconnect
        is_whole = is_whole or not message.get("more_body", False)
        return message

    return received


def _is_answered_at_once(scope: Scope) -> bool:
    version = method = ""
    for name, value in reversed(list(scope["headers"])):  # the first one counts, as for the library
        if name == b"mcp-protocol-version":
            version = value.decode("latin-1")
        elif name == b"mcp-method":
            method = value.decode("latin-1")
    return method in _ANSWERED_AT_ONCE and version in MODERN_PROTOCOL_VERSIONS


def _schema_of(service: McpService) -> Any:
    def schema_of(name: str) -> Any:
        holder = _holder_now.get()
        listing = None if holder is None else service.listings.known(holder)
        return None if listing is None else listing.input_schema(name)

    return schema_of


def _with_pages(send: Send, pages: ListPages) -> Send:
    """`send`, with the pages of lists put into the answers that name them."""
    started: list[Message] = []

    async def put_in(message: Message) -> None:
        if message["type"] == "http.response.start" and any(
            name == b"content-length" for name, _ in message["headers"]
        ):
            started.append(message)  # its length may change; streams have none, and begin at once
            return
        body = message.get("body", b"")
        if pages.sign in body:
            body = pages.put_in(body)
            message = {**message, "body": body}
            for start in started:
                start["headers"] = [
                    (name, str(len(body)).encode() if name == b"content-length" else value)
                    for name, value in start["headers"]
                ]
        while started:
            await send(started.pop(0))
        await send(message)

    return put_in
