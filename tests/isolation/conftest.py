"""Plugins in processes of their own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..host.workshop import Workshop


@pytest.fixture(scope="module")
def module_folder() -> Iterator[Path]:
    """A folder for the tests of a module; on the disk, as `tmp_path` is here."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    """Makes real plugins, and hosts that find them."""
    shop = Workshop(tmp_path, monkeypatch)
    yield shop
    shop.end()
