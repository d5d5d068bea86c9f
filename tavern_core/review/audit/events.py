"""The meaning of Python's audit events: one row for each use of files, network, processes or native code.

https://docs.python.org/3/library/audit_events.html lists them. A row returns what was used, as kind and raw target, or nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from tavern_core.review.audit.observed_use import EVERYTHING, UseKind

Seen = tuple[UseKind, Any, int]
"""Kind, target, and the descriptor of the folder that a path is relative to (-1: the working folder)."""
EventReader = Callable[[tuple[Any, ...]], Iterator[Seen]]

NO_FOLDER: Final = -1
_NOT_CONTENT: Final = getattr(os, "O_PATH", 0) | getattr(os, "O_DIRECTORY", 0)
"""Flags of an open that reads nothing: only to walk through folders."""
_WRITING: Final = os.O_CREAT | os.O_TRUNC | os.O_APPEND
_TMPFILE: Final = getattr(os, "O_TMPFILE", 0) & ~getattr(os, "O_DIRECTORY", 0)
WAYS: Final = "a socket that no host can name"


def _open(args: tuple[Any, ...]) -> Iterator[Seen]:
    path, mode, flags = args
    if isinstance(path, int) or path is None:
        return  # a descriptor: already open
    access = flags & os.O_ACCMODE
    writes = access in (os.O_WRONLY, os.O_RDWR) or flags & _WRITING
    if mode is None and flags & _NOT_CONTENT and not flags & _TMPFILE:
        return
    if writes and mode is not None and os.path.isdir(path):  # noqa: PTH112 - bytes, too
        return  # fails, or only leads to an opener's own file
    if access in (os.O_RDONLY, os.O_RDWR) and not flags & os.O_TRUNC and not (flags & os.O_CREAT and flags & os.O_EXCL):
        yield "read", path, NO_FOLDER
    if writes:
        yield "write", path, NO_FOLDER


def _reads(args: tuple[Any, ...]) -> Iterator[Seen]:
    yield "read", "." if args[0] is None else args[0], NO_FOLDER


def _changes(folder: int = 0, *, at: int = 0) -> EventReader:
    """The use of argument `at`, which is changed; it is relative to argument `folder` (0: none)."""

    def row(args: tuple[Any, ...]) -> Iterator[Seen]:
        yield "write", args[at], args[folder] if folder and len(args) > folder else NO_FOLDER

    return row


def _writes_from(use: UseKind) -> EventReader:
    """The uses of a source and a target: `use` for the source; the target is written."""

    def row(args: tuple[Any, ...]) -> Iterator[Seen]:
        source, target, *folders = args
        yield use, source, folders[0] if folders else NO_FOLDER
        yield "write", target, folders[1] if len(folders) > 1 else NO_FOLDER

    return row


def _database(args: tuple[Any, ...]) -> Iterator[Seen]:
    name = os.fsdecode(args[0]) if isinstance(args[0], str | bytes | os.PathLike) else ""
    if name in ("", ":memory:"):
        return
    is_read_only = False
    if name.startswith("file:"):
        parts = urlsplit(name)
        asked = parse_qs(parts.query)
        if asked.get("mode") == ["memory"] or parts.path in ("", ":memory:"):
            return
        is_read_only = asked.get("mode") == ["ro"] or asked.get("immutable") == ["1"]
        name = unquote(parts.path)
    yield "read", name, NO_FOLDER
    if not is_read_only:
        yield "write", name, NO_FOLDER


def _address(kind: UseKind) -> EventReader:
    def row(args: tuple[Any, ...]) -> Iterator[Seen]:
        near, address = args[0], args[1]
        if near.family in (socket.AF_INET, socket.AF_INET6) and isinstance(address, tuple):
            yield kind, (address[0], address[1]), NO_FOLDER
        elif near.family == getattr(socket, "AF_UNIX", None) and address is not None:
            yield kind, f"unix:{os.fsdecode(address)}", NO_FOLDER
        elif address is not None:
            yield kind, WAYS, NO_FOLDER

    return row


def _socket(args: tuple[Any, ...]) -> Iterator[Seen]:
    _, family, kind, *_ = args
    known = (socket.AF_INET, socket.AF_INET6, getattr(socket, "AF_UNIX", socket.AF_INET), -1)
    if family not in known or kind == socket.SOCK_RAW:
        yield "connect", WAYS, NO_FOLDER


def _looked_up(args: tuple[Any, ...]) -> Iterator[Seen]:
    host = args[0].decode("ascii", "replace") if isinstance(args[0], bytes) else args[0]
    if host and not _is_address(str(host)):  # an address needs no look-up, and connecting to it is a separate event
        yield "connect", (host, args[1] if len(args) > 1 else None), NO_FOLDER


def _is_address(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host.partition("%")[0])
        except OSError:
            continue
        return True
    return False


def _uses(kind: UseKind, at: int | None = None, *, otherwise: str = "") -> EventReader:
    """The use `kind` of argument `at`; `otherwise` where there is none, or it is empty."""

    def row(args: tuple[Any, ...]) -> Iterator[Seen]:
        yield kind, (None if at is None else args[at]) or otherwise, NO_FOLDER

    return row


EVENTS: Final[Mapping[str, EventReader]] = {
    "open": _open,
    "os.listdir": _reads,
    "os.scandir": _reads,
    "os.listxattr": _reads,
    "os.getxattr": _reads,
    "os.mkdir": _changes(2),
    "os.rmdir": _changes(1),
    "os.remove": _changes(1),
    "os.truncate": _changes(),
    "os.chmod": _changes(2),
    "os.chown": _changes(3),
    "os.chflags": _changes(),
    "os.utime": _changes(3),
    "os.setxattr": _changes(),
    "os.removexattr": _changes(),
    "os.symlink": _changes(2, at=1),
    "os.rename": _writes_from("write"),
    "os.link": _writes_from("read"),
    "sqlite3.connect": _database,
    "socket.__new__": _socket,
    "socket.connect": _address("connect"),
    "socket.sendto": _address("connect"),
    "socket.sendmsg": _address("connect"),
    "socket.bind": _address("listen"),
    "socket.getaddrinfo": _looked_up,
    "socket.gethostbyname": _looked_up,
    "socket.gethostbyaddr": _looked_up,
    "subprocess.Popen": _uses("spawn", 0),
    "os.posix_spawn": _uses("spawn", 0),
    "os.exec": _uses("spawn", 0),
    "os.system": _uses("spawn", otherwise="sh"),
    "os.fork": _uses("spawn", otherwise=EVERYTHING),
    "os.forkpty": _uses("spawn", otherwise=EVERYTHING),
    "pty.spawn": _uses("spawn", 0),
    "ctypes.dlopen": _uses("native", 0, otherwise="this process"),
    "ctypes.string_at": _uses("native", otherwise="this process"),
    "ctypes.wstring_at": _uses("native", otherwise="this process"),
    "ctypes.cdata": _uses("native", otherwise="this process"),
    "tavern_core.service": _uses("service", 1),
    "tavern_core.service_change": _uses("change", 1),
    "tavern_core.secret": _uses("secret", 1),
}
