"""The system prompt of an agent for one task, within a budget of tokens.

    template + tools (manual with the examples that fit the task, or schemas) + skills + knowledge that fits the task

The template is always whole. The rest takes room in this order, so that what comes last is left out first: tools, skills, knowledge. Tools
take at most `TOOLS_SHARE` of the room where skills or knowledge want some. A manual without room loses, in this order, examples, texts of
parameters, all but the beginning of descriptions, everything but the ids, and at last ids; a native schema first its texts, then schemas are
left out from the end of the inventory. What was left out is in the result. The same host, profile and task give the same prompt.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from tavern_core.agents.profile_fields import KNOWLEDGE, SKILLS, Fields, Known, read_fields
from tavern_core.agents.prompt_texts import TEXTS, Texts, built_in
from tavern_core.agents.schemas import fitting, size_of
from tavern_core.agents.tokens import tokens_of
from tavern_core.errors import Finding, Location, ProfileInvalid
from tavern_core.frozen import dataclass
from tavern_core.kernel.access.profiles import CODE, Profile, ProfileLike
from tavern_core.kernel.catalogue.descriptions import Descriptions
from tavern_core.kernel.catalogue.manual import AVAILABLE_TOOLS, fill_prompt, placeholders_of
from tavern_core.kernel.catalogue.parameter_text import fold_lines, harmless
from tavern_core.kernel.knowledge.knowledge import Knowledge, KnowledgeBase
from tavern_core.model.call import CallContext
from tavern_core.model.knowledge import Passage
from tavern_core.model.language import Language
from tavern_core.model.safe_text import seen
from tavern_core.model.skill import Skill
from tavern_core.tam import neutralise

TOOLS_SHARE: Final = 0.6
MOST_PASSAGES: Final = 8
_WORTH: Final = 0.3
"""Of the best passage's score: what fits worse has only common words in common with the task."""
_WHOLE: Final = 100_000_000
_TRIES: Final = 6
_END: Final = re.compile("</(?=passage)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What had no room."""

    part: Literal["tools", "skills", "knowledge"]
    reason: str
    names: tuple[str, ...] = ()
    """Ids of tools, names of skills, citations."""

    def to_json(self) -> dict[str, Any]:
        return {"part": self.part, "reason": self.reason, "names": list(self.names)}


@dataclass(frozen=True, slots=True)
class Prompt:
    """What an agent's model is given before the task."""

    system: str
    tokens: int
    """Of `system` and `tools`, estimated."""
    sources: tuple[Passage, ...] = ()
    """The passages of knowledge in it, best first."""
    left_out: tuple[LeftOut, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    """The inventory for the parameter `tools` of OpenAI's API and its relatives; empty with ``"calling": "tam"``."""
    findings: tuple[Finding, ...] = ()
    """Warnings about the profile and its knowledge."""

    @property
    def is_untrusted(self) -> bool:
        """Whether it shows knowledge that was fetched from elsewhere."""
        return any(not passage.trusted for passage in self.sources)

    def to_json(self) -> dict[str, Any]:
        return {
            "system": self.system,
            "tokens": self.tokens,
            "sources": [passage.to_json() for passage in self.sources],
            "leftOut": [part.to_json() for part in self.left_out],
            "tools": [dict(tool) for tool in self.tools],
            "findings": [{"message": finding.located, "hint": finding.hint} for finding in self.findings],
        }


@dataclass(frozen=True, slots=True)
class PromptBuilder:
    """Builds the prompts of one host. It reads files and may activate plugins: async code calls it in a thread.

    Args:
        profiles: resolves a profile.
        descriptions: of the tools.
        knowledge: the knowledge bases.
        known: what profiles may name now.
        manual_chars: `limits.manualChars`.
    """

    profiles: Callable[[ProfileLike], Profile]
    descriptions: Descriptions
    knowledge: Knowledge
    known: Callable[[], Known]
    manual_chars: int

    def build(
        self,
        profile: ProfileLike,
        task: str,
        context: CallContext | None = None,
        *,
        max_tokens: int | None = None,
        closing: str = "",
    ) -> Prompt:
        """The prompt for one task.

        Args:
            profile: of the agent.
            task: chooses examples and knowledge.
            context: the caller; the manual says what it may not call.
            max_tokens: the budget for `system` and `tools` together; None: half of the profile's `context_tokens`.
            closing: text of the program at the end of the template.

        Raises:
            ProfileInvalid: the profile or the file of its prompt cannot be read, or its template alone is beyond the budget (PROFILE_INVALID).
        """
        resolved = self.profiles(profile)
        fields = read_fields(resolved, self.known(), self.knowledge)
        language = self.descriptions.language(profile, context)
        template = fields.template if fields.template.strip() else _built_in(resolved, fields, language)
        draft = _Draft(f"{template.rstrip()}\n\n{closing}".rstrip() + "\n", fields, language)
        draft.claim(max_tokens or max(resolved.written.context_tokens // 2, 1), resolved.name)
        wants_more = (SKILLS in draft.uses and fields.skills) or (KNOWLEDGE in draft.uses and fields.bases)
        tools_room = int(draft.room * TOOLS_SHARE) if wants_more else draft.room
        draft.room -= tools_room
        left = self._put_tools(draft, profile, task, context, tools_room, resolved.written.calling)
        draft.room += left
        _put_skills(draft, wire=resolved.written.calling == "native")
        findings = [*resolved.findings, *fields.findings, *_unread(self.knowledge, fields.bases)]
        if KNOWLEDGE in draft.uses:
            _put_knowledge(draft, _relevant(self.knowledge, task, fields.bases))
        return draft.finished(findings)

    def _put_tools(
        self, draft: _Draft, profile: ProfileLike, task: str, context: CallContext | None, room: int, calling: str
    ) -> int:
        """Put in the manual, the schemas, or both; returns the room that is left."""
        in_manual = AVAILABLE_TOOLS in draft.uses and calling != "native"
        if calling != "tam":
            draft.tools, names, cut = fitting(self._schemas(profile, context), room // 2 if in_manual else room)
            room -= sum(map(size_of, draft.tools))
            if cut or names:
                draft.leave_out(
                    "tools", "native schemas: " + ("texts of parameters" if not names else "no room"), names
                )
        if AVAILABLE_TOOLS in draft.uses:
            text = draft.texts.native
            if in_manual:
                text, is_whole = self._manual(
                    profile, task, context, draft.language, room // draft.uses[AVAILABLE_TOOLS]
                )
                ids = [spec.id for spec in self.descriptions.in_order(profile, context)]
                lines = set(text.split("\n"))
                missing = () if is_whole else tuple(i for i in ids if f"- Tool ID: {i}" not in lines)
                if not is_whole:
                    draft.leave_out(
                        "tools", "the manual is shortened: no room for all of its examples and texts", missing
                    )
            room = draft.put(AVAILABLE_TOOLS, text, room)
        return room

    def _schemas(self, profile: ProfileLike, context: CallContext | None) -> list[dict[str, Any]]:
        specs = self.descriptions.in_order(profile, context)
        return [self.descriptions.tool_schema(spec, "openai") for spec in specs]

    def _manual(
        self, profile: ProfileLike, task: str, context: CallContext | None, language: Language, most: int
    ) -> tuple[str, bool]:
        """The manual in at most `most` tokens, and whether it is whole."""
        if most < 1:
            return "", False
        whole = text = self.descriptions.manual(profile, context, task or None, language, _WHOLE)
        chars = min(len(whole), self.manual_chars)
        if chars == len(whole) and tokens_of(whole) <= most:
            return whole, True
        for _ in range(_TRIES):  # the share of wide characters differs from detail to detail
            if (size := tokens_of(text)) > most:
                chars = min(chars - 1, len(text) * most // size)
            text = self.descriptions.manual(profile, context, task or None, language, max(chars, 1))
            if tokens_of(text) <= most:
                return text, False
        return self.descriptions.manual(
            profile, context, task or None, language, most
        ), False  # a character is at most a token


def _built_in(profile: Profile, fields: Fields, language: Language) -> str:
    return built_in(
        fold_lines(profile.name, 200),
        fold_lines(profile.description),
        language,
        skills=bool(fields.skills),
        knowledge=bool(fields.bases),
    )


class _Draft:
    """A prompt in the making: its parts, and the room that is left."""

    def __init__(self, template: str, fields: Fields, language: Language) -> None:
        self.template, self.fields, self.language = template, fields, language
        self.texts: Texts = TEXTS[language]
        used = placeholders_of(template)
        self.uses: dict[str, int] = {
            name: used.count(name) for name in (AVAILABLE_TOOLS, SKILLS, KNOWLEDGE) if name in used
        }
        """Placeholder → how often it stands in the template."""
        self.room = self.budget = 0
        self.tools: list[dict[str, Any]] = []
        self.sources: list[Passage] = []
        self._parts = dict.fromkeys(self.uses, "")
        self._left_out: list[LeftOut] = []

    def claim(self, budget: int, profile: str) -> None:
        """Make room: the budget without the template. Raises ProfileInvalid: there is none (PROFILE_INVALID)."""
        size = tokens_of(fill_prompt(self.template, self._parts))
        if size > budget:
            message = f"the template of the prompt alone has {size:,} tokens; the prompt may have {budget:,}"
            hint = "shorten the prompt, or raise context_tokens: the prompt has half of them"
            finding = Finding(CODE, message, hint, Location(f"profile {profile}", pointer="prompt"))
            raise ProfileInvalid(finding.located, hint=hint, findings=(finding,))
        self.budget, self.room = budget, budget - size

    def put(self, name: str, text: str, room: int) -> int:
        """Fill in a placeholder, if there is room for it wherever it stands; returns the room that is left."""
        cost = tokens_of(text) * self.uses[name]
        if cost > room:
            return room
        self._parts[name] = text
        return room - cost

    def leave_out(self, part: Literal["tools", "skills", "knowledge"], reason: str, names: Sequence[str] = ()) -> None:
        self._left_out.append(LeftOut(part, reason, tuple(names)))

    def finished(self, findings: Sequence[Finding]) -> Prompt:
        system = fill_prompt(self.template, self._parts)
        tokens = tokens_of(system) + sum(map(size_of, self.tools))
        return Prompt(system, tokens, tuple(self.sources), tuple(self._left_out), tuple(self.tools), tuple(findings))


def _put_skills(draft: _Draft, *, wire: bool) -> None:
    """Name, description and tool of each skill: what a model needs to choose one (agentskills.io, progressive disclosure)."""
    if SKILLS not in draft.uses:
        return
    uses, texts = draft.uses[SKILLS], draft.texts
    lines, names = [texts.load], list[str]()
    for skill in draft.fields.skills:
        line = _skill_line(skill, wire=wire)
        if tokens_of("\n".join([*lines, line])) * uses <= draft.room:
            lines.append(line)
        else:
            names.append(skill.name)
    if names:
        draft.leave_out("skills", "no room", names)
    draft.room = draft.put(SKILLS, "\n".join(lines) if len(lines) > 1 else texts.nothing, draft.room)


def _skill_line(skill: Skill, *, wire: bool) -> str:
    from tavern_core.schema.dialects import wire_name

    tool = wire_name(skill.tool) if wire else skill.tool
    return harmless(f"- {fold_lines(skill.name, 64)} ({fold_lines(tool, 200)}): {fold_lines(skill.description, 1_024)}")


def _relevant(knowledge: Knowledge, task: str, bases: Sequence[KnowledgeBase]) -> list[Passage]:
    found = knowledge.search(task, bases, MOST_PASSAGES)
    return [passage for passage in found if passage.score >= _WORTH * found[0].score]


def _unread(knowledge: Knowledge, bases: Sequence[KnowledgeBase]) -> Iterator[Finding]:
    for base in bases:
        yield from knowledge.state(base).findings


def _put_knowledge(draft: _Draft, found: Sequence[Passage]) -> None:
    """The passages that fit the task, best first, each with what it is cited by."""
    uses, texts = draft.uses[KNOWLEDGE], draft.texts
    intro = (
        texts.cite
        if all(passage.trusted for passage in found)
        else f"{texts.cite}{_gap(draft.language)}{texts.untrusted}"
    )
    shown, names = [intro], list[str]()
    for passage in found:
        text = _shown(passage)
        if tokens_of("\n\n".join([*shown, text])) * uses <= draft.room:
            shown.append(text)
            draft.sources.append(passage)
        else:
            names.append(passage.citation)
    if names:
        draft.leave_out("knowledge", "no room", names)
    draft.room = draft.put(KNOWLEDGE, "\n\n".join(shown) if draft.sources else texts.nothing, draft.room)


def _gap(language: Language) -> str:
    return " " if language == "en" else ""


def _shown(passage: Passage) -> str:
    """A passage as data: nothing in it ends it, or can be read as a call."""
    mark = "" if passage.trusted else ' untrusted="true"'
    head = f'<passage source="{html.escape(passage.citation)}" heading="{html.escape(passage.heading)}"{mark}>'
    text = _END.sub("<\u200b/", neutralise(seen(passage.text, lines=True)))
    return f"{neutralise(head, edges=False)}\n{text}\n</passage>"
