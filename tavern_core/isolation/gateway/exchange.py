"""Forwards one request and its answer; each is parsed and written again.

One connection carries one request: everything that a program sends after it is dropped, so nothing can be smuggled.
"""

from __future__ import annotations

from typing import Final

import h11

from tavern_core.isolation.gateway.byte_relay import RelaySide, both
from tavern_core.isolation.gateway.request_head import LARGEST, RequestHead, end_to_end

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
    kept = [
        (n, v)
        for n, v in end_to_end(headers)
        if n != b"transfer-encoding" and not (is_chunked and n == b"content-length")
    ]
    return h11.Response(status_code=response.status_code, headers=[*kept, _CLOSE], reason=bytes(response.reason))
