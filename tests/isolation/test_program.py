"""A program in its box: its own process tree, which ends as a whole, for root and for anybody."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from tavern_core.box import runtime_paths
from tavern_core.box.policy import LAYERS, BoxLimits, BoxPolicy
from tavern_core.box.syscalls import KERNEL
from tests.forked_programs import ForkedProgram, run_forked

from ..executors.workbench import processes_with
from .test_box import USERS

STAGE = """
import json, os, signal, sys
from tavern_core.box import egress_proxy_socket, launcher, syscalls
from tavern_core.box.policy import BoxPolicy, BoxUnavailable

uid, policy, argv = int(sys.argv[1]), BoxPolicy.from_json(sys.argv[2]), sys.argv[3:]
if uid != os.geteuid():
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
try:
    started = launcher.start(policy, launcher.Program(argv, {"PATH": "/usr/bin:/bin"}, "/"))
except BoxUnavailable as error:
    sys.stderr.write(json.dumps({"missing": [error.layer, error.reason]}))
    sys.exit(0)
signal.signal(signal.SIGTERM, lambda *_: os.kill(started.pid, signal.SIGTERM))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
ending = started.ending(os.waitpid(started.pid, 0)[1])
missing = ending.missing and list(ending.missing)
sys.stderr.write(json.dumps({"status": ending.status, "errno": ending.errno, "missing": missing, "skipped": list(ending.skipped)}))
"""
SHELL = BoxPolicy((*runtime_paths.machine(), *runtime_paths.PROGRAMS), may_execute=True)


@pytest.fixture(params=USERS, ids=lambda uid: "as root" if uid == 0 else "as anybody")
def user(request: pytest.FixtureRequest) -> int:
    uid: int = request.param
    return uid


@pytest.fixture
def marker() -> Iterator[str]:
    name = f"mark-{uuid.uuid4().hex}"
    yield name
    for pid in processes_with(name):
        os.kill(pid, signal.SIGKILL)


def stage(user: int, policy: BoxPolicy, *argv: str) -> ForkedProgram:
    return ForkedProgram(["-c", STAGE, user, policy.to_json(), *argv], stdout=PIPE, stderr=PIPE)


def ended(user: int, policy: BoxPolicy, *argv: str) -> tuple[str, Any]:
    with stage(user, policy, *argv) as running:
        out, err = running.communicate(timeout=60)
    return out, json.loads(err.splitlines()[-1])


def test_a_program_runs_as_itself_among_its_own_processes_only(user: int) -> None:
    out, how = ended(user, SHELL, "/bin/sh", "-c", "echo $$ $(id -u) /proc/[0-9]*; exit 3")
    assert out.split()[:2] == ["2", str(user)]
    assert 2 <= len(out.split()[2:]) <= 4
    assert (os.waitstatus_to_exitcode(how["status"]), how["skipped"]) == (3, [])


@pytest.mark.slow
def test_what_it_leaves_behind_ends_with_it(user: int, marker: str) -> None:
    script = f"for n in 1 2 3; do setsid sh -c 'trap : TERM HUP; sleep 300; : {marker}' & done; sleep 0.1; echo done"
    out, _ = ended(user, SHELL, "/bin/sh", "-c", script)
    assert out == "done\n"
    assert processes_with(marker) == []


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_the_process_that_started_it(user: int, marker: str, end: signal.Signals) -> None:
    script = f"setsid sh -c 'trap : TERM; echo up; sleep 300; : {marker}' & sleep 300; : {marker}"
    with stage(user, SHELL, "/bin/sh", "-c", script) as running:
        assert running.stdout.readline() == "up\n"
        running.send_signal(end)
        assert running.stdout.read() == ""  # nobody holds it open any more: all of them are gone
    assert processes_with(marker) == []


def test_a_signal_is_handed_on(user: int) -> None:
    with stage(
        user, SHELL, "/bin/sh", "-c", "trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.01; done"
    ) as running:
        assert running.stdout.readline() == "up\n"
        running.send_signal(signal.SIGTERM)
        assert running.stdout.read() == "bye\n"


@pytest.mark.slow
def test_an_invalid_program_is_reported(user: int) -> None:
    _, missing = ended(user, SHELL, "/usr/bin/there-is-none")
    _, forbidden = ended(user, replace(SHELL, may_execute=False), "/bin/sh", "-c", ":")
    assert (missing["errno"], forbidden["errno"]) == (2, 13)


@pytest.mark.parametrize("user", [uid for uid in USERS if uid != 0 or KERNEL >= (6, 14)])
def test_processes_are_bounded(user: int) -> None:
    """A fork bomb runs into a wall; root, too, where the kernel has one for it (Linux 6.14)."""
    bomb = "n=0; while [ $n -lt 3000 ]; do sleep 20 & n=$((n+1)); done; echo all of them"
    limits = BoxLimits(processes=50)
    out, how = ended(user, replace(SHELL, limits=limits), "/bin/sh", "-c", bomb)
    assert out == ""
    assert os.waitstatus_to_exitcode(how["status"]) != 0


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_is_missed_by_name_and_done_without_where_that_is_allowed(user: int, layer: str) -> None:
    out, refused = ended(user, replace(SHELL, without=(layer,)), "/bin/sh", "-c", "echo ran")
    assert (out, refused["missing"]) == ("", [layer, "it is switched off (isolation.without)"])
    out, weak = ended(user, replace(SHELL, without=(layer,), level="best-effort"), "/bin/sh", "-c", "echo ran")
    assert (out, weak["skipped"]) == ("ran\n", [layer])


GATEWAY_STAGE = STAGE.replace(
    "signal.signal(signal.SIGTERM, lambda",
    """
gateway = started.gateway.socket
gateway.setblocking(True)
line, _ = gateway.accept()
line.sendall(line.recv(100).upper())
line.close()
signal.signal(signal.SIGTERM, lambda""",
)


def test_the_gateway_of_a_box_is_served_from_outside_and_nothing_else_is_there(user: int) -> None:
    script = (
        "exec 3<>/dev/tcp/127.0.0.1/3128; echo hello >&3; read said <&3; echo $said $HTTPS_PROXY; "
        "(: </dev/tcp/127.0.0.1/1) 2>/dev/null || echo nobody; (: </dev/udp/127.0.0.1/1) 2>/dev/null || echo no datagrams"
    )
    shell = "/bin/bash" if Path("/bin/bash").exists() else "/usr/bin/bash"
    if not Path(shell).exists():
        return
    done = run_forked(["-c", GATEWAY_STAGE, user, replace(SHELL, has_gateway=True).to_json(), shell, "-c", script])
    assert done.stdout.split("\n")[:3] == ["HELLO http://127.0.0.1:3128", "nobody", "no datagrams"], done
    assert json.loads(done.stderr.splitlines()[-1])["status"] == 0


def test_without_namespaces_a_gateway_has_a_password(user: int) -> None:
    policy = replace(SHELL, has_gateway=True, level="best-effort", without=("namespaces", "pid-namespace"))
    stage = GATEWAY_STAGE.replace("line, _ = gateway.accept()\nline.sendall(line.recv(100).upper())\nline.close()", "")
    done = run_forked(["-c", stage, user, policy.to_json(), "/bin/sh", "-c", "echo $http_proxy"])
    who, _, place = done.stdout.strip().partition("@")
    assert who.startswith("http://tavern:") and len(who) > 40, done
    assert place.startswith("127.0.0.1:") and not place.endswith(":3128")
