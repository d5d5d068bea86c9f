"""``tavern tools``: list, explain and call tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from tavern_core.cli import completion
from tavern_core.cli.call import call, caller
from tavern_core.cli.errors import NOTHING_FOUND, ReportedExit, exit_code_of, nothing_found
from tavern_core.cli.lazy_groups import Group
from tavern_core.cli.output import json_text, shorten
from tavern_core.cli.plugin_status_lookup import status_of
from tavern_core.cli.session import CliSession
from tavern_core.errors import UsageError

if TYPE_CHECKING:
    from tavern_core.kernel.catalogue.availability import ToolNeed
    from tavern_core.model.tool import ToolSpec

DIALECTS = ("json", "openai", "anthropic", "gemini", "mcp")
_DESCRIPTION_WIDTH = 100


def _a_capability(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """The capability of an option; one that cannot exist would only find nothing."""
    from tavern_core.model.capability import is_capability, known_capability

    if value is not None and not is_capability(value):
        raise UsageError(f"{value!r} is not a capability", hint=known_capability(value))
    return value


@click.group(cls=Group)
def tools() -> None:
    """List, explain and call tools."""


tools.add_command(call)


@tools.command("list")
@click.option("--profile", metavar="NAME", help="Only tools that this agent profile may use.")
@click.option("--tag", metavar="TAG", help="Only tools with this tag.")
@click.option("--capability", metavar="NAME", callback=_a_capability, help="Only tools that need this capability.")
@click.option("--plugin", metavar="NAME", help="Only tools of this plugin.", shell_complete=completion.plugins)
@click.option("--permissions", metavar="A,B", help="Only tools that a caller with exactly these capabilities can use.")
@click.option("--all", "everything", is_flag=True, help="Hidden tools too, each with the reason.")
def list_(
    session: CliSession,
    profile: str | None,
    tag: str | None,
    capability: str | None,
    plugin: str | None,
    permissions: str | None,
    everything: bool,
) -> None:
    """List the tools that the host may call."""
    known = session.host().tools
    if plugin is not None:
        status_of(session.host(), plugin)
    context = None if permissions is None else caller(permissions, profile)
    visible = known.list(profile, context=context, usable=context is not None)
    shown = {spec.id for spec in visible}
    listed = known.snapshot() if everything else visible
    found = [
        s
        for s in listed
        if (tag is None or tag in s.tags)
        and (capability is None or capability in s.capabilities)
        and plugin in (None, s.plugin)
    ]
    needs = known.lacking(found, profile=profile, context=context)
    reasons = {s.id: known.why(s.id, profile=profile, context=context) for s in found} if everything else {}
    more = {id_: {"visible": id_ in shown, "reason": w.reason, "fix": w.fix or None} for id_, w in reasons.items()}
    session.out.result([_json(s, needs) | more.get(s.id, {}) for s in found])
    if everything:
        states = [
            (s.id, "ok" if s.id in shown else "hidden", _about(s), "" if s.id in shown else reasons[s.id].reason)
            for s in found
        ]
        session.out.table(("tool", "state", "description", "reason"), states)
        return
    rows = [
        (s.id, _about(s), ", ".join(sorted(s.capabilities)), ", ".join(s.tags), _needs(needs.get(s.id))) for s in found
    ]
    columns = ("tool", "description", "capabilities", "tags")
    _table(session, columns, rows, "there are no tools; `tavern doctor` says why")


@tools.command()
@click.argument("tool", metavar="ID", shell_complete=completion.tools)
@click.option("--dialect", type=click.Choice(DIALECTS), help="Print it in the format of a model API.")
@click.option("--plan", is_flag=True, help="Show the steps of each of its calls.")
def show(session: CliSession, tool: str, dialect: str | None, plan: bool) -> None:
    """Show everything known about a tool; activates its plugin if necessary."""
    host = session.host()
    if plan:
        steps = host.tool_plan(tool)
        session.show_list(steps, ("step", "does", "by"), lambda step: (step.name, step.does, ", ".join(step.by)))
        return
    if dialect is not None:
        session.out.json(host.tool_schema(tool, dialect=dialect))
        return
    spec = host.tools[tool]
    needs = host.tools.lacking([spec])
    session.show_facts(_json(spec, needs), _facts(spec, _needs(needs.get(spec.id))))
    if parameters := spec.input_schema.get("properties"):
        session.out.text()
        session.out.table(("parameter", "type", "needed", "default", "description"), _parameter_rows(spec, parameters))


@tools.command()
@click.argument("words", metavar="QUERY...", nargs=-1, required=True)
@click.option("--profile", metavar="NAME", help="Only tools that this agent profile may use.")
@click.option("--tag", metavar="TAG", help="Only tools with this tag.")
@click.option("--capability", metavar="NAME", callback=_a_capability, help="Only tools that need this capability.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Maximum number of results.")
def search(
    session: CliSession,
    words: tuple[str, ...],
    profile: str | None,
    tag: str | None,
    capability: str | None,
    limit: int,
) -> None:
    """Find tools by words in Chinese or English, best first; exit code 5 if nothing matches."""
    known, query = session.host().tools, " ".join(words)
    found = known.search(query, capability=capability, tag=tag, limit=limit, profile=profile)
    needs = known.lacking(found, profile=profile)
    session.out.result([_json(spec, needs) for spec in found])
    rows = [(s.id, _about(s), ", ".join(s.tags), _needs(needs.get(s.id))) for s in found]
    _table(session, ("tool", "description", "tags"), rows)
    if not found:
        raise nothing_found(f"no tool fits {query!r}")


@tools.command()
@click.argument("tool", metavar="ID", shell_complete=completion.tools)
@click.option("--profile", metavar="NAME", help="As seen by this agent profile.")
@click.option(
    "--permissions", metavar="A,B", help="For a caller with exactly these capabilities instead of the host itself."
)
def why(session: CliSession, tool: str, profile: str | None, permissions: str | None) -> None:
    """Say why a tool can or cannot be seen and called; exit code 5 if there is none with this id."""
    known = session.host().tools
    answer = known.why(tool, profile=profile, context=None if permissions is None else caller(permissions, profile))
    pairs = [("tool", answer.id), ("visible", answer.visible), ("reason", answer.reason), ("fix", answer.fix)]
    session.show_facts(answer.to_json(), [*pairs, ("plugin", answer.plugin)])
    if not answer.visible and answer.id not in known.known_ids():
        raise ReportedExit(NOTHING_FOUND)


@tools.command()
@click.option("--profile", metavar="NAME", help="Only the inventory of this agent profile.")
@click.option(
    "--lang", type=click.Choice(["zh", "en"]), help="Language of the labels; default: `language` of the configuration."
)
@click.option("--query", metavar="TEXT", help="Keep only the examples that fit TEXT best.")
@click.option("--max-chars", type=click.IntRange(1), help="Size budget; default: limits.manualChars.")
def manual(
    session: CliSession, profile: str | None, lang: str | None, query: str | None, max_chars: int | None
) -> None:
    """Print the manual that replaces {{{system:available_tools}}}."""
    language: Literal["zh", "en"] | None = "en" if lang == "en" else "zh" if lang else None
    text = session.host().manual(profile, language=language, query=query, max_chars=max_chars)
    session.out.result({"profile": profile, "manual": text})
    session.out.data(text)


def _json(spec: ToolSpec, needs: Mapping[str, ToolNeed]) -> dict[str, Any]:
    need = needs.get(spec.id)
    return spec.to_json() | {"needs": None if need is None else need.to_json()}


def _needs(need: ToolNeed | None) -> str:
    """The permissions that a tool lacks and what would allow it; empty if it lacks nothing."""
    if need is None:
        return ""
    return f"{'needs' if need.is_certain else 'may need'} {', '.join(need.missing)}: {need.fix}"


def _table(session: CliSession, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], empty: str = "") -> None:
    """A table whose last column is only shown if it has content."""
    if any(row[-1] for row in rows):
        session.out.table((*columns, "not granted"), rows, empty=empty)
    else:
        session.out.table(columns, [row[:-1] for row in rows], empty=empty)


def _about(spec: ToolSpec) -> str:
    """The description of a tool, after the name that it has in the system behind it if that cannot be part of an id."""
    own = spec.display_name if spec.resource_id not in (None, spec.local_name) else ""
    is_said = not own or spec.description.startswith(own)
    return shorten(spec.description if is_said else f"{own}: {spec.description}", _DESCRIPTION_WIDTH)


def _facts(spec: ToolSpec, needs: str) -> list[tuple[str, Any]]:
    flags = {
        "optional": spec.optional,
        "read-only": spec.read_only,
        "destructive": spec.is_destructive,
        "idempotent": spec.idempotent,
        "needs approval": spec.requires_approval,
    }
    return [
        ("tool", spec.id),
        ("name", spec.display_name),
        ("description", spec.description),
        ("plugin", f"{spec.plugin} {spec.version}"),
        ("kind", spec.kind),
        ("capabilities", sorted(spec.capabilities)),
        ("not granted", needs),
        ("marks", [name for name, is_set in flags.items() if is_set]),
        ("tags", spec.tags),
        ("aliases", spec.aliases),
        ("timeout", f"{spec.timeout_ms} ms" if spec.timeout_ms else None),
        ("settings", [item.get("key") for item in spec.config_schema]),
        ("source", spec.source),
    ]


def _parameter_rows(spec: ToolSpec, properties: Any) -> list[tuple[Any, ...]]:
    needed = set(spec.input_schema.get("required", ()))
    rows: list[tuple[Any, ...]] = []
    for name, schema in properties.items():
        schema = schema if isinstance(schema, dict) else {}
        kind = " | ".join(map(str, schema["enum"])) if "enum" in schema else schema.get("type", "")
        default = schema.get("default", schema.get("defaultValue"))
        rows.append((name, kind, name in needed, default, schema.get("description", "")))
    return rows


@tools.command()
@click.argument("call", metavar="CALL")
def cancel(session: CliSession, call: str) -> None:
    """Cancel a running call in any process.

    CALL is the id of the call, which `tavern logs tail` shows.
    """
    asked = session.host().cancel(call)
    text = f"{call} was asked to end" if asked else f"no call {call} runs in this home"
    session.show({"callId": call, "cancelled": asked}, text)
    if not asked:
        raise ReportedExit(exit_code_of("JOB_NOT_FOUND"))


@tools.command()
def pins(session: CliSession) -> None:
    """List the pinned tools and the changes of their definitions; exit code 3 if one is quarantined."""
    found = session.host().tools.pins()
    session.out.result([one.to_json() for one in found])
    rows = [(one.tool, one.state, one.renamed_to or ", ".join(each.path for each in one.diff)) for one in found]
    session.out.table(("tool", "state", "changed"), rows, empty="no tool is pinned")
    for one in found:
        for each in one.diff:
            before, after = (shorten(json_text(value), _DESCRIPTION_WIDTH) for value in (each.before, each.after))
            session.out.text(f"{one.tool} {each.path}\n  - {before}\n  + {after}")
    if any(one.state != "ok" for one in found):
        raise ReportedExit(exit_code_of("TOOL_QUARANTINED"))


@tools.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=completion.tools)
def pin(session: CliSession, ids: tuple[str, ...]) -> None:
    """Accept the current definitions of these tools; a tool whose definition changes later is quarantined."""
    session.host().tools.pin(*ids)
    session.show({"pinned": list(ids)}, f"pinned: {', '.join(ids)}")


@tools.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=completion.tools)
def unpin(session: CliSession, ids: tuple[str, ...]) -> None:
    """Remove the pins of these tools."""
    session.host().tools.unpin(*ids)
    session.show({"unpinned": list(ids)}, f"no longer pinned: {', '.join(ids)}")
