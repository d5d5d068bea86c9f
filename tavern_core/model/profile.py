"""An agent profile: which tools one agent may see and call (seed 000 §4.4.1, §11.1)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from tavern_core.model.language import Language, language_of


class AgentProfile(BaseModel):
    """agent_profile.json. `tool_ids_inventory` is the only declaration of the agent's tools.

    Keys of other systems are stored and ignored, because a profile may be shared with them.
    """

    model_config = ConfigDict(defer_build=True, extra="allow", frozen=True)

    name: str = ""
    """Default: the file's stem."""
    description: str = ""
    tool_ids_inventory: tuple[str, ...] = ()
    capabilities: tuple[str, ...] | None = None
    """What the agent's calls may do at most; None: the profile sets no limit."""
    language: Annotated[Language | None, BeforeValidator(language_of)] = None
    """The language of the agent's manual and feedback (``zh-CN`` is ``zh``); None or another: that of the host."""
    wire_names: dict[str, str] = Field(default_factory=dict)
    """Tool id → the name under which MCP clients see it; others have a name made from their id."""
    listing: Literal["all", "search"] = "all"
    """What MCP clients are listed: every tool, or a tool that finds them and one that calls them."""
    config: dict[str, Any] = Field(default_factory=dict)
