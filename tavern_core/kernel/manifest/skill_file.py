"""Reads SKILL.md, and checks it by the specification (agentskills.io).

An *error* keeps the skill from being used: there is no front matter, it cannot be read, or nothing describes the skill. A *warning* is
against the specification and does no harm: the skill is used, and `tavern skills check` says no. An *info* is advice.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, Final

import yaml

from tavern_core.errors import Finding, Location
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.text.document import LARGEST_FILE, decode
from tavern_core.kernel.text.yaml_dialect import EventParser
from tavern_core.kernel.text.yaml_reader import YamlDocument, read_yaml
from tavern_core.model.nearest import known_instead
from tavern_core.model.safe_printing import seen
from tavern_core.model.skill import split_skill
from tavern_core.tam.neutralise import foreign_prose

CODE: Final = "SKILL_INVALID"
KEYS: Final = ("name", "description", "license", "allowed-tools", "metadata", "compatibility")
_AS_TEXT: Final[Any] = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
"""Reads every value as text, with the parser of `EventParser`, so that it can read what that accepts."""
_LONGEST: Final = {"name": 64, "description": 1024, "compatibility": 500}
_LONGEST_BODY: Final = 20_000
"""Characters: about 5,000 tokens."""
_HINT: Final = "begin the file with ---, name: …, description: …, ---"


@dataclass(frozen=True, slots=True)
class SkillFile:
    """The content of a SKILL.md."""

    name: str
    """As written, else that of its folder."""
    description: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    @property
    def is_usable(self) -> bool:
        return all(finding.severity != "error" for finding in self.findings)

    @property
    def is_valid(self) -> bool:
        """True if it meets the specification."""
        return all(finding.severity == "info" for finding in self.findings)


def read_skill(content: bytes, folder: str, file: str) -> SkillFile:
    """Read one SKILL.md. Never raises on content.

    Args:
        folder: the name of the skill's folder.
        file: its name in findings.
    """

    def unusable(message: str, hint: str) -> SkillFile:
        return SkillFile(folder, findings=(Finding(CODE, message, hint, Location(file, 1, 1)),))

    if len(content) > LARGEST_FILE:
        return unusable(f"the file is larger than {LARGEST_FILE:,} bytes", "move what is long into references/")
    text = decode(content, file, CODE)
    if isinstance(text, Finding):
        return SkillFile(folder, findings=(text,))
    parts = split_skill(text)
    if parts is None:
        return unusable("there is no front matter, or no line with --- ends it", _HINT)
    document = read_yaml("\n" + parts[0], file, code=CODE)  # line 1 is the first ---
    if document.findings:
        return SkillFile(folder, findings=document.findings)
    data = yaml.load("\n" + parts[0], Loader=_AS_TEXT)
    if not isinstance(data, dict):
        return unusable("the front matter is not a mapping of keys to values", _HINT)
    found = [*_judged(data, document, folder), *_flow(document)]
    if content.startswith(b"\xef\xbb\xbf"):
        found.append(Finding(CODE, "the file begins with a byte order mark", "save it without", Location(file, 1, 1), "warning"))  # fmt: skip
    if len(parts[1]) > _LONGEST_BODY:
        message = f"the body has {len(parts[1]):,} characters, of which a model reads every one"
        found.append(Finding(CODE, message, "move parts of it into references/", Location(file), "info"))
    metadata = data.get("metadata")
    return SkillFile(
        seen(_said(data, "name")) or folder,
        foreign_prose(_said(data, "description")),
        {k: seen(v) for k, v in metadata.items() if isinstance(v, str)} if isinstance(metadata, dict) else {},
        tuple(found),
    )


def _said(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    return value.strip() if isinstance(value, str) else ""


def _judged(data: Mapping[str, Any], document: YamlDocument, folder: str) -> Iterator[Finding]:
    def found(key: str, message: str, hint: str = "", severity: Any = "warning", *, at_key: bool = False) -> Finding:
        return Finding(CODE, message, hint, document.locate((key,), key=at_key), severity)

    for key in data:
        if key not in KEYS:
            hint = known_instead(str(key), KEYS)
            yield found(key, f"unknown key {key!r:.80}", hint, at_key=True)
    if not _said(data, "description"):
        yield found("description", "nothing describes the skill, so no model can choose it", "add description: …", "error")  # fmt: skip
    if not (name := _said(data, "name")):
        yield found("name", "the skill has no name; that of its folder is used", f"add name: {folder}")
    else:
        for message, hint in _name_flaws(unicodedata.normalize("NFKC", name), unicodedata.normalize("NFKC", folder)):
            yield found("name", message, hint)
    for key, most in _LONGEST.items():
        if len(_said(data, key)) > most:
            yield found(key, f"{key} has more than {most:,} characters")
    if "compatibility" in data and not isinstance(data["compatibility"], str):
        yield found("compatibility", "compatibility is not text")


def _is_name(text: str) -> bool:
    """Whether a skill may be called so."""
    return _is_plain(text) and text == text.lower() and not _has_odd_hyphens(text)


def _is_plain(text: str) -> bool:
    return all(sign.isalnum() or sign == "-" for sign in text)


def _has_odd_hyphens(text: str) -> bool:
    return text.startswith("-") or text.endswith("-") or "--" in text


def _name_flaws(name: str, folder: str) -> Iterator[tuple[str, str]]:
    if name != name.lower():
        yield f"the name {name!r:.80} is not in lower case", f"name: {name.lower():.80}"
    if _has_odd_hyphens(name):
        yield "hyphens stand one by one between letters", ""
    if not _is_plain(name):
        yield f"the name {name!r:.80} holds more than letters, digits and hyphens", ""
    if name != folder:
        hint = f"name: {folder:.80}" if _is_name(folder) else ""
        if _is_name(name):
            hint = f"rename the folder to {name:.80}"
        yield f"the folder is called {folder!r:.80}, the skill {name!r:.80}", hint


def _flow(document: YamlDocument) -> Iterator[Finding]:
    """Collections in brackets: YAML, but not what other readers of skills take."""
    for event in yaml.parse(document.text, Loader=EventParser):
        if isinstance(event, yaml.CollectionStartEvent) and event.flow_style:
            mark = event.start_mark
            where = Location(document.file, mark.line + 1, mark.column + 1) if mark is not None else None
            yield Finding(CODE, "lists and mappings in brackets are not allowed here", "write one entry per line", where, "warning")  # fmt: skip
            return
