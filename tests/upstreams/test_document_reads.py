"""Reading resources and prompts of an MCP server: lists and profiles hold for it, and the log says who read what."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tavern_core import CallContext, Tavern
from tavern_core.errors import TavernError, UsageError
from tests.upstreams.mcp_hosts import host, program

pytestmark = pytest.mark.slow

NOTE = "mini://note"


def entry() -> dict[str, Any]:
    return {"command": program("mini_mcp.py", "2026"), "trusted": True}


def caller(**fields: Any) -> CallContext:
    return CallContext(**{"principal": "user:ann", "permissions": frozenset({"process:host"}), **fields})


def reads(tavern: Tavern, context: CallContext | None) -> list[str]:
    """What became of reading the note and the prompt: the code of the error, or empty."""

    async def code(asked: Coroutine[Any, Any, Any]) -> str:
        try:
            await asked
        except TavernError as error:
            return error.code
        return ""

    async def both() -> list[str]:
        return [
            await code(tavern.upstreams.read_resource("mini", NOTE, context=context)),
            await code(tavern.upstreams.get_prompt("mini", "greet", {"who": "Ada"}, context=context)),
        ]

    return asyncio.run(both())


READ, REFUSED = "", "POLICY_DENIED"
Case = tuple[str, CallContext | None, list[str]]
"""What it is, the caller, and what comes of its reads."""
LISTS: list[tuple[dict[str, Any], list[Case]]] = [
    (
        {},
        [
            ("no lists", caller(), [READ, READ]),
            ("a profile without its tools", caller(profile="other"), [REFUSED, REFUSED]),
            ("a profile with one of its tools", caller(profile="reader"), [READ, READ]),
            ("a profile with too few capabilities", caller(profile="poor"), [REFUSED, REFUSED]),
            ("no such profile", caller(profile="nobody"), [REFUSED, REFUSED]),
        ],
    ),
    ({"tools": {"deny": ["mini"]}}, [("the upstream denied", caller(), [REFUSED, REFUSED])]),
    ({"tools": {"deny": ["mini:*"]}}, [("the upstream denied for the host", None, [REFUSED, REFUSED])]),
    ({"tools": {"deny": ["mini:greet"]}}, [("one prompt denied", caller(), [READ, REFUSED])]),
    ({"tools": {"deny": ["mini:mini://note"]}}, [("one address denied", caller(), [REFUSED, READ])]),
    ({"tools": {"only": ["text:count"]}}, [("only other tools", caller(), [REFUSED, REFUSED])]),
    ({"tools": {"only": ["mini"]}}, [("only the upstream", caller(), [READ, READ])]),
    (
        {
            "callers": {
                "user:bob": {"deny": ["mini"]},
                "role:guest": {"allow": ["text:count"]},
            }
        },
        [
            ("denied for another caller", caller(), [READ, READ]),
            ("denied for the caller", caller(principal="user:bob"), [REFUSED, REFUSED]),
            ("not allowed for its role", caller(roles=frozenset({"guest"})), [REFUSED, REFUSED]),
        ],
    ),
]
"""Configuration → callers of a host that has it."""
PROFILES = {
    "other": '{"tool_ids_inventory": ["system:get_current_time"]}',
    "reader": '{"tool_ids_inventory": ["mini:echo"]}',
    "poor": '{"tool_ids_inventory": ["mini:echo"], "capabilities": []}',
}


ENTRIES: dict[str, tuple[str, str, str]] = {
    "a prompt": ("mini:greet", "info", "mini has no tool 'greet'; the entry holds for a prompt or resource"),
    "an address": (
        "mini:mini://note",
        "info",
        "mini has no tool 'mini://note'; the entry holds for a prompt or resource",
    ),
    "a misspelt tool": ("mini:ecko", "warning", "did you mean 'mini:echo'?"),
    "no upstream": ("nosuch:greet", "warning", "no tool, plugin or alias fits 'nosuch:greet'; the entry has no effect"),
    "a tool": ("mini:echo", "", ""),
}


def test_an_entry_for_a_prompt_or_an_address_is_no_mistake_in_a_list(tmp_path: Path) -> None:
    written = [entry for entry, _, _ in ENTRIES.values()]
    config = {"tools": {"deny": written, "pin": ["mini:greet"]}, "callers": {"user:ann": {"deny": written}}}
    with host(tmp_path, config, mini=entry()) as tavern:
        tavern.upstreams.refresh_sync("mini")
        tavern.tools.list()
        found = {
            d.message.partition(": ")[2].partition(": ")[0]: d for d in tavern.diagnostics if d.code == "CONFIG_INVALID"
        }
    for number, (_, severity, said) in enumerate(ENTRIES.values()):
        for place in (f"tools.deny[{number}]", f"callers.user:ann.deny[{number}]"):
            one = found.pop(place, None)
            assert (one.severity if one else "") == severity
            assert said in (f"{one.message} {one.hint}" if one else "")
    (pin,) = found.values()  # reads have no pins
    assert pin.severity == "warning" and "the entry has no effect" in pin.message


@pytest.mark.parametrize(("config", "cases"), LISTS, ids=[cases[0][0] for _, cases in LISTS])
def test_lists_and_profiles_hold_for_what_is_read(tmp_path: Path, config: dict[str, Any], cases: list[Case]) -> None:
    folder = tmp_path / "profiles"
    folder.mkdir()
    for name, text in PROFILES.items():
        (folder / f"{name}.json").write_text(text)
    with host(tmp_path / "home", {**config, "profiles": [str(folder)]}, mini=entry()) as tavern:
        tavern.upstreams.refresh_sync("mini")
        events: list[Any] = []
        tavern.events.subscribe(events.append, "UPSTREAM_READ")
        for what, context, expected in cases:
            events.clear()
            assert reads(tavern, context) == expected, what
            assert [event.data["ok"] for event in events] == [code == READ for code in expected], what
            assert [event.data.get("error", {}).get("kind", READ) for event in events] == expected, what


def test_the_log_says_who_read_what_and_not_what_it_holds(tmp_path: Path) -> None:
    with host(tmp_path / "home", mini=entry()) as tavern:
        events: list[Any] = []
        tavern.events.subscribe(events.append, "UPSTREAM_READ")
        assert reads(tavern, caller(user_id="ann", request_id="r-1")) == [READ, READ]
        note, prompt = (event.data for event in events)
        assert (note["upstream"], note["what"], note["name"]) == ("mini", "resource", NOTE)
        assert (prompt["what"], prompt["name"], prompt["ok"]) == ("prompt", "greet", True)
        assert (note["principal"], note["userId"], note["requestId"]) == ("user:ann", "ann", "r-1")
        assert note["bytes"] > 0 and note["digest"].startswith("sha256:") and note["digest"] != prompt["digest"]
        assert [event.plugin for event in events] == ["mini", "mini"]
        assert reads(tavern, None) == [READ, READ]
        assert events[2].data["principal"] == "host" and events[2].data["digest"] == note["digest"]
    text = (tmp_path / "home" / "audit" / "audit.jsonl").read_text()
    assert text.count('"UPSTREAM_READ"') == 4
    assert "a note" not in text and "Greet Ada" not in text


WRONG: dict[str, tuple[Any, ...]] = {
    "an address that is no text": (5,),
    "a prompt that is no text": (5, {}),
    "arguments that are no mapping": ("greet", 5),
    "an argument that is no text": ("greet", {"who": 1}),
}


def test_what_is_not_of_its_type_is_refused_before_the_server_is_asked(tmp_path: Path) -> None:
    with host(tmp_path / "home", mini=entry()) as tavern:
        for case, given in WRONG.items():
            ask = tavern.upstreams.get_prompt if len(given) > 1 else tavern.upstreams.read_resource
            with pytest.raises(UsageError):
                pytest.fail(f"{case}: {asyncio.run(ask('mini', *given))}")
            assert tavern.upstreams["mini"].asked_at is None, case


def test_what_the_server_refuses_is_in_the_log(tmp_path: Path) -> None:
    with host(tmp_path / "home", mini=entry()) as tavern:
        events: list[Any] = []
        tavern.events.subscribe(events.append, "UPSTREAM_READ")
        with pytest.raises(TavernError) as refused:
            asyncio.run(tavern.upstreams.read_resource("mini", "mini://nowhere"))
        (event,) = events
        assert event.data["error"]["kind"] == refused.value.code and "digest" not in event.data


def test_a_profile_may_name_a_tool_of_an_upstream_that_was_never_listed(tmp_path: Path) -> None:
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    for name, text in PROFILES.items():
        (profiles / f"{name}.json").write_text(text)
    with host(tmp_path / "home", {"profiles": [str(profiles)]}, mini=entry()) as tavern:
        assert reads(tavern, caller(profile="other")) == [REFUSED, REFUSED]
        assert reads(tavern, caller(profile="reader")) == [READ, READ]


def test_a_name_that_a_server_may_read_as_another_is_refused(tmp_path: Path) -> None:
    with host(tmp_path / "home", {"tools": {"deny": [f"mini:{NOTE}"]}}, mini=entry()) as tavern:
        events: list[Any] = []
        tavern.events.subscribe(events.append, "UPSTREAM_READ")
        for written in (f" {NOTE}", f"{NOTE}\n", "mini://no\tte", f"{NOTE}\x00", ""):
            events.clear()
            for asked in (tavern.upstreams.read_resource, tavern.upstreams.get_prompt):
                with pytest.raises(UsageError):
                    pytest.fail(f"{written!r}: {asyncio.run(asked('mini', written, context=caller()))}")
            assert [(event.data["what"], event.data["name"], event.data["ok"]) for event in events] == [
                ("resource", written, False), ("prompt", written, False),
            ]  # fmt: skip


def test_a_text_that_is_no_unicode_is_read_and_in_the_log(tmp_path: Path) -> None:
    with host(tmp_path / "home", mini=entry()) as tavern:
        events: list[Any] = []
        tavern.events.subscribe(events.append, "UPSTREAM_READ")
        answer = tavern.wait(tavern.upstreams.read_resource("mini", "mini://half"))
        assert answer["contents"][0]["text"] == "half \ud83d"
        (event,) = events
        assert event.data["ok"] and event.data["bytes"] > 0


@pytest.mark.parametrize("required", [True, False])
def test_what_cannot_be_recorded_is_not_given_where_the_log_is_required(tmp_path: Path, required: bool) -> None:
    with host(tmp_path / "home", {"audit": {"required": required}}, mini=entry()) as tavern:
        assert reads(tavern, caller()) == [READ, READ]
        shutil.rmtree(tmp_path / "home" / "audit")
        (tmp_path / "home" / "audit").write_text("no folder")
        last = [reads(tavern, caller()) for _ in range(9)][-1]  # the log looks for its file at every 16th event
        assert last == ([REFUSED, REFUSED] if required else [READ, READ])
