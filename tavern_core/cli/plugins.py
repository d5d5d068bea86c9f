"""``tavern plugins``: the installed plugins with states and reasons; grant and revoke, enable and disable.

Only `reload` and `activate` run plugin code, so a plugin whose import breaks the process can still
be listed, checked, disabled and revoked. A person gives consent at a terminal or by naming each permission; no option
grants everything unread.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tavern_core.cli import completion
from tavern_core.cli.bisect import bisect
from tavern_core.cli.check import check
from tavern_core.cli.doctor import doctor
from tavern_core.cli.errors import DENIED, INVALID, ReportedExit, print_note, print_problem, show_finding
from tavern_core.cli.lazy_groups import Group
from tavern_core.cli.lock import lock
from tavern_core.cli.output import shorten
from tavern_core.cli.pip_commands import install, update
from tavern_core.cli.plugin_status_lookup import reason_of, show_change, status_of
from tavern_core.cli.review import HEADINGS, nothing_asked, request_rows, review, sentence_of
from tavern_core.cli.session import CliSession
from tavern_core.errors import UsageError

if TYPE_CHECKING:
    from tavern_core.host import Tavern
    from tavern_core.model.plugin_status import PluginStatus


_CODE = re.compile(r"(?:^|-)[0-9a-f]{8}\Z")
_NAME_WIDTH = 40
_REASON_WIDTH = 200


@click.group(cls=Group)
def plugins() -> None:
    """Find, check, grant, enable and disable plugins."""


for _command in (bisect, check, review, lock, doctor, install, update):
    plugins.add_command(_command)


@plugins.command("list")
@click.option("--all", "everything", is_flag=True, help="The host's own plugins too.")
def list_(session: CliSession, everything: bool) -> None:
    """List the plugins with their state and the reason for it."""
    session.silence()  # problems of a plugin are in its row
    known = session.host("none").plugins.values()
    found = [s for s in known if everything or s.source != "builtin"]

    def row(s: PluginStatus) -> tuple[Any, ...]:
        tools = len(s.provides.get("tools", ()))
        return _shown_name(s), s.version, s.state, _source(s), tools, shorten(reason_of(s), _REASON_WIDTH)

    empty = "no plugins are installed; pip install some, or put them into plugins/<name>/"
    session.show_list(found, ("plugin", "version", "state", "from", "tools", "reason"), row, empty=empty)


@plugins.command()
@click.argument("name", shell_complete=completion.plugins)
def info(session: CliSession, name: str) -> None:
    """Show everything known about one plugin, with its requests and grants."""
    host = session.host("none")
    status = status_of(host, name)
    if session.as_json:
        session.out.json(status.to_json())
        return
    session.out.facts(
        [
            ("plugin", status.name),
            ("name", status.display_name),
            ("version", status.version),
            ("description", status.description),
            ("state", status.state),
            ("reason", status.reason),
            ("changed", status.note),
            ("own process", status.isolated),
            ("from", _source(status)),
            ("location", status.location),
            ("quarantined", [f"{hook.summary} ({hook.where})" for hook in status.resting]),
            *((section, sorted(names)) for section, names in sorted(status.provides.items())),
        ]
    )
    if rows := request_rows(host.review(name)):
        session.out.text()
        session.out.table(HEADINGS, rows)
    folder = Path(status.location)
    for finding in status.findings:
        show_finding(finding, folder=folder if folder.is_dir() else None)


@plugins.command()
@click.argument("name", shell_complete=completion.plugins)
def enable(session: CliSession, name: str) -> None:
    """Enable a disabled plugin, also in running hosts.

    Enabling grants nothing: pending requests are shown and stay pending.
    """
    host = session.host("none")
    status_of(host, name)
    show_change(session, host.plugins.enable_sync(name))
    waiting = host.review(name)
    if risky := [
        r.permission for r in waiting.requests() if r.state == "pending" and r.permission.risk in ("high", "highest")
    ]:
        asked = ", ".join(f"{p.id} ({p.risk}: {p.sentence})" for p in risky)
        print_problem(
            "warning",
            "POLICY_DENIED",
            f"{name} does not get permissions that need an explicit grant: {asked}",
            waiting.command,
        )


@plugins.command()
@click.argument("name", shell_complete=completion.plugins)
@click.option("--reason", default="", metavar="TEXT", help="The reason, shown where the plugin is listed as disabled.")
def disable(session: CliSession, name: str, reason: str) -> None:
    """Disable a plugin, also in running hosts, until you enable it again."""
    host = session.host("none")
    status_of(host, name)
    show_change(session, host.plugins.disable_sync(name, reason=reason))


@plugins.command()
@click.argument("name", shell_complete=completion.plugins)
def reload(session: CliSession, name: str) -> None:
    """Read the files of a plugin again and activate it.

    Exit code 4 if it does not work.
    """
    session.probes_new = True
    host = session.host("none")
    if status_of(host, name).source == "builtin":
        raise UsageError(f"{name} is part of the host and cannot be changed")
    host.plugins.reload_sync(name)
    host.plugins.activate_sync(name)
    show_change(session, host.plugins[name])


@plugins.command()
@click.argument("names", nargs=-1, shell_complete=completion.plugins)
@click.option("--all", "everything", is_flag=True, help="Every plugin that may be activated.")
def activate(session: CliSession, names: tuple[str, ...], everything: bool) -> None:
    """Activate plugins now, to test them and to store their tools.

    Exit code 4 if one fails.
    """
    if bool(names) == everything:
        raise click.UsageError("name plugins, or give --all")
    session.probes_new = True
    host = session.host("none")
    for name in names:
        status_of(host, name)
    if everything:
        host.wait(host.plugins.activate_all())
        names = tuple(n for n, s in host.plugins.items() if s.source != "builtin")
    else:
        for name in names:
            host.plugins.activate_sync(name)
    found = [host.plugins[name] for name in names]

    def row(s: PluginStatus) -> tuple[Any, ...]:
        return s.name, s.state, _milliseconds(s, "import"), _milliseconds(s, "activate"), s.reason

    columns = ("plugin", "state", "import ms", "activate ms", "reason")
    session.show_list(found, columns, row, empty="no plugins are installed")
    if any(s.state == "failed" for s in found):
        raise ReportedExit(INVALID)


def _shown_name(status: PluginStatus) -> str:
    """The name of a plugin; a code, made of a VCP plugin's name in another script, with what the plugin calls itself."""
    is_code = status.source == "vcp" and _CODE.search(status.name)
    return f"{status.name} ({shorten(status.display_name, _NAME_WIDTH)})" if is_code else status.name


