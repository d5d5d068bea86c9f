"""The parts of a host that agents use."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.message_translation import Language, of_the_locale

if TYPE_CHECKING:
    from tavern_core.agents.profile_resolution import KnownNames
    from tavern_core.flow.composition import WorkflowServices
    from tavern_core.kernel.access.profiles import Profile
    from tavern_core.kernel.calls.pipeline import Pipeline
    from tavern_core.kernel.catalogue.call_plan import InternalOperation
    from tavern_core.kernel.catalogue.tool_catalogue import ToolCatalogue
    from tavern_core.kernel.foundation import Foundation
    from tavern_core.kernel.plugins.lazy_contribution_lookup import LazyContributions
    from tavern_core.kernel.plugins.lifecycle import Lifecycle
    from tavern_core.kernel.state import State


@dataclass(frozen=True, slots=True)
class AgentServices:
    """The parts of one host."""

    catalogue: ToolCatalogue
    pipeline: Pipeline
    flow: WorkflowServices
    state: State
    contributions: LazyContributions
    reading: InternalOperation
    """The operation that returns further parts of a long result."""
    names: KnownNames

    @property
    def base(self) -> Foundation:
        """The parts that all others use."""
        return self.catalogue.specs.base

    @property
    def lifecycle(self) -> Lifecycle:
        """The plugins."""
        return self.catalogue.specs.lifecycle

    def language(self, profile: Profile) -> Language:
        """The language in which the host speaks to an agent."""
        return profile.language or self.base.config.language or of_the_locale(os.environ)
