from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .workbench import Scripts


@pytest.fixture
def scripts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scripts]:
    """Scripts without a box; `IN_BOTH` tries them in one, too, with the right to start programs."""
    folder = tmp_path / "plugin"
    folder.mkdir()
    made = Scripts(folder, is_boxed=getattr(request, "param", "") == "boxed")
    yield made
    made.close()
