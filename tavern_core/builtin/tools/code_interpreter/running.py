"""Calls of ``CodeInterpreter:execute``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import stat
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tavern_core.box.output import ScriptOutcome, collect
from tavern_core.box.policy import BoxUnavailable
from tavern_core.box.script_spawner import ScriptLaunch
from tavern_core.contract.protocols import Sandbox, ToolHome
from tavern_core.errors import CallTimeout, OutputTooLarge, PolicyDenied, ToolFailed, UpstreamError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.call import Rights, ToolCall
from tavern_core.model.capability_scope import common, folders
from tavern_core.schema.bounded_json_copying import measure

TOOL: Final = "CodeInterpreter:execute"
_ENVIRONMENT: Final = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONUTF8": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "NO_COLOR": "1",
}
_FILES: Final = ("read:fs", "write:fs")
"""The capabilities, besides the network, that code shares with its caller; for others, it needs tools."""
_PROGRAMS: Final = {"python": "python", "node": "node", "javascript": "node"}
_EXCERPT: Final = 2_000


async def run(language: str, code: str, call: ToolCall, home: ToolHome) -> dict[str, Any]:
    """Run `code` with the permissions of the call and return its output, its end, and the value of its last line.

    Raises:
        PolicyDenied: this machine has no complete box, or it is disabled, or the caller may not start the program of the
            language (POLICY_DENIED); nothing was run.
        ToolFailed: the language is not installed (TOOL_ERROR).
        CallTimeout: it took longer than `limits.scriptTimeoutMs` (TIMEOUT).
        OutputTooLarge: it printed more than `limits.outputBytes` (OUTPUT_TOO_LARGE).
    """
    _judge_caller(language, call)
    sandbox = await _box(home)
    interpreter = find_language(language)
    async with _folder(sandbox) as folder:
        main, value = folder / interpreter.file, folder / "value.json"
        main.write_text(code, encoding="utf-8", errors="surrogatepass")
        outcome = await _run_in(sandbox, interpreter, home, call, str(folder), interpreter.argv(str(main), str(value)))
        answer = _answer(outcome, home)
        return {**answer, "value": _value(value, home.limits.output_bytes)}


async def _box(home: ToolHome) -> Sandbox:
    missing = "no plugin or setting provides it"
    if home.sandbox is not None:
        missing = await asyncio.to_thread(lambda box=home.sandbox: box.missing)  # type: ignore[misc]
        if not missing:
            return home.sandbox
    raise PolicyDenied(
        f"{TOOL} runs code only in a whole box, which is not available: {missing}",
        hint="`tavern doctor` lists the layers of the box and what to do; without it no code is run",
        side="isolation",
        reason=missing,
    )


async def _run_in(
    sandbox: Sandbox, interpreter: InterpreterLanguage, home: ToolHome, call: ToolCall, folder: str, argv: list[str]
) -> ScriptOutcome:
    workspace = call.context.workspace_dir or ""
    rights = rights_of_code(call)
    policy = sandbox.policy(
        interpreter.program,
        rights,
        readable=[str(interpreter.driver)],
        writable=[folder],
        workspace=workspace,
        is_own=True,
    )
    environment = {**_ENVIRONMENT, "HOME": folder, "TMPDIR": folder}
    if workspace:
        environment["TAVERN_WORKSPACE"] = workspace
    limits = home.limits
    seconds = limits.script_timeout_ms / 1000
    launch = ScriptLaunch(tuple(argv), environment, folder, b"", seconds, policy.to_json())
    async with sandbox.gateway(rights, call) as serve:
        for _ in range(2):
            ended = await collect(sandbox.start(launch), limits.output_bytes, limits.stderr_bytes // 2, serve)
            if ended.reason != "untaken":  # else the program server had just been killed; the next one gets it
                break
    return ended


def rights_of_code(call: ToolCall) -> Rights:
    """The rights of code: files in the workspace of the call, and the network, each within the caller's permissions."""
    places = dict(call.rights.places)
    if call.context.workspace_dir:
        places["$workspace"] = str(Path(call.context.workspace_dir).expanduser().absolute())
    caller_scopes = call.context.scopes
    scopes = [(name, scope) for name, scope in call.rights.scopes if name == "network"]
    for name in _FILES:
        scope = folders(("$workspace",), places)
        scopes.append(
            (
                name,
                (common(name, scope, folders(caller_scopes[name], places)) if name in caller_scopes else scope) or (),
            )
        )
    return replace(call.rights, plugin=frozenset({*_FILES, "network"}), scopes=tuple(scopes))


