"""Everything about the tools of one host, in one object."""

from __future__ import annotations

from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.catalogue.descriptions import Descriptions
from tavern_core.kernel.catalogue.profile_resolution import Inventories
from tavern_core.kernel.catalogue.tool_spec_cache import ToolSpecs
from tavern_core.kernel.catalogue.tools import Tools
from tavern_core.kernel.plugins.host_registries import UpstreamLists
from tavern_core.kernel.plugins.reconciler import Reconciler


@dataclass(frozen=True, slots=True)
class ToolCatalogue:
    """The tools of one host: their definitions, their visibility, and their descriptions for models."""

    specs: ToolSpecs
    profiles: Inventories
    upstreams: UpstreamLists | None
    tools: Tools
    """`tavern.tools`."""
    descriptions: Descriptions

    @classmethod
    def build(cls, profiles: Inventories, upstreams: UpstreamLists | None, reconciler: Reconciler) -> ToolCatalogue:
        """The catalogue of `reconciler`'s plugins; nothing is listed yet."""
        tools = Tools(profiles, upstreams, reconciler)
        return cls(profiles.specs, profiles, upstreams, tools, Descriptions(tools, profiles.specs, profiles))
