"""OAuth for servers that require it. The library does discovery, PKCE and refreshing; the host stores the tokens.

tavern upstreams connect NAME     shows an address; the browser comes back to a port of this machine with the permission
any other use                     takes the stored tokens and refreshes them; it never asks a person

Tokens are stored for this upstream alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Final, Literal, TypeVar
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth, union_scopes
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl, BaseModel, ValidationError
from pydantic_core import from_json

from tavern_core.contract.adapters import Upstream
from tavern_core.errors import PolicyDenied, UpstreamError

KEPT: Final = "oauth"
"""The name under which the host keeps tokens."""
_LOG_IN: Final = "tavern upstreams connect "
PERSON_S: Final = 300.0
"""Seconds that the person may take in the browser."""
REFRESH_S: Final = 30.0
"""Seconds that the server may take to refresh tokens; less than the time that others wait for the lock."""
_LAST_S: Final = 4.0
"""Seconds that the server may take while the connection is being closed."""
_MOST_TRIES: Final = 3
"""Attempts per request: with the known tokens, with those of another process, with refreshed ones."""
_MOST_SCOPE: Final = 1_000
_MOST_REQUEST: Final = 16_384
_PAGE: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n\r\n"
    b"Done. You can close this page and go back to the terminal.\n"
)
_NO_PAGE: Final = b"HTTP/1.1 404 Not Found\r\nconnection: close\r\n\r\n"

Show = Callable[[str], None]
"""Shows the person an address to open."""
P = TypeVar("P", bound=OAuthClientProvider)
Send = Callable[[httpx2.Request], Awaitable[httpx2.Response]]
"""Sends one request as it is."""


class LoginNeeded(OAuthFlowError):
    """A person must log in before the request can succeed."""


def login_needed(name: str, why: object = "", *, has_header: bool = False) -> UpstreamError:
    """The error for a server that was not logged in to, or that does not accept the header Authorization of the entry."""
    if has_header:
        message = f"{name} does not accept the header Authorization of its entry (HTTP 401)"
        return UpstreamError(
            message,
            hint=f"correct the header in tavern.yaml, or delete it and log in: {_LOG_IN}{name}",
            fixFor="operator",
        )
    return UpstreamError(
        f"{name} wants to know who calls (HTTP 401){f': {why}' if why else ''}",
        hint=f"{_LOG_IN}{name}, or write the header Authorization into its `headers` in tavern.yaml",
        fixFor="operator",
    )


def rights_missing(name: str, response: httpx2.Response, *, has_header: bool) -> PolicyDenied:
    """The error for a server that refuses this caller (HTTP 403), with the scope that it asks for."""
    scope = extract_scope_from_www_auth(response)
    message = f"{name} refuses (HTTP 403){f', for it requires the scope {scope!r:.200}' if scope else ''}"
    if has_header:
        return PolicyDenied(message, hint="give the token of its header Authorization more rights")
    return PolicyDenied(message, hint=f"{_LOG_IN}{name} asks for more rights")


def login_failed(name: str, error: Exception) -> UpstreamError:
    """The error for a login that the library gave up. What it says of wrong values shows them, and they may be tokens."""
    wrong = next((each for each in (error, error.__context__) if isinstance(each, ValidationError)), None)
    why = str(error)
    if wrong is not None:
        found = [(".".join(map(str, each["loc"])), each["msg"]) for each in wrong.errors()]
        why = "an answer of its authorization server is wrong: " + "; ".join(": ".join(filter(None, f)) for f in found)
    elif isinstance(error, UnicodeDecodeError):
        why = "an answer of its authorization server is not text"
    elif isinstance(error, OAuthTokenError):
        why = _without_answer(why)
    hint = ""
    if isinstance(error, OAuthRegistrationError):
        hint = f"register a client there, and write its `clientId` into `settings` of {name} in tavern.yaml"
    return UpstreamError(f"logging in to {name} failed: {why[:500]}", hint=hint, fixFor="operator")


def _without_answer(why: str) -> str:
    """The library's error without the answer that it quotes, which may hold tokens: only what it says of the error."""
    head, sign, answer = why.partition("): ")
    if not sign:
        return why
    try:
        fields = from_json(answer)
    except ValueError:
        fields = None
    said = [fields.get(name) for name in ("error", "error_description")] if isinstance(fields, dict) else []
    return ": ".join([f"{head})", *(text for text in said if isinstance(text, str))])


