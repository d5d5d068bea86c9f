"""Finds the plugin under test.

A test belongs to the project that contains it: the nearest folder upwards that holds a plugin.yaml (a folder plugin) or a
pyproject.toml with an entry point in `tavern.plugins` (a pip package). A name given on the command line, in the ini file or
by a marker takes precedence. The plugin is used as it is *installed*: its entry point is read, nothing is put on sys.path.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tavern_core.errors import Finding, PluginNotFound, UsageError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.nearest import did_you_mean

if TYPE_CHECKING:
    from tavern_core.kernel.discovery.found_plugin import FoundPlugin
    from tavern_core.model.manifest import Manifest

GROUP: Final = "tavern.plugins"
MANIFEST_FILE: Final = "plugin.yaml"


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """The plugin under test, found and not imported."""

    name: str
    version: str
    folder: Path
    """The folder of plugin.yaml."""
    package: str = ""
    """The module to import; empty for a folder plugin."""
    distribution: str = ""
    """Name of the pip package; empty for a folder plugin."""
    findings: tuple[Finding, ...] = ()
    """The problems of plugin.yaml and the tool files."""
    manifest: Manifest | None = None
    """None if plugin.yaml is invalid."""

    @property
    def is_folder_plugin(self) -> bool:
        """True for ``plugins/<name>/plugin.yaml`` without a pip package."""
        return not self.distribution

    @property
    def depends_on(self) -> tuple[str, ...]:
        """Names of the plugins that it depends on."""
        return tuple(self.manifest.depends_on) if self.manifest else ()


@dataclass(frozen=True, slots=True)
class Project:
    """The plugins that a folder declares."""

    path: Path
    plugins: tuple[str, ...] = ()
    """Names of its entry points."""
    is_folder_plugin: bool = False


def project_of(test: Path, root: Path) -> Project | None:
    """The plugin project that contains a test file, or None.

    Args:
        test: the test file or its folder.
        root: the last folder to search; pytest's rootdir.
    """
    for folder in (test, *test.parents):
        if folder.is_dir() and (found := _read_project(folder)) is not None:
            return found
        if folder == root:
            return None
    return None


@cache
def _read_project(folder: Path) -> Project | None:
    if (folder / MANIFEST_FILE).is_file():
        return Project(folder, is_folder_plugin=True)
    try:
        data = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return None
    project = data.get("project")
    groups = project.get("entry-points") if isinstance(project, dict) else None
    names = groups.get(GROUP) if isinstance(groups, dict) else None
    return Project(folder, tuple(names)) if isinstance(names, dict) and names else None


def find_plugin(name: str, project: Project | None) -> InstalledPlugin:
    """The plugin under test.

    Args:
        name: its name, or the path of a folder plugin; empty: the one of `project`.
        project: the project of the test.

    Raises:
        UsageError: no plugin is named, or the project has several (USAGE).
        PluginNotFound: it is not installed in this environment (PLUGIN_NOT_FOUND).
    """
    if "/" in name or name in (".", ".."):
        return _folder_plugin(Path(name).absolute())
    if name:
        return _installed(name, None)
    if project is None:
        raise UsageError(
            "no plugin is under test: this test is in no plugin's project",
            hint="mark it @pytest.mark.tavern(plugin='name'), or run pytest with --tavern-core-plugin=name",
        )
    if project.is_folder_plugin:
        return _folder_plugin(project.path)
    if len(project.plugins) > 1:
        raise UsageError(
            f"{project.path}/pyproject.toml has the plugins {', '.join(project.plugins)}: which one is under test?",
            hint=f"mark the test @pytest.mark.tavern(plugin={project.plugins[0]!r}), or set tavern_core_plugin in the ini file",
        )
    return _installed(project.plugins[0], project)


def _folder_plugin(folder: Path) -> InstalledPlugin:
    from tavern_core.kernel.discovery.discovery import discover

    found = discover(roots=[folder.parent], entry_points=False)
    for plugin in found.plugins:
        if plugin.folder is not None and plugin.folder.resolve() == folder.resolve():
            return _described(plugin)
    raise PluginNotFound(f"there is no plugin in {folder}", hint=f"it needs a {MANIFEST_FILE}")


def _installed(name: str, project: Project | None) -> InstalledPlugin:
    from tavern_core.kernel.discovery.discovery import discover

    plugins = {plugin.name: plugin for plugin in discover().plugins}
    if name in plugins:
        return _described(plugins[name])
    if project is not None:
        hint = f"install it: pip install -e {project.path}"
    else:
        hint = did_you_mean(name, plugins) or "install its package: pip install -e <its folder>"
    raise PluginNotFound(f"the plugin {name!r} is not installed in this environment", hint=hint)


def _described(plugin: FoundPlugin) -> InstalledPlugin:
    return InstalledPlugin(
        plugin.name,
        plugin.version,
        plugin.folder or Path(plugin.location),
        plugin.module or "",
        plugin.distribution,
        plugin.findings,
        plugin.manifest,
    )
