"""Decides which plugins run in a worker process.

The question is cheap: the modules for workers are imported only when the first worker starts.
"""

from __future__ import annotations

import threading
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.isolation.backoff import Backoff
from tavern_core.kernel.foundation import Foundation
from tavern_core.kernel.plugins.candidate import Candidate, isolation_reason
from tavern_core.kernel.plugins.contributions import Contributions
from tavern_core.kernel.plugins.effective_scopes import EffectiveScopes
from tavern_core.kernel.plugins.record import Records

if TYPE_CHECKING:
    from tavern_core.isolation.sandbox import Sandboxes
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
        return self._reason(candidate.name, candidate.apart)

    def _reason(self, name: str, apart: str) -> str:
        if name in _traced:
            return ""
        if apart:
            return apart
        record = self.records.get(name)
        return "" if record is None else record.standing.kept_apart

    def applied(self, candidate: Candidate) -> Candidate:
        """The candidate for the lifecycle: an isolated one loads its proxy, and never its code."""
        name, apart, backoff = candidate.name, isolation_reason(candidate, self.base.config.isolation), self._backoff

        def reason() -> str:
            return self._reason(name, apart)

        return replace(
            candidate,
            apart=apart,
            load=lambda: self._load(replace(candidate, apart=apart)) if reason() else candidate.load(),
            # A worker reads its code each time it starts.
            unload=lambda: None if candidate.unload is None or reason() else candidate.unload(),
            isolated=reason,
            pause_notice=lambda: backoff.why(name) if reason() else "",
            end_pause=lambda: backoff.end(name),
        )

    def release(self) -> None:
        """End all workers and their resources."""
        with self._lock:
            workers, self._workers = self._workers, None
        if workers is not None:
            workers.release()

    def _load(self, candidate: Candidate) -> Any:
        """Start the plugin's worker; returns its proxy. Raises PluginError."""
        from tavern_core.isolation.workers import HostWorkers

        with self._lock:
            if self._workers is None:
                self._workers = HostWorkers(
                    self.base, self.records, self.reach, self.sandboxes, self.contributions, self._backoff
                )
            workers = self._workers
        return workers.load(candidate)
