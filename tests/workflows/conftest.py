"""Async tests here run under asyncio; each has a folder with workflows, and a plugin with nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tavern_core import Tavern
from tests.workflows.folder import Flows


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def flows(tmp_path: Path) -> Flows:
    return Flows(tmp_path)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tavern]:
    """A host without plugins, for tests that only ask it about workflows or run them."""
    with Tavern.open({"plugins": {"entryPoints": False}}, home=tmp_path_factory.mktemp("home")) as tavern:
        yield tavern
