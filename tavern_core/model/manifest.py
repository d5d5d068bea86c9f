"""plugin.yaml as a type: how a plugin describes itself before any of its code is imported.

Source: seed 000 §6.2 and §15.1, DESIGN §5. Keys are camelCase in YAML and snake_case here. Unknown keys are refused
(`extra="forbid"`); the reader decides whether that is an error (`check`) or a warning (load).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, StringConstraints, field_validator

from tavern_core.model.capability import ENV_PREFIX, is_capability, known_capability
from tavern_core.model.environment_variables import is_passed, is_refused
from tavern_core.model.file_model_base import FilePart, refused
from tavern_core.model.naming_rules import KEBAB_CASE, LONGEST_PLUGIN_NAME
from tavern_core.model.setting_declaration import Line, Prose, SettingItem
from tavern_core.model.toolfile import ToolDefinition

_SHORT = StringConstraints(min_length=1, max_length=200)
_PATH = StringConstraints(min_length=1, max_length=500)
_NAME = StringConstraints(pattern=KEBAB_CASE, max_length=LONGEST_PLUGIN_NAME)

PluginName = Annotated[str, _NAME]
RelativePath = Annotated[str, _PATH]
ShortText = Annotated[str, _SHORT]


class Entry(FilePart):
    """A file or folder inside the plugin, relative to plugin.yaml."""

    entry: RelativePath


class FrontendDev(FilePart):
    entry: RelativePath


class FrontendBuild(FilePart):
    entry: RelativePath | None = None
    """A theme with only styles has none."""
    styles: tuple[RelativePath, ...] = ()
    output_dir: RelativePath | None = None
    """Default: the folder of `entry`, else of the first style."""


class FrontendVanilla(FilePart):
    entry: RelativePath | None = None
    styles: tuple[RelativePath, ...] = ()
    root_dir: RelativePath = "web"


class Frontend(FilePart):
    """Contributions of the plugin to the browser; data only, nothing of it runs in the host."""

    type: Literal["vite", "vanilla"] = "vite"
    dev: FrontendDev | None = None
    build: FrontendBuild | None = None
    vanilla: FrontendVanilla | None = None


def _env_problem(capability: str) -> str:
    """Why ``env:<NAME>`` is not a valid capability; empty for anything else."""
    name = capability.removeprefix(ENV_PREFIX)
    if name == capability:
        return ""
    if is_passed(name):
        return f"every script sees {name}: delete the line"
    if is_refused(name):
        return f"{name} is never passed on: it makes programs load code, or is the host's own; delete the line"
    return "it is env:<NAME> with the name of one variable"


class CapabilityRequest(FilePart):
    """A capability that the plugin's tools need."""

    name: ShortText
    scope: tuple[ShortText, ...] | None = None
    """Its scope (`model/capability_scope.py`). None: no limit; an empty list requests nothing."""
    reason: Line = ""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if not is_capability(name):
            hint = _env_problem(name) or known_capability(name)
            raise refused(f"{name!r} is not a capability", hint)
        return name


class UiPermissions(FilePart):
    wrap: tuple[ShortText, ...] = ()
    inject: tuple[ShortText, ...] = ()
    override: tuple[ShortText, ...] = ()


class ServicePermissions(FilePart):
    use: tuple[ShortText, ...] = ()
    write: tuple[ShortText, ...] = ()
    override: tuple[ShortText, ...] = ()


class Permissions(FilePart):
    """The permissions that the plugin requests; they apply only if the operator grants them (SECURITY §1)."""

    hooks: tuple[ShortText, ...] = ()
    ui: UiPermissions = UiPermissions()
    services: ServicePermissions = ServicePermissions()
    capabilities: tuple[CapabilityRequest, ...] = ()
    data: tuple[Literal["data:secrets", "data:conversation"], ...] = ()
    tryfirst: StrictBool = False

    @field_validator("capabilities", mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        return [{"name": item} if isinstance(item, str) else item for item in value]


class Requires(FilePart):
    """Host versions, PEP 440: `host` is a bound, `tested` only warns."""

    host: str = ""
    tested: str = ""


class Declared(FilePart):
    """A declared contribution: a name that is known before the plugin's code is imported."""

    name: ShortText
    description: Prose = ""


def _declared(value: Any) -> Any:
    """``services: [clock]`` and ``services: true`` (names not known yet) are short forms."""
    if value is True:
        return ()
    if isinstance(value, list | tuple):
        return [{"name": item} if isinstance(item, str) else item for item in value]
    return value


Names = Annotated[tuple[Declared, ...] | None, BeforeValidator(_declared)]
NamesOrFolder = Annotated[tuple[Declared, ...] | Entry | None, BeforeValidator(_declared)]


class Manifest(FilePart):
    """plugin.yaml."""

    name: PluginName
    display_name: Line = ""
    version: ShortText
    description: Prose = ""
    author: Line = ""
    license: Line = ""
    homepage: Line = ""
    keywords: tuple[Line, ...] = ()

    nodes: NamesOrFolder = None
    """Modules with nodes inside the plugin, or the types that its code returns."""
    tools: Entry | tuple[ToolDefinition, ...] | None = None
    skills: Entry | None = None
    """A folder of skills inside the plugin: each folder in it with a SKILL.md is the tool ``skill:<name>``."""
    frontend: Frontend | None = None
    config_options: tuple[SettingItem, ...] = ()
    permissions: Permissions = Permissions()

    requires: Requires = Requires()
    depends_on: dict[PluginName, str] = Field(default_factory=dict)
    before: tuple[PluginName, ...] = ()
    after: tuple[PluginName, ...] = ()
    aliases: dict[str, str] = Field(default_factory=dict)
    """Other ids for tools of this plugin: ``BilibiliFetch:getSubtitle: getSubtitle``."""
    start: StrictBool = False
    """Activate when the host opens, not on first use."""
    isolation: Literal["none", "process"] = "none"
    slots: tuple[PluginName, ...] = ()
    """Exclusive slots: of all plugins that name one, only one is active."""

    services: Names = None
    commands: Names = None
    channels: Names = None
    providers: Names = None
    executors: Names = None
    adapters: Names = None
    namespaces: Names = None
    profiles: NamesOrFolder = None
    workflows: NamesOrFolder = None
    settings: Names = None
    routes: Names = None
    ui: Names = None
    llms: Names = None
    rankers: Names = None
    resources: Names = None
    prompts: Names = None
    job_stores: Names = None
    hookspecs: Names = None

    @field_validator("version", mode="before")
    @classmethod
    def _version_text(cls, value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise refused("the version is a number", f'write it in quotes: version: "{value}"')
        return value
