"""Programs of the tests: a process that a test talks to, and the command line in the test's own process."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import AnyStr

from tavern_core.__main__ import main

WAITING_PLUGIN = """\
name: slow
version: "1.0"
tools:
  - id: wait
    description: Waits for ever.
    parameters: {type: object, properties: {}}
    implementation: {type: script, command: [python3, wait.py]}
permissions: {capabilities: [{name: "network:host"}]}
"""
"""The manifest of a plugin whose one tool runs `WAITING_SCRIPT`."""
WAITING_SCRIPT = """\
import socket

line = socket.create_connection(("127.0.0.1", PORT))
line.sendall(b"running")
line.recv(1)  # nobody ever answers
"""
"""Says `running` to a listener on the port that replaces PORT, and waits until it ends."""


class Program(subprocess.Popen[AnyStr]):
    """Like `Popen`, but a failing test kills it: `Popen` would wait for its end, and the tests would hang."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, error, traceback)


def tavern(
    *words: str, cwd: Path, home: Path | None = None, given: bytes = b"", merged: bool = False
) -> subprocess.CompletedProcess[str]:
    """What `tavern WORDS` comes to in the folder `cwd`, run in this process: most of what a process costs is its start.

    Every command has a new host, which imports its plugins anew. Bytes that are not text are kept as surrogates;
    `merged` has what was written to stderr in stdout, in the order of writing.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape") for _ in range(2))
    stdin, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(given), "utf-8")
    try:
        with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(out if merged else err):
            code = main([*(["--home", str(home)] if home else []), *words])
    finally:
        sys.stdin = stdin
        forget_plugin_modules()
    return subprocess.CompletedProcess(words, code, _text(out), _text(err))


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode("utf-8", "surrogateescape")  # type: ignore[attr-defined,no-any-return]


def forget_plugin_modules() -> None:
    """The next host imports what is on the disk then."""
    for name in [n for n in sys.modules if n.startswith("tavern_folder_plugin")]:
        del sys.modules[name]
