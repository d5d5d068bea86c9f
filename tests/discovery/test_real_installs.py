"""Plugins that pip really installed: wheel, editable, editable-strict and zipped, by hatchling and setuptools."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from .places import script_tool

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
HATCHLING = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "tavern-plugin-real"
version = "1.0"

[project.entry-points."tavern.plugins"]
real = "tavern_plugin_real"
"""
SETUPTOOLS = (
    HATCHLING.replace("hatchling.build", "setuptools.build_meta").replace("hatchling", "setuptools")
    + """
[tool.setuptools.packages.find]
where = ["{where}"]
"""
)
PACKAGE_DATA = '[tool.setuptools.package-data]\ntavern_plugin_real = ["plugin.yaml", "**/*.tool.json"]\n'
STRICT = ["--config-settings", "editable_mode=strict"]

LOOK = """
import json, os, site, sys
from pathlib import Path
for folder in sys.argv[2:]:
    site.addsitedir(folder)
from tavern_core.kernel.discovery.discovery import discover
if os.fork():  # the copy looks first, and leaves the index
    os.wait()
found = discover(index_file=Path(sys.argv[1]))
[plugin] = [p for p in found.plugins if p.name == "real"]
assert "tavern_plugin_real" not in sys.modules
folder = plugin.materialise(Path(sys.argv[1]).parent / "unpacked")
print(json.dumps({
    "findings": [str(f) for f in plugin.findings], "tools": plugin.declared_tools, "is_failed": plugin.is_failed,
    "has_script": folder is not None and (folder / "scripts/run.py").is_file(),
    "artifact": plugin.artifact_hash() != "",
}))
"""


def project(root: Path, pyproject: str, where: str = ".") -> Path:
    """A plugin project; importing the plugin would end the process."""
    package = root / "project" / where / "tavern_plugin_real"
    (package / "tools").mkdir(parents=True)
    (package / "scripts").mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    (package / "plugin.yaml").write_text('name: real\nversion: "1.0"\ntools: {entry: ./tools}\n')
    (package / "tools/a.tool.json").write_text(script_tool("a"))
    (package / "scripts/run.py").write_text("print('{}')\n")
    (root / "project/pyproject.toml").write_text(pyproject.replace("{where}", where))
    return root / "project"


def pip(*arguments: str) -> None:
    common = ["--no-build-isolation", "--no-deps", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", *arguments[:1], *common, *arguments[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def install(root: Path, *arguments: str) -> Path:
    """The site-packages of a fresh prefix."""
    pip("install", "--no-warn-script-location", "--prefix", str(root / "prefix"), *arguments)
    [site] = (root / "prefix").rglob("site-packages")
    return site


def look(root: Path, *sites: Path, path: str = "") -> dict[str, object]:
    """What fresh processes find, cold and then from the index."""
    command = [sys.executable, "-c", LOOK, str(root / "index.json"), *map(str, sites)]
    environment = {"PYTHONPATH": f"{ROOT}:{path}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    cold, warm = map(json.loads, done.stdout.splitlines())
    assert cold == warm
    return dict(warm)


GOOD = {"findings": [], "tools": ["real:a"], "is_failed": False, "has_script": True, "artifact": True}


@pytest.mark.parametrize(
    ("pyproject", "where", "options"),
    [
        (HATCHLING, ".", []),
        (HATCHLING, ".", ["-e"]),
        (SETUPTOOLS + PACKAGE_DATA.replace('"]', '", "scripts/*"]'), "src", []),
        (SETUPTOOLS + PACKAGE_DATA, "src", ["-e"]),
        (SETUPTOOLS + PACKAGE_DATA, ".", ["-e"]),
        (SETUPTOOLS + PACKAGE_DATA.replace('"]', '", "scripts/*"]'), "src", [*STRICT, "-e"]),
    ],
    ids=["hatchling wheel", "hatchling editable", "setuptools wheel",
         "setuptools editable src (path file)", "setuptools editable flat (finder)", "setuptools editable strict"],
)  # fmt: skip
def test_an_installed_plugin_is_found(tmp_path: Path, pyproject: str, where: str, options: list[str]) -> None:
    site = install(tmp_path, *options, str(project(tmp_path, pyproject, where)))
    assert look(tmp_path, site) == GOOD


def test_a_wheel_of_setuptools_without_package_data_says_what_is_missing(tmp_path: Path) -> None:
    site = install(tmp_path, str(project(tmp_path, SETUPTOOLS, "src")))
    answer = look(tmp_path, site)
    assert answer["is_failed"] is True
    assert "there is no plugin.yaml in the package tavern_plugin_real" in str(answer["findings"])
    assert "[tool.setuptools.package-data]" in str(answer["findings"])


def test_a_zipped_install_is_found_and_unpacked(tmp_path: Path) -> None:
    pip("wheel", "--wheel-dir", str(tmp_path), str(project(tmp_path, HATCHLING)))
    [wheel] = tmp_path.glob("*.whl")
    assert zipfile.is_zipfile(wheel)
    assert look(tmp_path, path=str(wheel)) == GOOD
