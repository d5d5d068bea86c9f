"""``tavern knowledge``: the knowledge bases of tavern.yaml, and searches in them."""

from __future__ import annotations

import click

from tavern_core.cli.errors import show_finding
from tavern_core.cli.lazy_groups import Group
from tavern_core.cli.output import shorten, visible
from tavern_core.cli.session import Session


@click.group(cls=Group, default="list")
def knowledge() -> None:
    """List and search knowledge bases: folders of Markdown.

    `tavern knowledge` alone lists them.
    """


@knowledge.command("list")
def list_(session: Session) -> None:
    """List the knowledge bases with their size, and what in them cannot be read."""
    found = session.host("none").knowledge.list()
    if session.as_json:
        session.out.json([state.to_json() for state in found])
        return
    for state in found:
        for finding in state.findings:
            show_finding(finding)
    rows = [
        (
            s.base.name,
            s.documents,
            s.passages,
            s.base.trusted,
            shorten(s.base.description, 80),
            ", ".join(map(str, s.base.folders)),
        )
        for s in found
    ]
    columns = ("base", "documents", "passages", "trusted", "description", "folders")
    session.out.table(columns, rows, empty="no knowledge bases; name their folders under `knowledge:` in tavern.yaml")


@knowledge.command()
@click.argument("query")
@click.option("--base", "-b", "bases", multiple=True, help="Search only this knowledge base; may be repeated.")
@click.option(
    "--limit", "-n", type=click.IntRange(1, 50), default=5, show_default=True, help="Maximum number of passages."
)
def search(session: Session, query: str, bases: tuple[str, ...], limit: int) -> None:
    """Find passages with words, or print the section that a citation (kb:...) names."""
    known = session.host("none").knowledge
    found = known.read(query) if query.startswith("kb:") else known.search(query, bases or None, limit)
    if session.as_json:
        session.out.json([passage.to_json() for passage in found])
        return
    for passage in found:
        session.out.text(visible(f"{passage.citation}{'' if passage.trusted else ' (untrusted)'}"))
        session.out.text(visible(passage.text))
        session.out.text()
    if not found:
        session.out.table((), (), empty="no passage has these words")
