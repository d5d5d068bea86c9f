"""The parts of a host that runs of agents use."""

from __future__ import annotations

import os
from collections.abc import Callable

from tavern_core.agents.profile_resolution import Known
from tavern_core.agents.prompt import PromptBuilder
from tavern_core.contract.stores import RecordStore
from tavern_core.flow.llm_calls import Models
from tavern_core.flow.workflows import Workflows
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.access.profiles import Profile
from tavern_core.kernel.artifacts.artifacts import Artifacts
from tavern_core.kernel.calls.compiler import Compiler
from tavern_core.kernel.calls.pipeline import Pipeline
from tavern_core.kernel.catalogue.call_plan import Inner
from tavern_core.kernel.catalogue.descriptions import Descriptions
from tavern_core.kernel.catalogue.profile_resolution import Inventories, WrittenProfiles
from tavern_core.kernel.catalogue.tools import Tools
from tavern_core.kernel.foundation import Foundation
from tavern_core.kernel.plugins.lazy_contribution_lookup import Sections
from tavern_core.model.message_translation import Language, of_the_locale


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one host."""

    base: Foundation
    pipeline: Pipeline
    compiler: Compiler
    tools: Tools
    descriptions: Descriptions
    profiles: Inventories
    written: WrittenProfiles
    sections: Sections
    models: Models
    workflows: Workflows
    artifacts: Artifacts
    records: RecordStore
    reading: Inner
    """The operation that reads on in a long result."""
    prompts: PromptBuilder
    known_inactive: Callable[[], Known]
    """What a profile may name, as far as it is known without activating plugins."""

    def language(self, profile: Profile) -> Language:
        """The language in which the host speaks to an agent."""
        return profile.language or self.base.config.language or of_the_locale(os.environ)
