"""Ctrl-C while a script tool runs: the script ends with it, and the exit code says that it was interrupted."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE

import pytest

from tavern_core.__main__ import main
from tests.forked_programs import ForkedProgram
from tests.programs import WAITING_PLUGIN, WAITING_SCRIPT, Program

pytestmark = pytest.mark.slow

BLOCK = "<|[REQUEST_TOOL]|>\ncommand:「始」slow:wait「末」\n<|[END_TOOL]|>\n"


def to_the_program(running: ForkedProgram) -> None:
    running.send_signal(signal.SIGINT)


def to_its_whole_group(running: ForkedProgram) -> None:
    """As a terminal does."""
    os.killpg(running.pid, signal.SIGINT)


@pytest.mark.parametrize(
    ("argv", "interrupt"),
    [
        (("tools", "call", "slow:wait"), to_the_program),
        (("tools", "call", "slow:wait", "--json"), to_its_whole_group),
        (("run",), to_the_program),
        (("run",), to_its_whole_group),
    ],
)
def test_ctrl_c_ends_the_script_too(
    project: Path, home: Path, argv: tuple[str, ...], interrupt: Callable[[ForkedProgram], None]
) -> None:
    folder = project / "plugins" / "slow"
    folder.mkdir()
    (folder / "plugin.yaml").write_text(WAITING_PLUGIN, "utf-8")
    assert main(["--home", str(home), "-q", "plugins", "grant", "slow", "network:host"]) == 0
    command = ["-m", "tavern_core", "-q", "--home", str(home), *argv]
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        (folder / "wait.py").write_text(WAITING_SCRIPT.replace("PORT", str(server.getsockname()[1])), "utf-8")
        with ForkedProgram(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True) as running:
            running.stdin.write(BLOCK)
            running.stdin.close()
            script, _ = server.accept()
            with script:
                script.settimeout(60)
                assert script.recv(7) == b"running"
                interrupt(running)
                out, err = running.communicate(timeout=60)
                assert script.recv(1) == b""  # its end of the line was closed: it is gone
    assert (running.returncode, out) == (130, "")
    assert err.endswith("interrupted\n")
    assert "Traceback" not in err


def test_these_tests_pass_where_the_shell_ignores_ctrl_c() -> None:
    """As in the background of a shell, and in some CI systems."""
    ignoring = ["/bin/sh", "-c", "trap '' INT; exec \"$@\"", "sh"]
    tests = [f"{Path(__file__).with_name('test_exit_codes.py')}::test_ctrl_c_ends_a_running_tool_with_130"]
    command = [*ignoring, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    with Program(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as running:
        out, _ = running.communicate(timeout=120)
    assert (running.returncode, "1 passed" in out) == (0, True), out
