"""Layer `namespaces`: an empty network, its own shared memory and queues, no rights of other users."""

from __future__ import annotations

import os
from typing import Final

from tavern_core.box.syscalls import prctl, unshare

USER: Final = 0x10000000
NET: Final = 0x40000000
IPC: Final = 0x08000000
PID: Final = 0x20000000
MOUNT: Final = 0x00020000
_SET_DUMPABLE: Final = 4


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
