"""The facts about a plugin that the host needs before activation, small enough to store hundreds of them.

A `ManifestFacts` is the light half of a manifest: it comes out of the index without pydantic and answers every question asked at
open (is it granted, does it start, what must come first, what does it contribute). The full Manifest is built on demand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from tavern_core.frozen_dataclass import dataclass

if TYPE_CHECKING:
    from tavern_core.model.manifest import Manifest

CONTRIBUTIONS: Final = (
    "services", "commands", "channels", "providers", "executors", "adapters", "namespaces", "profiles", "workflows",
    "settings", "routes", "ui", "llms", "rankers", "resources", "prompts", "jobStores", "hookspecs",
)  # fmt: skip
"""Sections that declare names (besides `nodes` and `tools`), as written in YAML."""


@dataclass(frozen=True, slots=True)
class ManifestFacts:
    """The light half of a manifest. Section names are as in YAML (camelCase)."""

    name: str
    version: str = ""
    display_name: str = ""
    description: str = ""
    requested: frozenset[str] = frozenset()
    """Canonical permission ids (contract/permissions.py)."""
    start: bool = False
    isolation: str = "none"
    sections: frozenset[str] = frozenset()
    """The present sections, with `tools`, `nodes`, `frontend` and `configOptions`: needed for contribute-hooks."""
    declared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Section → the names it declares: ``{"commands": ("greet",)}``."""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    depends_on: Mapping[str, str] = field(default_factory=dict)
    slots: tuple[str, ...] = ()
    requires_host: str = ""
    tested_host: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    tools_entry: str = ""
    """The folder of the tool files; empty when there is none."""
    off: str = ""
    """Why nothing of it runs here, whatever is granted: for folders in the formats of other systems."""

    def to_json(self) -> list[Any]:
        """The facts as one JSON array, in the order of the fields."""
        return [
            self.name, self.version, self.display_name, self.description, sorted(self.requested), self.start,
            self.isolation, sorted(self.sections), self.declared, self.before, self.after, self.depends_on, self.slots,
            self.requires_host, self.tested_host, self.aliases, self.tools_entry, self.off,
        ]  # fmt: skip

    @classmethod
    def from_json(cls, row: list[Any]) -> ManifestFacts:
        """The inverse of `to_json`."""
        (name, version, display, description, requested, start, isolation, sections, declared, before, after, depends,
         slots, host, tested, aliases, tools, off) = row  # fmt: skip
        return cls(
            name, version, display, description, frozenset(requested), start, isolation, frozenset(sections),
            {section: tuple(names) for section, names in declared.items()} if declared else {},
            tuple(before), tuple(after), depends, tuple(slots), host, tested, aliases, tools, off,
        )  # fmt: skip


def facts_of(manifest: Manifest) -> ManifestFacts:
    """The light half of a manifest."""
    from tavern_core.contract.permissions import requested_permissions
    from tavern_core.model.manifest import Entry

    dumped = {name: getattr(manifest, "job_stores" if name == "jobStores" else name) for name in CONTRIBUTIONS}
    sections = {name for name, value in dumped.items() if value is not None}
    sections |= {name for name in ("tools", "nodes", "frontend", "skills") if getattr(manifest, name) is not None}
    if manifest.config_options:
        sections.add("configOptions")
    return ManifestFacts(
        name=manifest.name,
        version=manifest.version,
        display_name=manifest.display_name,
        description=manifest.description,
        requested=requested_permissions(manifest),
        start=manifest.start,
        isolation=manifest.isolation,
        sections=frozenset(sections),
        declared={
            name: tuple(item.name for item in value) for name, value in dumped.items() if isinstance(value, tuple)
        },
        before=manifest.before,
        after=manifest.after,
        depends_on=dict(manifest.depends_on),
        slots=manifest.slots,
        requires_host=manifest.requires.host,
        tested_host=manifest.requires.tested,
        aliases=dict(manifest.aliases),
        tools_entry=manifest.tools.entry if isinstance(manifest.tools, Entry) else "",
    )
