"""Python programs that are forked from a process which has imported tavern_core already: they take a quarter of the time.

Each has streams, a folder, variables and a session of its own, and ends as `program_ending` says. What a program imports, how it
behaves before tavern_core is imported, and what becomes of the modules at its end, needs a new process.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import IO, Any

ROOT = Path(__file__).parents[1]
IMPORTED = (
    *("cli", "flow", "host", "kernel"),
    *("builtin.executors", "builtin.policies", "builtin.services", "builtin.tools"),
)
"""The packages of tavern_core that a command needs, and what every host has."""
NETWORK = (
    "tavern_core.server.mcp.stdio",
    "tavern_core.upstreams.origin_transport",
    "tavern_core.builtin.adapters.n8n",
    "tavern_core.builtin.adapters.comfyui",
    "tavern_core.builtin.adapters.mcp.connection",
    "tavern_core.builtin.adapters.mcp.http",
    "tavern_core.builtin.adapters.mcp.login",
    "tavern_core.builtin.adapters.mcp.listing",
    "tavern_core.builtin.adapters.mcp.stdio",
    "anyio._backends._asyncio",
    "httpcore2",
    "mcp.client.auth",
    "mcp.client.streamable_http",
    "sqlite3",
)
"""What programs that serve MCP or reach upstreams import: it takes longer than the rest of their start."""
Stream = int | IO[Any] | None


class ForkedProgram:
    """`python WORDS`: ``-m MODULE …``, ``-c CODE …`` or ``FILE …``. The streams are those of `Popen`, with text; a failing test kills it.

    Args:
        imports: further modules that are imported already.
    """

    def __init__(
        self,
        words: Sequence[object],
        *,
        stdin: Stream = DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        start_new_session: bool = False,
        imports: tuple[str, ...] = (),
    ) -> None:
        self._pipes: list[Any] = []
        self.returncode: int | None = None
        with contextlib.ExitStack() as theirs:
            self.stdin, given = self._stream(0, stdin, theirs)
            self.stdout, out = self._stream(1, stdout, theirs)
            self.stderr, err = self._stream(2, stderr, theirs)
            self._answers, answers = socket.socketpair()
            socket.send_fds(_server(imports), [b"x"], [theirs.enter_context(answers).fileno(), given, out, err])
        request = {
            "words": [str(word) for word in words],
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "session": start_new_session,
        }
        self._answers.sendall(json.dumps(request).encode())
        self._answers.shutdown(socket.SHUT_WR)
        self._lines = self._answers.makefile()
        self.pid = int(self._lines.readline())

    def _stream(self, number: int, wanted: Stream, theirs: contextlib.ExitStack) -> tuple[Any, int]:
        """Our end of a pipe, and what the program gets."""
        if wanted == DEVNULL:
            null = os.open(os.devnull, os.O_RDWR)
            theirs.callback(os.close, null)
            return None, null
        if wanted != PIPE:
            return None, number if wanted is None else wanted if isinstance(wanted, int) else wanted.fileno()
        reading, writing = os.pipe()
        ours, its = (writing, reading) if number == 0 else (reading, writing)
        theirs.callback(os.close, its)
        self._pipes.append(open(ours, "r" if number else "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - a descriptor
        return self._pipes[-1], its

    def poll(self) -> int | None:
        """Its exit code, as that of `Popen`, once it has ended."""
        if self.returncode is None and select.select([self._answers], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise TimeoutError(f"the program has not ended after {timeout} s")
            self.returncode = int(self._lines.readline())
            self._lines.close()
            self._answers.close()
        return self.returncode

    def communicate(self, given: str = "", timeout: float | None = None) -> tuple[str, str]:
        """What a program that says little wrote to its pipes, once it has ended."""
        with self:
            if self.stdin is not None and not self.stdin.closed:
                with contextlib.suppress(BrokenPipeError):
                    self.stdin.write(given)
                    self.stdin.close()
            out, err = (pipe.read() if pipe else "" for pipe in (self.stdout, self.stderr))
            self.wait(timeout)
        return out, err

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        if self.poll() is None:
            self.send_signal(signal.SIGKILL)

    def __enter__(self) -> ForkedProgram:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.kill()
        with contextlib.ExitStack() as ends:  # each is closed, even if closing another one fails
            ends.callback(self.wait)
            for pipe in reversed(self._pipes):
                ends.callback(_close, pipe)


def _close(pipe: IO[Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        pipe.close()


def run_forked(
    words: Sequence[object], *, given: str = "", stdout: Stream = PIPE, **options: Any
) -> subprocess.CompletedProcess[str]:
    """What `python WORDS` comes to, with text for stdin; what goes to another `stdout` is not in the answer."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        stdin.write(given.encode())
        stdin.seek(0)
        with ForkedProgram(
            words, stdin=stdin, stdout=out if stdout == PIPE else stdout, stderr=err, **options
        ) as program:
            code = program.wait()
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess(words, code, *said)


