"""`tavern.limits`: all limits, and how much of them is used."""

from __future__ import annotations

import time
from dataclasses import fields, replace
from typing import Any

from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.access.limit_rules import OWN, LimitRules
from tavern_core.kernel.catalogue.tool_catalogue import ToolCatalogue
from tavern_core.kernel.limits.limiter_registry import BLOCKS, LimitTable, ToolLimiter
from tavern_core.model.call_limits import NO_LIMITS, ToolLimits, parse_rate
from tavern_core.model.tool import ToolSpec


@dataclass(frozen=True, slots=True)
class LimitState:
    """The state of one set of limits."""

    place: str
    """The place that sets it: ``limits.tools.text:*``, or ``the tool text:count``."""
    limits: ToolLimits
    used: int | None = None
    """Calls of all processes within the period of the rate; None: each caller has its own count."""
    running: int | None = None
    """Calls of this process that have a slot now."""
    waiting: int | None = None
    breaker: str = ""
    """closed, open or half-open, in this process."""

    def to_json(self) -> dict[str, Any]:
        return {
            "place": self.place,
            **self.limits.to_json(),
            "used": self.used,
            "running": self.running,
            "waiting": self.waiting,
            "state": self.breaker or None,
        }


class HostLimits:
    """The limits of a host.

    Args:
        catalogue: the tools, and the current sections of tavern.yaml.
    """

    def __init__(self, table: LimitTable, catalogue: ToolCatalogue) -> None:
        self._config = catalogue.specs.config
        self._table = table
        self._catalogue = catalogue

    def list(self) -> tuple[LimitState, ...]:
        """All limits: those of tavern.yaml, then those of tools' definitions that no entry under `tools` replaces.

        No plugin is activated.

        Raises:
            StateDamaged: the counts cannot be read (STATE_DAMAGED).
        """
        config, found = self._config.limits, []
        tools, rules = self._catalogue.tools.list(), self._catalogue.specs.policy().limits
        governed = {tool.id: one for tool in tools if (one := self._table.limiter(tool, rules)) is not None}
        for section in ("tools", "plugins", "upstreams", "callers"):
            for name, written in getattr(config, section).items():
                place = f"limits.{section}.{name}"
                found.append(self._state(place, written.limits(), None if section == "callers" else governed))
        for tool in tools:
            own_limits = _own(tool, rules)
            if own_limits != NO_LIMITS and tool.id in governed:
                found.append(self._state(f"the tool {tool.id}", own_limits, {tool.id: governed[tool.id]}))
        return tuple(found)

    def _state(self, place: str, limits: ToolLimits, governed: dict[str, ToolLimiter] | None) -> LimitState:
        if governed is None:
            return LimitState(place, limits)
        keys = {rate.key for limiter in governed.values() for rate in limiter.rates if rate.place == place}
        used = None
        if limits.rate is not None:
            most, seconds = parse_rate(limits.rate)
            block = max(1, most // BLOCKS)
            count = (self._table.records.used(key, most // block, seconds, time.time()) * block for key in keys)
            used = max(count, default=0)
        slots = {one.place: one.slots for limiter in governed.values() for one in limiter.places}.get(place)
        breakers = [one.breaker for limiter in governed.values() for one in limiter.breakers if one.place == place]
        state = next((one.state for one in breakers if one.state != "closed"), "closed" if breakers else "")
        return LimitState(
            place, limits, used, None if slots is None else slots.taken, None if slots is None else slots.waiting, state
        )


def _own(tool: ToolSpec, rules: LimitRules) -> ToolLimits:
    """The limits in a tool's definition."""
    others = [rule.limits for rule in rules.of_tool(tool) if rule.place != OWN]
    replaced = [
        key.name for key in fields(ToolLimits) if any(getattr(limits, key.name) is not None for limits in others)
    ]
    return replace(tool.limits, **dict.fromkeys(replaced))
