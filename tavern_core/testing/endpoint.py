"""A web API on this machine that sends the replies of the test, and records requests.

    def test_it_asks_for_the_page(fake_endpoint, open_tavern):
        fake_endpoint.reply("/title", json={"title": "Hello"})
        tavern = open_tavern(settings={"apiBase": fake_endpoint.url})
        ...
        assert fake_endpoint.requests[0].query == {"id": "7"}

Works for tools in the process and for scripts alike, because it is a real server on 127.0.0.1.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from json import dumps, loads
from types import TracebackType
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from tavern_core.frozen_dataclass import dataclass

_MOST_READ: Final = 16_000_000
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True, slots=True)
class Request:
    """A received request."""

    method: str
    path: str
    """Without the query."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes = b""

    def json(self) -> Any:
        """The body as JSON."""
        return loads(self.body)


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class FakeEndpoint:
    """Serves from `__enter__` to `__exit__`. A path without a reply answers 404 and lists the existing paths."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        """All requests, in order."""
        self._replies: dict[str, deque[_Reply]] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="tavern-fake-endpoint", daemon=True)

    @property
    def url(self) -> str:
        """``http://127.0.0.1:<port>``, without a slash at the end."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def reply(
        self,
        path: str,
        *,
        json: Any = None,
        text: str | None = None,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer requests for `path` (any method and query) with this.

        Several replies to one path are sent in turn; the last one repeats.
        """
        kind = "application/json" if text is None else "text/plain; charset=utf-8"
        body = dumps(json, ensure_ascii=False) if text is None else text
        reply = _Reply(status, body.encode(), {"Content-Type": kind, **(headers or {})})
        with self._lock:
            self._replies.setdefault(path, deque()).append(reply)

    def answer(self, request: Request) -> _Reply:
        """Record a request and take the next reply."""
        with self._lock:
            self.requests.append(request)
            replies = self._replies.get(request.path)
            if not replies:
                known = ", ".join(sorted(self._replies)) or "nothing"
                return _Reply(404, f"no reply for {request.path}; there is one for {known}".encode())
            return replies.popleft() if len(replies) > 1 else replies[0]

    def __enter__(self) -> FakeEndpoint:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(endpoint: FakeEndpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            parts = urlsplit(self.path)
            size = min(int(self.headers.get("Content-Length") or 0), _MOST_READ)
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = endpoint.answer(
                Request(self.command, parts.path, dict(parse_qsl(parts.query)), headers, self.rfile.read(size))
            )
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
            """Requests are in `requests`; stderr belongs to the test."""

    for method in _METHODS:
        setattr(Handler, f"do_{method}", Handler._serve)
    return Handler
