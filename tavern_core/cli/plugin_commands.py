"""Commands that plugins bring: `tavern <name>`. Known from their manifests; only the plugin of the one that is used is activated.

A plugin whose command is broken is a message when that command is used; ``tavern --help`` never imports it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tavern_core.errors import ActivationFailed, TavernError
from tavern_core.model.ids import RESERVED_COMMANDS
from tavern_core.model.safe_text import printed

if TYPE_CHECKING:
    from tavern_core.cli.session import Session

SECTION = "commands"


def declared(session: Session) -> dict[str, str]:
    """Command → the plugin that declares it, for plugins that are not switched off. Imports nothing, never raises."""
    if session.safe_mode or session.no_plugins:
        return {}
    try:
        return _declared(session)
    except (TavernError, click.UsageError):
        return {}  # help must come, also when the configuration is broken; the command that is used says what is wrong


def _declared(session: Session) -> dict[str, str]:
    from tavern_core.kernel.discovery.discovery import discover
    from tavern_core.kernel.plugins.enabled_state import PluginStates

    loaded = session.loaded()
    config = loaded.config.plugins
    cache = loaded.home / "cache" / "plugins.json" if loaded.home.is_dir() else None
    found = discover(roots=[Path(r) for r in config.roots], entry_points=config.entry_points, index_file=cache)
    off = {*config.disable, *PluginStates(loaded.home / "plugins.json").disabled()}
    commands: dict[str, str] = {}
    for plugin in found.plugins:
        if plugin.is_failed or plugin.name in off or (config.load is not None and plugin.name not in config.load):
            continue
        for name in plugin.facts.declared.get(SECTION, ()):
            if name not in RESERVED_COMMANDS:
                commands.setdefault(name, plugin.name)
    return commands


def command(session: Session, name: str) -> click.Command | None:
    """The click command of a plugin; None when no plugin has one of this name. From then on stdout is that command's.

    Raises:
        PluginError: its plugin cannot be activated.
        ActivationFailed: what the plugin built is no click command (ACTIVATION_FAILED).
    """
    if name not in declared(session):
        return None
    offered = session.host("none").contribution(SECTION, name)
    if offered is None:
        return None
    built = _built(offered, name)
    if not isinstance(built, click.Command):
        raise ActivationFailed(
            f"the command {name!r} is no click command but {type(built).__name__}", hint="return it from `build`"
        )
    session.stdout.release()  # its result is what it prints
    return built


def _built(offered: Any, name: str) -> Any:
    try:
        return offered.build()
    except (Exception, SystemExit) as error:
        raise ActivationFailed(
            f"the command {name!r} cannot be built: {printed(error)}", hint="report it to the plugin's author"
        ) from error
