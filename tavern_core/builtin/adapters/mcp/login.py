"""OAuth for servers that want it: discovery, PKCE and refreshing by the library; tokens are kept by the host, for this upstream alone.

tavern upstreams connect NAME     shows an address; the browser comes back to a port of this machine with the permission
any other use                     takes the tokens that are kept and refreshes them; it never asks a person
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
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

from tavern_core.contract.adapters import Upstream
from tavern_core.errors import UpstreamError

KEPT: Final = "oauth"
"""The name under which the host keeps tokens."""
PERSON_S: Final = 300.0
"""How long the person may take in the browser."""
REFRESH_S: Final = 30.0
"""How long the server may take to refresh tokens: less than others wait for that."""
_LAST_S: Final = 4.0
"""The same where the connection is closed meanwhile."""
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
    """Only a person can go on."""


def login_needed(name: str, why: object = "") -> UpstreamError:
    """The error for a server that was not logged in to."""
    return UpstreamError(
        f"{name} wants to know who calls (HTTP 401){f': {why}' if why else ''}",
        hint=f"tavern upstreams connect {name}, or write the header Authorization into its `headers` in tavern.yaml",
        fixFor="operator",
    )


def _not_now(name: str, why: str) -> UpstreamError:
    return UpstreamError(f"the tokens of {name} cannot be refreshed now: {why}", retryable=True, outcome="none")


@asynccontextmanager
async def login(upstream: Upstream, show: Show | None, send: Send) -> AsyncIterator[OAuthClientProvider | None]:
    """What adds tokens to requests; None where there are none and no one can be asked.

    Args:
        show: where a person sits at the terminal.
        send: for requests that refresh tokens.
    """
    if any(name.lower() == "authorization" for name in upstream.headers):
        yield None
    elif show is not None:
        async with _Callback(int(upstream.settings.get("redirectPort", 0))) as callback:

            async def redirect(address: str) -> None:
                callback.expect(address)
                show(address)

            yield _provider(OAuthClientProvider, upstream, callback.address, redirect, callback.result, is_fresh=True)
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
    wanted = (_ScopedMetadata if scope else OAuthClientMetadata)(
        redirect_uris=[AnyUrl(address)],
        client_name="tavern_core",
        grant_types=["authorization_code", "refresh_token"],
        scope=scope,
        token_endpoint_auth_method=None if settings.get("clientSecret") else "none",
    )
    provider = make(
        upstream.url, wanted, storage, redirect, callback, client_metadata_url=settings.get("clientMetadataUrl")
    )
    storage.restore(provider)  # afterwards, because the library builds its context itself, and wants its storage before
    return provider


class _ScopedMetadata(OAuthClientMetadata):
    """Asks for this scope, whatever the server names; the library would ask for that."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "scope":
            super().__setattr__(name, value)


