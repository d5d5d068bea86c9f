"""A command of an isolated plugin, as the command line of the host sees it: arguments go to the worker, and its output comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def proxy_command(name: str, text: str, run: Callable[[list[str]], Any]) -> Any:
    """A click command that passes everything to the worker, including ``--help``.

    Args:
        text: one line about it.
        run: passes the arguments; returns ``{"out", "err", "code"}``.
    """
    import click

    @click.command(
        name,
        help=text,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    @click.pass_context
    def command(context: click.Context, arguments: tuple[str, ...]) -> None:
        done = run(list(arguments))
        click.echo(str(done["out"]), nl=False)
        click.echo(str(done["err"]), nl=False, err=True)
        context.exit(int(done["code"]))

    return command
