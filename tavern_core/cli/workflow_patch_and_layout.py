"""``tavern workflows patch`` and ``tavern workflows layout``: change workflow files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tavern_core.cli import completion
from tavern_core.cli.errors import ReportedExit, print_problem
from tavern_core.cli.inputs import json_of, read_file, read_stdin
from tavern_core.cli.session import CliSession, command
from tavern_core.errors import ERROR_CODES

if TYPE_CHECKING:
    from tavern_core.flow.patching import PatchOutcome
    from tavern_core.graph.patch_problems import PatchProblem


@command()
@click.argument("workflow", metavar="ID|FILE", shell_complete=completion.workflows)
@click.argument("operations", metavar="PATCH.json|-", type=click.Path())
@click.option("--rev", type=click.IntRange(0), metavar="N", help="The revision for which the patch was written.")
@click.option("--dry-run", is_flag=True, help="Write nothing.")
def patch(session: CliSession, workflow: str, operations: str, rev: int | None, dry_run: bool) -> None:
    """Apply a JSON Patch to a workflow and write its file, completely or not at all.

    PATCH.json is a file, or `-` for stdin. Exit code 4 if the patch is refused.
    """
    text, name = (read_stdin(), "stdin") if operations == "-" else (read_file(operations), operations)
    outcome = session.host().workflows.patch(workflow, json_of(text, name), rev=rev, dry_run=dry_run)
    if session.as_json:
        session.out.json(outcome.to_json())
    else:
        _print_outcome(session, outcome)
    if not outcome.ok:
        raise ReportedExit(ERROR_CODES["WORKFLOW_INVALID"].exit_code)


@command()
@click.argument("workflow", metavar="ID|FILE", shell_complete=completion.workflows)
@click.option("--keep", is_flag=True, help="Only nodes without a position.")
@click.option("--dry-run", is_flag=True, help="Write nothing.")
def layout(session: CliSession, workflow: str, keep: bool, dry_run: bool) -> None:
    """Lay out the nodes of a workflow and write its file."""
    found = session.host().workflows.layout(workflow, keep=keep, dry_run=dry_run)
    session.show({node.id: node.position for node in found.nodes}, f"{len(found.nodes)} nodes, rev {found.rev}")


def _print_outcome(session: CliSession, outcome: PatchOutcome) -> None:
    for problem in outcome.problems:
        severity = "warning" if problem.is_old else problem.severity
        print_problem(severity, problem.code, problem.message, problem.hint, _places(problem))
    if outcome.ok:
        session.out.text(outcome.summary[session.host().config.language or "en"])
        for edge in outcome.removed_edges:
            session.out.text(f"edge {edge.id} was removed with node {edge.node}")


def _places(problem: PatchProblem) -> list[str]:
    operation = f"operation {problem.op}" if problem.op is not None else ""
    place = ", ".join(part for part in (operation, problem.pointer) if part)
    return [f"  --> {place}"] if place else []
