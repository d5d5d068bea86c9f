"""``tavern run``: runs the tool calls in the text of a model and prints their results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from tavern_core.cli.call import caller
from tavern_core.cli.errors import ReportedExit, exit_code_of
from tavern_core.cli.inputs import read_file, read_stdin
from tavern_core.cli.output import json_text, shorten
from tavern_core.cli.session import CliSession, command

if TYPE_CHECKING:
    from tavern_core.model.text_call import Step, TextOutcome

_VALUE_WIDTH = 80


@command()
@click.argument("file", metavar="[FILE|-]", default="-")
@click.option("--permissions", metavar="A,B", help="Run with exactly these capabilities instead of the host's own.")
@click.option("--profile", metavar="NAME", help="Run as this agent profile; without --permissions it has none.")
@click.option("--feedback", "only_feedback", is_flag=True, help="Print only the feedback for the model.")
def run(session: CliSession, file: str, permissions: str | None, profile: str | None, only_feedback: bool) -> None:
    """Run the tool calls in the text of a model.

    The text is FILE or stdin; its calls are TAM blocks. Prints the text without the calls, a table of the calls, and the
    feedback for the model. The exit code is the highest one of all results.
    """
    text = read_stdin() if file == "-" else read_file(file)
    host = session.host()
    if profile is not None:
        host.profile(profile)  # an unknown one is an error even if the text calls nothing
    outcome = host.run_text_sync(text, context=caller(permissions, profile))
    session.out.result(outcome.to_json())
    if only_feedback:
        session.out.data(outcome.feedback)
    else:
        _show(session, outcome)
    if code := worst(outcome):
        raise ReportedExit(code)


def worst(outcome: TextOutcome) -> int:
    """The highest exit code among the results."""
    codes = [exit_code_of(r.error.kind) for r in outcome.results if r.error is not None]
    codes += [exit_code_of("TAM_SYNTAX")] if not outcome.ok and not codes else []
    return max(codes, default=0)


def _show(session: CliSession, outcome: TextOutcome) -> None:
    out = session.out
    if prose := outcome.text.strip():
        out.data(prose)
    if rows := list(_rows(outcome)):
        out.text()
        out.table(("block", "step", "tool", "state", "ms", "answer"), rows)
    if outcome.feedback:
        out.text()
        out.data(outcome.feedback)


def _rows(outcome: TextOutcome) -> Iterator[tuple[Any, ...]]:
    """The rows of the table: one per call in the order of the text, and one for each invalid block."""
    rows = [(s.call.block, s.call.index, *_came_of(s)) for s in outcome.steps]
    bad = {p.block: p for p in reversed(outcome.problems) if p.severity == "error"}
    rows += [(block, 0, "", p.code, "", f"line {p.line}: {p.message}") for block, p in bad.items()]
    for block, step, *rest in sorted(rows, key=lambda row: row[:2]):
        yield (block, step or "", *rest)


def _came_of(step: Step) -> tuple[Any, ...]:
    result = step.result
    if result is None:
        return step.call.tool, "not run", "", "an earlier step of its chain failed"
    took = result.meta.get("durationMs", "")
    if result.error is not None:
        return step.call.tool, result.error.kind, took, result.error.message
    value = result.value if isinstance(result.value, str) else json_text(result.value)
    return step.call.tool, result.status, took, shorten(value, _VALUE_WIDTH)
