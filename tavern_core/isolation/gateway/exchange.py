"""Forwards one request and its answer; each is parsed and written again.

One connection carries one request: everything that a program sends after it is dropped, so nothing can be smuggled. The
head of a request is parsed strictly: ambiguous input is refused. h11 writes the forwarded request from the parsed one,
so the original spelling never reaches a server.
"""

from __future__ import annotations

import re
from typing import Final

import h11

from tavern_core.contract.guards.addresses import BadUrl, Target, read_url
from tavern_core.frozen_dataclass import dataclass
from tavern_core.isolation.gateway.byte_relay import RelaySide, both

_AT_ONCE: Final = 16_384
"""Bytes to parse in one step, because they may be thousands of chunks of one byte."""
_LARGEST_ANSWER: Final = 65_536
"""Bytes of the head of an answer."""
_CLOSE: Final = (b"connection", b"close")


class BadAnswer(Exception):
    """The server does not speak HTTP/1."""


async def exchange(client: RelaySide, server: RelaySide, head: RequestHead) -> None:
    """Send the request of `client` to `server`, and the answer back.

    Raises:
        h11.RemoteProtocolError: the body of the request is broken.
        BadAnswer: the answer is broken.
        TimeoutError, ByteLimitReached, OSError: as `RelaySide`.
    """
    asked = h11.Connection(h11.SERVER, max_incomplete_event_size=LARGEST)
    asking = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LARGEST_ANSWER)
    asked.receive_data(head.raw)
    asked.next_event()  # the head, which was already read
    headers = [(b"host", head.target.netloc.encode()), *end_to_end(head.headers), _CLOSE]
    await server.write(asking.send(h11.Request(method=head.method, target=head.path, headers=headers)))
    await both(_send(client, server, asked, asking), _answer(client, server, asked, asking), until_other=True)


async def _send(client: RelaySide, server: RelaySide, asked: h11.Connection, asking: h11.Connection) -> None:
    while True:
        event = asked.next_event()
        if event is h11.NEED_DATA:
            if asked.they_are_waiting_for_100_continue:
                await client.write(asked.send(h11.InformationalResponse(status_code=100, headers=[])), is_interim=True)
            asked.receive_data(await client.read(_AT_ONCE))
        elif isinstance(event, h11.Data):
            await server.write(asking.send(h11.Data(data=bytes(event.data))))
        else:
            await server.write(asking.send(h11.EndOfMessage()))
            return


async def _answer(client: RelaySide, server: RelaySide, asked: h11.Connection, asking: h11.Connection) -> None:
    while True:
        try:
            event = asking.next_event()
        except h11.RemoteProtocolError as error:
            raise BadAnswer(str(error)) from None
        if event is h11.NEED_DATA:
            data = await server.read(_AT_ONCE)
            if not data and asking.their_state is h11.SEND_RESPONSE:
                raise BadAnswer("it ended before it answered")
            asking.receive_data(data)
        elif isinstance(event, h11.Response):
            await client.write(asked.send(_anew(event)))
        elif isinstance(event, h11.Data):
            await client.write(asked.send(h11.Data(data=bytes(event.data))))
        elif isinstance(event, h11.EndOfMessage):
            await client.write(asked.send(h11.EndOfMessage()))
            return


def _anew(response: h11.Response) -> h11.Response:
    headers = tuple((bytes(name), bytes(value)) for name, value in response.headers)
    is_chunked = any(name == b"transfer-encoding" for name, _ in headers)
    forwarded = [
        (n, v)
        for n, v in end_to_end(headers)
        if n != b"transfer-encoding" and not (is_chunked and n == b"content-length")
    ]
    return h11.Response(status_code=response.status_code, headers=[*forwarded, _CLOSE], reason=bytes(response.reason))


