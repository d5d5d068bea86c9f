"""Layer `privileges`: no capabilities, no way to gain one, and no memory access for other processes."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

from tavern_core.box.syscalls import MACHINE, prctl, prctl_each, syscall

_CAPSET: Final = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION: Final = 0x20080522
_SET_DUMPABLE, _CAPBSET_DROP, _SET_NO_NEW_PRIVS, _CAP_AMBIENT, _CLEAR_ALL = 4, 24, 38, 47, 4
_CAPABILITIES: Final = tuple(range(64))


def apply() -> None:
    """Give up every capability and become undumpable. A program that it executes later is dumpable again, but has no capabilities.

    Raises:
        OSError: the kernel refused.
    """
    prctl(_SET_NO_NEW_PRIVS, 1)
    # The loop ends after the last one with EINVAL; or with EPERM if there is nothing to drop.
    if (refused := prctl_each(_CAPBSET_DROP, _CAPABILITIES)) not in (0, errno.EINVAL, errno.EPERM):
        raise OSError(refused, os.strerror(refused))
    prctl(_CAP_AMBIENT, _CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    syscall(_number(), ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))
    prctl(_SET_DUMPABLE, 0)


def let_read() -> None:
    """Become dumpable again: the host must read the paths that this process passes. Landlock keeps other boxes out."""
    prctl(_SET_DUMPABLE, 1)


def _number() -> int:
    if MACHINE not in _CAPSET:
        raise OSError(errno.ENOSYS, f"not written for {MACHINE}: {os.strerror(errno.ENOSYS)}")
    return _CAPSET[MACHINE]
