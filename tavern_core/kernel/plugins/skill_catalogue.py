"""`tavern.skills`: all skills, and the operator's trust in those of the project.

A skill of the project or the user is a plugin of its own, so trust is a grant (`skill:trust`) in the lock file, bound to the hash of its files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

from tavern_core.contract.permissions import TRUST
from tavern_core.errors import SkillNotFound, UsageError
from tavern_core.kernel.files.plugin_file_reader import FolderFiles
from tavern_core.kernel.plugins.consent import Consent
from tavern_core.kernel.plugins.lifecycle import Lifecycle
from tavern_core.kernel.plugins.plugin_record import PluginRecord
from tavern_core.model.naming_rules import split_id
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.plugin_status import Diagnostic
from tavern_core.model.skill import RUN, SKILL_FILES, WHOLE, Origin, Skill, SkillState, split_skill
from tavern_core.model.tool import ToolSpec

MOST_FILES: Final = 500
_ORDER: Final = ("project", "user", "plugin")


class Skills:
    """All skills of one host."""

    def __init__(self, lifecycle: Lifecycle, consent: Consent) -> None:
        self._lifecycle, self._consent = lifecycle, consent

    def list(self) -> list[Skill]:
        """Every skill by name, the project's first; shadowed and unusable ones with the reason."""
        return sorted(self._all(), key=lambda s: (s.name, s.state == "shadowed", _ORDER.index(s.origin), s.plugin))

    def get(self, name: str) -> Skill:
        """A skill with its instructions and the names of its files, even if it is not trusted yet.

        Args:
            name: the name of the skill, its tool or its plugin.

        Raises:
            SkillNotFound: there is no such skill (SKILL_NOT_FOUND).
        """
        found = [skill for skill in self.list() if name in (skill.name, skill.tool, skill.plugin)]
        if not found:
            known = [skill.name for skill in self.list()]
            hint = did_you_mean(name, known) or "`tavern skills list` shows the names"
            raise SkillNotFound(f"there is no skill {name!r:.100}", hint=hint)
        return _read(found[0])

    async def trust(self, name: str) -> Skill:
        """Allow the use of a skill of the project with its current files.

        Raises:
            SkillNotFound: there is no such skill (SKILL_NOT_FOUND).
            UsageError: it needs no trust, or its files cannot be read completely (USAGE).
        """
        record = self._of_project(name)
        if why := FolderFiles(Path(record.candidate.location)).why_not_whole():
            raise UsageError(f"the skill {name} cannot be trusted: {why}", hint=WHOLE)
        await self._consent.grant(record.name, [TRUST.id])
        return self.get(record.name)

    async def distrust(self, name: str) -> Skill:
        """Withdraw the trust. Raises as `trust`."""
        record = self._of_project(name)
        await self._consent.refuse(record.name, [TRUST.id])
        return self.get(record.name)

    def _of_project(self, name: str) -> PluginRecord:
        skill = self.get(name)
        record = self._lifecycle.record(skill.plugin)
        if record.candidate.errors:
            raise UsageError(
                f"the skill {skill.name} cannot be used: {skill.reason}", hint=f"tavern skills check {skill.name}"
            )
        if TRUST.id not in record.candidate.requested:
            why = skill.reason or f"it comes from the {skill.origin}"
            raise UsageError(f"the skill {skill.name} needs no trust: {why}", hint=f"tavern skills show {skill.name}")
        return record

    # Looking ----------------------------------------------------------------------------------------------------------

    def _all(self) -> Iterator[Skill]:
        for record in list(self._lifecycle.records.values()):
            candidate = record.candidate
            if candidate.source == "skill":
                yield self._skill_of(record)
            elif "skills" in candidate.facts.sections:
                for spec in self._lifecycle.tables.cache.specs(record).values():
                    if spec.kind == "skill" and not spec.name.endswith(RUN):
                        yield self._of_plugin(record, spec)
        yield from self._shadowed()

    def _skill_of(self, record: PluginRecord) -> Skill:
        facts = record.candidate.facts
        # A failed skill requests nothing: its location decides.
        user_folders = self._lifecycle.tables.base.config.skills.user
        origin: Origin = "user" if str(Path(record.candidate.location).parent) in user_folders else "project"
        tool = next((tool for tool in record.candidate.tool_ids if not tool.endswith(RUN)), "")
        state: SkillState = "ready" if record.usable else "off"
        reason = record.condition.explanation
        if record.candidate.errors or record.state == "failed":
            state = "failed"
        elif record.condition.fix == f"tavern skills trust {facts.display_name}":  # else it may be disabled, too
            state = "untrusted"
            if why := FolderFiles(Path(record.candidate.location)).why_not_whole():
                state, reason = "failed", f"it cannot be trusted: {why}; {WHOLE}"
        elif not record.is_intact():  # changed while this host is open: its calls are refused
            name = facts.display_name or facts.name
            state = "untrusted"
            reason = f"its files are not those that were trusted; `tavern skills trust {name}` lets it be used"
        elif state == "ready" and tool not in self._lifecycle.tables.registry.entries():
            state, reason = "shadowed", _clash(tool)
        return Skill(
            facts.display_name or facts.name.removeprefix("skill-"),
            facts.description,
            state,
            origin,
            record.name,
            reason,
            tool,
            record.candidate.location,
            findings=record.candidate.findings,
        )

    def _of_plugin(self, record: PluginRecord, spec: ToolSpec) -> Skill:
        winner = self._lifecycle.tables.registry.entries().get(spec.name)
        state: SkillState = "ready" if record.usable else "off"
        reason = record.condition.explanation if state == "off" else ""
        if winner is not None and winner.plugin != record.name:
            state, reason = "shadowed", f"{winner.plugin} has a skill of the same name, which takes precedence"
        elif winner is None and state == "ready":
            state, reason = "shadowed", _clash(spec.name)
        path = str(spec.implementation.get("path", ""))
        folder = record.candidate.folder
        findings = tuple(f for f in record.tool_findings if f.where is not None and f.where.file.startswith(f"{path}/"))
        return Skill(
            spec.display_name or split_id(spec.name)[1],
            spec.description,
            state,
            "plugin",
            record.name,
            reason,
            spec.name,
            str((folder / path).resolve()) if folder is not None else "",
            findings=findings,
        )

    def _shadowed(self) -> Iterator[Skill]:
        """Skills that are shadowed by one of the same name: only a diagnostic mentions them."""
        for found in self._lifecycle.tables.base.diagnostics.all():
            if found.code == "NAME_CONFLICT" and "skill" in found.details:
                yield _loser(found)


def _clash(tool: str) -> str:
    return f"another tool reads like {tool}; `tavern tools why {tool}` names it"


def _loser(found: Diagnostic) -> Skill:
    details = {key: str(value) for key, value in found.details.items()}
    reason = f"{details['winner']} has the same name and goes before"
    origin: Origin = "user" if details["origin"] == "user" else "project"
    return Skill(details["skill"], "", "shadowed", origin, found.plugin, reason, location=details["loser"])


def _read(skill: Skill) -> Skill:
    """`skill` with the content of its folder."""
    if not skill.location:
        return skill
    files = FolderFiles(Path(skill.location))
    names = [name for name, _ in islice(files.files(), MOST_FILES)]
    file = next((name for name in SKILL_FILES if name in names), "")
    content = files.read(file) if file else None
    parts = split_skill(content.decode("utf-8-sig", "replace")) if content is not None else None
    return replace(
        skill,
        instructions=parts[1] if parts is not None else "",
        files=tuple(name for name in names if name != file),
    )