@functools.cache
def _server(imports: tuple[str, ...]) -> socket.socket:
    """The connection to a process that forks the programs of these tests: it ends with them.

    One that has imported more is forked from the one that has imported what all need.
    """
    ours, theirs = socket.socketpair()
    env = {**os.environ, "PYTHONPATH": ""}  # each program adds its own
    process: ForkedProgram | subprocess.Popen[bytes]
    with theirs:
        if imports:
            process = ForkedProgram(["-m", "tests.forked_programs", *imports], stdin=theirs.fileno(), cwd=ROOT, env=env)
        else:
            process = subprocess.Popen([sys.executable, "-m", "tests.forked_programs"], stdin=theirs, cwd=ROOT, env=env)

    @atexit.register
    def end() -> None:
        ours.close()
        process.wait()

    return ours


def _serve(control: socket.socket) -> list[str]:
    """Fork a program for each request; returns in these alone, with their words."""
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for ready in select.select([control.fileno(), *running], [], [])[0]:
            if ready in running:
                pid, answers = running.pop(ready)
                os.close(ready)
                _say(answers, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                answers.close()
                continue
            _, files, _, _ = socket.recv_fds(control, 1, 4)
            if not files:
                os._exit(0)
            answers = socket.socket(fileno=files[0])
            with answers.makefile("rb") as reading:
                request = json.loads(reading.read())
            if not (pid := os.fork()):
                for each in (control, answers, *(other for _, other in running.values())):
                    each.close()
                for descriptor in running:
                    os.close(descriptor)
                return _become(request, files[1:])
            for descriptor in files[1:]:
                os.close(descriptor)
            running[os.pidfd_open(pid)] = pid, answers
            _say(answers, pid)


def _say(answers: socket.socket, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
        answers.sendall(b"%d\n" % number)


def _become(request: dict[str, Any], streams: list[int]) -> list[str]:
    if request["session"]:
        os.setsid()
    for number, (name, descriptor) in enumerate(zip(("stdin", "stdout", "stderr"), streams, strict=True)):
        os.dup2(descriptor, number)
        os.close(descriptor)
        mode, lines = "w" if number else "r", 1 if number == 2 or os.isatty(number) else -1
        errors = "backslashreplace" if number == 2 else "strict"
        stream = open(number, mode, lines, "utf-8", errors, closefd=False)  # noqa: SIM115 - a descriptor
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[1:1] = request["env"].get("PYTHONPATH", "").split(os.pathsep)
    words: list[str] = request["words"]
    return words


def _run(words: list[str]) -> None:
    """What the command line of Python does."""
    match words:
        case ["-m", module, *rest]:
            sys.argv, sys.path[0] = [module, *rest], str(Path.cwd())
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", code, *rest]:
            sys.argv, sys.path[0] = ["-c", *rest], ""
            names = vars(sys.modules["__main__"])
            fresh = {"__name__": "__main__", "__builtins__": builtins, "__spec__": None}
            names.clear()
            names.update(fresh)
            exec(compile(code, "<string>", "exec"), names)
        case [file, *rest]:
            sys.argv, sys.path[0] = [file, *rest], str(Path(file).parent)
            runpy.run_path(file, run_name="__main__")


if __name__ == "__main__":
    from tests.program_ending import ending  # isort: skip - before all others

    import tavern_core

    for package in IMPORTED:
        folder = Path(tavern_core.__path__[0], *package.split("."))
        for module in pkgutil.walk_packages([str(folder)], f"tavern_core.{package}."):
            importlib.import_module(module.name)
    for name in ("jsonschema_rs", *sys.argv[1:]):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    words = _serve(socket.socket(fileno=0))
    with ending.of_program():
        _run(words)
