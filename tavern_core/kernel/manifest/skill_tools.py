"""Skills as tools: `skill:<name>` gives the instructions and files of a skill, `skill:<name>.run` runs its programs.

A skill in a folder of the project or the user is a plugin of its own (`skill-<name>`): it is reviewed, granted and put into the box like
any other. Skills of a plugin (`skills: {entry: skills}`) are tools of that plugin.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field
from typing import Any, Final

from tavern_core.errors import Finding, Location
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.files.file_stamp import CompactStamp
from tavern_core.kernel.files.plugin_file_reader import PluginFiles
from tavern_core.kernel.manifest.skill_file import CODE, SkillFile, read_skill
from tavern_core.kernel.manifest.tool_ids import plugin_name
from tavern_core.model.skill import RUN, SCRIPTS, SKILL_FILES
from tavern_core.model.tool import ToolSpec

NAMESPACE: Final = "skill"
MOST_SKILLS: Final = 500
_MOST_NAMES: Final = 10_000
_SHOWN_SCRIPTS: Final = 20
LONGEST_DESCRIPTION: Final = 4_000
_TOOL_NAME: Final = re.compile(r"[\w.-]{1,64}\Z")
_VERSION: Final = re.compile(r"[0-9][0-9A-Za-z.+_-]{0,99}\Z")
_READ: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "maxLength": 500, "description": "A file of the skill, as listed. Without: its instructions."},
        "offset": {"type": "integer", "minimum": 0, "default": 0, "description": "Where to go on in a long file (nextOffset)."},
    },
    "additionalProperties": False,
}  # fmt: skip
_RUN: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "script": {"type": "string", "minLength": 1, "maxLength": 500, "description": "Such as scripts/convert.py"},
        "arguments": {"type": "array", "items": {"type": "string", "maxLength": 100_000}, "maxItems": 200, "default": []},
        "input": {"type": "string", "default": "", "description": "What the script reads on stdin."},
    },
    "required": ["script"],
    "additionalProperties": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PluginSkills:
    """The skills in a folder of a plugin."""

    specs: tuple[ToolSpec, ...] = ()
    findings: tuple[Finding, ...] = ()
    stamps: tuple[tuple[str, CompactStamp | None], ...] = field(default=(), hash=False)


def read_plugin_skills(plugin: str, entry: str, files: PluginFiles) -> PluginSkills:
    """Read every skill below `entry` of a plugin; one that cannot be used costs no other."""
    specs: dict[str, ToolSpec] = {}
    findings: list[Finding] = []
    stamps = [(entry, files.stamp(entry))]
    folder = entry.rstrip("/").removeprefix("./") or "."
    names = files.names(entry)
    if names is None:
        problem = files.problem(entry) or f"{entry!r:.120} is not a folder"
        return PluginSkills(findings=(Finding(CODE, f"skills.entry: {problem}", "create it", Location("plugin.yaml")),))
    count = 0
    usable: list[tuple[bool, str, SkillFile]] = []
    for name in names[:_MOST_NAMES]:
        path = name if folder == "." else f"{folder}/{name}"
        if name.startswith("."):
            continue
        if not any(files.stamp(f"{path}/{file}") for file in SKILL_FILES):
            stamps.append((path, files.stamp(path)))  # it may be there later
            continue
        count += 1
        if count > MOST_SKILLS:
            text = f"there are more than {MOST_SKILLS} skills; {name!r:.80} and those after it are not used"
            findings.append(Finding(CODE, text, "divide them among several plugins", Location(path)))
            break
        stamps += [(at, files.stamp(at)) for at in (path, f"{path}/{SCRIPTS}", *(f"{path}/{f}" for f in SKILL_FILES))]
        skill = read_one(name, files, path)
        findings += skill.findings
        if skill.is_usable:
            usable.append((skill.name != name, path, skill))
    for _, path, skill in sorted(usable, key=lambda one: one[:2]):  # those with the name of their folder first
        tool, *others = specs_of(skill, plugin, files, path)
        if (winner := specs.get(tool.name)) is not None:
            text = f"{tool.name} is there twice; the one in {winner.implementation['path']} is used"
            findings.append(Finding(CODE, text, "rename one", Location(path)))
        else:
            specs |= {spec.name: spec for spec in (tool, *others)}
    if len(names) > _MOST_NAMES:
        text = (
            f"there are more than {_MOST_NAMES:,} entries; {names[_MOST_NAMES]!r:.80} and those after it are not read"
        )
        findings.append(Finding(CODE, text, "keep only skills there", Location(folder)))
    return PluginSkills(tuple(specs.values()), tuple(findings), tuple(stamps))


def version_of(skill: SkillFile) -> str:
    """Its version, where its metadata hold one."""
    version = skill.metadata.get("version", "")
    return version if _VERSION.match(version) else "0"


def read_one(name: str, files: PluginFiles, path: str) -> SkillFile:
    """The SKILL.md of the skill in the folder `path` of a plugin; empty: the plugin is the skill."""
    for file in SKILL_FILES:
        relative = f"{path}/{file}" if path else file
        if (content := files.read(relative)) is not None:
            return read_skill(content, name, relative)
    relative = f"{path}/{SKILL_FILES[0]}" if path else SKILL_FILES[0]
    problem = files.problem(relative) or "it is not a readable file"
    return SkillFile(
        name, findings=(Finding(CODE, problem, "put the file itself into the folder", Location(relative)),)
    )


def specs_of(skill: SkillFile, plugin: str, files: PluginFiles, path: str) -> Iterator[ToolSpec]:
    """The tools of one skill: that which reads it, then that which runs its scripts, where it has some."""
    is_tool_name = _TOOL_NAME.match(skill.name) and not skill.name.endswith(RUN)
    local = skill.name if is_tool_name else plugin_name(skill.name)
    base = ToolSpec(
        f"{NAMESPACE}:{local}",
        skill.description[:LONGEST_DESCRIPTION],
        "skill",
        version_of(skill),
        ("skill",),
        _READ,
        display_name=skill.name,
        plugin=plugin,
        read_only=True,
        idempotent=True,
        implementation={"type": "skill", "path": path},
        source=f"{path}/{SKILL_FILES[0]}" if path else SKILL_FILES[0],
    )
    yield base
    folder = f"{path}/{SCRIPTS}" if path else SCRIPTS
    if scripts := [name for name in files.names(folder) or () if not name.startswith((".", "_"))]:
        listed = ", ".join(f"{SCRIPTS}/{name}" for name in scripts[:_SHOWN_SCRIPTS])
        yield ToolSpec(
            base.name + RUN,
            f"Runs a script of the skill {skill.name}, in a box; read the skill first. There are: {listed}",
            "skill",
            base.version,
            ("skill",),
            _RUN,
            display_name=f"{skill.name}: run a script",
            plugin=plugin,
            implementation={"type": "skill", "path": path, "runs": True},
            source=folder,
        )
