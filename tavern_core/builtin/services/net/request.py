"""One request to one address: the connection uses the checked address, whatever the name resolves to later.

The name only occurs in the Host header and in the TLS handshake, where the certificate is checked against it. Nothing is
shared between requests: no connection, no cookie, no proxy of the environment.
"""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from tavern_core.contract.exchange import http_library
from tavern_core.contract.guards.addresses import Address, Target
from tavern_core.contract.guards.bounded_decompression import Unpacker
from tavern_core.errors import UpstreamError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.safe_printing import reason_of

NEEDS: Final = "fetching needs"
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_HIDDEN_HEADERS: Final = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "set-cookie", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request."""

    url: str
    method: str
    headers: Mapping[str, str]
    body: bytes | None
    max_bytes: int


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The answer to a request: a redirect, or the whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    location: str | None

    def data(self) -> dict[str, Any]:
        """The answer as plain data, without headers that plugins may not see."""
        headers = {name: value for name, value in self.headers.items() if name not in _HIDDEN_HEADERS}
        return {
            "status": self.status,
            "headers": headers,
            "bytes": len(self.body),
            **as_data(self.body, self.headers.get("content-type", "")),
        }


async def send(
    request: HttpRequest, target: Target, address: Address, tls: ssl.SSLContext, seconds: float
) -> HttpResponse:
    """Send `request` to `address` and read the answer.

    Raises:
        ConnectionRefused: no answer there; another address may be tried.
        UpstreamError, OutputTooLarge: the answer is broken, or too large.
    """
    http = http_library(NEEDS)
    url = http.URL(request.url).copy_with(host=str(address), fragment=None)
    headers = {**request.headers, "host": target.netloc, "accept-encoding": "gzip", "connection": "close"}
    extensions = {} if target.address is not None else {"sni_hostname": target.host}
    transport = http.AsyncHTTPTransport(verify=tls, trust_env=False, retries=0)
    async with http.AsyncClient(
        transport=transport, trust_env=False, follow_redirects=False, timeout=seconds
    ) as client:
        try:
            built = client.build_request(
                request.method, url, headers=headers, content=request.body, extensions=extensions
            )
            response = await client.send(built, stream=True)
        except (http.ConnectError, http.ConnectTimeout) as error:
            raise ConnectionRefused(reason_of(error)[:200]) from error
        except (http.HTTPError, http.InvalidURL, ValueError) as error:
            raise UpstreamError(
                f"{target} could not be reached: {reason_of(error):.200}", retryable=True, outcome="unknown"
            ) from error
        try:
            return await _read(response, request, target)
        except http.HTTPError as error:
            raise UpstreamError(
                f"{target} broke off its answer: {reason_of(error):.200}", retryable=True, outcome="unknown"
            ) from error
        finally:
            await response.aclose()


async def _read(response: Any, request: HttpRequest, target: Target) -> HttpResponse:
    headers = {name.lower(): value for name, value in response.headers.items()}
    location = headers.get("location") if response.status_code in REDIRECTS else None
    body = b""
    if location is None and request.method != "HEAD":
        unpacker = Unpacker(headers.get("content-encoding", ""), request.max_bytes, str(target))
        body = await whole(response.aiter_raw(), unpacker)
    return HttpResponse(response.status_code, headers, body, location)


class ConnectionRefused(Exception):
    """No connection to one address."""


_CHARSET: Final = re.compile(r"charset=\"?([A-Za-z0-9._:-]{1,40})", re.IGNORECASE)
_TEXTS: Final = re.compile(
    r"(text/|application/(json|xml|javascript|x-www-form-urlencoded|.+\+(json|xml))\b)", re.IGNORECASE
)


async def whole(chunks: AsyncIterator[bytes], unpacker: Unpacker) -> bytes:
    """Read and decompress a whole body."""
    body = bytearray()
    async for chunk in chunks:
        body += unpacker.feed(chunk)
    return bytes(body)


def as_data(body: bytes, content_type: str) -> dict[str, Any]:
    """The body for JSON: ``text`` if it is text, else ``base64``."""
    charset = _CHARSET.search(content_type)
    if charset is not None or _TEXTS.match(content_type) or not content_type:
        try:
            return {"text": body.decode(charset[1] if charset is not None else "utf-8"), "base64": None}
        except (UnicodeDecodeError, LookupError, ValueError):
            pass
    return {"text": None, "base64": base64.b64encode(body).decode("ascii")}
