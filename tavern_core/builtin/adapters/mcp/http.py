"""MCP over streamable HTTP: the transport of the library, on a client that the host made.

The library ends a whole session when one of its requests meets a broken connection. So its client sends through `NonRaisingClient`: what goes
wrong with one request becomes an answer to this one request, and the reason is kept for the call that waits for it.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final

import anyio
import httpx2
from mcp.client.auth import OAuthFlowError, OAuthTokenError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED, JSONRPCError
from pydantic import ValidationError
from pydantic_core import from_json, to_json

from tavern_core.builtin.adapters.mcp.login import (
    LoginNeeded,
    Show,
    login,
    login_failed,
    login_needed,
    no_answer,
    rights_missing,
)
from tavern_core.builtin.adapters.mcp.message_parser import (
    FEW_VALUES,
    LARGE,
    NotAMessage,
    message_of,
    read_json,
    values_in,
)
from tavern_core.builtin.adapters.mcp.pending import WORKED_FOR, PendingRequests
from tavern_core.builtin.adapters.mcp.posts import PostTransport
from tavern_core.contract.adapters import Upstream
from tavern_core.contract.exchange import retry_after_ms
from tavern_core.errors import CallError, ConnectionLost, OutputTooLarge, TavernError, UpstreamError

CONNECT_S: Final = 30.0
_STATUS_S: Final = 10.0
_SESSION: Final = "mcp-session-id"
_NUMBER: Final = "tavern_number"
"""Key of the JSON-RPC id among a request's extensions."""
_MOST_WAIT_S: Final = 3_600.0
_MOST_LOGIN_BYTES: Final = 1_000_000
_SEPARATORS: Final = b"\n\n", b"\n\r\n", b"\r\r"
"""Between events."""
_POSTED: Final = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


@asynccontextmanager
async def http_streams(
    upstream: Upstream, most: int, pending: PendingRequests, show: Show | None = None
) -> AsyncIterator[Any]:
    """(stream to read, stream to write, transport of requests in the new era).

    Args:
        show: shows a person the address to log in; None: no person can log in.
    """
    inner: httpx2.AsyncClient = upstream.http(timeout_s=_MOST_WAIT_S, max_bytes=most)
    async with AsyncExitStack() as opened:
        await opened.enter_async_context(inner)
        for name in [name for name in inner.headers if _is_of_protocol(name)]:
            del inner.headers[name]
        origins = _Origins(upstream, inner)
        sender = httpx2.AsyncClient(transport=origins, timeout=CONNECT_S, trust_env=False)
        await opened.enter_async_context(sender)  # before the login, which may refresh tokens at its end
        auth = await opened.enter_async_context(login(upstream, show, origins.handle_async_request))
        client: Any = NonRaisingClient(inner if auth is None else sender, upstream, pending, auth, most)
        streams = streamable_http_client(upstream.url, http_client=client, max_sse_event_size=most)
        reading, writing = await opened.enter_async_context(streams)
        yield reading, writing, PostTransport(client, upstream.url, most, pending)


