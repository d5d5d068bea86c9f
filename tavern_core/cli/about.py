"""``tavern version`` and ``tavern completion``: what the command line says about itself."""

from __future__ import annotations

import click

from tavern_core.cli.session import Command, Session, json_option, pass_session

SHELLS = ("bash", "zsh", "fish")


@click.command(cls=Command)
@json_option
@pass_session
def version(session: Session, as_json: bool) -> None:
    """Print the versions of tavern-core and Python."""
    import platform

    from tavern_core import __version__

    if as_json:
        session.out.json({"tavernCore": __version__, "python": platform.python_version()})
    else:
        session.out.text(f"tavern-core {__version__} (Python {platform.python_version()})")


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(SHELLS))
@pass_session
def completion(session: Session, shell: str) -> None:
    """Print the completion script of a shell.

    For bash: `eval "$(tavern completion bash)"` in ~/.bashrc.
    """
    from click.shell_completion import get_completion_class

    from tavern_core.cli.app import COMPLETION_VARIABLE, PROGRAM, app

    made = get_completion_class(shell)
    assert made is not None  # click knows all of SHELLS
    session.out.text(made(app, {}, PROGRAM, COMPLETION_VARIABLE).source())
