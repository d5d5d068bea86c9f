"""One script call, from top to bottom."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tavern_core.builtin.executors.script.answer import Unreadable, error_in, excerpt, parse, signal_name
from tavern_core.builtin.executors.script.collect import Ended, Ends, collect
from tavern_core.builtin.executors.script.command import ScriptCommand, read_command
from tavern_core.builtin.executors.script.environment import check_names, environment
from tavern_core.builtin.executors.script.masking import Masking, secrets_of
from tavern_core.builtin.executors.script.places import Places
from tavern_core.builtin.executors.script.request import request
from tavern_core.builtin.executors.script.spawner import Launch, Spawner
from tavern_core.contract.protocols import BoundTool, ToolHome
from tavern_core.errors import (
    CallTimeout,
    ConnectionLost,
    Outcome,
    OutputTooLarge,
    SettingsInvalid,
    ToolFailed,
    ToolFileInvalid,
    UpstreamError,
)
from tavern_core.model.call import ToolCall
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.tool import ToolSpec

KEYS: Final = ("type", "command", "protocol", "timeout", "env", "cwd")
"""Keys of `implementation`."""
MOST_AT_ONCE: Final = 64
"""Scripts of one host that run at the same time; each takes a few processes and descriptors, further ones wait."""


class ScriptExecutor:
    """Runs programs of plugins, each in a process tree of its own that ends with the call."""

    def __init__(self) -> None:
        self._spawner = Spawner()
        self._places = Places(MOST_AT_ONCE)

    def bind(self, tool: ToolSpec, home: ToolHome, /) -> BoundTool:
        """Check the command; nothing is started.

        Raises:
            ToolFileInvalid: a key, the command, the folder or the environment is not allowed (TOOL_FILE_INVALID).
        """
        script = _Script(tool, home, _read(tool, home), check_names(tool.name, _env(tool)), _timeout_ms(tool, home))

        async def run(arguments: Mapping[str, Any], call: ToolCall | None) -> Any:
            return await self._run(script, arguments, call.id if call is not None else "")

        return BoundTool(run, is_async=True, blocking=False, wants_call=True, stoppable=True)

    def close(self) -> None:
        """End the process that starts scripts."""
        self._spawner.close()

    async def _run(self, script: _Script, arguments: Mapping[str, Any], call_id: str) -> Any:
        config = script.settings()
        masking = Masking(secrets_of(script.tool.config_schema, config))
        launch = script.launch(arguments, config, call_id)
        async with self._places.one():
            ended = await self._watched(launch, script, masking)
            if ended.reason == "untaken":  # the keeper was killed just before; the next one takes it
                ended = await self._watched(launch, script, masking)
        return _Report(script, ended, masking).answer()

    async def _watched(self, launch: Launch, script: _Script, masking: Masking) -> Ended:
        limits = script.home.limits
        child = self._spawner.start(launch)
        return await collect(child, limits.output_bytes, limits.stderr_bytes // 2 + masking.longest)


@dataclass(frozen=True, slots=True)
class _Script:
    """One bound tool."""

    tool: ToolSpec
    home: ToolHome
    command: ScriptCommand
    names: tuple[str, ...]
    timeout_ms: int

    def settings(self) -> dict[str, Any]:
        """The tool's own settings, secrets included.

        Raises:
            ToolFailed: a required one has no value (TOOL_ERROR); nothing was started.
        """
        try:
            return dict(self.home.settings())
        except SettingsInvalid as error:
            what = "; ".join(map(str, error.findings)) or error.message
            raise ToolFailed(
                f"{self.tool.name} is not set up: {what}", hint=error.hint, findings=error.findings
            ) from None

    def launch(self, arguments: Mapping[str, Any], config: Mapping[str, Any], call_id: str) -> Launch:
        name = self.tool.name
        if (argv := self.command.argv(_find)) is None:
            runner = self.command.runner
            raise UpstreamError(
                f"{name}: {runner} is not installed on this machine",
                hint=f"install {runner} so that it is found on PATH",
                runner=runner,
            )
        env = environment(os.environ, self.names, name, call_id)
        stdin = request(arguments, config, call_id, name, self.timeout_ms)
        return Launch(argv, env, str(self.command.folder), stdin, self.timeout_ms / 1000)


def _find(runner: str) -> str | None:
    if runner == "python":
        return sys.executable or None  # the host's own: the plugin's dependencies are installed there
    return shutil.which(runner)


def _read(tool: ToolSpec, home: ToolHome) -> ScriptCommand:
    given = tool.implementation
    if unknown := sorted(k for k, v in given.items() if k not in KEYS and v not in (None, (), [], "")):
        raise ToolFileInvalid(f"tool {tool.name}: a script has no {unknown[0]!r}", hint=did_you_mean(unknown[0], KEYS))
    if given.get("protocol") not in (None, "stdio"):
        raise ToolFileInvalid(
            f"tool {tool.name}: protocol {given['protocol']!r} does not exist", hint='"protocol": "stdio"'
        )
    if home.folder is None:
        raise ToolFileInvalid(
            f"tool {tool.name}: a script needs a plugin folder to lie in",
            hint="install the plugin as a package or a folder, or offer a Python function instead",
        )
    if not sys.platform.startswith("linux"):
        raise ToolFileInvalid(f"tool {tool.name}: script tools need Linux, this is {sys.platform}")
    return read_command(tool.name, given.get("command"), given.get("cwd"), home.folder)


def _env(tool: ToolSpec) -> tuple[str, ...]:
    names = tool.implementation.get("env") or ()
    if not isinstance(names, list | tuple):
        raise ToolFileInvalid(f"tool {tool.name}: implementation.env must be a list of names, got {names!r}")
    return tuple(names)


def _timeout_ms(tool: ToolSpec, home: ToolHome) -> int:
    own = tool.implementation.get("timeout") or tool.timeout_ms
    if own is None:
        return home.limits.script_timeout_ms
    if isinstance(own, bool) or not isinstance(own, int) or own <= 0:
        raise ToolFileInvalid(f"tool {tool.name}: timeout must be a number of milliseconds above 0, got {own!r}")
    return own


class _Report:
    """What an ended script comes to: its answer, or the one error that says what went wrong."""

    def __init__(self, script: _Script, ended: Ended, masking: Masking) -> None:
        self._script = script
        self._ended = ended
        self._masking = masking
        self._name = script.tool.name
        self._outcome: Outcome = "none" if script.tool.read_only else "unknown"

    def answer(self) -> Any:
        """The value on stdout.

        Raises:
            ToolFailed: the script says that it could not do it (TOOL_ERROR).
            CallTimeout: its time was over (TIMEOUT).
            OutputTooLarge: it printed more than the limit (OUTPUT_TOO_LARGE).
            ConnectionLost: its guard was killed (CONNECTION_LOST).
            UpstreamError: it crashed, was killed, or printed no JSON (UPSTREAM_ERROR).
        """
        match self._ended.reason:
            case "time":
                ms = self._script.timeout_ms
                raise CallTimeout(
                    f"{self._name} did not end within {ms} ms",
                    hint="ask for less, or raise `timeout` in its tool file",
                    outcome=self._outcome,
                    stopped=not self._ended.left,
                    timeoutMs=ms,
                    **self._stderr(),
                )
            case "flood":
                limit = self._script.home.limits.output_bytes
                raise OutputTooLarge(
                    f"{self._name} printed more than {limit:,} bytes and was stopped",
                    hint="ask for less, or raise limits.outputBytes",
                    outcome=self._outcome,
                    limit=limit,
                )
            case "lost" | "untaken" | "stop" | "kill":
                raise ConnectionLost(
                    f"{self._name}: the process that watches over the script went away",
                    outcome=self._outcome,
                    **self._stderr(),
                )
            case "failed":
                raise self._not_started()
            case "exit":
                return self._exited()

    def _exited(self) -> Any:
        code = os.waitstatus_to_exitcode(self._ended.status)
        try:
            value = self._masking.value(parse(self._ended.stdout))
        except Unreadable as error:
            if code:
                raise self._crashed(code) from None
            raise self._unreadable(str(error)) from None
        if (failed := error_in(value, self._outcome)) is not None:
            if code:
                failed.details.setdefault("exitCode", code)
            raise failed
        if code:
            raise self._crashed(code)
        return value

    def _not_started(self) -> UpstreamError:
        return UpstreamError(
            f"{self._name}: {self._script.command.file.name} cannot be started: {os.strerror(self._ended.errno)}",
            hint="check that the file exists, may be executed and begins with a `#!` line that names an installed program",
            errno=self._ended.errno,
        )

    def _crashed(self, code: int) -> UpstreamError:
        how = f"was ended by {signal_name(code)}" if code < 0 else f"ended with exit code {code}"
        which = {"signal": signal_name(code)} if code < 0 else {"exitCode": code}
        details: dict[str, Any] = {**which, **self._stderr(), **self._stdout()}
        last = str(details.get("stderr", "")).rstrip().rpartition("\n")[2]
        return UpstreamError(
            f"{self._name} {how}{f': {excerpt(last)}' if last else ''}",
            hint="details.stderr has what it said; print one JSON value and end with exit code 0",
            outcome=self._outcome,
            **details,
        )

    def _unreadable(self, why: str) -> UpstreamError:
        return UpstreamError(
            f"{self._name} gave no JSON answer: {self._masking.text(why)}",
            hint="print exactly one JSON value to stdout, and everything else to stderr",
            outcome=self._outcome,
            exitCode=0,
            **self._stdout(),
            **self._stderr(),
        )

    def _stdout(self) -> dict[str, Any]:
        text = self._ended.stdout[:4096].decode("utf-8", "replace")
        return {"stdout": excerpt(self._masking.text(text))} if text.strip() else {}

    def _stderr(self) -> dict[str, Any]:
        """The beginning and the end of stderr; masked before it is cut, so that no half of a secret stays."""
        ends: Ends = self._ended.stderr
        limit = self._script.home.limits.stderr_bytes
        head, tail = (self._masking.text(part.decode("utf-8", "replace")) for part in (ends.head, ends.tail))
        if ends.dropped:
            half = limit // 2
            text = f"{head[:half]}\n… {ends.dropped:,} bytes left out …\n{tail[-half:] if half else ''}"
        else:
            text = self._masking.text(f"{(ends.head + ends.tail).decode('utf-8', 'replace')}")
        return {"stderr": text} if text.strip() and limit else {}
