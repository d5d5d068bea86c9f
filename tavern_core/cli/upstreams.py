"""``tavern upstreams``: the systems whose tools are tools of this host, their state, and the operator's actions on them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tavern_core.cli import completion
from tavern_core.cli.errors import FAILED, ReportedExit
from tavern_core.cli.lazy_groups import Group
from tavern_core.cli.output import json_text
from tavern_core.cli.session import CliSession
from tavern_core.errors import ConfigInvalid, TavernError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tavern_core.host.facade import Tavern
    from tavern_core.upstreams.config_entry_writer import NewUpstreamEntry
    from tavern_core.upstreams.upstreams import UpstreamStatus

_COLUMNS: Final = ("upstream", "kind", "state", "tools", "in quarantine", "latency", "reached by", "last error")
_NONE: Final = "no upstreams; see upstreams in tavern.yaml"

_name = click.argument("upstream", metavar="NAME", shell_complete=completion.upstreams)


@click.group(cls=Group, default="list")
def upstreams() -> None:
    """Connect other systems, whose tools become tools of this host.

    `tavern upstreams` alone lists them. Review and grant them like plugins: `tavern plugins review NAME`,
    `tavern plugins grant NAME`.
    """


@upstreams.command("list")
def list_(session: CliSession) -> None:
    """List the upstreams, without connecting to them."""
    session.show_list(session.host("none").upstreams.values(), _COLUMNS, _row, empty=_NONE)


@upstreams.command()
@_name
def show(session: CliSession, upstream: str) -> None:
    """Show one upstream: its tools, what was left out and why, and what changed since the review."""
    host = session.host("none")
    found, changes = host.upstreams.status(upstream), host.upstreams.differences(upstream)
    diff = {tool: [one.to_json() for one in places] for tool, places in changes.items()}
    session.out.result({**found.to_json(), "changes": diff})
    if session.as_json:  # looking tools up would connect to upstreams whose lists are due
        return
    specs = (spec for spec in host.tools.snapshot() if spec.id in found.tools)
    named = [(f"{spec.id} is", spec.display_name) for spec in specs if spec.resource_id != spec.local_name]
    left_out = [(f"left out: {name}", why) for name, why in found.left_out.items()]
    session.out.facts([*_facts(found), *named, *left_out])
    for tool, places in changes.items():
        session.out.text(f"\n{tool} has changed since the review:")
        for one in places:
            session.out.line(f"  {one.path or '/'}: {json_text(one.before)} → {json_text(one.after)}")
    if changes:
        session.out.text(f"\naccept the changes: tavern upstreams accept {upstream}")


@upstreams.command()
@click.argument("upstream", metavar="[NAME]", required=False, shell_complete=completion.upstreams)
def check(session: CliSession, upstream: str | None) -> None:
    """Check now whether an upstream answers.

    Without NAME, all upstreams are checked. Exit code 1 if one does not answer.
    """
    host = session.host()
    if upstream is not None:
        _print(session, host.upstreams.check_sync(upstream))
        return
    failed = host.wait(_failed(host))
    session.show_list(host.upstreams.values(), _COLUMNS, _row, empty=_NONE)
    if failed:
        raise ReportedExit(FAILED)


async def _failed(host: Tavern) -> bool:
    """Whether an upstream does not answer; the status of each says why."""
    checks = (host.upstreams.check(name) for name in host.upstreams)
    found = await asyncio.gather(*checks, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException) and not isinstance(one, TavernError):
            raise one
    return any(isinstance(one, TavernError) for one in found)


@upstreams.command()
@click.argument("upstream", metavar="[NAME]", required=False, shell_complete=completion.upstreams)
def refresh(session: CliSession, upstream: str | None) -> None:
    """Read the list of tools again and show what changed.

    Without NAME, of all upstreams.
    """
    host = session.host()
    diffs = host.upstreams.refresh_sync(upstream)
    failed = {
        name: one.last_error or one.reason
        for name, one in host.upstreams.items()
        if name not in diffs and upstream in (None, name)
    }
    session.out.result({"changes": {name: diff.to_json() for name, diff in diffs.items()}, "failed": failed})
    rows = [(name, *map(len, (diff.added, diff.removed, diff.changed)), "") for name, diff in diffs.items()]
    rows += [(name, "", "", "", error) for name, error in failed.items()]
    session.out.table(("upstream", "new", "gone", "changed", "error"), rows, empty=_NONE)
    if failed:
        raise ReportedExit(FAILED)


@upstreams.command()
@_name
def connect(session: CliSession, upstream: str) -> None:
    """Connect to a granted upstream and list its tools.

    The command accepts the definitions of its tools if none were accepted before.

    If the upstream requires a login, the command shows the address to open in a browser.
    """

    def show(address: str) -> None:
        click.echo(
            f"{upstream} asks you to log in. Open this address in a browser on this machine:\n\n  {address}\n", err=True
        )

    _print(session, session.host().upstreams.connect_sync(upstream, show))


@upstreams.command()
@_name
@click.argument("tools", metavar="[TOOL]...", nargs=-1, shell_complete=completion.tools)
def accept(session: CliSession, upstream: str, tools: tuple[str, ...]) -> None:
    """Accept the current definitions of the named tools, or of all tools."""
    _print(session, session.host("none", deciding=True).upstreams.accept(upstream, tools))


@upstreams.command()
@click.argument("kind")
@click.argument("words", metavar="URL|PACKAGE|COMMAND...", nargs=-1, required=True)
@click.option("--name", default="", help="Name of the entry; default: from the command or the address.")
def add(session: CliSession, kind: str, words: tuple[str, ...], name: str) -> None:
    """Add an upstream to tavern.yaml, without granting anything.

    For example: tavern upstreams add mcp -- uvx mcp-server-time
    """
    from tavern_core.upstreams.config_entry_writer import check_names, entry_of_words

    new, file = entry_of_words(kind, words, name), _file(session)
    check_names(file, [new])
    host = session.host("none", further={f"upstreams.{new.name}": new.entry})
    if (flaw := host.upstreams.flaws().get(new.name)) is not None:
        raise ConfigInvalid(flaw.message, hint=flaw.hint)
    _write(session, file, [new])


@upstreams.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
def import_(session: CliSession, file: str) -> None:
    """Add the servers of another MCP client to tavern.yaml.

    FILE is its configuration (`mcpServers`). No secret is copied, and nothing is granted.
    """
    from tavern_core.upstreams.config_entry_writer import entries_of_json, read_servers, written_entries

    written = _file(session)
    entries, left_out = entries_of_json(read_servers(Path(file)), file, written_entries(written))
    _write(session, written, entries, left_out)
    if left_out:
        raise ReportedExit(FAILED)


def _file(session: CliSession) -> Path:
    """The tavern.yaml that is edited."""
    from tavern_core.kernel.config import configuration

    file = configuration.files(session.config, home=session.home).project or Path.cwd() / "tavern.yaml"
    if file.suffix == ".toml":
        raise UsageError(f"{file} is edited by hand", hint="write the entries under [tool.tavern.upstreams]")
    return file


def _write(
    session: CliSession, file: Path, entries: Sequence[NewUpstreamEntry], left_out: Mapping[str, str] = {}
) -> None:
    from tavern_core.upstreams.config_entry_writer import write_entries

    write_entries(file, entries)
    written = [{"name": new.name, "notes": list(new.notes)} for new in entries]
    session.out.result({"file": str(file), "upstreams": written, "leftOut": dict(left_out)})
    for new in entries:
        session.out.text(f"{file}: upstreams.{new.name}")
        for note in new.notes:
            session.out.text(f"  {note}")
    for name, why in left_out.items():
        session.out.text(f"{name} is left out: {why}")
    session.out.text(f"next: tavern plugins review {entries[0].name}")


def _print(session: CliSession, found: UpstreamStatus) -> None:
    session.show_facts(found.to_json(), _facts(found))


def _row(one: UpstreamStatus) -> tuple[Any, ...]:
    latency = "" if one.latency_ms is None else f"{one.latency_ms:.1f} ms"
    problem = one.reason or one.last_error
    return one.name, one.kind, one.state, len(one.tools), len(one.quarantined) or "", latency, one.target, problem


def _facts(one: UpstreamStatus) -> list[tuple[str, Any]]:
    data = one.to_json()
    return [
        ("upstream", one.name),
        ("kind", one.kind),
        ("reached by", one.target),
        ("state", one.state),
        ("why", one.reason),
        ("says of itself", " ".join(filter(None, (one.version, one.description)))),
        ("listed", data["listedAt"] or "never"),
        ("asked", data["askedAt"] or ""),
        ("latency", "" if one.latency_ms is None else f"{one.latency_ms:.1f} ms"),
        ("last error", one.last_error),
        ("tools", ", ".join(one.tools)),
        ("in quarantine", ", ".join(one.quarantined)),
        *(
            (f"not validated: {tool}", f'"{each.pattern}" at {each.pointer}: {each.reason}')
            for tool, found in one.unchecked.items()
            for each in found
        ),
    ]
