"""The lists in a prompt: skills, and passages of knowledge. As many items are shown as there is room for."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Final, Literal

from tavern_core.agents.profile_resolution import KNOWLEDGE, SKILLS
from tavern_core.agents.prompt_texts import TEXTS
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.catalogue.parameter_text import fold_lines, harmless
from tavern_core.model.knowledge import Passage
from tavern_core.model.message_translation import Language
from tavern_core.model.safe_printing import seen
from tavern_core.model.skill import Skill
from tavern_core.model.token_estimate import tokens_of
from tavern_core.tam import neutralise

_END: Final = re.compile("</(?=passage)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PromptSection:
    """A list in a prompt."""

    part: Literal["skills", "knowledge"]
    placeholder: str
    intro: str
    items: tuple[tuple[str, str], ...]
    """(name, text), in order of importance."""
    gap: str
    nothing: str
    """The text of an empty list."""

    def text(self, names: Sequence[str]) -> str:
        """The items with these names."""
        shown = [text for name, text in self.items if name in names]
        return self.gap.join([self.intro, *shown]) if shown else self.nothing

    def chosen(self, room: int) -> list[str]:
        """The names of the items that fit into `room` tokens; an item that is too long is skipped."""
        names: list[str] = []
        for name, _ in self.items:
            if tokens_of(self.text([*names, name])) <= room:
                names.append(name)
        return names


def skills_section(skills: Sequence[Skill], language: Language, *, wire: bool) -> PromptSection:
    """Name, description and tool of each skill, for a model to choose one (agentskills.io, progressive disclosure).

    Args:
        wire: whether the agent uses the tools' names in its model's API.
    """
    texts = TEXTS[language]
    items = tuple((skill.name, _skill_line(skill, wire=wire)) for skill in skills)
    return PromptSection("skills", SKILLS, texts.load, items, "\n", texts.nothing)


def _skill_line(skill: Skill, *, wire: bool) -> str:
    from tavern_core.schema.provider_tool_export import wire_name

    tool = wire_name(skill.tool) if wire else skill.tool
    return harmless(f"- {fold_lines(skill.name, 64)} ({fold_lines(tool, 200)}): {fold_lines(skill.description, 1_024)}")


def knowledge_section(passages: Sequence[Passage], language: Language) -> PromptSection:
    """The passages, each with its citation."""
    texts = TEXTS[language]
    is_trusted = all(passage.trusted for passage in passages)
    intro = texts.cite if is_trusted else f"{texts.cite}\n{texts.untrusted}"
    items = tuple((passage.citation, _passage(passage)) for passage in passages)
    return PromptSection("knowledge", KNOWLEDGE, intro, items, "\n\n", texts.nothing)


def _passage(passage: Passage) -> str:
    """A passage as data: its text cannot end it, or be read as a call."""
    mark = "" if passage.trusted else ' untrusted="true"'
    head = f'<passage source="{_attribute(passage.citation)}" heading="{_attribute(passage.heading)}"{mark}>'
    text = _END.sub("<\u200b/", neutralise(seen(passage.text, lines=True)))
    return f"{neutralise(head, edges=False)}\n{text}\n</passage>"


def _attribute(text: str) -> str:
    return html.escape(text, quote=False).replace('"', "&quot;")
