"""The pyproject.toml of a plugin's project: will pip install the plugin, with everything that plugin.yaml names?

Read as data; no build backend is run. Values that a backend computes are reported as unseen.
"""

from __future__ import annotations

import ast
import fnmatch
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from packaging.version import InvalidVersion, Version

from tavern_core.errors import Finding, Location
from tavern_core.kernel.config.config_and_state_paths import PYPROJECT
from tavern_core.kernel.discovery.distributions import GROUP, normalise
from tavern_core.kernel.discovery.found_plugin import MANIFEST_FILE
from tavern_core.kernel.files.regular_file import open_regular
from tavern_core.kernel.manifest.manifest_reader import ManifestReading
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.safe_printing import and_more
from tavern_core.review.name_resolution import constant_text

CODE: Final = "MANIFEST_INVALID"
_LARGEST: Final = 1_000_000
_TAKES_ALL: Final = ("flit_core", "poetry.core", "poetry_core", "pdm.backend", "uv_build", "maturin")
"""Backends that put every file of a package into the wheel."""
Severity = Literal["error", "warning"]
_NO_DATA: Final = (".py", ".pyc", ".pyi")


def project_findings(folder: Path, package: Path, reading: ManifestReading | None) -> Iterator[Finding]:
    """The reasons why the plugin in `package` would be missing or incomplete after the project in `folder` is installed.

    Args:
        reading: its plugin.yaml.
    """
    text = _read(folder / PYPROJECT)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        where = Location(PYPROJECT, *(map(int, place.groups()) if place else (1, 1)))
        yield Finding(CODE, f"not TOML: {str(error).partition(' (at')[0]}", "correct it", where)
        return
    project = _Project(folder, package, data, text)
    yield from project.entry_points(reading.written_name if reading is not None else "")
    yield from project.version(reading)
    yield from project.contents()


