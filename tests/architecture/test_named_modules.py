"""Modules that are named in a text: a string that starts a process, a setting, a page. No import would miss them."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"\btavern_core(?:\.[A-Za-z_]\w*)+")
FILES = [
    *(ROOT / name for name in ("README.md", "Makefile", "pyproject.toml", ".ci/run")),
    *(
        path
        for folder in ("tavern_core", "docs", "plugin_template", "example_plugins")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md", ".toml", ".yaml", ".yml", ".json"} and not {"build", "dist"} & set(path.parts)
    ),
]
NO_MODULES = {f"tavern_core.{name}" for name in ("data_dir", "secret", "service", "service_change", "pytest")}
"""Audit events (PEP 578), and the name under which pytest keeps what our plugin for it knows."""


def named() -> dict[str, list[str]]:
    """Each dotted name, and the files that have it."""
    found: dict[str, list[str]] = {}
    for path in FILES:
        for name in NAMED.findall(path.read_text("utf-8")):
            if name not in NO_MODULES:
                found.setdefault(name, []).append(str(path.relative_to(ROOT)))
    return found


def resolve(name: str) -> None:
    """Import `name`: a module, or something in one. Raises ImportError or AttributeError."""
    value: object = importlib.import_module("tavern_core")
    parts = name.split(".")
    for end in range(2, len(parts) + 1):
        try:
            value = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            value = getattr(value, parts[end - 1])


@pytest.mark.slow
def test_whatever_a_text_names_is_there() -> None:
    missing = {}
    for name, files in named().items():
        try:
            resolve(name)
        except (ImportError, AttributeError) as error:
            missing[name] = f"{error} (in {', '.join(sorted(set(files)))})"
    assert missing == {}


def test_the_files_that_a_package_lists_are_there() -> None:
    missing = {
        f"{package.relative_to(ROOT)}: {name}"
        for package in (ROOT / "tavern_core").rglob("__init__.py")
        for name in re.findall(r"(?<![\w/`.])\w+\.py\b", ast.get_docstring(ast.parse(package.read_text("utf-8"))) or "")
        if not any(folder.joinpath(name).is_file() for folder in (package.parent, ROOT / "tavern_core" / "box"))
    }
    assert missing == set()
