"""``tavern hooks``: the hooks, their implementations in order, and what is quarantined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tavern_core.cli import completion
from tavern_core.cli.session import CliSession, command
from tavern_core.errors import HookNotFound
from tavern_core.model.nearest import did_you_mean

if TYPE_CHECKING:
    from tavern_core.contract.hookspecs import Hook
    from tavern_core.host import Tavern
    from tavern_core.model.plugin_status import PluginStatus


@command()
@click.argument("name", metavar="[HOOK]", required=False, shell_complete=completion.hooks)
@click.option(
    "--plugin",
    metavar="NAME",
    help="Only hooks that this plugin implements or requests.",
    shell_complete=completion.plugins,
)
def hooks(session: CliSession, name: str | None, plugin: str | None) -> None:
    """List the hooks and who implements them, in the order in which they run.

    Plugins that request a hook and do not run it are listed last, with the reason. The contributions of an inactive plugin
    (tools, nodes ...) are known after its activation.
    """
    from tavern_core.cli.plugin_status_lookup import status_of
    from tavern_core.contract.hookspecs import HOOKS

    if name is not None and name not in HOOKS:
        raise HookNotFound(
            f"there is no hook {name!r:.80}", hint=did_you_mean(name, HOOKS) or "`tavern hooks` lists them"
        )
    host = session.host()
    if plugin is not None:
        status_of(host, plugin)
    order = host.hooks
    wanted = [HOOKS[name]] if name is not None else list(HOOKS.values())
    rows = [_row(host, hook, order.get(hook.name, ())) for hook in wanted]
    if plugin is not None:
        rows = [row for row in rows if any(each["plugin"] == plugin for each in row["plugins"])]
    session.out.result(rows)
    if name is not None:
        _show_hook(session, HOOKS[name], rows)
        return
    table = [
        (
            r["hook"],
            r["kind"] + ("" if r["isCalled"] else ", reserved"),
            ", ".join(r["permissions"]) or r["section"],
            ", ".join(map(_shown, r["plugins"])),
        )
        for r in rows
    ]
    session.out.table(("hook", "kind", "permission or section", "plugins"), table)


def _row(host: Tavern, hook: Hook, running: tuple[str, ...]) -> dict[str, Any]:
    waiting = [s.name for s in host.plugins.values() if s.name not in running and s.requested & {*hook.permissions}]
    return {
        "hook": hook.name,
        "kind": hook.kind,
        "permissions": list(hook.permissions),
        "section": hook.section or None,
        "arguments": list(hook.arguments),
        "isCalled": hook.is_called,
        "plugins": [
            _implementer(host.plugins[name], hook, is_running=name in running) for name in (*running, *sorted(waiting))
        ],
    }


def _implementer(status: PluginStatus, hook: Hook, *, is_running: bool) -> dict[str, Any]:
    rest = next((each for each in status.resting if each.hook == hook.name), None)
    if rest is not None:
        state, reason = "resting", f"until {rest.until}: it {rest.reason}"
    elif is_running:
        state, reason = "runs", ""
    elif not status.granted & {*hook.permissions}:
        state, reason = "not granted", f"tavern plugins grant {status.name} {hook.permissions[0]}"
    else:
        state, reason = "not active", status.reason or f"the plugin is {status.state}"
    return {"plugin": status.name, "state": state, "reason": reason}


def _shown(row: dict[str, Any]) -> str:
    return row["plugin"] if row["state"] == "runs" else f"{row['plugin']} ({row['state']})"


def _show_hook(session: CliSession, hook: Hook, rows: list[dict[str, Any]]) -> None:
    """Print a hook: its contract, and who implements it."""
    session.out.text(hook.contract + "\n")
    session.out.facts([(key, getattr(hook, key)) for key in ("kind", "permissions", "section", "arguments")])
    session.out.text()
    plugins = [
        (number, p["plugin"], p["state"], p["reason"]) for row in rows for number, p in enumerate(row["plugins"], 1)
    ]
    session.out.table(("", "plugin", "state", "reason"), plugins, empty="no plugin implements it")
