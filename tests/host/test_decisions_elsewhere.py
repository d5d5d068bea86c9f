"""What another process decides about plugins takes effect in a host that runs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tavern_core import PluginError, Tavern
from tavern_core.kernel.files.json_state import JsonStateFile
from tavern_core.kernel.plugins.reconciler import Activate
from tavern_core.model.event import PLUGIN_STATE
from tavern_core.model.plugin_status import PluginStatus
from tests import programs

pytestmark = pytest.mark.slow

MANIFEST = """
name: pen
version: "1"
permissions: {capabilities: [{name: "read:fs", reason: to look}]}
tools:
- {id: look, implementation: {type: python}}
"""
CODE = """
from tavern_core import hookimpl, tool

@tool(capabilities={"read:fs"})
def look() -> str:
    return "seen"

@hookimpl
def tavern_register_tools():
    return [look]
"""

WAITS = """
import time
from pathlib import Path

def wait():
    Path(FOLDER, "waits").touch()
    while not Path(FOLDER, "goes on").exists():
        time.sleep(0.01)
"""
SLOW_START = """
@hookimpl
def tavern_start(ctx):
    wait()
"""
SLOW_TOOL = """
@tool(capabilities={"read:fs"})
def look() -> str:
    wait()
    return "seen"
"""
HOOK = """
from tavern_core import hookimpl

@hookimpl
def tavern_transform_result(call, result):
    return result.replace(value="changed")
"""
NEEDY = """
from tavern_core import hookimpl, tool

@hookimpl
def tavern_start(ctx):
    ctx.secret("pin")
"""


class Home:
    """A folder with the plugin, and what people type there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        plugin = folder / "plugins" / "pen"
        plugin.mkdir(parents=True)
        (plugin / "plugin.yaml").write_text(MANIFEST, encoding="utf-8")
        (plugin / "__init__.py").write_text(CODE, encoding="utf-8")
        (folder / "tavern.yaml").write_text("isolation: {level: none}\n", encoding="utf-8")

    def add(self, name: str, code: str = "", permissions: str = "capabilities: [{name: network}]") -> None:
        """A plugin that asks for `permissions`."""
        plugin = self.folder / "plugins" / name
        plugin.mkdir()
        manifest = f'name: {name}\nversion: "1"\npermissions: {{{permissions}}}\n'
        (plugin / "plugin.yaml").write_text(manifest, encoding="utf-8")
        (plugin / "__init__.py").write_text(code, encoding="utf-8")

    def write(self, addition: str) -> None:
        """Add to the code of the plugin."""
        code = CODE + f"FOLDER = {str(self.folder)!r}\n" + WAITS + addition
        (self.folder / "plugins" / "pen" / "__init__.py").write_text(code, encoding="utf-8")

    def types(self, *words: str, group: str = "plugins") -> None:
        done = programs.tavern(group, *words, cwd=self.folder, home=self.folder / "home")
        assert done.returncode == 0, done.stderr

    def open(self, *, locked: bool = False, activate: Activate = "needed") -> Tavern:
        return Tavern.open(self.folder / "tavern.yaml", home=self.folder / "home", locked=locked, activate=activate)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path)
    made.types("grant", "pen", "read:fs")
    return made


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def beside(work: Callable[[], object]) -> Iterator[None]:
    """Do something in another thread meanwhile."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def looked(host: Tavern) -> str:
    """The answer of a call, or the kind of its error."""
    result = host.invoke_sync("pen:look")
    return str(result.value) if result.error is None else result.error.kind


@pytest.mark.parametrize("is_active", [True, False])
@pytest.mark.parametrize(
    ("lose", "kind", "regain"),
    [
        (("revoke", "pen", "read:fs"), "POLICY_DENIED", ("grant", "pen", "read:fs")),
        (("revoke", "pen"), "POLICY_DENIED", ("grant", "pen", "read:fs")),
        (("disable", "pen"), "TOOL_NOT_FOUND", ("enable", "pen")),
    ],
)
def test_a_plugin_loses_and_regains_what_another_process_decides(
    home: Home, is_active: bool, lose: tuple[str, ...], kind: str, regain: tuple[str, ...]
) -> None:
    with home.open() as host:
        if is_active:
            assert looked(host) == "seen"
        home.types(*lose)
        if not is_active:
            until(lambda: host.plugins["pen"].state == "disabled" or host.plugins["pen"].granted == frozenset())
        until(lambda: looked(host) == kind)
        home.types(*regain)
        until(lambda: looked(host) == "seen")


LOOPS = """
import asyncio
from tavern_core import hookimpl, tool

