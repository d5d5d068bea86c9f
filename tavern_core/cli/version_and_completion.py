"""``tavern version`` and ``tavern completion``: information about the command line itself."""

from __future__ import annotations

import click

from tavern_core.cli.completion import SHELLS, shell_completion
from tavern_core.cli.session import CliCommand, CliSession, command, pass_session


@command()
def version(session: CliSession) -> None:
    """Print the versions of tavern-core and Python."""
    import platform

    from tavern_core import __version__

    session.show({"tavernCore": __version__, "python": platform.python_version()}, version_line())


def version_line() -> str:
    """The versions of tavern-core and Python, for a person."""
    import platform

    from tavern_core import __version__

    return f"tavern-core {__version__} (Python {platform.python_version()})"


@click.command(cls=CliCommand)
@click.argument("shell", type=click.Choice(SHELLS))
@pass_session
def completion(session: CliSession, shell: str) -> None:
    """Print the completion script of a shell.

    For bash: `eval "$(tavern completion bash)"` in ~/.bashrc.
    """
    made = shell_completion(shell, click.get_current_context().find_root().command, session)
    assert made is not None  # click supports all of SHELLS
    session.out.text(made.source())
