"""Imports that end the host or never end are noticed, and not run in it a second time.

    while a plugin is imported, a small file says so:   importing/<plugin>.<pid>
    the next host finds one whose process is gone   →   the import is tried in a probe first
    the probe crashes or hangs                      →   the plugin is `failed`, with the reason; remembered for these files

A plugin whose source looks as if its import might hang or end the process is tried before its code runs in the host for the
first time (`import_risk.py`); with ``plugins.probe: new`` every one is. What was found is remembered for its files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal

from tavern_core.errors import ActivationFailed, TavernError
from tavern_core.kernel.check.import_risk import import_risk
from tavern_core.kernel.check.probe import Probe, Prober
from tavern_core.kernel.files.json_state import JsonStateFile
from tavern_core.kernel.life.candidates import Candidate
from tavern_core.model.result import iso_utc

FILE: Final = "probes.json"
LONGEST_PROBE_S: Final = 10.0
When = Literal["never", "suspect", "new"]


class ImportWatch:
    """Watches the imports of one host.

    Args:
        home: the state folder.
        when: which plugins are tried in a probe.
        seconds: how long a probe may take.
    """

    def __init__(self, home: Path, when: When, seconds: float) -> None:
        self._markers = home / "importing"
        self._file = JsonStateFile(home / FILE, "probes")
        self._when = when
        self._seconds = seconds
        self._prober = Prober()

    def load(self, candidate: Candidate) -> Any:
        """Import a plugin's code, in a probe first where that is called for.

        Raises:
            ActivationFailed: the host would not survive the import (ACTIVATION_FAILED). Errors of the code pass through.
        """
        if candidate.isolated:
            return candidate.load()  # it starts a process, and imports nothing here
        if self._when != "never":
            self._judge(candidate)
        with self._marked(candidate.name):
            return candidate.load()

    def close(self) -> None:
        """End the process that tries imports."""
        self._prober.close()

    def known(self, name: str) -> dict[str, Any] | None:
        """What the last probe of a plugin found: `outcome`, `said`, `at`, `artifact`."""
        row = self._file.read().values.get(name)
        return row if isinstance(row, dict) else None

    def forget(self, name: str) -> None:
        """The operator wants it tried again."""
        if self.known(name) is not None:
            self._change(lambda rows: {n: row for n, row in rows.items() if n != name})

    def tried(self, candidate: Candidate) -> Probe:
        """Try the import in a probe and remember what came of it."""
        found = self._prober.probe(candidate.name, module=candidate.module, folder=candidate.folder, seconds=self._seconds)
        row = {"artifact": candidate.artifact(), "outcome": found.outcome, "said": found.said, "at": iso_utc(time.time())}
        self._change(lambda rows: {**rows, candidate.name: row})
        self._clear(candidate.name)
        return found

    def _judge(self, candidate: Candidate) -> None:
        row = self.known(candidate.name)
        is_bad = row is not None and row.get("outcome") in ("crashed", "hung")
        if row is not None and (is_bad or self._when == "new") and row.get("artifact") == candidate.artifact():
            if is_bad:
                raise _unsafe(candidate, str(row.get("said")))
            return
        was_tried = row is not None and row.get("artifact") == candidate.artifact()
        if is_bad or self._when == "new" or self._left_behind(candidate.name) or (not was_tried and _looks_risky(candidate)):
            found = self.tried(candidate)
            if not found.is_safe:
                raise _unsafe(candidate, found.said)

    def _left_behind(self, name: str) -> bool:
        """Whether a process that is gone was importing the plugin when it ended."""
        return any(not _is_alive(pid) for _, pid in self._traces(name))

    def _clear(self, name: str) -> None:
        for path, pid in self._traces(name):
            if not _is_alive(pid):
                path.unlink(missing_ok=True)

    def _traces(self, name: str) -> Iterator[tuple[Path, int]]:
        try:
            with os.scandir(self._markers) as entries:
                found = [entry.name for entry in entries if entry.name.startswith(f"{name}.")]
        except OSError:
            return
        for entry_name in found:
            plugin, _, pid = entry_name.rpartition(".")
            if plugin == name and pid.isdigit():
                yield self._markers / entry_name, int(pid)

    @contextmanager
    def _marked(self, name: str) -> Iterator[None]:
        marker = self._markers / f"{name}.{os.getpid()}"
        with suppress(OSError):  # a state folder that cannot be written: told elsewhere, and no reason not to import
            try:
                marker.touch()
            except FileNotFoundError:
                self._markers.mkdir(parents=True, exist_ok=True)
                marker.touch()
        try:
            yield
        finally:
            with suppress(OSError):
                marker.unlink(missing_ok=True)

    def _change(self, make: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        with suppress(TavernError, OSError):  # remembered or not, what was found holds now
            self._file.change(make)


def _looks_risky(candidate: Candidate) -> bool:
    return candidate.source in ("folder", "entry_point") and candidate.folder is not None and bool(import_risk(candidate.folder))


def _unsafe(candidate: Candidate, said: str) -> ActivationFailed:
    return ActivationFailed(
        f"{candidate.name} is not imported: in a process of its own, {said}",
        hint=f"correct it, then `tavern plugins reload {candidate.name}`",
        probe=said,
    )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
