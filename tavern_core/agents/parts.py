"""The parts of a host that runs of agents use, and the tool that reads results which were too long to show."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tavern_core.agents.notices import READ_RESULT
from tavern_core.agents.profile_fields import Known
from tavern_core.agents.prompt import PromptBuilder
from tavern_core.contract.stores import RecordStore
from tavern_core.contract.targets import PythonTarget
from tavern_core.flow.llm_calls import Models
from tavern_core.flow.workflows import Workflows
from tavern_core.frozen import dataclass
from tavern_core.kernel.access.profiles import Profile
from tavern_core.kernel.artifacts.artifacts import Artifacts
from tavern_core.kernel.calls.compiler import Compiler
from tavern_core.kernel.calls.pipeline import Pipeline
from tavern_core.kernel.catalogue.descriptions import Descriptions
from tavern_core.kernel.catalogue.profile_inventories import Inventories
from tavern_core.kernel.catalogue.tools import Tools
from tavern_core.kernel.catalogue.written_profiles import WrittenProfiles
from tavern_core.kernel.foundation import Foundation
from tavern_core.kernel.plugins.section_lookup import Sections
from tavern_core.kernel.plugins.tables import Engines
from tavern_core.model.language import Language, of_the_locale
from tavern_core.model.tool import ToolSpec

READ_CHARS: Final = 8_000
_PARAMETERS: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "artifact": {"type": "string", "description": "The address that the shortened result names: artifact:…"},
        "start": {"type": "integer", "minimum": 0, "default": 0, "description": "From which byte on."},
        "length": {"type": "integer", "minimum": 1, "maximum": READ_CHARS, "default": READ_CHARS, "description": "Bytes."},
    },
    "required": ["artifact"],
    "additionalProperties": False,
}  # fmt: skip


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
    engines: Engines
    prompts: PromptBuilder
    known_asleep: Callable[[], Known]
    """What a profile may name, as far as it is known without activating plugins."""

    @property
    def home(self) -> Path:
        return self.base.home

    def language(self, profile: Profile) -> Language:
        """The language in which the host speaks to an agent."""
        return profile.language or self.base.config.language or of_the_locale(os.environ)


def reading_tool(artifacts: Artifacts) -> ToolSpec:
    """The tool `READ_RESULT`: every agent may call it, and it sees the artifacts of its caller alone."""

    def read_result(artifact: str, start: int = 0, length: int = READ_CHARS) -> dict[str, Any]:
        known = artifacts.get(artifact)
        text = artifacts.read(artifact, start, length).decode("utf-8", "replace")
        end = min(start + length, known.size)
        return {"text": text, "start": start, "next": end if end < known.size else None, "size": known.size}

    return ToolSpec(
        READ_RESULT,
        "Reads on in a result that was too long to show, or that was left out of the conversation to save room.",
        plugin="core-system",
        input_schema=_PARAMETERS,
        read_only=True,
        impl=PythonTarget(read_result),
    )
