"""The system prompt of an agent for one task, within a budget of tokens.

    template + tools (manual with the examples that fit the task, or schemas) + skills + knowledge that fits the task

The template is always complete. The rest gets room in this order: tools, skills, knowledge; the last part is left out
first. If skills or knowledge need room, tools get at most `TOOLS_SHARE` of it.

    a manual loses    examples, texts of parameters, all but the beginning of descriptions, all but the ids, ids
    schemas lose      texts of parameters, then whole schemas from the end of the inventory

The result names what was left out. The same host, profile and task give the same prompt.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from tavern_core.agents.notices import TEXTS, PromptTexts, built_in
from tavern_core.agents.profile_resolution import KNOWLEDGE, SKILLS, KnownNames, PromptFields, read_fields
from tavern_core.agents.schema_budget import fitting, tokens_of_schema, with_examples
from tavern_core.errors import Finding, Location, ProfileInvalid
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.access.profiles import CODE, Profile, ProfileLike
from tavern_core.kernel.catalogue.manual import AVAILABLE_TOOLS, fill_prompt, placeholders_of
from tavern_core.kernel.catalogue.parameter_text import fold_lines, harmless
from tavern_core.kernel.catalogue.tool_catalogue import ToolCatalogue
from tavern_core.knowledge.knowledge import KnowledgeBase, KnowledgeBases
from tavern_core.model.call import CallContext
from tavern_core.model.knowledge import Passage
from tavern_core.model.message_translation import Language
from tavern_core.model.plain_data import json_members
from tavern_core.model.safe_printing import seen
from tavern_core.model.skill import Skill
from tavern_core.model.token_estimate import tokens_of
from tavern_core.tam import neutralise

TOOLS_SHARE: Final = 0.6
MOST_PASSAGES: Final = 8
_WORTH: Final = 0.3
"""The minimum share of the best passage's score: a lower score comes from common words only."""
_WHOLE: Final = 100_000_000
_TRIES: Final = 6


@dataclass(frozen=True, slots=True)
class OmittedPart:
    """A part of the prompt that was left out for lack of room."""

    part: Literal["tools", "skills", "knowledge"]
    reason: str
    names: tuple[str, ...] = ()
    """Ids of tools, names of skills, or citations."""

    def to_json(self) -> dict[str, Any]:
        return json_members(self, "part", "reason", "names")


