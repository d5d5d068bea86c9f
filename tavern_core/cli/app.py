"""The command line: the list of commands, and the exit code for every outcome.

Commands are imported when they are used. All errors of commands arrive here, once.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Final

import click

from tavern_core.cli import errors
from tavern_core.cli.completion import COMPLETION_VARIABLE, PROGRAM, shell_completion
from tavern_core.cli.errors import INTERRUPTED
from tavern_core.cli.lazy_groups import Group, LazyCommand
from tavern_core.cli.output import visible, write
from tavern_core.cli.session import CliSession, global_options
from tavern_core.cli.stdout import abandon_unwritable, flush, is_open, occupy
from tavern_core.errors import TavernError
from tavern_core.model.naming_rules import RESERVED_COMMANDS
from tavern_core.model.nearest import nearest, suggestion

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The numbers of errors of a full disk."""
_HELPS: Final = {
    "plugins": "Find, check, grant, enable and disable plugins.",
    "tools": "List, explain and call tools.",
    "nodes": "List, show and run nodes of workflows.",
    "workflows": "List, check, draw and run workflows.",
    "assist": "Change a workflow in your own words, with a language model.",
    "skills": "List, show, check and trust skills.",
    "llms": "List and try language models.",
    "knowledge": "List and search knowledge bases: folders of Markdown.",
    "agent": "Give tasks to agents; show, resume and replay their runs.",
    "run": "Run the tool calls in the text of a model.",
    "config": "Show and change configuration and settings.",
    "hooks": "List the hooks and who implements them, in the order in which they run.",
    "logs": "Read, check and explain the audit log.",
    "jobs": "Show, answer, cancel and resume background calls.",
    "artifacts": "Show and fetch data that was too large for answers; store files for calls.",
    "approvals": "Show the calls that wait for approval, and decide them.",
    "tokens": "Create, list and revoke tokens for callers from other processes.",
    "serve": "Serve the host over HTTP: nodes, tools, calls, jobs, events, MCP.",
    "mcp": "Serve the host's tools to MCP clients.",
    "limits": "Show every limit of tavern.yaml and of tools, and how much of each rate is used.",
    "upstreams": "Connect other systems, whose tools become tools of this host.",
    "schema": "Print the JSON Schema of a file format, for editors.",
    "doctor": "Report problems and their repairs.",
    "new": "Create a new plugin from the template.",
    "version": "Print the versions of tavern-core and Python.",
    "completion": "Print the completion script of a shell.",
}
_MODULES: Final = {"mcp": "serve", "version": "version_and_completion", "completion": "version_and_completion"}
"""Command → its module, where that is not called the same."""
COMMANDS: Final = {
    name: LazyCommand(f"tavern_core.cli.{_MODULES.get(name, name)}", name, about) for name, about in _HELPS.items()
}


