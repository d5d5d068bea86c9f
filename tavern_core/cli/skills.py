"""``tavern skills``: folders with instructions for models, and the operator's trust in those of the project."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tavern_core.cli import completion
from tavern_core.cli.errors import INVALID, ReportedExit, show_finding
from tavern_core.cli.lazy_groups import Group
from tavern_core.cli.output import one_line, shorten
from tavern_core.cli.plugin_status_lookup import show_change
from tavern_core.cli.session import CliSession
from tavern_core.model.skill import SKILL_FILES

if TYPE_CHECKING:
    from tavern_core.errors import Finding
    from tavern_core.kernel.manifest.skill_file import SkillFile
    from tavern_core.model.skill import Skill

_COLUMNS: Final = ("skill", "state", "from", "description", "reason")
_WIDTH: Final = 80


@click.group(cls=Group, default="list")
def skills() -> None:
    """List, show, check and trust skills.

    `tavern skills` alone lists them.
    """


@skills.command("list")
def list_(session: CliSession) -> None:
    """List all skills: those of the project, of the user and of plugins."""
    found = session.host("none").skills.list()

    def row(skill: Skill) -> tuple[str, ...]:
        return skill.name, skill.state, _from(skill), shorten(skill.description, _WIDTH), skill.reason

    session.show_list(found, _COLUMNS, row, empty="no skills; docs/skills.md says where to put them")


@skills.command()
@click.argument("skill", shell_complete=completion.skills)
def show(session: CliSession, skill: str) -> None:
    """Show the instructions and files of a skill; read them before you trust it."""
    found = session.host("none").skills.get(skill)
    if session.as_json:
        session.out.json(found.to_json())
        return
    _show(session, found)
    for finding in found.findings:
        show_finding(finding, folder=Path(found.location) if found.origin != "plugin" else None)
    for file in found.files:
        session.out.text(f"file         {one_line(file)}")
    session.out.text()
    session.out.text(found.instructions)


@skills.command()
@click.argument("targets", nargs=-1, metavar="[PATH|NAME]...", shell_complete=completion.skills)
def check(session: CliSession, targets: tuple[str, ...]) -> None:
    """Check skills against the specification (agentskills.io).

    PATH is a folder, its SKILL.md, or a folder of skills. Without arguments, all skills are checked. Exit code 4 if one is not valid.
    """
    from tavern_core.kernel.manifest.skill_folder import check_skill

    folders = [folder for target in targets for folder in _skills_in(_folder(session, target))]
    if not targets:
        folders = [Path(skill.location) for skill in session.host("none").skills.list() if skill.location]
    checked = [(folder, check_skill(folder)) for folder in dict.fromkeys(folders)]
    are_valid = all(found.is_valid for _, found in checked)
    if session.as_json:
        session.out.json({"valid": are_valid, "skills": [_verdict(folder, found) for folder, found in checked]})
    else:
        for folder, found in checked:
            for finding in found.findings:
                show_finding(_placed(finding, folder), folder=Path.cwd())
            session.out.text(f"{one_line(str(folder))}: {'valid' if found.is_valid else 'not valid'}")
    if not are_valid:
        raise ReportedExit(INVALID)


@skills.command()
@click.argument("skill", shell_complete=completion.skills)
def trust(session: CliSession, skill: str) -> None:
    """Trust a skill of this project until one of its files changes."""
    host = session.host("none", deciding=True)
    show_change(session, host.wait(host.skills.trust(skill)))


@skills.command()
@click.argument("skill", shell_complete=completion.skills)
def distrust(session: CliSession, skill: str) -> None:
    """Stop using a skill of this project."""
    host = session.host("none", deciding=True)
    show_change(session, host.wait(host.skills.distrust(skill)))


def _folder(session: CliSession, target: str) -> Path:
    path = Path(target)
    if path.is_dir():
        return path
    if path.is_file() and path.name.lower() == "skill.md":
        return path.parent
    return Path(session.host("none").skills.get(target).location)


def _skills_in(folder: Path) -> list[Path]:
    """The folder itself, or the skills in it if it is no skill but contains some."""
    found = [] if _is_skill(folder) else sorted(inner for inner in folder.iterdir() if _is_skill(inner))
    return found or [folder]


def _is_skill(folder: Path) -> bool:
    return any((folder / name).is_file() for name in SKILL_FILES)


def _placed(finding: Finding, folder: Path) -> Finding:
    """A finding whose place says in which of several folders it is."""
    where = finding.where
    if where is None:
        return finding
    path = folder.absolute() / where.file
    near = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return replace(finding, where=replace(where, file=str(near)))


def _verdict(folder: Path, found: SkillFile) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "name": found.name,
        "valid": found.is_valid,
        "findings": [finding.to_json() for finding in found.findings],
    }


def _from(skill: Skill) -> str:
    return f"plugin {skill.plugin}" if skill.origin == "plugin" else skill.origin


def _show(session: CliSession, skill: Skill) -> None:
    facts = (
        ("skill", skill.name),
        ("description", skill.description),
        ("state", f"{skill.state}: {skill.reason}" if skill.reason else skill.state),
        ("from", _from(skill)),
        ("plugin", skill.plugin),
        ("tool", skill.tool),
        ("folder", skill.location),
    )
    session.out.facts([(key, value) for key, value in facts if value])
