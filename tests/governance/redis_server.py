"""A real Redis server on a free port, for the tests that need one."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """The address of a server that keeps nothing and ends with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            client = redis.Redis(port=port)
            end = time.monotonic() + 20
            while True:
                try:
                    client.ping()
                    break
                except redis.exceptions.ConnectionError:
                    assert server.poll() is None, "redis-server ended"
                    assert time.monotonic() < end, "redis-server does not answer"
            client.close()
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()
