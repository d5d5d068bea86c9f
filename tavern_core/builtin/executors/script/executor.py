"""Calls of script tools.

The stdin of a script is one JSON object in UTF-8:

    {"url": "https://…",                                    the arguments, by name, for short scripts
     "arguments": {"url": "https://…"},                     the same as one object
     "config": {"bilibiliCookie": "…"},                     the tool's own settings (`configSchema`), secrets included
     "call": {"id": "c-1", "tool": "a:b", "timeoutMs": 30000}}

An argument whose name is `arguments`, `config` or `call` is found only inside `arguments`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final

from tavern_core.box.output import ScriptOutcome, Serve, collect
from tavern_core.box.script_spawner import ScriptLaunch, ScriptSpawner
from tavern_core.builtin.executors.script.command import (
    ScriptCommand,
    check_names,
    environment,
    granted_places,
    read_command,
    vcp_settings,
)
from tavern_core.builtin.executors.script.masking import ScriptMasking, secrets_of
from tavern_core.builtin.executors.script.queue import ScriptSlots
from tavern_core.builtin.executors.script.report import ScriptBox, ScriptDeadline, ScriptReport
from tavern_core.builtin.executors.script.work_folder import (
    WorkFolder,
    artifact_parameters,
    with_files,
    with_links,
    work_folder,
)
from tavern_core.contract.protocols import BoundTool, ToolHome
from tavern_core.contract.tool_context import ToolContext
from tavern_core.contract.tool_settings import settings_for_call
from tavern_core.contract.trace_context import trace_headers
from tavern_core.errors import InputInvalid, ToolFileInvalid, UpstreamError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.call import Rights, ToolCall
from tavern_core.model.config import LimitsConfig
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.tool import ToolSpec
from tavern_core.schema.bounded_json_copying import measure

KEYS: Final = ("type", "command", "protocol", "timeout", "env", "cwd", "outputs")
"""Keys of `implementation`."""
VCP: Final = "vcp"
"""The protocol of VCP plugins: their input, their configuration and their answers. Its key `send` names the command."""
TEXT: Final = "text"
"""Ordinary programs: the argument `input` is their stdin, and what they print and their exit code are the answer."""
MOST_AT_ONCE: Final = 64
"""Scripts of one host that run at the same time; each takes a few processes and descriptors, further ones wait."""


class ScriptExecutor:
    """Runs programs of plugins, each in its own process tree, which ends with the call."""

    def __init__(self) -> None:
        self._spawner = ScriptSpawner()
        self._slots = ScriptSlots(MOST_AT_ONCE)

    def bind(self, tool: ToolSpec, home: ToolHome, /) -> BoundTool:
        """Check the command; nothing is started.

        Raises:
            ToolFileInvalid: a key, the command, the folder or the environment is not allowed (TOOL_FILE_INVALID).
        """
        script = _Script(
            tool,
            home,
            _read(tool, home),
            check_names(tool.name, _env(tool)),
            _deadline(tool, home),
            _outputs(tool),
            artifact_parameters(tool),
        )

        async def run(arguments: Mapping[str, Any], call: ToolCall | None) -> Any:
            return await self._run(script, arguments, call)

        return BoundTool(
            run, is_async=True, blocking=False, wants_call=True, stoppable=True, wants_control=True,
            place="as a program of its own",
        )  # fmt: skip

    def close(self) -> None:
        """End the process that starts scripts."""
        self._spawner.close()

    async def _run(self, script: _Script, arguments: Mapping[str, Any], call: ToolCall | None) -> Any:
        config = script.settings()
        masking = ScriptMasking(secrets_of(script.tool.config_schema, config))
        ctx = ToolContext(call.id if call is not None else "")
        in_thread = asyncio.get_running_loop().run_in_executor
        async with self._slots.one(), work_folder(script.home.sandbox) as work:
            if script.takes:
                arguments = await in_thread(None, with_files, arguments, script.takes, ctx, work)
            launch, box = script.launch(arguments, config, call, work)
            async with script.gateway(call, box) as serve:
                ended = await self._run_once(launch, script.home.limits, serve)
                if ended.reason == "untaken":  # the fork server had just been killed; the next one gets it
                    ended = await self._run_once(launch, script.home.limits, serve)
            script.report_box(ended)
            answer = script.report(ended, masking, box).answer()
            if script.outputs or (work.out and os.listdir(work.out)):  # noqa: PTH208 - of a string, and mostly empty
                return await in_thread(None, with_links, answer, script.outputs, ctx, work)
        return answer

    async def _run_once(self, launch: ScriptLaunch, limits: LimitsConfig, serve: Serve | None) -> ScriptOutcome:
        child = self._spawner.start(launch)
        return await collect(child, limits.output_bytes, limits.stderr_bytes // 2, serve)


@dataclass(frozen=True, slots=True)
class _Script:
    """A script tool that is ready to run."""

    tool: ToolSpec
    home: ToolHome
    command: ScriptCommand
    names: tuple[str, ...]
    deadline: ScriptDeadline
    outputs: tuple[str, ...]
    """Names of the files that it leaves; empty: any."""
    takes: tuple[str, ...]
    """Parameters that are artifacts."""

    @property
    def is_vcp(self) -> bool:
        return self.tool.implementation.get("protocol") == VCP

    def settings(self) -> dict[str, Any]:
        """The tool's own settings, secrets included; of a VCP plugin those of the plugin.

        Raises:
            ToolFailed: a required one has no value (TOOL_ERROR); nothing was started.
        """
        return dict(settings_for_call(self.tool, self.home.plugin_settings if self.is_vcp else self.home.settings))

    def launch(
        self, arguments: Mapping[str, Any], config: Mapping[str, Any], call: ToolCall | None, work: WorkFolder
    ) -> tuple[ScriptLaunch, ScriptBox | None]:
        """The launch of one call, and its box.

        Args:
            work: the folders of this call.

        Raises:
            UpstreamError: its runner is not installed (UPSTREAM_ERROR).
        """
        name, call_id = self.tool.name, call.id if call is not None else ""
        if (argv := self.command.argv(_find)) is None:
            runner = self.command.runner
            raise UpstreamError(
                f"{name}: {runner} is not installed on this machine",
                hint=f"install {runner} so that it is found on PATH",
                runner=runner,
            )
        env = environment(os.environ, self.names, name, call_id, work.home, work.out)
        env |= {header.upper(): value for header, value in trace_headers().items()}
        if self.is_vcp:
            stdin = vcp_request(arguments, str(self.tool.implementation.get("send", "")), name)
            env = vcp_settings(config) | env
        elif self.tool.implementation.get("protocol") == TEXT:
            stdin = str(arguments.get("input", "")).encode("utf-8", "replace")
        else:
            stdin = request(arguments, config, call_id, name, self.deadline.ms)
        policy, box, places = self._box(argv[0], call, work)
        return ScriptLaunch(argv, env | places, str(self.command.folder), stdin, self.deadline.ms / 1000, policy), box

    def gateway(self, call: ToolCall | None, box: ScriptBox | None) -> AbstractAsyncContextManager[Serve | None]:
        """The network access of its box, while it runs."""
        if self.home.sandbox is None or box is None:
            return nullcontext()
        return self.home.sandbox.gateway(call.rights if call is not None else Rights(), call, box.refused.append)

    def report_box(self, ended: ScriptOutcome) -> None:
        """Report it if the script ran in a weaker box than required."""
        if ended.skipped and self.home.sandbox is not None:
            self.home.sandbox.weak(ended.skipped)

    def _box(
        self, program: str, call: ToolCall | None, work: WorkFolder
    ) -> tuple[str, ScriptBox | None, dict[str, str]]:
        """(policy, box for reports, variables with the granted places)."""
        if self.home.sandbox is None or self.home.folder is None or not work.home:
            return "", None, {}
        rights = call.rights if call is not None else Rights()
        workspace = (call.context.workspace_dir or "") if call is not None else ""
        readable = {str(self.home.folder), str(self.home.folder.resolve()), str(self.command.file)}
        # An editable-strict install is a tree of links into the source folder.
        readable.add(str((self.home.folder / "plugin.yaml").resolve().parent))
        if self.takes:
            readable.add(work.given)
        policy = self.home.sandbox.policy(
            program, rights, readable=sorted(readable), writable=[work.home, work.out], workspace=workspace
        )
        return policy.to_json(), ScriptBox(self.home.sandbox, rights, policy), granted_places(policy, workspace)

    def report(self, ended: ScriptOutcome, masking: ScriptMasking, box: ScriptBox | None) -> ScriptReport:
        file, limits = self.command.file.name, self.home.limits
        return ScriptReport(self.tool, ended, masking, limits, file=file, deadline=self.deadline, box=box)


def _find(runner: str) -> str | None:
    if runner == "python":
        return sys.executable or None  # the host's own, which has the plugin's dependencies
    return shutil.which(runner)


def _read(tool: ToolSpec, home: ToolHome) -> ScriptCommand:
    implementation = tool.implementation
    keys = (*KEYS, "send") if implementation.get("protocol") == VCP else KEYS
    if unknown := sorted(k for k, v in implementation.items() if k not in keys and v not in (None, (), [], "")):
        raise ToolFileInvalid(f"tool {tool.name}: a script has no {unknown[0]!r}", hint=did_you_mean(unknown[0], keys))
    if implementation.get("protocol") not in (None, "stdio", VCP, TEXT):
        raise ToolFileInvalid(
            f"tool {tool.name}: protocol {implementation['protocol']!r} does not exist", hint='"protocol": "stdio"'
        )
    if home.folder is None:
        raise ToolFileInvalid(
            f"tool {tool.name}: a script needs a plugin folder to lie in",
            hint="install the plugin as a package or a folder, or offer a Python function instead",
        )
    if not sys.platform.startswith("linux"):
        raise ToolFileInvalid(f"tool {tool.name}: script tools need Linux, this is {sys.platform}")
    return read_command(tool.name, implementation.get("command"), implementation.get("cwd"), home.folder)


def _env(tool: ToolSpec) -> tuple[str, ...]:
    names = tool.implementation.get("env") or ()
    if not isinstance(names, list | tuple):
        raise ToolFileInvalid(f"tool {tool.name}: implementation.env must be a list of names, got {names!r}")
    return tuple(names)


def _outputs(tool: ToolSpec) -> tuple[str, ...]:
    names = tool.implementation.get("outputs") or ()
    if not isinstance(names, list | tuple) or not all(isinstance(one, str) and one and "/" not in one for one in names):
        raise ToolFileInvalid(
            f"tool {tool.name}: implementation.outputs must be a list of file names, got {names!r:.200}",
            hint='"outputs": ["report.pdf", "*.png"]',
        )
    return tuple(names)


def _deadline(tool: ToolSpec, home: ToolHome) -> ScriptDeadline:
    timeout = tool.implementation.get("timeout") or tool.timeout_ms
    if timeout is None:
        return ScriptDeadline(home.limits.script_timeout_ms, "limits.scriptTimeoutMs")
    if isinstance(timeout, bool) or not isinstance(timeout, int) or timeout <= 0:
        raise ToolFileInvalid(f"tool {tool.name}: timeout must be a number of milliseconds above 0, got {timeout!r}")
    return ScriptDeadline(timeout, "the tool's timeout")


def vcp_request(arguments: Mapping[str, Any], command: str, tool: str) -> bytes:
    """The bytes for the stdin of a VCP plugin: the arguments, and the name of its command.

    Raises:
        InputInvalid: a value that JSON cannot express, with its path (INPUT_SCHEMA_INVALID).
    """
    values = dict(arguments)
    _refuse_unsayable(tool, "argument", values)
    return json.dumps({**values, "command": command}, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _refuse_unsayable(tool: str, what: str, value: Mapping[str, Any]) -> None:
    if (problem := measure(value)) is not None:
        raise InputInvalid(
            f"{tool}: {what} {problem.path} {problem.message}", hint=problem.hint, problems=[problem.to_json()]
        )


def request(arguments: Mapping[str, Any], config: Mapping[str, Any], call_id: str, tool: str, timeout_ms: int) -> bytes:
    """The bytes for stdin.

    Raises:
        InputInvalid: a value that JSON cannot express, with its path (INPUT_SCHEMA_INVALID).
    """
    values, settings = dict(arguments), dict(config)
    _refuse_unsayable(tool, "argument", values)
    _refuse_unsayable(tool, "setting", settings)
    call = {"id": call_id, "tool": tool, "timeoutMs": timeout_ms}
    message = {**values, "arguments": values, "config": settings, "call": call}
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
