"""Off by default; on when an allow-list names the tool, the plugin or all plugins; never on by accident."""

from __future__ import annotations

import pytest

from tavern_core.testing import OpenTavern

ID = "optional-plugin:dangerous_tool"


@pytest.mark.parametrize(
    "allow",
    [["dangerous_tool"], [ID], ["optional-plugin"], ["group:plugins"], ["Dangerous_Tool"], ["else", "optional-plugin"]],
)
def test_an_allow_list_switches_it_on(open_tavern: OpenTavern, allow: list[str]) -> None:
    tavern = open_tavern(config={"tools": {"allow": allow}})

    assert ID in [spec.id for spec in tavern.tools.list()]
    result = tavern.invoke_sync(ID)
    assert result.value == "Executed!"
    assert result.content == ({"type": "text", "text": "Executed!"},)


@pytest.mark.parametrize("allow", [[], ["my-plugin"], ["dangerous"], ["group:other"], ["optional-plugin:other"], [""]])
def test_without_being_named_it_is_off(open_tavern: OpenTavern, allow: list[str]) -> None:
    tavern = open_tavern(config={"tools": {"allow": allow}})

    assert ID not in [spec.id for spec in tavern.tools.list()]
    result = tavern.invoke_sync(ID)
    assert not result.ok
    why = tavern.tools.why(ID)
    assert not why
    assert "optional" in why.reason


def test_a_deny_list_wins(open_tavern: OpenTavern) -> None:
    tavern = open_tavern(config={"tools": {"allow": ["dangerous_tool"], "deny": ["optional-plugin"]}})
    assert ID not in [spec.id for spec in tavern.tools.list()]
    assert not tavern.invoke_sync(ID).ok
