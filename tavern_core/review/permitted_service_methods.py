"""The methods that `service:use` of a service allows: from the service if it is active, else from the source of the plugin that declares it.

For the operator who decides about the permission. Nothing is imported or run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from tavern_core.contract.published_methods import changing_methods, published
from tavern_core.kernel.files.plugin_file_reader import FolderFiles
from tavern_core.kernel.plugins.candidate import PluginCandidate
from tavern_core.kernel.plugins.plugin_record import PluginRecords
from tavern_core.kernel.plugins.services import Services


class ReadOnlyServiceMethods:
    """Knows which methods of a service are marked `@read_only`.

    Args:
        records: every plugin.
    """

    def __init__(self, services: Services, records: PluginRecords) -> None:
        self._services = services
        self._records = records
        self._read: dict[str, tuple[object, Mapping[str, tuple[str, ...]]]] = {}
        """Plugin → the stamps of its files, and service → its methods that are marked in the source."""

    def __call__(self, name: str) -> tuple[str, ...] | None:
        """The methods of service `name` that read permission allows, sorted; None if unknown."""
        if (service := self._services.get(name)) is not None:
            return tuple(sorted({*published(service)} - changing_methods(service)))
        candidates = [record.candidate for record in self._records.values()]
        bringing = [c for c in candidates if name in c.facts.declared.get("services", ()) and name not in c.overrides]
        return self._by_source(bringing[0]).get(name) if len(bringing) == 1 else None

    def _by_source(self, candidate: PluginCandidate) -> Mapping[str, tuple[str, ...]]:
        """The marked methods in the source of a plugin; read once for each state of its files."""
        if candidate.folder is None:
            return {}
        files = FolderFiles(candidate.folder)
        stamps, cached = list(files.files()), self._read.get(candidate.name)
        if cached is None or cached[0] != stamps:
            cached = self._read[candidate.name] = stamps, dict(_shown_by(files))
        return cached[1]


def _shown_by(files: FolderFiles) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Service → its marked methods, for services whose source shows all methods."""
    from tavern_core.review.hookimpl_scan import plugin_sources, scan_sources

    scan = scan_sources(plugin_sources(files))
    names = Counter(service.name for service in scan.services)
    for service in scan.services if not scan.findings else ():
        is_seen = service.is_complete and all(method.effect != "unknown" for method in service.methods)
        if is_seen and names[service.name] == 1:
            yield service.name, tuple(method.name for method in service.methods if method.effect == "looks")
