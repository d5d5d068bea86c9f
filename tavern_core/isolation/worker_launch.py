"""Starting the worker of one plugin: its fork, its box, and its first message."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tavern_core.box.policy import LAYERS, PROCESSES
from tavern_core.contract.context import PluginContext
from tavern_core.errors import ActivationFailed
from tavern_core.frozen_dataclass import dataclass
from tavern_core.isolation.plugin_sandboxes import Sandboxes
from tavern_core.isolation.transport import longest
from tavern_core.isolation.worker.facilities import facts_of_context
from tavern_core.isolation.worker_fork_server import environment
from tavern_core.isolation.worker_sandbox_policy import worker_policy
from tavern_core.isolation.worker_setup_message import WorkerSetup
from tavern_core.kernel.foundation import Foundation
from tavern_core.kernel.plugins.candidate import PluginCandidate
from tavern_core.kernel.plugins.contribution_registry import Contributions
from tavern_core.kernel.plugins.effective_scopes import EffectiveScopes
from tavern_core.kernel.plugins.plugin_record import PluginRecords
from tavern_core.model.capability import ENV_PREFIX
from tavern_core.model.event import ISOLATION_WEAK
from tavern_core.package_location import module_path
from tavern_core.schema.bounded_json_copying import json_or


@dataclass(frozen=True, slots=True)
class WorkerLaunch:
    """Used each time a worker of the plugin starts."""

    candidate: PluginCandidate
    ctx: PluginContext
    base: Foundation
    records: PluginRecords
    reach: EffectiveScopes
    sandboxes: Sandboxes
    contributions: Contributions

    def _executor(self) -> tuple[str, str]:
        executor = self.contributions.get("executors", "python")
        if executor is None:
            text = f"{self.candidate.name} is not started: this host has no executor for Python tools any more"
            raise ActivationFailed(text, hint="it is being closed; open another host")
        cls = type(executor)
        return cls.__module__, cls.__qualname__

    def setup(self) -> Mapping[str, Any]:
        """The first message to the worker. Raises ActivationFailed: the host is being closed (ACTIVATION_FAILED)."""
        candidate = self.candidate
        setup = WorkerSetup(
            plugin=candidate.name,
            version=candidate.version,
            module=candidate.module,
            folder=str(candidate.folder or ""),
            data_dir=str(self._data_dir()),
            executor=self._executor(),
            aliases=dict(candidate.facts.aliases),
            manifest=json_or(
                candidate.origin.manifest().model_dump(mode="json", by_alias=True, exclude_defaults=True), {}
            ),
            limits=self.base.config.limits.model_dump(mode="json", by_alias=True),
            context=facts_of_context(self.ctx),
        )
        return setup.to_json()

    def request(self) -> Mapping[str, Any]:
        """The request to the fork server: what it imports in advance, path, environment, policy, with the current grants."""
        record, data_dir = self.records[self.candidate.name], self._data_dir()
        data_dir.mkdir(parents=True, exist_ok=True)
        path = module_path()
        names = [name for name in ("read:fs", "write:fs", "process:spawn") if record.may(name)]
        scopes = {name: self.reach.scope(record, name) for name in names}
        policy = worker_policy(self.sandboxes, record, data_dir, path, scopes)
        own = {"HOME": str(data_dir), "TMPDIR": str(data_dir)}
        granted = [
            name.removeprefix(ENV_PREFIX)
            for name in record.candidate.requested
            if name.startswith(ENV_PREFIX) and record.may(name)
        ]
        return {
            "modules": (self._executor()[0],),
            "longest": longest(self.base.config.limits.output_bytes),
            "path": path,
            "environment": {**environment(granted), **own},
            "folder": str(data_dir),
            "policy": policy.to_json(),
        }

    def _data_dir(self) -> Path:
        return self.base.home / "data" / self.candidate.name

    def confined(self, layers: tuple[str, ...]) -> None:
        """A worker has started with these layers of the box: report missing ones."""
        plugin = self.candidate.name
        missing = [layer for layer in LAYERS if layer not in layers and layer != PROCESSES]
        if missing:
            self.base.recorder.note(ISOLATION_WEAK, {"missing": missing}, plugin=plugin)
            self.base.diagnostics.add(
                "ISOLATION_WEAK",
                f"{plugin} runs in its own process without these layers of the box: {', '.join(missing)}",
                plugin=plugin,
                hint="`isolation: {level: required}` in tavern.yaml refuses it instead; `tavern doctor` says why they are missing",
            )