def no_answer(name: str, error: httpx2.TransportError) -> UpstreamError:
    """The error for a login whose other server does not answer."""
    place = error.request.url.netloc.decode("ascii")
    why = f"its authorization server {place} does not answer ({str(error)[:200] or type(error).__name__})"
    return UpstreamError(f"logging in to {name} failed: {why}", retryable=True, outcome="none", fixFor="operator")


def _not_now(name: str, why: str) -> UpstreamError:
    return UpstreamError(f"the tokens of {name} cannot be refreshed now: {why}", retryable=True, outcome="none")


@asynccontextmanager
async def login(upstream: Upstream, show: Show | None, send: Send) -> AsyncIterator[OAuthClientProvider | None]:
    """The authentication that adds tokens to requests; None if there are no tokens and no one can be asked.

    Args:
        show: shows an address to the person at the terminal; None: there is no person.
        send: for requests that refresh tokens.
    """
    if any(name.lower() == "authorization" for name in upstream.headers):
        yield None
    elif show is not None:
        async with _Callback(int(upstream.settings.get("redirectPort", 0))) as callback:

            async def redirect(address: str) -> None:
                context = provider.context
                _refuse_without_pkce(context.oauth_metadata)
                is_configured = bool(upstream.settings.get("clientId") and upstream.settings.get("clientSecret"))
                if context.client_info is not None and is_configured:
                    context.client_info.token_endpoint_auth_method = _secret_method(context.oauth_metadata)
                callback.expect(address)
                endpoint, _, query = address.rpartition("?")  # which may have a query of its own
                show(f"{endpoint}{'&' if '?' in endpoint else '?'}{query}")

            provider = _provider(
                OAuthClientProvider, upstream, callback.address, redirect, callback.result, is_fresh=True
            )
            yield provider
    elif upstream.load(KEPT) is not None:

        async def no_one(*_: object) -> Any:
            raise LoginNeeded("the tokens that are kept hold no longer")

        address = "http://127.0.0.1/callback"
        provider = _provider(partial(_UnattendedProvider, send), upstream, address, no_one, no_one, is_fresh=False)
        try:
            yield provider
        finally:
            await provider.close()
    else:
        yield None


def _provider(
    make: Callable[..., P], upstream: Upstream, address: str, redirect: Any, callback: Any, *, is_fresh: bool
) -> P:
    settings = upstream.settings
    storage = _StoredTokens(upstream, address, is_fresh)
    scope = settings.get("scope") or storage.further_scope()
    client_metadata = (_ScopedMetadata if scope else OAuthClientMetadata)(
        redirect_uris=[AnyUrl(address)],
        client_name="tavern_core",
        grant_types=["authorization_code", "refresh_token"],
        scope=scope,
        token_endpoint_auth_method=None if settings.get("clientSecret") else "none",
    )
    provider = make(
        upstream.url,
        client_metadata,
        storage,
        redirect,
        callback,
        client_metadata_url=settings.get("clientMetadataUrl"),
    )
    storage.restore(provider)  # afterwards, because the library builds its context itself, and wants its storage before
    return provider


def _refuse_without_pkce(metadata: OAuthMetadata | None) -> None:
    """Raise OAuthFlowError if the server says that it cannot check who asks for the tokens. Many say nothing, and can."""
    methods = metadata.code_challenge_methods_supported if metadata is not None else None
    if methods is not None and "S256" not in methods:
        raise OAuthFlowError("its authorization server does not support PKCE with S256, so the code could be stolen")


def _secret_method(metadata: OAuthMetadata | None) -> Literal["client_secret_basic", "client_secret_post"]:
    """How the authorization server takes the client's secret: in the header, unless it accepts only the body."""
    methods = (metadata and metadata.token_endpoint_auth_methods_supported) or ["client_secret_basic"]
    is_post = "client_secret_post" in methods and "client_secret_basic" not in methods
    return "client_secret_post" if is_post else "client_secret_basic"


