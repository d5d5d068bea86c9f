"""The record says which plugin changed what of a call and of its answer, and shows no secret with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest

from tavern_core import Plugin, Tavern, deny, hookimpl, tool
from tavern_core.kernel.log.call_changes import CallChange, diff
from tests.forked_programs import run_forked

from .conftest import Opened

KEY = "sk-" + "a1B2" * 8


@tool
def send(
    text: str = "", parts: list[str] | None = None, token: Annotated[str, {"format": "password"}] = ""
) -> dict[str, Any]:
    """Say what would be sent."""
    return {"text": text, "parts": parts or []}


def plugin(name: str, **hooks: Any) -> Plugin:
    class Box:
        pass

    box = Box()
    for hook, function in hooks.items():
        setattr(box, hook, hookimpl(specname=hook)(function))
    return Plugin(box, name=name)


def upper(call: Any) -> Any:
    return {**call.arguments, "text": call.arguments["text"].upper()}


def longer(call: Any) -> Any:
    return {
        **call.arguments,
        "parts": [*(call.arguments.get("parts") or []), "more"],
        "text": call.arguments["text"] + "!",
    }


def softer(result: Any) -> Any:
    return result.replace(value={**result.value, "text": result.value["text"].lower()})


def events(host: Tavern) -> list[Any]:
    found: list[Any] = []
    host.events.subscribe(found.append)
    return found


def rows(found: list[Any]) -> list[dict[str, Any]]:
    return [row for event in found for row in event.data.get("diff", ())]


def test_each_change_of_a_call_and_of_its_answer_is_reported_by_plugin(opened: Opened) -> None:
    host = opened(
        Plugin([send], name="post"),
        plugin("a-upper", tavern_before_execute=upper),
        plugin("b-longer", tavern_before_execute=longer),
        plugin("c-softer", tavern_transform_result=softer),
    )
    found = events(host)
    assert host.invoke_sync("post:send", {"text": "hi", "parts": ["x"]}).value == {
        "text": "hi!",
        "parts": ["x", "more"],
    }
    assert rows(found) == [
        {"plugin": "a-upper", "path": "/arguments/text", "before": "hi", "after": "HI"},
        {"plugin": "b-longer", "path": "/arguments/text", "before": "HI", "after": "HI!"},
        {"plugin": "b-longer", "path": "/arguments/parts", "before": ["x"], "after": ["x", "more"]},
        {"plugin": "c-softer", "path": "/value/text", "before": "HI!", "after": "hi!"},
    ]
    assert [[c["plugin"] for c in e.data.get("changedBy", ())] for e in found] == [
        ["a-upper", "b-longer"],
        ["c-softer"],
    ]


@pytest.mark.parametrize("end", ["refused", "invalid", "denied by the next"])
def test_changes_of_calls_that_never_ran_are_reported_too(opened: Opened, end: str) -> None:
    spoil = {"refused": upper, "invalid": lambda call: {**call.arguments, "text": 3}, "denied by the next": upper}[end]
    after: dict[str, Any] = {
        "refused": {"tavern_check_call": lambda call: deny("no")},
        "denied by the next": {"tavern_before_execute": lambda call: deny("no")},
        "invalid": {},
    }[end]
    host = opened(Plugin([send], name="post"), plugin("a", tavern_before_execute=spoil), plugin("b", **after))
    found = events(host)
    assert not host.invoke_sync("post:send", {"text": "hi"}).ok
    assert [(row["plugin"], row["path"]) for row in rows(found)] == [("a", "/arguments/text")]


def test_an_unchanged_call_has_no_diff(opened: Opened) -> None:
    host = opened(Plugin([send], name="post"), plugin("a", tavern_before_execute=lambda call: dict(call.arguments)))
    found = events(host)
    assert host.invoke_sync("post:send", {"text": "hi"}).ok
    assert rows(found) == []


def test_no_secret_is_shown_wherever_a_plugin_puts_it(opened: Opened) -> None:
    def copies(call: Any) -> Any:
        secret = call.arguments["token"]
        return {**call.arguments, "text": f"the token is {secret}", "parts": [secret, KEY], "token": secret[::-1]}

    host = opened(Plugin([send], name="post"), plugin("a", tavern_before_execute=copies))
    found = events(host)
    assert host.invoke_sync("post:send", {"text": "hi", "token": "open-sesame"}).ok
    assert {row["path"] for row in rows(found)} == {"/arguments/text", "/arguments/parts", "/arguments/token"}
    assert not [s for s in ("open-sesame", "emases-nepo", KEY) if s in repr(rows(found))]


def test_many_and_long_differences_are_cut_and_counted() -> None:
    before = {"arguments": {f"k{n}": "a" * 1000 for n in range(50)}}
    after = {"arguments": {f"k{n}": "b" * 1000 for n in range(50)}}
    found = diff([CallChange("p", "all", before, after)], lambda value: value)
    assert len(found) == 21
    assert found[-1] == {"plugin": "p", "more": 30}
    assert len(found[0]["before"]) < 250


@pytest.mark.slow
def test_the_command_shows_each_change(opened: Opened, home: Path) -> None:
    host = opened(Plugin([send], name="post"), plugin("a-upper", tavern_before_execute=upper))
    result = host.invoke_sync("post:send", {"text": "hi"})
    done = run_forked(["-m", "tavern_core", "--home", home, "logs", "explain", result.call_id])
    (line,) = [line for line in done.stdout.splitlines() if "/arguments/text" in line]
    assert line.split() == ["a-upper", "/arguments/text", '"hi"', '"HI"']
