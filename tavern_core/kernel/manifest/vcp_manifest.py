"""`plugin-manifest.json` of a VCP plugin as a plugin of this host. Nothing in its folder runs while it is read.

    synchronous + stdio   every command is a script tool: `implementation: {type: script, protocol: vcp}`
    everything else       is listed with the reason why it is not a tool
    <name>.block          is off, as in VCP

A command is one of `capabilities.invocationCommands`; its parameters are a guess (`vcp_parameters.py`), its settings are the
plugin's (`configSchema`), and what its program may do is what the operator grants: VCP has no word for that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tavern_core.errors import Finding
from tavern_core.kernel.files.plugin_file_reader import PluginFiles
from tavern_core.kernel.manifest.declared_tools import DeclaredTools
from tavern_core.kernel.manifest.implementation_validation import KINDS, shell_signs, split_command
from tavern_core.kernel.manifest.tool_ids import plugin_name
from tavern_core.kernel.manifest.translated_plugin import CODE, TranslatedPlugin, unstated_needs
from tavern_core.kernel.manifest.vcp_parameters import declared_schema, infer, inferred_schema, prose
from tavern_core.kernel.settings.setting_value_validation import value_problem
from tavern_core.kernel.text.json_document import JsonDocument, read_json
from tavern_core.model.environment_variables import is_name, is_passed, is_refused
from tavern_core.model.manifest import Manifest
from tavern_core.model.naming_rules import is_local_name
from tavern_core.model.nearest import fold
from tavern_core.model.path_problem import Path
from tavern_core.model.safe_printing import seen
from tavern_core.model.script_command import words_before_file
from tavern_core.model.setting_declaration import SettingItem
from tavern_core.model.tool import ToolSpec
from tavern_core.model.toolfile import Implementation

VCP_FILE: Final = "plugin-manifest.json"
BLOCKED: Final = ".block"
MOST_COMMANDS: Final = 200
_LONGEST_TIMEOUT: Final = 86_400_000
_LONGEST_DESCRIPTION: Final = 4_000
_NEEDS_VCP: Final[Mapping[str, str]] = {
    "asynchronous": "it answers later, through VCP's own server",
    "service": "it runs inside VCP's own process",
    "hybridservice": "it runs inside VCP's own process",
    "static": "it fills placeholders of VCP's prompts",
    "messagePreprocessor": "it changes messages on their way through VCP",
}
"""Why plugins of these types need VCP itself."""
_WINDOWS_RUNNER: Final = re.compile(r"(python3?|node|bun|deno)\.exe(?=\s|\Z)")
_WINDOWS_PATH: Final = re.compile(r"(?<=[\w.:])\\(?=[\w.])")
"""A backslash between two folders, and not before a sign that it guards (`"\\d+"`)."""


def read_vcp(content: bytes, folder: str, files: PluginFiles) -> TranslatedPlugin:
    """Read one manifest.

    Args:
        content: of plugin-manifest.json.
        folder: the name of its folder.
        files: of the folder; asked only whether the program is there.
    """
    document = read_json(content, VCP_FILE, code=CODE)
    data = document.data
    name = data.get("name") if isinstance(data, dict) else None
    name = name.strip() if isinstance(name, str) and name.strip() else folder.removesuffix(BLOCKED)
    if document.findings:
        return TranslatedPlugin(plugin_name(name), findings=document.findings)
    if not isinstance(data, dict):
        finding = Finding(CODE, "a VCP manifest is one JSON object", "", document.locate(()))
        return TranslatedPlugin(plugin_name(name), findings=(finding,))
    return _ManifestReading(data, document, name, folder, files).translated()


class _ManifestReading:
    """Reads one manifest. Used once."""

    def __init__(
        self, data: dict[str, Any], document: JsonDocument, name: str, folder: str, files: PluginFiles
    ) -> None:
        self._data, self._document, self._files = data, document, files
        self._vcp, self._plugin, self._folder = name, plugin_name(name), folder
        self._findings: list[Finding] = []

    def translated(self) -> TranslatedPlugin:
        settings, self._findings = settings_of(self._data.get("configSchema"), self._plugin, self._document)
        if self._vcp != self._folder.removesuffix(BLOCKED):
            self._warn(("name",), f"the folder is called {self._folder!r:.80}, the plugin {self._vcp!r:.80}")
        argv, reason = self._command()
        tools = () if reason else tuple(self._tools(argv))
        if not reason and not tools:
            reason = "it names no command that can be called (capabilities.invocationCommands)"
        if self._folder.endswith(BLOCKED):
            reason, tools = f"its folder is called {self._folder}: VCP switches a plugin off so", ()
        manifest = Manifest(
            name=self._plugin,
            display_name=self._text("displayName")[:200] or self._vcp[:200],
            version=self._text("version")[:100] or "0",
            description=prose(self._text("description"))[:_LONGEST_DESCRIPTION],
            config_options=settings,
            permissions=unstated_needs("VCP plugins"),
            aliases=self._aliases(tools),
        )
        return TranslatedPlugin(self._plugin, manifest, DeclaredTools(tools), tuple(self._findings), reason)

    # What runs ---------------------------------------------------------------------------------------------------------

    def _command(self) -> tuple[tuple[str, ...], str]:
        """The command line of the plugin's program, and the reason if there is none."""
        kind, protocol = self._data.get("pluginType"), self._part("communication").get("protocol")
        if isinstance(kind, str) and kind in _NEEDS_VCP:
            return (), f"a VCP plugin of type {kind} is not a tool: {_NEEDS_VCP[kind]}"
        if kind != "synchronous":
            return (), f"its pluginType {kind!r:.60} is not known"
        if protocol not in (None, "stdio"):
            return (), f"its protocol {protocol!r:.60} is not a tool's: VCP loads such plugins into its own process"
        written = self._entry_point()
        if not written:
            return (), "its entryPoint names no program"
        if signs := shell_signs(written):
            return (), f"its program is refused: {signs[0]!r:.60} is for a shell, and no shell runs it"
        for _, message, _ in KINDS["script"](Implementation(type="script", command=written)):
            return (), f"its program is refused: {message}"
        argv = split_command(written)
        if problem := self._files.problem(argv[words_before_file(argv)[0]]):
            return (), f"its program is refused: {problem}"
        return argv, ""

    def _entry_point(self) -> str | tuple[str, ...]:
        """`command` of the entry point; else its `script` with the interpreter that its `type` means."""
        entry = self._part("entryPoint")
        command, script = entry.get("command"), entry.get("script")
        if isinstance(command, str) and command.strip():
            return _portable(command.strip())
        if isinstance(command, list) and command and all(isinstance(word, str) for word in command):
            return tuple(map(_portable, command))
        runner = {"python": "python", "nodejs": "node", "node": "node"}.get(str(entry.get("type")), "")
        return (runner, _portable(script)) if runner and isinstance(script, str) and script.strip() else ""

    def _timeout(self) -> int | None:
        written = self._part("communication").get("timeout")
        if type(written) is int and 0 < written <= _LONGEST_TIMEOUT:
            return written
        if written is not None:
            path = ("communication", "timeout")
            self._warn(path, f"{written!r:.40} is not a number of milliseconds; the host's limit holds instead")
        return None

    # Its tools ---------------------------------------------------------------------------------------------------------

    def _tools(self, argv: tuple[str, ...]) -> list[ToolSpec]:
        commands = self._part("capabilities").get("invocationCommands")
        commands = commands if isinstance(commands, list) else []
        if len(commands) > MOST_COMMANDS:
            self._warn(("capabilities", "invocationCommands"), f"only the first {MOST_COMMANDS} commands are read")
            commands = commands[:MOST_COMMANDS]
        names = [_identifier(command) for command in commands]
        timeout, found, used_names = self._timeout(), [], set[str]()
        for index, (command, identifier) in enumerate(zip(commands, names, strict=True)):
            path = ("capabilities", "invocationCommands", index)
            if not identifier:
                self._warn(path, "the command has no commandIdentifier and is left out")
                continue
            local = identifier if is_local_name(identifier) else plugin_name(identifier)
            if fold(local) in used_names:
                self._warn(path, f"the command {identifier!r:.80} is there twice; the first is used")
                continue
            used_names.add(fold(local))
            others = frozenset(name for name in names if name and name != identifier)
            found.append(self._tool(local, identifier, command, others, argv, timeout))
        return found

    def _tool(
        self, local: str, identifier: str, command: dict[str, Any], others: frozenset[str], argv: tuple[str, ...], timeout: int | None
    ) -> ToolSpec:  # fmt: skip
        texts = [text for key in ("description", "example") if isinstance(text := command.get(key), str)]
        guess = infer(texts, self._vcp, others)
        declared, inferred = declared_schema(command.get("parameters")), inferred_schema(guess)
        implementation = {
            "type": "script",
            "command": list(argv),
            "protocol": "vcp",
            "send": guess.command or identifier,
        }
        if timeout is not None:
            implementation["timeout"] = timeout  # type: ignore[assignment]
        description = prose(texts[0])[:_LONGEST_DESCRIPTION] if texts else ""
        marks = f"From the third-party VCP plugin {seen(self._vcp)[:100]}. " + (
            "" if declared else "Its parameters are inferred from an example. " if inferred.get("properties") else ""
        )
        return ToolSpec(
            f"{self._plugin}:{local}",
            marks + description,
            "script",
            self._text("version")[:100] or "0",
            ("vcp", "third-party"),
            declared or inferred,
            resource_id=identifier,
            display_name="" if local == identifier else seen(identifier),
            plugin=self._plugin,
            timeout_ms=timeout,
            implementation=implementation,
            source=VCP_FILE,
        )

    def _aliases(self, tools: Iterable[ToolSpec]) -> dict[str, str]:
        """The names that VCP knows and that cannot be part of an id, so that people and models may write them in its place."""
        owners = [self._plugin] if fold(self._vcp).isascii() else [self._plugin, self._vcp]
        names = {f"{owner}:{tool.resource_id}": tool.local_name for tool in tools for owner in owners}
        return {name: local for name, local in names.items() if name != f"{self._plugin}:{local}"}

    # Looking -----------------------------------------------------------------------------------------------------------

    def _part(self, key: str) -> Mapping[str, Any]:
        part = self._data.get(key)
        return part if isinstance(part, dict) else {}

    def _text(self, key: str) -> str:
        value = self._data.get(key)
        return value.strip() if isinstance(value, str) else ""

    def _warn(self, path: Path, message: str) -> None:
        self._findings.append(Finding(CODE, message, "", self._document.locate(path), "warning"))


