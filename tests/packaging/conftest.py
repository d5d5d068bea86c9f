"""What the packaging tests share: wheels of everything, and one fresh environment in which pip installed them.

Both are made once for the whole run, also when several workers run the tests.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.environments import Environment, build_wheels, make_environment


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
    return once(shared_folder, "wheels", build_wheels)


@pytest.fixture(scope="session")
def installed(shared_folder: Path, wheels: Path) -> Environment:
    """A fresh environment with everything installed from wheels. Do not change it."""
    return Environment(once(shared_folder, "installed", lambda folder: make_environment(folder, wheels)))
