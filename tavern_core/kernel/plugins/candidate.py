"""A plugin as the lifecycle sees it, from any source: built in, passed as an object, found in a folder or by pip.

A candidate holds what was declared. Only `load` imports its code.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Protocol

from tavern_core.contract.context import PluginContext
from tavern_core.contract.hookspecs import hookimpl
from tavern_core.contract.permissions import canonical_hook
from tavern_core.contract.plugin import Plugin
from tavern_core.contract.tools import Offer, Tool, ToolFactory, mark_of
from tavern_core.errors import Finding, UsageError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.discovery.manifest_facts import ManifestFacts, facts_of
from tavern_core.kernel.files.plugin_file_reader import FolderFiles
from tavern_core.kernel.grants.grants import Tier
from tavern_core.kernel.hooks.table import implements
from tavern_core.kernel.manifest.declared_tools import DeclaredTools, read_declared_tools
from tavern_core.model.config import IsolationConfig
from tavern_core.model.naming_rules import is_plugin_name
from tavern_core.model.plugin_status import Source
from tavern_core.model.safe_printing import seen
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.kernel.text.yaml_reader import YamlDocument
    from tavern_core.model.manifest import Manifest

OVERRIDE: Final = "service:override:"
USE: Final = "service:use:"
_LONGEST_SAID: Final = 500
_NO_TOOLS: Final = DeclaredTools()


class Tiers(Protocol):
    """Places for the code of discovered plugins: this process, or a process of its own for each."""

    def reason(self, candidate: PluginCandidate) -> str:
        """Why it runs in a process of its own; empty: it runs in the host."""
        ...

    def load(self, candidate: PluginCandidate, ctx: PluginContext) -> Any:
        """Start its process; returns its proxy. Raises PluginError."""
        ...

    def pause_notice(self, plugin: str) -> str:
        """Why its process is paused and not started; empty: it is not paused."""
        ...

    def end_pause(self, plugin: str) -> None:
        """End the pause because a retry was requested."""
        ...


class PluginOrigin(ABC):
    """The source of a plugin: its code and its current files. Most methods need a plugin with files."""

    can_reload = False
    """Whether `load` reads the code again after `unload`."""
    why_not_reloaded = "was passed to the host as an object; its code cannot be read again"
    instead_of_reload = "restart the program, or install the plugin as a package or folder"
    """With `why_not_reloaded`: what an operator reads who reloads a plugin that cannot be reloaded."""

    @abstractmethod
    def load(self) -> Any:
        """Import the code in this process; return the module or object, or None without code. May raise anything."""

    def unload(self) -> None:  # noqa: B027 - most have nothing to unload
        """Unload imported code, so that `load` reads it again."""

    @abstractmethod
    def manifest(self) -> Manifest:
        """The whole manifest; built on demand."""

    def tools(self) -> DeclaredTools:
        """The current declarations of its tools in its files."""
        return _NO_TOOLS

    def artifact(self) -> str:
        """Hash of its files."""
        return ""

    def fingerprint(self) -> str:
        """A value that changes when the name, time or size of one of its files does."""
        return ""

    def unpack(self, cache: Path) -> Path | None:
        """Unpack a zipped plugin into the folder `cache`; return the plugin's own folder. None: it is not zipped."""
        return None

    def left_out(self, local: str) -> tuple[str, str]:
        """For an upstream: why it does not offer a tool of this name, and the repair; empty if that is not known."""
        return "", ""

    def quarantined(self, local: str) -> tuple[str, str]:
        """For an upstream: why its tool of this name is in quarantine, and the repair; empty if it is not."""
        return "", ""

    def tool_hashes(self) -> Mapping[str, str]:
        """For an upstream: tool → hash of its definition, as last listed."""
        return {}


