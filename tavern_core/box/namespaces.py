"""Layer `namespaces`: an empty network, its own shared memory and queues, no rights of other users."""

from __future__ import annotations

import contextlib
import os
from typing import Final

from tavern_core.box.policy import BoxPolicy
from tavern_core.box.protected_path_splitting import is_in
from tavern_core.box.syscalls import KERNEL, mount, prctl, unshare

USER: Final = 0x10000000
NET: Final = 0x40000000
IPC: Final = 0x08000000
PID: Final = 0x20000000
MOUNT: Final = 0x00020000
_SET_DUMPABLE: Final = 4


def unshare_flags(policy: BoxPolicy) -> int:
    """The flags of what a box does not share with the machine, besides users and processes."""
    return IPC | (0 if policy.may_network else NET)


def apply(flags: int) -> None:
    """Enter new namespaces, with the same user inside and outside.

    A user namespace comes first: it lets an ordinary user create the others, and root loses its rights outside. Root
    does not need it if the kernel has none.

    Args:
        flags: `NET`, `IPC`, `PID`, `MOUNT`; a PID namespace begins with the next child.

    Raises:
        OSError: not on this machine, or not for this user.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        unshare(USER | flags)
    except OSError:
        if user != 0:
            raise
        unshare(flags)
        return
    map_user(user, group)


def map_user(user: int, group: int) -> None:
    """Map the same user into a new user namespace, and no one else. Raises OSError: not available."""
    # The files of an undumpable process belong to root, and a process that changed its user is undumpable.
    prctl(_SET_DUMPABLE, 1)
    write("/proc/self/setgroups", "deny")
    write("/proc/self/uid_map", f"{user} {user} 1")
    write("/proc/self/gid_map", f"{group} {group} 1")


def write(path: str, text: str) -> None:
    """Write a file of /proc in one call. Raises OSError: refused."""
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


# Own places -----------------------------------------------------------------------------------------------------------
# Private places of a program in namespaces, instead of the machine's: /proc, and memory shared by name.

_PRIVATE: Final = 0x4000 | 0x40000  # MS_REC, MS_PRIVATE
_QUIET: Final = 0x2 | 0x4 | 0x8  # MS_NOSUID, MS_NODEV, MS_NOEXEC
_RESERVED_NUMBERS: Final = 300
"""Lower process ids are used only once; `pid_max` cannot be lower."""
_MEMORY: Final = 2_147_483_648
_SHARED: Final = "/dev/shm"
_SHARED_PART: Final = 8
"""The fraction of one process's memory that all may share: 1 in this number."""
_SHARED_FILES: Final = 1024


def own_places(policy: BoxPolicy) -> tuple[str, ...]:
    """Mount the private places of a box: a /proc that shows only its namespace, and an empty place for memory that its
    processes share by name. Also limits its process ids.

    The limit is for root, to which RLIMIT_NPROC does not apply; each namespace has its own since Linux 6.14, before that, it was
    global and must not be changed.

    Returns:
        The mounted ones; a container may forbid this, and then they stay closed.
    """
    try:
        mount("none", "/", "", _PRIVATE)
        mount("proc", "/proc", "proc", _QUIET)
        if policy.limits.processes is not None and KERNEL >= (6, 14):
            bound = _RESERVED_NUMBERS + max(1, policy.limits.processes)
            with contextlib.suppress(OSError):
                write("/proc/sys/kernel/pid_max", str(bound))
        mount("proc", "/proc", "proc", _QUIET, "subset=pid")
    except OSError:
        return ()
    if _may_reach(policy, _SHARED):
        return ("/proc",)
    try:
        most = (policy.limits.memory_bytes or _MEMORY) // _SHARED_PART
        mount("shm", _SHARED, "tmpfs", _QUIET, f"size={most},nr_inodes={_SHARED_FILES},mode=700")
    except OSError:  # there is no such folder
        return ("/proc",)
    return "/proc", _SHARED


def _may_reach(policy: BoxPolicy, folder: str) -> bool:
    """Whether the box may write to the machine's own `folder`, or access something in it."""
    given, written = policy.granted, (*policy.write, *policy.granted.write)
    inside = any(is_in(path, folder) for path in (*policy.read, *given.read, *written))
    return inside or any(is_in(folder, path) for path in written)
