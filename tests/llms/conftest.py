"""A host whose models are those of a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Tavern

Open = Callable[..., Tavern]


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    """``opened(llms, plugins=(), roots=(), **config)``: a host that is not started yet, with its own state folder."""

    def made(llms: dict[str, Any], plugins: Any = (), roots: Any = (), **config: Any) -> Tavern:
        folders = {"roots": [str(root) for root in roots], "entryPoints": False}
        whole = {"plugins": folders, "llms": llms, **config}
        return Tavern.open(whole, plugins=list(plugins), home=tmp_path / "home")

    return made