@dataclass(frozen=True, slots=True)
class PluginCandidate:
    """A plugin that may be activated."""

    name: str
    source: Source
    origin: PluginOrigin
    facts: ManifestFacts
    """The small part of its manifest."""
    distribution: str = ""
    location: str = ""
    folder_path: str = ""
    """The real folder of plugin.yaml; empty for a package in a zip, and without a folder."""
    findings: tuple[Finding, ...] = ()
    """Errors and warnings about it; a single error makes it failed."""
    tool_ids: tuple[str, ...] = ()
    """Declared tool ids; known without import."""
    tool_findings: tuple[Finding, ...] = ()
    """Findings about its tools from its discovery; they affect those tools, not the plugin."""
    implicit: bool = False
    """Whether it was passed as an object without a manifest: what it implements counts as declared."""
    has_code: bool = True
    """Whether there is Python code to import: a package, or files in `nodes.entry`."""
    module: str = ""
    """The importable package of an installed plugin."""
    may_gate: bool = False
    """For an `implicit` plugin: whether it implements a gate."""
    may_hide_tools: bool = False
    """Whether its code registers tools whose ids are not declared: only activation shows them."""
    manifest_hash: str = ""
    stamp: tuple[Any, ...] = ()
    """Changes when the plugin is upgraded or edited."""
    fixed_id: bool = False
    """Whether it is built in and cannot be disabled."""
    is_nodes_alone: bool = False
    """Whether it is built in with node types only: it is activated when one is first used."""
    isolation_need: str = ""
    """Why manifest or configuration put it into a process of its own; empty: they do not."""
    tiers: Tiers | None = None
    """For a discovered plugin; the others run in the host."""
    target: str = ""
    """For an upstream: its exact address or command line."""

    def load(self, ctx: PluginContext) -> Any:
        """Its code, or the proxy of its process. May raise anything.

        Args:
            ctx: limits the requests of code in a process of its own.
        """
        return self.tiers.load(self, ctx) if self.tiers is not None and self.isolated() else self.origin.load()

    def unload(self) -> None:
        """Make the next `load` read the code again; a separate process reads it at each start."""
        if not self.isolated():
            self.origin.unload()

    def isolated(self) -> str:
        """Why it currently runs in a process of its own; empty: it runs in the host."""
        return "" if self.tiers is None else self.tiers.reason(self)

    def pause_notice(self) -> str:
        """A notice for people, in any state; empty: there is none."""
        return self.tiers.pause_notice(self.name) if self.tiers is not None and self.isolated() else ""

    def end_pause(self) -> None:
        """End the pause because a retry was requested."""
        if self.tiers is not None:
            self.tiers.end_pause(self.name)

    @property
    def is_given(self) -> bool:
        """Whether it comes with the host or the program, instead of from files."""
        return self.source in ("builtin", "object")

    @property
    def has_foreign_schemas(self) -> bool:
        """Whether another system wrote the schemas of its tools.

        Patterns that cannot be validated are then left to that system and reported, as no one here can correct them.
        """
        return self.source == "upstream"

    @property
    def version(self) -> str:
        return self.facts.version or "0"

    @property
    def folder(self) -> Path | None:
        """`folder_path` as a Path; made on demand, as starting with hundreds of plugins does not need it."""
        return Path(self.folder_path) if self.folder_path else None

    def unpacked(self, cache: Path) -> Path | None:
        """`folder`; for a zipped plugin, its folder after unpacking into `cache`."""
        return self.folder or self.origin.unpack(cache)

    @property
    def tier(self) -> Tier:
        """The tier of its code, by declaration and configuration."""
        return "process" if self.isolation_need else "host"

    @property
    def requested(self) -> frozenset[str]:
        """Ids of the permissions that the manifest requests."""
        return self.facts.requested

    @property
    def scopes(self) -> dict[str, tuple[str, ...]]:
        """Capability → requested scope; capabilities without limit are left out."""
        asked = self.origin.manifest().permissions.capabilities if self.requested else ()
        return {c.name: c.scope for c in asked if c.scope}

    @property
    def overrides(self) -> frozenset[str]:
        """The services that it requests to replace."""
        return frozenset(p.removeprefix(OVERRIDE) for p in self.facts.requested if p.startswith(OVERRIDE))

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.severity == "error")


@dataclass(frozen=True, slots=True)
class _BuiltinOrigin(PluginOrigin):
    name: str
    version: str
    module: str

    def load(self) -> Any:
        return importlib.import_module(self.module)

    def manifest(self) -> Manifest:
        return _builtin_manifest(self.name, self.version)


@dataclass(frozen=True, slots=True)
class _ObjectOrigin(PluginOrigin):
    """An object that the program passed."""

    thing: Any
    written: Manifest
    declared: DeclaredTools

    def load(self) -> Any:
        return self.thing

    def manifest(self) -> Manifest:
        return self.written

    def tools(self) -> DeclaredTools:
        return self.declared