class _ScopedMetadata(OAuthClientMetadata):
    """Requests this scope; the library would request the one that the server names."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "scope":
            super().__setattr__(name, value)


class _UnattendedProvider(OAuthClientProvider):
    """Adds the stored tokens to requests, and refreshes them; there is no person.

    The library refreshes tokens only after they have expired, and holds up all requests while one waits for its answer.

    Args:
        send: for requests that refresh tokens.
    """

    def __init__(self, send: Send, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._send = send
        self._refreshing: set[asyncio.Task[Any]] = set()
        self._is_closing = False

    async def close(self) -> None:
        """Wait until tokens that are being refreshed are stored; no other refresh begins."""
        self._is_closing = True
        if self._refreshing:
            await asyncio.wait(self._refreshing, timeout=_LAST_S)

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        storage: _StoredTokens = self.context.storage  # type: ignore[assignment]
        if not self._initialized:
            await self._initialize()
        for _ in range(_MOST_TRIES):
            request.headers.pop("authorization", None)
            if self.context.is_token_valid():  # not through the library: it might refresh them, without the lock
                self._add_auth_header(request)
                sent_tokens = storage.tokens
            else:  # once the refresh token is used, the new ones are kept, even if this request is given up
                task = asyncio.ensure_future(self._refresh(storage, request))
                self._refreshing.add(task)
                task.add_done_callback(self._end_refresh)
                sent_tokens = await asyncio.shield(task)
            response = yield request
            if response.status_code == 403 and extract_field_from_www_auth(response, "error") == "insufficient_scope":
                await storage.note_scope(extract_scope_from_www_auth(response) or "")
            if response.status_code != 401:
                return
            storage.renew()
            if storage.tokens != sent_tokens:  # another request or process has refreshed them
                continue
            if not self.context.can_refresh_token():
                break
            self.context.token_expiry_time = 1.0  # the server ended it before its time
        raise LoginNeeded("the tokens that are kept hold no longer")

    async def _refresh(self, storage: _StoredTokens, request: httpx2.Request) -> Any:
        """Refresh the tokens and return them.

        One process at a time does so, and the others take its tokens: a refresh token often works only once.
        """
        async with storage.lock():
            if self._is_closing:
                raise _not_now(storage.name, "the connection is being closed")
            storage.renew()
            try:
                async with asyncio.timeout(REFRESH_S):
                    await self._begin(request)
            except TimeoutError:
                raise _not_now(storage.name, f"no answer within {REFRESH_S:g} s") from None
            return storage.tokens

    def _end_refresh(self, task: asyncio.Task[Any]) -> None:
        self._refreshing.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the request may have been given up

    async def _begin(self, request: httpx2.Request) -> None:
        """Refresh the tokens, and add the new ones to a request."""
        storage: _StoredTokens = self.context.storage  # type: ignore[assignment]
        flow = super().async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            while outgoing is not request:
                try:
                    response = await self._send(outgoing)
                    await response.aread()
                except httpx2.TransportError as error:
                    why = f"its authorization server {outgoing.url.host} does not answer ({str(error)[:200] or type(error).__name__})"
                    raise _not_now(storage.name, why) from error
                if response.status_code == 429 or response.status_code >= 500:  # the library would forget the tokens
                    raise _not_now(storage.name, f"HTTP {response.status_code}")
                outgoing = await flow.asend(response)
        finally:
            await flow.aclose()


class _StoredTokens:
    """The library's `TokenStorage` on `Upstream.load` and `save`: tokens, their expiry and their issuer."""

    def __init__(self, upstream: Upstream, address: str, is_fresh: bool) -> None:
        self.name = upstream.name
        self._upstream = upstream
        self._address = address
        self._is_fresh = is_fresh
        """A person logs in: earlier data are not used, and stay stored until the login is done."""
        self._kept = self._load()

    def restore(self, provider: OAuthClientProvider) -> None:
        """Restore the state that the library lost with the last process."""
        self._context = context = provider.context
        if self._is_fresh:
            self._kept = {}
        context.oauth_metadata = _read(OAuthMetadata, self._kept.get("metadata"))
        context.protected_resource_metadata = _read(ProtectedResourceMetadata, self._kept.get("resource"))
        context.auth_server_url = self._kept.get("server")
        context.token_expiry_time = self._kept.get("expires")
        context.current_tokens = _read(OAuthToken, self._kept.get("tokens"))

    @property
    def tokens(self) -> Any:
        return self._kept.get("tokens")

    def renew(self) -> None:
        """Take over tokens that another process has stored meanwhile."""
        kept, context = self._load(), self._context
        tokens = _read(OAuthToken, kept.get("tokens"))
        if tokens is None or kept["tokens"] == self.tokens:
            return
        self._kept = kept
        context.current_tokens, context.token_expiry_time = tokens, kept.get("expires")
        context.client_info = _read(OAuthClientInformationFull, kept.get("client")) or context.client_info

    def lock(self) -> AbstractAsyncContextManager[None]:
        """The lock to hold while the stored data are read and changed."""
        return self._upstream.lock(KEPT)

    async def note_scope(self, scope: str) -> None:
        """Store a scope that the server requires: the next login asks for it, too."""
        if 0 < len(scope) <= _MOST_SCOPE and scope != self._kept.get("further"):
            async with self.lock():
                self.renew()  # what another process has kept is not overwritten
                self._kept["further"] = scope
                self._save()

    def further_scope(self) -> str | None:
        """The scope to ask for if the server required more than it had granted; else None."""
        if not (further := self._kept.get("further")):
            return None
        return union_scopes((self._kept.get("tokens") or {}).get("scope"), str(further))

    def _load(self) -> dict[str, Any]:
        with suppress(ValueError):
            kept = json.loads(self._upstream.load(KEPT) or "{}")
            return kept if isinstance(kept, dict) else {}
        return {}

    async def get_tokens(self) -> OAuthToken | None:
        tokens: OAuthToken | None = _read(OAuthToken, self._kept.get("tokens"))
        return tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        context = self._context
        self._kept |= {
            "tokens": _dump(tokens),
            "expires": context.token_expiry_time,
            "metadata": _dump(context.oauth_metadata),
            "resource": _dump(context.protected_resource_metadata),
            "server": context.auth_server_url,
        }
        async with self.lock() if self._is_fresh else nullcontext():  # a refresh holds the lock already
            self._save()

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        settings = self._upstream.settings
        if client_id := settings.get("clientId"):
            secret = settings.get("clientSecret")
            return OAuthClientInformationFull(
                client_id=client_id,
                client_secret=secret,
                redirect_uris=[AnyUrl(self._address)],
                token_endpoint_auth_method=_secret_method(self._context.oauth_metadata) if secret else "none",
            )
        client: OAuthClientInformationFull | None = _read(OAuthClientInformationFull, self._kept.get("client"))
        return client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        # Saved with its tokens: until then, those of the login before hold.
        self._kept["client"] = _dump(client_info)

    def _save(self) -> None:
        self._upstream.save(KEPT, json.dumps(self._kept))


