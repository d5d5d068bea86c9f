"""Workers share one fork server for all tests of this process, as the hosts of one program do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tavern_core.isolation.worker_fork_server import worker_server

from ..host.workshop import Workshop


@pytest.fixture(scope="session", autouse=True)
def one_fork_server() -> Iterator[None]:
    worker_server.use()
    yield
    worker_server.leave()


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    """Makes real plugins, and hosts that find them."""
    shop = Workshop(tmp_path, monkeypatch)
    yield shop
    shop.end()
