"""The plugin template: what it makes is a plugin that installs, passes its tests and is called."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from cookiecutter.exceptions import FailedHookException
from cookiecutter.main import cookiecutter

from tavern_core.model.naming_rules import RESERVED_NAMESPACES, is_plugin_name, is_reserved
from tests.packaging.environments import PYTEST, ROOT, Environment, build_wheels
from tests.rows import each_row

TEMPLATE = ROOT / "plugin_template"


def render(folder: Path, **answers: str) -> Path:
    """Render the template without asking anything."""
    return Path(cookiecutter(str(TEMPLATE), no_input=True, output_dir=str(folder), extra_context=answers))


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    """The hook that judges names, as a module; the only template expression in it is behind `__main__`."""
    text = (TEMPLATE / "hooks" / "pre_gen_project.py").read_text("utf-8")
    spec = importlib.util.spec_from_loader("pre_gen_project", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    exec(text.partition('if __name__ == "__main__"')[0], module.__dict__)
    return module


@each_row("name", ["x", "my-tools", "weather", "a1-b2", "3d", "a" * 64, "my-core", "systems", "tavern", "plugin"])
def test_names_that_the_host_takes_are_taken(hook: ModuleType, name: str) -> None:
    assert is_plugin_name(name)
    assert not is_reserved(name)
    assert hook.problem(name) == ""


@each_row(
    ("name", "hint"),
    [
        ("MyTool", "my-tool"),
        ("my_tool", "my-tool"),
        ("my--tool", "my-tool"),
        ("-x", "'x'"),
        ("天气", "my-tools"),
        ("", "my-tools"),
        ("a" * 65, "at most 64"),
        ("tavern-plugin-weather", "'weather'"),
        ("../evil", "'evil'"),
        ('x"; import os', "kebab-case"),
        ("core-tools", "'my-core-tools'"),
        ("work-flow", "'my-work-flow'"),
        ("Code_Interpreter", "'my-tools'"),
        *((name, f"'my-{name.lower()}'") for name in sorted(RESERVED_NAMESPACES)),
    ],
)
def test_names_that_the_host_refuses_are_refused_with_a_better_one(hook: ModuleType, name: str, hint: str) -> None:
    assert hint in hook.problem(name)


def test_the_hook_knows_the_namespaces_of_the_host(hook: ModuleType) -> None:
    assert hook.RESERVED == RESERVED_NAMESPACES


def test_a_refused_name_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(FailedHookException):
        render(tmp_path, name="My Tool")
    assert list(tmp_path.iterdir()) == []


ANSWERS: dict[str, dict[str, str]] = {
    "plain": {"name": "weather"},
    "long": {"name": "my-awesome-3d-plugin", "license": "Apache-2.0", "author": "Ada Lovelace"},
    "chinese": {"name": "tianqi", "display_name": "天气", "description": "查询天气：城市、日期。", "author": "小明"},
    "hostile": {
        "name": "quotes",
        "display_name": 'Say "hi" \\ {x}',
        "description": "a: b # c \"d\" 'e' \\n <f> &",
        "author": 'O"Brien \\ & 小明',
        "license": "proprietary",
    },
}


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A key of `ANSWERS` → the project made with them, once. Do not change it."""
    return functools.cache(lambda key: render(tmp_path_factory.mktemp(key), **ANSWERS[key]))


@pytest.mark.slow
@pytest.mark.parametrize("key", ANSWERS)
def test_every_answer_comes_out_as_it_was_given(rendered: Callable[[str], Path], key: str) -> None:
    project, answers = rendered(key), ANSWERS[key]
    name = answers["name"]
    package = project / f"tavern_plugin_{name.replace('-', '_')}"
    written: dict[str, Any] = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]
    manifest = yaml.safe_load((package / "plugin.yaml").read_text("utf-8"))

    assert project.name == written["name"] == f"tavern-plugin-{name}"
    assert written["entry-points"]["tavern.plugins"] == {name: package.name}
    assert manifest["name"] == name
    assert manifest["version"] == written["version"]
    description = answers.get("description", "Tools for agents.")
    assert written["description"] == manifest["description"] == description
    assert manifest["displayName"] == answers.get("display_name", name.replace("-", " ").title())
    assert [author["name"] for author in written.get("authors", [])] == [a for a in [answers.get("author")] if a]
    assert (project / "LICENSE").exists() == (answers.get("license") != "proprietary")
    compile((package / "__init__.py").read_text("utf-8"), "__init__.py", "exec")


@pytest.mark.slow
def test_the_schema_that_the_editor_reads_is_the_published_one(rendered: Callable[[str], Path]) -> None:
    project = rendered("plain")
    modeline = (project / "tavern_plugin_weather" / "plugin.yaml").read_text("utf-8").splitlines()[0]
    relative = modeline.partition("$schema=")[2]
    schema = (project / "tavern_plugin_weather" / relative).resolve()
    from tavern_core.kernel.manifest.published_schemas import published_schema

    assert modeline.startswith("# yaml-language-server:")
    assert yaml.safe_load(schema.read_text("utf-8")) == published_schema("manifest")


@pytest.mark.slow
def test_what_is_made_is_clean_code(rendered: Callable[[str], Path]) -> None:
    project = rendered("plain")
    rules = ["check", "--isolated", "--no-cache", "--line-length", "120", "--select", "E,F,W,I,UP,B,SIM,RUF,PT"]
    for words in (rules, ["format", "--isolated", "--no-cache", "--line-length", "120", "--check"]):
        command = [sys.executable, "-m", "ruff", *words, str(project)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("key", "how"), [("long", "wheel"), ("chinese", "editable")], ids=["wheel", "editable"])
def test_what_is_made_installs_passes_its_tests_and_is_called(
    rendered: Callable[[str], Path], tmp_path: Path, environment: Environment, key: str, how: str
) -> None:
    project = tmp_path / rendered(key).name
    shutil.copytree(rendered(key), project)
    name = ANSWERS[key]["name"]
    if how == "wheel":
        environment.pip("install", "--no-deps", *build_wheels(tmp_path / "dist", project))
    else:
        environment.pip("install", "-e", f"{project}[test]")  # as its README says

    tests = environment.run(*PYTEST, "-q", cwd=project)
    assert tests.returncode == 0, tests.stdout[-4000:] + tests.stderr
    assert "9 passed" in tests.stdout
    commands = [["plugins", "check", where] for where in (name, str(project))]
    commands.append(["tools", "call", f"{name}:greet", "name=小明"])
    if how == "editable":  # `--trace` runs what is in the folder, however the plugin was installed
        commands.append([*commands[1], "--trace", "--", PYTEST[-1]])
    *checks, call = environment.tavern(*commands, home=tmp_path / "home")[:3]
    for done in checks:
        assert "warning" not in (done.stdout + done.stderr).lower()
    assert call.stdout.strip() == "Hello, 小明!", call.stderr
