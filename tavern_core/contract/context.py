"""`PluginContext`, which a plugin gets instead of the host.

It holds facts about the plugin and the few ways to the host that it may use. It never holds the host, the registry or pluggy's manager.
Each of these ways raises an audit event (``tavern_core.service``, ``.secret``, ``.data_dir``) for the audit guard; so does
looking up a method that changes another plugin's service (``tavern_core.service_change``).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol

from tavern_core.frozen_dataclass import dataclass


class PluginFacilities(Protocol):
    """The host's side of a PluginContext; one small object per plugin."""

    def get_config(self, option: str) -> Any: ...

    def on_config_change(self, option: str, callback: Callable[[Any], None]) -> None: ...

    def service(self, name: str) -> Any: ...

    def secret(self, name: str) -> str: ...

    def data_dir(self) -> Path: ...

    def plugin_config(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Runtime:
    """Facts about the host a plugin runs in."""

    host_version: str
    python_version: str
    safe_mode: bool = False


@dataclass(frozen=True, slots=True)
class PluginContext:
    """Passed to every hook as `ctx` (fields of seed 002's plugin API, snake_case)."""

    id: str
    """The plugin's unique name."""
    name: str
    """Its display name."""
    version: str
    description: str
    source: str
    """builtin, object, folder or entry_point."""
    config: Mapping[str, Any]
    """The host's free-form configuration (`config:` of tavern.yaml), read-only."""
    runtime: Runtime
    logger: logging.Logger
    folder: Path | None = None
    """The folder of plugin.yaml; None for a plugin passed as an object."""
    _facilities: PluginFacilities | None = field(default=None, repr=False, compare=False)

    @property
    def plugin_config(self) -> Mapping[str, Any]:
        """The plugin's own settings by option id, defaults filled in."""
        return self._open().plugin_config()

    @property
    def data_dir(self) -> Path:
        """The plugin's own folder, created at the first use."""
        folder = self._open().data_dir()
        sys.audit("tavern_core.data_dir", self.id, str(folder))
        return folder

    def get_config(self, option: str) -> Any:
        """The value of one setting: ``ctx.get_config("maxItems")`` or the full ``extensions.<plugin>.maxItems``.

        Raises:
            SettingsInvalid: no such option, or one of another plugin (SETTINGS_INVALID).
        """
        return self._open().get_config(option)

    def on_config_change(self, option: str, callback: Callable[[Any], None]) -> None:
        """Call `callback(new_value)` after each validated change of one of the plugin's own settings. Errors in it have no effect."""
        self._open().on_config_change(option, callback)

    def service(self, name: str) -> Any:
        """A view of a registered service: only its published methods.

        Raises:
            PolicyDenied: `permissions.services.use` does not name it, or it is not granted (POLICY_DENIED).
        """
        sys.audit("tavern_core.service", self.id, name)
        return self._open().service(name)

    def secret(self, name: str) -> str:
        """The value of a secret that was granted as ``secrets:<name>``.

        Raises:
            PolicyDenied: not declared or not granted (POLICY_DENIED).
        """
        sys.audit("tavern_core.secret", self.id, name)
        return self._open().secret(name)

    def _open(self) -> PluginFacilities:
        if self._facilities is None:
            raise RuntimeError("this context belongs to no host; use the test kit's `tavern` fixture")
        return self._facilities
