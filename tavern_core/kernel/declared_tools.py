"""The tools that a plugin declares, read without its code: the inline list of plugin.yaml and the *.tool.json files.

One broken file hides no other: what is wrong becomes a finding, everything else is there. The order is that of the manifest,
or of the file names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tavern_core.errors import Finding, Location
from tavern_core.kernel.plugin_files import PluginFiles, Stamp
from tavern_core.model.nearest import fold
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.kernel.toolfiles import SpecReading
    from tavern_core.kernel.yaml_reader import YamlDocument
    from tavern_core.model.manifest import Manifest
    from tavern_core.schema.rules import Flaw

CODE: Final = "TOOL_FILE_INVALID"
MOST_TOOL_FILES: Final = 2_000


@dataclass(frozen=True, slots=True)
class DeclaredTools:
    """What the declarations say."""

    specs: tuple[ToolSpec, ...] = ()
    """Tools that are known completely."""
    unknown: tuple[str, ...] = ()
    """Ids of python tools whose parameters only the code knows."""
    findings: tuple[Finding, ...] = ()
    """What is wrong; a tool with an error is left out, the plugin and its other tools are not."""
    stamps: tuple[tuple[str, Stamp | None], ...] = field(default=(), hash=False)
    """The tool folder and its files when they were read."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Every usable id, known or not."""
        return (*(spec.name for spec in self.specs), *self.unknown)


def read_declared_tools(
    manifest: Manifest,
    document: YamlDocument,
    files: PluginFiles,
    *,
    flaws: Callable[[object], list[Flaw]] | None = None,
) -> DeclaredTools:
    """Read everything that `tools:` of a manifest declares.

    Args:
        manifest: of the plugin.
        document: plugin.yaml, where findings about inline tools point.
        files: where tool files are read from.
        flaws: judges schemas; None: as far as loading can afford it (toolfiles.flaws_at_load).
    """
    from tavern_core.kernel.toolfiles import flaws_at_load, tool_spec
    from tavern_core.model.manifest import Entry

    judge = flaws or flaws_at_load
    if manifest.tools is None:
        return DeclaredTools()
    if isinstance(manifest.tools, Entry):
        return _read_folder(manifest, document, files, manifest.tools.entry, judge)
    collected = _Collected()
    for index, definition in enumerate(manifest.tools):
        reading = tool_spec(definition, manifest=manifest, document=document, path=("tools", index), flaws=judge)
        collected.add(reading, f"{document.file}: tools.{index}")
    return collected.result(())


def _read_folder(
    manifest: Manifest, document: YamlDocument, files: PluginFiles, entry: str, flaws: Callable[[object], list[Flaw]]
) -> DeclaredTools:
    from tavern_core.kernel.toolfiles import TOOL_FILE_SUFFIX, read_tool_file, tool_spec

    if problem := files.problem(entry):
        hint, where = "create the folder, or correct the path", document.locate(("tools", "entry"))
        return DeclaredTools(findings=(Finding(CODE, f"tools.entry: {problem}", hint, where),))
    collected = _Collected()
    stamps: list[tuple[str, Stamp | None]] = [(entry, files.stamp(entry))]
    for relative in _tool_files(files, entry, collected, document, TOOL_FILE_SUFFIX):
        stamps.append((relative, files.stamp(relative)))
        content = files.read(relative)
        if content is None:
            reason = files.problem(relative) or "it cannot be read"
            collected.findings.append(Finding(CODE, reason, "", Location(relative)))
            continue
        reading = read_tool_file(content, relative)
        collected.findings += reading.findings
        if reading.definition is not None:
            collected.add(
                tool_spec(reading.definition, manifest=manifest, document=reading.document, flaws=flaws), relative
            )
    return collected.result(tuple(stamps))


def _tool_files(
    files: PluginFiles, entry: str, collected: _Collected, document: YamlDocument, suffix: str
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


class _Collected:
    """Tools in order; the second of one name is refused with both places."""

    def __init__(self) -> None:
        self.specs: list[ToolSpec] = []
        self.unknown: list[str] = []
        self.findings: list[Finding] = []
        self._first: dict[str, tuple[str, str]] = {}

    def add(self, reading: SpecReading, place: str) -> None:
        self.findings += reading.findings
        if reading.spec is None and not reading.is_declared_only:
            return
        earlier_id, earlier_place = self._first.setdefault(fold(reading.id), (reading.id, place))
        if earlier_place != place:
            message = f"the tool {reading.id!r} is defined in {earlier_place} and again in {place}; the first is used"
            if reading.id != earlier_id:
                message = f"{place} defines {reading.id!r}, which reads like {earlier_id!r} of {earlier_place}"
            self.findings.append(Finding(CODE, message, "rename or delete one", Location(place.partition(":")[0])))
        elif reading.spec is not None:
            self.specs.append(reading.spec)
        else:
            self.unknown.append(reading.id)

    def result(self, stamps: tuple[tuple[str, Stamp | None], ...]) -> DeclaredTools:
        return DeclaredTools(tuple(self.specs), tuple(self.unknown), tuple(self.findings), stamps)
