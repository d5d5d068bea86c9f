"""Programs of upstreams: started in the sandbox or outside of it, spoken to, and ended with everything they started."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tavern_core.errors import CallError, ConnectionLost, OutputTooLarge, UpstreamError
from tavern_core.isolation.plugin_sandboxes import PluginSandbox, Sandboxes
from tavern_core.isolation.work_folders import WorkFolders
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.model.call import Rights
from tavern_core.model.config import IsolationConfig
from tavern_core.upstreams.process import ProcessEnvironment, RunningProcess, start_process
from tests.executors.workbench import open_descriptors, processes_with
from tests.isolation.waiting import until

pytestmark = pytest.mark.slow
ECHO = "import sys\nfor line in sys.stdin: sys.stdout.write(line); sys.stdout.flush()"
Use = Callable[[RunningProcess], Awaitable[Any]]


@pytest.fixture(params=[False, True], ids=["sandbox", "trusted"])
def trusted(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def marker(tmp_path: Path) -> str:
    """By which a program of a test is found; no path, because a path on the command line may be read."""
    return f"upstream-of-{tmp_path.name}"


def run(tmp_path: Path, code: str, use: Use, trusted: bool = False, **environment: str) -> Any:
    """Start a Python program, use it, close it; nothing of it is left."""
    state = tmp_path / "state"
    boxes = Sandboxes(IsolationConfig(), state, (), Diagnostics(), WorkFolders(state / "work"))
    sandbox = PluginSandbox(boxes, "one", "required", state / "data", True)
    before = open_descriptors()

    async def main() -> Any:
        home = ProcessEnvironment(str(tmp_path), environment, ("topsecret",))
        process = await start_process(
            [sys.executable, "-c", code, marker(tmp_path)], home, sandbox, Rights(), trusted=trusted
        )
        try:
            return await use(process)
        finally:
            await process.close(0.5)

    try:
        return asyncio.run(main())
    finally:
        boxes.release()
        assert processes_with(marker(tmp_path)) == []
        assert open_descriptors() <= before
        assert not any((state / "work").glob("*/*"))


async def lines(process: RunningProcess, count: int, most: int = 1_000_000) -> list[bytes]:
    """The first lines that it writes."""
    found: list[bytes] = []
    async for line in process.lines(most):
        found.append(line)
        if len(found) == count:
            break
    return found


def test_lines_go_in_and_come_out(trusted: bool, tmp_path: Path) -> None:
    async def use(process: RunningProcess) -> list[bytes]:
        await process.write(b"one\ntwo\nthr")
        await process.write(b"ee\n")
        return await lines(process, 3)

    assert run(tmp_path, ECHO, use, trusted) == [b"one", b"two", b"three"]


@pytest.mark.slow
def test_more_than_a_pipe_holds_goes_both_ways(tmp_path: Path) -> None:
    async def use(process: RunningProcess) -> list[bytes]:
        writing = asyncio.create_task(process.write(b"x" * 2_000_000 + b"\n"))
        found = await lines(process, 1, 3_000_000)
        await writing
        return found

    assert run(tmp_path, ECHO, use) == [b"x" * 2_000_000]


ENDS: dict[str, tuple[str, type[CallError], str]] = {
    "by itself": ("import sys; sys.exit('no disk, topsecret')", ConnectionLost, "ended with code 1: no disk, ***"),
    "by a signal": ("import os; os.kill(os.getpid(), 9)", ConnectionLost, "ended by SIGKILL"),
    "a line without end": (
        "while True: print('x' * 4096, end='')",
        OutputTooLarge,
        "a line of more than 1,000,000 bytes",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ENDS)
def test_an_end_is_reported_with_its_reason(case: str, trusted: bool, tmp_path: Path) -> None:
    code, kind, message = ENDS[case]

    async def use(process: RunningProcess) -> None:
        with pytest.raises(kind) as error:
            await lines(process, 1)
        assert message in error.value.message

    run(tmp_path, code, use, trusted)


def test_writing_to_what_has_ended_is_a_lost_connection(tmp_path: Path) -> None:
    async def use(process: RunningProcess) -> None:
        with pytest.raises(ConnectionLost, match="ended with code 7"):
            while True:
                await process.write(b"x" * 65_536)

    run(tmp_path, "import os; os._exit(7)", use)


@pytest.mark.slow
def test_closing_wakes_whoever_waits_for_it(trusted: bool, tmp_path: Path) -> None:
    async def use(process: RunningProcess) -> None:
        reading = asyncio.create_task(lines(process, 1))
        writing = asyncio.create_task(process.write(b"x" * 10_000_000))
        await asyncio.sleep(0)
        await process.close(0.1)
        for task in (reading, writing):
            with pytest.raises(ConnectionLost):
                await task

    run(tmp_path, "import time; time.sleep(600)", use, trusted)


FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(3):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]], start_new_session=True)
print("begun", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_what_it_started_ends_with_it_even_in_sessions_of_its_own(tmp_path: Path) -> None:
    async def use(process: RunningProcess) -> None:
        assert await lines(process, 1) == [b"begun"]
        await asyncio.to_thread(until, lambda: len(processes_with(marker(tmp_path))) >= 4)

    run(tmp_path, FAMILY, use, trusted=True)


def test_a_killed_program_is_noticed(trusted: bool, tmp_path: Path) -> None:
    async def use(process: RunningProcess) -> None:
        await process.write(b"hello\n")
        await lines(process, 1)
        for pid in processes_with(marker(tmp_path)):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(ConnectionLost):
            await lines(process, 1)

    run(tmp_path, ECHO, use, trusted)


SHOW = "import json, os; print(json.dumps(dict(os.environ)), flush=True); input()"


def test_it_sees_the_variables_of_the_entry_and_none_that_load_code(
    trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_TOKEN", "x")

    async def use(process: RunningProcess) -> Any:
        return eval((await lines(process, 1))[0])

    seen = run(tmp_path, SHOW, use, trusted, MODE="fast", LD_PRELOAD="/tmp/x.so", PYTHONPATH="/tmp")
    assert seen["MODE"] == "fast"
    assert not {"HOST_TOKEN", "LD_PRELOAD", "PYTHONPATH"} & seen.keys()
    assert (seen["HOME"] == os.environ.get("HOME")) == trusted


def test_the_sandbox_holds_it(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("x")
    code = "import socket, sys\ntry: open('secret.txt')\nexcept OSError as e: print(type(e).__name__, flush=True)\n" \
           "try: socket.create_connection(('127.0.0.1', 9))\nexcept OSError as e: print('no network', flush=True)\ninput()"  # fmt: skip

    async def use(process: RunningProcess) -> list[bytes]:
        return await lines(process, 2)

    assert run(tmp_path, code, use) == [b"PermissionError", b"no network"]


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        boxes = Sandboxes(IsolationConfig(), tmp_path, (), Diagnostics(), WorkFolders(tmp_path / "work"))
        sandbox = PluginSandbox(boxes, "one", "required", tmp_path / "data", True)
        (tmp_path / "text").touch(mode=0o644)
        for word, message in (
            ("no-such-program", "is not an installed program"),
            ("./服务器.py", "there is no file './服务器.py'"),
            ("./text", "the file './text' may not be executed"),
        ):
            with pytest.raises(UpstreamError, match=message):
                await start_process([word], ProcessEnvironment(str(tmp_path), {}), sandbox, Rights())
        boxes.release()

    asyncio.run(main())
