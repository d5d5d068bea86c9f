"""Each test has a kitchen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.retrieval.kitchen import Kitchen


@pytest.fixture
def kitchen(tmp_path: Path) -> Kitchen:
    return Kitchen(tmp_path)
