"""Fetching on behalf of a plugin: checked against its grants, at the first address and at every redirect.

read the address → is it within the scope? → resolve once → is every answer allowed? → connect to one of them
            ^                                                                              |
            └───────────────────────── the redirect target -- ──────────────────────────────┘
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urljoin

from tavern_core.builtin.services.net.request import NEEDS, ConnectionRefused, HttpRequest, HttpResponse, send
from tavern_core.contract.exchange import http_library
from tavern_core.contract.guards.addresses import Address, BadUrl, Target, read_url, shown
from tavern_core.contract.guards.connecting import (
    NoAddress,
    NotAllowed,
    Resolver,
    entry_of,
    fitting,
    resolved,
    system_addresses,
    widening,
)
from tavern_core.contract.protocols import ServiceUser
from tavern_core.errors import CallTimeout, PolicyDenied, ToolFailed, UpstreamError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.capability_scope import Scope

MOST_REDIRECTS: Final = 10
LONGEST_MS: Final = 300_000
MOST_BYTES: Final = 64_000_000
HOST: Final = "the host"
_READING: Final = ("GET", "HEAD")
_METHODS: Final = (*_READING, "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}\Z")
_UNSENDABLE: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f-\U0010ffff]")
_OWN_HEADERS: Final = frozenset(
    {
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "upgrade",
        "te",
        "trailer",
        "expect",
        "accept-encoding",
    }
)
"""Headers that belong to the connection; callers cannot set them."""
_ANYWHERE: Final = frozenset({"accept", "accept-language", "user-agent", "content-type"})
"""Headers that are also sent to another origin; others may be secrets of the first one."""


class NetService:
    """The net of one host.

    Args:
        resolve: the name resolution; default: the system's.
        tls: the trusted certificates; default: the system's, ignoring the environment.
    """

    def __init__(self, resolve: Resolver | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.resolve = resolve or system_addresses
        self._tls = tls
        self._lock = threading.Lock()
        self.alone = PluginNet(self, ServiceUser(HOST, lambda capability: None))
        """For the host itself: public names, ports 80 and 443."""

    def for_plugin(self, user: ServiceUser) -> PluginNet:
        """The service for one plugin."""
        return PluginNet(self, user)

    @property
    def tls(self) -> ssl.SSLContext:
        """The TLS context; created at the first use, because reading the certificates is slow."""
        with self._lock:
            if self._tls is None:
                self._tls = http_library(NEEDS).create_ssl_context(trust_env=False)
            return self._tls


@dataclass(frozen=True, slots=True)
class PluginNet:
    """`contract.core_services.Net` for one plugin."""

    whole: NetService
    user: ServiceUser

    async def fetch(
        self,
        url: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
        data: Any = None,
        timeout_ms: int = 30_000,
        max_bytes: int = 4_000_000,
        redirects: int = 5,
    ) -> dict[str, Any]:
        _bounded("timeout_ms", timeout_ms, 1, LONGEST_MS)
        _bounded("max_bytes", max_bytes, 1, MOST_BYTES)
        _bounded("redirects", redirects, 0, MOST_REDIRECTS)
        request = _request(url, method, headers, body, data, max_bytes)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self._follow(request, redirects, timeout_ms / 1000)
        except TimeoutError:
            raise CallTimeout(
                f"{_shown(url)} did not answer completely within {timeout_ms} ms (timeout_ms of the request)",
                hint="raise timeout_ms, or ask for less",
                retryable=request.method in _READING,
                outcome="none" if request.method in _READING else "unknown",
                stopped=True,
                limit="timeout_ms of the request",
                timeoutMs=timeout_ms,
            ) from None

    def fetch_sync(
        self,
        url: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
        data: Any = None,
        timeout_ms: int = 30_000,
        max_bytes: int = 4_000_000,
        redirects: int = 5,
    ) -> dict[str, Any]:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.fetch(url, method, headers, body, data, timeout_ms, max_bytes, redirects))
        raise ToolFailed(
            "fetch_sync was called inside a running event loop, which it would block", hint="await fetch(...)"
        )

    async def _follow(self, request: HttpRequest, redirects: int, seconds: float) -> dict[str, Any]:
        redirected_from: list[str] = []
        while True:
            target, scopes = self._check(request)
            answer = await self._send_to_first_reachable(
                request, target, await self._addresses(target, scopes), seconds
            )
            if answer.location is None:
                return {"url": request.url, "redirects": redirected_from, **answer.data()}
            if len(redirected_from) >= redirects:
                raise UpstreamError(
                    f"{_shown(request.url)} redirects for the {len(redirected_from) + 1}. time; the limit is {redirects}",
                    hint="ask for the last address itself, or raise redirects",
                )
            redirected_from.append(request.url)
            request = _redirected(request, target, answer)

    def _check(self, request: HttpRequest) -> tuple[Target, dict[str, Scope]]:
        """The target of the request, and the scopes that allow it. Raises PolicyDenied: none does (POLICY_DENIED)."""
        try:
            target = read_url(request.url)
        except BadUrl as error:
            raise PolicyDenied(
                f"{self.user.plugin} may not fetch {_shown(request.url)!r}: it {error}", hint=error.hint
            ) from None
        reads = request.method in _READING
        granted = {
            c: s for c in (("read:web", "network") if reads else ("network",)) if (s := self.user.scope(c)) != ()
        }
        name = "read:web" if reads else "network"
        if not reads and not self.user.may_act(name):
            raise PolicyDenied(
                f"{self.user.plugin} may not fetch with {request.method}: its caller has read untrusted content, and what runs only reads",
                hint="declare the capability network for the tool, so that the call can be approved",
            )
        hint = self._hint(name, target.netloc)
        if not granted:
            raise PolicyDenied(
                f"{self.user.plugin} may not fetch with {request.method}: {name} is not declared and granted, or the caller lacks it",
                hint=hint,
                missing=[name],
            )
        try:
            return target, fitting(target, granted)
        except NotAllowed as flaw:
            raise PolicyDenied(f"{self.user.plugin} may not fetch {_shown(request.url)}: {flaw}", hint=hint) from None

    def _hint(self, name: str, entry: str) -> str:
        """The change that would allow it: of the configuration for the host's own plugins, a grant for others."""
        if self.user.plugin == HOST:
            return "the host itself fetches from public names only; use a plugin that was granted this address"
        return widening(self.user.plugin, name, entry, is_builtin=self.user.is_builtin)

    async def _addresses(self, target: Target, scopes: Mapping[str, Scope]) -> list[Address]:
        """All addresses of a name, each allowed.

        Raises:
            PolicyDenied: one is not (POLICY_DENIED): a mix of allowed and other addresses is an attack or a mistake.
            UpstreamError: there are none (UPSTREAM_ERROR).
        """
        try:
            return (await resolved(target, scopes, self.whole.resolve))[0]
        except NoAddress as error:
            raise UpstreamError(f"{target.host} has no address: {error}", retryable=True) from None
        except NotAllowed as flaw:
            address = flaw.address
            entry = target.netloc if address is None else entry_of(address, target.port)
            raise PolicyDenied(
                f"{self.user.plugin} may not fetch {target}: {flaw}",
                hint=f"the scope must name private addresses explicitly: {self._hint('network', entry)}",
                address=str(address),
            ) from None

    async def _send_to_first_reachable(
        self, request: HttpRequest, target: Target, addresses: Sequence[Address], seconds: float
    ) -> HttpResponse:
        # Reading the certificates is slow, so plain HTTP goes without: this context trusts nobody.
        tls = self.whole.tls if target.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        reason = ""
        for address in addresses:
            try:
                return await send(request, target, address, tls, seconds)
            except ConnectionRefused as error:
                reason = str(error)
        raise UpstreamError(f"{target} cannot be reached: {reason}", retryable=True)


