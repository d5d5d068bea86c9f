"""``tavern plugins bisect``: which plugin makes something fail? Disables plugins through a variable, and stores nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from shutil import which
from typing import Final

import click

from tavern_core.cli import completion
from tavern_core.cli.errors import FAILED, ReportedExit, print_note
from tavern_core.cli.inputs import POSITIVE
from tavern_core.cli.output import visible
from tavern_core.cli.session import CliSession, command
from tavern_core.errors import UsageError

VARIABLE: Final = "TAVERN_DISABLE_PLUGINS"
_NO_REST: Final = {"TAVERN_LIMITS__HOOK_FAILURES": "0"}
"""A hook that was quarantined by earlier attempts would look innocent in the next one."""


@command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("words", nargs=-1, metavar="[COMMAND...|TOOL_ID ARGUMENTS...]", shell_complete=completion.first_tool)
@click.option(
    "--timeout",
    type=POSITIVE,
    metavar="SECONDS",
    help="Count a longer attempt as failed.",
)
def bisect(session: CliSession, words: tuple[str, ...], timeout: float | None) -> None:
    """Find the plugin that makes a command or a tool call fail.

    The command is run several times with different plugins disabled, keeping dependencies; exit code 0 means that it
    worked. `tavern plugins bisect text:count text=hi` tries a tool call. Without a command, it names the plugins to disable and
    asks whether it works then. Nothing is stored: each attempt has its own variable TAVERN_DISABLE_PLUGINS.
    Exit code 1 if no plugin is guilty.
    """
    from tavern_core.review.bisection import find_guilty

    host = session.host("none")
    # A failed plugin counts, too: if it has a gate, it refuses calls.
    depends_on = {
        s.name: s.depends_on for s in host.plugins.values() if s.source != "builtin" and s.state != "disabled"
    }
    is_tool = bool(words) and (words[0] in host.tools.known_ids() or (":" in words[0] and which(words[0]) is None))
    tries: list[dict[str, object]] = []
    line = [*_tavern(session), "tools", "call", *words] if is_tool else list(words)
    attempt = _runs(line, timeout) if line else _ask

    def fails(on: frozenset[str]) -> bool:
        disabled = sorted(depends_on.keys() - on)
        failed, how = attempt(disabled)
        tries.append({"on": sorted(on), "off": disabled, "failed": failed, "how": how})
        shown = ", ".join(sorted(on)) or "no plugin"
        print_note(f"{len(tries)}. with {visible(shown)}: {'fails' if failed else 'works'} ({how})")
        return failed

    own_plugin = words[0].partition(":")[0] if is_tool else ""
    guilty = find_guilty(depends_on, fails, [own_plugin] if own_plugin in depends_on else [])
    session.out.result({"guilty": list(guilty.plugins), "reason": guilty.why_not or None, "tries": tries})
    if not guilty.plugins:
        session.out.text(f"no plugin is guilty: {guilty.why_not}")
        raise ReportedExit(FAILED)
    first, *others = guilty.plugins
    together = f", together with {', '.join(others)}" if others else ""
    session.out.text(f"it is {first}{together}; `tavern plugins disable {first}` switches it off")


Attempt = Callable[[Sequence[str]], tuple[bool, str]]


def _runs(line: Sequence[str], timeout: float | None) -> Attempt:
    """An attempt is a run of a command; its exit code is the result."""
    before = [name for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]

    def run(disabled: Sequence[str]) -> tuple[bool, str]:
        env = {**os.environ, **_NO_REST, VARIABLE: ",".join([*before, *disabled])}
        try:
            done = subprocess.run(
                line,
                env=env,
                timeout=timeout,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return True, f"took longer than {timeout:g} s"
        except OSError as error:
            raise UsageError(f"{line[0]!r:.200} cannot be run: {error.strerror or error}") from error
        return done.returncode != 0, f"exit code {done.returncode}"

    return run


def _ask(disabled: Sequence[str]) -> tuple[bool, str]:
    """Name the plugins to disable and ask for the result."""
    print_note(f"try it with {VARIABLE}={visible(','.join(disabled))}")
    answer = click.prompt("good or bad?", type=click.Choice(["good", "bad", "g", "b"]), show_choices=False, err=True)
    return answer.startswith("b"), "your answer"


def _tavern(session: CliSession) -> list[str]:
    """This program with its global options."""
    line = [sys.executable, "-m", "tavern_core"]
    for option, value in (("--config", session.config), ("--home", session.home)):
        line += [option, str(value)] if value else []
    for item in session.set:
        line += ["--set", item]
    return line
