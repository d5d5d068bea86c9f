"""The declared settings of plugins and their tools, by full key.

    extensions.{plugin}.{option}           configOptions of plugin.yaml, or tavern_register_settings
    extensions.{plugin}.{tool}.{option}    configSchema of a tool

One key belongs to one owner; a declaration is taken whole or refused whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tavern_core.errors import Finding, Location, SettingsInvalid
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.settings.setting_value_validation import all_refused, key_problem, setting_problems
from tavern_core.model.nearest import did_you_mean, suggestion

if TYPE_CHECKING:
    from tavern_core.model.setting_declaration import SettingItem

PREFIX = "extensions."


@dataclass(frozen=True, slots=True)
class DeclaredSetting:
    """A setting and its owner."""

    key: str
    """The full key."""
    plugin: str
    option: str
    """The name its owner uses: the key without ``extensions.{plugin}.`` and without the tool."""
    item: SettingItem
    tool: str = ""


class SettingTable:
    """Declared settings in the order of their declaration."""

    def __init__(self, withheld: Callable[[str], tuple[str, str]] = lambda plugin: ("", "")) -> None:
        self._withheld = withheld
        """See `SettingsStore.withheld`."""
        self._rows: dict[str, DeclaredSetting] = {}
        self._owned: dict[str, dict[str, DeclaredSetting]] = {}
        """Plugin → its rows by key: avoids a search through the rows of five hundred plugins."""
        self._outdated: dict[str, set[str]] = {}
        """Plugin that is being activated again → keys that its new code has not declared yet."""

    def declare(
        self, plugin: str, items: Iterable[SettingItem | Mapping[str, Any]], tool: str = ""
    ) -> list[DeclaredSetting]:
        """Add settings, all or none; the same ones again replace what was there.

        Raises:
            SettingsInvalid: an item is invalid, or its key belongs to another plugin or is taken (SETTINGS_INVALID).
        """
        rows: dict[str, DeclaredSetting] = {}
        findings: list[Finding] = []
        outdated = self._outdated.get(plugin, set())
        for item in items:
            row = _row(plugin, item, tool, findings)
            if row is None:
                continue
            other = rows.get(row.key) or (None if row.key in outdated else self._rows.get(row.key))
            if row.key in rows or (other is not None and (other.plugin, other.tool) != (plugin, tool)):
                findings.append(_finding(row.key, "is declared twice", f"rename the option {row.option!r}"))
            rows[row.key] = row
        if findings:
            raise all_refused(findings, f"settings of {plugin}: ")
        owned = self._owned.setdefault(plugin, {})
        for key in outdated.intersection(rows):  # the new order counts
            del owned[key], self._rows[key]
        outdated.difference_update(rows)
        self._rows.update(rows)
        owned.update(rows)
        return list(rows.values())

    def withdraw(self, plugin: str) -> frozenset[str]:
        """Remove all settings of a plugin; their keys."""
        self._outdated.pop(plugin, None)
        gone = frozenset(self._owned.pop(plugin, ()))
        for key in gone:
            del self._rows[key]
        return gone

    def outdate(self, plugin: str) -> None:
        """Keep the settings of a plugin that is activated again: to find them and to save them, not for its new code."""
        self._outdated[plugin] = set(self._owned.get(plugin, ()))

    def drop_outdated(self, plugin: str) -> frozenset[str]:
        """Remove what was not declared again since `outdate`; their keys."""
        gone = frozenset(self._outdated.pop(plugin, ()))
        for key in gone:
            del self._rows[key], self._owned[plugin][key]
        return gone

    def find(self, key: str) -> DeclaredSetting:
        """The setting with this key.

        Raises:
            SettingsInvalid: it does not exist; the hint names the nearest (SETTINGS_INVALID).
        """
        if isinstance(key, str) and (row := self._rows.get(key)) is not None:
            return row
        finding = self.unknown(key)
        raise SettingsInvalid(f"{key}: {finding.message}", hint=finding.hint, findings=(finding,), key=key)

    def unknown(self, key: str) -> Finding:
        """The message about an undeclared key."""
        if not isinstance(key, str):
            return _finding(
                f"{key!r:.80}",
                f"the key of a setting is text, got {type(key).__name__}",
                "write extensions.<plugin>.<option>",
            )
        reason, fix = self._withheld(key.removeprefix(PREFIX).partition(".")[0])
        if reason:
            return _finding(key, reason, fix)
        close = did_you_mean(key, self._rows)
        if not close and not key.startswith(PREFIX):
            close = next((suggestion([r.key]) for r in self._rows.values() if did_you_mean(key, [r.option])), "")
        return _finding(key, "there is no such setting", close or "`tavern config show` lists all settings")

    def of(self, plugin: str, tool: str = "") -> list[DeclaredSetting]:
        """The settings of a plugin itself, or of one of its tools."""
        outdated = self._outdated.get(plugin, ())
        return [row for row in self._owned.get(plugin, {}).values() if row.tool == tool and row.key not in outdated]

    def all_of(self, plugin: str) -> list[DeclaredSetting]:
        """The settings of a plugin and of all its tools."""
        return list(self._owned.get(plugin, {}).values())

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[DeclaredSetting]:
        return iter(list(self._rows.values()))


def _row(
    plugin: str, given: SettingItem | Mapping[str, Any], tool: str, findings: list[Finding]
) -> DeclaredSetting | None:
    from tavern_core.model.setting_declaration import SettingItem

    if isinstance(given, SettingItem):
        item = given
    else:
        try:
            item = SettingItem.model_validate(dict(given))
        except (ValidationError, TypeError, ValueError) as error:
            findings.append(_finding(_named(given), f"is not a setting: {_said(error, given)}"))
            return None
    start = f"{PREFIX}{plugin}.{tool}." if tool else f"{PREFIX}{plugin}."
    if tool:
        # In a tool's own file the option stands alone; the full key is accepted as well.
        key = item.key if item.key.startswith(start) else start + item.key
    else:
        key = item.key
        if (problem := key_problem(key, plugin)) is not None:
            findings.append(_finding(key, problem.message, problem.hint))
            return None
    findings += [_finding(key, p.located, p.hint) for p in setting_problems(item)]
    return DeclaredSetting(key, plugin, key.removeprefix(start), item, tool)


def _named(given: Any) -> str:
    return str(given.get("key", "?"))[:200] if isinstance(given, Mapping) else type(given).__name__


def _said(error: Exception, given: Any) -> str:
    from tavern_core.model.pydantic_errors import explain
    from tavern_core.model.setting_declaration import SettingItem

    if not isinstance(error, ValidationError):
        return str(error)
    return "; ".join(each.located for each in explain(error, given, SettingItem)[:3])


def _finding(key: str, message: str, hint: str = "") -> Finding:
    return Finding(SettingsInvalid.code, message, hint, Location(key))
