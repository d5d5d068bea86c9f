"""The host's side of a PluginContext: the services that a plugin may use, each checked against its grants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tavern_core.contract.protocols import Service
from tavern_core.errors import PolicyDenied, SettingsInvalid
from tavern_core.kernel.foundation import Foundation
from tavern_core.kernel.plugins.services import GrantedPlugin, Services
from tavern_core.kernel.settings.store import SettingsStore
from tavern_core.kernel.views.facility_views import sealed_object
from tavern_core.kernel.views.values import exact

FACILITIES = ("get_config", "on_config_change", "service", "secret", "data_dir", "plugin_config")


class GrantedFacilities:
    """The facilities of one plugin."""

    def __init__(self, plugin: GrantedPlugin, services: Services, settings: SettingsStore, base: Foundation) -> None:
        self.name = plugin.name
        self._granted = plugin
        self._services = services
        self._settings = settings
        self._base = base
        self._is_open = True
        self._views: dict[str, tuple[Service, Any]] = {}

    def view(self) -> Any:
        """The plugin's view of the facilities: their methods, without access to the implementation."""
        return sealed_object(self, FACILITIES)

    def close(self) -> None:
        """Disable the contexts and views that the plugin kept; called when the plugin has stopped."""
        self._is_open = False

    def get_config(self, option: str) -> Any:
        return self._settings.resolved(self._key(exact(option)))

    def on_config_change(self, option: str, callback: Callable[[Any], None]) -> None:
        self._settings.on_change(self._key(exact(option)), callback, owner=self.name)

    def plugin_config(self) -> Mapping[str, Any]:
        return self._settings.resolve(self.name)

    def service(self, name: str) -> Any:
        name = exact(name)
        service = self._services.allowed(name, self)
        made_for, view = self._views.get(name, (None, None))
        if made_for is not service:  # a view has the methods of the service for which it was made
            view = self._services.view(name, self)
            self._views[name] = service, view
        return view

    def secret(self, name: str) -> str:
        name = exact(name)
        permission = f"secrets:{name}"
        if not self.may(permission):
            raise PolicyDenied(
                f"{self.name} may not use the secret {name!r}: {permission} is not declared and granted",
                hint=f"plugin.yaml: permissions: {{capabilities: [{permission!r}]}}, "
                f"then tavern plugins grant {self.name} {permission}",
                plugin=self.name,
                missing=[permission],
            )
        return self._settings.secret(name, self._base.config.secrets)

    def data_dir(self) -> Path:
        folder = self._base.home / "data" / self.name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def may(self, permission: str) -> bool:
        """Whether the plugin is running and has the permission.

        Raises:
            PolicyDenied: the plugin was stopped (POLICY_DENIED).
        """
        if not self._is_open:
            text = f"{self.name} was stopped; its stored context or view no longer works"
            raise PolicyDenied(text, hint="use the `ctx` argument of the hook", plugin=self.name)
        return self._granted.may(permission)

    def _key(self, option: str) -> str:
        """The full key of one of its own settings.

        Raises:
            SettingsInvalid: the setting is another plugin's (SETTINGS_INVALID).
        """
        prefix = f"extensions.{self.name}."
        if option.startswith("extensions.") and not option.startswith(prefix):
            raise SettingsInvalid(
                f"{option}: {self.name} may read and watch its own settings only", hint=f"own keys: {prefix}…"
            )
        return option if option.startswith(prefix) else prefix + option
