"""A host with upstreams, everything that they ask for granted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tavern_core import Tavern, ToolResult


@asynccontextmanager
async def opened(tmp_path: Path, upstreams: dict[str, Any], **config: Any) -> AsyncIterator[Tavern]:
    """The folder of tavern.yaml is `tmp_path`; a second host of it finds what was granted before."""
    path = tmp_path / "tavern.yaml"
    import yaml

    path.write_text(yaml.safe_dump({**config, "upstreams": upstreams}))
    async with Tavern.open(path, home=tmp_path / "home") as host:
        for name in upstreams:
            await host.plugins.grant(name, all_requested=True)
        yield host


def failure(result: ToolResult) -> tuple[str, str, str | None]:
    """(kind, outcome, reason) of a call that failed."""
    assert result.error is not None, result
    return result.error.kind, result.error.outcome, result.error.details.get("reason")
