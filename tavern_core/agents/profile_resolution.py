"""Resolves the fields of an agent's profile on a host: template, skills, knowledge bases; warns about invalid ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from tavern_core.contract.guards.folder import Folder
from tavern_core.errors import Finding, Location, ProfileInvalid, ToolFailed, UsageError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.access.profiles import CODE, Profile
from tavern_core.kernel.catalogue.manual import AVAILABLE_TOOLS, placeholders_of
from tavern_core.knowledge.knowledge import KnowledgeBase, KnowledgeBases
from tavern_core.model.knowledge import KB
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.skill import Skill

if TYPE_CHECKING:
    from tavern_core.flow.composition import WorkflowServices
    from tavern_core.kernel.plugins.skill_catalogue import Skills

SKILLS: Final = "system:skills"
KNOWLEDGE: Final = "system:knowledge"
PLACEHOLDERS: Final = (AVAILABLE_TOOLS, SKILLS, KNOWLEDGE)
_LEAST_TOKENS: Final = 1_000
MOST_NAMES: Final = 100
"""Maximum skills, and maximum knowledge bases, of one profile."""
LARGEST_PROMPT: Final = 400_000
"""Bytes of a template."""
_FILE: Final = "file:"


@dataclass(frozen=True, slots=True)
class ProfileTargets:
    """The names that a profile may use on this host."""

    models: Sequence[str] = ()
    workflows: Sequence[str] = ()
    skills: Sequence[Skill] = ()


@dataclass(frozen=True, slots=True)
class KnownNames:
    """Looks up the names that a profile may use."""

    flow: WorkflowServices
    skills: Skills
    knowledge: KnowledgeBases

    def all(self) -> ProfileTargets:
        """All names, after activating plugins that contribute models or workflows."""
        workflows = tuple(self.flow.workflows.list())  # first: it also activates the plugins that contribute models
        return ProfileTargets(self.flow.models.names(), workflows, self.skills.list())

    def inactive(self) -> ProfileTargets:
        """The names that are known without activating plugins."""
        return ProfileTargets(self.flow.models.names(), tuple(self.flow.workflows.in_files()), self.skills.list())


@dataclass(frozen=True, slots=True)
class PromptFields:
    """The resolved fields of a profile that make its prompt."""

    template: str
    """Empty: the built-in template."""
    skills: tuple[Skill, ...]
    bases: tuple[KnowledgeBase, ...]
    findings: tuple[Finding, ...]


_Problem = tuple[str, str, str]
"""Location in the profile, message, and repair."""


def read_fields(profile: Profile, known: ProfileTargets, knowledge: KnowledgeBases) -> PromptFields:
    """Resolve the fields of a profile; invalid parts become warnings, and the rest is used.

    Raises:
        ProfileInvalid: its prompt file cannot be read (PROFILE_INVALID): an agent without its rules must not run.
    """
    template = _template(profile)
    problems: list[_Problem] = []
    skills = tuple(dict.fromkeys(_skills(profile, known.skills, problems)))
    bases = tuple(dict.fromkeys(_bases(profile, knowledge, problems)))
    problems += [*_names(profile, known), *_budget(profile), *_placeholders(profile, template)]
    where = f"profile {profile.name}"
    findings = tuple(
        Finding(CODE, message, hint, Location(where, pointer=at), "warning") for at, message, hint in problems
    )
    return PromptFields(template, skills, bases, findings)


def _template(profile: Profile) -> str:
    """The text of the prompt; empty for another system's prompt."""
    prompt = profile.written.prompt
    if not isinstance(prompt, str):
        return ""
    if not prompt.startswith(_FILE):
        return prompt
    path = prompt.removeprefix(_FILE).strip()
    try:
        if not profile.written.folder:
            raise ToolFailed("the profile was not read from a file", hint="write the text of the prompt itself")
        with Folder(profile.written.folder) as folder, folder.open(path) as file:
            content = file.read(LARGEST_PROMPT + 1)
        if len(content) > LARGEST_PROMPT:
            raise ToolFailed(f"the file is larger than {LARGEST_PROMPT:,} bytes", hint="shorten it")
        return content.decode("utf-8-sig")
    except (ToolFailed, UnicodeDecodeError) as error:
        reason = error.message if isinstance(error, ToolFailed) else "the file is not UTF-8"
        hint = error.hint if isinstance(error, ToolFailed) else "save it as UTF-8"
        where = Location(f"profile {profile.name}", pointer="prompt")
        finding = Finding(CODE, f"the prompt {path!r:.200} cannot be read: {reason}", hint, where)
        raise ProfileInvalid(finding.located, hint=hint, findings=(finding,)) from error


