"""Opens real hosts with only the plugin under test, its dependencies, and the objects of the test.

The host's state is in a temporary folder, no configuration file and no TAVERN_* variable is read, and other installed
plugins are off. Grants are in the lock file, as those of an operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from tavern_core.errors import SettingsInvalid, UsageError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.nearest import did_you_mean

if TYPE_CHECKING:
    from tavern_core.host import Tavern
    from tavern_core.model.approval import Approver
    from tavern_core.testing.under_test import InstalledPlugin

ALL: Final = "all"
Grants = Literal["all"] | Sequence[str]
"""`all`: everything the plugin requests, ``danger:*`` included; else exactly these permissions."""


@dataclass(frozen=True, slots=True)
class HostOptions:
    """The description of a host; the arguments of the marker `tavern` and of `open_tavern`."""

    plugin: str = ""
    """Name of the plugin under test, or the path of a folder plugin; empty: the one of the project."""
    plugins: tuple[Any, ...] = ()
    """Further plugins, as objects (`Tavern.open(plugins=...)`)."""
    config: Mapping[str, Any] | None = None
    """The content of tavern.yaml."""
    settings: Mapping[str, Any] | None = None
    """Settings of the plugin under test: option → value."""
    grants: Grants = ALL
    activate: Literal["needed", "all", "none"] = "needed"
    approve: Approver | None = None
    """Called for calls that need approval (`Tavern.open(approve=...)`)."""

    def with_changes(self, changes: Mapping[str, Any]) -> HostOptions:
        """These with other values by name: `config` and `settings` are merged, `plugins` are added.

        Raises:
            UsageError: there is no such option; names the closest (USAGE).
        """
        names = [f.name for f in fields(self)]
        for key in changes:
            if key not in names:
                raise UsageError(f"a host for tests has no {key!r}", hint=did_you_mean(key, names) or ", ".join(names))
        sections = {
            key: merged(getattr(self, key) or {}, changes[key] or {})
            for key in ("config", "settings")
            if key in changes
        }
        return replace(self, **{**changes, **sections, "plugins": (*self.plugins, *changes.get("plugins", ()))})


class OpenTavern(Protocol):
    """The fixture `open_tavern`: opens one more host, closed when the test ends."""

    def __call__(
        self,
        *plugins: Any,
        config: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        grants: Grants = ALL,
        activate: Literal["needed", "all", "none"] = "needed",
        approve: Approver | None = None,
        home: Path | None = None,
    ) -> Tavern: ...


def open_host(found: InstalledPlugin | None, host_options: HostOptions, home: Path, stack: ExitStack) -> Tavern:
    """A host, entered; leaving `stack` closes it.

    Args:
        found: the plugin under test; None: only the plugins of `host_options`.
        home: the state folder.

    Raises:
        TavernError: the configuration, a setting or a grant is wrong; a plugin that fails is a row in `tavern.plugins`.
    """
    from tavern_core.host import Tavern

    config = merged(_base_config(found, host_options), host_options.config or {})
    tavern = stack.enter_context(
        Tavern.open(
            config,
            plugins=host_options.plugins,
            home=home,
            activate=host_options.activate,
            approve=host_options.approve,
        )
    )
    if found is not None:
        for diagnostic in tavern.diagnostics:
            if diagnostic.code == SettingsInvalid.code and f"extensions.{found.name}." in diagnostic.message:
                raise SettingsInvalid(diagnostic.message, hint=diagnostic.hint)
        for name in (*found.depends_on, found.name):
            _grant(tavern, name, host_options.grants if name == found.name else ALL)
    return tavern


def _base_config(found: InstalledPlugin | None, host_options: HostOptions) -> dict[str, Any]:
    if found is None:
        return {"plugins": {"roots": [], "load": []}, "settings": _settings(host_options, "")}
    roots = [str(found.folder.parent)] if found.is_folder_plugin else []
    plugins = {"roots": roots, "load": [*found.depends_on, found.name]}
    return {"plugins": plugins, "settings": _settings(host_options, found.name)}


def _settings(host_options: HostOptions, plugin: str) -> dict[str, Any]:
    """The requested settings by their full keys. Raises UsageError: a short key without a plugin under test (USAGE)."""
    settings: dict[str, Any] = {}
    for option, value in (host_options.settings or {}).items():
        if not option.startswith("extensions.") and not plugin:
            raise UsageError(
                f"no plugin is under test whose setting {option!r} could be", hint="write extensions.<plugin>.<option>"
            )
        settings[option if option.startswith("extensions.") else f"extensions.{plugin}.{option}"] = value
    return settings


def _grant(tavern: Tavern, name: str, grants: Grants) -> None:
    status = tavern.plugins.get(name)
    if status is None or status.state in ("failed", "disabled"):
        return  # the status says why; tests that need the plugin report it
    wanted: Iterable[str] = sorted(status.requested) if grants == ALL else grants
    if wanted := tuple(wanted):
        tavern.grant(name, *wanted)  # by name, because a pattern does not cover danger:*


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two configurations as one: sections key by key, everything else from `above`."""
    result = dict(below)
    for key, value in above.items():
        under = result.get(key)
        both = isinstance(under, Mapping) and isinstance(value, Mapping)
        result[key] = merged(under, value) if both else value  # type: ignore[arg-type]
    return result


def clear_environment(names: Iterable[str], remove: Callable[[str], None]) -> None:
    """Remove every TAVERN_* variable, so that the machine's own configuration has no effect."""
    for name in [n for n in names if n.startswith("TAVERN_")]:
        remove(name)
