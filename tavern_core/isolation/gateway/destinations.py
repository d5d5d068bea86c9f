"""The allowed destinations of one call's programs: the grants, limited by the caller's scopes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from tavern_core.contract.guards.addresses import Address, BadUrl, Target
from tavern_core.contract.guards.connecting import (
    NoAddress,
    NotAllowed,
    entry_of,
    fitting,
    resolved,
    system_addresses,
    widening,
)
from tavern_core.isolation.gateway.exchange import RequestHead
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.model.call import ToolCall
from tavern_core.model.capability_scope import Scope
from tavern_core.model.event import POLICY_DENIED, Event

READ: Final = "read:web"
ALL: Final = "network"
_READING: Final = ("GET", "HEAD")
_MOST_RECORDED: Final = 20
"""Maximum recorded refusals of one call, because a program that tries every address adds no information."""


class ConnectionDenied(Exception):
    """The connection is refused. `status` is the HTTP status: 403 not allowed, 502 not there, 504 too slow."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class DestinationChecker:
    """Checks destinations for one call.

    Args:
        scopes: those of `READ` and `ALL` that plugin, host, profile and caller allow, each with a non-empty scope.
        call: the call; None outside of one.
        emit: records an event.
        on_refusal: gets each refusal, once.
        is_builtin: the plugin is one of the host's own.
    """

    def __init__(
        self,
        plugin: str,
        scopes: Mapping[str, Scope],
        call: ToolCall | None,
        diagnostics: Diagnostics,
        emit: Callable[[Event], object],
        on_refusal: Callable[[str], object] | None = None,
        *,
        is_builtin: bool = False,
    ) -> None:
        self._plugin = plugin
        self._is_builtin = is_builtin
        self._scopes = scopes
        self._call = call
        self._diagnostics = diagnostics
        self._emit = emit
        self._on_refusal = on_refusal
        self._recorded: set[str] = set()

    async def allowed_addresses(self, head: RequestHead) -> tuple[list[Address], str]:
        """The allowed addresses, and the capability that allows them.

        Raises:
            ConnectionDenied: none is allowed, or there is none.
        """
        target, wanted = head.target, _wanted(head)
        granted = {name: self._scopes[name] for name in wanted if name in self._scopes}
        if not granted:
            flaw = f"{head.method} takes {wanted[0]}, which is not granted, or the caller lacks it"
            raise self.refusal(target, flaw, wanted[0])
        name = next(iter(granted))
        try:
            return await resolved(target, fitting(target, granted), system_addresses)
        except NotAllowed as flaw:
            raise self.refusal(target, str(flaw), name, flaw.address) from None
        except NoAddress as error:
            raise ConnectionDenied(502, f"{target.host} has no address: {error}") from None

    def refusal(self, target: Target, flaw: str, name: str, address: Address | None = None) -> ConnectionDenied:
        """A recorded refusal.

        Args:
            flaw: the reason.
            name: the capability that would allow it.
            address: the address that would have to be allowed; None: the target itself.
        """
        place = place_of(target)
        entry = place if address is None else entry_of(address, target.port)
        hint = f"missing is {name} for it: {widening(self._plugin, name, entry, is_builtin=self._is_builtin)}"
        if self._call is not None and name in self._call.context.scopes:
            hint += f"; and of the caller CallContext(scopes={{{name!r}: [{place!r}]}})"
        sentence = f"{self._plugin} may not connect to {place}: {flaw}"
        self.record_refusal(sentence, hint, place)
        return ConnectionDenied(403, f"{sentence}; {hint}")

    def unreadable(self, error: BadUrl) -> ConnectionDenied:
        """A recorded refusal of an invalid or ambiguous address."""
        sentence = f"{self._plugin} may not connect there: the address {error}"
        self.record_refusal(sentence, error.hint)
        return ConnectionDenied(403, f"{sentence}; {error.hint}" if error.hint else sentence)

    def record_refusal(self, sentence: str, hint: str, place: str = "") -> None:
        """Record a refusal, once per call."""
        if sentence in self._recorded or len(self._recorded) >= _MOST_RECORDED:
            return
        self._recorded.add(sentence)
        self._diagnostics.add("NETWORK_REFUSED", sentence, plugin=self._plugin, hint=hint)
        if self._on_refusal is not None:
            self._on_refusal(f"{sentence}; {hint}" if hint else sentence)
        if (call := self._call) is not None:
            data = {
                "tool": call.tool,
                "principal": call.context.principal,
                "door": call.door,
                "reason": sentence,
                "by": "",
                "target": place,
            }
            self._emit(Event(POLICY_DENIED, time.time(), data, call.id, self._plugin))


def place_of(target: Target) -> str:
    """``host:port``, in the notation of a scope."""
    return entry_of(target.address, target.port) if target.address is not None else f"{target.host}:{target.port}"


def _wanted(head: RequestHead) -> tuple[str, ...]:
    """The capabilities, one of which allows a request. The content of a tunnel is not visible: with `READ`, it only carries TLS."""
    return (ALL, READ) if head.is_tunnel else (READ, ALL) if head.method in _READING else (ALL,)