@functools.cache
def builtin_candidate(name: str, module: str, is_nodes_alone: bool, version: str) -> PluginCandidate:
    """A built-in plugin; the same candidate for all hosts of a process."""
    return PluginCandidate(
        name,
        "builtin",
        _BuiltinOrigin(name, version, module),
        ManifestFacts(name, version),
        location=module,
        implicit=True,
        fixed_id=True,
        is_nodes_alone=is_nodes_alone,
    )


def isolation_reason(facts: ManifestFacts, config: IsolationConfig) -> str:
    """Why a plugin belongs to the isolated tier by declaration and configuration; empty if it does not."""
    if facts.isolation == "process":
        return "plugin.yaml says so"
    if facts.name in config.plugins:
        return "isolation.plugins names it"
    raised = {canonical_hook(name) or name for name in config.raise_for} & facts.requested
    return f"it asks for {', '.join(sorted(raised))} (isolation.raise)" if raised else ""


@functools.cache
def _builtin_manifest(name: str, version: str) -> Manifest:
    from tavern_core.model.manifest import Manifest

    return Manifest.model_construct(name=name, version=version)


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not is_plugin_name(name):
        raise UsageError(
            f"{name!r} is not a plugin name", hint="pass Plugin(thing, name='my-plugin'): lower case, digits, hyphens"
        )
    return name


def object_candidate(given: Any) -> PluginCandidate:
    """A plugin that was passed to `Tavern.open`.

    Raises:
        UsageError: it cannot be a plugin, or has no usable name (USAGE).
    """
    from tavern_core.model.manifest import Manifest

    plugin = given if isinstance(given, Plugin) else Plugin(given)
    thing = _as_plugin(plugin.thing)
    folder = _folder_of(thing) or _folder_of_manifest(plugin.manifest)
    manifest, findings, document = _manifest_of(plugin, folder)
    name = _checked_name(plugin.name or (manifest.name if manifest else "") or _name_of(plugin.thing))
    implicit = manifest is None and not findings
    version = _said(plugin.thing, "version") or _said(plugin.thing, "__version__") or "0"
    final = manifest or Manifest.model_construct(name=name, version=version)
    if final.name != name:
        final = final.model_copy(update={"name": name})
    tools = _declared(final, document, folder)
    facts = facts_of(final)
    if implicit:
        facts = replace(facts, description=_said(plugin.thing, "description") or _first_line(thing))
    return PluginCandidate(
        name,
        "object",
        _ObjectOrigin(thing, final, tools),
        facts,
        location=_place_of(plugin.thing),
        folder_path=str(folder) if folder is not None and not implicit else "",
        findings=findings,
        tool_ids=tools.ids,
        tool_findings=tools.findings,
        implicit=implicit,
        may_gate=implicit and implements(thing, "tavern_check_call"),
        may_hide_tools=implicit or not tools.ids,
        manifest_hash=hashlib.sha256(document.text.encode("utf-8", "replace")).hexdigest() if document else "",
    )


def _as_plugin(thing: Any) -> Any:
    """A list of tools, or a single marked function, becomes an object that offers them."""
    if isinstance(thing, list | tuple) or _is_tool(thing):
        tools = list(thing) if isinstance(thing, list | tuple) else [thing]

        @hookimpl(fast=True)
        def tavern_register_tools() -> list[Any]:
            return tools

        return SimpleNamespace(tavern_register_tools=tavern_register_tools)
    if isinstance(thing, str | bytes | int | float | Mapping) or thing is None:
        raise UsageError(
            f"{thing!r} is not a plugin", hint="pass a module, an object with hookimpls, or Plugin([tools], name=...)"
        )
    if isinstance(thing, type):
        raise UsageError(f"{thing.__name__} is a class", hint=f"pass an instance: {thing.__name__}()")
    return thing


def _is_tool(thing: Any) -> bool:
    """Whether it is a single marked function."""
    try:
        return mark_of(thing) is not None
    except Exception:  # noqa: BLE001 - an attribute may be the plugin's code
        return False


def _folder_of(thing: Any) -> Path | None:
    file = getattr(thing, "__file__", None) if isinstance(thing, ModuleType) else None
    return Path(file).parent if file and hasattr(thing, "__path__") else None


