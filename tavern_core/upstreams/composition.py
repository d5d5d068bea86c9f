"""Builds the upstreams of one host from its configuration.

A host without upstreams imports only this module.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tavern_core.contract.protocols import BoundTool, Executor, ToolHome
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.catalogue.profile_resolution import Inventories
from tavern_core.kernel.foundation import Foundation
from tavern_core.kernel.grants.grant_store import GrantStore
from tavern_core.kernel.plugins.candidate import PluginCandidate
from tavern_core.kernel.plugins.effective_scopes import EffectiveScopes
from tavern_core.kernel.plugins.tool_homes import SandboxSource
from tavern_core.model.tool import ENDPOINT_KINDS, ToolSpec

if TYPE_CHECKING:
    from tavern_core.upstreams.listing_cache import ListingCache
    from tavern_core.upstreams.quarantine import UpstreamQuarantine
    from tavern_core.upstreams.upstream_plugin_candidates import UpstreamEntry
    from tavern_core.upstreams.upstreams import Upstreams

OWNER: Final = "core-upstreams"
CACHE: Final = Path("cache", "upstreams")
"""Relative to the state folder."""


@dataclass(frozen=True, slots=True)
class ConfiguredUpstreams:
    """The upstreams of the configuration, before any plugin is known."""

    base: Foundation
    grants: GrantStore
    entries: Mapping[str, UpstreamEntry]
    cache: ListingCache | None = None
    """None: there are no entries."""
    quarantine: UpstreamQuarantine | None = None
    """None: there are no entries."""

    @classmethod
    def read(cls, base: Foundation, grants: GrantStore) -> ConfiguredUpstreams:
        """Read the upstreams of the configuration, without connecting to them."""
        if not base.config.upstreams:
            return cls(base, grants, {})
        from tavern_core.upstreams.listing_cache import ListingCache
        from tavern_core.upstreams.quarantine import UpstreamQuarantine
        from tavern_core.upstreams.upstream_plugin_candidates import read_entries

        cache = ListingCache(base.home / CACHE)
        quarantine = UpstreamQuarantine(grants, cache)
        return cls(base, grants, read_entries(base.loaded, cache, quarantine.quarantined), cache, quarantine)

    def candidates(self) -> list[PluginCandidate]:
        """The upstreams as plugin candidates."""
        return [entry.candidate() for entry in self.entries.values()]

    def build(self, inventories: Inventories, reach: EffectiveScopes, sandboxes: SandboxSource) -> UpstreamsOnDemand:
        """Create `tavern.upstreams` and the executors of all kinds that are configured or may name an endpoint."""
        tables = inventories.specs.lifecycle.tables
        connected = UpstreamsOnDemand(partial(self._build_parts, inventories, reach, sandboxes))
        kinds = ENDPOINT_KINDS.union(entry.config.kind for entry in self.entries.values())
        tables.contributions.add_all(OWNER, {"executors": dict.fromkeys(kinds, connected)}, source="builtin")
        return connected

    def _build_parts(
        self, inventories: Inventories, reach: EffectiveScopes, sandboxes: SandboxSource
    ) -> tuple[Upstreams, Executor]:
        from tavern_core.upstreams.connections import UpstreamConnections
        from tavern_core.upstreams.document_reads import DocumentReads
        from tavern_core.upstreams.executor import UpstreamExecutor
        from tavern_core.upstreams.facilities import UpstreamGrants
        from tavern_core.upstreams.listing_cache import ListingCache
        from tavern_core.upstreams.listing_refresh import ListingRefresh
        from tavern_core.upstreams.quarantine import UpstreamQuarantine
        from tavern_core.upstreams.upstreams import Upstreams

        specs = inventories.specs
        granted = UpstreamGrants(specs, reach, sandboxes)
        cache = self.cache or ListingCache(self.base.home / CACHE)
        quarantine = self.quarantine or UpstreamQuarantine(self.grants, cache)
        connections = UpstreamConnections(self.entries, granted)
        reads = DocumentReads(
            granted, inventories, ListingRefresh(self.entries, cache, specs.lifecycle, connections, quarantine)
        )
        upstreams = Upstreams(self.entries, cache, specs.lifecycle, quarantine, connections, reads)
        return upstreams, UpstreamExecutor(self.entries, connections, quarantine, self.base.tool_threads)


class UpstreamsOnDemand:
    """`tavern.upstreams` and the executor of its tools, built when one of them is first needed. Thread-safe."""

    def __init__(self, make: Callable[[], tuple[Upstreams, Executor]]) -> None:
        self._make = make
        self._made: tuple[Upstreams, Executor] | None = None
        self._lock = threading.Lock()

    def __call__(self) -> Upstreams:
        return self._parts()[0]

    def bind(self, tool: ToolSpec, home: ToolHome, /) -> BoundTool:
        """See `contract.protocols.Executor`."""
        return self._parts()[1].bind(tool, home)

    async def leave(self) -> None:
        """Close every connection, if any could have been opened."""
        if self._made is not None:
            await self._made[0].close()

    def _parts(self) -> tuple[Upstreams, Executor]:
        with self._lock:
            if self._made is None:
                self._made = self._make()
        return self._made
