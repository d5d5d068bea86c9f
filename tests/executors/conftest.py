from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .workbench import Scripts


@pytest.fixture
def scripts(tmp_path: Path) -> Iterator[Scripts]:
    folder = tmp_path / "plugin"
    folder.mkdir()
    made = Scripts(folder)
    yield made
    made.executor.close()
