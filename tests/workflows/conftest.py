"""Async tests here run under asyncio; each has a folder with workflows, and a plugin with nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workflows.folder import Flows


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def flows(tmp_path: Path) -> Flows:
    return Flows(tmp_path)
