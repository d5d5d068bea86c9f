"""What `service:use` of a service reaches: asked of the service where it is there, else read in the source of the plugin that declares it.

For whoever decides about the permission. Nothing is imported or run for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tavern_core.contract.published import changing_methods, published
from tavern_core.kernel.check.source_scan import plugin_sources, scan_sources
from tavern_core.kernel.files.plugin_files import FolderFiles
from tavern_core.kernel.life.candidates import Candidate
from tavern_core.kernel.life.services import Services


class ReachedByUse:
    """Knows which methods of a service are marked `@read_only`.

    Args:
        candidates: every plugin that is there.
    """

    def __init__(self, services: Services, candidates: Callable[[], Iterable[Candidate]]) -> None:
        self._services = services
        self._candidates = candidates

    def __call__(self, name: str) -> tuple[str, ...] | None:
        """The methods of service `name` that the right to look reaches, sorted; None where that cannot be known."""
        if (service := self._services.get(name)) is not None:
            return tuple(sorted({*published(service)} - changing_methods(service)))
        bringing = [c for c in self._candidates() if name in c.facts.declared.get("services", ()) and name not in c.overrides]
        return self._read(name, bringing[0]) if len(bringing) == 1 else None

    def _read(self, name: str, candidate: Candidate) -> tuple[str, ...] | None:
        if candidate.folder is None:
            return None
        scan = scan_sources(plugin_sources(FolderFiles(candidate.folder)))
        found = [service for service in scan.services if service.name == name]
        if len(found) != 1 or scan.findings or not found[0].is_complete:
            return None
        if any(method.effect == "unknown" for method in found[0].methods):
            return None
        return tuple(method.name for method in found[0].methods if method.effect == "looks")
