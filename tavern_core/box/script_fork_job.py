"""The fork server's job for programs: scripts of tools, and code.

    fork server ──fork──> guard ──exec──> script ──> its processes
                            │
    host <──────────────────┘ "taken", "started", "ended <status> <why>"

Each script has a guard that is a child subreaper (`process_tree.py`). If a guard is killed, the fork server inherits its children and
kills them. The guard watches its status socket to the host: "stop" ends the script politely, "kill" or the end of
the host kills it. It also watches the time, so that a host whose event loop is stuck cannot prolong a script's life.

A guard puts its script into the box that the request describes. If the system has PID namespaces, the guard is process 1 of
one: it can kill all of its processes at once, and the kernel kills them when the guard ends.

Imports the standard library and the box, and never reads the output of a script.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, NoReturn

from tavern_core.box import launcher
from tavern_core.box.descriptor_passing import LONGEST_WAIT_S, PAUSE_S, was_sent
from tavern_core.box.policy import BoxPolicy, BoxUnavailable
from tavern_core.box.process_tree import become_subreaper, end_all, look_for, wait_for, wake_on_children

GRACE_S = 0.1
"""Between SIGTERM and SIGKILL. Less than the host waits for cancelled work (0.25 s)."""


class ScriptForkJob:
    """Descriptors of a request: status, stdin, stdout, stderr."""

    modules = ()
    descriptors = 4
    idle_s = None
    ends_children = False  # each call ends its own script
    reports = False  # a guard reports itself

    def __init__(self) -> None:
        # A script's memory holds secrets. Not 0: a core handler with a pipe runs for 0, but not for 1.
        if resource.getrlimit(resource.RLIMIT_CORE)[1] != 0:
            resource.setrlimit(resource.RLIMIT_CORE, (1, 1))

    def fork(self, request: bytes, descriptors: list[int], shed: Callable[[], None]) -> int:
        """Fork a guard. See `fork_server.ForkJob`."""
        words, _, rules = request.partition(b"\n")
        asked = json.loads(words)
        asked["policy"] = _warmed_up(rules.decode()) if rules else None
        user = os.geteuid(), os.getegid()
        pid, is_init = _fork_guard(asked["policy"])
        if pid == 0:
            shed()
            guard_script(asked, descriptors, user if is_init else None)
        return pid

    def forked(self) -> None:
        """Nothing to do."""


def _fork_guard(policy: BoxPolicy | None) -> tuple[int, bool]:
    """(process id, 0 in the guard; whether the guard is process 1 of its own namespaces).

    Raises:
        OSError: no process can be created.
    """
    if policy is not None:
        with contextlib.suppress(OSError):  # the guard detects what is missing
            return launcher.fork_init(policy), True
    return os.fork(), False


def _warmed_up(rules: str) -> BoxPolicy:
    """Compute once what the forked guards need. Returns the policy."""
    policy = BoxPolicy.from_json(rules)
    launcher.warm(policy)
    gc.freeze()  # so that reference counting does not copy it
    return policy


def guard_script(request: dict[str, Any], descriptors: list[int], init: tuple[int, int] | None) -> NoReturn:
    """Start one script, wait for its end or for a reason to end it, kill the rest, report.

    Args:
        init: this is process 1 of its own namespaces, with this user and group outside; None: it is not.
    """
    status = socket.socket(fileno=descriptors[0])
    os.setsid()  # a script that kills its guard's process group affects no other call
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a script may send it to process 1 of its namespace
    become_subreaper()
    wake = wake_on_children()
    try:
        os.chdir(request["cwd"])
        started = start(request, descriptors, status, init)
        served = ServedDescriptors(started, status)
    except OSError as error:
        say(status, f"failed {error.errno or 0}")
        os._exit(0)
    for descriptor in descriptors[1:]:
        os.close(descriptor)
    say(status, f"started {started.pid}")
    code, why = watch(started.pid, status, wake, request["seconds"], served)
    if why in ("stop", "time"):
        code = end_politely(started.pid, status, wake)
    code, survivors = end_all(started.pid, code, wake, is_init=init is not None)
    code = report_box(started.ending(code), status)
    say(status, f"ended {code} {why or 'exit'} {survivors}")
    os._exit(0)


def start(
    request: dict[str, Any], descriptors: list[int], status: socket.socket, init: tuple[int, int] | None
) -> launcher.StartedProgram:
    """Run the script with only three descriptors, in its box if it has one. Ends this process if a required layer is missing."""
    streams = descriptors[1], descriptors[2], descriptors[3]
    what = launcher.Program(request["argv"], request["env"], request["cwd"], streams)
    if request["policy"] is None:
        return launcher.StartedProgram(launcher.spawn(what))
    try:
        if init is not None:
            started = launcher.start_as_init(request["policy"], what, init)
        else:
            started = launcher.start(request["policy"], what)
    except BoxUnavailable as error:
        say(status, f"boxless {error.layer} {error.reason}")
        os._exit(0)
    return started


class ServedDescriptors:
    """The descriptors that the host serves for a script: the gateway, and the requests for writes.

    Each is closed here as soon as the host has it or cannot get it; without it, there is no connection, or no write.
    """

    def __init__(self, started: launcher.StartedProgram, status: socket.socket) -> None:
        self._status = status
        self._give_up = time.monotonic() + LONGEST_WAIT_S
        self._left: list[tuple[bytes, int]] = []
        if (gateway := started.gateway) is not None:
            self._left.append((f"gateway {gateway.token}".encode(), gateway.socket.detach()))
        if started.asking >= 0:
            self._left.append((b"asking", started.asking))

    def pass_on(self) -> bool:
        """Pass on what can be passed on now; True if it must be tried again."""
        while self._left:
            message, descriptor = self._left[0]
            with contextlib.suppress(OSError):
                if not was_sent(self._status, message, [descriptor]) and time.monotonic() < self._give_up:
                    return True
            os.close(descriptor)
            del self._left[0]
        return False


def report_box(ending: launcher.ProgramExit, status: socket.socket) -> int:
    """Report why the script did not run, which ends this process, or the layers that it ran without. Returns its wait status."""
    if ending.missing is not None:
        say(status, f"boxless {ending.missing[0]} {ending.missing[1]}")
        os._exit(0)
    if ending.errno:
        say(status, f"failed {ending.errno}")
        os._exit(0)
    if ending.skipped:
        say(status, f"weak {json.dumps(dict(ending.skipped))}")
    return ending.status


def watch(
    script: int, status: socket.socket, wake: int, seconds: float, served: ServedDescriptors | None = None
) -> tuple[int | None, str]:
    """Wait for the script's end, a message of the host, or the deadline; meanwhile pass on what the host serves.

    Returns:
        (the wait status or None while it runs, why it must end: ``""``, ``stop``, ``time`` or ``kill``).
    """
    deadline = time.monotonic() + seconds
    while True:
        remaining = max(0.0, deadline - time.monotonic())
        if served is not None:
            if served.pass_on():
                remaining = min(remaining, PAUSE_S)
            else:
                served = None
        readable = wait_for([status, wake], remaining)
        if (code := look_for(script, wake)) is not None:
            return code, ""
        if status in readable:
            return None, "stop" if receive_message(status) == b"stop" else "kill"
        if time.monotonic() >= deadline:  # whatever was readable: many ending children must not delay the deadline
            return None, "time"


def end_politely(script: int, status: socket.socket, wake: int) -> int | None:
    """SIGTERM to the script's own group and a moment to clean up. Returns its wait status if it ended."""
    with contextlib.suppress(OSError):
        os.killpg(script, signal.SIGTERM)
    return watch(script, status, wake, GRACE_S)[0]


def receive_message(status: socket.socket) -> bytes:
    """A message from the host; empty if the host is gone."""
    try:
        return status.recv(16)
    except OSError:
        return b""


def say(status: socket.socket, text: str) -> None:
    with contextlib.suppress(OSError):  # the host is gone; continue killing
        status.send(text.encode())
