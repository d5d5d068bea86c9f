"""What is in the packages that get published."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.packaging.environments import PLUGINS, ROOT, build_wheels, clean_environment, wheel_of
from tests.rows import each_row

pytestmark = pytest.mark.slow
TEMPLATE = "tavern_core/plugin_template/{{cookiecutter.__distribution}}"


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheel_has_everything_that_is_not_python(wheels: Path) -> None:
    found = set(names(wheel_of(wheels, "tavern-core")))
    for name in (
        "tavern_core/py.typed",
        "tavern_core/schemas/plugin.schema.json",
        "tavern_core/schemas/tool.schema.json",
        "tavern_core/plugin_template/cookiecutter.json",
        "tavern_core/plugin_template/hooks/pre_gen_project.py",
        f"{TEMPLATE}/pyproject.toml",
        f"{TEMPLATE}/.github/workflows/tests.yml",
        f"{TEMPLATE}/.gitignore",
        f"{TEMPLATE}/{{{{cookiecutter.__package}}}}/plugin.yaml",
        f"{TEMPLATE}/{{{{cookiecutter.__package}}}}/scripts/count_words.py",
    ):
        assert name in found
    assert any(name.endswith("licenses/LICENSE") for name in found)


def test_the_wheel_holds_one_package_and_nothing_that_was_built(wheels: Path) -> None:
    found = names(wheel_of(wheels, "tavern-core"))
    assert {name.split("/")[0].split("-")[0] for name in found} == {"tavern_core"}
    assert not [name for name in found if "__pycache__" in name or name.endswith(".pyc")]


def test_the_metadata_say_what_the_project_is(wheels: Path) -> None:
    wheel = wheel_of(wheels, "tavern-core")
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        (points,) = [n for n in archive.namelist() if n.endswith("entry_points.txt")]
        reported = Parser().parsestr(archive.read(metadata).decode())
        entry_points = archive.read(points).decode()
    assert reported["Name"] == "tavern-core"
    assert reported["License-Expression"] == "MIT"
    assert reported["Requires-Python"] == ">=3.11"
    assert "Typing :: Typed" in reported.get_all("Classifier", [])
    assert reported.get_payload().strip().startswith("# tavern_core")
    assert "tavern = tavern_core.__main__:main" in entry_points
    assert "tavern_core = tavern_core.testing.plugin" in entry_points


@each_row("plugin", PLUGINS)
def test_the_wheel_of_a_plugin_holds_its_manifest(wheels: Path, plugin: str) -> None:
    package = f"tavern_plugin_{plugin.replace('-', '_')}"
    wheel = wheel_of(wheels, f"tavern-plugin-{plugin}")
    found = names(wheel)
    assert f"{package}/plugin.yaml" in found
    assert {name.split("/")[0] for name in found if ".dist-info" not in name} == {package}
    with zipfile.ZipFile(wheel) as archive:
        (points,) = [n for n in found if n.endswith("entry_points.txt")]
        assert archive.read(points).decode().split() == ["[tavern.plugins]", plugin, "=", package]


def test_the_source_distribution_builds_the_same_wheel(tmp_path: Path, wheels: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=clean_environment())
    assert done.returncode == 0, done.stderr
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    for name in (
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "Makefile",
        "docs/hooks.md",
        "tests/packaging",
        "example_plugins/my-plugin",
    ):
        assert (source / name).exists(), name
    (wheel,) = build_wheels(tmp_path / "again", source)
    assert sorted(names(wheel)) == sorted(names(wheel_of(wheels, "tavern-core")))
