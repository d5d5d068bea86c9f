"""Ctrl-C and SIGTERM end `tavern mcp` at once, whatever its client does; calls are cancelled and the host is closed."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from tavern_core import Tavern
from tests.forked_programs import NETWORK, ForkedProgram
from tests.programs import WAITING_PLUGIN, WAITING_SCRIPT, tavern
from tests.rows import each_row

pytestmark = pytest.mark.slow

KNOWN = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}


@contextmanager
def serving(folder: Path) -> Iterator[ForkedProgram]:
    command = ["-m", "tavern_core", "-q", "--home", folder / "home", "mcp", "--permissions", "network:host"]
    with ForkedProgram(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=folder, imports=NETWORK) as server:
        send(server, id=1, method="initialize", params=KNOWN)
        assert json.loads(server.stdout.readline())["id"] == 1
        send(server, method="notifications/initialized")
        yield server


def send(server: ForkedProgram, **message: Any) -> None:
    server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    server.stdin.flush()


def says_nothing(server: ForkedProgram) -> None:
    pass


def has_begun_a_line(server: ForkedProgram) -> None:
    os.write(server.stdin.fileno(), b'{"jsonrpc"')


def reads_nothing(server: ForkedProgram) -> None:
    """It sends requests until no pipe takes more."""
    request = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}).encode() + b"\n"
    os.set_blocking(server.stdin.fileno(), False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(server.stdin.fileno(), request)


@each_row(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@each_row("client", [says_nothing, has_begun_a_line, reads_nothing])
def test_a_signal_ends_the_server_whatever_its_client_does(
    tmp_path: Path, client: Callable[[ForkedProgram], None], sent: signal.Signals, code: int
) -> None:
    with serving(tmp_path) as server:
        client(server)
        server.send_signal(sent)
        assert server.wait(30) == code
        assert "Traceback" not in server.stderr.read()


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_call_that_runs_is_cancelled_and_its_program_ends(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    folder = tmp_path / "plugins" / "slow"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text(WAITING_PLUGIN, "utf-8")
    (tmp_path / "tavern.yaml").write_text("plugins: {roots: [plugins]}\n", "utf-8")
    granted = tavern("plugins", "grant", "slow", "network:host", cwd=tmp_path, home=tmp_path / "home")
    assert granted.returncode == 0, granted.stderr
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        (folder / "wait.py").write_text(WAITING_SCRIPT.replace("PORT", str(listener.getsockname()[1])), "utf-8")
        with serving(tmp_path) as server:
            send(server, id=2, method="tools/call", params={"name": "slow__wait", "arguments": {}})
            script, _ = listener.accept()
            with script:
                script.settimeout(60)
                assert script.recv(7) == b"running"
                server.send_signal(sent)
                assert server.wait(30) == code
                assert script.recv(1) == b""  # its end of the line was closed: it is gone
    with Tavern.open({}, home=tmp_path / "home") as host:
        (ended,) = host.logs.records("TOOL_RESULT")
        assert ended.data["error"]["kind"] == "CANCELLED"
        assert host.logs.verify().ok


STARTING = """\
import os
import signal
import sys
from importlib.abc import MetaPathFinder

class Terminating(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "tavern_core.server.mcp.stdio":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Terminating())
from tavern_core.__main__ import main

sys.exit(main(["--home", "home", "mcp"]))
"""


def test_sigterm_while_the_server_is_being_imported_closes_the_host(tmp_path: Path) -> None:
    with ForkedProgram(["-c", STARTING], stdin=PIPE, stdout=PIPE, cwd=tmp_path) as server:
        assert server.wait(30) == 143
