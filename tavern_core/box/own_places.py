"""Private places of a program in namespaces, instead of the machine's: /proc, and memory shared by name."""

from __future__ import annotations

import contextlib
from typing import Final

from tavern_core.box import namespaces
from tavern_core.box.policy import BoxPolicy
from tavern_core.box.protected_paths import is_in
from tavern_core.box.syscalls import KERNEL, mount

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
                namespaces.write("/proc/sys/kernel/pid_max", str(bound))
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
