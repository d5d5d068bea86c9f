"""The prompt of a run: that of its profile and task, and what the loop adds to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tavern_core.agents.model_requests import window_of
from tavern_core.agents.notices import READ_RESULT
from tavern_core.agents.parts import Parts
from tavern_core.agents.profile_fields import Known
from tavern_core.agents.prompt import Prompt, PromptBuilder
from tavern_core.kernel.access.profiles import Profile
from tavern_core.model.call import CallContext
from tavern_core.model.language import Language

_LONG_RESULTS: Final[Mapping[Language, str]] = {
    "en": f"Long results are shortened and name an address (artifact:…). {READ_RESULT} reads on: artifact, start, length (bytes).",
    "zh": f"过长的结果会被缩短并给出地址（artifact:…）。可用 {READ_RESULT} 继续读取：artifact、start、length（字节）。",
}


def build_prompt(parts: Parts, profile: Profile, context: CallContext, task: str, model: str | None = None) -> Prompt:
    """The prompt for one task; in async code call it in a thread.

    Args:
        context: the caller of the agent's calls; its `profile` is that of the agent.
        model: the model that the run uses and that exists; None: look whether the profile's exists.
    """

    def known() -> Known:
        models = parts.models.names() if model is None else None
        return Known(models, tuple(parts.workflows.workflow_files.list()), parts.skills.list())

    window = window_of(parts, profile, model) if model is not None else profile.written.context_tokens
    limits = parts.base.config.limits
    builder = PromptBuilder(parts.profiles.now, parts.descriptions, parts.knowledge, known, limits.manual_chars)
    given = context.profile if context.profile is not None else profile.written
    closing = _LONG_RESULTS[parts.language(profile)]
    return builder.build(given, task, context, max_tokens=max(window // 2, 1), closing=closing)
