"""Layer `landlock`: files and folders, and TCP, by allow-list (Linux 5.13, refined until 6.12).

`seccomp.py` handles what it does not cover: metadata (stat, chmod, utime, xattr), UDP, Unix sockets.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from tavern_core.box.policy import BoxPolicy
from tavern_core.box.protected_path_splitting import entries, unprotected_entries
from tavern_core.box.syscalls import prctl, prepared, syscall

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same on every architecture
_VERSION_FLAG = 1
_RULE_PATH, _RULE_PORT = 1, 2
_PR_SET_NO_NEW_PRIVS = 38

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << n for n in range(6))
MAKE_DIR, MAKE_REG = 1 << 7, 1 << 8
REFER, TRUNCATE = 1 << 13, 1 << 14
_RIGHTS: Final = {1: (1 << 13) - 1, 2: REFER, 3: TRUNCATE, 5: 1 << 15}
"""ABI → rights on files that it added: the first thirteen, REFER, TRUNCATE, IOCTL_DEV."""
_TCP: Final = 0b11
_CONNECT_TCP: Final = 0b10
_SCOPES: Final = 0b11
"""Abstract Unix sockets and signals, of processes outside."""

_READ: Final = READ_FILE | READ_DIR
_WRITE: Final = WRITE_FILE | TRUNCATE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | REFER
"""Only ordinary files and folders: a link, FIFO or socket in a shared folder is a trap for the next reader."""
_ON_FILES: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
OWN: Final = {"/proc": _READ, "/dev/shm": _READ | _WRITE}
"""Private places of a box → rights."""
DEVICES: Final = {"/dev/null": READ_FILE | WRITE_FILE | TRUNCATE, "/dev/random": READ_FILE, "/dev/urandom": READ_FILE}


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _AtPort(ctypes.Structure):
    _fields_ = (("allowed", ctypes.c_uint64), ("port", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version() -> int:
    """The ABI of this kernel's Landlock. Raises OSError: there is none, or it is disabled."""
    return syscall(_CREATE, 0, 0, _VERSION_FLAG)


def apply(
    policy: BoxPolicy, *, own: Iterable[str] = (), begun: int | None = None, port: int | None = None, asks: bool = False
) -> None:
    """Restrict this process.

    Args:
        own: those of `OWN` that were mounted for this box only.
        begun: the result of `begin` for this policy in the parent process.
        port: as for `begin`.
        asks: the host writes in granted places, not the box itself (`write_broker.py`).

    Raises:
        OSError: the kernel has no Landlock.
    """
    rules = begin(policy, port) if begun is None else begun
    try:
        later = _granted(policy, asks)
        for place in own:
            later[place] = later.get(place, 0) | OWN[place]
        if later:
            _allow(rules, later, _known_rights(version()))
        prctl(_PR_SET_NO_NEW_PRIVS, 1)
        syscall(_RESTRICT, rules, 0)
    finally:
        os.close(rules)


def begin(policy: BoxPolicy, port: int | None = None) -> int:
    """The descriptor of rules with the paths of a policy itself. `apply` adds the granted paths, because listing them may take long.

    Args:
        port: of the gateway, if the box has no network of its own: the only allowed port, on any host.

    Raises:
        OSError: the kernel has no Landlock.
    """
    abi = version()
    known = _known_rights(abi)
    # Programs in the host's network have no port rules; in their own network, ports do not matter.
    is_open = policy.may_network or (policy.has_gateway and port is None)
    net = _TCP if abi >= 4 and not is_open else 0
    attributes = _Ruleset(known, net, _SCOPES if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    rules = syscall(_CREATE, ctypes.byref(attributes), size, 0)
    try:
        _allow(rules, _own(policy), known)
        if net and port is not None:
            syscall(_ADD, rules, _RULE_PORT, ctypes.byref(_AtPort(_CONNECT_TCP, port)), 0)
    except BaseException:
        os.close(rules)
        raise
    return rules


def _known_rights(abi: int) -> int:
    known = 0
    for since, rights in _RIGHTS.items():
        known |= rights if abi >= since else 0
    return known


def _own(policy: BoxPolicy) -> dict[str, int]:
    """Path → rights of the policy itself, without grants."""
    read = _READ | (EXECUTE if policy.may_execute else 0)
    found = dict(DEVICES)
    for paths, rights in ((policy.read, read), (policy.write, _WRITE), (policy.execute, _READ | EXECUTE)):
        for path in paths:
            found[path] = found.get(path, 0) | rights
    return found


def _granted(policy: BoxPolicy, asks: bool) -> dict[str, int]:
    """Path → rights of the grants. One rule per path: a folder with a protected entry becomes thousands of rules."""
    granted = policy.granted
    read = _READ | (EXECUTE if policy.may_execute else 0)
    unwritable, listed = (*granted.shut, *granted.kept), lru_cache(entries)
    path_rights = [(unprotected_entries(path, granted.shut, granted.own, listed), read) for path in granted.read]
    path_rights += [
        (unprotected_entries(path, unwritable, granted.own, listed), _WRITE) for path in granted.write if not asks
    ]
    found: dict[str, int] = {}
    for paths, rights in path_rights:
        for path in paths:
            found[path] = found.get(path, 0) | rights
    return found


def _allow(rules: int, allowed: Mapping[str, int], known: int) -> None:
    rule = _Beneath()
    add = prepared(_ADD, rules, _RULE_PATH, ctypes.byref(rule), 0)
    on_files = _ON_FILES & known
    for path, rights in allowed.items():
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError, PermissionError):  # not accessible to this process
            continue
        try:
            is_folder = stat.S_ISDIR(os.fstat(place).st_mode)
            rule.allowed, rule.folder = rights & (known if is_folder else on_files), place
            add()
        finally:
            os.close(place)
