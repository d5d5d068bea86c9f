"""The workers of one host, and what is shared between them: begun with the first, given back with the host."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tavern_core.box.policy import LAYERS, PROCESSES
from tavern_core.isolation.backoff import Pauses
from tavern_core.isolation.fork_server_client import environment, fork_server
from tavern_core.isolation.proxy_plugin import IsolatedPlugin, stand_in
from tavern_core.isolation.sandbox import Sandboxes
from tavern_core.isolation.supervisor import Supervisor
from tavern_core.isolation.transport import longest
from tavern_core.isolation.worker_output import Printed
from tavern_core.isolation.worker_policy import worker_policy
from tavern_core.isolation.worker_setup import Setup
from tavern_core.isolation.worker_watch import Watch
from tavern_core.kernel.execution.module_path import module_path
from tavern_core.kernel.execution.portal import Portal
from tavern_core.kernel.execution.threads import Workers
from tavern_core.kernel.foundation import Foundation
from tavern_core.kernel.plugins.candidate import Candidate
from tavern_core.kernel.plugins.contributions import Contributions
from tavern_core.kernel.plugins.effective_scopes import Reach
from tavern_core.kernel.plugins.record import Records
from tavern_core.kernel.settings.secrets import MaskingFilter
from tavern_core.model.capability import ENV_PREFIX
from tavern_core.model.event import ISOLATION_WEAK
from tavern_core.schema.limits import json_copy

THREADS: Final = 32
"""Questions of one plugin that are answered at once; none takes the threads of another."""
MOST_LANES: Final = 128
"""Calls of one kind that run in one worker at once; bounded by its open files, too."""


@dataclass
class HostWorkers:
    """Starts and ends them."""

    base: Foundation
    records: Records
    reach: Reach
    sandboxes: Sandboxes
    contributions: Contributions
    pauses: Pauses
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _parts: tuple[Watch, Portal] | None = None
    _supervisors: dict[str, Supervisor] = field(default_factory=dict)

    def release(self) -> None:
        """End all workers, and what was begun for them."""
        with self._lock:
            parts, self._parts = self._parts, None
            supervisors, self._supervisors = list(self._supervisors.values()), {}
        for supervisor in supervisors:
            supervisor.close()
        if parts is not None:
            watch, portal = parts
            watch.close()
            portal.close()
            fork_server.leave()

    def load(self, candidate: Candidate) -> IsolatedPlugin:
        """Start the plugin's worker; what stands in for it here.

        Raises:
            PluginError: it cannot be started or imported, or is paused.
        """
        watch, portal = self._ready()
        name, limits = candidate.name, self.base.config.limits
        logger = MaskingFilter.put_on(logging.getLogger(f"tavern.plugin.{name}"), self.base.known_secrets)
        supervisor = Supervisor(
            name,
            request=lambda: self._request(candidate),
            setup=lambda: self._setup(candidate).to_json(),
            modules=(self._executor()[0],),
            limit=longest(limits.output_bytes),
            lanes=min(limits.threads * 4, MOST_LANES),
            start_s=self.base.config.isolation.start_timeout_ms / 1000,
            hook_s=limits.hook_timeout_ms / 1000,
            watch=watch,
            threads=Workers(THREADS, f"tavern-questions-{name}"),
            portal=portal,
            printed=Printed(logger, limits.stderr_bytes),
            pauses=self.pauses,
            confined=lambda layers: self._tell_missing(name, layers),
        )
        try:
            plugin = stand_in(supervisor, supervisor.begin())
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
                fork_server.use()
            return self._parts

    def _executor(self) -> tuple[str, str]:
        cls = type(self.contributions.get("executors", "python"))
        return cls.__module__, cls.__qualname__

    def _setup(self, candidate: Candidate) -> Setup:
        return Setup(
            plugin=candidate.name,
            version=candidate.version,
            module=candidate.module,
            folder=str(candidate.folder or ""),
            data_dir=str(self._data_dir(candidate.name)),
            executor=self._executor(),
            aliases=dict(candidate.facts.aliases),
            manifest=_json(candidate.manifest().model_dump(mode="json", by_alias=True, exclude_defaults=True)),
            limits=self.base.config.limits.model_dump(mode="json", by_alias=True),
        )

    def _request(self, candidate: Candidate) -> Mapping[str, Any]:
        """What the fork server is told; the grants are those of this moment."""
        record = self.records[candidate.name]
        data_dir = self._data_dir(candidate.name)
        data_dir.mkdir(parents=True, exist_ok=True)
        path = module_path()
        names = [name for name in ("read:fs", "write:fs", "process:spawn") if record.may(name)]
        policy = worker_policy(
            code=[candidate.folder] if candidate.folder is not None else [],
            path=path,
            home=self.base.home,
            kept=self.sandboxes.kept,
            unwritable=self.sandboxes.unwritable(),
            data_dir=data_dir,
            scopes={name: self.reach.scope(record, name) for name in names},
            config=self.base.config.isolation,
            level=self.sandboxes.level(record),
        )
        own = {"HOME": str(data_dir), "TMPDIR": str(data_dir)}
        granted = [
            name.removeprefix(ENV_PREFIX)
            for name in record.candidate.requested
            if name.startswith(ENV_PREFIX) and record.may(name)
        ]
        return {
            "path": path,
            "environment": {**environment(granted), **own},
            "folder": str(data_dir),
            "policy": policy.to_json(),
        }

    def _data_dir(self, plugin: str) -> Path:
        return self.base.home / "data" / plugin

    def _tell_missing(self, plugin: str, layers: tuple[str, ...]) -> None:
        missing = [layer for layer in LAYERS if layer not in layers and layer != PROCESSES]
        if missing:
            self.base.recorder.note(ISOLATION_WEAK, {"missing": missing}, plugin)
            self.base.diagnostics.add(
                "ISOLATION_WEAK",
                f"{plugin} runs in a process of its own without layers of the box: {', '.join(missing)}",
                plugin=plugin,
                hint="`isolation: {level: required}` in tavern.yaml refuses it instead; `tavern doctor` says why they are missing",
            )


def _json(value: Any) -> Any:
    copy, problem = json_copy(value)
    return {} if problem is not None else copy
