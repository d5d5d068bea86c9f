"""``tavern llms``: the language models of this host, and a request to one."""

from __future__ import annotations

from typing import Any, Final

import click

from tavern_core.cli import completion
from tavern_core.cli.errors import ReportedExit, exit_code_of, show_call_error
from tavern_core.cli.inputs import json_arguments, read_stdin
from tavern_core.cli.lazy_groups import Group
from tavern_core.cli.output import json_text
from tavern_core.cli.session import CliSession
from tavern_core.contract.llm import answer_json
from tavern_core.errors import CallError

_COLUMNS: Final = ("model", "kind", "from", "of the api", "window", "price per million tokens")


@click.group(cls=Group, default="list")
def llms() -> None:
    """List and try language models.

    `tavern llms` alone lists them.
    """


@llms.command("list")
def list_(session: CliSession) -> None:
    """List all language models: those of tavern.yaml and of plugins."""
    found = session.host().llms.describe()
    session.show_list(found, _COLUMNS, _row, empty="no language models; docs/llms.md says how to add one")


@llms.command("try")
@click.argument("model", metavar="NAME", shell_complete=completion.llms)
@click.argument("prompt")
@click.option("--system", default="", metavar="TEXT", help="How the model should behave.")
@click.option("--options", metavar="JSON|@FILE", help='Options of the request: {"temperature": 0, "max_tokens": 100}.')
@click.option("--stream", is_flag=True, help="Print the answer while it arrives; with --json, one line for each piece.")
def try_(session: CliSession, model: str, prompt: str, system: str, options: str | None, stream: bool) -> None:
    """Ask a model once: `tavern llms try local "Say hello"`. `-` reads the prompt from stdin."""
    host = session.host()
    messages = [
        *([{"role": "system", "content": system}] if system else []),
        {"role": "user", "content": read_stdin() if prompt == "-" else prompt},
    ]
    wanted = json_arguments(options)
    host.llms.names()  # activates the plugins that declare models

    def on_text(piece: str) -> None:
        if session.as_json:
            session.out.json_line({"piece": piece})
        else:
            session.out.piece(piece)

    try:
        asked = host.llms.complete(
            messages, model, wanted, purpose="tavern llms try", on_text=on_text if stream else None
        )
        answer = host.wait(asked)
    except CallError as error:
        shown = {"kind": error.code, "message": error.message, "fix": error.hint}
        if not session.as_json:
            raise ReportedExit(show_call_error(shown)) from None
        more = {"retryable": error.retryable, "retryAfterMs": error.retry_after_ms, "outcome": error.outcome}
        session.out.json({"ok": False, "error": shown | more})
        raise ReportedExit(exit_code_of(error.code)) from None
    if session.as_json:
        (session.out.json_line if stream else session.out.json)({"ok": True, "answer": answer_json(answer)})
        return
    if stream:
        session.out.piece("\n")
    elif answer.data is not None:
        session.out.data(json_text(answer.data, indent=2))
    elif answer.text:
        session.out.data(answer.text)
    for call in answer.tool_calls:
        session.out.text(f"calls {call.name} {call.arguments}")


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    price, window = one["price"], one["contextTokens"]
    return (
        one["name"],
        one["kind"],
        "tavern.yaml" if one["plugin"] == "core-llms" else f"plugin {one['plugin']}",
        one["model"] or "",
        f"{window:,}" if window else "",
        f"{price['input']:g} in, {price['output']:g} out {price['currency']}" if price else "",
    )
