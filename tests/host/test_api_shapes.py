"""The host's API has the names and shapes that its users expect."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from tavern_core import Plugin, Service, hookimpl, tool
from tavern_core.errors import ToolFailed, ToolNotFound

from .conftest import Opened, run, tools

ODD: Any = (3, None, [], {}, b"x")
"""What is no id."""


@tool
def count(text: str) -> int:
    "Count words."
    return len(text.split())


class Clock:
    """A service."""

    def now(self) -> int:
        return 0


class Clocks:
    @hookimpl
    def tavern_register_services(self) -> list[Service]:
        return [Service("clock", Clock())]


# Tools and services as collections --------------------------------------------------------------------------------------


def test_tools_are_a_collection_of_ids(opened: Opened) -> None:
    host = opened(tools(count, name="text"))
    assert "text:count" in host.tools and "text.count" in host.tools and "text:none" not in host.tools
    assert all(bad not in host.tools for bad in ODD)
    assert list(host.tools) == sorted(host.tools) and len(host.tools) == len(list(host.tools))
    assert all(host.tools[tool_id].id == tool_id for tool_id in host.tools)


def test_an_unknown_tool_is_none_or_an_error_as_it_is_asked_for(opened: Opened) -> None:
    host = opened(tools(count, name="text"))
    assert host.tools.get("text:count") == host.tools["text:count"]
    assert host.tools.get("text:cuont") is None and all(host.tools.get(bad) is None for bad in ODD)
    assert host.tools.get("text:cuont", 3) == 3
    with pytest.raises(ToolNotFound, match="text:cuont") as caught:
        host.tools["text:cuont"]
    assert "text:count" in f"{caught.value.hint} {caught.value.details}"
    with pytest.raises(ToolNotFound):
        host.tool_schema("text:cuont")


def test_services_are_a_collection_of_names(opened: Opened) -> None:
    host = opened(Plugin(Clocks(), name="clocks"))
    assert "clock" in host.services and "watch" not in host.services
    assert list(host.services) == ["clock"] and len(host.services) == 1
    assert host.services.get("clock") is host.services["clock"]
    assert host.services.get("clok") is None
    with pytest.raises(ToolFailed, match="clok"):
        host.services["clok"]


def test_a_refresh_may_be_awaited_or_not(opened: Opened) -> None:
    host = opened(tools(count, name="text"))

    async def awaited(answer: Awaitable[Any]) -> Any:
        return await answer

    assert run(awaited(host.tools.refresh())) == host.tools.refresh()