def _skills(profile: Profile, known: Sequence[Skill], problems: list[_Problem]) -> Iterator[Skill]:
    by_name = {name: skill for skill in reversed(known) for name in (skill.name, skill.tool) if name}
    for index, name in enumerate(profile.written.skills[:MOST_NAMES]):
        skill = by_name.get(name)
        at = f"skills[{index}]"
        if skill is None:
            hint = did_you_mean(name[:200], by_name) or "`tavern skills list` shows the names"
            problems.append((at, f"there is no skill {name[:200]!r}", hint))
        elif skill.state != "ready":
            problems.append(
                (at, f"the skill {skill.name!r} is {skill.state}: {skill.reason}", f"tavern skills show {skill.name}")
            )
        elif not profile.allows(skill.tool):
            message = f"the agent cannot load the skill {skill.name!r}: its tool is not in the inventory"
            problems.append((at, message, f'add "{skill.tool}" to tool_ids_inventory'))
        else:
            yield skill


def _bases(profile: Profile, knowledge: KnowledgeBases, problems: list[_Problem]) -> Iterator[KnowledgeBase]:
    for index, written in enumerate(profile.written.knowledge[:MOST_NAMES]):
        at = f"knowledge[{index}]"
        if written.startswith(f"{KB}:"):
            try:
                yield knowledge.get(written)
            except UsageError as error:
                problems.append((at, error.message, error.hint))
            continue
        message, hint = (
            f"the folder {written[:200]!r} cannot be read",
            "`knowledge:` in tavern.yaml names folders anywhere",
        )
        if not profile.written.folder:
            problems.append((at, f"{message}: the profile was not read from a file", hint))
        elif (folder := _inside(profile.written.folder, written)) is None:
            problems.append((at, f"{message}: it is not in the folder of the profile", hint))
        elif not folder.is_dir():
            problems.append((at, f"{message}: it does not exist", "create it, or correct its path"))
        else:
            relative = PurePosixPath(written).as_posix()
            yield KnowledgeBase("." if relative == "." else f"./{relative}", (folder,))


def _inside(root: str, written: str) -> Path | None:
    """The folder `written` in `root`, links followed; None: it is outside."""
    try:
        real = Path(root).resolve()
        found = (real / written).resolve()
    except (OSError, ValueError, RuntimeError):  # a NUL in the path; a loop of links
        return None
    return found if found.is_relative_to(real) and ".." not in PurePosixPath(written).parts else None


def _names(profile: Profile, known: ProfileTargets) -> Iterator[_Problem]:
    written = profile.written
    name = written.model_name
    if not isinstance(written.model, str):
        yield "model", "a mapping is the model of another system and is not used", "write the name of a model"
    elif name and name not in known.models:
        hint = did_you_mean(name[:200], known.models) or "`tavern llms list` shows the models"
        yield "model", f"there is no model {name[:200]!r}", hint
    workflow = written.deliberation_workflow
    if workflow and workflow.removeprefix("workflow:") not in known.workflows:
        hint = did_you_mean(workflow[:200], known.workflows) or "`tavern workflows list` shows the ids"
        yield "deliberation_workflow", f"there is no workflow {workflow[:200]!r}", hint
    for field, names in (("skills", written.skills), ("knowledge", written.knowledge)):
        if len(names) > MOST_NAMES:
            yield (
                field,
                f"only the first {MOST_NAMES} of {len(names):,} are used",
                "an agent cannot choose among so many",
            )


def _budget(profile: Profile) -> Iterator[_Problem]:
    budget, context = profile.written.budget, profile.written.context_tokens
    if budget.calls == 0 and profile.tools:
        yield (
            "budget.calls",
            "the agent may make no call, so its tools are of no use",
            "raise it, or empty the inventory",
        )
    if budget.tokens is not None and budget.tokens < _LEAST_TOKENS:
        yield "budget.tokens", f"{budget.tokens:,} tokens are used up by the first request", "raise it, or leave it out"
    if budget.seconds is not None and budget.seconds < 1:
        yield "budget.seconds", "no model answers in less than a second", "the unit is seconds"
    if context < _LEAST_TOKENS:
        yield (
            "context_tokens",
            f"{context:,} tokens leave no room for tools and results",
            f"use {_LEAST_TOKENS:,} or more",
        )
    if "currency" in budget.model_fields_set and budget.money is None:
        yield "budget.currency", "there is no limit of money to which it belongs", "add money, or remove it"


def _placeholders(profile: Profile, template: str) -> Iterator[_Problem]:
    """Placeholders that the template lacks, and placeholders similar to the host's; others belong to other systems."""
    written = profile.written
    if not isinstance(written.prompt, str):
        yield "prompt", "a mapping is the prompt of another system and is not used", "write the prompt as text"
    used = set(placeholders_of(template))
    for name in sorted(used - set(PLACEHOLDERS)):
        if near := did_you_mean(name, PLACEHOLDERS, 1):
            yield "prompt", f"the placeholder {name!r} is not filled in", near
    if not template.strip():
        return
    wanted = (
        (AVAILABLE_TOOLS, profile.tools and written.calling == "tam"),
        (SKILLS, written.skills),
        (KNOWLEDGE, written.knowledge),
    )
    for name, is_wanted in wanted:
        if is_wanted and name not in used:
            yield (
                "prompt",
                f"the template has no {{{{{{{name}}}}}}}, so the model does not see it",
                "add it to the template",
            )
