"""`tavern plugins check`: does a plugin do what its plugin.yaml says? It reads everything and imports and runs nothing.

    plugin.yaml (strict) ─┐
    tool files, schemas  ─┼─> findings: file, line, column, message, repair
    files it names       ─┤
    its Python source    ─┤   hookimpls against permissions, what they return against what is declared, signatures
    pyproject.toml       ─┘   of a project

Severities: an *error* prevents the plugin, or a part of it, from working; a *warning* is a likely mistake; an *info* is a
remark such as a permission that nothing uses.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import field, replace
from importlib import metadata
from pathlib import Path

from tavern_core.errors import Finding, Location
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.config.config_and_state_paths import PYPROJECT
from tavern_core.kernel.discovery.discovery import discover
from tavern_core.kernel.discovery.distributions import GROUP, normalise
from tavern_core.kernel.discovery.found_plugin import MANIFEST_FILE, FoundPlugin
from tavern_core.kernel.discovery.plugin_reader import unreadable_manifest
from tavern_core.kernel.files.plugin_file_reader import FolderFiles, PluginFiles
from tavern_core.kernel.manifest.manifest_reader import ManifestReading, read_manifest
from tavern_core.kernel.plugins.eligibility import fits_host
from tavern_core.model.nearest import did_you_mean
from tavern_core.review.hookimpl_scan import FoundHook, FoundTool, plugin_sources, scan_sources
from tavern_core.review.manifest_check import MANIFEST, ManifestCheck
from tavern_core.review.packaging_check import project_findings


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of `check_plugin`; `findings` in the order plugin.yaml, tool files, source."""

    name: str
    location: str
    findings: tuple[Finding, ...] = ()
    hooks_found: tuple[FoundHook, ...] = ()
    tools_found: tuple[FoundTool, ...] = ()
    undeclared_tools: tuple[str, ...] = ()
    """Local names of tools that the code returns and `tools:` does not list; `write_tools` would add them."""
    reading: ManifestReading | None = field(default=None, repr=False, compare=False)
    """plugin.yaml with its places, to show the line of a finding."""

    module: str = ""
    """The imported package of an installed plugin."""

    @property
    def is_ok(self) -> bool:
        """True if there are no errors."""
        return all(finding.severity != "error" for finding in self.findings)


def check_plugin(
    target: str | Path,
    *,
    roots: Sequence[Path] = (),
    sys_path: Sequence[str] | None = None,
    host_version: str = "",
) -> CheckReport:
    """Check one plugin without running any of its code.

    Args:
        target: a folder (of the plugin, or of its project), or the name of a plugin or of a distribution.
        roots: where folder plugins are searched by name.
        sys_path: where distributions are searched; None: this interpreter's path.
        host_version: which `requires.host` must admit; empty: not compared.

    Returns:
        The report; for a missing target, it has a single error. The content of a plugin never makes it raise.
    """
    report = _report(target, roots, sys_path)
    if not host_version or report.reading is None or (manifest := report.reading.readable) is None:
        return report
    if fits_host(host_version, needed := manifest.requires.host):
        return report
    message = f"the plugin needs tavern-core {needed}; this is {host_version}, which does not load it"
    hint = f"pip install 'tavern-core{needed}', or correct the range"
    where = report.reading.document.locate(("requires", "host"))
    return replace(report, findings=(*report.findings, Finding(MANIFEST, message, hint, where, "warning")))


def _report(target: str | Path, roots: Sequence[Path], sys_path: Sequence[str] | None) -> CheckReport:
    folder = Path(target)
    if _is_there(folder, folder=True) and (inner := _plugin_folder(folder)) is not None:
        inner = inner.resolve()
        if not (folder / PYPROJECT).is_file():
            return _check(FolderFiles(inner), inner.name, ())
        report = _check(FolderFiles(inner), inner.name, (), inner.name)
        return replace(report, findings=(*report.findings, *project_findings(folder.resolve(), inner, report.reading)))
    found = discover(roots=roots, index_file=None, sys_path=sys_path)
    names = {normalise(p.distribution): p for p in found.plugins if p.distribution} | {p.name: p for p in found.plugins}
    plugin = names.get(normalise(str(target)))
    if plugin is None:
        return _nowhere(str(target), folder, names, sys_path)
    if plugin.files is None:
        return CheckReport(plugin.name, "", plugin.findings)
    module = plugin.module or ""
    return replace(_check(plugin.files, plugin.name, _about_packaging(plugin), module), module=module)


def _is_there(path: Path, *, folder: bool = False) -> bool:
    try:
        return path.is_dir() if folder else path.exists()
    except (OSError, ValueError):  # an impossible file name: too long, with a NUL or a surrogate
        return False