def _dump(model: BaseModel | None) -> Any:
    return None if model is None else model.model_dump(mode="json", exclude_none=True)


def _read(model: type[Any], data: object) -> Any:
    try:
        return None if data is None else model.model_validate(data)
    except ValidationError:
        return None


class _Callback:
    """A port of this machine that the browser is sent back to."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._result: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()
        self._state = ""
        self._refusal = ""

    async def __aenter__(self) -> _Callback:
        try:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, limit=_MOST_REQUEST)
        except OSError as error:
            raise UpstreamError(
                f"the browser cannot come back to port {self._port} of this machine: {os.strerror(error.errno or 0)}",
                hint="end the program that uses the port, or change `redirectPort` in `settings`",
                outcome="none",
                fixFor="operator",
            ) from error
        self.address = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/callback"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    def expect(self, address: str) -> None:
        """Expect the answer to `address`, before a person is sent there. Raises LoginNeeded: the server has refused."""
        if self._refusal:
            raise LoginNeeded(self._refusal)
        self._state = parse_qs(urlsplit(address).query).get("state", [""])[0]

    async def result(self) -> AuthorizationCodeResult:
        """The answer of the browser; each login has its own."""
        try:
            async with asyncio.timeout(PERSON_S):
                return await self._result
        except TimeoutError:
            raise LoginNeeded(f"no one came back from the browser within {PERSON_S:g} s") from None
        finally:
            self._result = asyncio.get_running_loop().create_future()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                head = await reader.readuntil(b"\r\n\r\n")
            writer.write(_PAGE if self._take(head.split(b"\r\n", 1)[0]) else _NO_PAGE)
            await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client is not the browser with the result of the login
        finally:
            writer.close()

    def _take(self, line: bytes) -> bool:
        words = line.decode("ascii", "replace").split(" ")
        address = urlsplit(words[1]) if len(words) == 3 and words[0] == "GET" else None
        if address is None or address.path != "/callback" or self._result.done():
            return False
        parameters = {name: values[0] for name, values in parse_qs(address.query).items()}
        if not self._state or not secrets.compare_digest(parameters.get("state", "").encode(), self._state.encode()):
            return False  # from another page
        if "error" in parameters:
            self._refusal = f"the server refused: {parameters['error'][:200]}"
            self._result.set_exception(LoginNeeded(self._refusal))
        else:
            self._result.set_result(
                AuthorizationCodeResult(
                    code=parameters.get("code", ""), state=parameters.get("state"), iss=parameters.get("iss")
                )
            )
        return True
