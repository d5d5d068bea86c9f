"""Wrappers that report to the guard what raises no audit event, or one with too little information.

Only in a process with a guard; the wrappers are never removed.
"""

from __future__ import annotations

import _posixsubprocess
import _thread
import functools
import os
import subprocess  # noqa: F401 - before its `fork_exec` is wrapped, because it caches the function
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, Final, Protocol

from tavern_core.review.audit.attribution import SourcePosition, StackAttribution
from tavern_core.review.audit.observed_use import EVERYTHING


class AuditListener(Protocol):
    """The receiver of reports; `guard.AuditGuard`."""

    def thread_begins(self, thread: threading.Thread | None, function: object, frame: FrameType | None) -> None: ...

    def opens_in(self, folder: int) -> None: ...

    def reads_variable(self, name: str, frame: FrameType | None) -> None: ...

    def copies_itself(self, frame: FrameType | None) -> None: ...


def wrap(guard: AuditListener) -> None:
    """Make threads, `os.open`, `multiprocessing` and `os.environ` report to `guard`."""
    _wrap_threads(guard)
    _wrap_open(guard)
    _wrap_spawning(guard)
    watched = _WatchedEnvironment(os.environ._data, guard)  # type: ignore[attr-defined]
    os.environ._data = watched  # type: ignore[attr-defined]
    if os.supports_bytes_environ:
        os.environb._data = watched  # type: ignore[attr-defined]


def _wrap_threads(guard: AuditListener) -> None:
    start: Callable[[threading.Thread], None] = threading.Thread.start
    begin = _thread.start_new_thread

    @functools.wraps(start)
    def started(self: threading.Thread) -> None:
        guard.thread_begins(self, None, sys._getframe(1))
        start(self)

    @functools.wraps(begin)
    def begun(function: Callable[..., object], *given: Any, **named: Any) -> int:
        guard.thread_begins(None, function, sys._getframe(1))
        return begin(function, *given, **named)

    threading.Thread.start = started  # type: ignore[method-assign]
    _thread.start_new_thread = begun  # threading has its own reference, and reports through `start`


def _wrap_open(guard: AuditListener) -> None:
    opened = os.open

    @functools.wraps(opened)
    def open_(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None:
            guard.opens_in(dir_fd)
        return opened(path, flags, mode, dir_fd=dir_fd)

    os.open = open_
    os.supports_dir_fd.add(open_)  # checks for dir_fd support compare by identity


def _wrap_spawning(guard: AuditListener) -> None:
    """`multiprocessing` starts its processes with this; `subprocess` has its own reference, and an event."""
    fork_exec = _posixsubprocess.fork_exec

    def forked(*given: Any) -> int:
        guard.copies_itself(sys._getframe(1))
        return fork_exec(*given)

    _posixsubprocess.fork_exec = forked


class _WatchedEnvironment(dict[bytes, bytes]):
    """The data of `os.environ`; every read goes through it."""

    def __init__(self, data: dict[bytes, bytes], guard: AuditListener) -> None:
        super().__init__(data)
        self._guard = guard

    def __getitem__(self, key: bytes) -> bytes:
        self._guard.reads_variable(os.fsdecode(key), sys._getframe(1))
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[bytes]:
        self._guard.reads_variable(EVERYTHING, sys._getframe(1))
        return super().__iter__()


# Host changes ---------------------------------------------------------------------------------------------------------
# Has a plugin replaced code of the host or of Python by its own? No event reports it, so the modules are inspected.

_PYTHON: Final = ("builtins", "io", "json", "os", "socket", "ssl", "subprocess", "sys", "threading", "time")
"""The most attractive modules of the standard library to replace."""
_WRAPPERS: Final = (MethodType, staticmethod, classmethod, property, functools.partial, functools.cached_property)
_CALLED: Final = ("func", "fget", "__func__", "__wrapped__")


def host_changes(stack: StackAttribution) -> Iterator[tuple[str, SourcePosition]]:
    """The parts of the host that are now code of the plugin: dotted name, and the place of that code."""
    for name, module in list(sys.modules.items()):
        if module is None or not (name == "tavern_core" or name.startswith("tavern_core.") or name in _PYTHON):
            continue
        for attribute, value in list(vars(module).items()):
            if (place := _place(value, stack)) is not None:
                yield f"{name}.{attribute}", place
            elif isinstance(value, type) and value.__module__ == name:
                for member, inner in list(vars(value).items()):
                    if (place := _place(inner, stack)) is not None:
                        yield f"{name}.{attribute}.{member}", place


def _place(value: Any, stack: StackAttribution) -> SourcePosition | None:
    """The place where `value` is defined, if that is in the plugin."""
    code = _code(value)
    if code is not None and stack.is_own(code.co_filename):
        return stack.place(code)
    if isinstance(value, type):
        for inner in vars(value).values():  # a class has no code, but its methods have
            if (code := _code(inner)) is not None:
                return stack.place(code) if stack.is_own(code.co_filename) else None
    return None


def _code(value: Any) -> CodeType | None:
    for _ in range(4):
        if isinstance(value, FunctionType):
            return value.__code__
        if not isinstance(value, _WRAPPERS):
            return None
        value = next((inner for name in _CALLED if (inner := getattr(value, name, None)) is not None), None)
    return None
