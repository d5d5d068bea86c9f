"""The services of the host itself, as plugins use them and as a plugin that replaces one must offer them.

    clock = ctx.service("systemClock")       # permissions: {services: {use: [systemClock]}}
"""

from __future__ import annotations

from typing import Final, Protocol

from tavern_core.contract.effects import read_only

SYSTEM_CLOCK: Final = "systemClock"


class SystemClock(Protocol):
    """What time it is for tools and plugins: ``system:get_current_time`` asks it. The audit log keeps the machine's own."""

    @read_only
    def now(self) -> float:
        """Seconds since the epoch, UTC. Answers at once."""
        ...

    @read_only
    def timezone(self) -> str | None:
        """IANA name of the zone in which times are told to somebody who names none; None: the machine's own."""
        ...
