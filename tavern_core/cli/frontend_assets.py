"""``tavern plugins assets``: the browser files of plugins, for a console and for its development server."""

from __future__ import annotations

import click

from tavern_core.cli.session import Command, Session, json_option, pass_session


@click.command(cls=Command)
@click.option(
    "--dev", is_flag=True, help="Only the development entries, plugin to file, as JSON: for a vite configuration."
)
@json_option
@pass_session
def assets(session: Session, dev: bool, as_json: bool) -> None:
    """List the browser files of plugins, with their addresses."""
    found = session.host("none").extensions()
    entries = {e.name: e.dev_entry for e in found if e.dev_entry and e.is_served}
    if dev:
        session.out.json(entries)
        return
    if as_json:
        assets = [{"plugin": e.name, **asset.to_json()} for e in found if e.is_served for asset in e.assets]
        session.out.json({"devEntries": entries, "assets": assets, "extensions": [e.to_json() for e in found]})
        return
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
