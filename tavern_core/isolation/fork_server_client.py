"""The host's handle on its fork server: started when the first worker is needed, shared by all hosts of the process."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tavern_core.errors import PluginError
from tavern_core.frozen import dataclass
from tavern_core.isolation.fork_server import BOOT
from tavern_core.isolation.transport import BrokenChannel, Channel, TooLate, encode
from tavern_core.kernel.execution.module_path import module_path

PASSED: Final = frozenset({"LANG", "LANGUAGE", "PATH", "PYDANTIC_DISABLE_PLUGINS", "TZ"})
"""Variables of the host's environment that workers see; also ``LC_*``."""
START_S: Final = 30.0
"""How long the fork server may take to begin, and to fork, in seconds."""
LONGEST_ANSWER: Final = 65_536


@dataclass(frozen=True, slots=True)
class Spawned:
    """A forked worker."""

    pid: int
    handle: int
    """A pidfd: it is this process and never another that was given its number later."""


class ForkServer:
    """One fork server of this process. `use` and `leave` count who needs it; with the last it ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return None if self._process is None else self._process.pid

    def use(self) -> None:
        """One more host needs it."""
        with self._lock:
            self._begin_anew_after_fork()
            self._users += 1

    def leave(self) -> None:
        """A host does not need it any more."""
        with self._lock:
            self._begin_anew_after_fork()
            self._users -= 1
            if self._users <= 0:
                self._users = 0
                self._end()

    def warm(self, modules: Sequence[str]) -> None:
        """Start it if it does not run.

        Raises:
            PluginError: it cannot be started (PLUGIN_FAILED).
        """
        with self._lock:
            self._running(modules)

    def spawn(self, request: Mapping[str, Any], fds: Sequence[int], modules: Sequence[str]) -> Spawned:
        """Fork a worker. A fork server that has died is replaced.

        Args:
            fds: obituary, output, side channel, lanes; they stay open here.
            modules: further modules to import in advance.

        Raises:
            PluginError: there is no process to be had (PLUGIN_FAILED).
        """
        message = encode({**request, "fds": len(fds)})
        with self._lock:
            for attempt in (1, 2):
                control = self._running(modules)
                try:
                    control.settimeout(START_S)
                    sent = socket.send_fds(control, [message], list(fds))
                    control.sendall(message[sent:])
                    return _answer(control)
                except (OSError, BrokenChannel, TooLate) as error:
                    self._end()
                    if attempt == 2:
                        raise PluginError(f"no worker could be forked: {error}") from error
        raise AssertionError("not reached")

    def _running(self, modules: Sequence[str]) -> socket.socket:
        self._begin_anew_after_fork()
        if self._process is not None and self._process.poll() is None and self._control is not None:
            return self._control
        self._end()
        own, its = socket.socketpair()
        try:
            path = json.dumps(module_path())
            command = [
                sys.executable,
                "-I",
                "-S",
                "-X",
                "utf8",
                "-c",
                BOOT,
                path,
                str(its.fileno()),
                str(os.getpid()),
                *modules,
            ]
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environment(("LD_LIBRARY_PATH",)),  # some interpreters need it to start; workers do not see it
                cwd="/",
                pass_fds=[its.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            own.close()
            raise PluginError(
                f"the fork server cannot be started: {error.strerror}", hint=f"look at {sys.executable}"
            ) from error
        finally:
            its.close()
        self._process, self._control = process, own
        try:
            own.settimeout(START_S)
            Channel(own, LONGEST_ANSWER).receive()
        except (OSError, BrokenChannel, TooLate) as error:
            said = _said(process)
            self._end()
            raise PluginError(f"the fork server did not begin: {said or error}", hint="tavern doctor") from error
        assert process.stderr is not None
        process.stderr.close()
        return own

    def _end(self) -> None:
        control, process = self._control, self._process
        self._control = self._process = None
        if control is not None:
            control.close()
        if process is None:
            return
        if process.stderr is not None:
            process.stderr.close()
        try:
            process.wait(5)  # it ends with its control socket, and its workers with it
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _begin_anew_after_fork(self) -> None:
        """A forked copy of the host has none: that one belongs to its parent."""
        if self._owner != os.getpid():
            if self._control is not None:
                self._control.close()
            self._owner, self._users, self._process, self._control = os.getpid(), 0, None, None


fork_server: Final = ForkServer()
"""The one of this process."""


def _answer(control: socket.socket) -> Spawned:
    """The process that the fork server has forked."""
    chunk, fds, _, _ = socket.recv_fds(control, LONGEST_ANSWER, 4)
    with contextlib.ExitStack() as leftover:
        for fd in fds:
            leftover.callback(os.close, fd)
        if not chunk:
            raise BrokenChannel("the fork server is gone")
        from tavern_core.isolation.transport import Stream

        (message,) = Stream(LONGEST_ANSWER).feed(chunk)
        if "error" in message:
            raise PluginError(
                f"no worker could be forked: {message['error']}", hint="too many processes, or too little memory?"
            )
        if len(fds) != 1:
            raise BrokenChannel("the fork server gave no handle")
        leftover.pop_all()
        return Spawned(message["pid"], fds[0])


def _said(process: subprocess.Popen[bytes]) -> str:
    """The end of what it wrote before it gave up."""
    process.kill()
    written = process.stderr.read() if process.stderr is not None else b""
    lines = written.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def environment(more: Iterable[str] = ()) -> dict[str, str]:
    """What of the host's environment others may see: an allow-list.

    Args:
        more: further names; those that are not set are left out.
    """
    wanted = PASSED.union(more)
    return {name: value for name, value in os.environ.items() if name in wanted or name.startswith("LC_")}
