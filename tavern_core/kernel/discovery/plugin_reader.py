"""Reading one plugin for the first time, or again after an edit: plugin.yaml, its tools, and whether names agree.

The result is a `IndexedPlugin`: everything worth remembering, broken plugins included. Imported only when something must be read; a
warm start never gets here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from tavern_core.errors import Finding, Location
from tavern_core.kernel.discovery.distributions import Distribution, normalise
from tavern_core.kernel.discovery.found_plugin import MANIFEST_FILE, FoundPlugin
from tavern_core.kernel.discovery.index import MANIFEST, TOOLS, IndexedPlugin, PluginLocation, finding_row, pack_tools
from tavern_core.kernel.discovery.manifest_facts import ManifestFacts, facts_of
from tavern_core.kernel.discovery.other_formats import MARKS, WATCHED, marker_file, name_of, translate
from tavern_core.kernel.files.file_stamp import compact_stamp_at, is_settled
from tavern_core.kernel.files.plugin_file_reader import PluginFiles
from tavern_core.kernel.manifest.declared_tools import DeclaredTools, read_declared_tools
from tavern_core.kernel.manifest.manifest_reader import ManifestReading, read_manifest
from tavern_core.model.manifest import Entry, Manifest
from tavern_core.model.naming_rules import is_plugin_name
from tavern_core.model.plain_data import json_digest

CODE: Final = "MANIFEST_INVALID"
_LOOKALIKES: Final = ("plugin.yml", "Plugin.yaml", "plugin.json", "plugin.toml", "manifest.yaml", "plugin.yaml.txt")


def read_plugin(candidate: PluginLocation, folder: str, prefix: str, now: int) -> IndexedPlugin:
    """Read the plugin in `folder` (or in the folder `prefix` of the archive `folder`).

    Args:
        candidate: the location at which it was found.
        now: nanoseconds since the epoch, from before anything was read.
    """
    row = IndexedPlugin(candidate.key, folder, candidate.name, prefix)
    if candidate.source in MARKS:
        return _read_translated(row, candidate, now)
    if candidate.distribution is not None and not prefix:
        row.source_folder = _link_source(folder)
    _watch(row, now, "", *(() if prefix else (f"/{MANIFEST_FILE}",)))
    files = FoundPlugin(candidate, row).files
    assert files is not None
    row.has_python = candidate.distribution is not None or files.stamp("__init__.py") is not None
    content = files.read(MANIFEST_FILE)
    if content is None:
        return _failed(row, candidate, [_no_manifest(candidate, files)])
    row.digest = hashlib.sha256(content).hexdigest()
    reading = read_manifest(content, MANIFEST_FILE, strict=False)
    manifest = reading.manifest
    if manifest is None:
        return _failed(row, candidate, reading.findings, reading)
    row.has_python |= isinstance(manifest.nodes, Entry)  # its modules are imported, with or without a package
    if isinstance(manifest.tools, Entry) and not prefix:
        _watch(row, now, f"/{manifest.tools.entry}")
    if manifest.skills is not None and not prefix:
        _watch(row, now, f"/{manifest.skills.entry}")
    findings = (*reading.findings, *_name_findings(candidate, manifest, reading))
    if isinstance(manifest.nodes, Entry) and (problem := files.problem(manifest.nodes.entry)):
        where = reading.document.locate(("nodes", "entry"))
        findings += (Finding(CODE, problem, "create it, or correct the path", where, "warning"),)
        if not prefix:
            _watch(row, now, f"/{manifest.nodes.entry}")
    tools = read_declared_tools(manifest, reading.document, files)
    return _filled(row, facts_of(manifest), manifest, findings, tools, now)


def _filled(
    row: IndexedPlugin,
    facts: ManifestFacts,
    manifest: Manifest,
    findings: Sequence[Finding],
    tools: DeclaredTools,
    now: int,
) -> IndexedPlugin:
    """Add the data that was read to a row."""
    row.name = facts.name
    row.facts = facts.to_json()
    row.findings = [finding_row(finding) for finding in findings]
    row.ids = list(tools.ids)
    row.details.put(MANIFEST, manifest.model_dump(mode="json", by_alias=True, exclude_defaults=True))
    row.tool_findings = [finding_row(finding) for finding in tools.findings]
    if tools != DeclaredTools():
        packed = pack_tools(tools)
        row.details.put(TOOLS, packed)
        tool_data = {**packed, "stamps": [], "findings": row.tool_findings}
        row.tools_digest = json_digest(tool_data)
    if not row.prefix:  # in a folder: a file that is saved in place does not change the time of its folder
        _watch(row, now, *(f"/{relative}" for relative, _ in tools.stamps))
    return row


def _read_translated(row: IndexedPlugin, candidate: PluginLocation, now: int) -> IndexedPlugin:
    """Read a folder in the format of another system; whatever code is in it, none is ever imported."""
    _watch(row, now, "", *(f"/{name}" for name in WATCHED[candidate.source]))
    files = FoundPlugin(candidate, row).files
    assert files is not None
    mark = marker_file(files.names(".") or (), candidate.source)
    content = files.read(mark) if mark else None
    if content is None:
        problem = (files.problem(mark) if mark else "") or f"{mark or 'the folder'} cannot be read"
        failed = _failed(row, candidate, [Finding(CODE, problem, "put the file itself there", Location(mark))])
        failed.name = name_of(candidate.source, candidate.name)
        return failed
    row.digest = hashlib.sha256(content).hexdigest()
    found = translate(candidate.source, candidate.name, content, files, is_trusted=candidate.is_trusted)
    if found.manifest is None:
        failed = _failed(row, candidate, found.findings)
        failed.name = found.name
        return failed
    facts = facts_of(found.manifest)
    facts = replace(facts, requested=facts.requested | found.asks, off=found.off)
    return _filled(row, facts, found.manifest, found.findings, found.tools, now)


def unreadable(candidate: PluginLocation, folder: str, prefix: str, error: Exception) -> IndexedPlugin:
    """The row of a plugin with an unexpected read error; read again at the next start."""
    row = IndexedPlugin(candidate.key, folder, candidate.name, prefix, is_settled=False)
    message = f"the plugin cannot be read: {type(error).__name__}: {error}"
    hint = "look at the file it names; if it is in order, please report this"
    return _failed(row, candidate, [Finding(CODE, message, hint, Location(MANIFEST_FILE))])


def _failed(
    row: IndexedPlugin, candidate: PluginLocation, findings: Sequence[Finding], reading: ManifestReading | None = None
) -> IndexedPlugin:
    """The row of a plugin that cannot be used: like any other, under the best known name."""
    written = reading.written_name if reading is not None else ""
    name = written if is_plugin_name(written) else candidate.name
    data = reading.document.data if reading is not None else None
    version = data.get("version") if isinstance(data, dict) else None
    row.name, row.is_failed = name, True
    row.facts = ManifestFacts(name, version if isinstance(version, str) else "").to_json()
    row.findings = [finding_row(finding) for finding in findings]
    return row


def _watch(row: IndexedPlugin, now: int, *tails: str) -> None:
    for tail in tails:
        stamp = compact_stamp_at(row.folder + tail)
        row.watched[tail] = stamp
        row.is_settled = row.is_settled and is_settled(row.folder + tail, now)


def _link_source(folder: str) -> str:
    """The real folder of plugin.yaml if pip made a tree of links to the source (editable-strict); else empty."""
    manifest = f"{folder}/{MANIFEST_FILE}"
    return os.path.dirname(os.path.realpath(manifest)) if os.path.islink(manifest) else ""  # noqa: PTH114, PTH120


def unreadable_manifest(files: PluginFiles) -> Finding | None:
    """A finding about what is in the place of plugin.yaml: a link, no file, a file of another name; None: nothing."""
    where = Location(MANIFEST_FILE)
    if problem := files.problem(MANIFEST_FILE):
        if "link" in problem:
            return Finding(CODE, problem, "put the file itself into the plugin's folder", where)
    else:
        return Finding(CODE, "plugin.yaml cannot be read", "it must be a regular, readable file", where)
    names = files.names(".") or []
    if near := [name for name in _LOOKALIKES if name in names]:
        return Finding(CODE, f"there is no plugin.yaml, but {near[0]}", f"rename {near[0]} to plugin.yaml", where)
    return None


def _no_manifest(candidate: PluginLocation, files: PluginFiles) -> Finding:
    if found := unreadable_manifest(files):
        return found
    where = Location(MANIFEST_FILE)
    if candidate.distribution is None:
        return Finding(CODE, "the folder holds no plugin.yaml", "add one; `tavern new` shows how it looks", where)
    message = f"there is no plugin.yaml in the package {candidate.module} of {candidate.distribution.name}"
    package = candidate.module.partition(".")[0]
    hint = (
        "put it next to __init__.py; hatchling takes it into the wheel, setuptools only with "
        f'[tool.setuptools.package-data] {package} = ["plugin.yaml", "**/*.tool.json"]'
    )
    return Finding(CODE, message, hint, where)


def _name_findings(candidate: PluginLocation, manifest: Manifest, reading: ManifestReading) -> Iterator[Finding]:
    """Warnings where the plugin's name or version is not what its folder or distribution says (FEATURES E4, E5)."""
    name, found = manifest.name, candidate.distribution

    def warning(key: str, message: str, hint: str) -> Finding:
        return Finding(CODE, message, hint, reading.document.locate((key,)), "warning")

    if found is None:
        if candidate.name != name:
            message = f"the folder is called {candidate.name!r}, the plugin {name!r}"
            yield warning("name", message, f"rename the folder to {name}")
        return
    if candidate.name != name:
        hint = f'write {name} = "{candidate.value}" in pyproject.toml'
        yield warning("name", f"the entry point is called {candidate.name!r}, the plugin {name!r}", hint)
    if len(found.entries) == 1 and normalise(found.name) not in (name, f"tavern-plugin-{name}"):
        hint = f"the usual name is tavern-plugin-{name}"
        yield warning("name", f"the distribution is called {found.name!r}, the plugin {name!r}", hint)
    if not _same_version(found, manifest):
        message = f"plugin.yaml says version {manifest.version}, the distribution {found.name} {found.version}"
        yield warning("version", message, "write the same version in both")


def _same_version(found: Distribution, manifest: Manifest) -> bool:
    if found.version == manifest.version:
        return True
    from packaging.version import InvalidVersion, Version

    try:
        return Version(found.version) == Version(manifest.version)
    except InvalidVersion:
        return False
