"""The audit guard: receives every audit event of this process, and records those that a plugin's code causes.

Python cannot remove an audit hook, so it is only installed in a process for this purpose, such as the tests of a plugin. It
reports and stops nothing: code can evade it.

Some uses raise no event and are wrapped while the guard is on: the start of threads, `os.open` (its event does not say to what a
path is relative to), `multiprocessing`, reading `os.environ`.
"""

from __future__ import annotations

import _socket
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

from tavern_core.review.audit.attribution import SourcePosition, StackAttribution
from tavern_core.review.audit.events import EVENTS, NO_FOLDER, EventReader
from tavern_core.review.audit.observed_use import EVERYTHING, ObservedUse, UseKind
from tavern_core.review.audit.patches import wrap
from tavern_core.review.audit.path_names import PathNames, absolute

MOST: Final = 10_000
"""Maximum number of different uses that are reported."""
_TEMPORARY: Final = ("tempfile.mkstemp", "tempfile.mkdtemp")
_DATA: Final = "tavern_core.data_dir"
_CHANGE: Final = "tavern_core.service_change"
"""Raised in a view, for the caller of its method."""


class AuditGuard:
    """Watches one plugin.

    Args:
        stack: attributes events to the plugin's code.
        spelling: how paths are written.
        on_use: called with each use once, in the thread of the use, one at a time.
        workspace: the workspace of the running call, if there is one.
    """

    def __init__(
        self,
        stack: StackAttribution,
        spelling: PathNames,
        on_use: Callable[[ObservedUse], None],
        *,
        workspace: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.stack = stack
        self.failures: list[str] = []
        """Errors of the guard itself: uses may be missing."""
        self._spelling = spelling
        self._on_use = on_use
        self._workspace = workspace
        self._reported: set[ObservedUse] = set()
        self._lock = threading.RLock()
        self._busy = threading.local()
        self._whole: set[SourcePosition] = set()
        """Lines that read the whole environment, so their reads of single variables are not reported."""
        self._names = ResolvedNames()
        self._rows: dict[str, EventReader] = {}

    def start(self) -> None:
        """Install the hook, for the rest of the process."""
        rows = self._rows
        rows.update(EVENTS)
        rows.update(dict.fromkeys((*_TEMPORARY, _DATA), _nothing))
        wrap(self)
        sys.addaudithook(_hook(rows, self._seen))

    def stop(self) -> None:
        """Ignore all further events; the hook itself stays."""
        self._rows.clear()

    # Reports of the wrapped functions -----------------------------------------------------------------------------------

    def thread_begins(self, thread: threading.Thread | None, function: object, frame: FrameType | None) -> None:
        """Report that a thread is about to be started."""
        with self._undisturbed() as is_mine:
            if is_mine and self._rows and (place := self.stack.owner(frame)) is not None:
                if thread is not None:
                    self.stack.thread_begun(thread, place)
                else:
                    self.stack.function_begun(function, place)
                self._note("thread", "", place)

    def opens_in(self, folder: int) -> None:
        """Report that the next `os.open` in this thread has a path relative to this descriptor."""
        self._busy.folder = folder

    def reads_variable(self, name: str, frame: FrameType | None) -> None:
        """Report that a variable of the environment is read."""
        with self._undisturbed() as is_mine:
            if is_mine and self._rows and (place := self.stack.reader_of_environment(frame)) is not None:
                if name == EVERYTHING:
                    self._whole.add(place)
                if name == EVERYTHING or place not in self._whole:
                    self._note("variable", name, place)

    def copies_itself(self, frame: FrameType | None) -> None:
        """Report that a process is started without an event."""
        with self._undisturbed() as is_mine:
            if is_mine and self._rows and (place := self.stack.owner(frame)) is not None:
                self._note("spawn", EVERYTHING, place)

    # Events -------------------------------------------------------------------------------------------------------------

    def _seen(self, event: str, row: EventReader, args: tuple[Any, ...], frame: FrameType | None) -> None:
        with self._undisturbed() as is_mine:
            if not is_mine:
                return
            folder = self._busy.__dict__.pop("folder", NO_FOLDER) if event == "open" else NO_FOLDER
            if event == _DATA:
                self._spelling.learn_data(str(args[1]))
                return
            if event == "socket.getaddrinfo":
                self._names.looked_up(args[0], args[1])  # for any caller, because another thread may connect
            place = self.stack.caller_of_host(frame) if event == _CHANGE else self.stack.owner(frame)
            if place is None:
                return
            if event in _TEMPORARY:
                self._spelling.learn_temporary(absolute(args[0], NO_FOLDER))
                return
            for kind, target, near in row(args):
                self._raw(kind, target, folder if event == "open" else near, place)

    def _raw(self, kind: UseKind, target: Any, near: int, place: SourcePosition) -> None:
        match kind:
            case "read" | "write":
                if workspace := self._workspace():
                    self._spelling.learn_workspace(workspace)
                path = absolute(target, near)
                if spelled := self._spelling.of(path, writes=kind == "write"):
                    self._note(kind, spelled, place, path)
            case "connect" | "listen":
                if isinstance(target, tuple):
                    for sent in self._names.known_as(*target) if kind == "connect" else (written_host(*target),):
                        self._note(kind, sent, place)
                else:
                    self._note(kind, target, place)
            case "spawn" | "native":
                text = os.fsdecode(target) if isinstance(target, str | bytes | os.PathLike) else str(target)
                self._note(kind, text if kind == "native" else text.rpartition("/")[2], place)
            case _:
                self._note(kind, str(target), place)

    def _note(self, kind: UseKind, target: str, place: SourcePosition, path: str = "") -> None:
        use = ObservedUse(kind, target, *place, path)
        with self._lock:
            if use not in self._reported and len(self._reported) < MOST:
                self._reported.add(use)
                self._on_use(use)

    @contextmanager
    def _undisturbed(self) -> Iterator[bool]:
        """While the guard works in a thread, its own actions are not events, and its errors do not reach the caller.

        Yields False where it works in this thread already.
        """
        is_mine = not getattr(self._busy, "on", False)
        self._busy.on = True
        try:
            yield is_mine
        except Exception as error:  # noqa: BLE001 - its own
            with suppress(Exception):
                self.failures.append(f"{type(error).__name__}: {error}")
        finally:
            if is_mine:
                self._busy.on = False


def _hook(
    rows: dict[str, EventReader], on_event: Callable[[str, EventReader, tuple[Any, ...], FrameType | None], None]
) -> Callable[[str, tuple[Any, ...]], None]:
    """The hook itself: it must be fast for the thousands of irrelevant events."""
    row_of, frame_at = rows.get, sys._getframe

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if (row := row_of(event)) is not None:
            on_event(event, row, args, frame_at(1))

    return hook


def _nothing(args: tuple[Any, ...]) -> Any:
    return ()


# Dns lookups ----------------------------------------------------------------------------------------------------------
# Connections use addresses, grants use names: which name was resolved to an address?

_WEB: Final = (80, 443)


class ResolvedNames:
    """Records which names were resolved to which addresses."""

    def __init__(self) -> None:
        self._names: dict[str, dict[str, None]] = {}
        """Address → names."""
        self._asked: set[tuple[str, Any]] = set()

    def looked_up(self, host: Any, port: Any) -> None:
        """Resolve a name that the plugin is resolving, too, and record the answer."""
        name = _text(host)
        if not name or (name, port) in self._asked:
            return
        self._asked.add((name, port))
        try:
            found = _socket.getaddrinfo(name, None)
        except OSError:
            return
        for *_, address in found:
            if address[0] != name:
                self._names.setdefault(str(address[0]), {})[name] = None

    def known_as(self, host: Any, port: Any) -> tuple[str, ...]:
        """Host and port as a scope writes them, by the names that were resolved to this address, if any."""
        name = _text(host)
        return tuple(written_host(known, port) for known in self._names.get(name, (name,)))


def written_host(host: Any, port: Any) -> str:
    """``example.org``, ``example.org:8443``, ``[::1]:*``: as an entry of a scope."""
    name = _text(host).partition("%")[0] or "0.0.0.0"
    shown = f"[{name}]" if ":" in name else name
    try:
        number = _socket.getservbyname(port) if isinstance(port, str) and not port.isdigit() else int(port or 0)
    except OSError:
        number = 0
    if number in _WEB or port is None:
        return shown
    return f"{shown}:{number or '*'}"


def _text(host: Any) -> str:
    if isinstance(host, bytes | bytearray):
        return host.decode("ascii", "replace")
    return str(host or "")
