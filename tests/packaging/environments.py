"""Wheels and environments, made with pip as a user would."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PLUGINS: Final = sorted(p.parent.name for p in (ROOT / "example_plugins").glob("*/pyproject.toml"))
PYTEST: Final = ("python", "-m", "pytest", "-p", "no:cacheprovider", "--assert=plain")
"""Without rewriting: in a new environment it would rewrite all of tavern_core, which takes as long as the tests."""
QUIET: Final = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "PIP_COMPILE": "0",  # most of it is never imported
    "HYPOTHESIS_STORAGE_DIRECTORY": str(ROOT / ".hypothesis"),  # its table of all characters takes seconds
    "NO_COLOR": "1",
}


def clean_environment(**added: str) -> dict[str, str]:
    """The variables of this process without what would lead into the environment that runs the tests."""
    dropped = ("TAVERN_", "PYTEST_", "PYTHON", "COV", "VIRTUAL_ENV", "MAKE", "MFLAGS")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    return {**kept, **QUIET, **added}


COMMANDS: Final = """
import json, sys
from tavern_core.__main__ import main

sys.exit(any([main(words) for words in json.loads(sys.argv[1])]))
"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def run(
        self, *command: str | Path, cwd: Path | None = None, home: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of this environment; `home` is where a host keeps its state."""
        program = self.folder / "bin" / str(command[0])
        env = clean_environment(**({"TAVERN_HOME": str(home)} if home else {}))
        words = [str(word) for word in (program, *command[1:])]
        return subprocess.run(words, capture_output=True, text=True, cwd=cwd or self.folder, env=env)

    def tavern(self, *commands: list[str], home: Path) -> subprocess.CompletedProcess[str]:
        """Run commands of `tavern` in one process, for most of what a process costs is its start; each must end with 0."""
        done = self.run("python", "-c", COMMANDS, json.dumps(commands), home=home)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def pip_install(self, *what: str | Path) -> None:
        """Install into this environment, with the pip of the environment that runs the tests."""
        pip("--python", self.python, "install", *what)


def pip(*words: str | Path) -> None:
    """Run pip; an error is shown whole."""
    command = [sys.executable, "-m", "pip", *(str(word) for word in words)]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), cwd=ROOT)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


BUILD = """
import os, sys
from hatchling.build import build_wheel

for project in sys.argv[2:]:
    os.chdir(project)
    print(build_wheel(sys.argv[1]))
"""


def build_wheels(folder: Path, *projects: Path) -> list[Path]:
    """The wheel of each project, built in one process with the hatchling of the environment that runs the tests."""
    command = [sys.executable, "-c", BUILD, str(folder), *map(str, projects)]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return [folder / name for name in done.stdout.splitlines()]


def wheel_of(wheels: Path, name: str) -> Path:
    """The wheel of a distribution."""
    (found,) = wheels.glob(f"{name.replace('-', '_')}-*.whl")
    return found


def copy_environment(original: Path, folder: Path) -> Environment:
    """An environment that holds what another holds, without asking the index again; either may change without the other.

    The packages are links to the same files: pip and Python replace files, they never write into one.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = original.glob("lib/python*/site-packages")
    shutil.copytree(packages, folder / packages.relative_to(original), copy_function=os.link, dirs_exist_ok=True)
    for program in (original / "bin").iterdir():
        if not (folder / "bin" / program.name).exists():  # a console script: its first line names the interpreter
            text = program.read_text("utf-8").replace(f"{original}/", f"{folder}/")
            (folder / "bin" / program.name).write_text(text, "utf-8")
            shutil.copymode(program, folder / "bin" / program.name)
    return Environment(folder)
