"""An HTTP server that answers MCP requests in an evil way, in a thread of the test or as ``evil_http.py SOCKET MODE [strict]``.

A call of the tool `bad` may name another mode of its answer.
"""

from __future__ import annotations

import gzip
import json
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

META: Final = {"io.modelcontextprotocol/serverInfo": {"name": "evil", "version": "1"}}
DISCOVERED: Final = {
    "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "ttlMs": 0, "cacheScope": "private", "_meta": META,
}  # fmt: skip
TOOLS: Final = {
    "tools": [
        {"name": name, "inputSchema": {"type": "object", "additionalProperties": True}} for name in ("good", "bad")
    ]
}
WELL: Final = {"content": [{"type": "text", "text": "well"}]}
JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
Answer = Callable[["Handler", Any], None]


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server
    mode = ""
    """Empty: the address begins with it."""
    is_strict = False
    """Whether it is evil from the first request on."""

    def do_POST(self) -> None:
        """Answer one message."""
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method, number = message.get("method"), message.get("id")
        self.server.seen.append((method, [(name.lower(), value) for name, value in self.headers.items()]))
        with suppress(BrokenPipeError, ConnectionResetError):
            if self.is_strict:
                EVIL[self.mode or self.path.split("/")[1]](self, number)
            elif method == "tools/call" and message["params"]["name"] == "bad":
                EVIL[message["params"].get("arguments", {}).get("mode", self.mode)](self, number)
            elif method == "server/discover":
                self.reply(200, result(number, DISCOVERED))
            elif method == "tools/list":
                self.reply(200, result(number, TOOLS))
            else:
                self.reply(200, result(number, WELL))

    def reply(self, status: int, body: bytes, kind: str = JSON, **headers: str) -> None:
        """A whole answer."""
        self.begin(status, kind, **{"content-length": str(len(body)), **headers})
        self.wfile.write(body)

    def begin(self, status: int, kind: str, **headers: str) -> None:
        """Status and headers."""
        self.send_response(status)
        for name, value in {"content-type": kind, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def chunk(self, data: bytes) -> None:
        """A part of an answer without a length."""
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


def result(number: Any, value: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "result": value}).encode()


def failure(number: Any, code: int, message: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}).encode()


def _redirect(self: Handler, number: Any) -> None:
    self.reply(307, b"", location="http://127.0.0.2:9/mcp")


def _moved(self: Handler, number: Any) -> None:
    if self.path == "/moved":
        self.reply(200, result(number, WELL))
    else:
        self.reply(307, b"", location="/moved")


BOMB: Final = gzip.compress(b"x" * 1_000_000) * 100
"""A hundred members of a million bytes."""


def _bomb(self: Handler, number: Any) -> None:
    self.reply(200, BOMB, content_encoding="gzip")


def _headers(self: Handler, number: Any) -> None:
    self.wfile.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        self.wfile.write(b"x-more: " + b"y" * 1_000 + b"\r\n")


def _endless(kind: str, piece: bytes) -> Answer:
    def answer(self: Handler, number: Any) -> None:
        self.begin(200, kind, transfer_encoding="chunked")
        while True:
            self.chunk(piece)

    return answer


def _cut(self: Handler, number: Any) -> None:
    self.begin(200, JSON, content_length="1000")
    self.wfile.write(b'{"jsonrpc"')
    self.close_connection = True


def _cut_events(self: Handler, number: Any) -> None:
    self.begin(200, EVENTS, transfer_encoding="chunked")
    self.chunk(b": hello\n\n")
    self.chunk(b"")


def _marked_events(self: Handler, number: Any) -> None:
    """It begins with a byte order mark, in two pieces."""
    self.begin(200, EVENTS, transfer_encoding="chunked")
    for piece in (b"\xef\xbb", b"\xbfdata: " + result(number, WELL) + b"\n\n", b""):
        self.chunk(piece)


def _silent(self: Handler, number: Any) -> None:
    self.server.stopping.wait(60)


def _parts(self: Handler, number: Any) -> None:
    self.reply(200, result(number, {"content": [{"type": "text", "text": "x"}] * 15_000}))


