"""Backoff for plugins whose workers died repeatedly: a start time, and a reason that other processes also see."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from tavern_core.errors import CircuitOpen, StateDamaged
from tavern_core.kernel.files.json_state import JsonStateFile

FIRST_S: Final = 30.0
LONGEST_S: Final = 600.0


class Backoff:
    """The backoff times of the plugins that share one state folder.

    Args:
        path: the file with these times.
    """

    def __init__(self, path: Path) -> None:
        self._file = JsonStateFile(path, "paused")

    def begin(self, plugin: str, why: str) -> None:
        """Pause a plugin; each time in a row twice as long."""
        before = self._row(plugin)
        seconds = min(float(before["seconds"]) * 2, LONGEST_S) if before else FIRST_S
        row = {"reason": why, "until": time.time() + seconds, "seconds": seconds}
        with suppress(OSError, StateDamaged):  # it is still paused in this process, by its own count
            self._file.change(lambda values: {**values, plugin: row})

    def end(self, plugin: str) -> None:
        """End the pause: the plugin works again, or the operator wants to retry it."""
        if self._row(plugin) is not None:
            with suppress(OSError, StateDamaged):
                self._file.change(lambda values: {k: v for k, v in values.items() if k != plugin})

    def pause_notice(self, plugin: str) -> str:
        """Why a plugin is paused, and until when; empty: it is not paused."""
        row = self._row(plugin)
        if row is None or row["until"] <= time.time():
            return ""
        until = datetime.fromtimestamp(row["until"]).astimezone().strftime("%H:%M:%S")
        return f"paused until {until}: {row['reason']}"

    def refuse(self, plugin: str) -> None:
        """Refuse calls while a plugin is paused. Raises CircuitOpen: it is paused (CIRCUIT_OPEN)."""
        if why := self.pause_notice(plugin):
            row = self._row(plugin) or {"until": 0.0}
            left = max(int((row["until"] - time.time()) * 1000), 0)
            hint = f"wait, or repair it and run `tavern plugins reload {plugin}`"
            raise CircuitOpen(f"{plugin} is {why}", hint=hint, retryable=True, retry_after_ms=left, plugin=plugin)

    def _row(self, plugin: str) -> dict[str, Any] | None:
        row = self._file.current().values.get(plugin)
        whole = (
            isinstance(row, dict)
            and isinstance(row.get("until"), int | float)
            and isinstance(row.get("seconds"), int | float)
        )
        return row if whole else None
