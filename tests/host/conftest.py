"""One open host per test, in a state folder of its own, without the plugins of the machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Plugin, Tavern

from .workshop import Workshop

QUIET: dict[str, Any] = {"plugins": {"entryPoints": False, "roots": []}}

Opened = Callable[..., Tavern]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def opened(home: Path) -> Iterator[Opened]:
    """`opened(*plugins, **config)` → an open host; closed at the end of the test."""
    hosts: list[Tavern] = []

    def open_host(*plugins: Any, config: dict[str, Any] | None = None, **options: Any) -> Tavern:
        options.setdefault("home", home)
        host = Tavern.open({**QUIET, **(config or {})}, plugins=plugins, **options)
        host.__enter__()
        hosts.append(host)
        return host

    yield open_host
    for host in hosts:
        host.__exit__(None, None, None)


def run(coroutine: Any) -> Any:
    """Run a coroutine on a loop of its own."""
    return asyncio.run(coroutine)


def tools(*offered: Any, name: str = "t", **options: Any) -> Plugin:
    """A plugin that offers these tools."""
    return Plugin(list(offered), name=name, **options)


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    """Makes real plugins, and hosts that find them."""
    shop = Workshop(tmp_path, monkeypatch)
    yield shop
    shop.end()