def _large(kind: str, before: bytes, after: bytes = b"") -> Answer:
    """Many bytes in one message, within the limit of a message."""

    def answer(self: Handler, number: Any) -> None:
        beginning = (b"data: " if kind == EVENTS else b"") + before.replace(b"ID", str(number).encode())
        ending = after + (b"\n\n" if kind == EVENTS else b"")
        self.reply(200, beginning + b"\\n" * 1_900_000 + ending, kind)

    return answer


WRONG: Final = b'{"jsonrpc":"2.0","id":ID,"resalt":"', b'"}'
"""Before and after a long text: no message, although it looks like one."""


def _status(status: int, **headers: str) -> Answer:
    def answer(self: Handler, number: Any) -> None:
        self.reply(status, b"<h1>no</h1>", "text/html", **headers)

    return answer


EVIL: Final[dict[str, Answer]] = {
    "redirects": _redirect,
    "moved": _moved,
    "compressed-bomb": _bomb,
    "endless-headers": _headers,
    "endless-body": _endless(JSON, b"x" * 65_536),
    "endless-event": _endless(EVENTS, b"data: " + b"x" * 65_536),
    "cut-body": _cut,
    "cut-events": _cut_events,
    "never-answers": _silent,
    "many-parts": _parts,
    "large-garbage": _large(JSON, b"x"),
    "large-wrong": _large(JSON, *WRONG),
    "large-garbage-event": _large(EVENTS, b"x"),
    "large-wrong-event": _large(EVENTS, *WRONG),
    "html": _status(200),
    "no-kind": lambda self, number: self.reply(200, result(number, WELL), ""),
    "other-packing": lambda self, number: self.reply(200, result(number, WELL), content_encoding="br"),
    "corrupt-packing": lambda self, number: self.reply(200, result(number, WELL), content_encoding="gzip"),
    "401": _status(401),
    "401-json": lambda self, number: self.reply(401, b'{"error":"invalid_token"}'),
    "403": _status(403),
    "404": _status(404),
    "429": _status(429, retry_after="7"),
    "405": lambda self, number: self.reply(405, b'{"detail":"Method Not Allowed"}'),
    "500": _status(500),
    "503": _status(503, retry_after="7"),
    "503-proxy": _status(503),
    "accepted": lambda self, number: self.reply(202, b""),
    "any-error": lambda self, number: self.reply(200, failure(number, -32000, "out of order")),
    "marked": lambda self, number: self.reply(200, b"\xef\xbb\xbf" + result(number, WELL)),
    "marked-events": _marked_events,
    "empty": lambda self, number: self.reply(200, b""),
    "other-number": lambda self, number: self.reply(200, result(-7, WELL)),
}


class Server(ThreadingHTTPServer):
    """One server."""

    daemon_threads = True

    def __init__(self, handler: type[Handler], *, bind_and_activate: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), handler, bind_and_activate)
        self.stopping = threading.Event()
        self.seen: list[tuple[str, list[tuple[str, str]]]] = []
        """Method and headers of what it was asked."""


def handler(mode: str, *, strict: bool) -> type[Handler]:
    return type("Evil", (Handler,), {"mode": mode, "is_strict": strict})


@contextmanager
def serving(mode: str = "", *, strict: bool = False, certificate: Path | None = None) -> Iterator[tuple[str, Server]]:
    """The address of a server that is evil in this way, and the server.

    Args:
        mode: empty: what a call names or, of a strict one, what its path begins with.
        certificate: with its key: it serves over TLS, and only clients that show the same one.
    """
    server = Server(handler(mode, strict=strict))
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        context.load_verify_locations(certificate)
        context.verify_mode = ssl.CERT_REQUIRED
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield (
            f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_address[1]}/{'' if strict else 'mcp'}",
            server,
        )
    finally:
        server.stopping.set()
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":
    alone = Server(handler(sys.argv[2], strict="strict" in sys.argv), bind_and_activate=False)
    alone.socket = socket.socket(fileno=int(sys.argv[1]))
    alone.serve_forever()
