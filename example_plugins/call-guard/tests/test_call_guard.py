"""The guard is tested like any plugin: installed, granted, in a real host, with a tool of the test's own to guard."""

from __future__ import annotations

from typing import Any

import pytest
from tavern_plugin_call_guard.findings import mask_emails, secrets_in

from tavern_core import Plugin, Tavern, tool
from tavern_core.testing import OpenTavern, ToolCaller

KEY = "sk-" + "a1B2" * 8


@tool
def send(text: str = "", parts: list[str] | None = None) -> dict[str, Any]:
    """Say what would be sent."""
    return {"text": text, "parts": parts or []}


@pytest.fixture
def tavern_plugins() -> list[Plugin]:
    """What the host has besides the plugin under test: something to guard."""
    return [Plugin([send], name="post")]


def test_addresses_are_masked_before_the_tool_sees_them(call_tool: ToolCaller) -> None:
    arguments = {"text": "to ada@example.org, 抄送 bob@例.example.com", "parts": ["<eve@mail.example>"]}
    value = call_tool("post:send", arguments).value
    assert value["text"].startswith("to [e-mail], 抄送 ")
    assert value["parts"] == ["<[e-mail]>"]


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"text": f"use {KEY} please"}, "/text"),
        ({"text": "AKIA" + "ABCD" * 4}, "/text"),
        ({"parts": ["fine", "ghp_" + "a" * 36]}, "/parts/1"),
        ({"text": "-----BEGIN RSA PRIVATE KEY-----\nMII..."}, "/text"),
    ],
)
def test_secrets_are_refused_and_not_repeated(call_tool: ToolCaller, arguments: dict[str, Any], where: str) -> None:
    error = call_tool.refused("post:send", arguments, kind="POLICY_DENIED")

    assert where in error.message
    assert error.details["plugin"] == "call-guard"
    secret = str(arguments).split()[-1].strip("'}]")
    assert secret not in str(error)


@pytest.mark.tavern(grants=[])
def test_without_a_grant_it_does_nothing_and_says_so(tavern: Tavern, call_tool: ToolCaller) -> None:
    assert call_tool("post:send", {"text": KEY}).value["text"] == KEY
    status = tavern.plugins["call-guard"]
    assert status.state == "pending_consent"
    assert "tavern plugins grant call-guard" in status.reason


@pytest.mark.tavern(grants=["hook:server:tool:check"])
def test_hooks_are_granted_one_by_one(call_tool: ToolCaller) -> None:
    assert call_tool("post:send", {"text": "ada@example.org"}).value["text"] == "ada@example.org"
    call_tool.refused("post:send", {"text": KEY}, kind="POLICY_DENIED")


@pytest.mark.tavern(settings={"maskEmails": False})
def test_masking_can_be_switched_off(call_tool: ToolCaller) -> None:
    assert call_tool("post:send", {"text": "ada@example.org"}).value["text"] == "ada@example.org"


def test_trusted_tools_are_left_alone(open_tavern: OpenTavern) -> None:
    tavern = open_tavern(settings={"trustedTools": "post:send\nother:tool"})
    result = tavern.invoke_sync("post:send", {"text": f"ada@example.org {KEY}"})
    assert result.value == {"text": f"ada@example.org {KEY}", "parts": []}


@pytest.mark.parametrize("text", ["", "no address", "a@b", "@example.org", "user@localhost", "1@2.3", "价格@九折"])
def test_text_without_an_address_stays_as_it_is(text: str) -> None:
    assert mask_emails(text) == text


@pytest.mark.parametrize("text", ["sk-short", "task-force-of-many-many-people-in-the-room", "AKIA", "ghp_x", "公开"])
def test_ordinary_words_are_no_secrets(text: str) -> None:
    assert list(secrets_in({"text": text})) == []


@pytest.mark.parametrize("piece", ["a", "a.", "a@", "a@b.", "sk-", "-----BEGIN ", "ghp_", "@", "@a"])
def test_long_hostile_text_is_read_once(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))  # a pattern that backtracks would never come to the end of this
    assert mask_emails(text) == text
    list(secrets_in(text))
