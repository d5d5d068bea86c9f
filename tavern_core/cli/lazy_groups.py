"""click groups whose commands are imported when they are used, and that answer a typing error with the closest name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import click

from tavern_core.cli.session import command
from tavern_core.model.nearest import did_you_mean


class LazyCommand(NamedTuple):
    """A command that is not imported yet."""

    module: str
    name: str
    help: str
    """Its help text in the group, so that ``--help`` imports nothing; a test compares it with the command's own."""


class Group(click.Group):
    """A group of commands.

    Args:
        lazy: name → command to import when it is used.
        default: the command to use if the first word is an option, or if there is none.
    """

    def __init__(
        self, *args: Any, lazy: Mapping[str, LazyCommand] | None = None, default: str | None = None, **kwargs: Any
    ) -> None:
        kwargs.setdefault("no_args_is_help", default is None)
        super().__init__(*args, **kwargs)
        self.lazy = dict(lazy or {})
        self.default = default

    def command(  # type: ignore[override]  # click's own may also be used without parentheses
        self, name: str | None = None, **settings: Any
    ) -> Callable[[Callable[..., Any]], click.Command]:
        """Decorator: a command of this group; see `session.command`."""

        def decorate(function: Callable[..., Any]) -> click.Command:
            made = command(name, **settings)(function)
            self.add_command(made)
            return made

        return decorate

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if (lazy := self.lazy.get(cmd_name)) is not None:
            command: click.Command = getattr(importlib.import_module(lazy.module), lazy.name)
            return command
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if self.default is not None and (not args or (args[0].startswith("-") and args[0] not in ("--help", "-h"))):
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if (command := self.get_command(ctx, name)) is not None or ctx.resilient_parsing:  # for shell completion
            return name, command, args[1:]
        near = did_you_mean(name, self.list_commands(ctx))
        raise click.UsageError(f"there is no command {name!r}" + (f"; {near}" if near else ""), ctx)

    def short_helps(self, ctx: click.Context) -> list[tuple[str, str]]:
        """Name and one line of each command, without importing the lazy ones."""
        eager = {n: c.get_short_help_str(100) for n, c in self.commands.items() if not c.hidden}
        return sorted((eager | {name: lazy.help for name, lazy in self.lazy.items()}).items())

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(self.short_helps(ctx))
