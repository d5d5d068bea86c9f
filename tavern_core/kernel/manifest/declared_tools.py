"""The tools that a plugin declares, read without its code: the inline list of plugin.yaml and the *.tool.json files.

One broken file hides no other: what is wrong becomes a finding, everything else is there. The order is that of the manifest,
or of the file names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

from tavern_core.errors import Finding, Location
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.files.file_stamp import CompactStamp
from tavern_core.kernel.files.plugin_file_reader import PluginFiles
from tavern_core.model.nearest import fold
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.kernel.manifest.tool_files import SpecReading, ToolFileReading
    from tavern_core.kernel.text.document import LocatedDocument
    from tavern_core.kernel.text.yaml_reader import YamlDocument
    from tavern_core.model.manifest import Manifest
    from tavern_core.model.path_problem import Path

CODE: Final = "TOOL_FILE_INVALID"
MOST_TOOL_FILES: Final = 2_000


@dataclass(frozen=True, slots=True)
class DeclaredTools:
    """The declared tools of a plugin."""

    specs: tuple[ToolSpec, ...] = ()
    """Completely known tools."""
    drafts: tuple[ToolSpec, ...] = ()
    """Python tools whose parameters only the code knows, with all their other declarations."""
    findings: tuple[Finding, ...] = ()
    """Problems; only a tool with an error is left out, not its plugin. ``details["tool"]`` is the tool's id."""
    stamps: tuple[tuple[str, CompactStamp | None], ...] = field(default=(), hash=False)
    """The tool folder and its files when they were read."""

    @property
    def of_code(self) -> tuple[ToolSpec, ...]:
        """The tools that the plugin's code has to return: of kind `python`, without a `handler`."""
        both = (*self.drafts, *self.specs)
        return tuple(s for s in both if s.kind == "python" and not s.implementation.get("handler"))

    @property
    def unknown(self) -> tuple[str, ...]:
        """Ids of the incomplete tools."""
        return tuple(spec.name for spec in self.drafts)

    @property
    def ids(self) -> tuple[str, ...]:
        """Every usable id, known or not."""
        return (*(spec.name for spec in self.specs), *self.unknown)


def read_declared_tools(manifest: Manifest, document: YamlDocument, files: PluginFiles) -> DeclaredTools:
    """Read everything that `tools:` and `skills:` of a manifest declare.

    Args:
        manifest: of the plugin.
        document: plugin.yaml, where findings about inline tools point.
        files: the source of tool files.
    """
    tools = _read_tools(manifest, document, files)
    if manifest.skills is None:
        return tools
    from tavern_core.kernel.manifest.skill_tools import read_plugin_skills

    skills = read_plugin_skills(manifest.name, manifest.skills.entry, files)
    return DeclaredTools(
        (*tools.specs, *skills.specs),
        tools.drafts,
        (*tools.findings, *skills.findings),
        (*tools.stamps, *skills.stamps),
    )


def _read_tools(manifest: Manifest, document: YamlDocument, files: PluginFiles) -> DeclaredTools:
    from tavern_core.kernel.manifest.tool_files import tool_spec
    from tavern_core.model.manifest import Entry

    if manifest.tools is None:
        return DeclaredTools()
    if isinstance(manifest.tools, Entry):
        return _read_folder(manifest, document, files, manifest.tools.entry)
    collected = _ToolCollection()
    for index, definition in enumerate(manifest.tools):
        reading = tool_spec(definition, manifest=manifest, document=document, path=("tools", index))
        collected.add(reading, f"{document.file}: tools.{index}", document, ("tools", index, "id"))
    return collected.result(())


