"""A script's whole process tree ends with its call: escapes, crashes of the helpers, leaks."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import resource
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tavern_core.box import process_tree
from tavern_core.errors import CallTimeout, ConnectionLost, OutputTooLarge, UpstreamError

from .workbench import (
    Scripts,
    call,
    child_processes,
    failing,
    in_use,
    left_since,
    processes_with,
    until,
)

pytestmark = pytest.mark.slow

ESCAPE = """
import os, subprocess, sys, time
sleeper = ["/bin/sleep", "300." + {marker!r}]  # starts faster than Python

def own_session():
    subprocess.Popen(sleeper, start_new_session=True)

def no_trace():  # nothing of the call in its environment, its descriptors or its ancestry
    subprocess.Popen(["/usr/bin/env", "-i", *sleeper], start_new_session=True, env={{}}, cwd="/",
                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sleeper[0], sleeper)
        os._exit(0)
    os.wait()

def deaf():
    subprocess.Popen(["/bin/sh", "-c", "trap '' TERM HUP INT; exec \\"$@\\"", "sh", *sleeper], start_new_session=True)

def chain(depth=12):
    for _ in range(depth):
        if os.fork():
            time.sleep(300)
        os.setsid()
    os.execv(sleeper[0], sleeper)

def hopper():  # always a new process that nobody has seen yet
    if os.fork() == 0:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if os.fork():
                os._exit(0)

for how in {ways!r}:
    if how == "chain":
        if os.fork() == 0:
            chain()
    else:
        globals()[how]()
