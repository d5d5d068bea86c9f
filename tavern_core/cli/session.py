"""The session of one command line: the global options, and the host that is opened when a command needs it."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click

from tavern_core.cli.output import Output, visible, write
from tavern_core.cli.stdout import Stdout

if TYPE_CHECKING:
    from tavern_core.cli.activation_trace import ActivationTracer
    from tavern_core.host import Tavern
    from tavern_core.kernel.config.configuration import LoadedConfig


F = TypeVar("F", bound=Callable[..., Any])
TRACE_VARIABLE: Final = "TAVERN_TRACE_PLUGINS"
_LEVELS: Final = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}


class CliSession:
    """The global options, and what was opened with them."""

    def __init__(self) -> None:
        self.config: str | None = None
        self.home: str | None = None
        self.safe_mode = False
        self.no_plugins = False
        self.locked = False
        self.debug = False
        self.no_color = False
        self.probes_new = False
        """For commands that run a plugin's code on purpose: its import is probed first."""
        self.verbosity = 0
        """-1 quiet, 0 warnings, 1 and more: progress."""
        self.set: list[str] = []
        """``key=value``, overrides every file and variable."""
        self.stdout = Stdout()
        self.as_json = False
        """``--json``: the output is for a program, without messages about plugins that the command does not concern."""
        self.has_failed = False
        """The command ended with an error, which was printed."""
        self._notices = PluginNotices()
        self._stack = ExitStack()
        self._stack.callback(self.stdout.release)
        self._loaded: LoadedConfig | None = None
        self._tavern: Tavern | None = None

    @property
    def out(self) -> Output:
        """The output of results."""
        return Output(self.stdout.stream, self.no_color, self.as_json)

    def show(self, data: Any, text: str) -> None:
        """Print a result: `data` with ``--json``, else `text`."""
        self.out.result(data)
        self.out.text(text)

    def show_facts(self, data: Any, pairs: Iterable[tuple[str, Any]]) -> None:
        """Print a result: `data` with ``--json``, else names and values, one pair a line."""
        self.out.result(data)
        self.out.facts(pairs)

    def show_list(
        self, found: Iterable[Any], columns: Sequence[str], row: Callable[[Any], Sequence[Any]], *, empty: str = ""
    ) -> None:
        """Print values (JSON, or with a method `to_json`): as JSON with ``--json``, else as a table.

        Args:
            row: the cells of a value.
            empty: the message on stderr instead of a table without rows.
        """
        if self.as_json:
            self.out.json([one if isinstance(one, dict) else one.to_json() for one in found])
        else:
            self.out.table(columns, [row(one) for one in found], empty=empty)

    def loaded(self) -> LoadedConfig:
        """The configuration, without a host. Raises ConfigInvalid: a source of it is wrong (CONFIG_INVALID)."""
        if self._loaded is None:
            from tavern_core.kernel.config import configuration

            self._loaded = configuration.with_project_state(
                configuration.load(self.config, home=self.home, overrides=self.overrides())
            )
        return self._loaded

    def host(
        self,
        activate: Literal["needed", "all", "none"] = "needed",
        *,
        deciding: bool = False,
        asking: bool = True,
        further: Mapping[str, Any] = {},
    ) -> Tavern:
        """The host, opened at the first call and closed with the session. While it is open, stdout is for results only.

        Args:
            activate: ``none`` for commands that only read or decide: no plugin is imported.
            deciding: for commands by which the operator changes the lock file: they may, even if the configuration has
                `plugins.locked`; ``--locked`` on the command line forbids it for them, too.
            asking: ask on the terminal about calls that need approval; a server leaves that to others.
            further: dotted key → value, as if the configuration had it already.
        """
        if self._tavern is None:
            from tavern_core.cli.prompts import terminal_approver
            from tavern_core.host import Tavern

            tracer = _tracer()
            self.stdout.guard()
            tavern = Tavern.open(
                self.config,
                home=self.home,
                activate=activate,
                safe_mode=self.safe_mode,
                locked=False if deciding and not self.locked else None,
                overrides={**self.overrides(), **further},
                approve=terminal_approver() if asking else None,
            )
            if tracer is not None:
                tracer.watch(tavern)
            self._tavern = self._stack.enter_context(tavern)
            self._stack.callback(self.stdout.guard)  # output of plugins while they stop is not a result either
        return self._tavern

    def overrides(self) -> dict[str, Any]:
        """The configuration from flags.

        Raises:
            UsageError: ``--set`` without ``=``.
            ConfigInvalid: an invalid value of its key (CONFIG_INVALID).
        """
        found: dict[str, Any] = {"plugins.load": []} if self.no_plugins else {}
        if self.probes_new:
            found["plugins.probe"] = "new"
        if self.locked:
            found["plugins.locked"] = True
        if self.set:
            from tavern_core.kernel.config.config_key_lookup import key_path
            from tavern_core.kernel.config.environment import value_from_text
        for item in self.set:
            key, equals, text = item.partition("=")
            if not equals or not key.strip():
                raise click.BadParameter(f"{item!r} is not key=value, for example limits.depth=4", param_hint="--set")
            path = key_path(key.strip())
            found[".".join(path)] = value_from_text(path, text)
        return found

    def start_logging(self) -> None:
        """Print the log of host and plugins on stderr, as the options say."""
        logger = logging.getLogger("tavern")
        if not any(isinstance(handler, _Stderr) for handler in logger.handlers):
            handler = _Stderr(self._notices)
            logger.addHandler(handler)
            self._stack.callback(logger.removeHandler, handler)
            self._stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.DEBUG if self.debug else _LEVELS.get(self.verbosity, logging.DEBUG))
        self._notices.are_gathered = self.verbosity <= 0 and not self.debug

    def silence(self) -> None:
        """From now on, log nothing: for commands that print problems themselves."""
        logging.getLogger("tavern").setLevel(logging.CRITICAL + 1)

    def close(self) -> None:
        """Close the host, if one was opened."""
        self._stack.close()
        if (line := self._notices.line(self.has_failed)) and not self.as_json and self.verbosity >= 0:
            write(sys.stderr, visible(line) + "\n")


