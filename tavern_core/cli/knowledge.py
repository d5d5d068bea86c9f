"""``tavern knowledge``: the knowledge bases of tavern.yaml, and searches in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tavern_core.cli.errors import show_finding
from tavern_core.cli.lazy_groups import Group
from tavern_core.cli.output import shorten, visible
from tavern_core.cli.session import CliSession

if TYPE_CHECKING:
    from tavern_core.knowledge.knowledge import KnowledgeState


@click.group(cls=Group, default="list")
def knowledge() -> None:
    """List and search knowledge bases: folders of Markdown.

    `tavern knowledge` alone lists them.
    """


@knowledge.command("list")
def list_(session: CliSession) -> None:
    """List the knowledge bases with their size, and what in them cannot be read."""
    found = session.host("none").knowledge.list()
    for finding in () if session.as_json else (finding for state in found for finding in state.findings):
        show_finding(finding)

    def row(state: KnowledgeState) -> tuple[Any, ...]:
        base, folders = state.base, ", ".join(map(str, state.base.folders))
        return base.name, state.documents, state.passages, base.trusted, shorten(base.description, 80), folders

    columns = ("base", "documents", "passages", "trusted", "description", "folders")
    empty = "no knowledge bases; name their folders under `knowledge:` in tavern.yaml"
    session.show_list(found, columns, row, empty=empty)


@knowledge.command()
@click.argument("query")
@click.option("--base", "-b", "bases", multiple=True, help="Search only this knowledge base; may be repeated.")
@click.option(
    "--limit", "-n", type=click.IntRange(1, 50), default=5, show_default=True, help="Maximum number of passages."
)
def search(session: CliSession, query: str, bases: tuple[str, ...], limit: int) -> None:
    """Find passages with words, or print the section that a citation (kb:...) names."""
    known = session.host("none").knowledge
    found = known.read(query) if query.startswith("kb:") else known.search(query, bases or None, limit)
    session.out.result([passage.to_json() for passage in found])
    for passage in found:
        session.out.text(visible(f"{passage.citation}{'' if passage.trusted else ' (untrusted)'}"))
        session.out.text(visible(passage.text))
        session.out.text()
    if not found:
        session.out.table((), (), empty="no passage has these words")
