"""The settings of plugins that are not active: from their manifests, their tools, and their last activation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tavern_core.errors import SettingsInvalid
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.plugins.plugin_record import PluginRecord, PluginRecords
from tavern_core.kernel.settings.store import Declaration

if TYPE_CHECKING:
    from tavern_core.kernel.plugins.candidate_discovery import IndexedSpecs


class PluginSettings:
    """Reads them on demand, not at every start (`settings.store.UndeclaredSettings`)."""

    def __init__(self, records: PluginRecords, cache: IndexedSpecs, diagnostics: Diagnostics) -> None:
        self._records = records
        self._cache = cache
        self._diagnostics = diagnostics

    def take(self, plugin: str | None) -> Iterator[tuple[str, Iterable[Declaration]]]:
        """See `UndeclaredSettings.take`."""
        chosen = list(self._records.values()) if plugin is None else filter(None, [self._records.get(plugin)])
        for record in chosen:
            if not record.settings_complete and record.has_settings:
                record.settings_complete = True
                yield record.name, self._declarations(record)

    def refused(self, plugin: str, error: SettingsInvalid) -> None:
        """See `UndeclaredSettings.refused`."""
        self._diagnostics.add(error.code, error.message, plugin=plugin, hint=error.hint, severity="error")

    def withheld(self, plugin: str) -> tuple[str, str]:
        """See `UndeclaredSettings.withheld`."""
        record = self._records.get(plugin)
        if record is None or record.has_settings:
            return "", ""
        return f"plugin {plugin} is {record.state}: {record.reason}", record.fix

    def may_have_more(self, plugin: str) -> bool:
        """See `UndeclaredSettings.may_have_more`."""
        record = self._records.get(plugin)
        if record is None or record.active or "settings" not in record.candidate.facts.sections:
            return False
        return record.coded_settings is None and self._cache.settings(record.candidate) is None

    def _declarations(self, record: PluginRecord) -> Iterator[Declaration]:
        if "configOptions" in record.candidate.facts.sections:
            yield record.candidate.origin.manifest().config_options, None
        known = self._cache.specs(record)
        for spec in {**record.drafts, **known}.values():
            if spec.config_schema:
                yield spec.config_schema, spec.local_name
        if "settings" in record.candidate.facts.sections:
            yield self._cache.settings(record.candidate) or (), None
