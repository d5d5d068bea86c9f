"""Hooks that fail again and again are left alone for a while, each by itself; a gate refuses meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tavern_core import Plugin, Tavern, ToolResult, hookimpl, tool
from tavern_core.errors import SettingsInvalid

from .conftest import Opened
from .workshop import Workshop, told

SOON = {"limits": {"hookFailures": 3, "hookRestMs": 150}}
LONG = {"limits": {"hookFailures": 3}}


@tool
def echo(text: str = "hi") -> str:
    """Say it back."""
    return text


class Fails:
    """A plugin with one hook that fails while `broken`, and one that always works."""

    def __init__(self, hook: str) -> None:
        self.broken = True
        self.ran = 0

        @hookimpl(specname=hook)
        def run() -> None:
            self.ran += 1
            if self.broken:
                raise ValueError("no luck")

        setattr(self, hook, run)

    @hookimpl
    def tavern_on_event(self, event: Any) -> None:
        """Always works."""


def opened_with(opened: Opened, hook: str, config: dict[str, Any]) -> tuple[Tavern, Fails, list[Any]]:
    plugin, events = Fails(hook), []
    host = opened(Plugin([echo], name="t"), Plugin(plugin, name="weak"), config=config)
    host.events.subscribe(events.append, "HOOK_QUARANTINED", "HOOK_RELEASED")
    return host, plugin, events


def calls(host: Tavern, times: int) -> list[ToolResult]:
    return [host.invoke_sync("t:echo") for _ in range(times)]


OPEN = ["tavern_after_execute", "tavern_transform_result"]
CLOSED = ["tavern_check_call", "tavern_before_execute"]


@pytest.mark.parametrize("hook", [*OPEN, *CLOSED])
def test_a_hook_that_fails_often_is_not_run_any_more(opened: Opened, hook: str) -> None:
    host, plugin, events = opened_with(opened, hook, LONG)
    results = calls(host, 10)
    assert plugin.ran == 3
    assert [r.ok for r in results] == [hook in OPEN] * 10
    (event,) = events
    assert (event.plugin, event.data["hook"], event.data["failures"]) == ("weak", hook, 3)
    (resting,) = host.plugins["weak"].resting
    assert (resting.hook, "no luck" in resting.reason, resting.until > resting.since) == (hook, True, True)
    assert resting.where.rpartition(":")[0].endswith("test_quarantine.py")
    assert resting.until in told(host, "HOOK_QUARANTINED")
    if hook in CLOSED:
        error = results[-1].error
        assert error is not None
        assert error.kind == "POLICY_DENIED"
        assert f"{hook} of weak is quarantined until {resting.until}" in error.message
        assert "tavern plugins reload weak" in error.fix


def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        pass


@pytest.mark.parametrize("hook", [*OPEN, *CLOSED])
def test_after_its_rest_it_is_tried_once_and_released_when_it_works(opened: Opened, hook: str) -> None:
    host, plugin, events = opened_with(opened, hook, SOON)
    calls(host, 3)
    until(lambda: bool(calls(host, 1)) and plugin.ran == 4)  # tried, and failed: it rests again at once
    assert [e.type for e in events] == ["HOOK_QUARANTINED"] * 2
    plugin.broken = False
    until(lambda: bool(calls(host, 1)) and plugin.ran == 5)
    assert events[-1].type == "HOOK_RELEASED"
    assert host.plugins["weak"].resting == ()
    assert told(host, "HOOK_QUARANTINED") == ""
    assert calls(host, 2)[-1].ok


def test_failures_that_are_not_in_a_row_do_not_count(opened: Opened) -> None:
    host, plugin, events = opened_with(opened, "tavern_after_execute", LONG)
    for _ in range(5):
        plugin.broken = True
        calls(host, 2)
        plugin.broken = False
        calls(host, 1)
    assert (plugin.ran, events) == (15, [])


def test_it_can_be_switched_off(opened: Opened) -> None:
    host, plugin, _ = opened_with(opened, "tavern_after_execute", {"limits": {"hookFailures": 0}})
    calls(host, 12)
    assert plugin.ran == 12


def test_a_hook_that_fails_before_settings_are_saved_refuses_them_without_being_run(opened: Opened) -> None:
    option = {"key": "extensions.opts.size", "type": "number", "defaultValue": 1}
    plugin = Fails("tavern_before_save_settings")
    opts = Plugin([echo], manifest={"name": "opts", "version": "1", "configOptions": [option]})
    host = opened(opts, Plugin(plugin, name="weak"), config=LONG)
    for wanted in ("no luck", "no luck", "no luck", "quarantined until", "quarantined until"):
        with pytest.raises(SettingsInvalid, match=wanted):
            host.settings.save({"extensions.opts.size": 2})
    assert plugin.ran == 3
    assert host.settings.get("extensions.opts.size") == 1


def test_each_implementation_rests_by_itself(opened: Opened) -> None:
    class Two:
        ran = 0

        @hookimpl(specname="tavern_after_execute")
        def one(self) -> None:
            raise ValueError

        @hookimpl(specname="tavern_after_execute")
        def two(self) -> None:
            self.ran += 1

    plugin = Two()
    host = opened(Plugin([echo], name="t"), Plugin(plugin, name="weak"), config=LONG)
    calls(host, 8)
    assert plugin.ran == 8
    assert len(host.plugins["weak"].resting) == 1


CODE = """
@hookimpl
def tavern_check_call(call, tool, ctx):
    note("asked")
    raise ValueError("no luck")
"""
ASKS = 'permissions: {hooks: ["hook:server:tool:check"]}'


def told_by(words: list[str]) -> str:
    """What a command of another process prints."""
    return subprocess.run([sys.executable, "-m", "tavern_core", *words], capture_output=True, text=True).stdout


@pytest.mark.slow
def test_other_processes_see_it_and_a_restart_does_not_begin_from_scratch(workshop: Workshop) -> None:
    workshop.folder("weak", CODE, ASKS)
    workshop.grant("weak")
    host = workshop.open(Plugin([echo], name="t"), config=LONG)
    calls(host, 4)
    workshop.close(host)
    asked = workshop.notes().count("asked")
    assert asked == 3
    again = workshop.open(Plugin([echo], name="t"), config=LONG)
    assert "quarantined" in calls(again, 1)[0].error.message
    assert workshop.notes().count("asked") == 3

    project = workshop.root / "tavern.yaml"
    project.write_text(f"plugins: {{roots: [{workshop.plugins}], entryPoints: false}}\n")
    command = ["--config", str(project), "--home", str(workshop.home)]
    info = told_by([*command, "plugins", "info", "weak"])
    assert "quarantined" in info
    assert "no luck" in info
    whole = json.loads(told_by([*command, "plugins", "info", "weak", "--json"]))
    assert [hook["hook"] for hook in whole["quarantined"]] == ["tavern_check_call"]
    doctor = json.loads(told_by([*command, "doctor", "--json"]))
    assert "HOOK_QUARANTINED" in {d["code"] for d in doctor["diagnostics"]}

    again.plugins.reload_sync("weak")
    assert "no luck" in calls(again, 1)[0].error.message
    assert workshop.notes().count("asked") == 4