@tool(capabilities={"read:fs"})
async def look() -> str:
    return "seen" if asyncio.get_running_loop() is LOOP else "another loop"

@hookimpl
async def tavern_start(ctx):
    global LOOP
    LOOP = asyncio.get_running_loop()

@hookimpl
def tavern_register_tools():
    return [look]
"""


@pytest.mark.parametrize(
    ("lose", "regain"), [(("revoke", "pen"), ("grant", "pen", "read:fs")), (("disable", "pen"), ("enable", "pen"))]
)
def test_a_plugin_is_activated_again_on_the_loop_that_opened_its_host(
    home: Home, lose: tuple[str, ...], regain: tuple[str, ...]
) -> None:
    (home.folder / "plugins" / "pen" / "__init__.py").write_text(LOOPS, encoding="utf-8")

    async def main() -> None:
        async with home.open() as host:
            seen: list[str | None] = []
            for words in ((), lose, regain):
                if words:
                    await asyncio.to_thread(home.types, *words)
                answer = await host.invoke("pen:look")
                while answer.value in seen[-1:]:
                    await asyncio.sleep(0.01)
                    answer = await host.invoke("pen:look")
                seen.append(answer.value)
            assert seen == ["seen", None, "seen"]

    asyncio.run(main())


@pytest.mark.parametrize("is_active", [True, False])
@pytest.mark.parametrize("where", ["level: none", "level: best-effort, plugins: [pen]"], ids=["host", "own process"])
def test_a_decision_about_newer_files_of_a_plugin_is_applied_to_these(home: Home, where: str, is_active: bool) -> None:
    (home.folder / "tavern.yaml").write_text(f"isolation: {{{where}}}\n", encoding="utf-8")
    with home.open() as host:
        if is_active:
            assert looked(host) == "seen"
        manifest = MANIFEST.replace('"1"', '"2"').replace("read:fs", "write:fs")
        (home.folder / "plugins" / "pen" / "plugin.yaml").write_text(manifest, encoding="utf-8")
        code = CODE.replace("read:fs", "write:fs").replace(
            "seen", "new code"
        )  # of another size: Python's bytecode goes by that
        (home.folder / "plugins" / "pen" / "__init__.py").write_text(code, encoding="utf-8")
        home.types("grant", "pen", "write:fs")
        until(lambda: host.plugins["pen"].version == "2" and host.plugins["pen"].granted == {"write:fs"})
        until(lambda: looked(host) != "POLICY_DENIED")  # it may be about to start again
        assert looked(host) == "new code"


def test_a_plugin_that_one_host_switches_off_and_another_one_on_at_once_is_read_again(home: Home) -> None:
    with home.open() as host, home.open() as other:
        assert looked(host) == "seen"
        host.plugins.disable_sync("pen")
        code = CODE.replace("seen", "new code")  # of another size: Python's bytecode goes by that
        (home.folder / "plugins" / "pen" / "__init__.py").write_text(code, encoding="utf-8")
        other.plugins.enable_sync("pen")
        until(lambda: looked(host) != "TOOL_NOT_FOUND")
        assert looked(host) == "new code"


def test_a_decision_reads_no_other_plugin_again_that_is_switched_off(home: Home) -> None:
    home.add("ink")
    config = "isolation: {level: none}\nplugins: {disable: [ink]}\n"
    (home.folder / "tavern.yaml").write_text(config, encoding="utf-8")
    with home.open() as host:
        (home.folder / "plugins" / "ink" / "plugin.yaml").write_text("name: ink\nversion: '2'\n", encoding="utf-8")
        home.types("revoke", "pen")
        until(lambda: looked(host) == "POLICY_DENIED")
        assert host.plugins["ink"].version == "1"


def test_a_plugin_that_another_process_enables_is_read_again(home: Home) -> None:
    with home.open() as host:
        assert looked(host) == "seen"
        home.types("disable", "pen")
        until(lambda: looked(host) == "TOOL_NOT_FOUND")
        (home.folder / "plugins" / "pen" / "__init__.py").write_text(CODE.replace("seen", "new"), encoding="utf-8")
        home.types("enable", "pen")
        until(lambda: looked(host) not in ("TOOL_NOT_FOUND", "POLICY_DENIED"))
        assert looked(host) == "new"


@pytest.mark.parametrize("text", [None, "", "not: [a lock file"])
def test_a_lock_file_that_is_gone_or_corrupt_grants_a_running_host_nothing(home: Home, text: str | None) -> None:
    lock = home.folder / "tavern.lock"
    with home.open() as host:
        assert looked(host) == "seen"
        lock.unlink() if text is None else lock.write_text(text, encoding="utf-8")
        until(lambda: looked(host) == "POLICY_DENIED")


@pytest.mark.parametrize("text", [None, "", "not: [a lock file"])
def test_a_running_locked_host_stops_plugins_that_are_no_longer_in_the_lock_file(home: Home, text: str | None) -> None:
    home.add("ink", permissions="")
    home.types("lock")
    lock = home.folder / "tavern.lock"
    with home.open(locked=True) as host:
        assert host.plugins.activate_sync("ink").state == "active"
        lock.unlink() if text is None else lock.write_text(text, encoding="utf-8")
        until(lambda: host.plugins["ink"].state == "failed")


@pytest.mark.parametrize("name", ["tavern.lock", "home/plugins.json"])
def test_what_is_wrong_in_a_file_of_decisions_is_reported_until_it_is_repaired(home: Home, name: str) -> None:
    home.types("disable", "pen")
    file = home.folder / name
    sound = file.read_text(encoding="utf-8")

    def damage(host: Tavern) -> list[str]:
        return [each.message for each in host.diagnostics if each.code == "STATE_DAMAGED"]

    file.write_text("{not: [sound", encoding="utf-8")
    with home.open() as host:
        assert any(str(file) in message for message in damage(host))
        file.write_text(sound, encoding="utf-8")
        until(lambda: not damage(host))
        file.write_text("{not: [sound", encoding="utf-8")
        until(lambda: bool(damage(host)))


def test_a_list_of_disabled_plugins_that_becomes_corrupt_enables_none_in_a_running_host(home: Home) -> None:
    home.add("ink")
    home.types("disable", "pen")
    with home.open() as host:
        assert looked(host) == "TOOL_NOT_FOUND"
        (home.folder / "home" / "plugins.json").write_text("{not JSON", encoding="utf-8")
        home.types("grant", "ink", "network")
        until(lambda: "network" in host.plugins["ink"].granted)
        assert looked(host) == "TOOL_NOT_FOUND"


def test_a_decision_restarts_only_the_plugin_that_it_is_about(home: Home) -> None:
    home.add("ink")
    with home.open() as host:
        assert looked(host) == "seen"
        changes: list[str] = []
        host.events.subscribe(lambda event: changes.append(f"{event.plugin} {event.data['state']}"), PLUGIN_STATE)
        home.types("grant", "ink", "network")
        until(lambda: "network" in host.plugins["ink"].granted)
        host.revoke("pen", "read:fs")  # by the host itself, which is not applied a second time
        home.types("disable", "ink")
        until(lambda: host.plugins["ink"].state == "disabled")
        assert looked(host) == "POLICY_DENIED"
        assert [change for change in changes if change.startswith("pen ")] == ["pen stopped", "pen active"]


@pytest.mark.parametrize(
    ("lose", "is_seen", "kind"),
    [
        (("disable", "pen"), lambda pen: pen.state == "disabled", "TOOL_NOT_FOUND"),
        (("revoke", "pen", "read:fs"), lambda pen: pen.granted == frozenset(), "POLICY_DENIED"),
    ],
)
def test_what_is_decided_while_a_plugin_is_being_activated_takes_effect(
    home: Home, lose: tuple[str, ...], is_seen: Callable[[PluginStatus], bool], kind: str
) -> None:
    home.write(SLOW_START)
    with home.open() as host, beside(lambda: looked(host)):
        until((home.folder / "waits").exists)
        home.types(*lose)
        until(lambda: is_seen(host.plugins["pen"]))
        (home.folder / "goes on").touch()
        until(lambda: looked(host) == kind)
        until(lambda: not host.plugins["pen"].provides.get("hooks") and looked(host) == kind)


def test_a_hook_that_is_revoked_while_its_plugin_is_being_activated_is_not_called(home: Home) -> None:
    home.write("")
    waits = WAITS.replace("FOLDER", repr(str(home.folder)))
    home.add("ink", HOOK + waits + SLOW_START, "hooks: [hook:server:tool:transform-result]")
    with home.open() as host:
        home.types("grant", "ink", "hook:*")
        until((home.folder / "waits").exists)
        home.types("revoke", "ink", "hook:*")
        until(lambda: host.plugins["ink"].granted == frozenset())
        (home.folder / "goes on").touch()
        until(lambda: looked(host) == "seen")


def test_no_plugin_waits_for_the_running_calls_of_another_before_it_loses_its_rights(home: Home) -> None:
    home.write(SLOW_TOOL)
    home.add("ink", HOOK, "hooks: [hook:server:tool:transform-result]")
    home.types("grant", "ink", "hook:*")
    (home.folder / "tavern.yaml").write_text("isolation: {level: none}\nlimits: {drainMs: 600000}\n", encoding="utf-8")
    with home.open() as host:
        assert host.plugins["ink"].state == "active"
        with beside(lambda: looked(host)):
            until((home.folder / "waits").exists)
            home.types("disable", "pen")
            until(lambda: host.plugins["pen"].state != "active")
            home.types("revoke", "ink", "hook:*")
            until(lambda: "hooks" not in host.plugins["ink"].provides)
            (home.folder / "goes on").touch()
        until(lambda: host.plugins["pen"].state == "disabled")


@pytest.mark.parametrize("end", ["asyncio.CancelledError", "SystemExit"])
def test_a_plugin_whose_end_fails_does_not_keep_later_decisions_from_taking_effect(home: Home, end: str) -> None:
    home.write(f"import asyncio\n@hookimpl\ndef tavern_stop():\n    raise {end}\n")
    with home.open() as host:
        for _ in range(2):
            until(lambda: looked(host) == "seen")
            home.types("revoke", "pen")
            until(lambda: looked(host) == "POLICY_DENIED")
            home.types("grant", "pen", "read:fs")


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_plugin_that_failed_for_want_of_a_right_that_another_process_grants_is_tried_again(
    home: Home, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    monkeypatch.setenv("PIN", "1234-5678")
    home.add("ink", NEEDY, 'capabilities: ["secrets:pin"]')
    (home.folder / "tavern.yaml").write_text(
        "isolation: {level: none}\nsecrets: {pin: {$env: PIN}}\n", encoding="utf-8"
    )
    if is_refused:
        home.types("grant", "ink", "secrets:pin")
        home.types("revoke", "ink", "secrets:pin")
    with home.open() as host:
        with pytest.raises(PluginError):
            host.plugins.activate_sync("ink")
        home.types("grant", "ink", "secrets:pin")
        until(lambda: host.plugins["ink"].state != "failed")
        assert host.plugins.activate_sync("ink").state == "active"


SETTINGS = """
configOptions: [{key: extensions.pen.most, type: number, defaultValue: 1}]
"""
WATCHES = """
SEEN = []