class _Project:
    def __init__(self, folder: Path, package: Path, data: dict[str, Any], text: str) -> None:
        self._folder, self._package, self._data, self._text = folder, package, data, text
        self._project = _table(data, "project")
        self._dynamic = self._project.get("dynamic") or ()
        self._backend = str(_table(data, "build-system").get("build-backend") or "setuptools.build_meta")
        self._module = (
            package.relative_to(folder / "src" if (folder / "src") in package.parents else folder)
            .as_posix()
            .replace("/", ".")
        )

    # Entry points --------------------------------------------------------------------------------------------------------

    def _no_group(self, groups: Mapping[str, Any], line: str) -> Finding:
        near = (
            did_you_mean(GROUP, groups, 1)
            or (GROUP.partition(".")[0] in groups and "the group is one name: quote it")
            or ""
        )
        found = next((name for name in groups if near and name in near), "")
        message = f"no entry point in the group {GROUP!r}: pip installs the package, and no host finds the plugin"
        message += f" (there is {found!r})" if found else ""
        hint = f'write under [project.entry-points."{GROUP}"] the line `{line}`'
        return self._finding(message, hint, found or "project")

    def entry_points(self, plugin: str) -> Iterator[Finding]:
        groups = _table(self._project, "entry-points")
        line = f'{plugin or self._package.name} = "{self._module}"'
        group = groups.get(GROUP)
        if not self._project and any((self._folder / name).is_file() for name in ("setup.py", "setup.cfg")):
            yield self._unseen("entry points", "setup.py or setup.cfg")
            return
        if not isinstance(group, Mapping) or not group:
            if "entry-points" in self._dynamic:
                yield self._unseen("entry points", self._backend)
                return
            yield self._no_group(groups, line)
            return
        targets = {str(name): str(value) for name, value in group.items()}
        wrong = [
            f for name, value in targets.items() for f in self._target(name, value, f'write {name} = "{self._module}"')
        ]
        yield from wrong
        if self._module in targets.values() and plugin not in targets:
            named = next(name for name, value in targets.items() if value == self._module)
            message = f"the entry point is called {named!r}, the plugin {plugin!r}"
            yield self._finding(message, f"write {line}", named, "warning")
        elif self._module not in targets.values() and not wrong:
            message = f"no entry point names {self._module!r}, where plugin.yaml is"
            yield self._finding(message, f"add {line}", GROUP)

    def _target(self, name: str, value: str, fix: str) -> Iterator[Finding]:
        place = Path(*value.split("."))
        roots = (self._folder / place, self._folder / "src" / place)
        if ":" in value:
            named = "an object; a plugin is a package"
        elif not any((root / "__init__.py").is_file() for root in roots):
            if any(root.with_suffix(".py").is_file() for root in roots):
                named = "a bare module; plugin.yaml needs a package to be in"
            elif any(root.is_dir() for root in roots):
                named, fix = "a folder without __init__.py", f"add {place}/__init__.py"
            else:
                named = "no package of the project"
        elif not any((root / MANIFEST_FILE).is_file() for root in roots):
            named, fix = f"a package without {MANIFEST_FILE}", f"put {MANIFEST_FILE} into it"
        else:
            return
        yield self._finding(f"the entry point {name} = {value!r} names {named}", fix, name)

    # Versions --------------------------------------------------------------------------------------------------------------

    def version(self, reading: ManifestReading | None) -> Iterator[Finding]:
        data = reading.document.data if reading is not None else None
        version = data.get("version") if isinstance(data, dict) else None
        if not isinstance(version, str) or reading is None:
            return  # reported by the check of plugin.yaml
        found = self._project.get("version")
        if found is None and "version" in self._dynamic:
            found = self._computed()
            if found is None:
                yield self._unseen("version", self._backend)
                return
        if isinstance(found, str) and _version(found) != _version(version):
            message = f"plugin.yaml says version {version}, {PYPROJECT} says {found}"
            where = reading.document.locate(("version",))
            yield Finding(CODE, message, "write the same version in both", where, "warning")

    def _computed(self) -> str | None:
        """A dynamic version that is a plain text in a file of the project."""
        source = _table(self._data, "tool", "setuptools", "dynamic").get("version")
        path = _table(self._data, "tool", "hatch", "version").get("path")
        if isinstance(source, Mapping) and isinstance(source.get("attr"), str):
            module, _, name = source["attr"].rpartition(".")
            place = Path(*module.split("."))
            files = [
                root / part
                for root in (self._folder, self._folder / "src")
                for part in (place / "__init__.py", place.with_suffix(".py"))
            ]
        elif isinstance(source, Mapping) and isinstance(source.get("file"), str):
            return _read(self._folder / source["file"]).strip() or None
        elif isinstance(path, str):
            files, name = [self._folder / path], "__version__"
        elif self._backend.startswith("flit_core"):
            files, name = [self._package / "__init__.py"], "__version__"
        else:
            return None
        return next((found for file in files if (found := _constant(_read(file), name))), None)

    # Contents --------------------------------------------------------------------------------------------------------------

    def contents(self) -> Iterator[Finding]:
        """Files of the plugin that the wheel would leave out."""
        backend = self._backend.partition(":")[0]
        files = [
            path.relative_to(self._package).as_posix() for path in sorted(self._package.rglob("*")) if _is_data(path)
        ]
        if backend.startswith("hatchling"):
            yield from self._hatch(_table(self._data, "tool", "hatch", "build", "targets", "wheel"), files)
        elif backend.startswith("setuptools"):
            yield from self._setuptools(_table(self._data, "tool", "setuptools"), files)
        elif not backend.startswith(_TAKES_ALL):
            yield self._unseen("package data", backend)

    def _hatch(self, wheel: Mapping[str, Any], files: list[str]) -> Iterator[Finding]:
        inside = self._package.relative_to(self._folder).as_posix()
        fix = f'[tool.hatch.build.targets.wheel] packages = ["{inside.split(".")[0]}"]'
        listed = [
            str(path).strip("./") for key in ("packages", "only-include", "include") for path in wheel.get(key) or ()
        ]
        usual = normalise(str(self._project.get("name") or "")).replace("-", "_")
        names = (usual, f"src/{usual}")
        takes = any(
            inside == path or inside.startswith(f"{path}/") or fnmatch.fnmatch(f"{inside}/{MANIFEST_FILE}", path)
            for path in listed
        )
        if (
            not takes
            and (listed or not any(inside == name or inside.startswith(f"{name}/") for name in names))
            and "force-include" not in wheel
        ):
            message = f"the wheel leaves out {inside}, where plugin.yaml is"
            yield self._finding(message, fix, "packages" if listed else "project")
            return
        excluded = [str(pattern).lstrip("/") for pattern in wheel.get("exclude") or ()]
        out = [
            f
            for f in files
            if any(fnmatch.fnmatch(f"{inside}/{f}", p) or fnmatch.fnmatch(f.rpartition("/")[2], p) for p in excluded)
        ]
        yield from self._left_out(out, "take the pattern out of `exclude`", "exclude")

    def _setuptools(self, tool: Mapping[str, Any], files: list[str]) -> Iterator[Finding]:
        if any(
            "setuptools-scm" in normalise(str(each))
            for each in _table(self._data, "build-system").get("requires") or ()
        ):
            yield self._unseen("package data", "setuptools-scm, which takes what is under version control")
            return
        packages = tool.get("packages")
        if isinstance(packages, list) and self._module not in packages:
            message = f"the wheel leaves out {self._module}, where plugin.yaml is"
            yield self._finding(message, f"add {self._module!r} to packages", "packages")
            return
        in_manifest = _patterns(_read(self._folder / "MANIFEST.in")) if tool.get("include-package-data", True) else []
        data = _table(tool, "package-data")
        inside = self._package.relative_to(self._folder).as_posix()
        out = []
        for file in files:
            owner, rest = self._owner(file)
            patterns = [str(p) for key in ("*", "", owner) for p in data.get(key) or ()]
            if not any(_fits(rest, p) for p in patterns) and not any(_fits(f"{inside}/{file}", p) for p in in_manifest):
                out.append(file)
        fix = (
            f'[tool.setuptools.package-data] {self._module} = ["**/*"], or build with hatchling, which takes all files'
        )
        yield from self._left_out(out, fix, "package-data")

    def _owner(self, file: str) -> tuple[str, str]:
        """The innermost package of a file, and its path in it."""
        parts = file.split("/")
        for depth in range(len(parts) - 1, 0, -1):
            if (self._package / Path(*parts[:depth]) / "__init__.py").is_file():
                return ".".join([self._module, *parts[:depth]]), "/".join(parts[depth:])
        return self._module, file

    def _left_out(self, files: list[str], fix: str, key: str) -> Iterator[Finding]:
        if not files:
            return
        shown = ", ".join(files[:3]) + and_more(len(files) - 3)
        severity: Severity = "error" if MANIFEST_FILE in files else "warning"
        yield self._finding(f"the wheel leaves out files of the plugin: {shown}", fix, key, severity)

    # Places ----------------------------------------------------------------------------------------------------------------

    def _finding(self, message: str, hint: str, key: str, severity: Severity = "error") -> Finding:
        return Finding(CODE, message, hint, self._at(key), severity)

    def _at(self, key: str) -> Location:
        """The line of a key or a table; the first line if it is missing."""
        pattern = re.compile(rf"^\s*(\[[^\]\n]*)?[\"']?{re.escape(key)}[\"']?\s*[\]=.]", re.MULTILINE)
        found = pattern.search(self._text)
        if found is None:
            return Location(PYPROJECT, 1, 1)
        start = found.end() - len(found[0].lstrip())
        return Location(PYPROJECT, self._text.count("\n", 0, start) + 1, start - self._text.rfind("\n", 0, start))

    def _unseen(self, what: str, by: str) -> Finding:
        message = f"{what}: computed by {by}, which check does not run"
        hint = "`pip install .`, then `tavern plugins check NAME`"
        return Finding("CODE_UNSEEN", message, hint, self._at("build-backend"), "info")


