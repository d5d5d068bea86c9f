"""``tavern nodes``: list, show and run the nodes of plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tavern_core.cli import completion
from tavern_core.cli.call import caller
from tavern_core.cli.errors import nothing_found
from tavern_core.cli.inputs import json_arguments, named
from tavern_core.cli.lazy_groups import Group
from tavern_core.cli.output import shorten
from tavern_core.cli.run_display import finished, through, typed_inputs
from tavern_core.cli.session import CliSession
from tavern_core.errors import UsageError
from tavern_core.model.nearest import did_you_mean

if TYPE_CHECKING:
    from tavern_core.model.node import NodeMatch, NodeSpec, Slot
    from tavern_core.model.run import RunResult

_WIDTH = 90


@click.group(cls=Group)
def nodes() -> None:
    """List, show and run nodes of workflows."""


@nodes.command("list")
@click.argument("query", required=False, default="")
@click.option("--category", default="", metavar="NAME", help="Only this category.")
def list_(session: CliSession, query: str, category: str) -> None:
    """List the node types of all plugins; with words, only matching ones."""
    found = session.host().nodes.list(query=query, category=category)

    def row(spec: NodeSpec) -> tuple[str, ...]:
        return spec.type, spec.display_name, spec.category, shorten(spec.description, _WIDTH)

    session.show_list(found, ("type", "name", "category", "description"), row)
    if not found and (query or category):
        raise nothing_found(f"no node type fits {query or category!r}")


@nodes.command()
@click.argument("request")
@click.option("--plan", "plan", multiple=True, metavar="STEP", help="One step of the plan; may be repeated.")
@click.option(
    "--workflow", metavar="ID|FILE", shell_complete=completion.workflows, help="The workflow that you want to change."
)
@click.option("--limit", type=click.IntRange(1, 1_000), default=20, show_default=True, metavar="N")
def find(session: CliSession, request: str, plan: tuple[str, ...], workflow: str | None, limit: int) -> None:
    """Find the node types that a request may need: `tavern nodes find "translate a web page"`."""
    host = session.host()
    found = host.nodes.retrieve(request, plan=plan, workflow=workflow, limit=limit)
    names = {spec.type: spec.display_name for spec in host.nodes.list()}

    def row(match: NodeMatch) -> tuple[str, ...]:
        return match.type, names.get(match.type, ""), shorten("; ".join(match.why), _WIDTH)

    session.show_list(found, ("type", "name", "why"), row)
    if not found:
        raise nothing_found(f"no node type fits {request!r:.200}")


@nodes.command()
@click.argument("type_", metavar="TYPE", shell_complete=completion.nodes)
def show(session: CliSession, type_: str) -> None:
    """Show everything known about a node type."""
    spec = session.host().nodes.get_node(type_)
    session.out.result(spec.to_json())
    pairs: list[tuple[str, Any]] = [
        ("type", spec.type), ("name", spec.display_name), ("category", spec.category), ("version", spec.version),
        ("plugin", f"{spec.plugin} {spec.plugin_version}"), ("description", spec.description),
        ("needs", ", ".join(sorted(spec.capabilities))), ("kept", "results are cached" if spec.cache else ""),
        ("deprecated", (f"use {spec.replaced_by}" if spec.replaced_by else "yes") if spec.deprecated else ""),
        ("defined in", spec.source),
    ]  # fmt: skip
    session.out.facts(pairs)
    for title, slots in (("input", spec.inputs), ("output", spec.outputs)):
        if slots:
            session.out.text()
            session.out.table((title, "type", "needed", "default", "description"), [_row(s) for s in slots.values()])


@nodes.command("run")
@click.argument("type_", metavar="TYPE", shell_complete=completion.nodes)
@click.argument("words", metavar="[INPUT=VALUE]...", nargs=-1)
@click.option("--json-args", metavar="JSON|@FILE|-", help="Inputs as one JSON object: here, in a file, on stdin.")
@click.option("--permissions", metavar="A,B", help="Run with exactly these capabilities instead of the host's own.")
def run_(
    session: CliSession, type_: str, words: tuple[str, ...], json_args: str | None, permissions: str | None
) -> None:
    """Run one node, as a workflow: `tavern nodes run text:Upper text=hello`."""
    host = session.host()
    spec = host.nodes.get_node(type_)
    arguments = json_arguments(json_args)
    inputs = arguments | typed_inputs(spec.inputs, named(words))
    for key in () if spec.dynamic_slots else inputs.keys() - spec.inputs.keys():
        raise UsageError(
            f"{spec.type} has no input {key!r}",
            hint=did_you_mean(key, spec.inputs) or f"inputs: {', '.join(spec.inputs) or 'none'}",
        )
    content = {"name": spec.type, "nodes": [{"id": "node", "type": spec.type, "inputValues": inputs}], "edges": []}

    async def run() -> RunResult:
        return await through(
            session, await host.workflows.start(content, {}, context=caller(permissions, None)), spec.type
        )

    finished(session, host.wait(run()), only="node")


def _row(slot: Slot) -> tuple[str, str, str, str, str]:
    kind = ("stream of " if slot.is_stream else "list of " if slot.multi else "") + slot.type
    default = (
        ""
        if not slot.config.get("default") and slot.config.get("default") not in (0, False)
        else str(slot.config["default"])
    )
    choices = f" one of {', '.join(map(str, slot.choices))}" if slot.is_closed else ""
    return slot.key, kind + choices, "yes" if slot.required is True else "", default, slot.description
