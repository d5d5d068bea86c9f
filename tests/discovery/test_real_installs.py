"""Plugins that pip really installed: wheel, editable, editable-strict and zipped, by hatchling and setuptools."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from .places import script_tool

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
HATCHLING = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "tavern-plugin-{name}"
version = "1.0"

[project.entry-points."tavern.plugins"]
{name} = "tavern_plugin_{name}"
"""
SETUPTOOLS = (
    HATCHLING.replace("hatchling.build", "setuptools.build_meta").replace("hatchling", "setuptools")
    + """
[tool.setuptools.packages.find]
where = ["{where}"]
"""
)
PACKAGE_DATA = '[tool.setuptools.package-data]\ntavern_plugin_{name} = ["plugin.yaml", "**/*.tool.json"]\n'
ALL_DATA = PACKAGE_DATA.replace('"]', '", "scripts/*"]')
STRICT = ["--config-settings", "editable_mode=strict"]
WHEELS = {
    # name: pyproject.toml, and the folder of the package
    "hatchling": (HATCHLING, "."),
    "setuptools": (SETUPTOOLS + ALL_DATA, "src"),
    "bare": (SETUPTOOLS, "src"),
}
EDITABLE = {
    "live": (HATCHLING, "."),
    "pathfile": (SETUPTOOLS + PACKAGE_DATA, "src"),
    "finder": (SETUPTOOLS + PACKAGE_DATA, "."),
}
LINKS = {"links": (SETUPTOOLS + ALL_DATA, "src")}

LOOK = """
import json, os, site, sys
from pathlib import Path
for folder in sys.argv[2:]:
    site.addsitedir(folder)
from tavern_core.kernel.discovery.discovery import discover
if os.fork():  # the copy looks first, and leaves the index
    os.wait()
found = discover(index_file=Path(sys.argv[1]))
rows = {}
for plugin in found.plugins:
    assert f"tavern_plugin_{plugin.name}" not in sys.modules
    folder = plugin.materialise(Path(sys.argv[1]).parent / "unpacked")
    rows[plugin.name] = {
        "findings": [str(f) for f in plugin.findings], "tools": plugin.declared_tools, "is_failed": plugin.is_failed,
        "has_script": folder is not None and (folder / "scripts/run.py").is_file(),
        "artifact": plugin.artifact_hash() != "",
    }
print(json.dumps(rows))
"""


def project(root: Path, name: str, pyproject: str, where: str) -> str:
    """A plugin project; importing the plugin would end the process."""
    package = root / name / where / f"tavern_plugin_{name}"
    (package / "tools").mkdir(parents=True)
    (package / "scripts").mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    (package / "plugin.yaml").write_text(f'name: {name}\nversion: "1.0"\ntools: {{entry: ./tools}}\n')
    (package / "tools/a.tool.json").write_text(script_tool("a"))
    (package / "scripts/run.py").write_text("print('{}')\n")
    (root / name / "pyproject.toml").write_text(pyproject.replace("{name}", name).replace("{where}", where))
    return str(root / name)


def pip(*arguments: str) -> None:
    common = ["--no-build-isolation", "--no-deps", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", *arguments[:1], *common, *arguments[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def look(root: Path, *sites: Path, path: str = "") -> dict[str, Any]:
    """What fresh processes find, cold and then from the index: a row for each plugin."""
    command = [sys.executable, "-c", LOOK, str(root / "index.json"), *map(str, sites)]
    environment = {"PYTHONPATH": f"{ROOT}:{path}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    cold, warm = map(json.loads, done.stdout.splitlines())
    assert cold == warm
    return dict(warm)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The wheels that pip makes of the projects, by the names of the plugins."""
    root = tmp_path_factory.mktemp("wheels")
    pip("wheel", "--wheel-dir", str(root), *(project(root, name, *of) for name, of in WHEELS.items()))
    return {wheel.name.split("-")[0].removeprefix("tavern_plugin_"): str(wheel) for wheel in root.glob("*.whl")}


@pytest.fixture(scope="module")
def installed(wheels: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is found of all plugins, which pip installed into the site-packages of one fresh prefix."""
    root = tmp_path_factory.mktemp("installed")
    install = ["install", "--no-warn-script-location", "--prefix", str(root / "prefix")]
    pip(
        *install,
        *wheels.values(),
        *(word for name, of in EDITABLE.items() for word in ("-e", project(root, name, *of))),
    )
    pip(*install, *STRICT, *(word for name, of in LINKS.items() for word in ("-e", project(root, name, *of))))
    [site] = (root / "prefix").rglob("site-packages")
    return look(root, site)


def good(name: str) -> dict[str, Any]:
    return {"findings": [], "tools": [f"{name}:a"], "is_failed": False, "has_script": True, "artifact": True}


@pytest.mark.parametrize(
    "name",
    ["hatchling", "live", "setuptools", "pathfile", "finder", "links"],
    ids=["hatchling wheel", "hatchling editable", "setuptools wheel",
         "setuptools editable src (path file)", "setuptools editable flat (finder)", "setuptools editable strict"],
)  # fmt: skip
def test_an_installed_plugin_is_found(installed: dict[str, Any], name: str) -> None:
    assert installed[name] == good(name)


def test_a_wheel_of_setuptools_without_package_data_says_what_is_missing(installed: dict[str, Any]) -> None:
    assert installed["bare"]["is_failed"] is True
    assert "there is no plugin.yaml in the package tavern_plugin_bare" in str(installed["bare"]["findings"])
    assert "[tool.setuptools.package-data]" in str(installed["bare"]["findings"])


def test_a_zipped_install_is_found_and_unpacked(wheels: dict[str, str], tmp_path: Path) -> None:
    assert zipfile.is_zipfile(wheels["hatchling"])
    assert look(tmp_path, path=wheels["hatchling"])["hatchling"] == good("hatchling")