def _read_folder(manifest: Manifest, document: YamlDocument, files: PluginFiles, entry: str) -> DeclaredTools:
    from tavern_core.kernel.manifest.tool_files import TOOL_FILE_SUFFIX, read_tool_file, tool_spec

    if problem := files.problem(entry):
        hint, where = "create the folder, or correct the path", document.locate(("tools", "entry"))
        return DeclaredTools(findings=(Finding(CODE, problem, hint, where),))
    collected = _ToolCollection()
    stamps: list[tuple[str, CompactStamp | None]] = [(entry, files.stamp(entry))]
    for relative in _tool_files(files, entry, collected, document, TOOL_FILE_SUFFIX):
        stamps.append((relative, files.stamp(relative)))
        content = files.read(relative)
        if content is None:
            reason = files.problem(relative) or "it cannot be read"
            collected.findings += _about(
                _id_of_file(relative, manifest), [Finding(CODE, reason, "", Location(relative))]
            )
            continue
        reading = read_tool_file(content, relative)
        collected.findings += _about(_id_in(reading, relative, manifest), reading.findings)
        if reading.definition is not None:
            spec = tool_spec(reading.definition, manifest=manifest, document=reading.document)
            collected.add(spec, relative, reading.document, ("id",))
    return collected.result(tuple(stamps))


def _tool_files(
    files: PluginFiles, entry: str, collected: _ToolCollection, document: YamlDocument, suffix: str
) -> Iterator[str]:
    """The tool files of `entry`: itself when it is one, else those in it."""
    folder = entry.rstrip("/").removeprefix("./") or "."
    names = files.names(entry)
    if names is None:
        yield folder
        return
    found = [name for name in names if name.endswith(suffix) and not name.startswith(".")]
    if not found:
        where = document.locate(("tools", "entry"))
        near = [name for name in names if name.endswith(".json")]
        hint = f"rename {near[0]} to {near[0].removesuffix('.json')}{suffix}" if near else f"add a *{suffix} file"
        collected.findings.append(Finding(CODE, f"no *{suffix} file in {entry!r}", hint, where, "warning"))
    if len(found) > MOST_TOOL_FILES:
        message = f"more than {MOST_TOOL_FILES} tool files in {entry!r}; the rest is not read"
        collected.findings.append(Finding(CODE, message, "", document.locate(("tools", "entry"))))
    for name in found[:MOST_TOOL_FILES]:
        yield name if folder == "." else f"{folder}/{name}"


class _ToolCollection:
    """Tools in order; the second of one name is refused with both places."""

    def __init__(self) -> None:
        self.specs: list[ToolSpec] = []
        self.drafts: list[ToolSpec] = []
        self.findings: list[Finding] = []
        self._first: dict[str, tuple[str, str]] = {}

    def add(self, reading: SpecReading, place: str, document: LocatedDocument, id_path: Path) -> None:
        self.findings += reading.findings
        if reading.spec is None:
            return
        earlier_id, earlier_place = self._first.setdefault(fold(reading.id), (reading.id, place))
        if earlier_place != place:
            message = f"the tool {reading.id!r} is defined in {earlier_place} and again in {place}; the first is used"
            if reading.id != earlier_id:
                message = f"{place} defines {reading.id!r}, which reads like {earlier_id!r} of {earlier_place}"
            where, details = document.locate(id_path), {"tool": reading.id}
            self.findings.append(Finding(CODE, message, "rename or delete one", where, details=details))
        elif reading.is_draft:
            self.drafts.append(reading.spec)
        else:
            self.specs.append(reading.spec)

    def result(self, stamps: tuple[tuple[str, CompactStamp | None], ...]) -> DeclaredTools:
        return DeclaredTools(tuple(self.specs), tuple(self.drafts), tuple(self.findings), stamps)


def _about(tool: str, findings: Iterable[Finding]) -> list[Finding]:
    """Add to each finding the tool that it concerns."""
    return [replace(finding, details={"tool": tool, **finding.details}) for finding in findings]


def _id_in(reading: ToolFileReading, relative: str, manifest: Manifest) -> str:
    """The id in an invalid file; if it is unreadable, the one that the file name suggests."""
    data = reading.document.data
    written = data.get("id") if isinstance(data, dict) else None
    if not isinstance(written, str):
        return _id_of_file(relative, manifest)
    from tavern_core.kernel.manifest.tool_ids import ToolId, canonical_id

    identity = canonical_id(written, manifest.name, manifest.aliases)
    return identity.id if isinstance(identity, ToolId) else written


def _id_of_file(relative: str, manifest: Manifest) -> str:
    return f"{manifest.name}:{relative.rpartition('/')[2].partition('.')[0]}"
