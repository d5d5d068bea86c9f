"""The prompt with which a run begins: that of the profile (`prompt.py`), and how long results are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tavern_core.agents.host_parts import Parts
from tavern_core.agents.prompt import Prompt
from tavern_core.agents.read_result_tool import READ_RESULT
from tavern_core.kernel.access.profiles import Profile
from tavern_core.model.call import CallContext
from tavern_core.model.message_translation import Language
from tavern_core.schema.provider_tool_export import export_tool

_LONG_RESULTS: Final[Mapping[Language, str]] = {
    "en": f"Long results are shortened and name an address (artifact:…). {READ_RESULT} reads on: artifact, start, length (bytes).",
    "zh": f"过长的结果会被缩短并给出地址（artifact:…）。可用 {READ_RESULT} 继续读取：artifact、start、length（字节）。",
}


def build_prompt(parts: Parts, profile: Profile, context: CallContext, task: str, window: int) -> Prompt:
    """The prompt for one task. To be called in a thread: it may activate plugins.

    Args:
        context: of the agent, which names the profile.
        window: tokens of a request; the prompt has half of them.
    """
    assert context.profile is not None
    closing = _LONG_RESULTS[parts.language(profile)]
    return parts.prompts.build(context.profile, task, context, max_tokens=max(window // 2, 1), closing=closing)


def native_tools(parts: Parts, profile: Profile, prompt: Prompt) -> list[dict[str, Any]]:
    """The schemas for the parameter `tools` of the model; empty for a profile that calls by text alone."""
    if profile.written.calling == "tam":
        return []
    return [*(dict(tool) for tool in prompt.tools), export_tool(parts.engines.inner[READ_RESULT], "openai")]


def warnings_of(prompt: Prompt) -> tuple[str, ...]:
    """What a person should know about the prompt: odd fields of the profile, and what had no room."""
    found = [f"{finding.located}; {finding.hint}" if finding.hint else finding.located for finding in prompt.findings]
    return (*found, *(f"{part.part}: {part.reason}: {', '.join(part.names)}".rstrip(": ") for part in prompt.left_out))
