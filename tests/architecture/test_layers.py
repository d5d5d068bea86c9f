"""Who may import whom: the contracts of pyproject.toml, and what importing the package costs."""

from __future__ import annotations

import ast
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
from package_sources import sources

import tavern_core

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
HEAVY = (
    "anyio",
    "click",
    "cookiecutter",
    "h11",
    "httpx2",
    "jsonpatch",
    "jsonschema",
    "jsonschema_rs",
    "keyring",
    "langchain_core",
    "mcp",
    "pytest",
    "referencing",
    "rich",
    "sqlite3",
    "stamina",
)


def run(program: str, *flags: str, arguments: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *flags, "-c", program, *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT)


def modules() -> list[str]:
    return [tavern_core.__name__, *(m.name for m in pkgutil.walk_packages(tavern_core.__path__, "tavern_core."))]


def test_the_import_contracts_hold() -> None:
    program = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = run(program)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


STEPS = """
import json, logging, os, signal, sys, threading, warnings

def state():
    return [dict(os.environ), repr(warnings.filters), repr(logging.root.handlers), logging.root.level,
            repr(signal.getsignal(signal.SIGINT)), threading.active_count(), repr(sys.excepthook), os.getcwd()]

steps = []
def done(step):
    steps.append([step, sorted(name for name in sys.modules if "." not in name), state()])

done("nothing")
import tavern_core
done("the package")
[getattr(tavern_core, name) for name in tavern_core.__all__]
done("everything it offers")
import tavern_core.testing, tavern_core.__main__
done("what nobody has used yet")
with open(sys.argv[1], "w") as file:
    json.dump(steps, file)
"""
"""What is imported, and the settings of the process, after each step of one program; it writes them to a file."""


@dataclass(frozen=True)
class Imported:
    """What `STEPS` found: step → top-level modules, and step → settings; and what it printed."""

    modules: dict[str, set[str]]
    settings: dict[str, list[Any]]
    printed: str


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Imported:
    report = tmp_path_factory.mktemp("steps") / "steps.json"
    done = run(STEPS, arguments=[str(report)])
    assert done.returncode == 0, done.stderr
    steps = json.loads(report.read_text("utf-8"))
    names, settings = ({step[0]: step[n] for step in steps} for n in (1, 2))
    return Imported({step: set(found) for step, found in names.items()}, settings, done.stdout + done.stderr)


@pytest.mark.parametrize("step", ["the package", "everything it offers", "what nobody has used yet"])
def test_importing_pulls_in_nothing_heavy(imported: Imported, step: str) -> None:
    assert "tavern_core" in imported.modules[step]
    assert not set(HEAVY) & imported.modules[step]


def test_importing_prints_nothing_and_changes_no_setting_of_the_process(imported: Imported) -> None:
    assert imported.settings["everything it offers"] == imported.settings["nothing"]
    assert imported.printed == ""


FIRST_CALL = """
import sys
from tavern_core import Tavern
with Tavern.open(home=sys.argv[1]) as host:
    assert host.invoke_sync("system:get_current_time", {}).ok
print(*sorted(sys.modules))
"""
WITH_THEIR_FIRST_USE = (
    "tavern_core.assistant", "tavern_core.agents", "tavern_core.box", "tavern_core.kernel.access.profiles", "tavern_core.kernel.catalogue.search",
    "tavern_core.kernel.grants.lock_file", "tavern_core.kernel.nodes.node_signature_reading", "tavern_core.kernel.text.yaml_reader",
    "tavern_core.model.manifest", "tavern_core.model.agent_profile", "tavern_core.tam", "tavern_core.upstreams.upstreams", "yaml",
)  # fmt: skip


def test_a_host_that_calls_a_system_tool_imports_no_part_that_it_does_not_use(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}  # without the skills of this account
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CALL, str(tmp_path / "home")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    assert not set(WITH_THEIR_FIRST_USE) & set(done.stdout.split())


def test_the_pytest_plugin_imports_pytest_and_nothing_else_of_weight() -> None:
    program = (
        "import pytest, sys; before = set(sys.modules)\n"
        "import tavern_core.testing.plugin\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = run(program)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {"tavern_core", "tavern_core.testing", "tavern_core.testing.plugin"}


FIRST = """
import gc, importlib, os, sys, traceback

def child_imports(*names):
    "Whether a child of this process, which has none of our modules, imports these; what else it had to import."
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for name in names:
                importlib.import_module(name)
            os.write(writer, " ".join(name for name in sys.modules if name.split(".")[0] != "tavern_core").encode())
        except BaseException:
            sys.stderr.write(f"== {names[0]}\\n{traceback.format_exc()}\\n")
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        others = pipe.read().split()
    return os.waitpid(child, 0)[1] == 0, others

names = sys.argv[1:]
good, others = child_imports(*names)
for name in others:                      # what others wrote is imported here once: each child only imports our own modules
    if name not in sys.modules and not name.startswith("_"):
        importlib.import_module(name)
assert good and not [name for name in sys.modules if name.split(".")[0] == "tavern_core"]
gc.disable()
gc.freeze()
sys.exit(not all([child_imports(name)[0] for name in names]))
"""


def imported_by(path: Path, known: Collection[str]) -> set[str]:
    """Our own modules that this one names in its imports; its packages, which Python imports before it, do not count."""
    found = set()
    for each in sources()[path].imports:
        if isinstance(each, ast.Import):
            found |= {alias.name for alias in each.names}
        else:
            package = ".".join(path.relative_to(ROOT).parts[: -each.level]) if each.level else ""
            base = ".".join(filter(None, (package, each.module)))
            found |= {name if (name := f"{base}.{alias.name}") in known else base for alias in each.names}
    return found & set(known)


def test_no_module_imports_itself_in_a_circle() -> None:
    """So whichever is imported first, none meets another that is only half imported."""
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in sources()
    }
    assert len(paths) > 100
    tuple(TopologicalSorter({name: imported_by(path, paths) for name, path in paths.items()}).static_order())


def test_modules_are_imported_without_a_warning() -> None:
    done = run(f"import importlib\nfor name in {modules()!r}: importlib.import_module(name)", "-W", "error")
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.soak
def test_every_module_can_be_imported_first_and_without_a_warning() -> None:
    """Tried for each: what `test_no_module_imports_itself_in_a_circle` concludes from the source."""
    names = modules()
    assert len(names) > 100
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", FIRST, *names]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-4000:]