@dataclass(frozen=True, slots=True)
class AgentPrompt:
    """The input of an agent's model before the task."""

    system: str
    tokens: int
    """The estimated tokens of `system` and `tools`."""
    sources: tuple[Passage, ...] = ()
    """The passages of knowledge in the prompt, best first."""
    left_out: tuple[OmittedPart, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    """The inventory for the parameter `tools` of OpenAI's API and similar ones; empty with ``"calling": "tam"``."""
    findings: tuple[Finding, ...] = ()
    """Warnings about the profile and its knowledge."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for people: invalid fields of the profile, and omitted parts."""
        odd = [f"{finding.located}; {finding.hint}" if finding.hint else finding.located for finding in self.findings]
        return (*odd, *(f"{p.part}: {p.reason}: {', '.join(p.names)}".rstrip(": ") for p in self.left_out))

    def to_json(self) -> dict[str, Any]:
        findings = [{"message": finding.located, "hint": finding.hint} for finding in self.findings]
        return json_members(self, "system", "tokens", "sources", "left_out", "tools") | {"findings": findings}


@dataclass(frozen=True, slots=True)
class PromptBuilder:
    """Builds the prompts of one host. It reads files and may activate plugins: async code calls it in a thread."""

    catalogue: ToolCatalogue
    names: KnownNames

    def build(
        self,
        profile: ProfileLike,
        task: str,
        context: CallContext | None = None,
        *,
        max_tokens: int | None = None,
        closing: str = "",
    ) -> AgentPrompt:
        """The prompt for one task.

        Args:
            task: used to choose examples and knowledge.
            context: the caller; the manual marks tools that it may not call.
            max_tokens: the budget for `system` and `tools` together; None: half of the profile's `context_tokens`.
            closing: a text of the program for the end of the template.

        Raises:
            ProfileInvalid: the profile or its prompt file cannot be read, or the template alone exceeds the budget
                (PROFILE_INVALID).
        """
        resolved = self.catalogue.profiles.resolved_sync(profile)
        fields = read_fields(resolved, self.names.all(), self.names.knowledge)
        language = self.catalogue.descriptions.language(profile, context)
        template = fields.template if fields.template.strip() else _built_in(resolved, fields, language)
        calling = resolved.written.calling
        draft = _PromptDraft(f"{template.rstrip()}\n\n{closing}".rstrip() + "\n", language)
        draft.claim(max_tokens or max(resolved.written.context_tokens // 2, 1), resolved.name)
        passages = _relevant(self.names.knowledge, task, fields.bases) if KNOWLEDGE in draft.uses else []
        lists = (
            skills_section(fields.skills, language, wire=calling == "native"),
            knowledge_section(passages, language),
        )
        wanted = sum(map(draft.cost, lists))
        tools_room = max(draft.room - wanted, int(draft.room * TOOLS_SHARE))
        draft.room += self._put_tools(draft, profile, task, context, tools_room, calling) - tools_room
        shown = {name for section in lists for name in draft.put_list(section)}
        sources = [passage for passage in passages if passage.citation in shown]
        findings = [*resolved.findings, *fields.findings, *_unread(self.names.knowledge, fields.bases)]
        return draft.finished(sources, findings)

    def _put_tools(
        self, draft: _PromptDraft, profile: ProfileLike, task: str, context: CallContext | None, room: int, calling: str
    ) -> int:
        """Add the manual, the schemas, or both; return the remaining room."""
        in_manual = AVAILABLE_TOOLS in draft.uses and calling != "native"
        specs = self.catalogue.descriptions.in_order(profile, context)
        if calling != "tam":
            schemas = [self.catalogue.descriptions.tool_schema(spec, "openai") for spec in specs]
            draft.tools, is_cut = fitting(schemas, room // 2 if in_manual else room)
            missing = [spec.id for spec in specs[len(draft.tools) :]]
            # All or none: the manual has them, and a model would take some schemas for all tools.
            if in_manual and missing:
                draft.tools, missing = [], [spec.id for spec in specs]
            room -= sum(map(tokens_of_schema, draft.tools))
            if missing:
                draft.leave_out("tools", "no room for the native schemas", missing)
            elif is_cut:
                draft.leave_out("tools", "no room for the texts of parameters in native schemas")
        if AVAILABLE_TOOLS not in draft.uses:
            return room
        if not in_manual:
            most = room // draft.uses[AVAILABLE_TOOLS]
            return draft.put(AVAILABLE_TOOLS, with_examples(draft.texts, specs[: len(draft.tools)], task, most), room)
        text, is_whole = self._manual(profile, task, context, draft.language, room // draft.uses[AVAILABLE_TOOLS])
        if not is_whole:
            lines = set(text.split("\n"))
            missing = [spec.id for spec in specs if f"- Tool ID: {spec.id}" not in lines]
            draft.leave_out("tools", "no room for all examples and texts of the manual", missing)
        return draft.put(AVAILABLE_TOOLS, text, room)

    def _manual(
        self, profile: ProfileLike, task: str, context: CallContext | None, language: Language, most: int
    ) -> tuple[str, bool]:
        """The manual in at most `most` tokens, and whether it is complete."""
        if most < 1:
            return "", False
        complete = text = self.catalogue.descriptions.manual(profile, context, task or None, language, _WHOLE)
        chars = min(len(complete), self.catalogue.specs.config.limits.manual_chars)
        if chars == len(complete) and tokens_of(complete) <= most:
            return complete, True
        for _ in range(_TRIES):  # the share of wide characters differs between levels of detail
            if (size := tokens_of(text)) > most:
                chars = min(chars - 1, len(text) * most // size)
            text = self.catalogue.descriptions.manual(profile, context, task or None, language, max(chars, 1))
            if tokens_of(text) <= most:
                return text, False
        return self.catalogue.descriptions.manual(
            profile, context, task or None, language, most
        ), False  # a character is at most a token


def _built_in(profile: Profile, fields: PromptFields, language: Language) -> str:
    return built_in(
        fold_lines(profile.name, 200),
        fold_lines(profile.description),
        language,
        skills=bool(fields.skills),
        knowledge=bool(fields.bases),
    )


class _PromptDraft:
    """A prompt under construction: its parts, and the remaining room."""

    def __init__(self, template: str, language: Language) -> None:
        self.template, self.language = template, language
        self.texts: PromptTexts = TEXTS[language]
        used = placeholders_of(template)
        self.uses: dict[str, int] = {
            name: used.count(name) for name in (AVAILABLE_TOOLS, SKILLS, KNOWLEDGE) if name in used
        }
        """Placeholder → the number of its occurrences in the template."""
        self.room = 0
        self.tools: list[dict[str, Any]] = []
        self._parts = dict.fromkeys(self.uses, "")
        self._left_out: list[OmittedPart] = []

    def claim(self, budget: int, profile: str) -> None:
        """Compute the room: the budget without the template. Raises ProfileInvalid: none is left (PROFILE_INVALID)."""
        size = tokens_of(fill_prompt(self.template, self._parts))
        if size > budget:
            message = f"the template of the prompt alone has {size:,} tokens; the prompt may have {budget:,}"
            hint = "shorten the prompt, or raise context_tokens: the prompt has half of them"
            finding = Finding(CODE, message, hint, Location(f"profile {profile}", pointer="prompt"))
            raise ProfileInvalid(finding.located, hint=hint, findings=(finding,))
        self.room = budget - size

    def put(self, name: str, text: str, room: int) -> int:
        """Fill in a placeholder if there is room for all of its occurrences; return the remaining room."""
        cost = tokens_of(text) * self.uses[name]
        if cost > room:
            return room
        self._parts[name] = text
        return room - cost

    def cost(self, section: PromptSection) -> int:
        """The tokens of a whole list in all of its occurrences."""
        return tokens_of(section.text([name for name, _ in section.items])) * self.uses.get(section.placeholder, 0)

    def put_list(self, section: PromptSection) -> list[str]:
        """Fill in as many items of a list as there is room for; return their names."""
        if section.placeholder not in self.uses:
            return []
        names = section.chosen(self.room // self.uses[section.placeholder])
        if missing := [name for name, _ in section.items if name not in names]:
            self.leave_out(section.part, "no room", missing)
        self.room = self.put(section.placeholder, section.text(names), self.room)
        return names

    def leave_out(self, part: Literal["tools", "skills", "knowledge"], reason: str, names: Sequence[str] = ()) -> None:
        self._left_out.append(OmittedPart(part, reason, tuple(names)))

    def finished(self, sources: Sequence[Passage], findings: Sequence[Finding]) -> AgentPrompt:
        system = fill_prompt(self.template, self._parts)
        tokens = tokens_of(system) + sum(map(tokens_of_schema, self.tools))
        return AgentPrompt(system, tokens, tuple(sources), tuple(self._left_out), tuple(self.tools), tuple(findings))


def _relevant(knowledge: KnowledgeBases, task: str, bases: Sequence[KnowledgeBase]) -> list[Passage]:
    found = knowledge.search(task, bases, MOST_PASSAGES)
    return [passage for passage in found if passage.score >= _WORTH * found[0].score]


def _unread(knowledge: KnowledgeBases, bases: Sequence[KnowledgeBase]) -> Iterator[Finding]:
    for base in bases:
        yield from knowledge.state(base).findings


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
