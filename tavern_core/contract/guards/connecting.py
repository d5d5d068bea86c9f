"""Check the addresses to which a plugin may connect, before each connection, in the host and in the gateway.

    fitting(target, granted)               which of the granted capabilities allow it, by its text
    await resolved(target, granted, …)     its name is resolved once; all of its addresses, or a refusal if one is not allowed

The connection then uses one of these addresses and not the name, so a later change of the name has no effect.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from ipaddress import ip_address
from typing import Final

from tavern_core.contract.guards.addresses import Address, Target, address_flaw, target_flaw
from tavern_core.model.capability_scope import Scope
from tavern_core.model.safe_printing import reason_of

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""(name, port) → its addresses."""

_LOOKUPS_AT_ONCE: Final = 8


class NotAllowed(Exception):
    """No granted scope allows it; the message says why.

    Args:
        address: the resolved address, if that is the reason.
    """

    def __init__(self, flaw: str, address: Address | None = None) -> None:
        super().__init__(flaw)
        self.address = address


class NoAddress(Exception):
    """The name does not resolve; the message says why."""


def fitting(target: Target, granted: Mapping[str, Scope]) -> dict[str, Scope]:
    """The granted capabilities whose scope allows `target`, judging by its text.

    Args:
        granted: capability → its scope; not empty.

    Raises:
        NotAllowed: none does.
    """
    flaws = {name: target_flaw(scope, target) for name, scope in granted.items()}
    found = {name: scope for name, scope in granted.items() if not flaws[name]}
    if not found:
        raise NotAllowed(next(iter(flaws.values())))
    return found


async def addresses_of(target: Target, resolve: Resolver) -> list[Address]:
    """All addresses of `target`, allowed or not. Raises NoAddress: there are none."""
    if target.address is not None:
        return [target.address]
    try:
        found = [ip_address(text) for text in await resolve(target.host, target.port)]
    except (OSError, ValueError) as error:
        raise NoAddress(reason_of(error)) from None
    if not found:
        raise NoAddress("the name does not resolve")
    return list(dict.fromkeys(found))


async def resolved(target: Target, granted: Mapping[str, Scope], resolve: Resolver) -> tuple[list[Address], str]:
    """All addresses of `target`, and the first of the capabilities that allows every one of them.

    Args:
        granted: what `fitting` found.

    Raises:
        NotAllowed: one of them is not allowed: a mix of allowed and other addresses is an attack or a mistake.
        NoAddress: there are none.
    """
    found = await addresses_of(target, resolve)
    flaws: list[tuple[str, Address]] = []
    for name, scope in granted.items():
        flaws = [(flaw, address) for address in found if (flaw := address_flaw(scope, target, address))]
        if not flaws:
            return found, name
    raise NotAllowed(*flaws[0])


async def system_addresses(name: str, port: int) -> list[str]:
    """Resolve a name with the system, in separate threads: a name server that does not answer delays nothing else.

    Raises:
        OSError: the name does not resolve.
    """
    lookup = asyncio.get_running_loop().run_in_executor(
        _threads(), lambda: socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    )
    return [str(row[4][0]) for row in await lookup]


def widening(plugin: str, capability: str, entry: str, *, is_builtin: bool) -> str:
    """The change that would let a plugin reach `entry`: of the configuration for the host's plugins, else a grant."""
    if is_builtin:
        return f"tavern.yaml: net: {{allow: [{entry!r}]}}"
    line = f"plugin.yaml: permissions: {{capabilities: [{{name: {capability}, scope: [{entry!r}]}}]}}"
    return f"{line}, then tavern plugins grant {plugin} {capability}"


def entry_of(address: Address, port: int) -> str:
    """An address and its port as an entry of a scope."""
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_LOOKUPS_AT_ONCE, thread_name_prefix="tavern-names")


os.register_at_fork(after_in_child=lambda: _threads.cache_clear())  # threads do not survive a fork