class _UnattendedProvider(OAuthClientProvider):
    """Adds the tokens that are kept, and refreshes them; there is no person.

    The library refreshes tokens only when their time is over, and lets no other request go while one waits for its answer.

    Args:
        send: for requests that refresh tokens.
    """

    def __init__(self, send: Send, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._send = send
        self._refreshing: set[asyncio.Task[Any]] = set()
        self._is_closing = False

    async def close(self) -> None:
        """Tokens that are being refreshed are still kept; no others are asked for."""
        self._is_closing = True
        if self._refreshing:
            await asyncio.wait(self._refreshing, timeout=_LAST_S)

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        kept: _StoredTokens = self.context.storage  # type: ignore[assignment]
        if not self._initialized:
            await self._initialize()
        for _ in range(_MOST_TRIES):
            request.headers.pop("authorization", None)
            if self.context.is_token_valid():  # not through the library: it might refresh them, without the lock
                self._add_auth_header(request)
                sent = kept.tokens
            else:  # once the refresh token is used, the new ones are kept, even if this request is given up
                task = asyncio.ensure_future(self._refresh(kept, request))
                self._refreshing.add(task)
                task.add_done_callback(self._refreshed)
                sent = await asyncio.shield(task)
            response = yield request
            if response.status_code == 403 and extract_field_from_www_auth(response, "error") == "insufficient_scope":
                await kept.note_scope(extract_scope_from_www_auth(response) or "")
            if response.status_code != 401:
                return
            kept.renew()
            if kept.tokens != sent:  # another request or process has refreshed them
                continue
            if not self.context.can_refresh_token():
                break
            self.context.token_expiry_time = 1.0  # the server ended it before its time
        raise LoginNeeded("the tokens that are kept hold no longer")

    async def _refresh(self, kept: _StoredTokens, request: httpx2.Request) -> Any:
        """Begin with new tokens, and return them. One process at a time gets them, and the others take those: a refresh token often works only once."""
        async with kept.lock():
            if self._is_closing:
                raise _not_now(kept.name, "the connection is being closed")
            kept.renew()
            try:
                async with asyncio.timeout(REFRESH_S):
                    await self._begin(request)
            except TimeoutError:
                raise _not_now(kept.name, f"no answer within {REFRESH_S:g} s") from None
            return kept.tokens

    def _refreshed(self, task: asyncio.Task[Any]) -> None:
        self._refreshing.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the request may have been given up

    async def _begin(self, request: httpx2.Request) -> None:
        """Refresh the tokens, and add the new ones to a request."""
        kept: _StoredTokens = self.context.storage  # type: ignore[assignment]
        flow = super().async_auth_flow(request)
        try:
            sent = await anext(flow)
            while sent is not request:
                response = await self._send(sent)
                await response.aread()
                if response.status_code == 429 or response.status_code >= 500:  # the library would forget the tokens
                    raise _not_now(kept.name, f"HTTP {response.status_code}")
                sent = await flow.asend(response)
        finally:
            await flow.aclose()


class _StoredTokens:
    """The library's `TokenStorage` on `Upstream.load` and `save`: tokens, when they end, and where they came from."""

    def __init__(self, upstream: Upstream, address: str, is_fresh: bool) -> None:
        self.name = upstream.name
        self._upstream = upstream
        self._address = address
        self._is_fresh = is_fresh
        """A person logs in: what was kept before is of no use, and stays until that is done."""
        self._kept = self._load()

    def restore(self, provider: OAuthClientProvider) -> None:
        """Give the library back what it has forgotten with the last process."""
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
        """Take the tokens that another process has got meanwhile."""
        kept, context = self._load(), self._context
        tokens = _read(OAuthToken, kept.get("tokens"))
        if tokens is None or kept["tokens"] == self.tokens:
            return
        self._kept = kept
        context.current_tokens, context.token_expiry_time = tokens, kept.get("expires")
        context.client_info = _read(OAuthClientInformationFull, kept.get("client")) or context.client_info

    def lock(self) -> AbstractAsyncContextManager[None]:
        """Held while what is kept is read and changed."""
        return self._upstream.lock(KEPT)

    async def note_scope(self, scope: str) -> None:
        """The server wants to see this scope: the next login asks for it, too."""
        if 0 < len(scope) <= _MOST_SCOPE and scope != self._kept.get("further"):
            async with self.lock():
                self.renew()  # what another process has kept is not overwritten
                self._kept["further"] = scope
                self._save()

    def further_scope(self) -> str | None:
        """What to ask for where the server wanted to see more than it had granted."""
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
            "tokens": _written(tokens),
            "expires": context.token_expiry_time,
            "metadata": _written(context.oauth_metadata),
            "resource": _written(context.protected_resource_metadata),
            "server": context.auth_server_url,
        }
        async with self.lock() if self._is_fresh else nullcontext():  # a refresh holds the lock already
            self._save()

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        settings = self._upstream.settings
        if number := settings.get("clientId"):
            secret = settings.get("clientSecret")
            return OAuthClientInformationFull(
                client_id=number,
                client_secret=secret,
                redirect_uris=[AnyUrl(self._address)],
                token_endpoint_auth_method="client_secret_basic" if secret else "none",
            )
        client: OAuthClientInformationFull | None = _read(OAuthClientInformationFull, self._kept.get("client"))
        return client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        # Saved with its tokens: until then, those of the login before hold.
        self._kept["client"] = _written(client_info)

    def _save(self) -> None:
        self._upstream.save(KEPT, json.dumps(self._kept))


def _written(model: BaseModel | None) -> Any:
    return None if model is None else model.model_dump(mode="json", exclude_none=True)


def _read(model: type[Any], kept: object) -> Any:
    try:
        return None if kept is None else model.model_validate(kept)
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
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, limit=_MOST_REQUEST)
        self.address = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/callback"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    def expect(self, address: str) -> None:
        """A person is about to be sent to `address`. Raises LoginNeeded: the server has refused already."""
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
        given = {name: values[0] for name, values in parse_qs(address.query).items()}
        if not self._state or not secrets.compare_digest(given.get("state", "").encode(), self._state.encode()):
            return False  # of some other page
        if "error" in given:
            self._refusal = f"the server refused: {given['error'][:200]}"
            self._result.set_exception(LoginNeeded(self._refusal))
        else:
            self._result.set_result(
                AuthorizationCodeResult(code=given.get("code", ""), state=given.get("state"), iss=given.get("iss"))
            )
        return True
