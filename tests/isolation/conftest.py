"""Plugins in processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..host.workshop import Workshop


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    """Makes real plugins, and hosts that find them."""
    shop = Workshop(tmp_path, monkeypatch)
    yield shop
    shop.end()