def _source(status: PluginStatus) -> str:
    return status.distribution or {"builtin": "the host"}.get(status.source, status.source)


def _milliseconds(status: PluginStatus, what: str) -> Any:
    return f"{status.timings[what]:.1f}" if what in status.timings else ""


@plugins.command()
@click.option(
    "--dev", is_flag=True, help="Only the development entries, plugin to file, as JSON: for a vite configuration."
)
def assets(session: CliSession, dev: bool) -> None:
    """List the browser files of plugins, with their addresses."""
    found = session.host("none").extensions()
    entries = {e.name: e.dev_entry for e in found if e.dev_entry and e.is_served}
    if dev:
        session.out.json(entries)
        return
    assets = [{"plugin": e.name, **asset.to_json()} for e in found if e.is_served for asset in e.assets]
    session.out.result({"devEntries": entries, "assets": assets, "extensions": [e.to_json() for e in found]})
    rows: list[tuple[str, ...]] = [
        (
            e.name,
            a.kind,
            a.url if e.is_served else "",
            a.file,
            a.problem if e.is_served else f"not served: needs {e.fix}",
        )
        for e in found
        for a in e.assets
    ]
    rows += [(name, "dev", "", entry, "") for name, entry in entries.items()]
    session.out.table(("plugin", "kind", "address", "file", "problem"), rows, empty="no plugin has a browser part")


@plugins.command()
@click.argument("name", shell_complete=completion.plugins)
@click.argument("permissions", nargs=-1, shell_complete=completion.permissions)
def grant(session: CliSession, name: str, permissions: tuple[str, ...]) -> None:
    """Grant what a plugin requests.

    Shows the requests by risk. Without PERMISSIONS, it asks about each on a terminal, and refuses (exit code 3) elsewhere.
    Patterns such as 'hook:*' are expanded now; danger:* must be named in full.
    """
    host = session.host("none", deciding=True)
    status = status_of(host, name)
    session.out.table(HEADINGS, request_rows(host.review(name)), empty=nothing_asked(status))
    if permissions:
        host.grant(name, *permissions)
    elif status.requested or host.review(name).waits:
        _ask(host, name)
    status = host.plugins[name]
    session.show(status.to_json(), f"{name} may use: {', '.join(sorted(status.granted)) or 'nothing'}")
    if status.reason:
        session.out.text(f"{name} is {status.state}: {status.reason}")


@plugins.command()
@click.argument("name", shell_complete=completion.plugins)
@click.argument("permissions", nargs=-1, shell_complete=completion.permissions)
def revoke(session: CliSession, name: str, permissions: tuple[str, ...]) -> None:
    """Revoke the named grants, or all of them. They are refused from now on."""
    host = session.host("none", deciding=True)
    status_of(host, name)
    host.revoke(name, *permissions)
    status = host.plugins[name]
    session.show(status.to_json(), f"{name} may use: {', '.join(sorted(status.granted)) or 'nothing'}")


def _ask(host: Tavern, name: str) -> None:
    """Ask about each undecided request."""
    review = host.review(name)
    open_ = [request for request in review.requests() if request.state == "pending"]
    if not open_:
        print_note("all its requests are decided; name permissions to change that")
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        message = f"there is no grant for {name}: run the command on a terminal, or name the permissions"
        print_problem("error", "POLICY_DENIED", message, review.command)
        raise ReportedExit(DENIED)
    granted: list[str] = []
    refused: list[str] = []
    for request in open_:
        permission = request.permission
        text = f"{permission.id} ({permission.risk}): {sentence_of(request)}. Grant it? [y]es, [n]o, [l]ater"
        answer = click.prompt(text, type=click.Choice(["y", "n", "l"]), default="l", show_choices=False, err=True)
        {"y": granted, "n": refused}.get(answer, []).append(permission.id)
    if granted:
        host.grant(name, *granted)
    if refused:
        host.refuse(name, *refused)
