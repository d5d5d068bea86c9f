"""Looks up contributions for programs that embed the host; activates the plugins that declare them first."""

from __future__ import annotations

from typing import Any

from tavern_core.errors import UsageError
from tavern_core.kernel.plugins.contribution_registry import SECTIONS
from tavern_core.kernel.plugins.lifecycle import Lifecycle
from tavern_core.model.nearest import did_you_mean


class LazyContributions:
    """Looks objects up, after activating the plugins that declare them."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle, self._contributions = lifecycle, lifecycle.tables.contributions

    def all(self, section: str) -> dict[str, Any]:
        """All objects of one section.

        Raises:
            UsageError: there is no such section (USAGE).
        """
        if section not in SECTIONS:
            raise UsageError(
                f"there is no section {section!r}", hint=did_you_mean(section, SECTIONS) or ", ".join(SECTIONS)
            )
        self._lifecycle.tables.base.portal.run(self._lifecycle.activate_section(section))
        if section == "services":
            services = self._lifecycle.tables.services
            return {name: services[name] for name in services}  # without the host's own
        return self._contributions.all(section)

    async def one(self, section: str, name: str) -> Any:
        """An object of a section; see `Tavern.contribution`."""
        for record in list(self._lifecycle.records.values()):
            if name in record.candidate.facts.declared.get(section, ()):
                await self._lifecycle.activate(record.name)
                break
        return self._contributions.get(section, name)

    def inactive(self, section: str) -> bool:
        """Whether an inactive plugin declares something in a section."""
        records = self._lifecycle.records.values()
        return any(r.can_start and section in r.candidate.facts.sections for r in records)