@hookimpl
def tavern_start(ctx):
    ctx.on_config_change("most", SEEN.append)

@tool(read_only=True, limits={"cacheMs": 600_000})
def look() -> list[int]:
    return SEEN
"""


def test_a_plugin_learns_of_settings_that_another_process_saves(home: Home) -> None:
    home.write(WATCHES)
    manifest = home.folder / "plugins" / "pen" / "plugin.yaml"
    manifest.write_text(MANIFEST + SETTINGS, encoding="utf-8")
    log, saved = home.folder / "home" / "audit" / "audit.jsonl", []
    with home.open() as host:
        host.settings.on_change("extensions.pen.most", saved.append)
        assert looked(host) == looked(host) == "[]"
        for most in ("2", "3"):
            home.types("set", "extensions.pen.most", most, group="config")
            until(lambda most=most: saved[-1:] == [int(most)])
            until(lambda: looked(host) == str(saved))
        host.settings.save({"extensions.pen.most": 4})
        assert looked(host) == "[2, 3, 4]"
    assert log.read_text("utf-8").count('"SETTINGS_CHANGED"') == 3


@pytest.mark.parametrize("activate", ["needed", "all"])
def test_a_program_learns_of_settings_that_another_process_saves_also_when_their_plugin_was_reloaded_or_stopped(
    home: Home, activate: Activate
) -> None:
    home.write("")
    manifest = home.folder / "plugins" / "pen" / "plugin.yaml"
    manifest.write_text(MANIFEST + SETTINGS, encoding="utf-8")
    key, saved = "extensions.pen.most", list[int]()
    file = JsonStateFile(home.folder / "home" / "settings.json", "values")
    with home.open(activate=activate) as host:
        host.settings.on_change(key, saved.append)
        file.change(lambda _: {key: 2})
        host.plugins.reload_sync("pen")
        until(lambda: saved == [2])
        host.plugins.disable_sync("pen")
        host.plugins.enable_sync("pen")
        file.change(lambda _: {key: 3})
        until(lambda: saved == [2, 3])
        host.wait(host.refresh())
        host.settings.save({key: 4})
        assert saved == [2, 3, 4]
