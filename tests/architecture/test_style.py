"""Style and types, as tests: what `make lint` says, and rules that no linter knows."""

from __future__ import annotations

import ast
import builtins
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from package_sources import PACKAGE, sources

ROOT = Path(__file__).parents[2]
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc"}
UNFINISHED = re.compile(
    r"#.*\b(?:TO"
    r"DO|FIX"
    r"ME|X"
    r"XX|HA"
    r"CK)\b|raise NotImplemented"
    r"Error|pragma: no "
    r"cover|[Ll]orem "
    r"ipsum"
)
MOST_PARAMETERS = 7
MOST_LINES = 40
MOST_LONG_FUNCTIONS = 0.003
"""The share of functions that may have more lines than `MOST_LINES`, docstring and blank lines included."""
MANY_PARAMETERS = {
    # What callers write by name: decorators and annotations of the plugin API, opening a host, calls of every door.
    "contract/tools.py:tool",
    "contract/nodes.py:Port.__init__",
    "contract/core_services.py:Net.fetch",
    "contract/core_services.py:Net.fetch_sync",
    "builtin/services/net/service.py:PluginNet.fetch",
    "builtin/services/net/service.py:PluginNet.fetch_sync",
    "host/facade.py:Tavern.open",
    "host/facade.py:Tavern.invoke_from",
    "host/facade.py:Tavern.invoke_from_sync",
    "kernel/access/tokens.py:Tokens.create",
    "kernel/calls/pipeline.py:Pipeline.run",
    # The fields of a value, which a dataclass would take as well.
    "model/result.py:_Fields.__init__",
    "model/result.py:ToolResult.__init__",
    "model/call.py:call_of",
    # The options of a command.
    "cli/call.py:call",
    "cli/check.py:check",
    "cli/tokens.py:create",
    "cli/workflows.py:run_",
}
"""Functions that may take more parameters than others, and why."""
SOURCES = [ROOT / "tavern_core", ROOT / "plugin_template", ROOT / "example_plugins", ROOT / "docs"]


BEGINS_WITH_TEXT = re.compile(r"""(?:[ \t]*(?:#.*)?\n)*[rR]?["']""")
RAISES = re.compile(r"^( *)Raises:\n((?:\1 +\S.*\n)+)", re.MULTILINE)
RAISED = re.compile(r"^ +([A-Z]\w+(?:, [A-Z]\w+)*): ", re.MULTILINE)
RAISES_INLINE = re.compile(r"\b[Rr]aises ([A-Z]\w+(?:(?:, | or | and )[A-Z]\w+)*)")
ERRORS_OF_LIBRARIES = {
    *("BadParameter", "BrokenResourceError", "CancelledError", "ClientDisconnect"),
    *("EndOfStream", "MCPError", "ValidationError"),
}
SKIPS = re.compile(r"\.(?:skip|xfail|importorskip)")  # only such files are parsed


def ours(*suffixes: str, tests: bool = False) -> list[Path]:
    """The files of the project, without what was built."""
    folders = [*SOURCES, ROOT / "tests"] if tests else SOURCES
    found = (p for folder in folders for p in folder.rglob("*") if p.suffix in suffixes and p.is_file())
    return sorted(p for p in found if not {"__pycache__", "build", "dist"} & set(p.parts))


def tool(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "NO_COLOR": "1", "FORCE_COLOR": "0", **variables}
    return subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, cwd=ROOT, env=env)


@pytest.mark.slow
@pytest.mark.parametrize("command", [("check",), ("format", "--check")])
def test_ruff_finds_nothing(command: tuple[str, ...]) -> None:
    done = tool("ruff", *command, "--no-cache", ".")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr


@pytest.mark.slow
def test_mypy_strict_finds_nothing_here_and_in_the_example_plugins() -> None:
    plugins = sorted(path.parent for path in ROOT.glob("example_plugins/*/tavern_plugin_*/__init__.py"))
    assert plugins
    packages = [word for name in ("tavern_core", *(plugin.name for plugin in plugins)) for word in ("-p", name)]
    paths = os.pathsep.join(str(folder) for folder in (ROOT, *(plugin.parent for plugin in plugins)))
    done = tool("mypy", "--cache-dir", str(ROOT / ".mypy_cache"), *packages, MYPYPATH=paths)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr


def test_types_of_what_we_import_ourselves_are_checked() -> None:
    """What mypy skips is `Any`: a wrong argument to it is no error. Libraries may import it, the package may not."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["mypy"]["overrides"]
    skipped = [
        re.escape(name.removesuffix(".*"))
        for each in settings
        if each.get("follow_imports") == "skip"
        for name in each["module"]
    ]
    members = [
        rf"{package} +import\b.*\b{name}"
        for package, _, name in (each.rpartition(r"\.") for each in skipped)
        if package
    ]
    imports = re.compile(rf"^[ \t]*(?:from|import) +(?:{'|'.join([*skipped, *members])})\b", re.MULTILINE)
    assert imports.search("    from redis.asyncio.client import Redis") and imports.search("from redis import asyncio")
    found = {path: imports.findall(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py")}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_no_module_has_a_name_without_an_idea() -> None:
    parts = {path: set(path.relative_to(ROOT).with_suffix("").parts) for path in ours(".py")}
    assert [str(path) for path, names in parts.items() if names & FORBIDDEN_NAMES] == []


@pytest.mark.slow
def test_no_module_is_called_tavern() -> None:
    assert [p for p in ROOT.glob("**/tavern/__init__.py") if ".venv" not in p.parts and ".demo" not in p.parts] == []
    assert not (ROOT / "tavern.py").exists()


@pytest.mark.slow
def test_every_module_says_what_it_is() -> None:
    silent = []
    for path in ours(".py"):
        text = path.read_text("utf-8")
        if text.strip() and "{{" not in str(path) and not BEGINS_WITH_TEXT.match(text):
            silent.append(str(path.relative_to(ROOT)))
    assert silent == []


@pytest.mark.slow
def test_nothing_is_unfinished() -> None:
    found = []
    for path in ours(".py", ".md", ".yaml", ".toml", ".json", ".txt"):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if UNFINISHED.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert found == []


@pytest.mark.slow
def test_no_path_of_one_machine_is_in_the_project() -> None:
    found = []
    paths = [*ours(".py", ".md", ".yaml", ".toml", ".json", ".txt", tests=True), ROOT / "Makefile", ROOT / "README.md"]
    # A folder right below / may stand in an example by chance; a longer path does not.
    mine = [re.escape(str(p)) for p in (ROOT, Path.home()) if len(p.parts) > 2]
    here = re.compile(rf"(?:^|[^\w.])(?:{'|'.join(mine) or '(?!)'})(?:/|\b)")
    for path in paths:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if here.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert found == []


def functions_of_the_package() -> list[tuple[str, int, int]]:
    """Every function of tavern_core: its place, and how many parameters and lines it has."""
    return [
        (f"{path.relative_to(PACKAGE)}:{each.name}", each.parameters, each.lines)
        for path, source in sources().items()
        for each in source.functions
    ]


@pytest.mark.slow
def test_the_name_of_a_class_stands_for_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path, source in sources().items():
        for name in source.classes:
            places.setdefault(name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: files for name, files in places.items() if len(files) > 1 and not name.startswith("_")} == {}


@pytest.mark.slow
def test_the_errors_that_docstrings_name_exist() -> None:
    texts = {path: path.read_text("utf-8") for path in sources()}
    known = {name for text in texts.values() for name in re.findall(r"^ *class (\w+)", text, re.MULTILINE)}
    known |= {*dir(builtins), *ERRORS_OF_LIBRARIES}
    unknown = {}
    for path, text in texts.items():
        rows = "".join(rows for _, rows in RAISES.findall(text))
        named = RAISED.findall(rows) + RAISES_INLINE.findall(text)
        if left := {name for names in named for name in re.split(", | or | and ", names)} - known:
            unknown[str(path.relative_to(PACKAGE))] = left
    assert unknown == {}


@pytest.mark.slow
def test_functions_take_few_parameters() -> None:
    found = {place: count for place, count, _ in functions_of_the_package() if count > MOST_PARAMETERS}
    assert {place: count for place, count in found.items() if place not in MANY_PARAMETERS} == {}


@pytest.mark.slow
def test_nearly_all_functions_fit_on_a_screen() -> None:
    found = functions_of_the_package()
    long = sorted((lines, place) for place, _, lines in found if lines > MOST_LINES)
    assert len(long) <= MOST_LONG_FUNCTIONS * len(found), long


@pytest.mark.slow
def test_no_test_is_skipped() -> None:
    found = []
    for path in ours(".py", tests=True):
        text = path.read_text("utf-8")
        if "tests" in path.relative_to(ROOT).parts and "{{" not in str(path) and SKIPS.search(text):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Attribute) and node.attr in (
                    "skip",
                    "skipif",
                    "skipIf",
                    "xfail",
                    "importorskip",
                ):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


def test_the_files_of_every_repository_are_there() -> None:
    for name in ("LICENSE", "README.md", "CHANGELOG.md", "Makefile", ".ci/run", "pyproject.toml", ".gitignore"):
        assert (ROOT / name).is_file(), name
    assert "MIT License" in (ROOT / "LICENSE").read_text("utf-8")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
