"""A locked host uses what is exactly in its lock file and nothing else; and everybody is told what is not as it was reviewed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tavern_core import CallContext, Tavern, hookimpl, tool
from tavern_core.errors import UsageError

READ = CallContext(permissions=frozenset({"read:fs"}))
MANIFEST: dict[str, Any] = {
    "name": "text",
    "version": "1.0",
    "tools": [{"id": "count", "implementation": {"type": "python"}}],
    "permissions": {
        "hooks": ["hook:server:tool:check"],
        "capabilities": [{"name": "read:fs", "scope": ["./data"], "reason": "counts words in files"}],
    },
}
CODE = """\
from tavern_core import hookimpl, tool

@tool(capabilities=["read:fs"])
def count() -> str:
    return "one"

@hookimpl
def tavern_register_tools():
    return [count]

@hookimpl
def tavern_check_call(call):
    return None
"""


class Project:
    """A project with the plugin `text`, and a host of it whenever one is wanted."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.plugin, self.lock = folder, folder / "plugins" / "text", folder / "tavern.lock"
        self.plugin.mkdir(parents=True)
        (folder / "tavern.yaml").write_text("plugins: {entryPoints: false}\n")
        self.manifest()
        self.code(CODE)

    def manifest(self, **changes: Any) -> None:
        (self.plugin / "plugin.yaml").write_text(json.dumps({**MANIFEST, **changes}))

    def code(self, text: str) -> None:
        (self.plugin / "__init__.py").write_text(text)

    def open(self, **options: Any) -> Tavern:
        return Tavern.open(self.folder / "tavern.yaml", home=self.folder / "home", **options)

    def reviewed(self, *permissions: str) -> None:
        with self.open(activate="none") as tavern:
            tavern.grant("text", *(permissions or ("*",)))

    def events(self, type_: str) -> list[dict[str, Any]]:
        lines = (self.folder / "home/audit/audit.jsonl").read_text().splitlines()
        return [record for record in map(json.loads, lines) if record["type"] == type_]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def more(project: Project) -> None:
    project.manifest(version="1.0", permissions={**MANIFEST["permissions"], "services": {"use": ["clock"]}})


def relocked(project: Project, change: Callable[[dict[str, Any]], Any]) -> None:
    data = yaml.safe_load(project.lock.read_text())
    change(data["plugins"]["text"])
    project.lock.write_text(yaml.safe_dump(data))


CHANGES: dict[str, tuple[Callable[[Project], Any], str]] = {
    "other code": (lambda p: p.code(CODE + "# x\n"), "its code is not the one"),
    "one more file": (lambda p: (p.plugin / "more.py").write_text(""), "its code is not the one"),
    "a compiled module without source": (lambda p: (p.plugin / "more.pyc").write_bytes(b"x"), "its code is not the one"),
    "a data file": (lambda p: (p.plugin / "data.bin").write_bytes(b"\0"), "its code is not the one"),
    "other code with the same size and time": (lambda p: disguised(p), "its code is not the one"),
    "a link to a folder elsewhere": (lambda p: elsewhere(p), "could not be read whole"),
    "another version": (lambda p: p.manifest(version="1.1"), "version 1.1 is installed, the lock file has 1.0"),
    "an older version": (lambda p: p.manifest(version="0.9"), "version 0.9 is installed"),
    "another plugin.yaml": (lambda p: p.manifest(description="x"), "its plugin.yaml is not the one"),
    "more permissions": (more, "its plugin.yaml is not the one"),
    "no lock file": (lambda p: p.lock.unlink(), "it is not in the lock file"),
    "an empty lock file": (lambda p: p.lock.write_text(""), "it is not in the lock file"),
    "a damaged lock file": (lambda p: p.lock.write_text("version: 1\nplugins: {text: [}"), "the lock file has errors"),
    "a lock file that is a link": (lambda p: linked(p), "the lock file has errors"),
    "a record without hashes": (lambda p: relocked(p, lambda r: [r.pop(k) for k in ("manifestHash", "artifactHash")]), "instead of none"),
    "a record that grants more": (lambda p: relocked(p, lambda r: r["requested"].append("gpu")), "it requests other permissions"),
    "a record of another name": (lambda p: renamed(p), "is not a plugin name"),
}  # fmt: skip


def disguised(project: Project) -> None:
    file = project.plugin / "__init__.py"
    before = file.stat()
    project.code(CODE.replace('"one"', '"two"'))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def elsewhere(project: Project) -> None:
    (project.folder / "evil").mkdir()
    (project.folder / "evil/__init__.py").write_text("")
    (project.plugin / "inner").symlink_to(project.folder / "evil")


def linked(project: Project) -> None:
    project.lock.rename(project.folder / "real.lock")
    project.lock.symlink_to(project.folder / "real.lock")


def renamed(project: Project) -> None:
    data = yaml.safe_load(project.lock.read_text())
    project.lock.write_text(yaml.safe_dump({"version": 1, "plugins": {"t\u0435xt": data["plugins"]["text"]}}))


