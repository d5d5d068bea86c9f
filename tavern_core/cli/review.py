"""``tavern plugins review``: the requests of plugins compared with the decisions, as a diff on one screen. Runs no plugin code."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import click

from tavern_core.cli import completion
from tavern_core.cli.errors import DENIED, ReportedExit, print_note
from tavern_core.cli.output import one_line, shorten
from tavern_core.cli.plugin_status_lookup import status_of
from tavern_core.cli.session import CliSession, command
from tavern_core.model.message_translation import of_the_locale

if TYPE_CHECKING:
    from tavern_core.kernel.grants.review import PermissionRequest, Review
    from tavern_core.model.plugin_status import PluginStatus

HEADINGS: Final = ("", "permission", "risk", "state", "what it lets the plugin do")
_REASON_WIDTH: Final = 200
_SCOPE_WIDTH: Final = 200
NOTHING_MARKED: Final = " - allows no call: the service marks no method @read_only"


@command()
@click.argument("name", required=False, metavar="[PLUGIN]", shell_complete=completion.plugins)
def review(session: CliSession, name: str | None) -> None:
    """Compare what a plugin requests with what you decided, the highest risk first.

    Without PLUGIN, all plugins that wait for a decision. It decides nothing. Exit code 3 if something waits.

    + waits for a decision, ~ waits with a wider scope, = granted, x refused, - no longer requested
    """
    session.silence()  # `list` and `doctor` show problems of plugins
    host = session.host("none")
    if name is not None:
        status_of(host, name)
        found = [host.review(name)]
    else:
        every = [host.review(plugin) for plugin, status in host.plugins.items() if status.source != "builtin"]
        found = [r for r in every if r.waits or r.decision.note]
    waiting = [r for r in found if r.waits]
    if session.as_json:
        session.out.json({"waits": bool(waiting), "plugins": [r.to_json() for r in found]})
    else:
        for number, each in enumerate(found):
            if number:
                session.out.text()
            _show(session, each, host.plugins[each.facts.name])
        if not found:
            print_note("no request waits for a decision")
    if waiting:
        raise ReportedExit(DENIED)


def _show(session: CliSession, shown: Review, status: PluginStatus) -> None:
    facts = shown.facts
    reviewed = f" (reviewed: {shown.record.version})" if shown.record and shown.record.version != facts.version else ""
    if status.source == "upstream":
        session.out.text(one_line(f"upstream {facts.name}: {facts.target}"))
        session.out.text(_where_it_runs(facts.requested))
    else:
        place = "its own process" if facts.tier == "process" else "the host's own process"
        where = "the sandbox of scripts" if status.source in ("vcp", "skill") else f"{place} (tier {facts.tier})"
        session.out.text(one_line(f"{facts.name} {facts.version}{reviewed}, for {where}"))
    if shown.decision.note:
        session.out.text(f"! {one_line(shown.decision.note)}")
    session.out.table(HEADINGS, request_rows(shown), empty=nothing_asked(status))
    if shown.waits:
        session.out.text(f"decide: tavern plugins grant {facts.name}")
        session.out.text(f"all of it: {shown.command}")


def _where_it_runs(requested: frozenset[str]) -> str:
    if "process:host" in requested:
        return "! FULL TRUST: its code runs outside of every sandbox, with all rights of the host"
    return "its program runs in the sandbox" if "process:spawn" in requested else "it runs no code on this machine"


def nothing_asked(status: PluginStatus) -> str:
    """The text for a plugin without requests; the requests of a broken plugin.yaml are unknown."""
    if status.state == "failed":
        return one_line(f"{status.name} is failed: {status.reason}")
    return f"{status.name} requests no permissions"


def request_rows(shown: Review) -> list[tuple[str, str, str, str, str]]:
    """The requests of a plugin as rows under `HEADINGS`."""
    return [(r.mark, r.permission.id, r.permission.risk, r.state, sentence_of(r)) for r in shown.requests()]


def sentence_of(request: PermissionRequest) -> str:
    """The sentence that a person consents to, in their language, with scope and the plugin's reason."""
    text = request.permission.sentence_zh if of_the_locale(os.environ) == "zh" else request.permission.sentence
    if request.reaches is not None:
        methods = ", ".join(request.reaches)
        text += f" - reaches {shorten(methods, _SCOPE_WIDTH)}" if methods else NOTHING_MARKED
    if request.scope is not None:
        text += f" ({_entries(request.scope)})"
    if request.is_grown:
        granted = request.granted_scope
        text += f" - granted is {_entries(granted) if granted is not None else 'every name at ports 80 and 443'}"
    if request.reason:
        text += f' - the plugin says: "{shorten(request.reason, _REASON_WIDTH)}"'
    return text


def _entries(scope: tuple[str, ...]) -> str:
    return shorten(", ".join(scope), _SCOPE_WIDTH)
