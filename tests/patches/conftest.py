"""A host without plugins, shared by the tests that write nothing; and a folder with workflows for the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tavern_core import Tavern
from tests.workflows.folder import Flows


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tavern]:
    with Tavern.open({"plugins": {"entryPoints": False}}, home=tmp_path_factory.mktemp("home")) as tavern:
        yield tavern


@pytest.fixture
def flows(tmp_path: Path) -> Flows:
    return Flows(tmp_path)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