class NonRaisingClient:
    """The methods of an HTTP client that the library uses.

    A request that fails gets an error response instead of raising.

    Args:
        sender: the host's client, or one that goes through the host's clients.
        auth: adds tokens to requests.
        most: maximum bytes of one message.
    """

    def __init__(
        self,
        sender: httpx2.AsyncClient,
        upstream: Upstream,
        pending: PendingRequests,
        auth: httpx2.Auth | None,
        most: int,
    ) -> None:
        self._sender = sender
        headers = {name.lower(): value for name, value in upstream.headers.items()}
        self._headers = {k: v for k, v in headers.items() if k != "accept-encoding" and not _is_of_protocol(k)}
        """Headers for requests to the server, and not for those to its login server."""
        self._posted = {**sender.headers, **self._headers, **_POSTED}
        """Headers of each request of `post`."""
        self.name = upstream.name
        self._pending = pending
        self._auth = auth
        self.most = most
        self.max_redirects = sender.max_redirects
        # Calls have deadlines of their own, and a stream of changes is silent for days.
        self._timeout = httpx2.Timeout(CONNECT_S, read=None)
        # The library sends messages one after another: one whose answer is only a status must not delay the others.
        self._short_timeout = httpx2.Timeout(CONNECT_S, read=_STATUS_S)

    def build_request(self, method: str, url: httpx2.URL | str, **options: Any) -> httpx2.Request:
        """See `httpx2.AsyncClient`."""
        request_headers = {name.lower(): value for name, value in options.pop("headers", {}).items()}
        headers = {**self._headers, **request_headers}
        message = options.get("json")
        is_request = isinstance(message, dict) and "method" in message and "id" in message
        timeout = self._timeout if is_request or method == "GET" else self._short_timeout
        request = self._sender.build_request(method, url, headers=headers, timeout=timeout, **options)
        if isinstance(message, dict) and is_request:
            request.extensions = {**request.extensions, _NUMBER: message["id"]}
        return request

    async def post(self, url: httpx2.URL, message: Mapping[str, Any], headers: Mapping[str, str]) -> httpx2.Response:
        """Send a request of MCP. As `build_request` and `send`, which merge the same headers anew for each request."""
        sent = {**self._posted, **{name.lower(): value for name, value in headers.items()}}
        extensions = {"timeout": self._timeout.as_dict(), _NUMBER: message["id"]}
        request = httpx2.Request("POST", url, headers=sent, content=to_json(message), extensions=extensions)
        return await self.send(request, is_for_library=False)

    async def send(self, request: httpx2.Request, *, is_for_library: bool = True, **options: Any) -> httpx2.Response:
        """See `httpx2.AsyncClient`; always a stream, and never a redirect that is followed."""
        with self.transfer(request.extensions.get(_NUMBER)):
            return await self._send(request, is_for_library=is_for_library)
        return httpx2.Response(502, request=request)  # no one awaits it any more

    async def _send(self, request: httpx2.Request, *, is_for_library: bool) -> httpx2.Response:
        number = request.extensions.get(_NUMBER)
        try:
            response = await self._sender.send(request, stream=True, follow_redirects=False, auth=self._auth)
        except CallError as error:
            return self._failed(request, number, error)
        except LoginNeeded as error:
            return self._failed(request, number, login_needed(self.name, error))
        except (OAuthFlowError, OAuthTokenError, ValidationError, UnicodeDecodeError) as error:
            return self._failed(request, number, login_failed(self.name, error))
        except (httpx2.LocalProtocolError, UnicodeEncodeError):  # their texts show the header, which may be a token
            why = UpstreamError(
                f"{self.name} cannot be asked: a header has a value that cannot be sent", outcome="none"
            )
            return self._failed(request, number, why)
        except httpx2.InvalidURL as error:
            what = f"{self.name} leads to what is not an address of HTTP ({str(error)[:200]})"
            return self._failed(request, number, UpstreamError(what, outcome="none"))
        except TavernError as error:  # what was kept cannot be read or changed
            why = UpstreamError(error.message, hint=error.hint, fixFor="operator", code=error.code)
            return self._failed(request, number, why)
        except httpx2.TransportError as error:
            if _origin(error.request.url) != _origin(request.url):
                return self._failed(request, number, no_answer(self.name, error))
            return self._failed(request, number, _lost(error, self.name))
        refusal = _refusal(response, self.name, has_header="authorization" in self._headers)
        if await _is_forgotten(request, response, number):
            refusal = ConnectionLost(f"{self.name} does not know the session any more", outcome="none", retryable=True)
        if refusal is not None:
            self.note(number, refusal)
        response.stream = _CheckedStream(self, response, number, refusal, is_for_library=is_for_library)
        return response

    def transfer(self, number: Any) -> anyio.CancelScope:
        """See `PendingRequests.transfer`."""
        return self._pending.transfer(WORKED_FOR.get() if number is None else number)

    def note(self, number: Any, error: CallError) -> None:
        """Keep why a request has no answer, for the call that waits for it; those of the library have no call."""
        if number is not None:
            self._pending.note_failure(number, error)

    def _failed(self, request: httpx2.Request, number: Any, error: CallError) -> httpx2.Response:
        if number is None:
            return httpx2.Response(502, request=request)
        self.note(number, error)
        reply = {"jsonrpc": "2.0", "id": number, "error": {"code": CONNECTION_CLOSED, "message": error.message}}
        headers = {"content-type": "application/json"}
        return httpx2.Response(502, headers=headers, content=to_json(reply), request=request)


class _Origins(httpx2.AsyncBaseTransport):
    """Sends through the host's clients: one for the upstream, one for each other granted origin (a login server)."""

    def __init__(self, upstream: Upstream, inner: httpx2.AsyncClient) -> None:
        self._upstream = upstream
        self._own_origin = _origin(httpx2.URL(upstream.url))
        self._clients = {self._own_origin: inner}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """See `httpx2.AsyncBaseTransport`. Raises UpstreamError: the server names an address of another kind."""
        if request.url.scheme not in ("http", "https") or not 0 < (request.url.port or 80) < 1 << 16:
            raise UpstreamError(
                f"{self._upstream.name} leads to {str(request.url)!r:.200}, which is not an address of HTTP",
                outcome="none",
            )
        if (client := self._clients.get(origin := _origin(request.url))) is None:
            url = f"{request.url.scheme}://{request.url.netloc.decode('ascii')}"
            client = self._clients[origin] = self._upstream.http(url, timeout_s=CONNECT_S, max_bytes=_MOST_LOGIN_BYTES)
        return await client.send(request, stream=True, follow_redirects=False)

    async def aclose(self) -> None:
        """Close the clients of other origins; that of the upstream is closed by the code that made it."""
        for origin, client in self._clients.items():
            if origin != self._own_origin:
                await client.aclose()


