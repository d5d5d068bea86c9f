"""System calls that Python does not offer."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from collections.abc import Callable, Iterable
from typing import Any, Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long
_PYTHON: Final = ctypes.PyDLL(None, use_errno=True)
"""The same, without releasing the GIL, so that a fork finds the interpreter unchanged."""
_PYTHON.syscall.restype = ctypes.c_long
_CLONE: Final = {"x86_64": 56, "aarch64": 220}
_LIBC.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)
MACHINE: Final = os.uname().machine
KERNEL: Final = tuple(int(word) for word in os.uname().release.replace("-", ".").split(".")[:2] if word.isdigit())
"""(major, minor)."""


def syscall(number: int, *arguments: Any) -> int:
    """Call the kernel. Integers are passed as longs. Raises OSError: the error of the kernel."""
    return prepared(number, *arguments)()


def prepared(number: int, *arguments: Any) -> Callable[[], int]:
    """A system call that is made many times with the same arguments; raises as `syscall`."""
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in (number, *arguments)]
    return lambda: _checked(_LIBC.syscall(*given))


def prctl(option: int, *values: int) -> int:
    """``prctl(2)``; missing arguments are 0. Raises OSError: the error of the kernel."""
    return _checked(_LIBC.prctl(option, *(*values, 0, 0, 0, 0)[:4]))


def prctl_each(option: int, values: Iterable[int]) -> int:
    """``prctl(2)`` with one value after the other until one is refused. Returns the errno, or 0."""
    call = _LIBC.prctl
    for value in values:
        if call(option, value, 0, 0, 0) < 0:
            return ctypes.get_errno()
    return 0


def unshare(flags: int) -> None:
    """``unshare(2)``. Raises OSError: the error of the kernel."""
    _checked(int(_LIBC.unshare(ctypes.c_int(flags))))


def fork_into(flags: int) -> int:
    """``os.fork`` with flags of ``clone(2)`` for new namespaces. 0 in the child.

    Raises:
        OSError: the error of the kernel; nothing was forked.
    """
    if MACHINE not in _CLONE:
        raise OSError(errno.ENOSYS, f"not written for {MACHINE}")
    _PYTHON.PyOS_BeforeFork()
    pid = int(_PYTHON.syscall(*map(ctypes.c_long, (_CLONE[MACHINE], flags | signal.SIGCHLD, 0, 0, 0, 0))))
    number = ctypes.get_errno()
    _PYTHON.PyOS_AfterFork_Child() if pid == 0 else _PYTHON.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(number, os.strerror(number))
    return pid


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """``mount(2)``. Raises OSError: the error of the kernel."""
    words = [ctypes.c_char_p(os.fsencode(word)) for word in (source, target, kind, options)]
    _checked(int(_LIBC.mount(*words[:3], ctypes.c_ulong(flags), words[3])))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
