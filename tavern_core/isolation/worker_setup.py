"""What a worker is told when it begins: whose code it runs, where that is, and what the host would know of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tavern_core.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Setup:
    """The first request to a worker."""

    plugin: str
    version: str
    module: str
    """The importable package of an installed plugin; empty for one in a folder."""
    folder: str
    """Where plugin.yaml is; empty for a package in a zip."""
    data_dir: str
    executor: tuple[str, str]
    """Module and class of what runs tools of kind ``python``, as in the host."""
    aliases: Mapping[str, str]
    manifest: Mapping[str, Any]
    limits: Mapping[str, Any]
    """`LimitsConfig` as JSON."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Setup:
        """The inverse of `to_json`."""
        module, name = data["executor"]
        return cls(**{**data, "executor": (module, name)})
