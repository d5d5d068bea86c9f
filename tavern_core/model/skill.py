"""A skill: a folder with a SKILL.md that explains to a model how to do something (agentskills.io).

---
name: pdf-forms                                  front matter: YAML
description: Fills in PDF forms. Use when …
---
# How to …                                       body: Markdown, for the model
"""

from __future__ import annotations

from typing import Any, Final, Literal

from tavern_core.errors import Finding
from tavern_core.frozen_dataclass import dataclass

SKILL_FILES: Final = ("SKILL.md", "skill.md")
"""The file that makes a folder a skill; the first that is there."""
SCRIPTS: Final = "scripts"
"""The folder of a skill that holds its programs."""
RUN: Final = ".run"
"""Behind the id of a skill's tool: the tool that runs its programs."""
WHOLE: Final = "take such links, or files, out of its folder"
"""The repair for a skill that cannot be trusted because it could not be read completely."""
SkillState = Literal["ready", "untrusted", "shadowed", "off", "failed"]
Origin = Literal["project", "user", "plugin"]
_FENCE: Final = "---"


def split_skill(text: str) -> tuple[str, str] | None:
    """Front matter and body of a SKILL.md; None where there is no front matter, or it does not end.

    >>> split_skill("---\\nname: a\\n---\\nDo it.")
    ('name: a\\n', 'Do it.')
    """
    lines = text.splitlines(keepends=True)
    if not lines or lines[0].rstrip() != _FENCE:
        return None
    end = next((number for number, line in enumerate(lines[1:], 1) if line.rstrip() == _FENCE), 0)
    return ("".join(lines[1:end]), "".join(lines[end + 1 :]).strip()) if end else None


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill, as lists show it."""

    name: str
    description: str
    state: SkillState
    """``ready``; ``untrusted``: the operator has to trust it, again where its files changed; ``shadowed``: another one has its name;
    ``off``: its plugin is not in use; ``failed``: its SKILL.md cannot be used, or its folder cannot be trusted."""
    origin: Origin
    plugin: str
    """Its name in grants and in the lock file; for a skill of a plugin: that plugin."""
    reason: str = ""
    """Why it is not ready, and what to do."""
    tool: str = ""
    """The id of its tool."""
    location: str = ""
    """Its folder, for the operator; never shown to callers."""
    instructions: str = ""
    """The text of its SKILL.md for a model; empty in lists."""
    files: tuple[str, ...] = ()
    """Its other files; empty in lists."""
    findings: tuple[Finding, ...] = ()
    """The problems of its SKILL.md; only an error keeps it from being used."""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "state": self.state,
            "origin": self.origin,
            "plugin": self.plugin,
            "reason": self.reason or None,
            "tool": self.tool or None,
            "findings": [finding.to_json() for finding in self.findings],
            **({"instructions": self.instructions, "files": list(self.files)} if self.instructions else {}),
        }
