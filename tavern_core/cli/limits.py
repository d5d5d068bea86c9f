"""``tavern limits``: every limit on calls, where it is set, and how much of it is used."""

from __future__ import annotations

from typing import Any, Final

from tavern_core.cli.session import CliSession, command

_COLUMNS: Final = ("limit", "rate", "used", "at a time", "retries", "times", "cache", "breaker")
_TIMES: Final = (("attemptMs", "attempt"), ("idleMs", "idle"), ("inlineMs", "job after"))


@command()
def limits(session: CliSession) -> None:
    """Show every limit of tavern.yaml and of tools, and how much of each rate is used."""
    found = [one.to_json() for one in session.host().limits.list()]
    session.show_list(found, _COLUMNS, _row, empty="no limits; see limits in tavern.yaml")


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
        ", ".join(f"{word} {limit[key] / 1000:g} s" for key, word in _TIMES if key in limit),
        f"{limit['cacheMs'] / 1000:g} s" if "cacheMs" in limit else "",
        rest or "",
    )