@pytest.mark.parametrize("what", CHANGES)
def test_a_locked_host_refuses_what_is_not_exactly_in_the_lock_file(project: Project, what: str) -> None:
    project.reviewed()
    with project.open(locked=True) as tavern:
        assert tavern.plugins["text"].state == "active"
        assert tavern.invoke_sync("text:count", context=READ).value == "one"
    change, reason = CHANGES[what]
    change(project)
    with project.open(locked=True) as tavern:
        status = tavern.plugins["text"]
        result = tavern.invoke_sync("text:count", context=READ)
        why = tavern.tools.why("text:count")
        assert tavern.unlocked().keys() == {"text"}
    assert (status.state, status.error_code) == ("failed", "LOCK_MISMATCH")
    assert reason in status.reason
    assert "tavern plugins review text" in status.reason
    assert result.error is not None
    assert reason in result.error.message
    assert not why.visible
    assert reason in why.reason


@pytest.mark.parametrize("place", ["argument", "file", "variable", "override"])
def test_a_host_is_locked_wherever_it_is_said(project: Project, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {}
    match place:
        case "argument":
            options = {"locked": True}
        case "override":
            options = {"overrides": {"plugins.locked": True}}
        case "variable":
            monkeypatch.setenv("TAVERN_PLUGINS__LOCKED", "1")
        case _:
            (project.folder / "tavern.yaml").write_text("plugins: {entryPoints: false, locked: true}\n")
    with project.open(**options) as tavern:
        assert tavern.plugins["text"].error_code == "LOCK_MISMATCH"
    with project.open(**(options | {"locked": False})) as tavern:
        assert tavern.plugins["text"].state == "pending_consent"


def test_a_locked_host_never_changes_the_lock_file(project: Project) -> None:
    project.reviewed("read:fs")
    before = project.lock.read_bytes()
    with project.open(locked=True) as tavern:
        for change in (
            lambda: tavern.grant("text", "hook:server:tool:check"),
            lambda: tavern.refuse("text"),
            lambda: tavern.revoke("text"),
            lambda: tavern.lock(),
        ):
            with pytest.raises(UsageError, match="this host is locked"):
                change()
        assert tavern.plugins["text"].granted == {"read:fs"}
    assert project.lock.read_bytes() == before


def test_what_was_locked_without_grants_is_used_without_them(project: Project) -> None:
    with project.open(activate="none") as tavern:
        assert tavern.unlocked() == {"text": "it is not in the lock file"}
        assert tavern.lock()["text"].granted == frozenset()
        assert tavern.unlocked() == {}
        assert tavern.plugins["text"].state == "pending_consent"
    with project.open(locked=True) as tavern:
        assert tavern.plugins["text"].state == "pending_consent"
        assert tavern.invoke_sync("text:count", context=READ).error.details["missing"] == ["read:fs"]  # type: ignore[union-attr]


def test_what_the_program_passes_is_not_in_question(project: Project) -> None:
    @tool
    def mine() -> int:
        """Mine."""
        return 1

    class Own:
        @hookimpl
        def tavern_register_tools(self) -> list[Any]:
            return [mine]

    with project.open(locked=True, plugins=[Own()]) as tavern:
        assert tavern.invoke_sync("own:mine").value == 1
        assert tavern.plugins["text"].error_code == "LOCK_MISMATCH"


def test_code_that_changes_between_open_and_first_use_is_not_imported(project: Project) -> None:
    project.reviewed("read:fs")  # without the hook it is activated by its first call
    with project.open(locked=True) as tavern:
        assert tavern.plugins["text"].state == "pending_consent"
        project.code(f"open({str(project.folder / 'ran')!r}, 'w')\n" + CODE)
        result = tavern.invoke_sync("text:count", context=READ)
        assert result.error is not None
        assert "its code is not the one in the lock file" in result.error.message
        assert tavern.plugins["text"].error_code == "LOCK_MISMATCH"
    assert not (project.folder / "ran").exists()


def test_a_gate_that_the_locked_host_refuses_blocks_what_it_would_judge(project: Project) -> None:
    project.reviewed()
    project.code(CODE + "#")
    with project.open(locked=True) as tavern:
        result = tavern.invoke_sync("system:get_current_time")
    assert result.error is not None
    assert result.error.kind == "POLICY_DENIED"
    assert "text" in result.error.message


# ReportedExit without a lock ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_changed_code_is_reported_everywhere_until_it_is_noted_as_reviewed(project: Project) -> None:
    project.reviewed()
    project.code(CODE + "# changed\n")
    with project.open() as tavern:
        assert tavern.invoke_sync("text:count", context=READ).value == "one"  # its grants carry over
        assert "other code than when it was reviewed, under the same version" in tavern.plugins["text"].note
        assert [d.severity for d in tavern.diagnostics if d.code == "CODE_CHANGED"] == ["warning"]
        assert tavern.review("text").decision.changed == {"artifact"}
    assert [e["changed"] for e in project.events("PLUGIN_CHANGED")] == [["artifact"]]
    with project.open(activate="none") as tavern:  # looking is enough to see it
        assert "other code" in tavern.plugins["text"].note
        assert [d.code for d in tavern.diagnostics if d.plugin == "text"] == ["CODE_CHANGED"]
        assert "other code" in tavern.plugins["text"].to_json()["note"]
        tavern.lock()
        assert tavern.plugins["text"].note == ""
        assert tavern.plugins["text"].granted == {"hook:server:tool:check", "read:fs"}
    with project.open() as tavern:
        assert tavern.invoke_sync("text:count", context=READ).ok
        assert tavern.plugins["text"].note == ""
        assert [d.code for d in tavern.diagnostics if d.plugin == "text"] == []
    assert len(project.events("PLUGIN_CHANGED")) == 1


def test_an_upgrade_that_asks_for_more_waits_for_that_part_only(project: Project) -> None:
    project.reviewed()
    project.manifest(
        version="2.0",
        permissions={
            "hooks": ["hook:server:tool:check", "hook:server:events"],
            "capabilities": [{"name": "read:fs", "scope": ["./data", "/etc"]}, "network"],
        },
    )
    with project.open() as tavern:
        status = tavern.plugins["text"]
        assert status.state == "pending_consent"
        assert status.granted == {"hook:server:tool:check", "read:fs"}
        assert status.scopes == {"read:fs": ("./data",)}
        assert "text went from 1.0 to 2.0" in status.note
        assert "new requests wait: hook:server:events, network, read:fs" in status.note
        assert tavern.invoke_sync("text:count", context=READ).value == "one"
        review = tavern.review("text")
        assert [(r.mark, r.permission.id) for r in review.requests()] == [
            ("+", "network"), ("+", "hook:server:events"), ("=", "hook:server:tool:check"), ("~", "read:fs"),
        ]  # fmt: skip
        assert review.command == "tavern plugins grant text network hook:server:events read:fs"
        assert [d.code for d in tavern.diagnostics if d.plugin == "text"] == ["GRANTS_CARRIED_OVER"]
        tavern.grant("text", "read:fs")
        assert tavern.plugins["text"].scopes == {"read:fs": ("./data", "/etc")}
        assert tavern.plugins["text"].state == "pending_consent"


def test_an_upgrade_that_asks_for_less_carries_over_and_what_it_dropped_is_gone(project: Project) -> None:
    project.reviewed()
    project.manifest(version="2.0", permissions={"capabilities": MANIFEST["permissions"]["capabilities"]})
    project.code(CODE.partition("@hookimpl\ndef tavern_check_call")[0])
    with project.open() as tavern:
        assert (tavern.plugins["text"].state, tavern.plugins["text"].granted) == ("granted", {"read:fs"})
        assert [(r.mark, r.permission.id) for r in tavern.review("text").requests()] == [
            ("-", "hook:server:tool:check"), ("=", "read:fs"),
        ]  # fmt: skip
        tavern.lock()
    project.manifest(version="3.0")
    project.code(CODE)
    with project.open() as tavern:
        assert tavern.plugins["text"].state == "pending_consent"
        assert tavern.plugins["text"].granted == {"read:fs"}


def test_enabling_grants_nothing(project: Project) -> None:
    with project.open() as tavern:
        tavern.plugins.disable_sync("text")
        assert tavern.plugins.enable_sync("text").state == "pending_consent"
        assert tavern.plugins["text"].granted == frozenset()
    assert not project.lock.exists()


def test_a_tool_without_its_grant_is_listed_with_the_command_that_grants_it(project: Project) -> None:
    project.reviewed("hook:server:tool:check")
    with project.open() as tavern:
        spec = tavern.tools["text:count"]
        assert "text:count" in [s.id for s in tavern.tools.list()]
        assert "text:count" in [s.id for s in tavern.tools.search("count")]
        need = tavern.tools.needs(spec)
        assert need is not None
        assert (need.missing, need.fix) == (("read:fs",), "tavern plugins grant text read:fs")
        why = tavern.tools.why("text:count")
        assert (why.visible, why.fix) == (True, need.fix)
        assert why.reason.startswith("needs read:fs")
        result = tavern.invoke_sync("text:count", context=READ)
        assert result.error is not None
        assert result.error.fix == need.fix
        tavern.grant("text", "read:fs")
        assert tavern.tools.needs("text:count") is None


def test_a_tool_without_loaded_code_is_listed_with_its_possible_needs(project: Project) -> None:
    with project.open() as tavern:
        need = tavern.tools.needs("text:count")
        assert need is not None
        assert need.to_json() == {
            "missing": ["read:fs"],
            "certain": False,
            "reason": "may need read:fs, which text was not granted",
            "fix": "tavern plugins grant text read:fs",
        }
        assert tavern.plugins["text"].state == "pending_consent"  # asking has run none of its code
        assert "read:fs" in tavern.tools["text:count"].capabilities
        need = tavern.tools.needs("text:count")
        assert need is not None
        assert (need.is_certain, need.missing) == (True, ("read:fs",))
