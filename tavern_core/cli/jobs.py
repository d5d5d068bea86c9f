"""``tavern jobs``: the background calls of all processes of this home."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from tavern_core.cli import completion
from tavern_core.cli.errors import ReportedExit, exit_code_of, failed_call, print_note
from tavern_core.cli.inputs import WITH_VALUE
from tavern_core.cli.lazy_groups import Group
from tavern_core.cli.output import json_text, one_line
from tavern_core.cli.session import CliSession
from tavern_core.errors import JobNotFound, UsageError
from tavern_core.model.job import JOB_STATUSES
from tavern_core.schema.json_reader import json_or_text

if TYPE_CHECKING:
    from tavern_core.model.job import Job

_COLUMNS: Final = ("id", "status", "tool", "caller", "progress", "age")
_LOOK_S: Final = 0.2


@click.group(cls=Group, default="list")
def jobs() -> None:
    """Show, answer, cancel and resume background calls.

    `tavern jobs` alone lists them.
    """


@jobs.command("list")
@click.option("--status", type=click.Choice(JOB_STATUSES), multiple=True, help="Only in this status; may be repeated.")
@click.option("--tool", default="", metavar="ID", help="Only calls of this tool.")
@click.option("--last", type=click.IntRange(1), default=50, show_default=True, metavar="N", help="The newest N.")
def list_(session: CliSession, status: tuple[str, ...], tool: str, last: int) -> None:
    """List jobs and runs of workflows, newest first."""
    found = session.host().jobs.list(status=status, tool=tool, most=last)
    now = time.time()

    def row(job: Job) -> tuple[str, ...]:
        return job.id, job.status, job.tool, job.principal, _progress(job.progress), _age(now - job.created)

    session.show_list(found, _COLUMNS, row, empty="no jobs")


@jobs.command()
@click.argument("job", metavar="ID", shell_complete=completion.jobs)
def show(session: CliSession, job: str) -> None:
    """Show one job and its result."""
    store = session.host().jobs
    found = store.find(job)
    result = store.result(job).to_json() if found.is_over else None
    reported = found.to_json()
    session.out.result({**reported, "result": result})
    facts: list[tuple[str, Any]] = [
        ("id", found.id),
        ("status", found.status),
        ("tool", found.tool),
        ("caller", found.principal),
        ("purpose", found.purpose),
        ("progress", _progress(found.progress)),
        ("began", reported["createdAt"]),
        ("changed", reported["updatedAt"]),
        ("call", found.call_id),
    ]
    facts += [("asks", f"{question['id']}: {question.get('prompt', '')}") for question in found.questions]
    if result is not None and result["error"] is not None:
        facts.append(("error", f"{result['error']['kind']}: {result['error']['message']}"))
        facts.append(("outcome", result["error"]["outcome"]))
    elif result is not None and result["value"] is not None:
        facts.append(("result", json_text(result["value"], indent=2)))
    session.out.facts(facts)


@jobs.command()
@click.argument("job", metavar="ID", shell_complete=completion.jobs)
def cancel(session: CliSession, job: str) -> None:
    """Cancel a job in any process."""
    asked = session.host().jobs.cancel(job)
    session.show({"jobId": job, "cancelled": asked}, f"{job} was asked to end" if asked else f"{job} has ended already")


@jobs.command(context_settings=WITH_VALUE)
@click.argument("job", metavar="ID", shell_complete=completion.jobs)
@click.argument("value", metavar="VALUE")
@click.option("--question", default="", metavar="ID", help="Which question, if there are several.")
def answer(session: CliSession, job: str, value: str, question: str) -> None:
    """Answer the question of a job: `tavern jobs answer job-… true`.

    VALUE is JSON, or text.
    """
    from tavern_core.cli.approvals import person

    store, parsed = session.host().jobs, json_or_text(value)
    try:
        is_accepted = store.answer(job, parsed, question, context=person())
    except JobNotFound:  # it waits for no approval: who has the state folder answers questions for its host
        is_accepted = store.answer(job, parsed, question)
    if not is_accepted:
        raise UsageError(f"{job} has no open question", hint=f"`tavern jobs show {job}` shows its status")
    session.show({"jobId": job, "answered": True}, f"{job} has the answer")
    if not session.as_json:
        kind = "workflows" if job.startswith("run-") else "jobs"
        print_note(f"if no process runs it any more: tavern {kind} resume {job}")


@jobs.command()
@click.argument("job", metavar="ID", shell_complete=completion.jobs)
def watch(session: CliSession, job: str) -> None:
    """Follow a job until it is over or asks a question; the exit code is that of its error."""
    _follow(session, job)


@jobs.command()
@click.argument("job", metavar="ID", shell_complete=completion.jobs)
def resume(session: CliSession, job: str) -> None:
    """Resume a job whose process has ended, and follow it.

    Possible for a job that had not begun, that waits for approval or an answer, or that may safely run twice, and for runs of workflows.
    """
    host = session.host()
    host.wait(host.jobs.resume(job))
    _follow(session, job)


def _follow(session: CliSession, job: str) -> None:
    store = session.host().jobs
    say = None if session.as_json else print_note
    found = watched(session, job, say)
    result = store.result(job) if found.is_over else None
    session.out.result({**found.to_json(), "result": None if result is None else result.to_json()})
    if result is not None and result.ok and result.value is not None:
        session.out.data(result.value if isinstance(result.value, str) else json_text(result.value, indent=2))
    if found.status == "input_required":
        waits_for_an_answer(found, say)
    if result is not None and result.error is not None:
        raise failed_call(result.error, as_json=session.as_json)


def watched(session: CliSession, job: str, say: Callable[[str], None] | None) -> Job:
    """Follow a job until it is over or asks a question; returns its state at that time.

    Args:
        say: takes a line for each change where no progress bar can be drawn; None: neither a bar nor lines.
    """
    store = session.host().jobs
    found = store.find(job)
    is_drawn = say is not None and sys.stderr.isatty()
    with _bar(found, session.out.no_color) if is_drawn else contextlib.nullcontext(None) as bar:
        last_shown: Any = None
        while True:
            found, is_asking = store.inspect(job)
            now = (found.status, found.progress)
            if bar is not None:
                bar(found)
            elif now != last_shown and say is not None:
                say(one_line(f"{found.id} {found.status} {_progress(found.progress)}".strip()))
            last_shown = now
            if found.is_over or is_asking:
                return found
            time.sleep(_LOOK_S)


def waits_for_an_answer(job: Job, say: Callable[[str], None] | None) -> NoReturn:
    """Show what a job asks, and end the command."""
    if say is not None:
        for question in job.questions:
            say(f"{question['id']}: {question.get('prompt', '')}")
        is_approval = any(question.get("type") == "approval" for question in job.questions)
        value = "true` (or false)" if is_approval else "VALUE`"
        say(
            f"answer it with `tavern jobs answer {job.id} {value}; then, if no process runs it: `tavern jobs resume {job.id}`"
            if job.questions
            else f"it has its answer, and no process runs it: `tavern jobs resume {job.id}`"
        )
    raise ReportedExit(exit_code_of("APPROVAL_REQUIRED"))


@contextlib.contextmanager
def _bar(job: Job, no_color: bool) -> Any:
    """A progress bar of the job, on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True, no_color=no_color or None), transient=True) as progress:
        task = progress.add_task(job.tool, total=None)

        def draw(now: Job) -> None:
            reported = now.progress or {}
            words = one_line(f"{now.tool} {now.status} {reported.get('message', '')}".strip())
            progress.update(
                task, description=words[:100], completed=reported.get("done", 0), total=reported.get("total")
            )

        yield draw


def _progress(progress: Mapping[str, Any] | None) -> str:
    if progress is None:
        return ""
    total = progress.get("total")
    share = f"{progress['done']:g}/{total:g}" if total else f"{progress['done']:g}"
    return f"{share} {progress.get('message', '')}".strip()


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
