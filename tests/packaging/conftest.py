"""What the packaging tests share: wheels of everything, and environments in which pip installed them.

Each is made once for the whole run, also when several workers run the tests.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.environments import (
    PLUGINS,
    ROOT,
    Environment,
    build_wheels,
    copy_environment,
    wheel_of,
)
from tests.packaging.pages import install_as_the_page_says


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this run have in common."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "packaging"
    folder.mkdir(exist_ok=True)
    return folder


def once(folder: Path, name: str, make: Callable[[Path], None]) -> Path:
    """`folder/name`, made by the first who asks; the others wait."""
    target, done = folder / name, folder / f"{name}.done"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(target)
            done.touch()
    return target


@pytest.fixture(scope="session")
def wheels(shared_folder: Path) -> Path:
    """A folder with the wheels of tavern-core and of every example plugin."""
    projects = [ROOT, *(ROOT / "example_plugins" / name for name in PLUGINS)]
    return once(shared_folder, "wheels", lambda folder: build_wheels(folder, *projects))


@pytest.fixture(scope="session")
def checkout(shared_folder: Path) -> Path:
    """A copy of what is under version control, in which the commands of README.md were run. Do not change it."""
    return once(shared_folder, "checkout", install_as_the_page_says)


@pytest.fixture(scope="session")
def core(shared_folder: Path, checkout: Path) -> Path:
    """A fresh environment with tavern-core, what it asks for, and pytest. Do not change it."""

    def make(folder: Path) -> None:
        environment = copy_environment(checkout / ".venv", folder)
        environment.remove("pip", "setuptools")
        environment.pip("install", "tavern-core[testing]")
        # The bytecode of what the tests of a plugin import: it is linked into every copy, which would else make its own.
        (packages,) = folder.glob("lib/python*/site-packages")
        imported = ("_pytest", "pydantic", "tavern_core", "yaml")
        environment.run("python", "-m", "compileall", "-q", *(packages / name for name in imported))
        environment.tavern(["plugins", "list"], ["tools", "list"], home=folder / "home")  # and of what else they import
        shutil.rmtree(folder / "home")

    return once(shared_folder, "core", make)


@pytest.fixture
def environment(core: Path, tmp_path: Path) -> Environment:
    """An environment of this test's own with tavern-core and nothing else."""
    return copy_environment(core, tmp_path / "env")


@pytest.fixture(scope="session")
def installed(shared_folder: Path, core: Path, wheels: Path) -> Environment:
    """An environment with every plugin installed from its wheel, and what their tests need. Do not change it."""
    plugins = [wheel_of(wheels, f"tavern-plugin-{name}") for name in PLUGINS]

    def make(folder: Path) -> None:
        copy_environment(core, folder).pip("install", *plugins, "anyio", "hypothesis")

    return Environment(once(shared_folder, "installed", make))
