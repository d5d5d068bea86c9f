"""Nodes of plugins that are edited, broken, or packed: what runs is what the files say now."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Plugin, Tavern, hookimpl, node
from tavern_core.errors import PluginError, WorkflowInvalid
from tavern_core.kernel.nodes.node_callable import code_hash
from tests.forked_programs import run_forked

CODE = "from tavern_core import Out, node\n@node(cache=True)\ndef One(x: int = 0) -> Out(y=int):\n    return x + {}\n"


class Home:
    """A folder with one plugin of nodes and one workflow that uses it."""

    def __init__(self, root: Path, cache: str = "session") -> None:
        self.root = root
        self.folder = root / "plugins" / "ed"
        self.write("plugin.yaml", 'name: ed\nversion: "1.0.0"\nnodes: {entry: nodes}\n')
        self.write("nodes/one.py", CODE.format(1))
        node_ = {"id": "a", "type": "ed:One", "inputValues": {"x": 1}, "configValues": {"$exec": {"cache": cache}}}
        (root / "workflows").mkdir()
        (root / "workflows" / "f.json").write_text(
            json.dumps({"description": "d", "nodes": [node_], "edges": []}), "utf-8"
        )

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    def open(self, **options: Any) -> Tavern:
        config = {
            "workflows": {"roots": [str(self.root / "workflows")]},
            "plugins": {"roots": [str(self.root / "plugins")]},
        }
        return Tavern.open(config, home=self.root / "home", **options)


def ran(tavern: Tavern) -> tuple[Any, str]:
    result = tavern.workflows.run_sync("f")
    return result.outputs["a"]["y"], result.states["a"]


@pytest.mark.parametrize("is_package", [True, False], ids=["package", "folder"])
def test_code_that_was_edited_is_what_runs_after_a_reload(tmp_path: Path, is_package: bool) -> None:
    home = Home(tmp_path)
    if is_package:
        home.write("__init__.py", "")
        home.write("nodes/__init__.py", "")
    with home.open() as tavern:
        assert [ran(tavern), ran(tavern)] == [(2, "complete"), (2, "cached")]
        home.write("nodes/one.py", CODE.format(100))
        tavern.plugins.reload_sync("ed")
        assert [ran(tavern), ran(tavern)] == [(101, "complete"), (101, "cached")]
        home.write("nodes/one.py", CODE.format(100).replace("int = 0", "str"))
        tavern.plugins.reload_sync("ed")
        with pytest.raises(WorkflowInvalid, match="takes STRING"):
            ran(tavern)


@pytest.mark.slow
def test_answers_on_the_disk_are_those_of_the_same_code(tmp_path: Path) -> None:
    home = Home(tmp_path, cache="disk")
    found = []
    for added in (1, 1, 100):
        home.write("nodes/one.py", CODE.format(added))
        with home.open() as tavern:
            found.append(ran(tavern))
    assert found == [(2, "complete"), (2, "cached"), (101, "complete")]


def test_the_code_of_an_object_has_a_hash_that_every_process_works_out_alike() -> None:
    def compiled(members: str, added: int) -> Callable[[int], bool]:
        names: dict[str, Any] = {}
        exec(f"def made(x):\n    return x in {members} or (lambda: x + {added})() == 2\n", names)
        return names["made"]

    one, two, three = compiled("{'a', 'b', 'c'}", 1), compiled("{'a', 'b', 'd'}", 1), compiled("{'a', 'b', 'c'}", 2)
    assert len({code_hash(one), code_hash(two), code_hash(three)}) == 3
    assert code_hash(one) == code_hash(compiled("{'a', 'b', 'c'}", 1))


BROKEN = {
    "a module that raises": ("nodes/bad.py", "raise ValueError('no')\n", "bad.py:1"),
    "a module that ends the process": ("nodes/bad.py", "raise SystemExit(3)\n", "bad.py:1"),
    "a module that is not a Python": ("nodes/bad.py", "def (:\n", "bad.py"),
    "a node in a reserved namespace": (
        "nodes/bad.py",
        "from tavern_core import node\n@node('core:Mine')\ndef mine(): ...\n",
        "reserved",
    ),
    "a node in the namespace of another plugin": (
        "nodes/bad.py",
        "from tavern_core import node\n@node('other:Mine')\ndef mine(): ...\n",
        "other",
    ),
    "the same node twice": ("nodes/bad.py", CODE.format(2), "twice"),
    "an annotation that cannot be read": (
        "nodes/bad.py",
        "from tavern_core import node\n@node\ndef mine(x: 'Nothing'): ...\n",
        "Nothing",
    ),
    "an option that does not exist": (
        "nodes/bad.py",
        "from tavern_core import node\n@node(colour='red')\ndef mine(): ...\n",
        "colour",
    ),
    "an entry outside of the plugin": (
        "plugin.yaml",
        'name: ed\nversion: "1"\nnodes: {entry: ../elsewhere}\n',
        "elsewhere",
    ),
    "an entry that is missing": ("plugin.yaml", 'name: ed\nversion: "1"\nnodes: {entry: nods}\n', "nods"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_plugin_whose_nodes_are_broken_is_a_failed_row_and_affects_no_other(tmp_path: Path, name: str) -> None:
    file, text, words = BROKEN[name]
    home = Home(tmp_path)
    home.write(file, text)

    @node("well:Fine")
    def fine() -> int:
        return 1

    class Well:
        @hookimpl
        def tavern_register_nodes(self) -> list[Any]:
            return [fine]

    with home.open(plugins=[Plugin(Well(), name="well")]) as tavern:
        listed = {spec.type for spec in tavern.nodes.list()}
        status = tavern.plugins["ed"]
        with pytest.raises(WorkflowInvalid) as caught:
            tavern.workflows.run_sync("f")
        [problem] = tavern.workflows.check("f")
    assert ("well:Fine" in listed, "ed:One" in listed, status.state) == (True, False, "failed")
    assert words in status.reason
    assert (problem.code, "plugin ed is failed" in problem.hint) == ("UNKNOWN_TYPE", True)
    assert "ed:One" in caught.value.message


def test_a_reload_that_fails_leaves_no_node_behind(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.open() as tavern:
        assert ran(tavern) == (2, "complete")
        home.write("nodes/one.py", "raise ValueError\n")
        with pytest.raises(PluginError):
            tavern.plugins.reload_sync("ed")
        with pytest.raises(WorkflowInvalid):
            ran(tavern)
        home.write("nodes/one.py", CODE.format(5))
        tavern.plugins.reload_sync("ed")
        assert ran(tavern) == (6, "complete")


def test_nodes_and_workflows_of_a_zipped_plugin_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "zipped.zip"
    flow = {"description": "d", "nodes": [{"id": "a", "type": "zipped:One", "inputValues": {"x": 1}}], "edges": []}
    with zipfile.ZipFile(archive, "w") as file:
        package = "tavern_plugin_zipped"
        file.writestr(f"{package}/__init__.py", "")
        file.writestr(
            f"{package}/plugin.yaml", 'name: zipped\nversion: "1.0"\nnodes: {entry: nodes}\nworkflows: {entry: flows}\n'
        )
        file.writestr(f"{package}/nodes/__init__.py", "")
        file.writestr(f"{package}/nodes/one.py", CODE.format(1))
        file.writestr(f"{package}/flows/go.json", json.dumps(flow))
        info = "tavern_plugin_zipped-1.0.dist-info"
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tavern-plugin-zipped\nVersion: 1.0\n")
        file.writestr(f"{info}/entry_points.txt", f"[tavern.plugins]\nzipped = {package}\n")
    monkeypatch.syspath_prepend(str(archive))
    try:
        with Tavern.open({}, home=tmp_path / "home") as tavern:
            assert tavern.plugins["zipped"].state in ("granted", "active"), tavern.plugins["zipped"].reason
            assert tavern.nodes["zipped:One"].source.endswith("one.py:2")
            assert tavern.workflows.run_sync("zipped.go").outputs == {"a": {"y": 2}}
    finally:
        for name in [name for name in sys.modules if name.startswith("tavern_plugin_zipped")]:
            del sys.modules[name]


@pytest.mark.parametrize("is_package", [True, False], ids=["package", "folder"])
def test_nodes_are_found_in_every_module_below_the_entry_that_is_not_private(tmp_path: Path, is_package: bool) -> None:
    home = Home(tmp_path)
    if is_package:
        home.write("__init__.py", "")
        home.write("nodes/deep/__init__.py", "")
    home.write("nodes/__init__.py", CODE.format(1).replace("One", "First"))
    home.write("nodes/deep/more.py", CODE.format(1).replace("One", "Deep"))
    home.write("nodes/_private.py", CODE.format(1).replace("One", "Private"))
    home.write(
        "nodes/base.py",
        "from tavern_core import Node, Out\nclass Base(Node):\n    category = '文本'\n"
        "class Derived(Base):\n    def run(self, x: int = 0) -> Out(y=int):\n        return x\n",
    )
    with home.open() as tavern:
        found = {spec.type: spec.category for spec in tavern.nodes.list() if spec.plugin == "ed"}
    assert found == {"ed:First": "", "ed:One": "", "ed:Deep": "", "ed:Derived": "文本"}


NO_NODES: dict[str, tuple[str, dict[str, str], str]] = {
    "a file that is not a Python": ("notes.txt", {"notes.txt": ""}, "is not a Python file"),
    "a link out of the plugin": ("nodes", {"nodes/link.py": "-> {outside}"}, "nodes/link.py leads out of the plugin"),
    "a folder behind a link": ("more", {"more": "-> {root}"}, "is not a file or folder inside the plugin"),
    "a marked class that is not a node": ("nodes", {"nodes/bad.py": "from tavern_core import node\n@node\nclass Bad: ...\n"}, "none derived from Node"),
    "a marked class without run": ("nodes", {"nodes/bad.py": "from tavern_core import Node, node\n@node\nclass Bad(Node): ...\n"}, "it has no method run"),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_NODES)
def test_what_cannot_be_looked_through_for_nodes_fails_the_plugin(tmp_path: Path, name: str) -> None:
    entry, files, why = NO_NODES[name]
    home = Home(tmp_path)
    home.write("plugin.yaml", f'name: ed\nversion: "1.0.0"\nnodes: {{entry: {entry}}}\n')
    (tmp_path / "outside.py").write_text(CODE.format(1), "utf-8")
    for file, text in files.items():
        if text.startswith("-> "):
            (home.folder / file).symlink_to(text[3:].format(outside=tmp_path / "outside.py", root=tmp_path))
        else:
            home.write(file, text)
    with home.open() as tavern:
        assert [spec for spec in tavern.nodes.list() if spec.plugin == "ed"] == []
        assert (tavern.plugins["ed"].state, why in str(tavern.plugins["ed"].reason)) == ("failed", True)


@pytest.mark.slow
def test_a_zipped_plugin_with_a_file_that_is_too_large_says_so_and_is_never_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, package, info = tmp_path / "heavy.zip", "tavern_plugin_heavy", "tavern_plugin_heavy-1.0.dist-info"
    manifest = 'name: heavy\nversion: "1.0"\ntools: [{id: go, implementation: {type: script, command: [python, go.py]}, parameters: {type: object, properties: {}}}]\n'

    def write(last: bytes) -> str:
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr(f"{package}/__init__.py", "")
            file.writestr(f"{package}/plugin.yaml", manifest)
            file.writestr(f"{package}/go.py", "print('{\"ok\": true}')")
            file.writestr(f"{package}/model.bin", b"\0" * 50_000_000 + last)
            file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tavern-plugin-heavy\nVersion: 1.0\n")
            file.writestr(f"{info}/entry_points.txt", f"[tavern.plugins]\nheavy = {package}\n")
        with Tavern.open({"isolation": {"scripts": "tier"}}, home=tmp_path / "home") as tavern:
            result = tavern.invoke_sync("heavy:go", {})
            assert result.error is not None
            assert "model.bin has 50,000,001 bytes" in result.error.message, result.error
            assert "unpack the zip" in result.error.message + result.error.fix
        command = ["-m", "tavern_core", "--home", tmp_path / "home", "plugins", "lock", "--json"]
        done = run_forked(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(archive)})
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["plugins"]["heavy"]["artifactHash"])

    monkeypatch.syspath_prepend(str(archive))
    assert write(b"1") != write(b"2")  # what lies behind the limit is part of what was granted
    assert not list((tmp_path / "home").rglob("model.bin"))
