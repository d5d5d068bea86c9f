from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tavern_core.builtin.executors.script.executor import ScriptExecutor

from .workbench import Scripts


@pytest.fixture(scope="session")
def executor() -> Iterator[ScriptExecutor]:
    """One executor for all scripts: starting the process that forks them takes longer than most of them."""
    made = ScriptExecutor()
    yield made
    made.close()


@pytest.fixture
def scripts(request: pytest.FixtureRequest, tmp_path: Path, executor: ScriptExecutor) -> Iterator[Scripts]:
    """Scripts without a box; `IN_BOTH` tries them in one, too, with the right to start programs."""
    made = _scripts(request, tmp_path, executor)
    yield made
    made.end()


@pytest.fixture
def own_scripts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scripts]:
    """The same with an executor of its own, whose process may be started, ended and killed."""
    made = _scripts(request, tmp_path, ScriptExecutor())
    yield made
    made.close()


def _scripts(request: pytest.FixtureRequest, tmp_path: Path, executor: ScriptExecutor) -> Scripts:
    folder = tmp_path / "plugin"
    folder.mkdir()
    return Scripts(folder, executor, is_boxed=getattr(request, "param", "") == "boxed")
