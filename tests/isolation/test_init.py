"""A process that is forked into namespaces of its own and starts a program there as number 1, as root and as anybody."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tavern_core.box import launcher
from tavern_core.box.policy import NAMESPACES, PROCESSES, BoxLimits, BoxPolicy
from tests.forked_programs import run_forked
from tests.rows import each_row

from ..executors.workbench import processes_with
from .test_program import SHELL, marker, user

__all__ = ["marker", "user"]
pytestmark = pytest.mark.slow

STAGE = """
import json, os, sys
from tavern_core.box import launcher
from tavern_core.box.policy import BoxPolicy, BoxUnavailable

uid, policy, argv = int(sys.argv[1]), BoxPolicy.from_json(sys.argv[2]), sys.argv[3:]
if uid != os.geteuid():
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
who = os.geteuid(), os.getegid()
if (pid := launcher.fork_init(policy)) != 0:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
try:
    started = launcher.start_as_init(policy, launcher.Program(argv, {"PATH": "/usr/bin:/bin"}, "/"), who)
    status = os.waitpid(started.pid, 0)[1]
    told = {"code": os.waitstatus_to_exitcode(status), "me": os.getpid(), "skipped": list(started.ending(status).skipped)}
except BoxUnavailable as error:
    told = {"missing": error.layer}
except OSError as error:
    told = {"errno": error.errno}
os.write(2, json.dumps(told).encode())
os._exit(0)
"""
SHM = replace(SHELL, limits=BoxLimits(memory_bytes=1 << 30))


def ended(user: int, policy: BoxPolicy, *argv: str) -> tuple[str, Any]:
    done = run_forked(["-c", STAGE, user, policy.to_json(), *argv])
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(done.stderr.splitlines()[-1])


def shell(user: int, policy: BoxPolicy, script: str) -> tuple[str, Any]:
    return ended(user, policy, "/bin/sh", "-c", script)


def test_it_runs_as_itself_among_its_own_processes_only(user: int) -> None:
    out, how = shell(user, SHELL, "echo $$ $PPID $(id -u) $(id -g) $(cd /proc; ls -d [0-9]* | head -1); exit 3")
    assert out.split() == ["2", "1", str(user), str(user), "1"]
    assert how == {"code": 3, "me": 1, "skipped": []}


def test_what_it_leaves_behind_ends_with_the_first_process(user: int, marker: str) -> None:
    out, _ = shell(
        user, SHELL, f"for n in 1 2 3; do setsid sh -c 'trap : TERM HUP; sleep 300; : {marker}' & done; echo done"
    )
    assert out == "done\n"
    assert processes_with(marker) == []


CONFINED = (
    "cat /etc/passwd", "echo x > /tmp/left", "mount -t tmpfs none /mnt", "cat /proc/1/environ", "cat /proc/1/mem", "kill -KILL 1; kill -0 1 && exit 1",
    "unshare -U true", "cat /proc/sys/kernel/hostname",
)  # fmt: skip


def test_it_is_confined_with_the_process_that_started_it(user: int) -> None:
    each = "".join(f"({script}); echo {number} $?\n" for number, script in enumerate(CONFINED))
    out, how = shell(user, SHELL, f"{each}exit 3")
    done = [line.split() for line in out.splitlines()]
    assert [script for script, (_, code) in zip(CONFINED, done, strict=True) if code == "0"] == []
    assert how["code"] == 3


def test_its_shared_memory_is_empty_bounded_and_its_own(user: int) -> None:
    out, how = shell(
        user, SHM, "ls -A /dev/shm; echo own > /dev/shm/x && cat /dev/shm/x; head -c 200000000 /dev/zero > /dev/shm/y"
    )
    assert out == "own\n"
    assert how["code"] != 0
    assert not Path("/dev/shm/x").exists()


@pytest.mark.parametrize("write", ["/", "/dev/shm"])
def test_a_plugin_with_a_grant_for_shared_memory_has_it(user: int, write: str, marker: str) -> None:
    place = Path("/dev/shm", marker)
    place.write_text("theirs")
    try:
        out, _ = shell(user, replace(SHELL, read=(*SHELL.read, "/dev/shm"), write=(write,)), f"cat {place}")
    finally:
        place.unlink()
    assert out == "theirs"


def test_an_invalid_program_is_reported(user: int) -> None:
    assert ended(user, SHELL, "/usr/bin/there-is-none")[1] == {"errno": 2}
    assert ended(user, replace(SHELL, may_execute=False, may_fork=True), "/bin/sh", "-c", ":")[1] == {"errno": 13}


@pytest.mark.parametrize("layer", ["limits", "privileges", "landlock", "seccomp"])
def test_a_missing_layer_stops_it_or_is_reported(user: int, layer: str) -> None:
    without = replace(SHELL, without=(layer,))
    assert shell(user, without, "echo x") == ("", {"missing": layer})
    out, how = shell(user, replace(without, level="best-effort"), "echo x")
    assert (out, how["skipped"]) == ("x\n", [layer])


@each_row(
    "policy",
    [
        replace(SHELL, level="none"), replace(SHELL, without=(NAMESPACES,)), replace(SHELL, without=(PROCESSES,)),
        replace(SHELL, left_out=(NAMESPACES,)), replace(SHELL, may_execute=False),
    ],
    ids=["no box", "no namespaces", "no PID namespace", "left out", "a program that starts nothing"],
)  # fmt: skip
def test_nothing_is_forked_where_it_would_not_do(policy: BoxPolicy) -> None:
    before = os.getpid()
    with pytest.raises(OSError, match="with all namespaces"):
        launcher.fork_init(policy)
    assert os.getpid() == before
