"""The plugin is tested like any other: installed, granted, in a real host, with another plugin that asks for the time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tavern_core import Plugin, PluginContext, Tavern, hookimpl, tool
from tavern_core.testing import ToolCaller

TIME = "system:get_current_time"


class Asking:
    """A plugin that asks the service itself."""

    @hookimpl
    def tavern_register_tools(self, ctx: PluginContext) -> list[object]:
        view = ctx.service("systemClock")

        @tool
        def seconds() -> float:
            """What time the service says it is."""
            return float(view.now())

        return [seconds]


@pytest.fixture
def tavern_plugins() -> list[Plugin]:
    """What the host has besides the plugin under test."""
    uses = {"permissions": {"services": {"use": ["systemClock"]}}}
    return [Plugin(Asking(), manifest={"name": "asking", "version": "1", **uses})]


def offset(call_tool: ToolCaller) -> timedelta | None:
    """How far from UTC the host's clock is."""
    return datetime.fromisoformat(call_tool(TIME, {}).value).utcoffset()


def test_times_are_reported_in_the_zone_of_the_office(call_tool: ToolCaller) -> None:
    assert offset(call_tool) == timedelta(hours=8)


def test_a_zone_that_is_asked_for_is_reported(call_tool: ToolCaller) -> None:
    assert call_tool(TIME, {"timezone": "UTC"}).value.endswith("+00:00")


@pytest.mark.tavern(settings={"shiftDays": 2})
def test_a_rehearsal_moves_the_day_for_everybody(call_tool: ToolCaller) -> None:
    expected = (datetime.now(UTC) + timedelta(days=2)).timestamp()
    assert call_tool("asking:seconds", {}).value == pytest.approx(expected, abs=60)
    shifted = datetime.fromisoformat(call_tool(TIME, {"timezone": "UTC"}).value)
    assert shifted.timestamp() == pytest.approx(expected, abs=60)


@pytest.mark.tavern(grants=[])
def test_without_the_grant_the_hosts_own_clock_is_used(tavern: Tavern, call_tool: ToolCaller) -> None:
    assert offset(call_tool) == datetime.now().astimezone().utcoffset()
    assert tavern.services.owner("systemClock") == "core-clock"
    assert tavern.plugins["service-override"].state == "pending_consent"


@pytest.mark.tavern(settings={"shiftDays": 400})
def test_when_it_is_disabled_the_hosts_own_clock_is_back(tavern: Tavern, call_tool: ToolCaller) -> None:
    assert call_tool("asking:seconds", {}).value > datetime.now(UTC).timestamp() + 399 * 86_400
    tavern.plugins.disable_sync("service-override")
    assert call_tool("asking:seconds", {}).value == pytest.approx(datetime.now(UTC).timestamp(), abs=60)