time.sleep(0.05)
{end}
"""
IN_BOTH = pytest.mark.parametrize("scripts", ["plain", "boxed"], indirect=True)
OWN_IN_BOTH = pytest.mark.parametrize("own_scripts", ["plain", "boxed"], indirect=True)
WAYS = ["own_session", "no_trace", "daemon", "deaf", "chain"]


@pytest.fixture
def marker() -> Iterator[str]:
    name = f"{uuid.uuid4().int:039}"  # digits: part of a number of seconds, too
    yield name
    for pid in processes_with(name):
        os.kill(pid, signal.SIGKILL)


@IN_BOTH
@pytest.mark.parametrize("way", WAYS)
def test_what_a_script_leaves_behind_ends_with_it(scripts: Scripts, marker: str, way: str) -> None:
    assert scripts.run(ESCAPE.format(marker=marker, ways=[way], end="print(1)")) == 1
    assert processes_with(marker) == []


@IN_BOTH
@pytest.mark.parametrize(
    ("end", "error"),
    [
        ("time.sleep(60)", CallTimeout),
        ("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)", CallTimeout),
        ("while True: sys.stdout.write('x' * 65536)", OutputTooLarge),
        ("os.kill(os.getpid(), 9)", UpstreamError),
        ("sys.exit(1)", UpstreamError),
    ],
)
def test_however_a_script_ends_nothing_of_it_survives(
    scripts: Scripts, marker: str, end: str, error: type[Exception]
) -> None:
    timeout = 1500 if error is CallTimeout else 60_000
    failing(error, scripts.call(ESCAPE.format(marker=marker, ways=WAYS, end=end), timeout=timeout))
    assert processes_with(marker) == []


@IN_BOTH
@pytest.mark.parametrize("end", ["print(1)", "time.sleep(60)"])
def test_a_process_that_always_hands_on_to_a_new_one_is_caught(scripts: Scripts, marker: str, end: str) -> None:
    name = scripts.write(f"{marker}.py", ESCAPE.format(marker=marker, ways=["hopper"] * 3, end=end))
    work = scripts.bind(f"python {name}", timeout=600 if "sleep" in end else 60_000).run({}, call())
    if "sleep" in end:
        failing(CallTimeout, work)
    else:
        assert asyncio.run(work) == 1
    assert processes_with(marker) == []


def test_a_script_that_kills_the_group_of_its_guard_hits_no_other_call(scripts: Scripts) -> None:
    gate = scripts.folder / "gate"
    os.mkfifo(gate)
    other = scripts.bind(scripts.write("t", "#!/bin/sh\nread line < gate\necho $line\n", 0o755))

    async def scenario() -> object:
        waiting = asyncio.ensure_future(other.run({}, None))
        with pytest.raises(ConnectionLost):
            await scripts.call("import os; os.killpg(os.getpgid(os.getppid()), 9)")
        await asyncio.to_thread(gate.write_text, "7\n")
        return await waiting

    assert asyncio.run(scenario()) == 7


@IN_BOTH
def test_cancelling_a_call_ends_its_processes(scripts: Scripts, marker: str) -> None:
    async def cancel() -> None:
        work = asyncio.ensure_future(scripts.call(ESCAPE.format(marker=marker, ways=WAYS, end="time.sleep(60)")))
        await until(lambda: len(processes_with(marker)) >= len(WAYS))
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert processes_with(marker) == []

    asyncio.run(cancel())


@IN_BOTH
def test_cancelling_twice_does_not_wait_and_ends_them_all_the_same(scripts: Scripts, marker: str) -> None:
    body = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"

    async def cancel() -> None:
        end = "time.sleep(60)"
        work = asyncio.ensure_future(scripts.call(body + ESCAPE.format(marker=marker, ways=["deaf"], end=end)))
        await until(lambda: bool(processes_with(marker)))
        work.cancel()
        await asyncio.sleep(0)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        await until(lambda: processes_with(marker) == [])

    asyncio.run(cancel())


@IN_BOTH
def test_an_event_loop_that_ends_in_the_middle_takes_its_scripts_along(scripts: Scripts, marker: str) -> None:
    async def leave() -> None:
        keep.append(asyncio.ensure_future(scripts.call(ESCAPE.format(marker=marker, ways=WAYS, end="time.sleep(60)"))))
        await until(lambda: len(processes_with(marker)) >= len(WAYS))

    keep: list[asyncio.Future[object]] = []
    asyncio.run(leave())
    assert processes_with(marker) == []


@IN_BOTH
def test_a_grandchild_that_holds_the_pipes_open_delays_nothing(scripts: Scripts, marker: str) -> None:
    assert scripts.run(ESCAPE.format(marker=marker, ways=["own_session"], end="print('[1]')")) == [1]


def test_a_script_that_kills_its_guard_loses_its_processes_to_the_keeper(scripts: Scripts, marker: str) -> None:
    end = "os.kill(os.getppid(), 9); time.sleep(60)"

    async def scenario() -> None:
        with pytest.raises(ConnectionLost) as caught:
            await scripts.call(ESCAPE.format(marker=marker, ways=["own_session", "daemon"], end=end))
        assert caught.value.outcome == "unknown"
        await until(lambda: processes_with(marker) == [])

    asyncio.run(scenario())


@OWN_IN_BOTH
def test_a_keeper_that_was_killed_is_replaced(own_scripts: Scripts) -> None:
    before = set(child_processes())
    assert own_scripts.run("print(1)") == 1
    (pid,) = set(child_processes()) - before
    os.kill(pid, signal.SIGKILL)
    assert own_scripts.run("print(2)") == 2
    assert pid not in child_processes()


@OWN_IN_BOTH
def test_a_keeper_without_descriptors_is_an_error_and_recovers(own_scripts: Scripts) -> None:
    before = set(child_processes())
    assert own_scripts.run("print(1)") == 1
    (pid,) = set(child_processes()) - before
    _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (7, most))
    assert failing(ConnectionLost, own_scripts.call("print(2)")).message
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, most))
    assert own_scripts.run("print(3)") == 3


def test_a_host_without_descriptors_says_so_and_recovers(scripts: Scripts) -> None:
    assert scripts.run("print(1)") == 1
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def starved() -> None:
        bound = scripts.bind(f"python {scripts.write('s.py', 'print(2)')}")
        gc.collect()  # nothing is closed later on
        free = (number for number in itertools.count() if not Path(f"/proc/self/fd/{number}").exists())
        resource.setrlimit(resource.RLIMIT_NOFILE, (next(itertools.islice(free, 2, None)), hard))  # two are left
        try:
            await bound.run({}, None)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    error = failing(UpstreamError, starved())
    assert "Too many open files" in error.message
    assert error.retryable
    assert scripts.run("print(3)") == 3


def test_a_host_that_blocks_or_ignores_signals_runs_scripts_all_the_same(own_scripts: Scripts) -> None:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM})
    ignored = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        body = "import signal; print([int(signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL), len(signal.pthread_sigmask(0, []))])"
        assert own_scripts.run(body) == [1, 0]
        own_scripts.close()
    finally:
        signal.signal(signal.SIGCHLD, ignored)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@IN_BOTH
def test_when_the_host_is_killed_its_scripts_end(scripts: Scripts, marker: str) -> None:
    name = scripts.write("s.py", ESCAPE.format(marker=marker, ways=WAYS, end="time.sleep(60)"))
    bound = scripts.bind(f"python {name}")
    pid = os.fork()  # a host of its own, to be killed
    if pid == 0:
        try:
            asyncio.run(bound.run({}, call()))
        finally:
            os._exit(1)
    asyncio.run(until(lambda: len(processes_with(marker)) >= len(WAYS)))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    asyncio.run(until(lambda: processes_with(marker) == []))


@OWN_IN_BOTH
def test_a_forked_host_has_a_keeper_of_its_own(own_scripts: Scripts) -> None:
    assert own_scripts.run("print(1)") == 1
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if own_scripts.run("print(3)") == 3 else 1
            own_scripts.close()
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert own_scripts.run("print(2)") == 2


@pytest.mark.slow
@IN_BOTH
def test_calls_of_every_kind_leak_no_descriptor_and_no_process(scripts: Scripts, marker: str) -> None:
    bodies = [
        "print(1)", "pass", "import sys; sys.exit(3)", "import time; time.sleep(60)", "while True: print('x' * 9999)",
        ESCAPE.format(marker=marker, ways=WAYS, end="print(1)"),
    ]  # fmt: skip

    async def one(body: str) -> None:
        home = scripts.home(output_bytes=10_000)
        await asyncio.gather(scripts.call(body, timeout=400, home=home), return_exceptions=True)

    async def all_of_them(times: int) -> None:
        await asyncio.gather(*(one(body) for body in bodies * times))

    asyncio.run(all_of_them(1))
    before = in_use()
    for _ in range(2):
        asyncio.run(all_of_them(2))
    assert left_since(before) == []


@OWN_IN_BOTH
def test_closing_the_executor_ends_its_keeper(own_scripts: Scripts) -> None:
    before, children = in_use(), child_processes()
    assert own_scripts.run("print(1)") == 1
    assert len(child_processes()) == len(children) + 1
    own_scripts.close()
    assert left_since(before) == []
    assert own_scripts.run("print(2)") == 2


def test_children_are_found_without_the_kernels_list_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pid = os.fork()
    if pid == 0:
        signal.pause()
    try:
        listed = process_tree.children()
        missing = {f"/proc/self/task/{os.getpid()}/children"}
        opened = open

        def without_list(path: str, *rest: str) -> object:
            if path in missing:
                raise FileNotFoundError(path)
            return opened(path, *rest)

        monkeypatch.setattr("builtins.open", without_list)
        assert pid in listed
        assert sorted(process_tree.children()) == sorted(listed)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_the_parent_of_a_process_is_read_past_any_name(tmp_path: Path) -> None:
    assert process_tree.parent_of(os.getpid()) == os.getppid()
    assert process_tree.parent_of(2**22 + 1) == 0


@OWN_IN_BOTH
@pytest.mark.soak
def test_a_thousand_scripts_with_a_hundred_escapes_leave_no_survivor(own_scripts: Scripts, marker: str) -> None:
    plain = own_scripts.bind(f"python {own_scripts.write('plain.py', 'print(1)')}")
    ways = own_scripts.write("ways.py", ESCAPE.format(marker=marker, ways=WAYS, end="print(2)"))
    escaping = own_scripts.bind(f"python {ways}")

    async def all_of_them() -> list[int]:
        chosen = [escaping if n % 10 == 0 else plain for n in range(1000)]
        return await asyncio.gather(*(bound.run({}, call()) for bound in chosen))

    before = in_use()
    answers = asyncio.run(all_of_them())
    assert (answers.count(1), answers.count(2)) == (900, 100)
    assert processes_with(marker) == []
    own_scripts.close()
    assert left_since(before) == []
