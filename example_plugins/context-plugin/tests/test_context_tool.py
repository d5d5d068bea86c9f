"""The tool is there exactly where `myFeature.enabled` is set, and speaks of its caller."""

from __future__ import annotations

from typing import Any

import pytest

from tavern_core import CallContext
from tavern_core.testing import OpenTavern, ToolCaller

ID = "context-plugin:context_tool"
ON = {"config": {"myFeature": {"enabled": True}}}


@pytest.mark.tavern(config=ON)
@pytest.mark.parametrize(
    ("agent", "channel", "text"),
    [
        ("writer", "telegram", "Agent: writer, Channel: telegram"),
        ("小酒馆", "网页", "Agent: 小酒馆, Channel: 网页"),
    ],
)
def test_it_names_agent_and_channel_of_its_caller(call_tool: ToolCaller, agent: str, channel: str, text: str) -> None:
    caller = CallContext(agent_id=agent, message_channel=channel)
    assert call_tool("context_tool", context=caller).content == ({"type": "text", "text": text},)


@pytest.mark.parametrize(
    "config",
    [{}, {"myFeature": {}}, {"myFeature": {"enabled": False}}, {"myFeature": None}, {"myFeature": "enabled"}],
)
def test_without_the_feature_there_is_no_such_tool(open_tavern: OpenTavern, config: dict[str, Any]) -> None:
    tavern = open_tavern(config={"config": config})

    assert ID not in [spec.id for spec in tavern.tools.list()]
    assert not tavern.tools.why(ID)
    error = tavern.invoke_sync(ID).error
    assert error is not None
    assert error.kind == "TOOL_NOT_FOUND"


def test_a_caller_may_bring_its_own_configuration(call_tool: ToolCaller) -> None:
    caller = CallContext(agent_id="a", message_channel="c", config={"myFeature": {"enabled": True}})
    call_tool("context_tool", context=caller)
    call_tool.refused("context_tool", kind="TOOL_NOT_FOUND")


@pytest.mark.tavern(config=ON)
def test_callers_share_nothing(call_tool: ToolCaller) -> None:
    answers = [call_tool("context_tool", context=CallContext(agent_id=name)).value for name in ("a", "b", "a")]
    assert answers == [f"Agent: {name}, Channel: None" for name in ("a", "b", "a")]