def _plugin_folder(folder: Path) -> Path | None:
    """The folder with plugin.yaml: this one, or the only one in a project below it."""
    if (folder / MANIFEST_FILE).exists() or not (folder / "pyproject.toml").exists():
        return folder
    inner = [found.parent for pattern in ("*", "src/*") for found in sorted(folder.glob(f"{pattern}/{MANIFEST_FILE}"))]
    return inner[0] if len(inner) == 1 else folder


def _nowhere(target: str, folder: Path, names: dict[str, FoundPlugin], sys_path: Sequence[str] | None) -> CheckReport:
    if "/" in target or _is_there(folder):
        finding = Finding(MANIFEST, f"there is no plugin in {target}", "name the folder that holds plugin.yaml")
    else:
        installed = _installed(sys_path)
        if (found := installed.get(normalise(target))) is not None:
            return CheckReport(target, "", (_without_entry_point(found),))
        hint = (
            did_you_mean(target, [*names, *installed])
            or "`tavern plugins list` shows the names; a folder is written as ./folder"
        )
        finding = Finding("PLUGIN_NOT_FOUND", f"there is no plugin or distribution {target!r}", hint)
    return CheckReport(target, "", (finding,))


def _installed(sys_path: Sequence[str] | None) -> dict[str, metadata.Distribution]:
    """Normalised name → distribution; one whose metadata cannot be read is left out."""
    found: dict[str, metadata.Distribution] = {}
    for each in metadata.distributions(path=list(sys.path if sys_path is None else sys_path)):
        try:
            found.setdefault(normalise(each.name), each)
        except (KeyError, TypeError, AttributeError, OSError, ValueError):
            continue
    return found


def _without_entry_point(found: metadata.Distribution) -> Finding:
    """An installed distribution that is not a plugin."""
    try:
        groups = sorted({entry.group for entry in found.entry_points})
        shipped = [
            str(file.parent).replace("/", ".")
            for file in found.files or ()
            if file.name == MANIFEST_FILE and str(file.parent) != "."
        ]
    except (KeyError, TypeError, ValueError, OSError):
        groups, shipped = [], []
    near = did_you_mean(GROUP, groups, 1)
    package = shipped[0] if shipped else f"{normalise(found.name).replace('-', '_')}"
    message = (
        f"the distribution {found.name} {found.version} is installed and has no entry point in the group {GROUP!r}"
    )
    if shipped:
        message += f", although it ships {shipped[0].replace('.', '/')}/{MANIFEST_FILE}"
    line = f'write in its pyproject.toml, under [project.entry-points."{GROUP}"], `<plugin> = "{package}"`'
    return Finding(MANIFEST, message, f"{near} {line}".strip() if near else line, severity="error")


def _about_packaging(plugin: FoundPlugin) -> tuple[Finding, ...]:
    """Names and versions that do not agree: only discovery knows them. The rest is checked again, strictly."""
    words = ("the entry point is called", "the distribution is called", "the distribution ")
    return tuple(f for f in plugin.findings if any(word in f.message for word in words))


def _place(finding: Finding) -> tuple[str, int, int] | None:
    """The value in a file that a finding is about; None: it is about more than one."""
    where = finding.where
    return None if where is None or not where.line else (where.file, where.line, where.column)


def _no_plugin(files: PluginFiles) -> Finding:
    """A folder without plugin.yaml: one of plugins, or of code."""
    inner = [name for name in files.names(".") or () if not files.problem(f"{name}/{MANIFEST_FILE}")]
    hint = f"check a folder in it, such as {inner[0]}" if inner else "put plugin.yaml next to __init__.py"
    return Finding(MANIFEST, "the folder holds no plugin.yaml", hint, Location(MANIFEST_FILE))


def _check(files: PluginFiles, name: str, known: Sequence[Finding], package: str = "") -> CheckReport:
    content = files.read(MANIFEST_FILE)
    if content is None:
        return CheckReport(name, files.place, (*known, unreadable_manifest(files) or _no_plugin(files)))
    reading = read_manifest(content, MANIFEST_FILE, strict=True)
    scan = scan_sources(plugin_sources(files), package)
    findings = [*known, *reading.findings]
    manifest = reading.readable  # errors in plugin.yaml should not hide other errors
    if manifest is None or manifest.name != reading.written_name:
        return CheckReport(
            reading.written_name or name, files.place, (*findings, *scan.findings), tuple(scan.hooks),
            tuple(scan.tools), reading=reading,
        )  # fmt: skip
    checking = ManifestCheck(manifest, reading, files, scan)
    wrong = {_place(finding) for finding in findings if finding.severity == "error"} - {None}
    findings += (finding for finding in checking.run() if _place(finding) not in wrong)  # one mistake, one finding
    return CheckReport(
        manifest.name, files.place, tuple(findings), tuple(scan.hooks), tuple(scan.tools),
        tuple(checking.undeclared), reading,
    )  # fmt: skip
