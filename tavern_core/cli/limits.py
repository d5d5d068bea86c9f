"""``tavern limits``: every limit on calls, where it is set, and how much of it is used."""

from __future__ import annotations

from typing import Any, Final

import click

from tavern_core.cli.session import Command, Session, json_option, pass_session

_COLUMNS: Final = ("limit", "rate", "used", "at a time", "retries", "cache", "breaker")


@click.command(cls=Command)
@json_option
@pass_session
def limits(session: Session, as_json: bool) -> None:
    """Show every limit of tavern.yaml and of tools, and how much of each rate is used."""
    found = session.host().limits.list()
    if as_json:
        session.out.json([one.to_json() for one in found])
        return
    session.out.table(_COLUMNS, [_row(one.to_json()) for one in found], empty="no limits; see limits in tavern.yaml")


def _row(limit: dict[str, Any]) -> tuple[str, ...]:
    queue, breaker = limit.get("queue"), limit.get("breaker")
    places = f"{limit['concurrency']}" + ("" if queue is None else f", {queue} wait") if "concurrency" in limit else ""
    rest = breaker and f"{breaker['failures']} failures, {breaker['restMs'] / 1000:g} s"
    return (
        limit["place"],
        limit.get("rate", ""),
        "" if limit["used"] is None else str(limit["used"]),
        places,
        str(limit.get("retries", "")),
        f"{limit['cacheMs'] / 1000:g} s" if "cacheMs" in limit else "",
        rest or "",
    )
