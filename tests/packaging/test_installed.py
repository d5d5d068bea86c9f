"""A fresh environment in which pip installed tavern-core and the example plugins as separate packages."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.environments import PLUGINS, PYTEST, ROOT, Environment, copy_environment

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def listed(installed: Environment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Name of a plugin → what the host says about it."""
    done = installed.run("tavern", "plugins", "list", "--json", home=tmp_path_factory.mktemp("home"))
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)}


def test_every_plugin_is_listed(listed: dict[str, Any]) -> None:
    assert set(PLUGINS) <= set(listed)
    assert {listed[name]["state"] for name in PLUGINS} <= {"granted", "active", "pending_consent"}
    assert {listed[name]["distribution"] for name in PLUGINS} == {f"tavern-plugin-{name}" for name in PLUGINS}


def test_check_finds_nothing_wrong(installed: Environment, tmp_path: Path) -> None:
    folders = [str(ROOT / "example_plugins" / plugin) for plugin in PLUGINS]
    installed.tavern(*(["plugins", "check", plugin] for plugin in (*PLUGINS, *folders)), home=tmp_path)


def test_the_tests_of_the_plugins_pass_against_the_installed_packages(installed: Environment, tmp_path: Path) -> None:
    for plugin in PLUGINS:
        project, copy = ROOT / "example_plugins" / plugin, tmp_path / plugin
        copy.mkdir()  # without the package: what is tested is what pip installed
        shutil.copy(project / "pyproject.toml", copy)
        shutil.copytree(project / "tests", copy / "tests")
    options = ("-v", "--import-mode=importlib", "-W", "error", "--rootdir", tmp_path)
    done = installed.run(*PYTEST, *options, tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = set(re.findall(r"^([\w-]+)/tests/.* PASSED ", done.stdout, re.MULTILINE))
    assert (passed, "failed" in done.stdout.splitlines()[-1]) == (set(PLUGINS), False), done.stdout[-500:]


def test_the_demo_runs_and_leaves_a_log_that_is_whole_and_without_a_secret(
    installed: Environment, tmp_path: Path
) -> None:
    done = installed.run("python", ROOT / "example_plugins" / "demo" / "demo.py", tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    picture = re.search(r"<!-- demo -->\n```text\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert picture is not None
    shown = "\n".join(line.rstrip() for line in done.stdout.splitlines()).strip("\n")
    for part in picture[1].strip("\n").split("\n...\n"):
        assert part in shown
    verified = installed.run("tavern", "logs", "verify", home=tmp_path / "home")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    log = (tmp_path / "home" / "audit" / "audit.jsonl").read_text("utf-8")
    assert "call-guard" in log
    assert "sk-0123456789" not in log


def test_uninstalled_plugins_are_gone_and_the_others_stay(
    installed: Environment, listed: dict[str, Any], tmp_path: Path
) -> None:
    environment = copy_environment(installed.folder, tmp_path / "env")
    home = tmp_path / "home"
    environment.pip("uninstall", "-y", "tavern-plugin-my-plugin")
    (done,) = environment.tavern(["plugins", "list", "--json"], home=home)
    assert set(listed) - {row["name"] for row in json.loads(done.stdout)} == {"my-plugin"}
    called = environment.run("tavern", "tools", "call", "my-plugin:greet", home=home)
    assert called.returncode == 5, called.stderr
