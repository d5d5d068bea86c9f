"""An agent profile: which tools one agent may see and call (seed 000 §4.4.1, §11.1)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from tavern_core.model.language import Language, language_of


class AgentBudget(BaseModel):
    """What one run of an agent may use. None: no limit."""

    model_config = ConfigDict(defer_build=True, extra="forbid", frozen=True)

    steps: Annotated[int, Field(gt=0)] = 25
    """Requests to the model."""
    calls: Annotated[int, Field(ge=0)] = 100
    """Calls of tools."""
    tokens: Annotated[int, Field(gt=0)] | None = None
    """Of all requests and answers together."""
    seconds: Annotated[float, Field(gt=0)] | None = 600
    """From the start, time that people need for answers excluded."""
    money: Annotated[float, Field(gt=0)] | None = None
    """In `currency`; a model without a known price is refused."""
    currency: str = "USD"


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
    model: str = ""
    """Name of the language model (`tavern llms list`); empty: the only one."""
    model_options: dict[str, Any] = Field(default_factory=dict)
    """``temperature``, ``max_tokens`` and other options of the model."""
    prompt: str | dict[str, Any] = ""
    """Template of the system prompt (a mapping is the prompt of another system and is not used); ``{{{system:available_tools}}}`` is the manual of the inventory. Empty: the built-in one."""
    budget: AgentBudget = AgentBudget()
    context_tokens: Annotated[int, Field(gt=0)] = 32_000
    """Tokens of the prompt and the conversation that are sent to the model at most."""
    knowledge: tuple[str, ...] = ()
    """Folders of Markdown, relative to the profile's file, or ids of knowledge bases (``kb:name``)."""
    skills: tuple[str, ...] = ()
    """Names of skills (`tavern skills list`)."""
    deliberation_workflow: str = ""
    """Id of the workflow that makes each decision of the agent, instead of one request to the model."""
    calling: Literal["tam", "native", "both"] = "both"
    """How the agent calls tools: TAM in its text, native tool calls, or either."""
    many_blocks: bool = False
    """Let the model write several TAM blocks in one answer; otherwise it is stopped after the first."""
    after_untrusted: Annotated[
        Literal["ask", "deny", "allow"], Field(validation_alias=AliasChoices("after_untrusted", "afterUntrusted"))
    ] = "ask"
    """What happens to calls that write, send or destroy after the agent has read untrusted content."""
    config: dict[str, Any] = Field(default_factory=dict)
