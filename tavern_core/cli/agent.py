"""``tavern agent``: gives tasks to agents; shows, resumes and replays their runs."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from tavern_core.cli import completion
from tavern_core.cli.call import caller
from tavern_core.cli.errors import FAILED, INTERRUPTED, ReportedExit, exit_code_of, print_note, print_problem
from tavern_core.cli.inputs import named, read_stdin, separated
from tavern_core.cli.lazy_groups import Group
from tavern_core.cli.output import json_text, one_line, shorten, visible
from tavern_core.cli.session import CliSession
from tavern_core.errors import UsageError
from tavern_core.schema.json_reader import json_or_text

if TYPE_CHECKING:
    from tavern_core.agents.handle import AgentHandle
    from tavern_core.model.agent_run import AgentEvent, AgentOutcome, AgentRecord

_COLUMNS: Final = ("run", "state", "profile", "steps", "calls", "cost", "started", "task")
_WIDTH: Final = 60
_budget = click.option(
    "--budget",
    metavar="A=N,B=N",
    default="",
    help="Limits of this run: steps, calls, tokens, seconds, money, currency.",
)


@click.group(cls=Group)
def agent() -> None:
    """Give tasks to agents; show, resume and replay their runs."""


@agent.command()
@click.argument("profile", metavar="PROFILE", shell_complete=completion.profiles)
@click.argument("task", metavar="TASK|-")
@click.option("--model", metavar="NAME", help="The language model, instead of the profile's.")
@_budget
@click.option("--permissions", metavar="A,B", help="Run with at most these capabilities.")
def run(session: CliSession, profile: str, task: str, model: str | None, budget: str, permissions: str | None) -> None:
    """Give a task to an agent: `tavern agent run writer "Count the words of README.md"`.

    PROFILE is a name or the path of an agent_profile.json. With -, the task is read from stdin. Steps are printed to stderr,
    the answer to stdout. The command asks at the terminal about calls that need approval. Without a terminal, the run waits
    for `tavern approvals`.
    """
    text = read_stdin() if task == "-" else task
    limits = _limits(budget)
    host = session.host()
    context = caller(permissions, None)
    begun = host.agents.start(profile, text, context=context, model=model, budget=limits)
    _finished(session, host.wait(_followed(session, begun, quiet=session.as_json)))


@agent.command()
@click.argument("run_id", metavar="RUN", shell_complete=completion.agent_runs)
@click.option("--answer", multiple=True, metavar="ID=VALUE", help="The answer to a question; JSON, or text.")
@click.option("--model", metavar="NAME", help="The language model from now on, instead of the run's.")
@_budget
def resume(session: CliSession, run_id: str, answer: tuple[str, ...], model: str | None, budget: str) -> None:
    """Resume a run that waits, or that ended before its task was done.

    Answers of the model and calls that are on record are not repeated.
    """
    host = session.host()
    answers = {name: json_or_text(text) for name, text in named(answer, "--answer ID=VALUE").items()}
    begun = host.agents.take_up(run_id, answers, model=model, budget=_limits(budget))
    _finished(session, host.wait(_followed(session, begun, quiet=session.as_json)))


@agent.command()
@click.option("--last", type=click.IntRange(1), default=50, show_default=True, metavar="N", help="The newest N.")
def runs(session: CliSession, last: int) -> None:
    """List the runs of agents, newest first."""
    found = session.host().agents.runs(most=last)
    rows = [record.to_json() for record in found]
    session.out.result([{key: row[key] for key in row if key != "events"} for row in rows])
    session.out.table(_COLUMNS, [_row(record) for record in found], empty="no runs of agents")


@agent.command()
@click.argument("run_id", metavar="RUN", shell_complete=completion.agent_runs)
def show(session: CliSession, run_id: str) -> None:
    """Show a run: every message, every call with its result, and what it cost."""
    record = session.host().agents.get(run_id)
    session.out.result(record.to_json())
    for event in record.events:
        for line in _lines(event, whole=True):
            session.out.text(line)


@agent.command()
@click.argument("run_id", metavar="RUN", shell_complete=completion.agent_runs)
def replay(session: CliSession, run_id: str) -> None:
    """Repeat a run from its record, without calling the model or tools.

    Reports where the host would now answer the model differently. Exit code 1 if there is such a place.
    """
    found = session.host().agents.replay_sync(run_id)
    session.out.result(found.to_json())
    for line in found.differences:
        session.out.text(line)
    if found.ok:
        session.out.text(f"{run_id}: {found.outcome.steps} steps give the same messages")
    if not found.ok:
        raise ReportedExit(FAILED)


@agent.command()
@click.argument("profile", metavar="PROFILE", shell_complete=completion.profiles)
@click.argument("task", metavar="[TASK]", default="")
def prompt(session: CliSession, profile: str, task: str) -> None:
    """Print the system prompt with which an agent would begin."""
    found = session.host().agents.prompt_sync(profile, task)
    if session.as_json:
        session.out.json(found.to_json())
        return
    session.out.data(found.system)
    for part in found.left_out:
        print_problem("note", "AGENT", f"no room for {part.part}: {part.reason} {', '.join(part.names)}".rstrip())
    for finding in found.findings:
        print_problem("warning", finding.code, finding.located, finding.hint)


async def _followed(session: CliSession, begun: Coroutine[Any, Any, AgentHandle], *, quiet: bool) -> AgentOutcome:
    """The outcome of a run, with its steps on stderr while it runs."""
    handle = await begun
    is_shown = not quiet and session.verbosity >= 0
    try:
        async for event in handle.events():
            if is_shown and event.kind not in ("message", "end", "text"):
                for line in _lines(event, whole=session.verbosity > 0):
                    print_note(line)
        return await handle
    except BaseException:
        if handle.cancel():
            print_note(f"{handle.id} is cancelled; to continue it: tavern agent resume {handle.id}")
        raise


def _finished(session: CliSession, outcome: AgentOutcome) -> None:
    """Print the outcome; the exit code says how the run ended."""
    if session.as_json:
        session.out.json(outcome.to_json())
    elif outcome.answer:
        session.out.data(outcome.answer)
    if not session.as_json:
        known = session.host().diagnostics  # shown already, when they were found
        shown = {f"{each.message}; {each.hint}" if each.hint else each.message for each in known}
        for warning in outcome.warnings:
            if warning not in shown:
                print_problem("warning", "AGENT", warning)
        cost = "" if outcome.cost is None else f", {outcome.cost:.4f} {outcome.currency}"
        if session.verbosity >= 0:
            tokens = sum(outcome.usage.values())
            print_note(
                f"{outcome.run_id}: {outcome.state}, {outcome.steps} steps, {outcome.calls} calls, {tokens:,} tokens{cost}"
            )
    if outcome.ok:
        return
    if not session.as_json:
        for asked in (outcome.waiting_for or {}).get("questions", ()):
            print_note(f"{one_line(asked['id'])} asks: {one_line(asked.get('prompt') or '')} {_form(asked)}".rstrip())
        severity = "note" if outcome.state == "waiting" else "error"
        hint = outcome.fix
        if outcome.state == "waiting":
            hint += f", then tavern agent resume {outcome.run_id}" if "resume" not in hint else ""
        print_problem(
            severity, outcome.code or outcome.state.upper(), f"{outcome.run_id} {outcome.state}: {outcome.reason}", hint
        )
    raise ReportedExit(_exit_code(outcome))


def _form(asked: Mapping[str, Any]) -> str:
    """The form of the answer to a question: ``{"count": integer}``."""
    fields = (asked.get("schema") or {}).get("properties") or {}
    parts = [
        f"{json_text(str(name))}: {field.get('type', 'any')}"
        for name, field in fields.items()
        if isinstance(field, dict)
    ]
    return one_line(f"{{{', '.join(parts)}}}") if parts else ""


def _exit_code(outcome: AgentOutcome) -> int:
    if outcome.state == "cancelled":
        return INTERRUPTED
    if outcome.state == "stopped":
        return exit_code_of("TIMEOUT") if outcome.code == "TIMEOUT" else FAILED
    return exit_code_of(outcome.code) or FAILED


def _lines(event: AgentEvent, *, whole: bool) -> list[str]:
    """An event for people."""

    def cut(value: Any, width: int = 200) -> str:
        text = value if isinstance(value, str) else json_text(value)
        return visible(text) if whole else shorten(one_line(text), width)

    data = event.data
    match event.kind:
        case "message":
            return [f"[{data['role']}] {cut(data['content'])}"]
        case "answer":
            lines = [f"step {data['step']}: {cut(data['text'])}"] if data["text"].strip() else [f"step {data['step']}"]
            if data["dropped"]:
                lines.append(f"  dropped: {data['dropped']:,} characters after the call")
            return lines
        case "fault":
            return [f"step {data['step']} failed{': once more' if data['again'] else ''}: {cut(data['message'])}"]
        case "call":
            return [f"  call {one_line(data['tool'])} {cut(data['arguments'])}"]
        case "result":
            result = data["result"]
            error = result.get("error")
            said = f"{error['kind']}: {error['message']}" if error else cut(result["value"])
            return [f"  {'ok' if result['ok'] else 'failed'} {cut(said)}"]
        case "reply" if whole:
            return [f"[{message['role']}] {cut(message['content'])}" for message in data["messages"]]
        case "compacted":
            return [f"  shortened the conversation: {data['tokensBefore']:,} → {data['tokensAfter']:,} tokens"]
        case "waiting":
            return [f"  waits: {cut(data['waitingFor']['reason'])}"]
        case "end" if whole:
            outcome = data["outcome"]
            return [f"{outcome['state']}: {cut(outcome['reason'] or outcome['answer'])}"]
    return []


def _row(record: AgentRecord) -> tuple[Any, ...]:
    outcome = record.outcome
    shown = record.to_json()
    cost = "" if outcome is None or outcome.cost is None else f"{outcome.cost:.4f} {outcome.currency}"
    steps, calls = ("", "") if outcome is None else (outcome.steps, outcome.calls)
    return (
        record.run_id,
        record.state,
        record.profile,
        steps,
        calls,
        cost,
        shown["started"],
        shorten(one_line(record.task), _WIDTH),
    )


def _limits(text: str) -> dict[str, Any] | None:
    """``steps=5,money=0.1`` as a mapping; None for nothing."""
    words = named(separated(text), "--budget steps=20,money=0.5")
    found = {name: json_or_text(value) for name, value in words.items()}
    known = ("steps", "calls", "tokens", "seconds", "money", "currency")
    if unknown := sorted(found.keys() - set(known)):
        raise UsageError(f"--budget has no {unknown[0]!r}", hint=f"limits: {', '.join(known)}")
    return found or None
