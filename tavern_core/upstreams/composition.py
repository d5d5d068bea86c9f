"""Builds the upstreams of one host from its configuration.

A host without upstreams imports only this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tavern_core.contract.protocols import Sandbox
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.catalogue.tool_spec_cache import ToolSpecs
from tavern_core.kernel.foundation import Foundation
from tavern_core.kernel.grants.grant_store import GrantStore
from tavern_core.kernel.plugins.candidate import Candidate
from tavern_core.kernel.plugins.effective_scopes import EffectiveScopes
from tavern_core.kernel.plugins.record import Record
from tavern_core.model.call import Rights
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.upstreams.listing_cache import Catalogue
    from tavern_core.upstreams.review import Quarantine
    from tavern_core.upstreams.upstream_plugin_candidates import Entry
    from tavern_core.upstreams.upstreams import Upstreams

OWNER: Final = "core-upstreams"
CACHE: Final = Path("cache", "upstreams")
"""Below the state folder."""
_ADAPTERS: Final = ("core-adapters", "tavern_core.builtin.adapters", False)


@dataclass(frozen=True, slots=True)
class UpstreamParts:
    """What is known of the upstreams before any plugin is."""

    base: Foundation
    grants: GrantStore
    entries: Mapping[str, Entry]
    catalogue: Catalogue | None = None
    """None: there are no entries."""
    quarantine: Quarantine | None = None
    """None: there are no entries."""

    @classmethod
    def read(cls, base: Foundation, grants: GrantStore) -> UpstreamParts:
        """Those of the configuration; nothing is asked of them."""
        if not base.config.upstreams:
            return cls(base, grants, {})
        from tavern_core.upstreams.listing_cache import Catalogue
        from tavern_core.upstreams.review import Quarantine
        from tavern_core.upstreams.upstream_plugin_candidates import read_entries

        catalogue = Catalogue(base.home / CACHE)
        quarantine = Quarantine(grants, catalogue)
        return cls(base, grants, read_entries(base.loaded, catalogue, quarantine.quarantined), catalogue, quarantine)

    def builtin(self, plugins: Sequence[tuple[str, str, bool]]) -> Sequence[tuple[str, str, bool]]:
        """The host's own plugins, with the adapters where they are needed."""
        return (*plugins, _ADAPTERS) if self.entries else plugins

    def candidates(self) -> list[Candidate]:
        """The upstreams as plugins."""
        return [entry.candidate() for entry in self.entries.values()]

    def build(
        self, specs: ToolSpecs, reach: EffectiveScopes, sandbox_of: Callable[[Record], Sandbox]
    ) -> Callable[[], Upstreams]:
        """What gives `tavern.upstreams`, built now with an executor for each kind that is configured; without any, at the first look."""
        connected = cache(partial(self._connected, specs, reach, sandbox_of))
        if self.entries:
            connected()
        return connected

    def _connected(
        self, specs: ToolSpecs, reach: EffectiveScopes, sandbox_of: Callable[[Record], Sandbox]
    ) -> Upstreams:
        from tavern_core.upstreams.connections import Connections
        from tavern_core.upstreams.executor import UpstreamExecutor
        from tavern_core.upstreams.facilities import Granted
        from tavern_core.upstreams.listing_cache import Catalogue
        from tavern_core.upstreams.review import Quarantine
        from tavern_core.upstreams.upstreams import Upstreams

        base, lifecycle, tables = self.base, specs.lifecycle, specs.lifecycle.tables

        def secret(name: str, reference: Any) -> str:
            secrets = base.config.secrets if reference is None else {name: reference}
            return tables.settings.secret(name, secrets)

        def rights(record: Record) -> Rights:
            own = specs.rights(record, ToolSpec(record.name))
            scopes, places = tuple(reach.scopes(record).items()), tuple(reach.places(record).items())
            return replace(own, scopes=scopes, places=places)

        def rights_of(plugin: str) -> Rights:
            return rights(lifecycle.records[plugin])

        def granted(plugin: str) -> Granted:
            return Granted(lambda: lifecycle.records[plugin], secret, sandbox_of, rights, base.known_secrets)

        catalogue = self.catalogue or Catalogue(base.home / CACHE)
        quarantine = self.quarantine or Quarantine(self.grants, catalogue)
        connections = Connections(self.entries, lifecycle, granted)
        upstreams = Upstreams(self.entries, catalogue, lifecycle, quarantine, connections, rights_of)
        if self.entries:
            executor = UpstreamExecutor(self.entries, connections, quarantine, base.tool_threads)
            kinds = {entry.config.kind for entry in self.entries.values()}
            tables.contributions.add_all(OWNER, {"executors": dict.fromkeys(kinds, executor)}, source="builtin")
            tables.engines.listed, tables.engines.relisted = upstreams.find, upstreams.refresh_used
        return upstreams
