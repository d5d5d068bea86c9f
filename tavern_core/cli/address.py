"""``HOST:PORT`` on the command line."""

from __future__ import annotations

import click

from tavern_core.frozen_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int


def address(ctx: click.Context, param: click.Parameter, value: str | None) -> Address | None:
    """Callback of an option: its value as an address. Raises BadParameter: it is none."""
    return None if value is None else address_of(value)


def address_of(text: str) -> Address:
    """A text as an address. Raises BadParameter: it is none."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal()) or len(port) > 5 or int(port) > 65_535:
        raise click.BadParameter(f"{text!r} is not a HOST:PORT, for example 127.0.0.1:8765")
    return Address(host.strip("[]") or "127.0.0.1", int(port))
