"""Hooks that fail again and again are left alone for a while, one implementation at a time.

    fails `limits.hookFailures` times in a row  →  rests for `limits.hookRestMs`  →  is tried once  →  runs, or rests again

A resting observer is skipped, and so is the change of a resting result hook. A resting gate or before-hook refuses what it
would have judged: it fails closed, but at once and not after its time-out. What rests stands in a file of the state folder,
so that other processes (`tavern plugins info`, `tavern doctor`) can say so and a restart does not begin from scratch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from tavern_core.errors import TavernError
from tavern_core.kernel.files.json_state import JsonStateFile, Signature, Values
from tavern_core.kernel.hooks.table import Implementation
from tavern_core.model.plugin import RestingHook
from tavern_core.model.result import iso_utc

FILE: Final = "quarantine.json"
Tell = Callable[[str, Implementation, RestingHook], None]


class Resting(Exception):
    """An implementation was not run because it rests."""

    def __init__(self, rest: RestingHook) -> None:
        super().__init__(rest.told)
        self.rest = rest


class Quarantine:
    """Who rests, and until when.

    Args:
        failures: in a row, after which an implementation rests; 0: none ever does.
        seconds: for how long.
        tell: called with ``quarantined`` or ``released``.
        mask: takes secrets out of what an implementation failed with; it goes to a file.
        clock: seconds since the epoch.
    """

    def __init__(
        self, path: Path, *, failures: int, seconds: float, tell: Tell, mask: Callable[[str], str],
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._file = JsonStateFile(path, "hooks")
        self._failures = failures
        self._seconds = seconds
        self._tell = tell
        self._mask = mask
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: dict[str, RestingHook] | None = None
        self._seen: tuple[Signature, tuple[RestingHook, ...]] = (0, 0, 0), ()

    def check(self, impl: Implementation) -> None:
        """Let an implementation run, unless it rests.

        Raises:
            Resting: it does.
        """
        timing = impl.timing
        if timing.rest is None and not timing.failed_in_a_row:  # it may have been put to rest by another process
            timing.rest = self._known().get(_key(impl))
            timing.failed_in_a_row = self._failures - 1 if timing.rest is not None else 0
        if timing.rest is not None and self._clock() < _seconds(timing.rest.until):
            raise Resting(timing.rest)

    def worked(self, impl: Implementation) -> None:
        """It ran without an error."""
        timing = impl.timing
        timing.failed_in_a_row, timing.is_watched = 0, False
        if timing.rest is not None:
            rest, timing.rest = timing.rest, None
            self._forget(lambda row: row == rest)
            self._tell("released", impl, rest)

    def failed(self, impl: Implementation, reason: str) -> None:
        """It failed; after too many times it rests."""
        timing = impl.timing
        timing.failed_in_a_row, timing.is_watched = timing.failed_in_a_row + 1, True
        if not self._failures or timing.failed_in_a_row < self._failures or impl.plugin.startswith("core-"):
            return
        now = self._clock()
        rest = RestingHook(
            impl.plugin, impl.hook.name, impl.where, self._mask(reason), timing.failed_in_a_row, iso_utc(now), iso_utc(now + self._seconds)
        )
        timing.rest = rest
        self._change(lambda rows: {**rows, _key(impl): rest})
        self._tell("quarantined", impl, rest)

    def of(self, plugin: str) -> tuple[RestingHook, ...]:
        """What rests of one plugin now, in any process that shares the state folder."""
        if self._file.signature() != self._seen[0]:
            found = self._file.read()
            self._seen = found.signature, tuple(_rows(found.values).values())
        return tuple(r for r in self._seen[1] if r.plugin == plugin and self._clock() < _seconds(r.until))

    def forget(self, plugin: str) -> None:
        """The operator says that a plugin is to be tried again: it was reloaded or enabled."""
        if any(row.plugin == plugin for row in self._known().values()):
            self._forget(lambda row: row.plugin == plugin)

    def _known(self) -> Mapping[str, RestingHook]:
        with self._lock:
            if self._rows is None:
                self._rows = _rows(self._file.read().values)
            return self._rows

    def _forget(self, which: Callable[[RestingHook], bool]) -> None:
        self._change(lambda rows: {key: row for key, row in rows.items() if not which(row)})

    def _change(self, make: Callable[[dict[str, RestingHook]], dict[str, RestingHook]]) -> None:
        def change(values: Values) -> Values:
            self._rows = {k: r for k, r in make(_rows(values)).items() if self._clock() < _seconds(r.until)}
            return {key: row.to_json() for key, row in self._rows.items()}

        with self._lock:
            try:
                self._file.change(change)
            except (TavernError, OSError):
                return  # it is known in this process; the state folder's own trouble is told elsewhere


def _key(impl: Implementation) -> str:
    version = impl.ctx.version if impl.ctx is not None else ""
    return f"{impl.plugin} {version} {impl.hook.name} {impl.where}"


def _rows(values: Mapping[str, Any]) -> dict[str, RestingHook]:
    return {key: row for key, value in values.items() if (row := RestingHook.from_json(value)) is not None}


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