def _table(data: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """A table in a table, and so on; an empty one if there is none."""
    for key in keys:
        found = data.get(key)
        data = found if isinstance(found, Mapping) else {}
    return data


def _read(file: Path) -> str:
    try:
        with open_regular(file) as stream:
            return stream.read(_LARGEST).decode("utf-8-sig", "replace")
    except (OSError, ValueError):
        return ""


def _constant(text: str, name: str) -> str | None:
    try:
        return constant_text(ast.parse(text), name)
    except (SyntaxError, ValueError):
        return None


def _version(text: str) -> Version | str:
    try:
        return Version(text)
    except InvalidVersion:
        return text


def _is_data(path: Path) -> bool:
    return (
        path.is_file()
        and path.suffix not in _NO_DATA
        and not any(part.startswith(".") or part == "__pycache__" for part in path.parts[-3:])
    )


def _fits(file: str, pattern: str) -> bool:
    """setuptools' patterns: ``*`` stays in a folder, ``**`` goes into all."""
    parts = [
        ".*" if p == "**" else re.escape(p).replace(r"\*", "[^/]*").replace(r"\?", "[^/]") for p in pattern.split("/")
    ]
    return re.fullmatch("/".join(parts).replace(".*/", "(?:.*/)?"), file) is not None


def _patterns(text: str) -> list[str]:
    """The files that a MANIFEST.in includes, as patterns."""
    found: list[str] = []
    for line in text.splitlines():
        match line.split():
            case ["include", *patterns]:
                found += patterns
            case ["recursive-include", folder, *patterns]:
                found += [f"{folder.rstrip('/')}/**/{pattern}" for pattern in patterns]
            case ["graft", folder]:
                found.append(f"{folder.rstrip('/')}/**/*")
            case ["global-include", *patterns]:
                found += [f"**/{pattern}" for pattern in patterns]
    return found
