"""Clients over stdio that read late, or no more: every line arrives whole, and the server ends without an error."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from tests.forked_programs import NETWORK, ForkedProgram
from tests.isolation.waiting import until

pytestmark = pytest.mark.slow

KNOWN = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
LONG = "x" * 1_000_000
"""An id that no pipe holds: so is the answer."""


@contextmanager
def serving(folder: Path, *, blocking: bool = True) -> Iterator[tuple[ForkedProgram, Any]]:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, blocking)
    command = ["-m", "tavern_core", "-q", "--home", folder / "home", "mcp"]
    with (
        os.fdopen(ours, "rb") as answers,
        ForkedProgram(command, stdin=PIPE, stdout=theirs, stderr=PIPE, cwd=folder, imports=NETWORK) as server,
    ):
        os.close(theirs)
        send(server, id=1, method="initialize", params=KNOWN)
        assert json.loads(answers.readline())["id"] == 1
        send(server, method="notifications/initialized")
        yield server, answers


def send(server: ForkedProgram, **message: Any) -> None:
    server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    server.stdin.flush()


def unread(descriptor: int) -> int:
    """Bytes in a pipe."""
    return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"    "))[0])


def test_an_error_about_a_line_does_not_end_up_in_an_answer_that_is_being_read(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, answers):
        send(server, id=LONG, method="ping")
        until(lambda: unread(answers.fileno()))  # the answer has begun
        server.stdin.write("no JSON\n")
        server.stdin.flush()
        until(lambda: not unread(server.stdin.fileno()))
        send(server, id=2, method="ping")
        ids = [json.loads(answers.readline()).get("id") for _ in range(3)]
    assert ids == [LONG, None, 2]


def test_an_output_that_does_not_block_gets_all_of_an_answer(tmp_path: Path) -> None:
    with serving(tmp_path, blocking=False) as (server, answers):
        send(server, id=LONG, method="ping")
        until(lambda: unread(answers.fileno()))
        assert json.loads(answers.readline())["id"] == LONG
        server.stdin.close()
        assert server.wait(30) == 0


def test_a_client_that_closes_its_side_has_gone_away(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, answers):
        answers.close()
        send(server, id=2, method="ping")
        assert server.wait(30) == 0
        assert server.stderr.read() == ""