class PluginNotices:
    """Collects the log records of diagnostics about plugins."""

    def __init__(self) -> None:
        self.are_gathered = False
        """False if all of them are wanted."""
        self._lasting: dict[str, None] = {}
        self._passing: list[str] = []

    def takes(self, record: logging.LogRecord) -> bool:
        """True if a record is collected for the line instead of being printed."""
        plugin = getattr(record, "plugin", "")
        if not self.are_gathered or not plugin or not hasattr(record, "is_lasting"):
            return False
        if record.is_lasting:
            self._lasting[plugin] = None
        else:
            self._passing.append(f"{record.levelname.lower()}: {record.getMessage()}")
        return True

    def line(self, has_failed: bool) -> str:
        """A line about problems that `tavern plugins doctor` shows again, and one about events of this run only.

        No other command can show the latter: a single message is printed itself, and ``-v`` prints more of them.
        Empty if there is nothing to report.

        Args:
            has_failed: the command has printed an error, which is most likely that one message.
        """
        lines = []
        names, passing = list(self._lasting), self._passing
        if names:
            who = f"plugin {names[0]} has" if len(names) == 1 else f"{len(names)} plugins have"
            lines.append(f"warning: {who} problems: tavern plugins doctor")
        if len(passing) > 1:
            lines.append(f"warning: {len(passing)} messages about plugins: this command with -v shows them")
        elif passing and not has_failed:
            lines += passing
        return "\n".join(lines)


class _Stderr(logging.Handler):
    """Writes to the current stderr: ``warning: …``."""

    def __init__(self, notices: PluginNotices) -> None:
        super().__init__()
        self._notices = notices

    def emit(self, record: logging.LogRecord) -> None:
        if self._notices.takes(record):
            return
        try:
            write(sys.stderr, f"{record.levelname.lower()}: {visible(self.format(record))}\n")
        except (OSError, ValueError, TypeError):
            self.handleError(record)


