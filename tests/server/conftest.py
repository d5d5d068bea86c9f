"""A server that the tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.desk import Served, served


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("desk")) as found:
        yield found


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
