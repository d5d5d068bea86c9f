"""A PluginContext without a host, for tests of a single hook function.

    ctx = fake_context("my-plugin", settings={"maxItems": 3}, services={"clock": FakeClock()})
    assert tavern_before_execute(call, spec, ctx) is None

Settings, services and secrets are those of the test. Only a host knows whether the plugin *may* use them: test
that with the fixture `tavern`.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tavern_core.contract.context import PluginContext, Runtime
from tavern_core.errors import PolicyDenied, SettingsInvalid
from tavern_core.model.nearest import did_you_mean


@dataclass
class FakeFacilities:
    """The host's side of a fake context (`tavern_core.contract.context.PluginFacilities`)."""

    plugin: str
    settings: dict[str, Any]
    services: Mapping[str, Any]
    secrets: Mapping[str, str]
    folder: Path | None
    callbacks: dict[str, list[Callable[[Any], None]]] = field(default_factory=dict)

    def get_config(self, option: str) -> Any:
        return self.settings[self._option(option)]

    def on_config_change(self, option: str, callback: Callable[[Any], None]) -> None:
        self.callbacks.setdefault(self._option(option), []).append(callback)

    def change(self, option: str, value: Any) -> None:
        """Like a save in the host: store the value and notify subscribers."""
        self.settings[self._option(option)] = value
        for callback in self.callbacks.get(self._option(option), ()):
            callback(value)

    def service(self, name: str) -> Any:
        if name not in self.services:
            raise PolicyDenied(f"the fake context has no service {name!r}", hint=did_you_mean(name, self.services))
        return self.services[name]

    def secret(self, name: str) -> str:
        if name not in self.secrets:
            raise PolicyDenied(f"the fake context has no secret {name!r}", hint=did_you_mean(name, self.secrets))
        return self.secrets[name]

    def data_dir(self) -> Path:
        if self.folder is None:
            raise RuntimeError("the fake context has no data folder: pass data_dir=tmp_path")
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder

    def plugin_config(self) -> Mapping[str, Any]:
        return dict(self.settings)

    def _option(self, option: str) -> str:
        name = option.removeprefix(f"extensions.{self.plugin}.")
        if name not in self.settings:
            raise SettingsInvalid(
                f"the fake context has no setting {option!r}",
                hint=did_you_mean(name, self.settings) or "pass it: fake_context(settings={...})",
            )
        return name


def fake_context(
    plugin: str,
    *,
    settings: Mapping[str, Any] | None = None,
    services: Mapping[str, Any] | None = None,
    secrets: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
    data_dir: Path | None = None,
    version: str = "0",
) -> PluginContext:
    """The `ctx` of a hook, without a host.

    Args:
        plugin: the plugin's name.
        settings: option → value; others do not exist.
        services: name → object that `ctx.service` answers.
        secrets: name → text that `ctx.secret` answers.
        config: `ctx.config`, the host's free-form configuration.
        data_dir: `ctx.data_dir`; usually pytest's `tmp_path`.
        version: of the plugin.
    """
    from tavern_core import __version__

    facilities = FakeFacilities(plugin, dict(settings or {}), services or {}, secrets or {}, data_dir)
    runtime = Runtime(__version__, platform.python_version())
    logger = logging.getLogger(f"tavern.plugin.{plugin}")
    return PluginContext(plugin, plugin, version, "", "object", config or {}, runtime, logger, None, facilities)
