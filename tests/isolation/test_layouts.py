"""Isolation follows from what runs: however a plugin ships its code, none of it runs in the host when it must be isolated."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tavern_core import Tavern

NODES = """\
import os
from tavern_core import Out, node

PID = os.getpid()

@node("p:Pid")
def pid() -> Out(ran=int, imported=int):
    return {"ran": os.getpid(), "imported": PID}

@node("p:Exit")
def leave() -> Out(n=int):
    os._exit(3)
"""
FILE, FOLDER = "nodes: {entry: nodes.py}\n", "nodes: {entry: nodes}\n"
LAYOUTS = {
    "a file of nodes": (FILE, {"nodes.py": NODES}),
    "a folder of nodes": (FOLDER, {"nodes/text.py": NODES}),
    "a folder of nodes that is a package": (FOLDER, {"nodes/__init__.py": NODES}),
    "a folder of nodes in a folder": ("nodes: {entry: src/nodes}\n", {"src/nodes/text.py": NODES}),
    "nodes that import each other": (FOLDER, {"nodes/text.py": "from .more import *\n" + NODES, "nodes/more.py": "VALUE = 1\n"}),
    "a package and a file of nodes": (FILE, {"__init__.py": "", "nodes.py": NODES}),
    "nodes that the package returns": (
        "nodes: [{name: Pid}, {name: Exit}]\n",
        {"__init__.py": NODES + "from tavern_core import hookimpl\n@hookimpl\ndef tavern_register_nodes():\n    return [pid, leave]\n"},
    ),
}


def opened(folder: Path, manifest: str, files: dict[str, str], rule: str) -> Tavern:
    place = folder / "plugins" / "p"
    inside = "isolation: process\n" if rule == "manifest" else ""
    for name, text in {**files, "plugin.yaml": f'name: p\nversion: "1"\n{manifest}{inside}'}.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, "utf-8")
    config = {"plugins": {"entryPoints": False, "roots": [str(folder / "plugins")]}}
    return Tavern.open({**config, "isolation": {"plugins": ["p"] if rule == "host" else []}}, home=folder / "home")


@pytest.mark.parametrize("rule", ["manifest", "host", "none"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_code_runs_where_its_isolation_says_however_it_is_shipped(tmp_path: Path, layout: str, rule: str) -> None:
    with opened(tmp_path, *LAYOUTS[layout], rule) as host:
        assert bool(host.plugins["p"].isolated) == (rule != "none")
        result = host.workflows.run_sync({"nodes": [{"id": "n", "type": "p:Pid"}], "edges": []})
        assert result.ok, result.errors
        pids = set(result.outputs["n"].values())
        assert len(pids) == 1
        assert (os.getpid() in pids) == (rule == "none")
        if rule != "none":
            result = host.workflows.run_sync({"nodes": [{"id": "n", "type": "p:Exit"}], "edges": []})
            assert [error.details["exitCode"] for error in result.errors] == [3]
            assert host.workflows.run_sync({"nodes": [{"id": "n", "type": "p:Pid"}], "edges": []}).ok  # in a new worker
