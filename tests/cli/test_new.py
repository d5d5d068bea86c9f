"""`tavern new`: names that can be plugins, answers where the template cannot be used."""

from __future__ import annotations

import builtins
import compileall
import shutil
from pathlib import Path
from typing import Any

import pytest

from tavern_core.cli.new import render, template_folder
from tests.cli.conftest import Run

pytestmark = pytest.mark.slow


@pytest.mark.slow
def test_a_plugin_is_made_that_check_has_nothing_against(tavern: Run, tmp_path: Path) -> None:
    answer = tavern("new", "my-tools", "--output-dir", str(tmp_path / "made"), "--no-input")
    assert answer.code == 0, answer
    folder = Path(answer.out.strip())
    assert folder.is_dir()
    assert tavern("plugins", "check", str(folder), "--strict").code == 0
    again = tavern("new", "my-tools", "--output-dir", str(tmp_path / "made"), "--no-input")
    assert (again.code, "error[USAGE]" in again.err) == (2, True)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("MyTools", "my-tools"),
        ("my_tools", "my-tools"),
        ("core", "my-core"),
        ("中文", "my-plugin"),
        ("../x", "did you mean 'x'"),
    ],
)
def test_a_name_that_is_none_is_answered_with_one_that_is(tavern: Run, tmp_path: Path, name: str, hint: str) -> None:
    answer = tavern("new", name, "--output-dir", str(tmp_path / "made"), "--no-input")
    assert (answer.code, hint in answer.err) == (2, True), answer
    assert not (tmp_path / "made").exists()


def test_a_missing_cookiecutter_is_named_with_its_extra(tavern: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("cookiecutter"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    answer = tavern("new", "my-tools", "--no-input")
    assert (answer.code, "tavern-core[scaffold]" in answer.err) == (2, True)


@pytest.mark.parametrize("name", ["0", "1e999", "null", "true"])
def test_a_name_that_looks_like_another_value_is_text_in_the_manifest(tavern: Run, tmp_path: Path, name: str) -> None:
    made = tavern("new", name, "--output-dir", str(tmp_path), "--no-input").out.strip()
    answer = tavern("plugins", "check", made, "--strict")
    assert (answer.code, answer.out) == (0, f"{name}: ok\n"), answer


def test_what_cookiecutter_keeps_in_the_home_is_neither_read_nor_written(
    tavern: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home_of_the_user").write_text("no folder", "utf-8")
    monkeypatch.setenv("HOME", str(tmp_path / "home_of_the_user"))
    answer = tavern("new", "my-tools", "--output-dir", str(tmp_path), "--no-input")
    assert answer.code == 0, answer


def test_a_folder_that_cannot_be_written_is_an_answer(tavern: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    answer = tavern("new", "my-tools", "--no-input", "--output-dir", str(tmp_path / "file" / "below"))
    assert (answer.code, "Traceback" in answer.err) == (2, False)


def test_the_template_is_part_of_what_is_installed() -> None:
    assert (template_folder() / "cookiecutter.json").is_file()


def test_files_that_pip_compiled_in_the_template_are_no_part_of_the_plugin(tmp_path: Path) -> None:
    template = tmp_path / "template"
    shutil.copytree(template_folder(), template)
    compileall.compile_dir(template, quiet=2)
    assert [*template.rglob("*.pyc")]
    made = render(template, "my-tools", tmp_path / "made", ask=False)
    assert not [*made.rglob("*.pyc"), *made.rglob("__pycache__")]
