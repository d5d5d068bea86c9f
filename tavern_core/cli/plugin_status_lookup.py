"""The status of one plugin: looked up by name, and printed after a change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tavern_core.errors import PluginNotFound
from tavern_core.model.nearest import did_you_mean

if TYPE_CHECKING:
    from tavern_core.cli.session import CliSession
    from tavern_core.host import Tavern
    from tavern_core.model.plugin_status import PluginStatus
    from tavern_core.model.skill import Skill


def status_of(host: Tavern, name: str) -> PluginStatus:
    """The status of a plugin. Raises PluginNotFound: there is none; names the closest (PLUGIN_NOT_FOUND)."""
    if (status := host.plugins.get(name)) is not None:
        return status
    hint = did_you_mean(name, host.plugins) or "`tavern plugins list` shows the names"
    raise PluginNotFound(f"there is no plugin {name!r}", hint=hint)


def show_change(session: CliSession, status: PluginStatus | Skill) -> None:
    """Print the status of a plugin or skill after a change."""
    session.show(status.to_json(), f"{status.name} is {status.state}" + (f": {status.reason}" if status.reason else ""))


def reason_of(status: PluginStatus) -> str:
    """Why a plugin is in its state, or the problems of its files although it is usable."""
    if status.note:
        return f"{status.reason}; {status.note.partition(';')[0]}" if status.reason else status.note
    errors = [finding for finding in status.findings if finding.severity == "error"]
    if status.reason or not errors:
        return status.reason
    more = f" (and {len(errors) - 1} more: tavern plugins info {status.name})" if len(errors) > 1 else ""
    return f"{errors[0]}{more}"
