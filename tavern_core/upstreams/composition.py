"""The upstreams of one host, built from its configuration; a host without any imports nothing more than this module's neighbours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tavern_core.contract.protocols import Sandbox
from tavern_core.frozen import dataclass
from tavern_core.kernel.catalogue.tool_specs import ToolSpecs
from tavern_core.kernel.foundation import Foundation
from tavern_core.kernel.grants.grant_store import GrantStore
from tavern_core.kernel.plugins.candidate import Candidate
from tavern_core.kernel.plugins.effective_scopes import Reach
from tavern_core.kernel.plugins.record import Record
from tavern_core.model.call import Rights
from tavern_core.model.tool import ToolSpec
from tavern_core.upstreams.catalogue import Catalogue
from tavern_core.upstreams.entries import Entry, read_entries
from tavern_core.upstreams.executor import UpstreamExecutor
from tavern_core.upstreams.facilities import Granted
from tavern_core.upstreams.upstreams import Upstreams

OWNER: Final = "core-upstreams"
_ADAPTERS: Final = ("core-adapters", "tavern_core.builtin.adapters", False)


@dataclass(frozen=True, slots=True)
class UpstreamParts:
    """What is known of the upstreams before any plugin is."""

    base: Foundation
    catalogue: Catalogue
    entries: Mapping[str, Entry]

    @classmethod
    def read(cls, base: Foundation) -> UpstreamParts:
        """Those of the configuration; nothing is asked of them."""
        catalogue = Catalogue(base.home / "cache" / "upstreams")
        return cls(base, catalogue, read_entries(base.loaded, catalogue))

    def builtin(self, plugins: Sequence[tuple[str, str, bool]]) -> Sequence[tuple[str, str, bool]]:
        """The host's own plugins, with the adapters where they are needed."""
        return (*plugins, _ADAPTERS) if self.entries else plugins

    def candidates(self) -> list[Candidate]:
        """The upstreams as plugins."""
        return [entry.candidate() for entry in self.entries.values()]

    def build(
        self, specs: ToolSpecs, grants: GrantStore, reach: Reach, sandbox_of: Callable[[Record], Sandbox]
    ) -> Upstreams:
        """`tavern.upstreams`, with an executor for each kind that is configured."""
        lifecycle, tables = specs.lifecycle, specs.lifecycle.tables

        def secret(name: str, reference: Any) -> str:
            secrets = self.base.config.secrets if reference is None else {name: reference}
            return tables.settings.secret(name, secrets)

        def rights(record: Record) -> Rights:
            own = specs.rights(record, ToolSpec(record.name))
            scopes, places = tuple(reach.scopes(record).items()), tuple(reach.places(record).items())
            return replace(own, scopes=scopes, places=places)

        def granted(plugin: str) -> Granted:
            return Granted(lambda: lifecycle.records[plugin], secret, sandbox_of, rights)

        upstreams = Upstreams(self.entries, self.catalogue, lifecycle, grants, granted)
        if self.entries:
            executor = UpstreamExecutor(upstreams, self.base.tool_threads)
            kinds = {entry.config.kind for entry in self.entries.values()}
            tables.contributions.add_all(OWNER, {"executors": dict.fromkeys(kinds, executor)}, source="builtin")
            tables.engines.listed = upstreams.find
        return upstreams
