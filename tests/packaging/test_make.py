"""The commands of the Makefile exist, say what they do, and need nothing that is not there."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.packaging.environments import PLUGINS, ROOT, clean_environment
from tests.rows import each_row

MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
TARGETS = ("test", "fast", "lint", "soak", "mutants", "bench", "demo", "clean", "help")


def make(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", *words], capture_output=True, text=True, cwd=ROOT, env=clean_environment())


@functools.cache
def plan(target: str) -> subprocess.CompletedProcess[str]:
    """What would be done for a target, with the flags of pytest left out; the search for a Python is tried below."""
    return make("--dry-run", target, "PYTEST_FLAGS=", f"PYTHON={sys.executable}")


@pytest.mark.slow
def test_help_names_every_command() -> None:
    done = make("help")
    assert done.returncode == 0, done.stderr
    assert {line.split()[1] for line in done.stdout.splitlines()} == set(TARGETS)


@pytest.mark.slow
@each_row("target", TARGETS)
def test_every_command_is_a_plan_that_make_understands(target: str) -> None:
    done = plan(target)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_fast_leaves_out_what_is_marked_slow_and_test_only_what_is_marked_soak() -> None:
    commands = {target: plan(target).stdout.splitlines()[-1] for target in ("test", "fast", "soak")}
    assert commands["test"].endswith("-m pytest ")
    assert commands["fast"].endswith('-m "not slow and not soak" ')
    assert commands["soak"].endswith("-m pytest -m soak ")
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]["ini_options"]
    assert config["addopts"].endswith("-m 'not soak'")


def test_the_demo_installs_every_example_plugin_that_behaves() -> None:
    (plugins,) = re.findall(r"^PLUGINS := (.*)$", MAKEFILE, re.MULTILINE)
    behaving = [name for name in PLUGINS if name != "misbehaving"]
    assert sorted(plugins.split()) == behaving
    demo = (ROOT / "example_plugins" / "demo" / "demo.py").read_text("utf-8")
    (ours,) = re.findall(r"^OURS = \((.*?)\)$", demo, re.MULTILINE | re.DOTALL)
    assert sorted(re.findall(r'"([a-z-]+)"', ours)) == behaving


@pytest.mark.slow
def test_a_python_that_is_too_old_is_reported() -> None:
    done = make("python", "PYTHON=")
    assert done.returncode != 0
    assert "3.11" in done.stdout + done.stderr


def test_continuous_integration_runs_the_tests_and_nothing_else() -> None:
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    assert script.splitlines()[-1] == "exec make test"
    done = subprocess.run(["sh", "-n", str(ROOT / ".ci" / "run")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_template_and_the_examples_ask_for_the_same_host() -> None:
    wanted = set()
    for path in [
        *ROOT.glob("example_plugins/*/pyproject.toml"),
        *Path(ROOT / "plugin_template").rglob("pyproject.toml"),
    ]:
        wanted |= set(re.findall(r'"tavern-core(>=[^"]*)"', path.read_text("utf-8")))
    assert len(wanted) == 1
