"""The calls of a plugin that are running: what its end waits for."""

from __future__ import annotations

from typing import Any


class Usage:
    """The calls of one plugin that are running now. `calls` is only ever changed by single dict operations."""

    __slots__ = ("calls", "owner")

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.calls: dict[int, Any] = {}
        """Number → the call (`calls/running_call.py`)."""
