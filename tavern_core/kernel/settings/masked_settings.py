"""Settings as they are shown: one setting with its value, and what a save changed. Secrets are masked in both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.settings.secret_masking import mask

if TYPE_CHECKING:
    from tavern_core.model.settings import SettingItem


@dataclass(frozen=True, slots=True)
class Change:
    """One setting whose effective value changed."""

    key: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class SavedChanges:
    """What a save did."""

    changes: tuple[Change, ...] = ()
    by: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(change.key for change in self.changes)


@dataclass(frozen=True, slots=True)
class DescribedSetting:
    """One setting as a console or a command line shows it."""

    key: str
    plugin: str
    tool: str
    item: SettingItem
    value: Any
    origin: str
    """``default``, where the instance's configuration has it, or the user's file."""
    is_secret: bool
    problem: str = ""
    """Why a stored value is not used, or that a required one is missing."""

    @property
    def group(self) -> str:
        """What it is grouped by inside its plugin."""
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
