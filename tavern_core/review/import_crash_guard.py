"""Detects imports that would end the host or never end, before they run in it.

    a plugin whose code was never tried here   →   it is first imported in a separate process (`import_probe.py`)
    that crashes, hangs or takes all memory    →   the plugin is `failed`, with the reason
    the result is stored                       →   probes.json, for exactly these files, this Python and its packages

With ``plugins.probe: suspect`` only a plugin during whose import an earlier process ended is probed. A small file exists while a
plugin is being imported, ``importing/<plugin>.<pid>``, and the next host finds the file of a process that ended.
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

from tavern_core.contract.context import PluginContext
from tavern_core.errors import ActivationFailed, Finding, TavernError
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.files.file_lock import locked
from tavern_core.kernel.files.json_state import JsonStateFile
from tavern_core.kernel.plugins.candidate import PluginCandidate
from tavern_core.model.result import iso_utc
from tavern_core.review.probe_result import SAFE, UNSAFE, PluginImport

FILE: Final = "probes.json"
_SPARE_S: Final = 60.0
"""Time to wait, beyond that of one probe, for another process that probes the same plugin."""
When = Literal["never", "suspect", "new"]
ImportRow = dict[str, Any]


class ImportWatch:
    """Watches the imports of one host.

    Args:
        home: the state folder.
        when: which plugins are probed.
        seconds: time limit of an import.
    """

    def __init__(self, home: Path, when: When, seconds: float, diagnostics: Diagnostics) -> None:
        self._markers = home / "importing"
        self._file = JsonStateFile(home / FILE, "probes")
        self._when = when
        self._seconds = seconds
        self._diagnostics = diagnostics
        self._has_tried = False

    def check(self, candidate: PluginCandidate) -> None:
        """Probe the import if necessary.

        Raises:
            ActivationFailed: the host would not survive the import (ACTIVATION_FAILED).
        """
        if not self._is_watched(candidate):
            return
        if self._is_fine(candidate):
            return
        with self._alone(candidate.name):
            if not self._is_fine(candidate):  # another process may have probed it meanwhile
                self._probe(candidate)

    def look_after(self) -> None:
        """Let the running event loop reap the probe processes once they have ended; does nothing if there are none."""
        if self._has_tried:
            from tavern_core.review.import_probe import prober

            prober.collect_later(asyncio.get_running_loop())

    def load(self, candidate: PluginCandidate, ctx: PluginContext) -> Any:
        """Import a plugin's code. Errors of the code pass through."""
        if candidate.isolated():
            return candidate.load(ctx)
        with self._marked(candidate.name):
            return candidate.load(ctx)

    def refusal(self, candidate: PluginCandidate) -> Finding | None:
        """Why its import will be refused, according to an earlier probe; runs nothing."""
        row = self.last_result(candidate.name)
        if (
            row is None
            or row.get("outcome") not in UNSAFE
            or not self._is_watched(candidate)
            or not _is_about(row, candidate)
        ):
            return None
        text = f"it is not imported: when that was tried in a process of its own ({row.get('at')}), {row.get('said')}"
        return Finding(ActivationFailed.code, text, _repair(candidate.name))

    def last_result(self, name: str) -> ImportRow | None:
        """The result of a plugin's last probe: `outcome`, `said`, `at`, `artifact`, `python`."""
        row = self._file.current().values.get(name)
        return row if isinstance(row, dict) else None

    def forget(self, name: str) -> None:
        """Probe it again, on request of the operator."""
        if self.last_result(name) is not None:
            self._change(lambda rows: {n: row for n, row in rows.items() if n != name})

    def _is_watched(self, candidate: PluginCandidate) -> bool:
        """Whether its import is probed at all: an isolated one starts its own process and imports nothing here."""
        return self._when != "never" and not candidate.isolated() and candidate.source in ("folder", "entry_point")

    def _probe(self, candidate: PluginCandidate) -> None:
        """Probe the import, store the result, and act on it."""
        from tavern_core.review.import_probe import prober  # imported here: most hosts know all their plugins

        self._has_tried = True
        artifact = candidate.origin.artifact()  # before the probe, so that an edit during it counts as a change
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

    def _untried(self, candidate: PluginCandidate, why: str) -> None:
        """Refuse a plugin that cannot be probed if it ended a process before, else report a warning."""
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

    def _is_fine(self, candidate: PluginCandidate) -> bool:
        """Whether it may be imported; False: it must be probed first.

        Raises:
            ActivationFailed: according to its probe, the host would not survive it.
        """
        is_left_behind = self._left_behind(candidate.name)
        row = self.last_result(candidate.name) or {}
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
        """Prevent other threads and processes from probing the same plugin meanwhile."""
        with ExitStack() as stack:
            with suppress(
                TavernError, OSError
            ):  # the state folder is not writable: then each process probes for itself
                stack.enter_context(locked(self._markers / name, self._seconds + _SPARE_S))
            yield

    def _left_behind(self, name: str) -> bool:
        """Whether a process ended while it imported the plugin."""
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
        with suppress(OSError):  # the state folder is not writable: reported elsewhere, and no reason not to import
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
        with suppress(TavernError, OSError):  # the result applies even if it cannot be stored
            self._file.change(make)


def _repair(name: str) -> str:
    """The repair for a plugin whose import the host would not survive."""
    return f"correct it, then `tavern plugins reload {name}`"


def _is_about(row: ImportRow, candidate: PluginCandidate) -> bool:
    """Whether a stored result applies to these files and this Python."""
    return row.get("python") == _python() and row.get("artifact") == (candidate.origin.artifact() or None)


def _import_of(candidate: PluginCandidate) -> PluginImport:
    """Everything of a plugin that is imported, now or later."""
    from tavern_core.model.manifest import Entry

    nodes = candidate.origin.manifest().nodes if "nodes" in candidate.facts.sections else None
    declared = candidate.origin.tools() if candidate.tool_ids else None
    specs = (*declared.specs, *declared.drafts) if declared is not None else ()
    handlers = dict.fromkeys(
        handler for spec in specs if isinstance(handler := spec.implementation.get("handler"), str)
    )
    return PluginImport(
        candidate.name,
        candidate.module,
        candidate.folder,
        candidate.has_code,
        nodes.entry if isinstance(nodes, Entry) else "",
        tuple(handlers),
    )


def _imports_nothing(candidate: PluginCandidate) -> bool:
    """Whether all of its code has already run in this process."""
    return not candidate.has_code or (bool(candidate.module) and candidate.module in sys.modules)


def _python() -> str:
    """The state of this Python that an import depends on: its version, and the time of the last installation."""
    words = [sys.version, sys.prefix]
    for entry in sys.path:
        if entry.endswith(("-packages", "-packages/")):
            with suppress(OSError):
                words.append(f"{entry} {os.stat(entry).st_mtime_ns}")  # noqa: PTH116 - runs at every start
    return hashlib.sha256("\n".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _unsafe(candidate: PluginCandidate, said: str) -> ActivationFailed:
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
