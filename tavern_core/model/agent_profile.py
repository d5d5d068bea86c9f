"""An agent profile: which tools one agent may see and call (seed 000 §4.4.1, §11.1)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, AliasGenerator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr
from pydantic.alias_generators import to_camel

from tavern_core.model.message_translation import Language, language_of


class AgentBudget(BaseModel):
    """Limits for one run of an agent. None: no limit."""

    model_config: ClassVar[ConfigDict] = ConfigDict(defer_build=True, extra="forbid", frozen=True, strict=True)

    steps: Annotated[int, Field(gt=0, le=1_000_000)] = 25
    """Requests to the model."""
    calls: Annotated[int, Field(ge=0, le=1_000_000)] = 100
    """Calls of tools."""
    tokens: Annotated[int, Field(gt=0, le=1_000_000_000_000)] | None = None
    """Tokens of all requests and answers together."""
    seconds: Annotated[float, Field(gt=0, le=31_536_000)] | None = 600
    """Time from the start, without the time that people need for answers."""
    money: Annotated[float, Field(gt=0, le=1_000_000_000)] | None = None
    """In `currency`; a model without a known price is refused."""
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    """Three letters of ISO 4217."""


class AgentProfile(BaseModel):
    """agent_profile.json. `tool_ids_inventory` is the only declaration of the agent's tools.

    All other keys may be written in camelCase, too. Keys of other systems are stored and ignored, because a profile may be shared
    with them.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        defer_build=True,
        extra="allow",
        frozen=True,
        alias_generator=AliasGenerator(validation_alias=lambda name: AliasChoices(name, to_camel(name))),
    )

    name: str = ""
    """Default: the file's stem."""
    description: str = ""
    """What the agent is; the built-in prompt begins with it."""
    tool_ids_inventory: Annotated[tuple[str, ...], Field(validation_alias="tool_ids_inventory")] = ()
    capabilities: tuple[str, ...] | None = None
    """What the agent's calls may do at most; None: the profile sets no limit."""
    language: Annotated[Language | None, BeforeValidator(language_of)] = None
    """The language of the agent's manual and feedback (``zh-CN`` is ``zh``); None or another: that of the host."""
    wire_names: dict[str, str] = Field(default_factory=dict)
    """Tool id → the name under which MCP clients see it; others have a name made from their id."""
    listing: Literal["all", "search"] = "all"
    """The tools in the lists of MCP clients: all, or only one that finds tools and one that calls them."""
    model: str | dict[str, Any] = ""
    """Name of the language model (`tavern llms list`); empty: the only one. A mapping is the model of another system and is not used."""
    model_options: dict[str, Any] = Field(default_factory=dict)
    """``temperature``, ``max_tokens`` and other options of the model."""
    prompt: str | dict[str, Any] = ""
    """Template of the system prompt, or ``file:prompt.md`` in the profile's folder; empty: the built-in one. ``{{{system:available_tools}}}`` is
    the manual of the inventory, ``{{{system:skills}}}`` and ``{{{system:knowledge}}}`` what fits the task. A mapping is the prompt of another system
    and is not used."""
    budget: AgentBudget = AgentBudget()
    """Limits for one run of the agent."""
    context_tokens: Annotated[int, Field(gt=0)] = 32_000
    """Tokens of the prompt and the conversation that are sent to the model at most; the prompt has at most half of them."""
    knowledge: tuple[str, ...] = ()
    """Knowledge bases of tavern.yaml (``kb:name``), or folders of Markdown in the folder of the profile's file."""
    skills: tuple[str, ...] = ()
    """Names of skills (`tavern skills list`) that the prompt describes; their tools belong into the inventory."""
    deliberation_workflow: str = ""
    """Id of the workflow that makes each decision of the agent, instead of one request to the model."""
    calling: Literal["tam", "native", "both"] = "both"
    """How the agent calls tools: TAM in its text, native tool calls, or either."""
    many_blocks: bool = False
    """Let the model write several TAM blocks in one answer; otherwise it is stopped after the first."""
    after_untrusted: Literal["ask", "deny", "allow"] = "ask"
    """What happens to calls that write, send or destroy after the agent has read untrusted content."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Values for the agent's own programs; the host does not read them."""
    _folder: str = PrivateAttr("")

    @property
    def model_name(self) -> str:
        """`model`, if it is a name."""
        return self.model if isinstance(self.model, str) else ""

    @property
    def folder(self) -> str:
        """The folder of its file, for the files that it names; empty: it was not read from a file. No value of a profile sets it."""
        return self._folder

    def placed(self, folder: str) -> AgentProfile:
        """A copy of the profile whose file is in `folder`."""
        copy = self.model_copy()
        copy._folder = folder
        return copy
