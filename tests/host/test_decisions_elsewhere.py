"""What another process decides about plugins takes effect in a host that runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tavern_core import Tavern
from tavern_core.model.event import PLUGIN_STATE
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


class Home:
    """A folder with the plugin, and what people type there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        plugin = folder / "plugins" / "pen"
        plugin.mkdir(parents=True)
        (plugin / "plugin.yaml").write_text(MANIFEST, encoding="utf-8")
        (plugin / "__init__.py").write_text(CODE, encoding="utf-8")
        (folder / "tavern.yaml").write_text("isolation: {level: none}\n", encoding="utf-8")

    def add(self, name: str) -> None:
        """A plugin without tools that asks for `network`."""
        plugin = self.folder / "plugins" / name
        plugin.mkdir()
        manifest = f'name: {name}\nversion: "1"\npermissions: {{capabilities: [{{name: network}}]}}\n'
        (plugin / "plugin.yaml").write_text(manifest, encoding="utf-8")
        (plugin / "__init__.py").write_text("", encoding="utf-8")

    def types(self, *words: str) -> None:
        done = programs.tavern("plugins", *words, cwd=self.folder, home=self.folder / "home")
        assert done.returncode == 0, done.stderr

    def open(self) -> Tavern:
        return Tavern.open(self.folder / "tavern.yaml", home=self.folder / "home")


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


@pytest.mark.parametrize("text", [None, "", "not: [a lock file"])
def test_a_lock_file_that_is_gone_or_corrupt_grants_a_running_host_nothing(home: Home, text: str | None) -> None:
    lock = home.folder / "tavern.lock"
    with home.open() as host:
        assert looked(host) == "seen"
        lock.unlink() if text is None else lock.write_text(text, encoding="utf-8")
        until(lambda: looked(host) == "POLICY_DENIED")


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
