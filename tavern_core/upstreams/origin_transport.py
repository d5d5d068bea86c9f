"""The HTTP transport of one connection: to one origin, at checked addresses, with bounded answers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final
from urllib.parse import urljoin

import httpx2

from tavern_core.contract.guards.addresses import PORTS, Address, BadUrl, Target, read_url
from tavern_core.contract.guards.bounded_decompression import Unpacker
from tavern_core.contract.guards.connecting import NoAddress
from tavern_core.errors import UpstreamError

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_PIECE: Final = 4_096
"""Packed bytes that are unpacked at a time: at most 4 MB result, so the event loop is never blocked for long."""
_STREAM_FACTOR: Final = 16
_SOME_CERTIFICATE: Final = "write `certificate: {cert: {$file: …}, key: {$file: …}}` into an entry of `upstreams`"
_OTHER_CERTIFICATE: Final = "use one that is valid and that the server's certification authority has issued"
_OF_CERTIFICATES: Final = "CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "DECRYPT_ERROR", "HANDSHAKE_FAILURE"
"""TLS alerts with these in their names refuse a client; in TLS 1.2, the last one means a missing client certificate."""
_OF_PACKING: Final = "content-encoding", "content-length"
"""Headers of an answer that are wrong once it is unpacked."""


class OriginTransport(httpx2.AsyncBaseTransport):
    """Sends only to `target`.

    Args:
        addresses: resolves and checks the addresses of the target; called once, before the first request.
        max_bytes: of one answer.
        connections: the maximum number at one time.
        has_certificate: whether `tls` has a client certificate.
    """

    def __init__(
        self,
        target: Target,
        addresses: Callable[[], Awaitable[Sequence[Address]]],
        tls: ssl.SSLContext,
        max_bytes: int,
        connections: int,
        has_certificate: bool,
    ) -> None:
        self._target = target
        self._ask = addresses
        self._addresses: Sequence[Address] = ()
        self._max_bytes = max_bytes
        self._has_certificate = has_certificate
        self._was_answered = False
        self._asking = asyncio.Lock()
        self._last: tuple[httpx2.URL, Address, httpx2.URL] | None = None
        self._wire = httpx2.AsyncHTTPTransport(
            verify=tls, trust_env=False, retries=0, limits=httpx2.Limits(max_connections=connections)
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self._check(request.url)
        addresses = await self._resolved()
        try:
            response = await self._send(request, addresses)
        except (ssl.SSLError, httpx2.NetworkError, httpx2.RemoteProtocolError) as error:
            if self._target.scheme != "https":
                raise
            raise self._of_tls(error) from error
        self._was_answered = True
        if response.status_code == 101:
            return response
        try:
            self._refuse_other_origin(request.url, response)
            return self._bounded(response)
        except BaseException:
            await response.aclose()
            raise

    async def aclose(self) -> None:
        await self._wire.aclose()

    def _check(self, url: httpx2.URL) -> None:
        port = url.port or PORTS.get(url.scheme, 0)
        if (url.scheme, url.raw_host.decode("ascii").strip("[]").removesuffix("."), port) != self._origin:
            raise UpstreamError(
                f"{_origin(str(url))} is not {self._target}, which was granted; nothing was sent to it",
                hint="the upstream points to another host; grant that one as an upstream of its own",
            )

    @property
    def _origin(self) -> tuple[str, str, int]:
        return self._target.scheme, self._target.host, self._target.port

    async def _resolved(self) -> Sequence[Address]:
        if self._addresses:
            return self._addresses
        async with self._asking:
            if not self._addresses:
                try:
                    self._addresses = await self._ask()
                except NoAddress as error:
                    raise httpx2.ConnectError(f"{self._target.host} has no address: {error}") from None
            return self._addresses

    async def _send(self, request: httpx2.Request, addresses: Sequence[Address]) -> httpx2.Response:
        request.headers["host"] = self._target.netloc
        if self._target.address is None:
            request.extensions = {**request.extensions, "sni_hostname": self._target.host}
        url, failed = request.url, httpx2.ConnectError("no address")
        for address in addresses:
            request.url = self._addressed(url, address)
            try:
                response = await self._wire.handle_async_request(request)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                failed = (
                    error
                    if isinstance(error, httpx2.ConnectError)
                    else httpx2.ConnectError(str(error) or "it took too long")
                )
                continue
            finally:
                request.url = url
            self._addresses = (address, *(other for other in addresses if other != address))
            return response
        raise failed

    def _of_tls(self, error: Exception) -> Exception:
        """The error for `error` if certificates may be the reason.

        With TLS 1.3 a server refuses a client certificate only after the handshake, and many close the connection
        silently.
        """
        tls_error = _tls_error(error)
        reason = tls_error.reason or "" if tls_error is not None else ""
        if reason == "CERTIFICATE_VERIFY_FAILED":
            return UpstreamError(
                f"the certificate of {self._target} is not trusted: {getattr(tls_error, 'verify_message', '')}",
                hint="if its certification authority is your own, write `certificate: {ca: {$file: …}}` into an entry of `upstreams`",
                outcome="none",
                reason="certificate",
            )
        _, is_alert, alert = reason.partition("_ALERT_")
        if any(part in alert for part in _OF_CERTIFICATES):
            refused = "the client certificate" if self._has_certificate else "a connection without a client certificate"
            return UpstreamError(
                f"{self._target} does not accept {refused}: {alert.replace('_', ' ').lower()}",
                hint=_OTHER_CERTIFICATE if self._has_certificate else _SOME_CERTIFICATE,
                outcome="none",
                reason="certificate",
            )
        kind = type(error) if isinstance(error, httpx2.TransportError) else httpx2.ReadError
        text = str(error) or "the connection ended"
        may_want_another = tls_error is not None or not isinstance(error, httpx2.ConnectError)
        if not self._was_answered and not is_alert and may_want_another:
            text += " (a server that wants another client certificate may do that: see `certificate` of `upstreams`)"
        return kind(text)

    def _addressed(self, url: httpx2.URL, address: Address) -> httpx2.URL:
        """`url` with the address instead of the name. Cached: building one costs as much as a request."""
        cached = self._last
        if cached is None or cached[0] != url or cached[1] != address:
            cached = self._last = url, address, url.copy_with(host=str(address))
        return cached[2]

    def _refuse_other_origin(self, url: httpx2.URL, response: httpx2.Response) -> None:
        """Raise UpstreamError if the answer redirects to another origin."""
        location = response.headers.get("location", "")
        if response.status_code not in _REDIRECTS or not location:
            return
        redirect = location[:8192]
        try:
            redirect = urljoin(str(url), redirect)
            other = read_url(redirect)
            is_same = (other.scheme, other.host, other.port) == self._origin
        except ValueError:
            is_same = False
        if not is_same:
            raise UpstreamError(
                f"{self._target} redirects to {_origin(redirect)}, which was not granted",
                hint="write the address it redirects to in place of this one, and grant it",
                outcome="unknown",
                redirectedTo=_origin(redirect),
            )

    def _bounded(self, response: httpx2.Response) -> httpx2.Response:
        headers = response.headers
        is_stream = headers.get("content-type", "").lower().startswith("text/event-stream")
        limit = self._max_bytes * (_STREAM_FACTOR if is_stream else 1)
        unpacker = Unpacker(headers.get("content-encoding", ""), limit, str(self._target))
        is_packed = "content-encoding" in headers
        for name in ("set-cookie", *_OF_PACKING) if is_packed else ("set-cookie",):
            if name in headers:
                del headers[name]
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _BoundedStream(response.stream, unpacker, is_packed)
        return response


class _BoundedStream(httpx2.AsyncByteStream):
    """An unpacked body of limited length."""

    def __init__(self, stream: httpx2.AsyncByteStream, unpacker: Unpacker, is_packed: bool) -> None:
        self._stream = stream
        self._unpacker = unpacker
        self._is_packed = is_packed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._stream:
                if not self._is_packed:
                    yield self._unpacker.feed(chunk)
                    continue
                for start in range(0, len(chunk), _PIECE):
                    if piece := self._unpacker.feed(chunk[start : start + _PIECE]):
                        yield piece
                    await asyncio.sleep(0)
        except ssl.SSLError as error:
            raise httpx2.ReadError(str(error)) from error

    async def aclose(self) -> None:
        await self._stream.aclose()


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """The TLS error behind an error, or None."""
    for _ in range(10):
        if error is None or isinstance(error, ssl.SSLError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _origin(url: str) -> str:
    """``scheme://host:port`` of an address, for messages."""
    try:
        return str(read_url(url))
    except BadUrl:
        return f"{url.partition('?')[0].rpartition('@')[2]!r:.100}"
