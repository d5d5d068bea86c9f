"""What holds for all tests."""

from __future__ import annotations

import compileall
import contextlib
import gc
import importlib
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tavern_core.gc_pause import collector_paused
from tavern_core.isolation.worker_fork_server import worker_server

# Texts for models follow the locale where nothing else is said.
os.environ.update(LC_ALL="C.UTF-8")

# No test is judged by the clock: a busy machine must not fail a correct program. Bounds of time are for `make soak`.
settings.register_profile("tavern", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tavern")

# The folders of the tests are in memory where it has room: on a disk, making and removing them takes as long as the tests.
MEMORY = "/dev/shm"
ROOM = 4 << 30
BOXED = {"docs", "executors", "isolation", "upstreams"}
"""Parts whose programs run in boxes: a box has a /dev/shm of its own, so their folders are on the disk."""

with contextlib.suppress(OSError):
    place = os.statvfs(MEMORY)
    if place.f_bavail * place.f_frsize > ROOM and not place.f_flag & os.ST_NOEXEC and os.access(MEMORY, os.W_OK):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)

# A shell ignores SIGINT for what it runs in the background, and so do some CI systems. The programs that the tests start would
# inherit that, and could not be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


ALL_SLOW = re.compile(r"^pytestmark = .*\bpytest\.mark\.slow\b", re.MULTILINE)
"""In a file whose tests are all slow."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where slow tests are left out, each worker need not import the files that hold no others."""
    is_file = collection_path.match("test_*.py")
    return True if is_file and "not slow" in config.option.markexpr and is_all_slow(collection_path) else None


def is_all_slow(file: Path) -> bool:
    return ALL_SLOW.search(file.read_text("utf-8")) is not None


def compile_own_share(config: pytest.Config) -> None:
    """Of workers that import everything, each begins with other files: in a new checkout, where nothing is compiled, it
    finds the rest compiled by the others. In one order, each would compile everything, which takes longer than all imports.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    if workers == 1 or sys.dont_write_bytecode or config.args != config.getini("testpaths"):
        return
    own = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")) % workers
    tests = Path(__file__).parent
    for module in sorted((tests.parent / "tavern_core").rglob("*.py"))[own::workers]:
        compileall.compile_file(module, quiet=2)
    for file in sorted(tests.glob("*/test_*.py"))[own::workers]:
        if (file.parent / "__init__.py").exists() and not pytest_ignore_collect(file, config):
            with contextlib.suppress(Exception):  # collecting it reports what is wrong
                importlib.import_module(f"tests.{file.parent.name}.{file.stem}")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Collecting makes a million objects that stay: the cycle collector never looks at them again.

    Else each of its searches among old objects takes half a second, which was a fifth of the time of the tests.
    """
    with collector_paused():
        compile_own_share(session.config)
        collected = yield
    gc.freeze()
    gc.set_threshold(10_000)
    return collected


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder for one test."""
    if request.path.relative_to(Path(__file__).parent).parts[0] in BOXED:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    else:
        yield request.getfixturevalue("tmp_path")


@pytest.fixture(scope="session", autouse=True)
def one_fork_server() -> Iterator[None]:
    """Workers share one fork server for all tests of this process, as the hosts of one program do."""
    worker_server.use()
    yield
    worker_server.leave()
