"""The host's handle on the warm process in which imports are tried: started when it is first needed, and again when it is gone."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Final

from tavern_core.kernel.execution.module_path import module_path
from tavern_core.review.probe_server import BOOT, LATE, READY

_END_S: Final = 5.0
_ANSWER_S: Final = 60.0
"""How long the process may take to begin, and to answer when the time of an import is over, in seconds."""
_LONGEST_CHUNK: Final = 65_536


class ProbeProcess:
    """One process. It ends by itself when nobody needs it for a while, and with this process. One user at a time."""

    def __init__(self) -> None:
        self.trouble = ""
        """Why it cannot be started; empty where it can."""
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def ask(self, request: bytes) -> bool:
        """Have an import tried; False when there is no process to be had."""
        for _ in range(2):
            if (control := self._running()) is None:
                return False
            try:
                control.sendall(request)
            except OSError:
                self.close()
            else:
                return True
        return False

    def hurry(self) -> None:
        """The import has had its time."""
        if self._control is not None:
            with suppress(OSError):  # it has ended: there is no answer
                self._control.sendall(LATE)

    def is_heard(self, seconds: float) -> bool:
        """Whether it says something within the time, or ends."""
        if self._control is None:
            return True
        waiting = select.poll()
        waiting.register(self._control, select.POLLIN)
        return bool(waiting.poll(seconds * 1000))

    def answer(self) -> str:
        """Its next line; empty when it says nothing in time, or has ended. Whatever goes wrong here ends it."""
        text = bytearray()
        try:
            while (
                self._control is not None and not text.endswith(b"\n") and (chunk := self._control.recv(_LONGEST_CHUNK))
            ):
                text += chunk
            return text.decode("utf-8", "replace")
        except OSError:
            return ""
        finally:
            if not text.endswith(b"\n"):
                self.close()

    def is_there(self) -> bool:
        """Whether it runs; what is left of one that has ended by itself goes."""
        if self._process is not None and self._process.poll() is not None:
            self.close()
        return self._process is not None

    def close(self) -> None:
        """End it, and what it is trying."""
        control, process = self._control, self._process
        self._control = self._process = None
        if control is not None:
            control.close()
        if process is None:
            return
        try:
            process.wait(_END_S)  # it ends with its socket, and what it is trying with it
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def disown(self) -> None:
        """This is a forked copy: the process belongs to the original."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.returncode = 0  # nothing of ours to wait for

    def _running(self) -> socket.socket | None:
        if self._process is not None and self._process.poll() is None and self._control is not None:
            return self._control
        self.close()
        if getattr(sys, "frozen", False) or not sys.executable:
            self.trouble = "there is no interpreter to be started: this program carries its own"
            return None
        own, its = socket.socketpair()
        with its:
            command = [
                sys.executable,
                *_flags(),
                "-P",
                "-c",
                BOOT,
                json.dumps(module_path()),
                str(its.fileno()),
                str(os.getpid()),
            ]
            nothing = subprocess.DEVNULL
            try:
                process = subprocess.Popen(
                    command,
                    stdin=nothing,
                    stdout=nothing,
                    stderr=nothing,
                    cwd="/",
                    pass_fds=[its.fileno()],
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                own.close()
                self.trouble = f"the process in which imports are tried cannot be started: {error}"
                return None
        own.settimeout(_ANSWER_S)
        self._process, self._control, self.trouble = process, own, ""
        if self.answer() != READY.decode():
            self.close()
            self.trouble = f"the process in which imports are tried does not begin; see {sys.executable}"
            return None
        return own


def _flags() -> list[str]:
    """What this interpreter was started with, as far as it decides what an import sees."""
    flags = sys.flags
    words = ["-O"] * flags.optimize
    words += [
        word for word, on in (("-E", flags.ignore_environment), ("-s", flags.no_user_site), ("-S", flags.no_site)) if on
    ]
    return [*words, *(["-X", "utf8"] if flags.utf8_mode else [])]
