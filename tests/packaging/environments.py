"""Wheels and environments, made with pip as a user would."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import pip

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
import contextlib, io, json, sys
from tavern_core.__main__ import main

ended = []
for words in json.loads(sys.argv[1]):
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        ended.append([words, main(words)])
    for stream in out, err:
        stream.flush()
        ended[-1].append(stream.buffer.getvalue().decode())
json.dump(ended, sys.stdout)
"""
PIP: Final = Path(pip.__file__).parent / "__pip-runner__.py"
"""What `pip --python` runs with the other Python, once it has started itself."""


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

    def tavern(
        self, *commands: list[str], home: Path, cwd: Path | None = None
    ) -> list[subprocess.CompletedProcess[str]]:
        """Run commands of `tavern` in one process, for most of what a process costs is its start; each must end with 0."""
        done = self.run("python", "-c", COMMANDS, json.dumps(commands), home=home, cwd=cwd)
        assert done.returncode == 0, done.stdout + done.stderr
        ended = [subprocess.CompletedProcess(*each) for each in json.loads(done.stdout)]
        for each in ended:
            assert each.returncode == 0, f"{each.args}\n{each.stdout}\n{each.stderr}"
        return ended

    def pip(self, *words: str | Path) -> None:
        """Run pip on this environment, that of the environment that runs the tests; an error is shown whole."""
        done = self.run("python", PIP, *words, cwd=ROOT)
        assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"

    def remove(self, *distributions: str) -> None:
        """Delete the files of distributions."""
        (packages,) = self.folder.glob("lib/python*/site-packages")
        for name in distributions:
            for found in metadata.Distribution.discover(name=name, path=[str(packages)]):
                for file in found.files or ():
                    Path(str(file.locate())).unlink(missing_ok=True)
                for top in {file.parts[0] for file in found.files or () if len(file.parts) > 1} - {".."}:
                    shutil.rmtree(packages / top)


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
