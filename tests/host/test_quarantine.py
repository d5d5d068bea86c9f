"""Hooks that fail again and again are left alone for a while, each by itself; a gate refuses meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Plugin, Tavern, ToolResult, hookimpl, tool
from tavern_core.errors import SettingsInvalid
from tests.forked_programs import run_forked
from tests.programs import tavern

from .conftest import Opened
from .workshop import Workshop, reported

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
    assert resting.until in reported(host, "HOOK_QUARANTINED")
    if hook in CLOSED:
        error = results[-1].error
        assert error is not None
        assert error.kind == "POLICY_DENIED"
        assert f"{hook} of weak is quarantined until {resting.until}" in error.message
        assert "tavern plugins reload weak" in error.fix


def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        pass


@pytest.mark.slow
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
    assert reported(host, "HOOK_QUARANTINED") == ""
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


def test_a_quarantine_begins_and_ends_in_all_open_hosts_of_a_state_folder(opened: Opened, home: Path) -> None:
    hosts = [opened_with(opened, "tavern_check_call", LONG) for _ in range(2)]
    (one, first, _), (other, second, _) = hosts
    calls(other, 1)
    calls(one, 2)  # the second and the third failure in a row
    calls(other, 1)
    assert (first.ran, second.ran) == (2, 1)
    second.broken = False
    one.plugins.enable_sync("weak")
    assert calls(other, 1)[0].ok
    assert "HOOK_QUARANTINED" not in {found.code for found in other.diagnostics}


def test_where_nothing_can_be_kept_a_plugin_that_is_enabled_again_is_tried_again(opened: Opened, home: Path) -> None:
    (home / ".quarantine.json.lock").mkdir(parents=True)  # it cannot be locked, and so not be written
    host, plugin, _ = opened_with(opened, "tavern_check_call", LONG)
    calls(host, 4)
    assert plugin.ran == 3
    plugin.broken = False
    host.plugins.enable_sync("weak")
    assert calls(host, 1)[0].ok
    assert host.plugins["weak"].resting == ()


ASKS = 'permissions: {hooks: ["hook:server:tool:check"]}'


def told_by(words: list[str]) -> str:
    """What a command of another process prints."""
    return run_forked(["-m", "tavern_core", *words]).stdout


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


FAILS_WHILE_TOLD = """
import os
@hookimpl
def tavern_after_execute(call, result):
    note("asked")
    if os.environ.get("TEXT_FAILS"):
        raise ValueError("no luck")
@tool
def echo(text: str = "hi") -> str:
    "Say it back."
    return text
@hookimpl
def tavern_register_tools():
    return [echo]
