"""Imports that would end the host or never end are found before they run in it.

    a plugin whose code was never tried here   →   it is imported in a process of its own first (`probe.py`)
    that crashes, hangs or takes all memory    →   the plugin is `failed`, with the reason
    what was found is remembered               →   probes.json, for exactly these files, this Python and what is installed in it

With ``plugins.probe: suspect`` only a plugin is tried during whose import an earlier process ended: a small file says so while a
plugin is being imported, ``importing/<plugin>.<pid>``, and the next host finds one whose process is gone.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal

from tavern_core.errors import ActivationFailed, Finding, TavernError
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.files.file_lock import locked
from tavern_core.kernel.files.json_state import JsonState, JsonStateFile
from tavern_core.kernel.plugins.candidate import Candidate
from tavern_core.model.manifest import Entry
from tavern_core.model.result import iso_utc
from tavern_core.review.probe_result import SAFE, UNSAFE, Import

FILE: Final = "probes.json"
_SPARE_S: Final = 60.0
"""How much longer than one probe to wait for another process that is trying the same plugin."""
When = Literal["never", "suspect", "new"]
Row = dict[str, Any]


class ImportWatch:
    """Watches the imports of one host.

    Args:
        home: the state folder.
        when: which plugins are tried in a probe.
        seconds: how long an import may take.
    """

    def __init__(self, home: Path, when: When, seconds: float, diagnostics: Diagnostics) -> None:
        self._markers = home / "importing"
        self._file = JsonStateFile(home / FILE, "probes")
        self._read = JsonState()
        self._when = when
        self._seconds = seconds
        self._diagnostics = diagnostics
        self._has_tried = False

    def judge(self, candidate: Candidate) -> None:
        """Try the import in a probe where that is called for.

        Raises:
            ActivationFailed: the host would not survive the import (ACTIVATION_FAILED).
        """
        if not self._is_watched(candidate):
            return
        if self._is_fine(candidate):
            return
        with self._alone(candidate.name):
            if not self._is_fine(candidate):  # another process may have tried it meanwhile
                self._settle(candidate)

    def look_after(self) -> None:
        """Have the running event loop collect the processes that try imports, once they have ended; does nothing where none was needed."""
        if self._has_tried:
            from tavern_core.review.probe import prober

            prober.collect_later(asyncio.get_running_loop())

    def load(self, candidate: Candidate) -> Any:
        """Import a plugin's code. Errors of the code pass through."""
        if candidate.isolated():
            return candidate.load()
        with self._marked(candidate.name):
            return candidate.load()

    def refusal(self, candidate: Candidate) -> Finding | None:
        """Why its import will be refused, as far as that is known from an earlier try; nothing is run."""
        row = self.known(candidate.name)
        if (
            row is None
            or row.get("outcome") not in UNSAFE
            or not self._is_watched(candidate)
            or not _is_about(row, candidate)
        ):
            return None
        text = f"it is not imported: when that was tried in a process of its own ({row.get('at')}), {row.get('said')}"
        return Finding(ActivationFailed.code, text, _repair(candidate.name))

    def known(self, name: str) -> Row | None:
        """What the last probe of a plugin found: `outcome`, `said`, `at`, `artifact`, `python`."""
        if self._file.signature() != self._read.signature:
            self._read = self._file.read()
        row = self._read.values.get(name)
        return row if isinstance(row, dict) else None

    def forget(self, name: str) -> None:
        """The operator wants it tried again."""
        if self.known(name) is not None:
            self._change(lambda rows: {n: row for n, row in rows.items() if n != name})

    def _is_watched(self, candidate: Candidate) -> bool:
        """Whether its import is judged at all: that of an isolated one starts a process, and imports nothing here."""
        return self._when != "never" and not candidate.isolated() and candidate.source in ("folder", "entry_point")

    def _settle(self, candidate: Candidate) -> None:
        """Try the import in a probe, remember what came of it, and judge by it."""
        from tavern_core.review.probe import prober  # here: most hosts find all their plugins known

        self._has_tried = True
        artifact = candidate.artifact()  # before: what is edited while it is tried is then seen as edited
        found = prober.probe(_import_of(candidate), seconds=self._seconds)
        if found.outcome == "unknown":
            self._untried(candidate, found.said)
            return
        row = {
            "artifact": artifact,
            "python": _python(),
            "outcome": found.outcome,
            "said": found.said,
            "at": iso_utc(time.time()),
        }
        self._change(lambda rows: {**rows, candidate.name: row})
        self._clear(candidate.name)
        if found.is_unsafe:
            raise _unsafe(candidate, found.said)

    def _untried(self, candidate: Candidate, why: str) -> None:
        """No process can be started for a probe. A plugin that ended one is not imported; any other is, with a warning."""
        hint = "plugins.probe: never imports plugins without trying them"
        if self._left_behind(candidate.name):
            text = f"{candidate.name} is not imported: its import ended an earlier process, and it cannot be tried in another: {why}"
            raise ActivationFailed(text, hint=hint)
        self._diagnostics.add(
            "PROBE_UNAVAILABLE",
            f"its import could not be tried first: {why}",
            plugin=candidate.name,
            hint=hint,
            severity="warning",
        )

    def _is_fine(self, candidate: Candidate) -> bool:
        """Whether it may be imported as it is; False: it is to be tried first.

        Raises:
            ActivationFailed: it was tried, and the host would not survive it.
        """
        is_left_behind = self._left_behind(candidate.name)
        row = self.known(candidate.name) or {}
        outcome = str(row.get("outcome"))
        if outcome in SAFE | UNSAFE and _is_about(row, candidate):
            if outcome in UNSAFE:
                raise _unsafe(candidate, str(row.get("said")))
            return not is_left_behind
        if outcome in UNSAFE or is_left_behind:
            return False
        return self._when == "suspect" or _imports_nothing(candidate)

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Keep other threads and processes from trying the same plugin meanwhile."""
        with ExitStack() as held:
            with suppress(TavernError, OSError):  # a state folder that cannot be written: then each tries for itself
                held.enter_context(locked(self._markers / name, self._seconds + _SPARE_S))
            yield

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


def _repair(name: str) -> str:
    """What to do about a plugin whose import the host would not survive."""
    return f"correct it, then `tavern plugins reload {name}`"


def _is_about(row: Row, candidate: Candidate) -> bool:
    """Whether a verdict is about these files and this Python."""
    return row.get("python") == _python() and row.get("artifact") == (candidate.artifact() or None)


def _import_of(candidate: Candidate) -> Import:
    """Everything that is imported of a plugin, at once or later."""
    nodes = candidate.manifest().nodes if "nodes" in candidate.facts.sections else None
    declared = candidate.tools() if candidate.tool_ids else None
    specs = (*declared.specs, *declared.sketches) if declared is not None else ()
    handlers = dict.fromkeys(
        handler for spec in specs if isinstance(handler := spec.implementation.get("handler"), str)
    )
    return Import(
        candidate.name,
        candidate.module,
        candidate.folder,
        candidate.has_code,
        nodes.entry if isinstance(nodes, Entry) else "",
        tuple(handlers),
    )


def _imports_nothing(candidate: Candidate) -> bool:
    """Whether nothing of it would run that has not run in this process already."""
    return not candidate.has_code or (bool(candidate.module) and candidate.module in sys.modules)


def _python() -> str:
    """What an import depends on besides the plugin's files: which Python this is, and when something was last installed in it."""
    words = [sys.version, sys.prefix]
    for entry in sys.path:
        if entry.endswith(("-packages", "-packages/")):
            with suppress(OSError):
                words.append(f"{entry} {os.stat(entry).st_mtime_ns}")  # noqa: PTH116 - on the way of every start
    return hashlib.sha256("\n".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _unsafe(candidate: Candidate, said: str) -> ActivationFailed:
    return ActivationFailed(
        f"{candidate.name} is not imported: in a process of its own, {said}",
        hint=_repair(candidate.name),
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