def _portable(command: str) -> str:
    """A command, or a word of one, that may be written for Windows."""
    if (runner := _WINDOWS_RUNNER.match(command)) is not None:
        command = runner[1] + command[runner.end() :]
    return _WINDOWS_PATH.sub("/", command)


def _identifier(command: Any) -> str:
    """The name of a command; empty if it has none."""
    if not isinstance(command, dict):
        return ""
    found = command.get("commandIdentifier") or command.get("command")
    return found.strip() if isinstance(found, str) else ""


MOST_SETTINGS: Final = 200
_KINDS: Final = {"integer": "number", "int": "number", "number": "number", "float": "number", "boolean": "boolean", "bool": "boolean"}  # fmt: skip
"""Other types are text: that is what a variable holds."""


def settings_of(written: Any, plugin: str, document: JsonDocument) -> tuple[tuple[SettingItem, ...], list[Finding]]:
    """The settings, and those that are left out, with reasons. Each becomes an environment variable of the program.

    {"API_KEY": "string"}  ·  {"API_KEY": {"type", "description", "default"}}  ·  [{"name": "API_KEY", "type", …}]

    Args:
        written: the value of `configSchema`.
        plugin: the plugin's name; keys are ``extensions.<plugin>.<NAME>``.
    """
    items: dict[str, SettingItem] = {}
    findings: list[Finding] = []

    def leave_out(path: Path, why: str) -> None:
        findings.append(Finding(CODE, f"{why}; the setting is left out", "", document.locate(path), "warning"))

    for path, name, part in _parts(written, leave_out):
        if len(items) == MOST_SETTINGS:
            leave_out(path, f"more than {MOST_SETTINGS} settings")
            break
        if why := _why_not(name):
            leave_out(path, why)
        elif name in items:
            leave_out(path, f"{name} is defined twice")
        else:
            items[name] = _item(f"extensions.{plugin}.{name}", part)
    return tuple(items.values()), findings