def _is_of_protocol(name: str) -> bool:
    """Whether a header depends on the request, so that a fixed value would be wrong for most requests."""
    return name in ("accept", "content-type", "last-event-id") or name.startswith("mcp-")


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


class _CheckedStream(httpx2.AsyncByteStream):
    """The body of an answer: an error in the middle ends it, and so do more values than can be parsed at once.

    The library copies an invalid message into an error, as a whole and more than once. So it gets no JSON answer and no
    large event that is not a message.
    """

    def __init__(
        self,
        client: NonRaisingClient,
        response: httpx2.Response,
        number: Any,
        refusal: CallError | None,
        *,
        is_for_library: bool,
    ) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._client = client
        self._name = client.name
        self._stream = response.stream
        self._number = number
        self._is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        self._is_error = response.status_code >= 400
        self._error = refusal or _error_of_status(response.status_code, self._name)
        self._is_for_library = is_for_library and not self._is_error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Iterate over the bytes, which the host has decompressed. A JSON answer that fails has none."""
        buffer = bytearray()
        """The JSON answer, or the event that is coming."""
        try:
            async for chunk in _without_mark(self._pieces()):
                start = max(len(buffer) - 3, 0)
                buffer += chunk
                if not self._is_stream:
                    continue
                end = _end_of_event(buffer, start, max)
                if end < 0 and len(buffer) > (most := self._client.most):
                    raise UpstreamError(f"{self._name} sent an event of more than {most:,} bytes", outcome="unknown")
                if not self._is_for_library:
                    yield chunk
                elif end >= 0:
                    first = buffer[: _end_of_event(buffer, start, min)]
                    if len(first) > LARGE or values_in(first) > FEW_VALUES:
                        await self._check(await asyncio.to_thread(_data_of, first))
                    yield bytes(buffer[:end])
                del buffer[: max(end, 0)]
            if not self._is_stream:
                message = bytes(buffer)
                if self._is_for_library:
                    value = await self._check(message)
                    if self._number is not None and value.get("id") not in (self._number, None):
                        raise UpstreamError(f"{self._name}: it answers another request", outcome="unknown")
                elif self._is_error:
                    if values_in(message) > FEW_VALUES:
                        raise self._too_many()
                    if not await _is_rpc_error(message):
                        raise self._error
                yield message
            elif self._is_for_library and len(buffer) <= LARGE:
                yield bytes(buffer)
        except CallError as error:
            if error.hint and isinstance(error, OutputTooLarge):
                error.hint = "ask for less, or raise `maxMessageBytes` in the `settings` of the upstream"
            self._client.note(self._number, error)
        except httpx2.HTTPError as error:
            self._client.note(self._number, _lost(error, self._name))

    async def _pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes; it ends when no one awaits it any more."""
        pieces = aiter(self._stream)
        while True:
            piece: bytes | None = None
            with self._client.transfer(self._number):
                piece = await anext(pieces, None)
            if piece is None:
                return
            yield piece

    def _too_many(self) -> OutputTooLarge:
        message = f"{self._name} sent a message of more than {FEW_VALUES:,} values"
        return OutputTooLarge(message, outcome="unknown", limit=FEW_VALUES)

    async def _check(self, data: bytes) -> Any:
        """Parse and check a message. Raises CallError: it is not one for the library, or would take long to parse."""
        try:
            value = await read_json(data)
            message_of(value)
            if value.get("jsonrpc") != "2.0":
                raise NotAMessage("its version is not 2.0")
            if value.get("result") is not None and value.get("error") is not None:
                raise NotAMessage("it has a result and an error")
            if b"\\ud" in data.lower():
                _refuse_lone_surrogates(data)
        except NotAMessage as error:
            raise UpstreamError(f"{self._name} answers with what is not MCP: {error}", outcome="unknown") from None
        if _has_many(value):
            raise self._too_many()
        return value

    async def aclose(self) -> None:
        """See `httpx2.AsyncByteStream`."""
        await self._stream.aclose()