"""
DECLARES = """
permissions: {hooks: ["hook:server:tool:after-execute"]}
tools: [{id: echo, implementation: {type: python}}]
"""


class Commands:
    """One-shot commands on one home, each a host of its own; `fails` decides what the hook does."""

    def __init__(self, workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
        self.workshop, self._monkeypatch = workshop, monkeypatch
        workshop.folder("weak", FAILS_WHILE_TOLD, DECLARES)
        workshop.grant("weak")

    def call(self, *, fails: bool) -> tuple[str, ...]:
        """Call once; who rests then."""
        self._monkeypatch.setenv("TEXT_FAILS", "yes" if fails else "")
        host = self.workshop.open(config=LONG)
        assert host.invoke_sync("weak:echo").ok
        resting = tuple(hook.hook for hook in host.plugins["weak"].resting)
        self.workshop.close(host)
        return resting

    @property
    def kept(self) -> Path:
        return self.workshop.home / "quarantine.json"

    @property
    def asked(self) -> int:
        return self.workshop.notes().count("asked")


@pytest.fixture
def commands(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(workshop, monkeypatch)


@pytest.mark.slow
def test_failures_of_hosts_that_call_once_add_up(commands: Commands) -> None:
    assert [commands.call(fails=True) for _ in range(4)] == [
        (),
        (),
        ("tavern_after_execute",),
        ("tavern_after_execute",),
    ]
    assert commands.asked == 3


@pytest.mark.slow
def test_a_success_of_a_later_host_begins_anew_and_a_hook_that_works_writes_nothing(commands: Commands) -> None:
    for _ in range(3):
        commands.call(fails=True)
        assert commands.call(fails=True) == ()
        commands.call(fails=False)
    before = commands.kept.stat()
    commands.call(fails=False)
    after = commands.kept.stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert json.loads(commands.kept.read_text())["hooks"] == {}


def test_a_hook_that_never_failed_leaves_no_file(commands: Commands) -> None:
    commands.call(fails=False)
    assert not commands.kept.exists()


@pytest.mark.slow
def test_reloading_forgets_what_was_counted(commands: Commands) -> None:
    commands.call(fails=True)
    commands.call(fails=True)
    host = commands.workshop.open(config=LONG)
    host.plugins.reload_sync("weak")
    commands.workshop.close(host)
    assert commands.call(fails=True) == ()


def row(**changed: Any) -> Callable[[dict[str, Any]], Any]:
    def change(kept: dict[str, Any]) -> Any:
        ((key, found),) = kept["hooks"].items()
        return {**kept, "hooks": {key: {**found, **changed}}}

    return change


WORTH_NOTHING: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a number": lambda kept: 7,
    "another version": lambda kept: {**kept, "version": 2},
    "a list of hooks": lambda kept: {**kept, "hooks": []},
    "a row that is none": lambda kept: {**kept, "hooks": dict.fromkeys(kept["hooks"], 3)},
    "a count that is text": row(failures="2"),
    "a count that is True": row(failures=True),
    "less than nothing": row(failures=-7),
    "no time": row(since="yesterday"),
    "a time before all times": row(since="0001-01-01T00:00:00"),
    "long ago": row(since="2020-01-01T00:00:00Z"),
}


@pytest.mark.slow
def test_a_count_that_is_corrupt_or_too_old_is_none(commands: Commands) -> None:
    commands.call(fails=True)
    commands.call(fails=True)
    two = commands.kept.read_text()
    for what, spoil in WORTH_NOTHING.items():
        commands.kept.write_text(json.dumps(spoil(json.loads(two))))
        assert [commands.call(fails=True) for _ in range(3)] == [(), (), ("tavern_after_execute",)], what


@pytest.mark.slow
def test_a_corrupt_file_counts_as_empty_and_is_reported(commands: Commands) -> None:
    commands.call(fails=True)
    commands.kept.write_text("{cut")
    host = commands.workshop.open(config=LONG)
    assert host.plugins["weak"].resting == ()
    assert str(commands.kept) in reported(host, "STATE_DAMAGED")
    commands.workshop.close(host)
    assert commands.call(fails=True) == ()
    assert [p.read_text() for p in commands.kept.parent.glob("quarantine.json.*")] == ["{cut"]


@pytest.mark.slow
def test_failures_of_hosts_that_run_at_once_add_up_and_a_success_elsewhere_excuses_none(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (commands.workshop.open(config=LONG) for _ in range(2))
    for host, fails in ((one, "yes"), (two, "yes"), (two, ""), (one, "yes"), (one, "yes")):
        monkeypatch.setenv("TEXT_FAILS", fails)
        assert host.plugins["weak"].resting == ()
        host.invoke_sync("weak:echo")
    assert [len(host.plugins["weak"].resting) for host in (one, two)] == [1, 1]
    assert "quarantined" in reported(one, "HOOK_QUARANTINED")


def test_where_nothing_can_be_kept_each_host_counts_for_itself(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.kept.with_name(".quarantine.json.lock").mkdir()  # it cannot be locked, and so not be written
    monkeypatch.setenv("TEXT_FAILS", "yes")
    host = commands.workshop.open(config=LONG)
    for _ in range(6):
        host.invoke_sync("weak:echo")
    assert commands.asked == 3
    assert not commands.kept.exists()


@pytest.mark.slow
def test_commands_that_fail_one_after_the_other_reach_the_quarantine(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    Commands(workshop, monkeypatch)
    monkeypatch.setenv("TEXT_FAILS", "yes")
    project = workshop.root / "tavern.yaml"
    project.write_text(f"plugins: {{roots: [{workshop.plugins}], entryPoints: false}}\nlimits: {{hookFailures: 3}}\n")

    def said(*words: str) -> str:
        return tavern(*words, cwd=workshop.root, home=workshop.home).stdout

    said("plugins", "grant", "weak", "hook:server:tool:after-execute")
    for _ in range(4):
        said("tools", "call", "weak:echo")
    assert workshop.notes().count("asked") == 3
    assert "3 times in a row" in said("plugins", "info", "weak")
    assert "HOOK_QUARANTINED" in said("doctor")
