"""The program of an upstream, in the sandbox of scripts or, if granted, outside; ended with its process tree.

    process = await start_process(["mcp-server-time"], ProcessEnvironment(folder, environment), sandbox, rights)
    await process.write(b"…\\n")
    async for line in process.lines(4_000_000): ...
    await process.close()

Inside or outside of a box, a program has a guard outside of the host's process (`box/script_fork_job.py`): it kills
what the program leaves behind, even in other sessions, and even if the host is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tavern_core.box import runtime_paths
from tavern_core.box.fork_server_client import ending
from tavern_core.box.output import STOPPING_S, HeadAndTail, ScriptOutcome, Serve, StatusReader
from tavern_core.box.script_spawner import ScriptLaunch, ScriptProcess
from tavern_core.contract.protocols import Sandbox
from tavern_core.errors import CallError, ConnectionLost, OutputTooLarge, PolicyDenied, UpstreamError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.call import Rights
from tavern_core.model.environment_variables import is_refused
from tavern_core.schema.secret_scanning import redact_text

START_S: Final = 20.0
"""Seconds that the guard may take to start a program."""
_FOR_EVER_S: Final = 30_000_000.0
"""About a year: some systems accept no larger number in select."""
_AT_ONCE: Final = 65_536
_MOST_HELD: Final = 1_000_000
"""Bytes that wait for the reader; the rest stays in the pipe, and the program waits."""
_STDERR_HALF: Final = 8_192
_TAIL: Final = 600
"""Characters of stderr that an error quotes."""


@dataclass(frozen=True, slots=True)
class ProcessEnvironment:
    """The working directory and environment of a program."""

    folder: str
    """The working directory: the folder of tavern.yaml."""
    environment: Mapping[str, str]
    """The variables of the entry, secrets resolved, added to those that every program gets. Some are never passed."""
    secrets: tuple[str, ...] = ()
    """Texts to remove from its stderr."""


async def start_process(
    argv: Sequence[str], env: ProcessEnvironment, sandbox: Sandbox, rights: Rights, *, trusted: bool = False
) -> RunningProcess:
    """Start a program; return when it runs.

    Args:
        argv: program and arguments. A program is searched on PATH, then next to this interpreter; with a slash in its
            name, relative to `env.folder`.
        sandbox: of the upstream.
        rights: what was granted to the upstream: paths, network, other programs.
        trusted: whether it runs outside of every sandbox, with the rights of the host; its process tree still ends as
            a whole.

    Raises:
        PolicyDenied: the sandbox is not available on this machine (POLICY_DENIED).
        UpstreamError: there is no such program, or it cannot be run (UPSTREAM_ERROR).
        ConnectionLost: the server that starts programs cannot be reached (CONNECTION_LOST).
    """
    program = _program_path(argv[0], env)
    words = (program, *argv[1:])
    async with contextlib.AsyncExitStack() as opened:
        work = "" if trusted else _work_folder(sandbox, opened)
        policy, serve = "", None
        if not trusted:
            named_files = [path for word in argv[1:] if (path := _existing(word, env.folder))]
            policy = sandbox.policy(program, rights, readable=named_files, writable=[work]).to_json()
            serve = await opened.enter_async_context(sandbox.gateway(rights, None))
        launch = ScriptLaunch(words, _environment(env, work), env.folder, None, _FOR_EVER_S, policy)
        child = sandbox.start(launch)
        process = RunningProcess(argv[0], child, sandbox, serve, env.secrets, opened.pop_all())
    try:
        await process.begun(START_S)
    except BaseException:
        await process.kill()
        raise
    return process


class RunningProcess:
    """`contract.adapters.Process`. Used on the event loop on which it was started.

    Args:
        child: closed with the process.
        sandbox: gets the layers that its box lacks.
        serve: gets the gateway of its box; None: it has none.
        secrets: texts to remove from its stderr.
        opened: resources that are closed after it.
    """

    def __init__(
        self,
        name: str,
        child: ScriptProcess,
        sandbox: Sandbox,
        serve: Serve | None,
        secrets: tuple[str, ...],
        opened: contextlib.AsyncExitStack,
    ) -> None:
        self._name = name
        self._child = child
        self._sandbox = sandbox
        self._secrets = secrets
        self._opened = opened
        self._loop = asyncio.get_running_loop()
        self._stderr = HeadAndTail(_STDERR_HALF)
        self._started: asyncio.Future[ScriptOutcome | None] = self._loop.create_future()
        self._ended: asyncio.Future[ScriptOutcome] = self._loop.create_future()
        self._writable: asyncio.Future[None] | None = None
        """The future of a writer that waits for its stdin."""
        self._writing = asyncio.Lock()
        self._is_closed = False
        self._stdin = child.stdin
        self._chunks: deque[bytes] = deque()
        self._held = 0
        """The bytes in `_chunks`."""
        self._is_reading = False
        self._is_at_end = False
        self._arrived: asyncio.Future[None] | None = None
        self._loop.add_reader(child.stderr, self._read_stderr)
        self._reports = StatusReader(child, self, serve)

    def on_started(self) -> None:
        """See `ChildListener`."""
        self._started.set_result(None)

    def on_ended(self, ended: ScriptOutcome) -> None:
        """See `ChildListener`."""
        self._read_stderr()
        if ended.skipped:
            self._sandbox.weak(ended.skipped)
        self._ended.set_result(ended)
        if not self._started.done():
            self._started.set_result(ended)

    async def begun(self, seconds: float) -> None:
        """Wait until the program runs; raises as `start_process` does."""
        await asyncio.wait([self._started], timeout=seconds)
        ended = self._started.result() if self._started.done() else ScriptOutcome("lost")
        if ended is not None:
            raise self._end_error(ended)

    async def write(self, data: bytes) -> None:
        """Write all of `data` to its stdin; raises ConnectionLost (CONNECTION_LOST)."""
        rest = memoryview(data)
        async with self._writing:
            while rest:
                if self._stdin < 0:
                    raise self._lost()
                try:
                    rest = rest[os.write(self._stdin, rest[:_AT_ONCE]) :]
                except BlockingIOError:
                    await self._until_writable()
                except OSError:
                    break  # no writer waits for the lock while its end is not reported yet
            else:
                return
        raise await self._ending()

    async def lines(self, most: int) -> AsyncIterator[bytes]:
        """See `Process.lines`. Raises ConnectionLost: it has ended (CONNECTION_LOST)."""
        parts: list[bytes] = []
        size = 0
        while True:
            first, *further = (await self._read()).split(b"\n")
            parts.append(first)
            size += len(first)
            if size > most:
                raise OutputTooLarge(
                    f"{self._name} wrote a line of more than {most:,} bytes", outcome="unknown", limit=most
                )
            if further:
                yield b"".join(parts)
                for line in further[:-1]:
                    yield line
                parts, size = [further[-1]], len(further[-1])

    @property
    def errors(self) -> str:
        """The end of what it wrote to stderr, redacted."""
        ends = self._stderr.content()
        text = (ends.tail if ends.dropped else ends.head + ends.tail).decode("utf-8", "replace")
        return redact_text(text, self._secrets)

    async def close(self, grace_s: float = 2.0) -> None:
        """See `Process.close`. Waiting readers and writers fail with ConnectionLost (CONNECTION_LOST)."""
        if self._is_closed:
            return
        try:
            self._close_stdin()
            await asyncio.wait([self._ended], timeout=grace_s)
            if not self._ended.done():
                self._child.send("stop")
                await asyncio.wait([self._ended], timeout=STOPPING_S)
        finally:
            await self.kill()

    async def kill(self) -> None:
        """End it at once, with its whole process tree; then close its resources."""
        self._release()
        await self._opened.aclose()

    def _release(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._close_stdin()
        self._reports.close()
        self._loop.remove_reader(self._child.stderr)
        self._loop.remove_reader(self._child.stdout)
        if self._arrived is not None:
            _finish(self._arrived)
        self._child.send("kill")
        self._child.close()

    async def _read(self) -> bytes:
        """The next piece of its stdout, which is read on arrival and waits here."""
        while not self._chunks:
            if self._is_closed:
                raise self._lost()
            if self._is_at_end:
                raise await self._ending()
            if not self._is_reading:
                self._is_reading = True
                self._loop.add_reader(self._child.stdout, self._read_stdout)
            self._arrived = self._loop.create_future()
            await self._arrived
        data = self._chunks.popleft()
        self._held -= len(data)
        if len(data) == _AT_ONCE:  # it writes faster than it is read: let other tasks run
            await asyncio.sleep(0)
        return data

    def _read_stdout(self) -> None:
        try:
            data = os.read(self._child.stdout, _AT_ONCE)
        except OSError:
            return
        self._chunks.append(data) if data else None
        self._held += len(data)
        self._is_at_end = not data
        if not data or self._held > _MOST_HELD:
            self._is_reading = False
            self._loop.remove_reader(self._child.stdout)
        if self._arrived is not None:
            _finish(self._arrived)

    async def _until_writable(self) -> None:
        """Wait until its stdin can be written to, or is closed."""
        self._writable = self._loop.create_future()
        self._loop.add_writer(self._stdin, _finish, self._writable)
        try:
            await self._writable
        finally:
            if self._stdin >= 0:
                self._loop.remove_writer(self._stdin)

    def _close_stdin(self) -> None:
        if self._stdin >= 0:
            self._loop.remove_writer(self._stdin)
            if self._writable is not None:
                _finish(self._writable)
            self._child = self._child.without_stdin()
            self._stdin = -1

    def _read_stderr(self) -> None:
        try:
            data = os.read(self._child.stderr, _AT_ONCE)
        except OSError:
            return
        if data:
            self._stderr.add(data)
        else:
            self._loop.remove_reader(self._child.stderr)

    async def _ending(self) -> CallError:
        """The error for its end, which is reported a moment after its streams have closed."""
        await asyncio.wait([self._ended], timeout=0.5)
        return self._lost()

    def _lost(self) -> CallError:
        if self._is_closed:
            return ConnectionLost(f"the connection to {self._name} was closed", outcome="unknown", retryable=True)
        return self._end_error(self._ended.result() if self._ended.done() else ScriptOutcome("stop"))

    def _end_error(self, ended: ScriptOutcome) -> CallError:
        """The error for its end, with the end of its stderr."""
        if ended.reason == "boxless" and ended.missing is not None:
            return PolicyDenied(
                f"{self._name} may only run in a sandbox, and this machine lacks a layer of it: {': '.join(ended.missing)}",
                hint="`isolation: {level: best-effort}` in tavern.yaml starts it without; `tavern doctor` says what is missing",
            )
        if ended.reason == "failed":
            return UpstreamError(f"{self._name} cannot be run: {os.strerror(ended.errno)}")
        if ended.reason in ("lost", "untaken"):
            return ConnectionLost(f"{self._name} could not be started, or what watches it was killed", retryable=True)
        code = os.waitstatus_to_exitcode(ended.status) if ended.status >= 0 else None
        end = (
            "closed its output"
            if code is None
            else f"ended with code {code}"
            if code >= 0
            else f"ended by {ending(code)}"
        )
        stderr = self.errors.strip()
        return ConnectionLost(
            f"{self._name} {end}" + (f": {stderr[-_TAIL:]}" if stderr else ""), outcome="unknown", retryable=True
        )


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _program_path(program: str, env: ProcessEnvironment) -> str:
    if "/" in program:
        path = str(Path(env.folder, program))
        if not Path(path).is_file():
            raise UpstreamError(f"there is no file {program!r:.200}", hint="correct its path in `command`")
        if not os.access(path, os.X_OK):
            raise UpstreamError(f"the file {program!r:.200} may not be executed", hint="chmod +x makes it a program")
    else:
        places = (env.environment.get("PATH") or os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent))
        if (which := shutil.which(program, path=os.pathsep.join(places))) is None:
            raise UpstreamError(
                f"{program!r:.200} is not an installed program", hint="install it, or name it by its path in `command`"
            )
        path = which
    return str(Path(path).absolute())


def _existing(word: str, folder: str) -> str:
    """The path that an argument names; empty: none. Files named on the reviewed command line may be read."""
    with contextlib.suppress(OSError, ValueError):
        if not word.startswith("-") and (path := Path(folder, word)).exists():
            return str(path.resolve())
    return ""


def _work_folder(sandbox: Sandbox, opened: contextlib.AsyncExitStack) -> str:
    try:
        work = sandbox.work_folder()
    except OSError as error:
        raise UpstreamError(f"no work folder can be made: {error.strerror or error}", retryable=True) from error
    opened.push_async_callback(asyncio.to_thread, shutil.rmtree, work, ignore_errors=True)
    return work


def _environment(env: ProcessEnvironment, work: str) -> dict[str, str]:
    environment = runtime_paths.program_environment(os.environ, work)
    return environment | {name: value for name, value in env.environment.items() if not is_refused(name)}