def _parts(written: Any, leave_out: Any) -> Iterator[tuple[Path, str, Mapping[str, Any]]]:
    if isinstance(written, Mapping):
        for name, part in written.items():
            yield ("configSchema", name), name, part if isinstance(part, Mapping) else {"type": part}
    elif isinstance(written, list):
        for index, part in enumerate(written):
            name = (part.get("name") or part.get("key")) if isinstance(part, Mapping) else part
            if isinstance(name, str):
                yield ("configSchema", index), name, part if isinstance(part, Mapping) else {}
            else:
                leave_out(("configSchema", index), "it has no name")
    elif written is not None:
        leave_out(("configSchema",), "configSchema is neither an object nor a list")


def _why_not(name: str) -> str:
    if not is_name(name):
        return f"{name!r:.80} cannot be a variable of the environment"
    if is_refused(name):
        return f"{name} is never passed to a program: it makes programs load code, or is the host's own"
    return f"{name} is the host's to set" if is_passed(name) else ""


def _item(key: str, part: Mapping[str, Any]) -> SettingItem:
    kind = part.get("type")
    item = SettingItem(
        key=key,
        type=_KINDS.get(kind.lower(), "string") if isinstance(kind, str) else "string",  # type: ignore[arg-type]
        description=str(part.get("description") or "")[:2_000],
    )
    default = part.get("default")
    return (
        item if default is None or value_problem(item, default) else item.model_copy(update={"default_value": default})
    )
