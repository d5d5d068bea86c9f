"""Ending a whole process tree: how a process ends all of its descendants.

Why not kill the process group? A grandchild that called `setsid` has left our group, and once its parent has ended
nothing connects it to the call. A *child subreaper* becomes the parent of all orphaned descendants; it
kills its children until it has none, and no descendant can escape, not even as root.

No thread: its users fork.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import Any

from tavern_core.box.syscalls import prctl

GIVE_UP_S = 5.0
"""After this long with children that cannot be killed (stuck in the kernel, or of another user) they are reported."""
_EVERYBODY = -1
_REAPED_AT_ONCE = 1000
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """From now on, orphaned descendants become our children. Not inherited by forked processes."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """End with the process `parent`, which forked this one; immediately if it has already ended."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def wake_on_children() -> int:
    """A descriptor that becomes readable whenever a child ends."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader


def wait_for(sources: list[Any], seconds: float | None = None) -> list[Any]:
    """The readable ones of `sources`, as soon as one is readable or the time is over."""
    return select.select(sources, [], [], seconds)[0]


def drain(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass


def next_ended() -> tuple[int, int] | None:
    """(process, wait status) of a child that ended; None if there is none at the moment."""
    try:
        pid, code = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, code) if pid else None


def look_for(script: int, wake: int) -> int | None:
    """Reap everything that ended; the wait status of the script if it was among them."""
    drain(wake)
    found = None
    for _ in range(_REAPED_AT_ONCE):
        if (ended := next_ended()) is None:
            break
        if ended[0] == script:
            found = ended[1]
    return found


def children() -> list[int]:
    """The ids of our direct children, zombies included."""
    me = os.getpid()
    try:
        with open(f"/proc/self/task/{me}/children", "rb") as listing:  # noqa: PTH123 - pathlib costs a warm start 3 ms
            return [int(word) for word in listing.read().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent_of(pid) == me]  # noqa: PTH208


def parent_of(pid: int) -> int:
    """The parent of a process; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123
            return int(stat.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def kill(pid: int) -> None:
    with contextlib.suppress(OSError):  # already gone, or of another user: `end_all` counts the rest
        os.kill(pid, signal.SIGKILL)


def end_all(script: int, code: int | None, wake: int, *, is_init: bool) -> tuple[int, int]:
    """Kill all children. Returns (the script's wait status, how many could not be killed).

    Args:
        is_init: this is process 1: one call kills all others of its namespace, and none can escape by forking.
    """
    deadline = time.monotonic() + GIVE_UP_S
    while is_init:
        kill(_EVERYBODY)
        try:
            while (one := os.waitpid(-1, os.WNOHANG))[0]:
                code = one[1] if one[0] == script else code
        except ChildProcessError:
            return code if code is not None else -1, 0
        if time.monotonic() > deadline:
            return code if code is not None else -1, 1
        drain(wake)
        wait_for([wake], 0.05)
    while True:
        # Only direct children are killed: their ids cannot be reused before we reap them, and when they are dead their
        # own children become ours. So the loop reaches every depth and never kills an unrelated process.
        for child in children():
            kill(child)
        if (ended := look_for(script, wake)) is not None:
            code = ended
        remaining = children()
        if not remaining or time.monotonic() > deadline:
            return code if code is not None else -1, len(remaining)
        wait_for([wake], 0.05)
