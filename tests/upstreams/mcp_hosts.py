"""Hosts with MCP servers as upstreams, and calls of their tools."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tavern_core import Tavern

HERE: Final = Path(__file__).parent
ERAS: Final = ("2026", "2025")


def program(name: str, *words: str) -> list[str]:
    """The command of one of the servers in this folder."""
    return [sys.executable, str(HERE / name), *words]


@contextmanager
def host(home: Path, config: Mapping[str, Any] | None = None, **entries: Mapping[str, Any]) -> Iterator[Tavern]:
    """An open host whose upstreams were granted all that they ask for; each entry is of kind mcp."""
    everything = {**(config or {}), "upstreams": {name: {"kind": "mcp", **entry} for name, entry in entries.items()}}
    with ThreadPoolExecutor(1) as threads:  # the test may be inside an event loop
        threads.submit(_grant, everything, home, list(entries)).result()
    with Tavern.open(everything, home=home) as opened:
        yield opened


def _grant(config: Mapping[str, Any], home: Path, names: list[str]) -> None:
    with Tavern.open(config, home=home, activate="none") as opened:
        for name in names:
            opened.grant(name, all_requested=True)
