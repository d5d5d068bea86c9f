"""The gateway of one call: accepts connections from its box, checks and serves them, and ends them with the call."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import h11

from tavern_core.box.egress_proxy_socket import USER
from tavern_core.box.output import Serve
from tavern_core.contract.guards.addresses import Address, BadUrl, Target
from tavern_core.errors import UsageError
from tavern_core.isolation.gateway.byte_relay import ByteLimit, ByteLimitReached, RelaySide, RelayState, both, carry
from tavern_core.isolation.gateway.destinations import READ, ConnectionDenied, DestinationChecker, place_of
from tavern_core.isolation.gateway.exchange import END, LARGEST, BadAnswer, BadRequest, RequestHead, exchange, read_head
from tavern_core.kernel.execution.portal import Portal

HEAD_S: Final = 10.0
"""Time in which a program must send the head of a request."""
NAME_S: Final = 15.0
CONNECT_S: Final = 10.0
"""Time limit for connecting to each of a few addresses."""
MOST_ADDRESSES: Final = 4
MOST_IN_ALL: Final = 128
"""Connections of all calls of this process: each uses two descriptors."""
_TUNNEL: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"
_REASONS: Final = {
    400: "Bad Request", 403: "Forbidden", 407: "Proxy Authentication Required", 408: "Request Timeout",
    431: "Request Header Fields Too Large", 502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout",
}  # fmt: skip
_TLS: Final = b"\x16\x03"
"""The start of the first record of a handshake, in any version."""
_LONGEST_REASON: Final = 600


_RESTS_S: Final = 0.1
"""Delay before the next attempt if there are no descriptors."""


class ConnectionListener:
    """Accepts connections while there are free slots; the others wait in the system's own queue.

    Not with `sock_accept`, which would lose a connection, unclosed, if its task is cancelled while accepting.

    Args:
        most: connections at the same time.
        begin: serves one; it is over when its task is.
    """

    def __init__(
        self, listening: socket.socket, most: int, begin: Callable[[socket.socket], asyncio.Task[None]]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._begin = begin
        self._room = most
        listening.setblocking(False)
        self._open()

    def close(self) -> None:
        """Stop accepting."""
        self._loop.remove_reader(self._listening)
        self._listening.close()

    def _open(self) -> None:
        if self._listening.fileno() >= 0 and self._room > 0:
            self._loop.add_reader(self._listening, self._come)

    def _come(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except (BlockingIOError, ConnectionError):  # it was closed again
            return
        except OSError:
            self._loop.remove_reader(self._listening)
            self._loop.call_later(_RESTS_S, self._open)
            return
        self._room -= 1
        if not self._room:
            self._loop.remove_reader(self._listening)

        def leave(_: asyncio.Task[None]) -> None:
            connection.close()  # of a task that was cancelled before it started
            self._room += 1
            self._open()

        self._begin(connection).add_done_callback(leave)


class ConnectionSlots:
    """A number of slots that all threads share."""

    def __init__(self, most: int) -> None:
        self._lock = threading.Lock()
        self._left = most

    def take(self) -> bool:
        with self._lock:
            self._left -= (is_free := self._left > 0)
        return is_free

    def leave(self) -> None:
        with self._lock:
            self._left += 1


_seats: Final = ConnectionSlots(MOST_IN_ALL)


class Gateway:
    """Serves the box of one call, in one event loop.

    Args:
        connections: at the same time; further ones wait.
        most_bytes: of all connections, in both directions together.
    """

    def __init__(self, checker: DestinationChecker, connections: int, most_bytes: int) -> None:
        self._checker = checker
        self._connections = connections
        self._most_bytes = most_bytes
        self._allowance = ByteLimit(most_bytes)
        self._listeners: list[ConnectionListener] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, listening: socket.socket, token: str) -> None:
        """Serve connections to `listening`, from now on."""

        def begin(connection: socket.socket) -> asyncio.Task[None]:
            task = asyncio.get_running_loop().create_task(self._take(connection, token))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return task

        self._listeners.append(ConnectionListener(listening, self._connections, begin))

    async def close(self) -> None:
        """End all connections, and stop accepting."""
        for listener in self._listeners:
            listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _take(self, connection: socket.socket, token: str) -> None:
        has_seat = _seats.take()
        line = RelayState(self._allowance)
        try:
            with contextlib.ExitStack() as cleanup:
                cleanup.callback(connection.close)
                reader, writer = await asyncio.open_connection(sock=connection, limit=LARGEST)
                cleanup.pop_all()
                client = RelaySide(reader, writer, line)
                cleanup.callback(client.abort)
                await self._answer(client, line, token, has_seat=has_seat)
        except OSError:
            pass  # the program has closed the connection
        finally:
            if has_seat:
                _seats.leave()

    async def _answer(self, client: RelaySide, line: RelayState, token: str, *, has_seat: bool) -> None:
        status, reason = 0, ""
        try:
            if not has_seat:
                raise ConnectionDenied(
                    503, f"there are {MOST_IN_ALL} connections through the gateways of this host already"
                )
            await self._serve_one(client, line, await self._head(client, token))
        except ConnectionDenied as refused:
            status, reason = refused.status, str(refused)
        except (BadRequest, h11.RemoteProtocolError) as error:
            status, reason = 400, f"this request is not taken: {error}"
        except (BadAnswer, h11.LocalProtocolError) as error:
            status, reason = 502, f"the server broke off or does not speak HTTP/1: {error}"
        except ByteLimitReached:
            reason = f"a call moved more than {self._most_bytes:,} bytes through its gateway"
            self._checker.record_refusal(reason, "move less, or raise isolation.networkBytes in tavern.yaml")
            status = 403
        except TimeoutError:
            status, reason = 504, "no data came for too long"
        if status and not client.has_answered:
            await client.write(_refusal(status, reason))
        await client.finish()

    async def _head(self, client: RelaySide, token: str) -> RequestHead:
        """Serve the request of a program.

        Raises:
            ConnectionDenied, BadRequest: the request is refused.
        """
        raw = await _raw_head(client)
        try:
            head = read_head(raw)
        except BadUrl as error:
            raise self._checker.unreadable(error) from None
        wanted = b"Basic " + base64.b64encode(f"{USER}:{token}".encode())
        if token and not hmac.compare_digest(head.value(b"proxy-authorization"), wanted):
            raise ConnectionDenied(407, "the user and password in HTTP_PROXY are missing")
        return head

    async def _serve_one(self, client: RelaySide, line: RelayState, head: RequestHead) -> None:
        try:
            async with asyncio.timeout(NAME_S):
                addresses, capability = await self._checker.allowed_addresses(head)
        except TimeoutError:
            raise ConnectionDenied(504, f"no name server resolved {head.target.host} in time") from None
        server = RelaySide(*await _connected(head.target, addresses), line)
        try:
            if not head.is_tunnel:
                await exchange(client, server, head)
                return
            await client.write(_TUNNEL)
            if capability == READ:
                await server.write(await self._tls(client, head.target))
            await both(carry(client, server), carry(server, client))
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            raise ConnectionDenied(502, f"{place_of(head.target)} broke off: {error.strerror or error}") from None
        finally:
            server.abort()

    async def _tls(self, client: RelaySide, target: Target) -> bytes:
        """The first bytes of a tunnel that may only carry TLS. Raises ConnectionDenied: they are not a handshake."""
        first = b""
        while len(first) < len(_TLS):
            if not (data := await client.read()):
                break
            first += data
        if first and not first.startswith(_TLS[: len(first)]):
            raise self._checker.refusal(target, f"with {READ} a tunnel carries TLS only", "network")
        return first


@contextlib.asynccontextmanager
async def running_gateway(gateway: Gateway, portal: Portal) -> AsyncIterator[Serve]:
    """Run a gateway in the loop of `portal`: its traffic never delays the loop of the call."""

    def serve(listening: socket.socket, token: str) -> None:
        try:
            portal.begin(gateway.open(listening, token))
        except UsageError:  # the host is closed
            listening.close()

    try:
        yield serve
    finally:
        with contextlib.suppress(UsageError):
            await asyncio.wrap_future(portal.begin(gateway.close()))


async def _raw_head(client: RelaySide) -> bytes:
    """The input up to and including the first empty line.

    Raises:
        ConnectionDenied, BadRequest: it is missing.
        ConnectionResetError: no input at all.
    """
    try:
        async with asyncio.timeout(HEAD_S):
            return await client.reader.readuntil(END)
    except TimeoutError:
        raise ConnectionDenied(408, f"the head of a request did not end within {HEAD_S:.0f} s") from None
    except asyncio.LimitOverrunError:
        raise ConnectionDenied(431, f"the head of a request takes more than {LARGEST:,} bytes") from None
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            raise ConnectionResetError from None
        raise BadRequest("its head does not end with an empty line, CR LF CR LF") from None


async def _connected(target: Target, addresses: Sequence[Address]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to one of the checked addresses. Raises ConnectionDenied: no connection."""
    reason = "no answer"
    for address in addresses[:MOST_ADDRESSES]:
        try:
            async with asyncio.timeout(CONNECT_S):
                return await asyncio.open_connection(str(address), target.port, limit=LARGEST)
        except TimeoutError:
            reason = f"no answer within {CONNECT_S:.0f} s"
        except OSError as error:
            reason = error.strerror or str(error)
    raise ConnectionDenied(502, f"{place_of(target)} cannot be reached: {reason}")


def _refusal(status: int, reason: str) -> bytes:
    """An answer of the gateway's own. Many programs show only its first line, so that contains everything."""
    shown = reason.encode("ascii", "backslashreplace").decode()
    line = "".join(sign if sign.isprintable() else " " for sign in shown)[:_LONGEST_REASON]
    body = f"{reason}\n".encode()
    kind = b"content-type: text/plain; charset=utf-8\r\n"
    ask = b'proxy-authenticate: Basic realm="tavern"\r\n' if status == 407 else b""
    head = f"HTTP/1.1 {status} {_REASONS[status]}: {line}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
    return head.encode() + kind + ask + b"\r\n" + body
