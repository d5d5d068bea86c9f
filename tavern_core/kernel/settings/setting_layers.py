"""The effective value of a setting: the user's file, then this instance's configuration, then the default.

A stored value that its setting does not allow is a finding, and the layer below counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from tavern_core.errors import Finding, Location, SettingsInvalid
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.files.json_state import JsonState, JsonStateFile
from tavern_core.kernel.settings.declared_settings import PREFIX, DeclaredSetting, SettingTable
from tavern_core.kernel.settings.secret_masking import KnownSecrets, is_secret, mask
from tavern_core.kernel.settings.setting_value_validation import Keyring, follow, problem_of, system_keyring
from tavern_core.model.secret_references import is_reference

if TYPE_CHECKING:
    from tavern_core.model.setting_declaration import SettingItem

SettingOrigin = Literal["default", "instance", "user"]
Stored = Mapping[str, Any]
_NOTHING: Final = object()


def user_file(path: Path) -> JsonStateFile:
    """The file of saved settings, ``settings.json`` in the state folder."""
    return JsonStateFile(path, "values")


@dataclass(frozen=True, slots=True)
class DescribedSetting:
    """A setting as a console or a command line shows it."""

    key: str
    plugin: str
    tool: str
    item: SettingItem
    value: Any
    origin: str
    """``default``, the place in the instance's configuration, or the user's file."""
    is_secret: bool
    problem: str = ""
    """Why a stored value is not used, or that a required one is missing."""

    @property
    def group(self) -> str:
        """The group of the setting within its plugin."""
        return self.item.category_key or self.item.category

    def to_json(self) -> dict[str, Any]:
        shown = self.item.model_dump(by_alias=True, exclude_none=True, mode="json")
        if self.is_secret and "defaultValue" in shown:
            shown["defaultValue"] = mask(shown["defaultValue"])
        return shown | {
            "key": self.key,
            "plugin": self.plugin,
            "tool": self.tool or None,
            "secret": self.is_secret,
            "value": self.value,
            "origin": self.origin,
            "problem": self.problem or None,
        }


@dataclass(slots=True)
class SettingLayers:
    """The layers of one host.

    Args:
        file: the settings that the user saved (`user_file`).
        instance: ``settings:`` of the configuration, by full key.
        base: the base of ``{"$file": …}`` of the instance; for the user's file it is that file's folder.
        origins: the locations of the instance's values, by full key or by key of the configuration (``settings.<key>``).
        env: for ``{"$env": …}``.
        keyring: for ``{"$keyring": …}``.
        known: receives every secret that is resolved.
    """

    file: JsonStateFile
    instance: Stored = field(default_factory=dict)
    base: Path = field(default_factory=Path.cwd)
    origins: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)
    keyring: Keyring = system_keyring
    known: KnownSecrets = field(default_factory=KnownSecrets)

    def user(self) -> JsonState:
        """The current content of the user's file."""
        return self.file.current()

    def value(self, row: DeclaredSetting, stored: Stored) -> tuple[Any, SettingOrigin, list[Finding]]:
        """The effective value, its layer, and the findings about the layers above it.

        Args:
            stored: the values of `user`, read once for many settings.
        """
        findings: list[Finding] = []
        layers: tuple[tuple[SettingOrigin, Stored], ...] = (("user", stored), ("instance", self.instance))
        for origin, values in layers:
            if (value := values.get(row.key, _NOTHING)) is _NOTHING:
                continue
            if (problem := problem_of(row.item, value)) is None:
                if is_secret(row.item):
                    self.known.add(value)
                return value, origin, findings
            where = self.location_of(row.key, origin)
            findings.append(
                Finding(SettingsInvalid.code, f"{problem[0]}; it is not used", problem[1], where, "warning")
            )
        return row.item.default_value, "default", findings

    def resolve(self, row: DeclaredSetting, stored: Stored) -> Any:
        """The effective value with its reference followed.

        Raises:
            SettingsInvalid: the reference has no value (SETTINGS_INVALID).
        """
        value, origin, _ = self.value(row, stored)
        if not is_reference(value):
            return value
        found = self.follow(row, value, self.file.path.parent if origin == "user" else self.base)
        self.known.add(found)
        return found

    def follow(self, row: DeclaredSetting, reference: Mapping[str, Any], base: Path) -> Any:
        """The value behind a reference. Raises as `resolve`."""
        return follow(row.item, row.key, reference, base, self.env, self.keyring)

    def findings(
        self, rows: Iterable[DeclaredSetting], table: SettingTable, may_have_more: Callable[[str], bool]
    ) -> list[Finding]:
        """Findings about the stored values of these settings and their plugins.

        Args:
            may_have_more: whether a plugin may declare further settings; its unknown keys are not reported.
        """
        user = self.user()
        rows = list(rows)
        found = [finding for row in rows for finding in self.value(row, user.values)[2]]
        plugins = {row.plugin for row in rows}
        layers: tuple[tuple[SettingOrigin, Stored], ...] = (("instance", self.instance), ("user", user.values))
        for origin, values in layers:
            for key in values:
                owner = key.removeprefix(PREFIX).partition(".")[0] if key.startswith(PREFIX) else None
                # A plugin that is not there may come back; only certain errors are reported.
                if key not in table and (owner is None or (owner in plugins and not may_have_more(owner))):
                    unknown = table.unknown(key)
                    where = self.location_of(key, origin)
                    found.append(Finding(unknown.code, unknown.message, unknown.hint, where, "warning"))
        return [*user.findings, *found]

    def plugins_with_values(self) -> frozenset[str]:
        """The plugins for which a setting is stored, declared or not."""
        keys = (key for values in (self.instance, self.user().values) for key in values if key.startswith(PREFIX))
        return frozenset(plugin for plugin, dot, _ in (key.removeprefix(PREFIX).partition(".") for key in keys) if dot)

    def unknown(self, plugin: str, table: SettingTable) -> bool:
        """Whether an undeclared setting is stored for a plugin, as far as known."""
        start = f"{PREFIX}{plugin}."
        stored = (self.instance, self.user().values)
        return any(key.startswith(start) and key not in table for values in stored for key in values)

    def describe(self, row: DeclaredSetting, stored: Stored) -> DescribedSetting:
        """A setting in the form for people."""
        value, origin, findings = self.value(row, stored)
        problem = "; ".join(f.message for f in findings)
        if not problem and row.item.required and value in (None, ""):
            problem = "is required and has no value"
        place = "default" if origin == "default" else self.location_of(row.key, origin).file
        secret = is_secret(row.item)
        shown = mask(value) if secret else value
        return DescribedSetting(row.key, row.plugin, row.tool, row.item, shown, place, secret, problem)

    def location_of(self, key: str, origin: SettingOrigin) -> Location:
        """The location of a stored value."""
        if origin == "user":
            return Location(str(self.file.path), pointer=key)
        place = self.origins.get(key) or self.origins.get(f"settings.{key}")
        return Location(place or "settings of this instance", pointer=key)
