"""Decides which plugins run in a worker process.

The question is cheap: the modules for workers are imported only when the first worker starts.
"""

from __future__ import annotations

import threading
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.isolation.backoff import Backoff
from tavern_core.kernel.foundation import Foundation
from tavern_core.kernel.plugins.candidate import Candidate
from tavern_core.kernel.plugins.contribution_registry import Contributions
from tavern_core.kernel.plugins.effective_scopes import EffectiveScopes
from tavern_core.kernel.plugins.record import Records

if TYPE_CHECKING:
    from tavern_core.isolation.plugin_sandboxes import Sandboxes
    from tavern_core.isolation.workers import HostWorkers

_traced: Final[set[str]] = set()


def keep_in_process(plugin: str) -> None:
    """Run this plugin in this process from now on, regardless of its tier, because tracing cannot observe other processes.

    For a process that was started to trace the tests of a plugin. A host never calls this.
    """
    _traced.add(plugin)


@dataclass(slots=True)
class Isolation:
    """The isolated plugins of one host."""

    base: Foundation
    records: Records
    reach: EffectiveScopes
    sandboxes: Sandboxes
    contributions: Contributions
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _workers: HostWorkers | None = None
    _backoff: Backoff = field(init=False)

    def __post_init__(self) -> None:
        self._backoff = Backoff(self.base.home / "isolation.json")

    def reason(self, candidate: Candidate) -> str:
        """Why a plugin runs in its own process: it must, or was granted for that; empty for one that runs in the host."""
        if candidate.name in _traced:
            return ""
        if candidate.apart:
            return candidate.apart
        record = self.records.get(candidate.name)
        return "" if record is None else record.standing.kept_apart

    def pause_notice(self, plugin: str) -> str:
        """Why a plugin is paused now and until when; empty if it is not."""
        return self._backoff.why(plugin)

    def end_pause(self, plugin: str) -> None:
        """The operator wants to retry it."""
        self._backoff.end(plugin)

    def release(self) -> None:
        """End all workers and their resources."""
        with self._lock:
            workers, self._workers = self._workers, None
        if workers is not None:
            workers.release()

    def load(self, candidate: Candidate) -> Any:
        """Start the plugin's worker; returns its proxy. Raises PluginError."""
        from tavern_core.isolation.workers import HostWorkers

        with self._lock:
            if self._workers is None:
                self._workers = HostWorkers(
                    self.base, self.records, self.reach, self.sandboxes, self.contributions, self._backoff
                )
            workers = self._workers
        return workers.load(candidate)
