"""The manual says what the code does: generated pages are up to date, links work, examples are Python."""

from __future__ import annotations

import ast
import json
import re
import textwrap
import tomllib
from pathlib import Path

import pytest
import yaml
from reference_pages import DIAGNOSTICS, PAGES, reported_codes

from tavern_core.contract.hookspecs import HOOKS
from tavern_core.errors import ERROR_CODES
from tavern_core.tam import PROBLEM_CODES
from tests.rows import each_row

ROOT = Path(__file__).parents[2]
PAGE_FILES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "example_plugins").glob("*/README.md")]
)
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[a-z]*)[^\n]*\n(?P<code>.*?)^(?P=indent)```", re.DOTALL | re.MULTILINE
)
EXAMPLES_OF_NEW_FILES = {f"builtin/{name}.py" for name in ("adapters/echo", "executors/mirror", "policies/hours")} | {
    "cli/motd.py"
}
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """The anchors that a forge makes of the headings."""
    plain = (re.sub(r"[`*]", "", heading).strip().lower() for heading in _HEADING.findall(page.read_text("utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@each_row("name", PAGES)
def test_a_generated_page_is_what_the_tables_say(name: str) -> None:
    written = (ROOT / "docs" / name).read_text("utf-8")
    assert written == PAGES[name](), "run: python tests/architecture/reference_pages.py"


def test_every_hook_has_a_heading_with_its_arguments() -> None:
    headings = _HEADING.findall((ROOT / "docs" / "hooks.md").read_text("utf-8"))
    assert [h for h in headings if h.startswith("`tavern_")] == [
        f"`{hook.name}({', '.join(hook.arguments)})`" for hook in sorted(HOOKS.values(), key=lambda h: not h.is_called)
    ]


def test_every_code_is_in_the_manual() -> None:
    page = (ROOT / "docs" / "errors.md").read_text("utf-8")
    for code in (*ERROR_CODES, *PROBLEM_CODES, *DIAGNOSTICS):
        assert f"- **`{code}`**" in page


@pytest.mark.slow
def test_every_code_that_a_diagnostic_may_have_is_explained() -> None:
    reported = reported_codes()
    assert reported - set(ERROR_CODES) - set(DIAGNOSTICS) == set()
    assert set(DIAGNOSTICS) - reported == set()


def test_the_pages_about_the_code_name_every_package_and_no_file_that_does_not_exist() -> None:
    package = ROOT / "tavern_core"
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    parts = {each.name for folder in (package, package / "kernel") for each in folder.iterdir() if each.is_dir()}
    unnamed = {name for name in parts - {"__pycache__"} if f"{name}/`" not in page}
    assert unnamed == set(), "add a row to the tables of docs/architecture.md"
    paths = re.findall(r"`((?:\w+/)+\w+\.py)`", page + (ROOT / "docs" / "contributing.md").read_text("utf-8"))
    known = [file.as_posix() for folder in (package, ROOT / "tests") for file in folder.rglob("*.py")]
    missing = {path for path in paths if not any(file.endswith(f"/{path}") for file in known)}
    assert missing == EXAMPLES_OF_NEW_FILES, "docs/architecture.md or docs/contributing.md names a file that is gone"


@each_row("page", PAGE_FILES)
def test_links_inside_the_project_lead_somewhere(page: Path) -> None:
    broken = []
    for target in _LINK.findall(_FENCE.sub("", page.read_text("utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        where = (page.parent / file).resolve() if file else page
        if not where.exists() or (anchor and where.suffix == ".md" and anchor not in anchors(where)):
            broken.append(target)
    assert broken == []


@each_row("page", PAGE_FILES)
def test_examples_are_what_they_say_they_are(page: Path) -> None:
    for match in _FENCE.finditer(page.read_text("utf-8")):
        code = textwrap.dedent(match["code"])
        match match["language"]:
            case "python":
                compile(code, f"{page.name}: {code[:60]!r}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            case "json":
                json.loads(code)
            case "toml":
                tomllib.loads(code)
            case "yaml":
                list(yaml.safe_load_all(code))
            case _:
                pass
