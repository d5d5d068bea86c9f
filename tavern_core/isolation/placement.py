"""Decides which plugins run in a worker process, and starts and ends these.

The decision is cheap: the modules for workers are imported only when the first worker starts. Resources that all
workers of a host share are created then, too, and released with the host.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from tavern_core.contract.context import PluginContext
from tavern_core.errors import ActivationFailed
from tavern_core.isolation.backoff import Backoff
from tavern_core.kernel.execution.portal import Portal
from tavern_core.kernel.foundation import Foundation
from tavern_core.kernel.plugins.candidate import PluginCandidate
from tavern_core.kernel.plugins.contribution_registry import Contributions
from tavern_core.kernel.plugins.effective_scopes import EffectiveScopes
from tavern_core.kernel.plugins.plugin_record import PluginRecords
from tavern_core.kernel.settings.secret_masking import MaskingFilter

if TYPE_CHECKING:
    from tavern_core.isolation.plugin_sandboxes import Sandboxes
    from tavern_core.isolation.supervisor import Supervisor
    from tavern_core.isolation.worker_epoll_thread import EpollThread

_traced: Final[set[str]] = set()


def keep_in_process(plugin: str) -> None:
    """Run this plugin in this process from now on, regardless of its tier, because tracing cannot observe other processes.

    For a process that was started to trace the tests of a plugin. A host never calls this.
    """
    _traced.add(plugin)


class Isolation:
    """The isolated plugins of one host."""

    def __init__(
        self,
        base: Foundation,
        records: PluginRecords,
        reach: EffectiveScopes,
        sandboxes: Sandboxes,
        contributions: Contributions,
    ) -> None:
        self._base = base
        self._records = records
        self._reach = reach
        self.sandboxes = sandboxes
        self._contributions = contributions
        self._backoff = Backoff(base.home / "isolation.json")
        self._lock = threading.Lock()
        self._shared: tuple[EpollThread, Portal] | None = None
        """Resources that all workers share, from the first worker on."""
        self._supervisors: dict[str, Supervisor] = {}
        self._is_released = False

    def reason(self, candidate: PluginCandidate) -> str:
        """Why a plugin runs in its own process: it must, or was granted with that; empty: it runs in the host."""
        if candidate.name in _traced:
            return ""
        if candidate.isolation_need:
            return candidate.isolation_need
        record = self._records.get(candidate.name)
        return "" if record is None else record.condition.kept_apart

    def pause_notice(self, plugin: str) -> str:
        """Why a plugin is paused now and until when; empty if it is not."""
        return self._backoff.pause_notice(plugin)

    def end_pause(self, plugin: str) -> None:
        """End the pause, as the operator wants to retry the plugin."""
        self._backoff.end(plugin)

    def release(self) -> None:
        """End all workers and their resources."""
        with self._lock:
            self._is_released = True
            shared, self._shared = self._shared, None
            supervisors, self._supervisors = list(self._supervisors.values()), {}
        for supervisor in supervisors:
            supervisor.close()
        if shared is not None:
            from tavern_core.isolation.worker_fork_server import worker_server

            watch, portal = shared
            watch.close()
            portal.close()
            worker_server.leave()

    def load(self, candidate: PluginCandidate, ctx: PluginContext) -> Any:
        """Start the plugin's worker; returns its proxy.

        Args:
            ctx: the plugin's context, which limits the requests of its code.

        Raises:
            PluginError: it cannot be started or imported, or is paused, or the host was closed.
        """
        from tavern_core.isolation.host_requests import HostRequestHandler
        from tavern_core.isolation.proxy_plugin import plugin_proxy
        from tavern_core.isolation.supervisor import Supervisor
        from tavern_core.isolation.worker_launch import WorkerLaunch
        from tavern_core.isolation.worker_output import WorkerOutput
        from tavern_core.isolation.worker_process import WorkerLimits, WorkerSettings

        name, config = candidate.name, self._base.config
        watch, portal = self._ready(name)
        logger = MaskingFilter.put_on(logging.getLogger(f"tavern.plugin.{name}"), self._base.known_secrets)
        launch = WorkerLaunch(
            candidate, ctx, self._base, self._records, self._reach, self.sandboxes, self._contributions
        )
        limits = WorkerLimits.of(config)
        printed = WorkerOutput(logger, config.limits.stderr_bytes)
        handler = HostRequestHandler(ctx, limits, portal, printed)
        supervisor = Supervisor(launch, WorkerSettings(name, limits, watch, printed), handler, self._backoff)
        with self._lock:  # before it starts, so that `release` can end it at any time
            self._refuse_released(name)
            self._supervisors[name] = supervisor
        try:
            return plugin_proxy(supervisor, supervisor.begin())
        except BaseException:
            supervisor.close()
            raise

    def _refuse_released(self, plugin: str) -> None:
        if self._is_released:
            raise ActivationFailed(f"{plugin} is not started: the host was closed", hint="open another host")

    def _ready(self, plugin: str) -> tuple[EpollThread, Portal]:
        from tavern_core.isolation.worker_epoll_thread import EpollThread
        from tavern_core.isolation.worker_fork_server import worker_server

        with self._lock:
            self._refuse_released(plugin)
            if self._shared is None:
                self._shared = EpollThread(), Portal()
                worker_server.use()
            return self._shared
