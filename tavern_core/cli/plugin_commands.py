"""Commands of plugins: `tavern <name>`. Known from manifests; only the plugin of the used command is activated.

A broken command is reported when it is used; ``tavern --help`` never imports it.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tavern_core.errors import ActivationFailed, TavernError
from tavern_core.kernel.config.config_and_state_paths import (
    home_and_user_file,
    is_unconfigured,
    named_home,
    project_home,
)
from tavern_core.model.naming_rules import RESERVED_COMMANDS
from tavern_core.model.safe_printing import printed

if TYPE_CHECKING:
    from tavern_core.cli.session import CliSession

SECTION = "commands"


def declared(session: CliSession) -> dict[str, str]:
    """Command → the plugin that declares it, for plugins that are not disabled. Imports nothing, never raises."""
    if session.safe_mode or session.no_plugins:
        return {}
    try:
        return _declared(session)
    except (TavernError, click.UsageError):
        return {}  # help must work even with a broken configuration; the used command reports the problem


DEFAULT_ROOTS: Final = ("plugins",)
"""`plugins.roots` and the other keys of `plugins` if nothing is configured; a test compares them with the model."""


def why_missing(session: CliSession, name: str) -> str:
    """Which plugin would add the command, and what to do, if it is disabled; else empty."""
    try:
        plugin = _declared(session, of_disabled=True).get(name, "")
    except (TavernError, click.UsageError):
        return ""
    return f"{plugin}, which adds it, is disabled: see `tavern plugins info {plugin}`" if plugin else ""


def _declared(session: CliSession, *, of_disabled: bool = False) -> dict[str, str]:
    from tavern_core.kernel.discovery.discovery import discover

    home, roots, entry_points, load, disabled = _plugins(session)
    cache = home / "cache" / "plugins.json" if home.is_dir() else None
    found = discover(roots=[Path(root) for root in roots], entry_points=entry_points, index_file=cache)
    if (states := home / "plugins.json").exists():
        from tavern_core.kernel.plugins.enabled_state import PluginStates

        disabled = {*disabled, *PluginStates(states).disabled()}
    commands: dict[str, str] = {}
    for plugin in found.plugins:
        is_disabled = plugin.name in disabled or (load is not None and plugin.name not in load)
        if plugin.is_failed or is_disabled is not of_disabled:
            continue
        for name in plugin.facts.declared.get(SECTION, ()):
            if name not in RESERVED_COMMANDS:
                commands.setdefault(name, plugin.name)
    return commands


def _plugins(session: CliSession) -> tuple[Path, Collection[str], bool, Collection[str] | None, Collection[str]]:
    """The state folder and the keys of `plugins`: roots, entry points, load, disable.

    Reading the configuration takes three times as long as the rest of ``tavern --help``; if nothing is configured, it
    is not needed.
    """
    if session.config is None and not session.set and not session.locked:
        cwd = Path.cwd()
        home, user_file = home_and_user_file(session.home, os.environ, cwd)
        if is_unconfigured(cwd, os.environ, user_file):
            state_folder = home if named_home(session.home, os.environ) else project_home(home, cwd)
            return state_folder, [str(cwd / root) for root in DEFAULT_ROOTS], True, None, ()
    loaded = session.loaded()
    plugins = loaded.config.plugins
    return loaded.home, plugins.roots, plugins.entry_points, plugins.load, plugins.disable


def command(session: CliSession, name: str) -> click.Command | None:
    """The click command of a plugin; None if no plugin has one with this name. From then on, stdout belongs to that command.

    Raises:
        PluginError: its plugin cannot be activated.
        ActivationFailed: the plugin did not offer it, or did not build a click command (ACTIVATION_FAILED).
    """
    if (plugin := declared(session).get(name)) is None:
        return None
    offered = session.host("none").contribution(SECTION, name)
    if offered is None:
        raise ActivationFailed(
            f"{plugin} declares the command {name!r}, but does not offer it",
            hint="return it from `tavern_register_commands`, or delete it under `commands` in plugin.yaml",
        )
    built = _built(offered, name)
    if not isinstance(built, click.Command):
        raise ActivationFailed(
            f"the command {name!r} is not a click command but {type(built).__name__}", hint="return it from `build`"
        )
    session.stdout.release()  # its output is its result
    return built


def _built(offered: Any, name: str) -> Any:
    try:
        return offered.build()
    except (Exception, SystemExit) as error:
        raise ActivationFailed(
            f"the command {name!r} cannot be built: {printed(error)}", hint="report it to the plugin's author"
        ) from error
