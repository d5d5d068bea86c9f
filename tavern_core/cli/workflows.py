"""``tavern workflows``: list, check, draw and run workflows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tavern_core.cli import completion
from tavern_core.cli.call import caller
from tavern_core.cli.errors import FAILED, ReportedExit, exit_code_of, print_problem
from tavern_core.cli.inputs import WITH_VALUE, json_arguments, named
from tavern_core.cli.lazy_groups import Group, LazyCommand
from tavern_core.cli.output import shorten
from tavern_core.cli.prompts import alone, answered, has_person, typed
from tavern_core.cli.run_display import complete_run, finished, print_questions, show_record, through, typed_inputs
from tavern_core.cli.session import CliSession
from tavern_core.errors import ERROR_CODES, InputInvalid, RunNotFound, TavernError, UsageError, WorkflowInvalid
from tavern_core.model.nearest import did_you_mean

if TYPE_CHECKING:
    from tavern_core.flow.engine.run_options import NodeQuestion
    from tavern_core.flow.engine.sqlite_run_store import StoredRun
    from tavern_core.host import Tavern
    from tavern_core.model.run import RunEvent, RunResult

_WIDTH = 90


_PATCHES = "tavern_core.cli.workflow_patch_and_layout"
_LAZY = {
    "patch": LazyCommand(
        _PATCHES, "patch", "Apply a JSON Patch to a workflow and write its file, completely or not at all."
    ),
    "layout": LazyCommand(_PATCHES, "layout", "Lay out the nodes of a workflow and write its file."),
}


@click.group(cls=Group, lazy=_LAZY)
def workflows() -> None:
    """List, check, draw and run workflows. A workflow is an id, or the path of a file."""


@workflows.command("list")
def list_(session: CliSession) -> None:
    """List the workflows of the workflow folders and of plugins."""
    known = session.host().workflows
    rows: list[dict[str, Any]] = []
    for id_, source in known.list().items():
        row: dict[str, Any] = {
            "id": id_,
            "plugin": source.plugin or None,
            "file": str(source.path) if source.path else None,
        }
        try:
            flow = known.get_workflow(id_)
            row |= {"name": flow.name, "description": flow.description, "nodes": len(flow.nodes), "error": None}
        except TavernError as error:
            row |= {"name": "", "description": "", "nodes": 0, "error": error.message}
        rows.append(row)

    def cells(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["id"], row["nodes"], row["plugin"], shorten(row["error"] or row["description"], _WIDTH)

    columns = ("workflow", "nodes", "plugin", "description")
    session.show_list(rows, columns, cells, empty="there are no workflows; put some into `workflows/`")


@workflows.command()
@click.argument("workflow", metavar="ID|FILE", shell_complete=completion.workflows)
def show(session: CliSession, workflow: str) -> None:
    """Show a workflow: its interface and its nodes."""
    flow = session.host().workflows.find(workflow)
    session.out.result(dict(flow.raw))
    session.out.facts(
        [("workflow", flow.id), ("name", flow.name), ("description", flow.description), ("rev", flow.rev or "")]
    )
    for title, slots in (("input", flow.inputs()), ("output", flow.outputs())):
        if slots:
            session.out.text()
            rows = [(s.key, s.type, "yes" if s.required is True else "", s.description) for s in slots.values()]
            session.out.table((title, "type", "needed", "description"), rows)
    session.out.text()
    session.out.table(("node", "type", "name"), [(n.id, n.type, n.display_name) for n in flow.nodes])


@workflows.command()
@click.argument("workflow", metavar="[ID|FILE]", required=False, shell_complete=completion.workflows)
def check(session: CliSession, workflow: str | None) -> None:
    """Report all problems of a workflow, or of all workflows; nothing is run. Exit code 4 if there are any."""
    known = session.host().workflows
    found: list[dict[str, Any]] = []
    for id_ in known.list() if workflow is None else [workflow]:
        try:
            problems = known.check(id_)
        except WorkflowInvalid as error:
            if workflow is not None:
                raise
            found.append(
                {"workflow": id_, "code": error.code, "message": error.message, "severity": "error", "hint": error.hint}
            )
            continue
        found += [
            {"workflow": id_, **problem.to_json()} if workflow is None else problem.to_json() for problem in problems
        ]
    if session.as_json:
        session.out.json(found)
    else:
        for reported in found:
            place = "".join(
                f"  --> {word} {reported[word]}" for word in ("workflow", "node", "edge") if reported.get(word)
            )
            print_problem(
                reported["severity"],
                reported["code"],
                reported["message"],
                reported.get("hint", ""),
                [place] if place else [],
            )
        if not found:
            session.out.text("ok")
    if any(reported["severity"] == "error" for reported in found):
        raise ReportedExit(ERROR_CODES["WORKFLOW_INVALID"].exit_code)


@workflows.command()
@click.argument("workflow", metavar="ID|FILE", shell_complete=completion.workflows)
@click.option("--svg", is_flag=True, help="SVG instead of Mermaid.")
@click.option("--output", "-o", metavar="FILE", help="Write it there.")
def graph(session: CliSession, workflow: str, svg: bool, output: str | None) -> None:
    """Draw a workflow: as Mermaid text, or as an SVG picture."""
    form = "svg" if svg else "mermaid"
    picture = session.host().workflows.graph(workflow, form)
    if session.as_json:
        session.out.json({"form": form, "picture": picture})
    elif output is None:
        session.out.text(picture)
    else:
        try:
            Path(output).write_text(picture, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{output} cannot be written: {error.strerror}") from error


@workflows.command("run")
@click.argument("workflow", metavar="ID|FILE", shell_complete=completion.workflows)
@click.argument("words", metavar="[INPUT=VALUE]...", nargs=-1)
@click.option("--json-args", metavar="JSON|@FILE|-", help="Inputs as one JSON object: here, in a file, on stdin.")
@click.option("--to", multiple=True, metavar="NODE", help="Run only this node and what it needs.")
@click.option("--again", metavar="RUN", help="Reuse results of an earlier run where nothing changed.")
@click.option(
    "--from", "start_at", multiple=True, metavar="NODE", help="With --again: run this node and its dependents again."
)
@click.option("--no-cache", is_flag=True, help="Use no cached results.")
@click.option("--concurrency", type=click.IntRange(1), metavar="N", help="Nodes that run at the same time.")
@click.option("--timeout-ms", type=click.IntRange(1), metavar="N", help="Deadline of the run in milliseconds.")
@click.option("--permissions", metavar="A,B", help="Run with exactly these capabilities instead of the host's own.")
def run_(
    session: CliSession, workflow: str, words: tuple[str, ...], json_args: str | None, to: tuple[str, ...], again: str | None,
    start_at: tuple[str, ...], no_cache: bool, concurrency: int | None, timeout_ms: int | None, permissions: str | None,
) -> None:  # fmt: skip
    """Run a workflow: `tavern workflows run summarize text="..."`. On a terminal, it shows the nodes while they run."""
    if start_at and again is None:
        raise UsageError("--from needs --again RUN", hint="name the earlier run whose results are reused")
    host = session.host()
    flow = host.workflows.find(workflow)
    texts = named(words)
    inputs = json_arguments(json_args) | typed_inputs(flow.inputs(), texts)
    options: dict[str, Any] = {
        "to": to,
        "timeout_ms": timeout_ms,
        "cache": not no_cache,
        "context": caller(permissions, None),
    }
    if again is not None:
        options |= {"again": again, "start_at": start_at}
    if concurrency is not None:
        options["concurrency"] = concurrency

    async def run() -> RunResult:
        return await through(session, await host.workflows.start(workflow, inputs, **options), flow.id)

    finished(session, host.wait(run()))


@workflows.command()
@click.argument("run", metavar="RUN", shell_complete=completion.runs)
@click.argument("words", metavar="[QUESTION=VALUE]...", nargs=-1)
@click.option(
    "--input",
    "-i",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="A new input, such as a secret that was not stored.",
)
@click.option("--concurrency", type=click.IntRange(1), metavar="N", help="Nodes that run at the same time.")
@click.option("--timeout-ms", type=click.IntRange(1), metavar="N", help="Deadline of the run in milliseconds.")
def resume(
    session: CliSession, run: str, words: tuple[str, ...], given: tuple[str, ...], concurrency: int | None, timeout_ms: int | None,
) -> None:  # fmt: skip
    """Resume a run that failed, was cancelled, or waits for answers.

    It runs on behalf of its original caller. Completed nodes do not run again.

    Name a question by its id, `node#1`, or by its node if that has only one question.
    """
    host = session.host()
    answers = {(asked := _question(host, run, name)).id: _typed(asked, text) for name, text in named(words).items()}
    inputs: dict[str, Any] = {}
    if given:
        from tavern_core.flow.resuming import document_of_run

        stored = _kept(host, run)
        host.workflows.list()  # activates the plugins whose code contributes workflows
        flow = document_of_run(stored, host.workflows.workflow_files)
        inputs = typed_inputs(flow.inputs(), named(given))
    options = {
        name: value for name, value in (("concurrency", concurrency), ("timeout_ms", timeout_ms)) if value is not None
    }
    _take_up(session, host, run, answers, inputs=inputs, **options)


@workflows.command(context_settings=WITH_VALUE)
@click.argument("run", metavar="RUN", shell_complete=completion.runs)
@click.argument("question", metavar="[QUESTION]", required=False)
@click.argument("value", metavar="[VALUE]", required=False)
def answer(session: CliSession, run: str, question: str | None, value: str | None) -> None:
    """Answer a question of a run in any process.

    If no process runs it, the run continues here after the last answer.

    QUESTION is its id, `node#1`, or its node; it may be omitted if only one is open. VALUE gets the type that the question expects; without
    it, the command asks you.
    """
    from tavern_core.flow.engine.journal import RunContinuesElsewhere

    host = session.host()
    open_ = _open(host, run)
    if value is None and len(open_) == 1 and question not in (None, open_[0].id, open_[0].path):
        question, value = None, question  # the only question need not be named
    asked = _question(host, run, question)
    if value is not None:
        _give(host, run, asked, _typed(asked, value))
    elif not has_person():
        raise UsageError("VALUE is missing", hint=f"tavern workflows answer {run} {asked.id} VALUE")
    else:
        with alone():
            if not answered(asked, lambda reply: host.workflows.answer(run, asked.id, reply)):
                raise click.Abort
    remaining = [each.to_json() for each in _open(host, run) if each.id != asked.id]
    if not remaining:
        try:
            _take_up(session, host, run, {})
            return
        except RunContinuesElsewhere:
            pass  # its own process gets the answer
    if session.as_json:
        session.out.json(
            {"runId": run, "question": asked.id, "state": "waiting" if remaining else "running", "questions": remaining}
        )
    else:
        session.out.text(f"{asked.id} is answered")
        print_questions(run, remaining)


def _take_up(session: CliSession, host: Tavern, run: str, answers: Mapping[str, Any], **options: Any) -> None:
    """Resume a run and print its result; for a completed one, print its result."""

    async def go_on() -> RunResult:
        return await through(session, await host.workflows.take_up(run, answers, **options), stored.workflow or run)

    stored = _kept(host, run)
    if stored.state == "complete" and stored.times_taken_up and not answers:
        print_problem("note", "USAGE", f"{run} is complete already")
        finished(session, complete_run(stored, host.wait(host.workflows.record(run))))
    else:
        finished(session, host.wait(go_on()))


def _kept(host: Tavern, run: str) -> StoredRun:
    host.wait(host.workflows.record(run))  # names the closest one if there is none
    return next(kept for kept in host.workflows.kept(most=1_000) if kept.run_id == run)


def _open(host: Tavern, run: str) -> tuple[NodeQuestion, ...]:
    with suppress(RunNotFound):  # it has no questions
        return host.workflows.questions(run)
    return ()


def _question(host: Tavern, run: str, name: str | None) -> NodeQuestion:
    """The named open question of a run. Raises UsageError: none, or more than one (USAGE)."""
    stored, open_ = _kept(host, run), _open(host, run)
    names = ", ".join(question.id for question in open_)
    found = [question for question in open_ if name is None or name in (question.id, question.path)]
    if len(found) == 1:
        return found[0]
    if not open_ and name is None:
        raise UsageError(f"{run} has no question: it is {stored.state}", hint=f"tavern workflows runs {run}")
    if len(found) > 1:
        raise UsageError(f"{run} has {len(found)} open questions", hint=f"name one of {names}")
    was_asked = [
        event
        for event in host.workflows.events(run)
        if event.kind == "ask" and name in (event.path, event.data.get("question"))
    ]
    if was_asked:
        raise UsageError(f"{run}: {name!r} is answered already", hint=f"open questions: {names or 'none'}")
    hint = (
        did_you_mean(str(name), [each for question in open_ for each in (question.id, question.path)])
        or f"open questions: {names or 'none'}"
    )
    raise UsageError(f"{run} does not ask {str(name)[:200]!r}", hint=hint)


def _typed(asked: NodeQuestion, text: str) -> Any:
    value, why = typed(asked.schema, text)
    if why:
        raise InputInvalid(f"the answer to {asked.id} {why}", hint="answer again; the question stays open")
    if (refusal := asked.refusal(value)) is not None:
        raise refusal
    return value


def _give(host: Tavern, run: str, asked: NodeQuestion, value: Any) -> None:
    if not host.workflows.answer(run, asked.id, value):
        raise UsageError(
            f"{run}: {asked.id!r} is answered already: another answer came first", hint=f"tavern workflows runs {run}"
        )


@workflows.command()
@click.argument("run", metavar="[RUN]", required=False, shell_complete=completion.runs)
@click.option("--workflow", default="", metavar="ID", help="Only runs of this workflow.")
def runs(session: CliSession, run: str | None, workflow: str) -> None:
    """List the stored runs, newest first; for one RUN, its nodes with their inputs and outputs."""
    if run is not None:
        show_record(session, session.host().wait(session.host().workflows.record(run)))
        return
    found = session.host().workflows.kept(workflow)

    def row(stored: StoredRun) -> tuple[str, ...]:
        return stored.run_id, stored.workflow, stored.state, stored.started_text, f"{stored.latency_ms:.0f} ms"

    session.show_list(found, ("run", "workflow", "state", "started", "took"), row, empty="there are no stored runs")


@workflows.command()
@click.argument("run", metavar="RUN", shell_complete=completion.runs)
def cancel(session: CliSession, run: str) -> None:
    """Cancel a run, in any process of this state folder."""
    is_ended = session.host().workflows.cancel(run)
    session.show({"runId": run, "cancelled": is_ended}, f"{run} ends" if is_ended else f"{run} has ended already")


@workflows.command()
@click.argument("run", metavar="RUN", shell_complete=completion.runs)
@click.option("--after", type=click.IntRange(0), default=0, metavar="SEQ", help="Only events after this number.")
def events(session: CliSession, run: str, after: int) -> None:
    """Show the events of a run."""
    found = session.host().workflows.events(run, after)

    def row(event: RunEvent) -> tuple[Any, ...]:
        return event.seq, event.to_json()["time"], event.kind, event.path, _details(event)

    session.show_list(found, ("seq", "time", "what", "node", "details"), row)


@workflows.command()
@click.argument("run", metavar="RUN", shell_complete=completion.runs)
@click.option("--after", type=click.IntRange(0), default=0, metavar="SEQ", help="Only events after this number.")
def follow(session: CliSession, run: str, after: int) -> None:
    """Follow the events of a run in any process until it is over.

    The exit code is that of its result.
    """
    last = session.host().wait(_followed(session, session.host(), run, after))
    stored = session.host().workflows.kept_run(run)
    errors = stored.errors if stored is not None else ()
    match last or (f"run:{stored.state}" if stored is not None else ""):
        case "run:error" if errors:
            raise ReportedExit(exit_code_of(str(errors[0]["kind"])))
        case "run:cancelled":
            raise ReportedExit(exit_code_of("CANCELLED"))
        case "run:interrupted" | "run:waiting":
            raise ReportedExit(FAILED)


async def _followed(session: CliSession, host: Tavern, run: str, after: int) -> str:
    """Print each event as it arrives; returns the kind of the last one."""
    last = ""
    async for event in host.workflows.follow(run, after):
        last = event.kind
        if session.as_json:
            session.out.json_line(event.to_json())
        else:
            text = f"{event.seq:>5} {event.to_json()['time']} {event.kind:<14} {event.path} {_details(event)}"
            session.out.line(text.rstrip())
    return last


def _details(event: RunEvent) -> str:
    return shorten(str(dict(event.data)) if event.data else "", 60)