async def _without_mark(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The pieces of an answer without the byte order mark that it may begin with."""
    beginning: bytes | None = b""
    async for piece in pieces:
        if beginning is None:
            yield piece
        elif len(beginning := beginning + piece) >= len(codecs.BOM_UTF8):
            yield beginning.removeprefix(codecs.BOM_UTF8)
            beginning = None
    if beginning:
        yield beginning


def _end_of_event(data: bytearray, start: int, choose: Callable[..., int]) -> int:
    """The end of the first or the last event after `start`, as `choose` is `min` or `max`; -1: none ends there."""
    find = data.find if choose is min else data.rfind
    return choose((at + len(each) for each in _SEPARATORS if (at := find(each, start)) >= 0), default=-1)


def _has_many(value: Any) -> bool:
    """Whether it has more values than can be parsed at once; unlike `values_in`, it ignores commas in texts."""
    count, waiting = 0, [value]
    while waiting and count <= FEW_VALUES:
        current = waiting.pop()
        count += 1
        if isinstance(current, dict | list):
            if len(current) > FEW_VALUES:
                return True
            waiting += current.values() if isinstance(current, dict) else current
    return count > FEW_VALUES


def _refuse_lone_surrogates(data: bytes) -> None:
    """Raise NotAMessage if the library could not read the text."""
    try:
        from_json(data)
    except ValueError as error:
        raise NotAMessage(str(error)) from None


async def _is_rpc_error(body: bytes) -> bool:
    """Whether the body of an answer that reports an error is one of JSON-RPC, which says more than the status."""
    try:
        return isinstance(message_of(await read_json(body)), JSONRPCError)
    except NotAMessage:
        return False


def _data_of(event: bytearray) -> bytes:
    """The data of an event; empty if it has too many lines."""
    if event.count(b"\n") + event.count(b"\r") > FEW_VALUES:
        return b""
    return b"\n".join(line[5:] for line in event.splitlines() if line.startswith(b"data:"))


def _refusal(response: httpx2.Response, name: str, *, has_header: bool) -> CallError | None:
    """The error for an answer that is not a message of MCP; None if it may be one.

    Args:
        has_header: whether the entry of the upstream has the header Authorization, so no one can log in.
    """
    status, kind = response.status_code, response.headers.get("content-type", "").lower()
    if status == 202 or (status < 300 and not kind.startswith(("application/json", "text/event-stream"))):
        summary = f"HTTP {status}, {kind[:100] or 'no content type'}"
        return UpstreamError(f"{name} answers with what is not MCP ({summary})", outcome="unknown")
    if status == 401:
        return login_needed(name, has_header=has_header)
    if status == 403:
        return rights_missing(name, response, has_header=has_header)
    if status in (429, 503):
        # Without a time to come back, 503 is also what a proxy says of an answer that broke off.
        is_refused = status == 429 or "retry-after" in response.headers
        return UpstreamError(
            f"{name} has no time (HTTP {status})",
            hint="wait, and call again" if is_refused else "",
            retryable=True,
            retry_after_ms=retry_after_ms(response.headers),
            outcome="none" if is_refused else "unknown",
        )
    if status in (502, 504):
        return UpstreamError(
            f"{name} cannot be reached behind its proxy (HTTP {status})", retryable=True, outcome="unknown"
        )
    if status >= 400 and status != 404 and not kind.startswith("application/json"):
        return _error_of_status(status, name)
    return None


def _error_of_status(status: int, name: str) -> UpstreamError:
    is_passing = status >= 500 or status in (408, 425)
    return UpstreamError(f"{name}: an error response (HTTP {status})", outcome="unknown", retryable=is_passing)


async def _is_forgotten(request: httpx2.Request, response: httpx2.Response, number: Any) -> bool:
    """Whether a server of the old era refuses a request because it does not know its session, such as after a restart.

    The protocol has 404 for that; many servers answer 400. An error for the request itself has its number.
    """
    if response.status_code not in (400, 404) or _SESSION not in request.headers:
        return False
    error: Any = None
    if response.headers.get("content-type", "").lower().startswith("application/json"):
        with suppress(ValueError, CallError, httpx2.HTTPError):
            body = from_json(await response.aread())
            error = body.get("error") if isinstance(body, dict) else None
            if isinstance(error, dict) and body.get("id") == number and error.get("code") != CONNECTION_CLOSED:
                return False
    return response.status_code == 404 or isinstance(error, dict)


def _lost(error: httpx2.HTTPError, name: str) -> CallError:
    """The error for a failed request.

    Only an unreachable server is a lost connection, because each request has a connection of its own.
    """
    why = f"{type(error).__name__}: {error}"[:300] if str(error) else type(error).__name__
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        hint = f"start the server, or correct `url` of {name} in tavern.yaml"
        return ConnectionLost(f"{name} cannot be reached: {why}", hint=hint, outcome="none", retryable=True)
    if isinstance(error, httpx2.PoolTimeout):
        text = f"{name} is busy with earlier requests: no further one could be sent within {CONNECT_S:g} s"
        return UpstreamError(text, hint="wait until some of them have ended", outcome="none", retryable=True)
    return UpstreamError(f"{name}: the answer broke off: {why}", outcome="unknown", retryable=True)