LARGEST: Final = 16_384
"""Bytes of a head."""
END: Final = b"\r\n\r\n"
CONNECT: Final = "CONNECT"
_MOST_HEADERS: Final = 100
_FIRST_LINE: Final = re.compile(rb"([A-Z]{1,20}) ([\x21-\x7e]{1,8192}) HTTP/1\.([01])")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}):([\t\x20-\x7e\x80-\xff]*)")
_AUTHORITY: Final = re.compile(r"[^/?#@]{1,300}:[0-9]{1,5}")
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
_OF_ONE_HOP: Final = frozenset({
    b"connection", b"expect", b"host", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"upgrade",
})  # fmt: skip
"""Headers for the gateway or written by it."""
_FRAMING: Final = (b"content-length", b"transfer-encoding")

Headers = tuple[tuple[bytes, bytes], ...]


class BadRequest(Exception):
    """It is not a valid proxy request; the message says why."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A parsed request."""

    raw: bytes
    method: str
    target: Target
    path: str
    """For a forwarded request: path and query; empty for a tunnel."""
    headers: Headers
    """Names in lower case."""

    @property
    def is_tunnel(self) -> bool:
        return self.method == CONNECT

    def value(self, name: bytes) -> bytes:
        """The first header with this name; empty without one."""
        return next((value for other, value in self.headers if other == name), b"")


def read_head(raw: bytes) -> RequestHead:
    """Parse a head.

    Args:
        raw: all of it, including the empty line.

    Raises:
        BadRequest: it is broken, ambiguous, or not meant for a proxy.
        BadUrl: it has no valid destination.
    """
    first, *lines = raw.removesuffix(END).split(b"\r\n")
    found = _FIRST_LINE.fullmatch(first)
    if found is None:
        raise BadRequest("the first line is not METHOD, address and HTTP/1.1, each one blank apart")
    if len(lines) > _MOST_HEADERS:
        raise BadRequest(f"there are more than {_MOST_HEADERS} headers")
    headers = tuple(_header(line) for line in lines)
    method, written, minor = found[1].decode(), found[2].decode(), found[3]
    _check_framing(method, headers, is_old=minor == b"0")
    if method == CONNECT:
        if not _AUTHORITY.fullmatch(written):
            raise BadUrl("is not host:port")
        return RequestHead(raw, method, read_url(f"https://{written}", ("https",)), "", headers)
    if written.startswith("/") or written == "*":
        raise BadRequest(
            "this is a proxy: ask it for a whole address, http://host/path, or for a tunnel, CONNECT host:port"
        )
    target = read_url(written, ("http",))
    path = re.split(r"(?=[/?#])", written.partition("://")[2], maxsplit=1)
    rest = path[1].partition("#")[0] if len(path) > 1 else ""
    return RequestHead(raw, method, target, rest if rest.startswith("/") else f"/{rest}", headers)


def _header(line: bytes) -> tuple[bytes, bytes]:
    found = _HEADER.fullmatch(line)  # a folded line starts with a blank, and a bare CR or LF is not allowed in a value
    if found is None:
        raise BadRequest(
            "one of the headers is broken: folded, with a blank before its colon or with a sign that no header has"
        )
    return found[1].lower(), found[2].strip(b" \t")


def _check_framing(method: str, headers: Headers, *, is_old: bool) -> None:
    lengths, codings = ([value for other, value in headers if other == name] for name in _FRAMING)
    if lengths and codings:
        raise BadRequest("it has both Content-Length and Transfer-Encoding")
    if len(lengths) > 1 or any(not _LENGTH.fullmatch(length) for length in lengths):
        raise BadRequest("its Content-Length is not a number, or there are two")
    if codings and (is_old or [coding.lower() for coding in codings] != [b"chunked"]):
        raise BadRequest("its Transfer-Encoding is not chunked, or it says HTTP/1.0")
    hosts = sum(name == b"host" for name, _ in headers)
    if hosts > 1 or (not hosts and not is_old and method != CONNECT):
        raise BadRequest("it has no Host header, or two")
    if method == CONNECT and (codings or any(int(length) for length in lengths)):
        raise BadRequest("a CONNECT has no body")


def end_to_end(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The headers for the other end."""
    named = {
        name.strip().lower() for value in (v for n, v in headers if n == b"connection") for name in value.split(b",")
    }
    own = (_OF_ONE_HOP | named).difference(_FRAMING)
    return [(name, value) for name, value in headers if name not in own]
