"""A real Redis server on a free port, for the tests that need one."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis


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
            "redis-server", "--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder), *own,
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


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """The address of a server that keeps nothing and ends with the block."""
    server = Server(folder)
    try:
        yield server.address
    finally:
        server.kill()
