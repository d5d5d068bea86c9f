"""The setup message of a worker: its plugin, the place of its code, and what the host knows of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tavern_core.frozen_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The first request to a worker."""

    plugin: str
    version: str
    module: str
    """The importable package of an installed plugin; empty for one in a folder."""
    folder: str
    """The folder of plugin.yaml; empty for a package in a zip."""
    data_dir: str
    executor: tuple[str, str]
    """Module and class of the executor for tools of kind ``python``, as in the host."""
    aliases: Mapping[str, str]
    manifest: Mapping[str, Any]
    limits: Mapping[str, Any]
    """`LimitsConfig` as JSON."""
    context: Mapping[str, Any]
    """The facts of its `PluginContext`."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WorkerSetup:
        """The inverse of `to_json`."""
        module, name = data["executor"]
        return cls(**{**data, "executor": (module, name)})