class App(Group):
    """The host's own commands, then those of plugins."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        from tavern_core.cli import plugin_commands

        return plugin_commands.command(ctx.ensure_object(CliSession), cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in RESERVED_COMMANDS and args[0] not in COMMANDS and not ctx.resilient_parsing:
            if args[0] == "help":
                raise click.UsageError("there is no command 'help'; did you mean `tavern --help`?", ctx)
            raise click.UsageError(
                f"this version has no command {args[0]!r}; the name is reserved for a later one", ctx
            )
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            from tavern_core.cli import plugin_commands

            if why := plugin_commands.why_missing(ctx.ensure_object(CliSession), args[0]):
                raise click.UsageError(f"there is no command {args[0]!r}; {why}", ctx) from None
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        from tavern_core.cli import plugin_commands

        return sorted({*super().list_commands(ctx), *plugin_commands.declared(ctx.ensure_object(CliSession))})

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from tavern_core.cli import plugin_commands

        super().format_commands(ctx, formatter)
        if commands := plugin_commands.declared(ctx.ensure_object(CliSession)):
            with formatter.section("Commands of plugins"):
                formatter.write_dl(
                    [(visible(name), f"from the plugin {plugin}") for name, plugin in sorted(commands.items())]
                )


def _show_version(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        from tavern_core.cli.version_and_completion import version_line

        ctx.ensure_object(CliSession).out.text(version_line())
        ctx.exit()


@click.group(
    PROGRAM,
    cls=App,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@global_options
@click.option(
    "--version",
    "-V",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Print the versions and exit.",
)
@click.pass_context
def app(ctx: click.Context) -> None:
    """A plugin host for agent tools: finds plugins, registers what they contribute, runs every call through one governed pipeline.

    The options below may also follow the arguments of a command.
    """
    ctx.ensure_object(CliSession).start_logging()


def run(argv: list[str]) -> int:
    """Run one command line; returns the exit code and never raises."""
    occupy()
    for stream in (sys.stdout, sys.stderr):
        if is_open(stream) and (reconfigure := getattr(stream, "reconfigure", None)):
            # JSON is always UTF-8; characters that a terminal cannot show are escaped.
            reconfigure(encoding=None if stream.isatty() else "utf-8", errors="backslashreplace")
    with Termination() as termination:
        return termination.code(_run_and_close(argv, CliSession()))


def _run_and_close(argv: list[str], session: CliSession) -> int:
    try:
        try:
            code = _run(argv, session)
            session.has_failed = code != 0
        finally:
            session.close()
        if session.has_failed:
            abandon_unwritable()  # one error was reported; the failed write is not a second one
        flush(sys.stdout)
    except BrokenPipeError:  # the reader of our output has closed it
        abandon_unwritable()
        return 0
    except KeyboardInterrupt:
        return _interrupted()
    except Exception as error:  # noqa: BLE001 - closing failed; the command's own errors ended above
        abandon_unwritable()
        return _failed(error, session)
    return code


def _run(argv: list[str], session: CliSession) -> int:
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        return _complete(session, *instruction.partition("_")[::2])
    try:
        with app.make_context(PROGRAM, argv, obj=session) as ctx:
            app.invoke(ctx)
        return 0
    except errors.ReportedExit as exit_:
        return exit_.exit_code
    except click.exceptions.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _interrupted()
    except click.ClickException as error:
        return _misused(error)
    except BrokenPipeError:
        raise
    except SystemExit as end:  # a plugin's own command
        return end.code if isinstance(end.code, int) else errors.FAILED if end.code else 0
    except Exception as error:  # noqa: BLE001 - the one place that turns errors into exit codes
        return _failed(error, session)


def _complete(session: CliSession, shell: str, what: str) -> int:
    """Answer a completion request of a shell: `what` is ``complete`` or ``source``."""
    made = shell_completion(shell, app, session)
    if made is None or what not in ("complete", "source"):
        return errors.FAILED
    if text := made.source() if what == "source" else made.complete():
        write(session.stdout.stream, visible(text).rstrip("\n") + "\n")  # also where the words to complete have --json
    return 0


def _failed(error: Exception, session: CliSession) -> int:
    if session.debug:
        write(sys.stderr, visible("".join(traceback.format_exception(error))))
    if isinstance(error, TavernError):
        return errors.show_error(error)
    if isinstance(error, OSError) and error.filename is not None:
        errors.print_problem(
            "error",
            "USAGE",
            f"{error.filename}: {error.strerror}",
            "check that the path is right and that you may use it",
        )
        return errors.USAGE
    if isinstance(error, OSError) and error.errno in _FULL:  # no file is named: the output, or a temporary file
        hint = "free some space, or send the output to another place"
        errors.print_problem("error", "INTERNAL", f"cannot write: {error.strerror}", hint)
        return errors.FAILED
    hint = "" if session.debug else "run it again with --debug for the traceback, and report it"
    errors.print_problem("error", "INTERNAL", f"{type(error).__name__}: {error}", hint)
    return errors.FAILED


def _similar_options(written: str, possible: Sequence[str]) -> list[str]:
    """The options among those of click that look like `written`; the dashes alone make `--set` one for `--yes`."""
    return nearest(written, possible) or [option for option in possible if written.strip("-") in option]


def _misused(error: click.ClickException) -> int:
    message = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":  # since click 8.2; its message is the whole help page
        write(sys.stderr, message + "\n")
        return errors.USAGE
    hint = ""
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        message = f"No such option: {error.option_name}"
        hint = suggestion(_similar_options(error.option_name, error.possibilities))
    elif "; did you mean " in message:
        message, _, near = message.partition("; ")
        hint = near
    ctx = getattr(error, "ctx", None)
    lines = [f"  --> {ctx.get_usage().replace('Usage: ', '', 1)}"] if ctx is not None else []
    errors.print_problem(
        "error",
        "USAGE",
        message,
        hint or (f"`{ctx.command_path} --help` lists the commands and options" if ctx else ""),
        lines,
    )
    return errors.USAGE


def _interrupted() -> int:
    write(sys.stderr, "interrupted\n")
    return errors.INTERRUPTED


TERMINATED: Final = 128 + signal.SIGTERM


class Termination:
    """Takes SIGTERM while a command runs, where the process has no handler of its own.

    SIGTERM ends a command as Ctrl-C does: its work is cancelled and recorded, and the host is closed.
    """

    has_come = False

    def __enter__(self) -> Termination:
        in_main = threading.current_thread() is threading.main_thread()
        self._is_set = in_main and sys.platform != "win32" and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if self._is_set:
            signal.signal(signal.SIGTERM, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_set:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _interrupt(self, _: int, frame: FrameType | None) -> None:
        self.has_come = True
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # Ctrl-C is ignored, as in a background process of a shell
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)

    def code(self, code: int) -> int:
        """The exit code of the command."""
        return TERMINATED if self.has_come and code == INTERRUPTED else code
