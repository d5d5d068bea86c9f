"""Pauses hooks that fail again and again, one implementation at a time.

    fails `limits.hookFailures` times in a row  →  rests for `limits.hookRestMs`  →  is tried once  →  runs, or rests again

A paused observer is skipped, and so is the change of a paused result hook. A paused gate or before-hook refuses what it
would have checked: it fails closed, but at once and not after its time-out.

A file of the state folder holds the paused hooks and the failures in a row of each hook: failures of commands that each
run in their own process add up, and other processes (`tavern plugins info`, `tavern doctor`) can report paused hooks. It is
written when a hook fails, and when a recorded hook works again; a hook without failures costs nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from tavern_core.errors import Finding, TavernError
from tavern_core.kernel.files.json_state import JsonStateFile, Signature, Values
from tavern_core.kernel.foundation import Foundation
from tavern_core.kernel.hooks.table import HookImplementation
from tavern_core.model.event import HOOK_QUARANTINED, HOOK_RELEASED
from tavern_core.model.plugin_status import RestingHook
from tavern_core.model.result import iso_utc
from tavern_core.schema.redact import redact_text

_FILE: Final = "quarantine.json"
KEPT_S: Final = 7 * 86_400.0
"""Time in seconds for which a hook stays recorded after its last failure."""
_MOST_KEPT: Final = 1000
"""Hooks in the file: those that failed last."""


class HookPaused(Exception):
    """An implementation was not run because it rests."""

    def __init__(self, rest: RestingHook) -> None:
        super().__init__(rest.summary)
        self.rest = rest


class HookQuarantine:
    """The paused implementations: after `limits.hookFailures` failures in a row (0: never), for `limits.hookRestMs`."""

    def __init__(self, base: Foundation) -> None:
        self._file = JsonStateFile(base.home / _FILE, "hooks")
        self._failures = base.config.limits.hook_failures
        self._seconds = base.config.limits.hook_rest_ms / 1000
        self._base = base
        self._lock = threading.Lock()
        self._rows: Mapping[str, RestingHook] = {}
        self._seen: Signature = (0, 0, 0)

    def check(self, impl: HookImplementation) -> None:
        """Check that an implementation may run now.

        Raises:
            HookPaused: it rests after failures.
        """
        timing = impl.timing
        if self._failures and (row := self._recorded_pause(impl)) != timing.rest:  # another process began or ended it
            if row is None and timing.rest is not None:
                self._end(timing.rest)
            timing.rest, timing.failed_in_a_row = row, 0 if row is None else self._failures - 1
        if timing.rest is not None and time.time() < _seconds(timing.rest.until):
            raise HookPaused(timing.rest)

    def worked(self, impl: HookImplementation) -> None:
        """Record that an implementation ran without an error."""
        timing = impl.timing
        timing.failed_in_a_row, timing.is_watched = 0, False
        key, rest = _key(impl), timing.rest
        if rest is not None:
            timing.rest = None
            self._forget(lambda at, row: row == rest)
            self._end(rest)
            self._base.recorder.note(HOOK_RELEASED, {"hook": rest.hook, "where": rest.where}, plugin=rest.plugin)
        elif (row := self._rows.get(key)) is not None and not row.until:
            self._forget(
                lambda at, row: at == key and not row.until
            )  # what another process put to rest meanwhile stays so

    def failed(self, impl: HookImplementation, reason: str) -> None:
        """Record a failure of an implementation; after too many, in this process or in all, it is paused."""
        timing = impl.timing
        timing.is_watched = True
        if not self._failures or impl.is_builtin:
            return
        now = time.time()
        key = _key(impl)

        def made(before: int) -> RestingHook:
            """The row after one more failure. The greater count wins: success elsewhere does not undo failures here."""
            failures = max(timing.failed_in_a_row, before) + 1
            row = RestingHook(impl.plugin, impl.hook.name, impl.where, "", failures, iso_utc(now))
            if failures < self._failures:
                return row
            return replace(
                row, reason=redact_text(reason, self._base.known_secrets.values), until=iso_utc(now + self._seconds)
            )

        def counted(rows: Mapping[str, RestingHook]) -> dict[str, RestingHook]:
            return {**rows, key: made(rows[key].failures if key in rows else 0)}

        row = self._change(counted).get(key) or made(0)
        timing.failed_in_a_row = row.failures
        if row.until:
            timing.rest = row
            self._report(row)

    def _recorded_pause(self, impl: HookImplementation) -> RestingHook | None:
        """The last quarantine of this hook that any process has recorded, also one that is over."""
        row = self._recorded_pauses().get(_key(impl))
        return row if row is not None and row.until else None

    def _end(self, rest: RestingHook) -> None:
        self._base.diagnostics.withdraw("HOOK_QUARANTINED", hook=rest.hook, where=rest.where)

    def _report(self, rest: RestingHook) -> None:
        data = rest.to_json()
        del data["plugin"]
        hint = f"see {rest.where}; correct it and `tavern plugins reload {rest.plugin}`"
        self._base.diagnostics.add(
            "HOOK_QUARANTINED", rest.summary, plugin=rest.plugin, hint=hint, severity="error", details=data
        )
        self._base.recorder.note(HOOK_QUARANTINED, data, plugin=rest.plugin)

    def of(self, plugin: str) -> tuple[RestingHook, ...]:
        """The paused hooks of one plugin, in any process of the state folder."""
        return tuple(
            r for r in self._recorded_pauses().values() if r.plugin == plugin and time.time() < _seconds(r.until)
        )

    def forget(self, plugin: str) -> None:
        """Forget the failures of a reloaded or enabled plugin: the operator wants it to be tried again."""
        if any(row.plugin == plugin for row in self._recorded_pauses().values()):
            self._forget(lambda at, row: row.plugin == plugin)

    def _recorded_pauses(self) -> Mapping[str, RestingHook]:
        """The content of the file; read again after it was replaced."""
        with self._lock:
            if self._file.signature() != self._seen:
                found = self._file.read()
                self._rows, self._seen = _rows(found.values), found.signature
                self._report_corrupt(found.findings)
            return self._rows

    def _report_corrupt(self, findings: Iterable[Finding]) -> None:
        """Report a file that cannot be read; it counts as empty."""
        for finding in findings:
            self._base.diagnostics.add_finding(finding, severity="warning")

    def _forget(self, which: Callable[[str, RestingHook], bool]) -> None:
        self._change(lambda rows: {key: row for key, row in rows.items() if not which(key, row)})

    def _change(self, make: Callable[[Mapping[str, RestingHook]], dict[str, RestingHook]]) -> Mapping[str, RestingHook]:
        """Replace the known rows and the file's content. If it cannot be written, each process counts for itself."""
        made: dict[str, RestingHook] = {}

        def change(values: Values) -> Values:
            made.update(self._fresh(make(self._fresh(_rows(values)))))
            return {key: row.to_json() for key, row in made.items()}

        with self._lock:
            try:
                found = self._file.change(change)
            except (TavernError, OSError):  # problems of the state folder are reported elsewhere
                self._rows = made = self._fresh(make(self._rows))
                return made
            self._rows, self._seen = made, found.signature
        self._report_corrupt(found.findings)
        return made

    def _fresh(self, rows: Mapping[str, RestingHook]) -> dict[str, RestingHook]:
        """The rows that are still needed."""
        now = time.time()
        kept = [(key, row) for key, row in rows.items() if now < max(_seconds(row.until), _seconds(row.since) + KEPT_S)]
        if len(kept) > _MOST_KEPT:
            kept = sorted(kept, key=lambda pair: _seconds(pair[1].since))[-_MOST_KEPT:]
        return dict(kept)


def _key(impl: HookImplementation) -> str:
    version = impl.ctx.version if impl.ctx is not None else ""
    return f"{impl.plugin} {version} {impl.hook.name} {impl.where}"


def _rows(values: Mapping[str, Any]) -> dict[str, RestingHook]:
    return {key: row for key, value in values.items() if (row := RestingHook.from_json(value)) is not None}


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):  # no time, or none that this system can count
        return 0.0
