"""A real Redis server on a free port, for the tests that need one."""

from __future__ import annotations

import atexit
import functools
import itertools
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import redis

DATABASES = 1_000
"""Of a server that tests share: each use has the next one."""


class Server:
    """A server that keeps its data in a folder, and can go away and come back.

    Args:
        is_durable: what was written is there after `kill` and `start`.
    """

    def __init__(self, folder: Path, *, is_durable: bool = False) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.address = f"redis://127.0.0.1:{self._port}/0"
        own = ["--appendonly", "yes", "--appendfsync", "always"] if is_durable else []
        self._command = [
            "redis-server", "--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder),
            "--databases", str(DATABASES), *own,
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        client, end = redis.Redis(port=self._port), time.monotonic() + 20
        while True:
            try:
                client.ping()
                break
            except redis.exceptions.ConnectionError:
                assert self._process.poll() is None, "redis-server ended"
                assert time.monotonic() < end, "redis-server does not answer"
        client.close()

    def pause(self) -> None:
        """It takes connections and answers none of them."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it, in whatever state it is."""
        self._process.kill()
        self._process.wait()


class LossyLink:
    """A way to a server, by its address. Of a request that holds `lost`, the answer is lost, and the connection with it."""

    def __init__(self, address: str) -> None:
        self.lost = b""
        server = urlsplit(address)
        assert server.port is not None
        self._port = server.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"redis://127.0.0.1:{self._listener.getsockname()[1]}{server.path}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no further connection."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        is_lost = False
        with client, socket.create_connection(("127.0.0.1", self._port)) as server:
            while True:
                ready, _, _ = select.select([client, server], [], [])
                data = ready[0].recv(1 << 20)
                if not data or (is_lost and ready[0] is server):
                    return
                is_lost = is_lost or (ready[0] is client and bool(self.lost) and self.lost in data)
                (server if ready[0] is client else client).sendall(data)


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """The address of a server that keeps nothing and ends with the block."""
    server = Server(folder)
    try:
        yield server.address
    finally:
        server.kill()


@functools.cache
def _shared() -> tuple[str, Iterator[int]]:
    """The address of one server for all tests of this process, without its databases, and their numbers."""
    folder = tempfile.TemporaryDirectory()
    server = Server(Path(folder.name))

    @atexit.register
    def end() -> None:
        server.kill()
        folder.cleanup()

    return server.address.removesuffix("/0"), itertools.cycle(range(DATABASES))


@contextmanager
def database() -> Iterator[str]:
    """The address of a database that no other test uses and that is empty; its server stays the same all the time."""
    server, numbers = _shared()
    address = f"{server}/{next(numbers)}"
    try:
        yield address
    finally:
        with redis.Redis.from_url(address) as client:
            client.flushdb()
