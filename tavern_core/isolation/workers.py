"""The worker processes of one host and the resources that they share.

The resources are created with the first worker and released with the host.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import field
from typing import Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.isolation.backoff import Backoff
from tavern_core.isolation.plugin_sandboxes import Sandboxes
from tavern_core.isolation.proxy_plugin import IsolatedPlugin, plugin_proxy
from tavern_core.isolation.supervisor import Supervisor, WorkerLimits
from tavern_core.isolation.transport import longest
from tavern_core.isolation.worker_epoll_thread import Watch
from tavern_core.isolation.worker_fork_server import worker_server
from tavern_core.isolation.worker_launch import WorkerLaunch
from tavern_core.isolation.worker_output import Printed
from tavern_core.kernel.execution.portal import Portal
from tavern_core.kernel.foundation import Foundation
from tavern_core.kernel.plugins.candidate import Candidate
from tavern_core.kernel.plugins.contribution_registry import Contributions
from tavern_core.kernel.plugins.effective_scopes import EffectiveScopes
from tavern_core.kernel.plugins.record import Records
from tavern_core.kernel.settings.secret_masking import MaskingFilter

MOST_CALLS: Final = 128
"""Calls of one kind that run in one worker at the same time; also limited by its open files."""


@dataclass(slots=True)
class HostWorkers:
    """Starts and ends them."""

    base: Foundation
    records: Records
    reach: EffectiveScopes
    sandboxes: Sandboxes
    contributions: Contributions
    backoff: Backoff
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _parts: tuple[Watch, Portal] | None = None
    _supervisors: dict[str, Supervisor] = field(default_factory=dict)

    def release(self) -> None:
        """End all workers and their shared resources."""
        with self._lock:
            parts, self._parts = self._parts, None
            supervisors, self._supervisors = list(self._supervisors.values()), {}
        for supervisor in supervisors:
            supervisor.close()
        if parts is not None:
            watch, portal = parts
            watch.close()
            portal.close()
            worker_server.leave()

    def load(self, candidate: Candidate) -> IsolatedPlugin:
        """Start the plugin's worker; returns its proxy.

        Raises:
            PluginError: it cannot be started or imported, or is paused.
        """
        watch, portal = self._ready()
        name, limits = candidate.name, self.base.config.limits
        logger = MaskingFilter.put_on(logging.getLogger(f"tavern.plugin.{name}"), self.base.known_secrets)
        supervisor = Supervisor(
            name,
            WorkerLaunch(candidate, self.base, self.records, self.reach, self.sandboxes, self.contributions),
            WorkerLimits(
                answer_bytes=longest(limits.output_bytes),
                artifact_bytes=self.base.config.artifacts.max_bytes,
                calls=min(limits.threads * 4, MOST_CALLS),
                start_s=self.base.config.isolation.start_timeout_ms / 1000,
                hook_s=limits.hook_timeout_ms / 1000,
            ),
            watch=watch,
            portal=portal,
            printed=Printed(logger, limits.stderr_bytes),
            backoff=self.backoff,
        )
        try:
            plugin = plugin_proxy(supervisor, supervisor.begin())
        except BaseException:
            supervisor.close()
            raise
        with self._lock:
            self._supervisors[name] = supervisor
        return plugin

    def _ready(self) -> tuple[Watch, Portal]:
        with self._lock:
            if self._parts is None:
                self._parts = Watch(), Portal()
                worker_server.use()
            return self._parts