def _folder_of_manifest(given: Any) -> Path | None:
    """The base of the paths in a manifest that was passed as a file."""
    return Path(given).absolute().parent if isinstance(given, str | Path) and not _is_text(given) else None


def _is_text(given: str | Path) -> bool:
    """Whether it is the text of a manifest instead of its path."""
    return isinstance(given, str) and "\n" in given


def _manifest_of(
    plugin: Plugin, folder: Path | None
) -> tuple[Manifest | None, tuple[Finding, ...], YamlDocument | None]:
    from tavern_core.kernel.manifest.manifest_reader import MANIFEST_FILE, manifest_from_data, read_manifest

    manifest = plugin.manifest
    if manifest is None and folder is not None and (manifest_file := folder / MANIFEST_FILE).is_file():
        manifest = manifest_file
    if manifest is None:
        return None, (), None
    if isinstance(manifest, Mapping):
        data = {"version": "0", **({"name": plugin.name} if plugin.name else {}), **manifest}
        reading = manifest_from_data(data, "manifest", strict=False)
    elif _is_text(manifest):
        reading = read_manifest(str(manifest), "manifest", strict=False)
    else:
        try:
            text = Path(manifest).read_bytes()
        except OSError as error:
            return None, (Finding("MANIFEST_INVALID", f"{manifest}: {error.strerror or error}"),), None
        reading = read_manifest(text, str(manifest), strict=False)
    return reading.manifest, reading.findings, reading.document


def _declared(manifest: Manifest, document: YamlDocument | None, folder: Path | None) -> DeclaredTools:

    if (manifest.tools is None and manifest.skills is None) or document is None:
        return DeclaredTools()
    return read_declared_tools(manifest, document, FolderFiles(folder or Path()))


def _name_of(thing: Any) -> str:
    """A kebab-case name: of a module, function, object (`id`, `name`: seed 002) or class; for a list, its module.
    The name of a list stays the same when a tool is added.

    Raises:
        UsageError: a list whose tools are not all of one module (USAGE).
    """
    if isinstance(thing, list | tuple):
        modules = {_module_of(item) for item in thing}
        raw = modules.pop() if len(modules) == 1 else ""
        if not raw:
            raise UsageError(
                "a list whose tools are not all of one module has no name of its own",
                hint="Plugin([...], name='my-plugin')",
            )
    else:
        raw = _said(thing, "__name__") or _said(thing, "id") or _said(thing, "name") or type(thing).__name__
    raw = raw.rpartition(".")[2]
    raw = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", raw.removeprefix("tavern_plugin_"))
    return re.sub(r"[^a-z0-9]+", "-", raw.lower()).strip("-")[:64]


def _module_of(item: Any) -> str:
    """The module of a tool in a list, by the name that its author knows; empty: unknown."""
    while isinstance(item, Offer):
        item = item.thing
    code = (
        item.make
        if isinstance(item, ToolFactory)
        else item.run
        if isinstance(item, Tool)
        else item.impl
        if isinstance(item, ToolSpec)
        else item
    )
    module = _said(code if inspect.isroutine(code) else type(code), "__module__")
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        module = (
            spec.name.removesuffix(".__main__") if spec is not None else Path(_said(main, "__file__") or "main").stem
        )
    return "" if module in ("builtins", "types", "functools") else module


def _said(thing: Any, key: str) -> str:
    """The text in an attribute of an object; empty if it is not text."""
    try:
        said = getattr(thing, key, "")
    except Exception:  # noqa: BLE001 - a property is the plugin's code, and what it says here is only for people
        return ""
    return seen(said.strip()[:_LONGEST_SAID]) if isinstance(said, str) else ""


def _place_of(thing: Any) -> str:
    """The origin of an object, for people: a module's file, or the name of its class or function."""
    if isinstance(thing, ModuleType):
        return _said(thing, "__file__") or thing.__name__
    named = thing if inspect.isroutine(thing) else type(thing)
    module = _said(named, "__module__")
    return named.__name__ if module in ("", "builtins", "types") else f"{module}.{named.__qualname__}"


def _first_line(thing: Any) -> str:
    text = thing.__doc__ if isinstance(thing, ModuleType) else ""
    return seen((text or "").strip().partition("\n")[0])


def has_nodes(candidate: PluginCandidate) -> bool:
    """Whether a plugin may offer node types: it declares some, or has no declarations."""
    return "nodes" in candidate.facts.sections or candidate.implicit