def _request(
    url: str, method: str, headers: Mapping[str, str] | None, body: str | None, data: Any, max_bytes: int
) -> HttpRequest:
    """The checked request of a plugin. Raises ToolFailed: something in it cannot be sent (TOOL_ERROR)."""
    if not isinstance(url, str):
        raise ToolFailed(f"a URL is a text, got {type(url).__name__}")
    verb = method.upper() if isinstance(method, str) else ""
    if verb not in _METHODS:
        raise ToolFailed(f"the method {method!r:.40} is not supported", hint=f"use one of {', '.join(_METHODS)}")
    if body is not None and data is not None:
        raise ToolFailed("body and data are both given", hint="data is sent as JSON, body as it is")
    checked = {"user-agent": "tavern-core", "accept": "*/*"}
    for name, value in (headers or {}).items():
        if (
            not isinstance(name, str)
            or not isinstance(value, str)
            or not _TOKEN.match(name)
            or _UNSENDABLE.search(value)
        ):
            raise ToolFailed(
                f"the header {name!r:.60} cannot be sent", hint="names and values are plain ASCII text in one line"
            )
        lowered = name.lower()
        if lowered in _OWN_HEADERS or lowered.startswith("proxy-"):
            raise ToolFailed(f"the header {name!r:.60} is the connection's own", hint="leave it out")
        checked[lowered] = value
    content = None
    if data is not None:
        content = json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
        checked.setdefault("content-type", "application/json")
    elif body is not None:
        if not isinstance(body, str):
            raise ToolFailed(f"body is a text, got {type(body).__name__}")
        content = body.encode("utf-8", "surrogatepass")
        checked.setdefault("content-type", "text/plain; charset=utf-8")
    return HttpRequest(url, verb, checked, content, max_bytes)


def _redirected(request: HttpRequest, target: Target, answer: HttpResponse) -> HttpRequest:
    """The request for a redirect; its sender checks it.

    Raises:
        PolicyDenied: it leads from https to http (POLICY_DENIED).
    """
    url = urljoin(request.url, answer.location or "").partition("#")[0]
    try:
        other = read_url(url)
    except BadUrl as error:
        raise PolicyDenied(
            f"{_shown(request.url)} redirects to an address that {error}", redirectedFrom=_shown(request.url)
        ) from None
    if target.scheme == "https" and other.scheme != "https":
        raise PolicyDenied(
            f"{_shown(request.url)} redirects from https to {other.scheme}",
            hint="ask for the last address itself",
            redirectedFrom=_shown(request.url),
        )
    headers, method, body = dict(request.headers), request.method, request.body
    if (answer.status == 303 and method != "HEAD") or (answer.status in (301, 302) and method == "POST"):
        method, body = "GET", None
        headers.pop("content-type", None)
    if (target.scheme, target.host, target.port) != (other.scheme, other.host, other.port):
        headers = {name: value for name, value in headers.items() if name in _ANYWHERE}
    return replace(request, url=url, method=method, headers=headers, body=body)


def _bounded(name: str, value: Any, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ToolFailed(f"{name} must be a whole number from {least} to {most:,}, got {value!r:.40}")


def _shown(url: str) -> str:
    return shown(url)[:200]
