"""Layer `landlock`: files and folders, and TCP, by allow-list (Linux 5.13, refined until 6.12).

What it does not see is the business of `seccomp.py`: metadata (stat, chmod, utime, xattr), UDP, Unix sockets.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Iterable
from typing import Final

from tavern_core.box.calls import prctl, syscall
from tavern_core.box.policy import BoxPolicy

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same on every architecture
_VERSION_FLAG = 1
_RULE_PATH = 1
_PR_SET_NO_NEW_PRIVS = 38

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << n for n in range(6))
MAKE_DIR, MAKE_REG = 1 << 7, 1 << 8
REFER, TRUNCATE = 1 << 13, 1 << 14
_RIGHTS: Final = {1: (1 << 13) - 1, 2: REFER, 3: TRUNCATE, 5: 1 << 15}
"""ABI → rights on files that it added: the first thirteen, REFER, TRUNCATE, IOCTL_DEV."""
_TCP: Final = 0b11
_SCOPES: Final = 0b11
"""Abstract Unix sockets and signals, of processes outside."""

_READ: Final = READ_FILE | READ_DIR
_WRITE: Final = WRITE_FILE | TRUNCATE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | REFER
"""Ordinary files and folders only: a link, FIFO or socket in a shared folder is a trap for whoever opens it next."""
_ON_FILES: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
DEVICES: Final = {"/dev/null": READ_FILE | WRITE_FILE | TRUNCATE, "/dev/random": READ_FILE, "/dev/urandom": READ_FILE}


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version() -> int:
    """The ABI of this kernel's Landlock.

    Raises:
        OSError: there is none, or it is switched off.
    """
    return syscall(_CREATE, 0, 0, _VERSION_FLAG)


def apply(policy: BoxPolicy, *, sees_own_proc: bool = False) -> None:
    """Restrict this process.

    Args:
        sees_own_proc: /proc shows nothing but the box.

    Raises:
        OSError: the kernel has no Landlock.
    """
    abi = version()
    known = 0
    for since, rights in _RIGHTS.items():
        known |= rights if abi >= since else 0
    # Programs that share the host's network are not told to which ports they may connect.
    net = _TCP if abi >= 4 and not policy.may_network else 0
    attributes = _Ruleset(known, net, _SCOPES if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    rules = syscall(_CREATE, ctypes.byref(attributes), size, 0)
    try:
        for path, rights in DEVICES.items():
            _allow(rules, path, rights & known)
        programs = EXECUTE if policy.may_execute else 0
        _allow_each(rules, policy.read, (_READ | programs) & known)
        _allow_each(rules, policy.write, _WRITE & known)
        _allow_each(rules, policy.execute, (_READ | EXECUTE) & known)
        if sees_own_proc:
            _allow(rules, "/proc", _READ & known)
        prctl(_PR_SET_NO_NEW_PRIVS, 1)
        syscall(_RESTRICT, rules, 0)
    finally:
        os.close(rules)


def _allow_each(rules: int, paths: Iterable[str], rights: int) -> None:
    for path in paths:
        _allow(rules, path, rights)


def _allow(rules: int, path: str, rights: int) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):  # nothing there for this process
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(os.fstat(place).st_mode):
                rights &= _ON_FILES
            syscall(_ADD, rules, _RULE_PATH, ctypes.byref(_Beneath(rights, place)), 0)
        finally:
            os.close(place)