pass_session = click.make_pass_decorator(CliSession)


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Store a global option, wherever it is on the line."""
    session = ctx.ensure_object(CliSession)
    match param.name:
        case "quiet":
            session.verbosity = -1 if value else session.verbosity
        case "verbose":
            session.verbosity += value
        case "set":
            session.set += value
        case str(name) if value:
            setattr(session, name, value)


def _options() -> list[click.Option]:
    """The global options, created each time, because click keeps state in them."""

    def option(*names: str, help: str, **more: Any) -> click.Option:  # noqa: A002 - click's word
        # Eager: `tavern --home DIR --help` must know DIR when it searches the commands of plugins.
        return click.Option(list(names), help=help, expose_value=False, callback=_keep, is_eager=True, **more)

    return [
        option(
            "--config",
            metavar="FILE",
            help="The project's tavern.yaml, instead of the one found in or above this folder.",
        ),
        option("--home", metavar="DIR", help="The folder of the host's state, instead of $TAVERN_HOME."),
        option(
            "--set", metavar="KEY=VALUE", multiple=True, help="A value of the configuration that overrides every file."
        ),
        option("--safe-mode", is_flag=True, help="Only the host's own plugins."),
        option("--no-plugins", is_flag=True, help="List plugins, but use only the host's own."),
        option("--locked", is_flag=True, help="Refuse plugins that differ from the lock file."),
        option("--debug", is_flag=True, help="Show a traceback if something fails."),
        option("--no-color", is_flag=True, help="No colour; NO_COLOR does the same."),
        option("-q", "--quiet", is_flag=True, help="Only errors on stderr."),
        option("-v", "--verbose", count=True, help="More on stderr; twice for everything."),
    ]


def global_options(command: F) -> F:
    """Decorator of the root group: the options of every command."""
    shown = command.__dict__.setdefault("__click_params__", [])
    shown.extend(reversed(_options()))
    return command


_NEGATIVE: Final = re.compile(r"-\.?\d")


class CliCommand(click.Command):
    """A command that also accepts the global options after its own arguments; ``tavern --help`` lists them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("epilog", "Options of every command, such as --home and --debug: tavern --help")
        super().__init__(*args, **kwargs)
        used_names = {name for param in self.params for name in param.opts}
        for option in _options():
            if used_names.isdisjoint(option.opts):
                option.hidden = True
                self.params.append(option)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words. A command that ignores unknown options takes only negative numbers as values, unless all is for another program."""
        if ctx.ignore_unknown_options and ctx.allow_interspersed_args and not ctx.resilient_parsing:
            ctx.ignore_unknown_options = False
            self.make_parser(ctx).parse_args(["0" if _NEGATIVE.match(word) else word for word in args])
            ctx.ignore_unknown_options = True
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        ctx.ensure_object(CliSession).start_logging()  # the last option was read
        return super().invoke(ctx)


def command(
    name: str | None = None, *, cls: type[CliCommand] = CliCommand, **settings: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """Decorator: a command with ``--json`` and the global options; its function gets the session first."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        # click's list of parameters is in reverse order: this one comes last.
        function.__dict__.setdefault("__click_params__", []).insert(0, _json_option())
        made: click.Command = click.command(name, cls, **settings)(pass_session(function))
        return made

    return decorate


def _json_option() -> click.Option:
    return click.Option(
        ["--json", "as_json"], help="The result as JSON on stdout.", is_flag=True, expose_value=False, callback=_keep
    )


def _tracer() -> ActivationTracer | None:
    """The tracer that prints the steps of activations as they happen, if the environment enables it."""
    if os.environ.get(TRACE_VARIABLE, "") in ("", "0"):
        return None
    from tavern_core.cli.activation_trace import ActivationTracer

    return ActivationTracer()
