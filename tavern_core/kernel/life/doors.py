"""The host's side of a PluginContext: the few things a plugin may ask for, each judged by what it was granted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tavern_core.errors import PolicyDenied, SettingsInvalid
from tavern_core.kernel.life.services import Services
from tavern_core.kernel.settings.store import SettingsStore


class Doors:
    """One plugin's doors.

    Args:
        plugin: its name.
        may: whether a permission is declared and granted.
        secret: name → value of a secret of the host's configuration.
        data_root: where the plugins' own folders are.
    """

    def __init__(
        self,
        plugin: str,
        may: Callable[[str], bool],
        services: Services,
        settings: SettingsStore,
        secret: Callable[[str], str],
        data_root: Path,
    ) -> None:
        self._plugin = plugin
        self._may = may
        self._services = services
        self._settings = settings
        self._secret = secret
        self._data_root = data_root

    def get_config(self, option: str) -> Any:
        return self._settings.resolved(self._key(option))

    def on_config_change(self, option: str, callback: Callable[[Any], None]) -> None:
        self._settings.on_change(self._key(option), callback, owner=self._plugin)

    def plugin_config(self) -> Mapping[str, Any]:
        return self._settings.resolve(self._plugin)

    def service(self, name: str) -> Any:
        return self._services.view(name, self._plugin, self._may)

    def secret(self, name: str) -> str:
        permission = f"secrets:{name}"
        if not self._may(permission):
            raise PolicyDenied(
                f"{self._plugin} may not use the secret {name!r}: {permission} is not declared and granted",
                hint=f"plugin.yaml: permissions: {{capabilities: [{permission!r}]}}, "
                f"then tavern plugins grant {self._plugin} {permission}",
                plugin=self._plugin,
                missing=[permission],
            )
        return self._secret(name)

    def data_dir(self) -> Path:
        folder = self._data_root / self._plugin
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _key(self, option: str) -> str:
        """The full key of an own setting.

        Raises:
            SettingsInvalid: it is one of another plugin (SETTINGS_INVALID).
        """
        own = f"extensions.{self._plugin}."
        if option.startswith("extensions.") and not option.startswith(own):
            raise SettingsInvalid(f"{option}: {self._plugin} may read and watch its own settings only", hint=f"own keys: {own}…")
        return option if option.startswith(own) else own + option
