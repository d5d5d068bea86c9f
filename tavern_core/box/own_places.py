"""What a program in namespaces has for itself instead of the machine's: processes to look at, and memory shared by name."""

from __future__ import annotations

import contextlib
from typing import Final

from tavern_core.box import namespaces
from tavern_core.box.holes import is_in
from tavern_core.box.policy import BoxPolicy
from tavern_core.box.syscalls import KERNEL, mount

_PRIVATE: Final = 0x4000 | 0x40000  # MS_REC, MS_PRIVATE
_QUIET: Final = 0x2 | 0x4 | 0x8  # MS_NOSUID, MS_NODEV, MS_NOEXEC
_RESERVED_NUMBERS: Final = 300
"""Process numbers below are given only once; `pid_max` cannot be lower."""
_MEMORY: Final = 2_147_483_648
_SHARED: Final = "/dev/shm"
_SHARED_PART: Final = 8
"""Of the memory that one process may use, what all may share: one part in so many."""
_SHARED_FILES: Final = 1024


def own_places(policy: BoxPolicy) -> tuple[str, ...]:
    """Mount what a box has for itself: a /proc that shows its namespace and nothing else, and an empty place for memory that its
    processes share by name. Bounds the numbers of its processes, too.

    The bound is for root, which RLIMIT_NPROC does not hold; each namespace has its own since Linux 6.14, before that it was
    the whole machine's and must not be touched.

    Returns:
        Those that were to be had; a container may forbid all this, and then they stay closed.
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
    except OSError:  # there is no such folder, and nobody misses it
        return ("/proc",)
    return "/proc", _SHARED


def _may_reach(policy: BoxPolicy, folder: str) -> bool:
    """Whether the machine's own `folder` is given to write to, or something in it at all."""
    given, written = policy.granted, (*policy.write, *policy.granted.write)
    inside = any(is_in(path, folder) for path in (*policy.read, *given.read, *written))
    return inside or any(is_in(folder, path) for path in written)
