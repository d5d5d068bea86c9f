"""``tavern tools call``: arguments as words or JSON, the answer on stdout, the exit code of the error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tavern_core.cli import completion
from tavern_core.cli.artifacts import put_file
from tavern_core.cli.errors import failed_call, print_note
from tavern_core.cli.inputs import json_arguments, named, separated
from tavern_core.cli.output import json_text
from tavern_core.cli.run_display import print_questions
from tavern_core.cli.session import CliSession, command
from tavern_core.errors import CallError, PluginError, UsageError

if TYPE_CHECKING:
    from tavern_core.host import Tavern
    from tavern_core.model.call import CallContext
    from tavern_core.model.result import ToolResult

DOOR: Final = "cli"
_NOT_WITH_COMMIT: Final = {"dry_run": "--dry-run", "job": "--job", "trace": "--trace", "timeout_ms": "--timeout-ms"}
"""Options for a new call: argument → option."""


@command()
@click.argument("tool", metavar="ID", shell_complete=completion.tools)
@click.argument("words", metavar="[NAME=VALUE]...", nargs=-1)
@click.option(
    "--arg", "-a", "given", metavar="NAME=VALUE", multiple=True, help="An argument; the same as without --arg."
)
@click.option("--json-args", metavar="JSON|@FILE|-", help="Arguments as one JSON object: here, in a file, on stdin.")
@click.option("--permissions", metavar="A,B", help="Call with exactly these capabilities instead of the host's own.")
@click.option("--profile", metavar="NAME", help="Call as this agent profile; without --permissions it has none.")
@click.option("--timeout-ms", type=click.IntRange(1), metavar="N", help="Deadline of the call in milliseconds.")
@click.option("--dry-run", is_flag=True, help="Show what would happen, and print a token for --commit.")
@click.option("--commit", "token", metavar="TOKEN", help="Make the call that a dry run planned.")
@click.option("--job", is_flag=True, help="Make the call as a job, and follow it.")
@click.option("--trace", is_flag=True, help="Show each step of the call and how long it took, on stderr.")
@click.option("--key", metavar="KEY", help="Idempotency key: equal calls with the same key run once.")
@click.option("--purpose", default="", metavar="TEXT", help="The reason, for the audit log.")
def call(
    session: CliSession, /, tool: str, words: tuple[str, ...], given: tuple[str, ...], json_args: str | None,
    permissions: str | None, profile: str | None, token: str | None, key: str | None, purpose: str, **how: Any,
) -> None:  # fmt: skip
    """Call a tool: `tavern tools call text:count text="one two" unit=words`.

    `tavern tools show ID` lists the parameters of a tool. A value gets the type that the tool declares for it. Write lists and
    objects as JSON. For a parameter that takes an artifact, `@FILE` stores FILE as one and passes its address.
    """
    other = next((option for name, option in _NOT_WITH_COMMIT.items() if how[name]), "")
    if token is not None and other:
        raise UsageError(
            f"--commit and {other} do not go together", hint=f"leave out {other}, or make the call without --commit"
        )
    texts, json_values = named((*words, *given)), json_arguments(json_args)
    if both := sorted(texts.keys() & json_values.keys()):
        raise UsageError(f"{both[0]!r} is given twice: by name and in --json-args", hint="give it once")
    host, context = session.host(), caller(permissions, profile)
    if profile is not None:
        host.profile(profile)  # an unknown one is an error of the command line, not of the call
    arguments = {**json_values, **typed(host, tool, texts, context)}
    if token is not None:
        result = host.commit_sync(
            token, arguments or None, context=context, purpose=purpose, idempotency_key=key, door=DOOR, tool=tool
        )
    else:
        result = host.invoke_from_sync(
            DOOR, tool, arguments, context=context, purpose=purpose, idempotency_key=key, **how
        )
    if how["trace"] and not session.as_json:
        for step in result.meta.get("trace", ()):
            print_note(f"{step['ms']:>10.3f} ms  {step['step']}")
    _show(session, result)


def _show(session: CliSession, result: ToolResult) -> None:
    """Print a result; that of a job when it has ended."""
    if result.job is not None and result.status == "job" and not _questions(result):  # it would end with this process
        result = _followed(session, result.job)
    if session.as_json:
        session.out.json(result.to_json())
    elif result.ok:
        _show_value(session, result)
    if result.error is not None:
        raise failed_call(result.error, as_json=session.as_json)


def typed(host: Tavern, tool: str, texts: Mapping[str, str], context: CallContext | None = None) -> dict[str, Any]:
    """Convert texts to the types that the tool declares.

    One that fits no type stays text, which the call refuses with its place.

    Args:
        context: the owner of artifacts that are made of files.
    """
    if not texts:
        return {}
    from tavern_core.schema.text_coercion import coerce_text

    try:
        schema = host.tools[tool].input_schema
    except (CallError, PluginError):
        return dict(texts)  # the call itself reports the problem of the tool
    values, _ = coerce_text(schema, texts)
    files = {name: text[1:] for name, text in texts.items() if text.startswith("@") and _takes_artifact(schema, name)}
    return {**texts, **values, **{name: put_file(host, Path(file), context).uri for name, file in files.items()}}


def _takes_artifact(schema: Mapping[str, Any], name: str) -> bool:
    properties = schema.get("properties")
    one = properties.get(name) if isinstance(properties, Mapping) else None
    return isinstance(one, Mapping) and one.get("format") == "artifact"


def caller(permissions: str | None, profile: str | None) -> CallContext | None:
    """The caller that the options describe; None: the host itself."""
    if permissions is None and profile is None:
        return None
    from tavern_core.kernel.plugins.consent import user_name
    from tavern_core.model.call import CallContext

    user = user_name()
    names = frozenset(separated(permissions or ""))
    return CallContext(permissions=names, principal=f"user:{user}", user_id=user, profile=profile)


def _followed(session: CliSession, job: str) -> ToolResult:
    """Wait for a call that became a job; returns its result. A question ends the command, which can be resumed."""
    from tavern_core.cli.jobs import waits_for_an_answer, watched

    say = None if session.as_json else print_note
    found = watched(session, job, say)
    if not found.is_over:
        if session.as_json:
            session.out.json(session.host().jobs.result(job).to_json())
        waits_for_an_answer(found, say)
    return session.host().jobs.result(job)


def _questions(result: ToolResult) -> Sequence[Mapping[str, Any]]:
    """The questions of a workflow that waits for answers."""
    return result.value.get("questions") or () if isinstance(result.value, Mapping) else ()


def _show_value(session: CliSession, result: ToolResult) -> None:
    if result.status == "job":
        session.out.text(f"job {result.job}")
        print_questions(str(result.job), _questions(result))
    elif isinstance(result.value, str):
        session.out.data(result.value)
    elif result.value is not None:
        session.out.data(json_text(result.value, indent=2))
    for block in result.content if result.has_content and result.status != "job" else ():
        if block.get("type") == "text":
            if result.value is None:
                session.out.data(str(block["text"]))
        elif block != result.value:  # images and links are not in the value
            session.out.data(json_text(block))
