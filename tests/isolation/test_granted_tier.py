"""The tier is part of the grant: who was granted for a process of its own stays there until somebody grants the host's."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from typing import Any

import pytest

from tavern_core import Tavern
from tavern_core.__main__ import main
from tavern_core.errors import UsageError

from ..host.workshop import Workshop

CODE = """
import contextlib, os
from tavern_core import hookimpl, tool
with contextlib.suppress(OSError), open({marker!r}, "a") as file:
    file.write("here")

@tool
def pid() -> int:
    "Where it runs."
    return os.getpid()

@tool(capabilities=["gpu"])
def used() -> int:
    "With a capability."
    return os.getpid()

@hookimpl
def tavern_register_tools():
    return [pid, used]
"""
TOOLS = "tools: [{id: pid, implementation: {type: python}}, {id: used, implementation: {type: python}}]"
ASKS = "permissions: {capabilities: [gpu]}"
APART = "isolation: process"


REVIEWED: list[str] = []
"""The lock file after the grant, which the tests have in common: the same manifest comes to the same one."""


class Stage:
    """One plugin `p` that was reviewed for a process of its own, and what becomes of it."""

    def __init__(self, shop: Workshop) -> None:
        self.shop = shop
        self.marker = shop.root / "ran-outside"
        self.lock = shop.home / "tavern.lock"
        self.write(APART)
        if not REVIEWED:
            shop.grant("p")
            REVIEWED.append(self.lock.read_text())
        else:
            self.lock.parent.mkdir()
            self.lock.write_text(REVIEWED[0])

    def write(self, *lines: str, version: str = "1.0", asks: str = ASKS) -> None:
        folder = self.shop.folder("p", None, "\n".join((TOOLS, asks, *lines)))
        (folder / "__init__.py").write_text(CODE.replace("{marker!r}", repr(str(self.marker))))
        manifest = folder / "plugin.yaml"
        manifest.write_text(manifest.read_text().replace('"1.0"', f'"{version}"'))

    def stays_apart(self, host: Tavern) -> None:
        for tool in ("p:pid", "p:used"):
            result = host.invoke_sync(tool)
            assert result.ok, result.error
            assert result.value != os.getpid()
        status = host.plugins["p"]
        assert (status.tier, bool(status.isolated)) == ("process", True)
        assert not self.marker.exists()

    def is_at_home(self, host: Tavern) -> None:
        assert host.invoke_sync("p:used").value == os.getpid()
        status = host.plugins["p"]
        assert (status.state, status.tier, status.isolated) == ("active", "host", "")


@pytest.fixture
def stage(workshop: Workshop) -> Stage:
    return Stage(workshop)


LOWERED: dict[str, Callable[[Stage], Any]] = {
    "an upgrade drops the line": lambda stage: stage.write(version="2.0"),
    "the line is removed under the same version": lambda stage: stage.write(),
    "the line says none": lambda stage: stage.write("isolation: none"),
    "an upgrade that asks for more": lambda stage: stage.write(
        version="2.0", asks="permissions: {capabilities: [gpu, network]}"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", LOWERED)
def test_a_lower_tier_waits_and_the_old_grants_work_where_they_were_granted(stage: Stage, what: str) -> None:
    LOWERED[what](stage)
    host = stage.shop.open()
    status = host.plugins["p"]
    assert (status.state, status.granted) == ("pending_consent", {"gpu"})
    assert "tier:host" in status.reason and "tavern plugins grant p" in status.reason
    stage.stays_apart(host)
    assert host.plugins["p"].state == "pending_consent"  # active, too, it waits


def test_a_review_shows_the_lower_tier_as_a_line_of_the_highest_risk(stage: Stage) -> None:
    stage.write(version="2.0")
    review = stage.shop.open(activate="none").review("p")
    first = review.requests()[0]
    assert (first.permission.id, first.permission.risk, first.state, first.mark) == (
        "tier:host",
        "highest",
        "pending",
        "+",
    )
    assert "host's own process" in first.permission.sentence and first.permission.sentence_zh
    assert review.command == "tavern plugins grant p tier:host"
    reported = review.to_json()
    assert (reported["tier"], reported["grantedTier"], reported["waits"]) == ("host", "process", True)
    assert "tier:host" in reported["note"]


@pytest.mark.slow
@pytest.mark.parametrize("named", ["tier:host", "tier:*", "everything"])
def test_granting_it_moves_the_plugin_into_the_host(stage: Stage, named: str) -> None:
    stage.write()
    host = stage.shop.open()
    stage.stays_apart(host)
    host.grant("p", all_requested=True) if named == "everything" else host.grant("p", named)
    stage.is_at_home(host)
    assert "tier: host" in stage.lock.read_text() and "tier:host" not in stage.lock.read_text()
    stage.is_at_home(stage.shop.open())


@pytest.mark.slow
def test_another_grant_does_not_lower_the_tier(stage: Stage) -> None:
    stage.write(asks="permissions: {capabilities: [gpu, network]}")
    host = stage.shop.open()
    host.grant("p", "network")
    stage.stays_apart(host)
    assert host.plugins["p"].state == "pending_consent"
    assert "tier: process" in stage.lock.read_text()


@pytest.mark.slow
def test_a_refused_tier_is_not_asked_for_again_and_the_plugin_stays_where_it_was(stage: Stage) -> None:
    stage.write()
    host = stage.shop.open()
    asyncio.run(host.plugins.refuse("p", "tier:host"))
    for each in (host, stage.shop.open(), stage.shop.open(locked=True)):
        stage.stays_apart(each)
        status = each.plugins["p"]
        assert status.state == "active" and "goes without tier:host" in status.reason
    host.grant("p", "tier:host")
    stage.is_at_home(host)


@pytest.mark.slow
def test_the_tier_can_be_taken_back_by_name(stage: Stage) -> None:
    stage.write()
    host = stage.shop.open()
    host.grant("p", "tier:host")
    host.revoke("p", "tier:host")
    stage.stays_apart(host)
    host.grant("p", "tier:host")
    host.revoke("p")
    assert "tier: host" in stage.lock.read_text()  # what was granted is gone, where it runs stays


@pytest.mark.slow
def test_a_plugin_cannot_be_granted_a_tier_that_it_does_not_ask_for(stage: Stage) -> None:
    host = stage.shop.open()
    with pytest.raises(UsageError, match="does not request 'tier:host'"):
        host.grant("p", "tier:host")
    stage.stays_apart(host)


@pytest.mark.slow
def test_a_higher_tier_needs_no_consent_and_is_the_granted_one_once_it_was_locked(stage: Stage) -> None:
    stage.write()
    stage.shop.open(activate="none").grant("p", "tier:host")
    stage.write(APART)
    host = stage.shop.open()
    assert host.plugins["p"].state == "granted"
    stage.stays_apart(host)
    dropped = [r for r in host.review("p").requests() if r.permission.id == "tier:host"]
    assert [r.state for r in dropped] == ["dropped"]
    stage.shop.open(activate="none").lock()
    stage.write()
    assert stage.shop.open().plugins["p"].state == "pending_consent"


@pytest.mark.slow
@pytest.mark.parametrize("rule", [{"plugins": ["p"]}, {"raise": ["gpu"]}])
def test_a_rule_of_the_host_only_raises_and_what_it_raised_waits_when_it_is_gone(
    stage: Stage, rule: dict[str, Any]
) -> None:
    stage.write()
    stage.shop.open(activate="none").grant("p", "tier:host")
    host = stage.shop.open(config={"isolation": rule})
    assert host.plugins["p"].state == "granted"
    stage.stays_apart(host)
    stage.shop.open(activate="none", config={"isolation": rule}).lock()
    stage.stays_apart(stage.shop.open())


@pytest.mark.slow
def test_a_plugin_whose_request_raised_it_does_not_come_down_by_asking_for_less(workshop: Workshop) -> None:
    stage = Stage(workshop)
    stage.write(asks="permissions: {capabilities: [gpu, network]}")
    rule = {"isolation": {"raise": ["network"]}}
    stage.shop.open(activate="none", config=rule).grant("p", "gpu", "network")
    stage.write()
    host = stage.shop.open(config=rule)
    assert host.plugins["p"].state == "pending_consent"
    stage.stays_apart(host)


@pytest.mark.slow
def test_an_edit_while_the_host_runs_waits_as_well(stage: Stage) -> None:
    host = stage.shop.open()
    stage.stays_apart(host)
    stage.write()
    host.plugins.reload_sync("p")
    assert host.plugins["p"].state == "pending_consent"
    stage.stays_apart(host)
    stage.write(version="3.0")
    asyncio.run(host.refresh())
    stage.stays_apart(host)


@pytest.mark.slow
def test_writing_the_lock_file_grants_no_tier(stage: Stage) -> None:
    stage.write(version="2.0")
    host = stage.shop.open()
    assert stage.shop.open(activate="none").lock()["p"].tier == "process"
    stage.stays_apart(host)
    assert stage.shop.open().plugins["p"].state == "pending_consent"


@pytest.mark.slow
def test_a_locked_host_uses_no_plugin_in_a_lower_tier(stage: Stage) -> None:
    stage.shop.open(activate="none", config={"isolation": {"plugins": ["q"]}})
    (folder := stage.shop.plugins / "q").mkdir()
    for file in (stage.shop.plugins / "p").iterdir():
        if file.is_file():
            (folder / file.name).write_text(file.read_text().replace("name: p\n", "name: q\n").replace(APART, ""))
    raised = {"isolation": {"plugins": ["q"]}}
    stage.shop.open(activate="none", config=raised).grant("q", "gpu")
    assert stage.shop.open(config=raised, locked=True).plugins["q"].state == "granted"
    locked = stage.shop.open(locked=True)
    status = locked.plugins["q"]
    assert (status.state, status.error_code) == ("failed", "LOCK_MISMATCH")
    assert "in its own" in status.reason
    assert "in its own" in stage.shop.open(activate="none").unlocked()["q"]


OLD = re.compile(r"^ +tier: .*\n", re.MULTILINE)


def old_lock(stage: Stage) -> None:
    """The lock file as the version before wrote it."""
    text, count = OLD.subn("", stage.lock.read_text())
    assert count == 1
    stage.lock.write_text(text)


@pytest.mark.slow
def test_a_lock_file_without_tiers_counts_for_the_tier_of_the_very_same_manifest(stage: Stage) -> None:
    old_lock(stage)
    stage.stays_apart(stage.shop.open())
    stage.write()
    stage.lock.unlink()
    stage.shop.grant("p")
    old_lock(stage)
    stage.is_at_home(stage.shop.open())


@pytest.mark.slow
def test_a_lock_file_without_tiers_counts_for_the_isolated_one_when_the_manifest_is_another(stage: Stage) -> None:
    old_lock(stage)
    stage.write(version="2.0")
    host = stage.shop.open()
    assert host.plugins["p"].state == "pending_consent"
    stage.stays_apart(host)


@pytest.mark.parametrize("written", ["Host", "none", "[host]", "''", "null", "true"])
def test_a_tier_that_is_none_grants_nothing(stage: Stage, written: str) -> None:
    stage.write()
    stage.lock.write_text(OLD.sub(f"    tier: {written}\n", stage.lock.read_text()))
    host = stage.shop.open()
    assert host.plugins["p"].granted == frozenset()
    assert "STATE_DAMAGED" in {d.code for d in host.diagnostics}


@pytest.mark.slow
def test_tier_host_under_granted_in_the_file_lowers_nothing(stage: Stage) -> None:
    stage.write()
    stage.lock.write_text(stage.lock.read_text().replace("    granted:\n", "    granted:\n    - tier:host\n"))
    stage.stays_apart(stage.shop.open())


@pytest.mark.slow
def test_scripts_of_a_lowered_plugin_keep_their_box(workshop: Workshop) -> None:
    """Where only scripts of isolated plugins are held, a plugin does not free its scripts by dropping a line."""
    outside = workshop.root / "elsewhere" / "outside.txt"
    outside.parent.mkdir()
    line = "tools: [{id: run, description: x, parameters: {type: object}, implementation: {type: script, command: python run.py}}]\npermissions: {capabilities: [gpu]}"
    run = f"open({str(outside)!r}, 'w').write('x'); print('{{}}')"
    workshop.folder("p", None, f"{line}\n{APART}", **{"run.py": run})
    workshop.grant("p")
    workshop.folder("p", None, line, **{"run.py": run})
    host = workshop.open(config={"isolation": {"scripts": "tier"}})
    assert not host.invoke_sync("p:run").ok
    assert not outside.exists()
    host.grant("p", "tier:host")
    assert host.invoke_sync("p:run").ok
    assert outside.exists()


@pytest.mark.slow
def test_the_command_line_reviews_grants_and_checks_the_tier(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tavern(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main([*words, "--home", str(stage.shop.home)])
        reported = capsys.readouterr()
        return code, reported.out + reported.err

    monkeypatch.chdir(stage.shop.root)
    stage.write(version="2.0")
    (stage.shop.root / "tavern.yaml").write_text("plugins: {roots: [plugins], entryPoints: false}\n")
    lock = stage.shop.root / "tavern.lock"
    lock.write_text(stage.lock.read_text())
    code, reported = tavern("plugins", "review", "p")
    assert code == 3
    assert "tier host" in reported and re.search(r"\+ +tier:host +highest +pending", reported)
    code, reported = tavern("plugins", "grant", "p")
    assert (code, "tavern plugins grant p tier:host" in reported) == (3, True)
    assert tavern("plugins", "lock", "--check")[0] == 1
    assert tavern("plugins", "grant", "p", "tier:host")[0] == 0
    assert "tier: host" in lock.read_text()
    assert tavern("plugins", "review", "p")[0] == 0
    assert '"tier": "host"' in tavern("plugins", "lock", "--json")[1]
    assert tavern("plugins", "lock", "--check")[0] == 0