def _judge_caller(language: str, call: ToolCall) -> None:
    """Refuse a language that is not among the programs that the caller may start."""
    names = call.context.scopes.get("process:spawn")
    if names is not None and not {language, _PROGRAMS[language]} & set(names):
        raise PolicyDenied(
            f"{TOOL}: the caller may not start {_PROGRAMS[language]} (the scope of process:spawn: {', '.join(names)[:200] or 'nothing'})",
            hint=f"CallContext(scopes={{'process:spawn': [{_PROGRAMS[language]!r}]}}), or none for process:spawn",
            missing=["process:spawn"],
        )


def _timed_out(ms: int, stdout: str, stderr: str) -> CallTimeout:
    return CallTimeout(
        f"the code did not end within {ms} ms (limits.scriptTimeoutMs)",
        hint="do less at a time, or raise limits.scriptTimeoutMs",
        outcome="unknown",
        stopped=True,
        limit="limits.scriptTimeoutMs",
        timeoutMs=ms,
        stdout=stdout[:_EXCERPT],
        stderr=stderr[:_EXCERPT],
    )


def _flooded(limit: int, stdout: str) -> OutputTooLarge:
    return OutputTooLarge(
        f"the code printed more than {limit:,} bytes and was stopped",
        hint="print less, or raise limits.outputBytes",
        outcome="unknown",
        limit=limit,
        stdout=stdout[:_EXCERPT],
    )


def _answer(ended: ScriptOutcome, home: ToolHome) -> dict[str, Any]:
    stdout = ended.stdout.decode("utf-8", "replace")
    stderr = (ended.stderr.head + ended.stderr.tail).decode("utf-8", "replace")
    match ended.reason:
        case "exit":
            return {"stdout": stdout, "stderr": stderr, "exitCode": os.waitstatus_to_exitcode(ended.status)}
        case "time":
            raise _timed_out(home.limits.script_timeout_ms, stdout, stderr)
        case "flood":
            raise _flooded(home.limits.output_bytes, stdout)
        case "boxless":
            box = BoxUnavailable(*(ended.missing or ("", "")))
            raise PolicyDenied(
                f"{TOOL} was not run: {box.message}",
                hint=box.hint,
                side="isolation",
                layer=box.layer,
                reason=box.reason,
            )
        case "failed":
            raise UpstreamError(f"{TOOL}: cannot start a process: {os.strerror(ended.errno)}", retryable=True)
        case reason:
            raise UpstreamError(
                f"{TOOL}: the fork server has ended ({reason})",
                outcome="none" if reason == "untaken" else "unknown",
                retryable=True,
            )


def _value(file: Path, most: int) -> Any:
    """The value that the driver left; None if there is no readable one. The code could have written anything there."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with open(descriptor, "rb", closefd=False) as opened:
            text = opened.read(most + 1)
    finally:
        os.close(descriptor)
    if len(text) > most:
        return None
    try:
        value = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    return value if measure(value) is None else None


@contextlib.asynccontextmanager
async def _folder(sandbox: Sandbox) -> AsyncIterator[Path]:
    try:
        folder = Path(sandbox.work_folder())
    except OSError as error:
        raise ToolFailed(f"{TOOL}: no temporary folder: {error.strerror or error}") from error
    try:
        yield folder
    finally:
        # In a thread, because code can leave a million files; completely, even if the call is cancelled meanwhile.
        removing = asyncio.get_running_loop().run_in_executor(None, lambda: shutil.rmtree(folder, ignore_errors=True))
        await asyncio.shield(removing)


# Languages ------------------------------------------------------------------------------------------------------------
# The languages: the program of each, and the driver that runs the code in the box.

DRIVERS: Final = Path(__file__).with_name("drivers")


@dataclass(frozen=True, slots=True)
class InterpreterLanguage:
    """The program and the driver that run the code of one language."""

    program: str
    """Absolute path."""
    options: tuple[str, ...]
    driver: Path
    file: str
    """The name of the file for the code."""

    def argv(self, code: str, value: str) -> list[str]:
        """The command line.

        Args:
            code: the file with the code.
            value: the file for the value of its last line.
        """
        return [self.program, *self.options, str(self.driver), code, value]


def find_language(name: str) -> InterpreterLanguage:
    """Find the program and the driver of a language. Raises ToolFailed: the program is not installed (TOOL_ERROR)."""
    if name == "python":
        if sys.executable:
            options = ("-I", "-B", "-X", "utf8")
            return InterpreterLanguage(sys.executable, options, DRIVERS / "python_driver.py", "main.py")
    elif (program := shutil.which("node")) is not None:
        return InterpreterLanguage(program, ("--no-warnings",), DRIVERS / "node_driver.js", "main.js")
    raise ToolFailed(
        f"{name} is not installed on this machine",
        hint="install Node.js so that `node` is found on PATH, or write Python",
        language=name,
        fixFor="operator",
    )
