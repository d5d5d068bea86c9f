"""However a plugin is laid out: where a process of its own is required, none of its code runs outside of it."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tavern_core import Plugin, Tavern

from ..host.workshop import Workshop

NODE = """
    import contextlib, os
    from tavern_core import Out, node
    with contextlib.suppress(OSError), open({marker!r}, "a") as file:
        file.write(__name__)

    @node("p:Pid")
    def pid() -> Out(pid=int):
        "Where it runs."
        return os.getpid()

    @node("p:End")
    def end() -> Out(pid=int):
        "Ends its process."
        os._exit(3)
"""
CODE = """
    from tavern_core import hookimpl, tool

    @tool
    def where() -> int:
        "Where it runs."
        return os.getpid()

    @tool
    def leave() -> int:
        "Ends its process."
        os._exit(3)

    @hookimpl
    def tavern_register_tools():
        return [where, leave]
"""
RETURNS = """
from tavern_core import hookimpl

@hookimpl
def tavern_register_nodes():
    return [pid, end]
"""
NODE_TOOLS = """
      - {id: pid, description: x, implementation: {type: node, nodeType: "p:Pid"}}
      - {id: end, description: x, implementation: {type: node, nodeType: "p:End"}}
"""
CODE_TOOLS = """
      - {id: where, implementation: {type: python}}
      - {id: leave, implementation: {type: python}}
"""
HANDLED = """
      - {id: where, description: x, parameters: {type: object}, implementation: {type: python, handler: "part:where"}}
      - {id: leave, description: x, parameters: {type: object}, implementation: {type: python, handler: "part:leave"}}
"""
FLOW = '{"nodes": [{"id": "a", "type": "p:Pid"}], "edges": []}'
Make = Callable[[Workshop, str], None]


def written(shop: Workshop, folder: Path, files: dict[str, str], manifest: str) -> None:
    marker = str(shop.root / "ran-outside")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(dedent(text).replace("{marker!r}", repr(marker)))
    (folder / "plugin.yaml").write_text(f'name: p\nversion: "1.0"\n{manifest}\n')


def in_folder(files: dict[str, str], manifest: str) -> Make:
    return lambda shop, line: written(shop, shop.plugins / "p", files, f"{manifest}\n{line}")


def installed(shop: Workshop, line: str, place: Path, package: str = "tavern_plugin_p") -> None:
    """A package in `place`, with the entry point that pip leaves."""
    info = shop.site / "tavern_plugin_p-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tavern-plugin-p\nVersion: 1.0\n\n")
    (info / "entry_points.txt").write_text(f"[tavern.plugins]\np = {package}\n")
    shop._has_installed = True
    manifest = f"nodes: {{entry: nodes}}\ntools:{CODE_TOOLS}{NODE_TOOLS}\n{line}"
    written(shop, place / package.replace(".", "/"), {"__init__.py": NODE + CODE, "nodes/more.py": NODE}, manifest)


def editable(shop: Workshop, line: str) -> None:
    (shop.site / "tavern_plugin_p.pth").write_text(f"{shop.root}/project/src\n")
    sys.path.append(f"{shop.root}/project/src")  # what the interpreter does with the line when it starts
    installed(shop, line, shop.root / "project/src")


def zipped(shop: Workshop, line: str) -> None:
    installed(shop, line, shop.root / "unzipped")
    with zipfile.ZipFile(shop.site / "p.zip", "w") as archive:
        for file in (shop.root / "unzipped").rglob("*"):
            archive.write(file, file.relative_to(shop.root / "unzipped"))
    sys.path.append(f"{shop.site}/p.zip")


LAYOUTS: dict[str, tuple[Make, bool, bool]] = {
    # name → (how it is made, has nodes, has tools of its own)
    "a folder of nodes": (in_folder({"nodes/text.py": NODE}, f"nodes: {{entry: nodes}}\ntools:{NODE_TOOLS}"), True, False),
    "one file of nodes": (in_folder({"more.py": NODE}, f"nodes: {{entry: more.py}}\ntools:{NODE_TOOLS}"), True, False),
    "nodes in a folder that is not a module": (in_folder({"my-nodes/a.py": NODE}, f"nodes: {{entry: my-nodes}}\ntools:{NODE_TOOLS}"), True, False),
    "nodes with their own __init__": (in_folder({"n/__init__.py": NODE}, f"nodes: {{entry: n}}\ntools:{NODE_TOOLS}"), True, False),
    "nodes that import each other": (
        in_folder({"nodes/a.py": "from .more import VALUE\n" + dedent(NODE), "nodes/more.py": "VALUE = 1\n"}, f"nodes: {{entry: nodes}}\ntools:{NODE_TOOLS}"),
        True, False),
    "nodes that the package returns": (
        in_folder({"__init__.py": dedent(NODE) + RETURNS}, f"nodes: [{{name: Pid}}, {{name: End}}]\ntools:{NODE_TOOLS}"), True, False),
    "nodes and a workflow": (
        in_folder({"nodes/a.py": NODE, "flows/f.json": FLOW}, f"nodes: {{entry: nodes}}\nworkflows: {{entry: flows}}\ntools:{NODE_TOOLS}"), True, False),
    "nodes and handlers without __init__": (
        in_folder({"nodes/a.py": NODE, "part.py": NODE + CODE}, f"nodes: {{entry: nodes}}\ntools:{NODE_TOOLS}{HANDLED}"), True, True),
    "a package": (in_folder({"__init__.py": NODE + CODE, "n.py": NODE}, f"nodes: {{entry: n.py}}\ntools:{NODE_TOOLS}{CODE_TOOLS}"), True, True),
    "a package with handlers": (in_folder({"__init__.py": "", "part.py": NODE + CODE}, f"tools:{HANDLED}"), False, True),
    "an installed package": (lambda shop, line: installed(shop, line, shop.site), True, True),
    "a package below a namespace": (lambda shop, line: installed(shop, line, shop.site, "space.tavern_plugin_p"), True, True),
    "an editable install": (editable, True, True),
    "a package in an archive": (zipped, True, True),
}  # fmt: skip
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "plugin.yaml": ("isolation: process", {}),
    "isolation.plugins": ("", {"isolation": {"plugins": ["p"]}}),
    "isolation.raise": ("permissions: {capabilities: [gpu]}", {"isolation": {"raise": ["gpu"]}}),
}


def pid_of(host: Tavern, tool: str) -> int:
    result = host.invoke_sync(tool)
    assert result.ok, result.error
    return int(result.value["pid"] if isinstance(result.value, dict) else result.value)


# Every layout under one rule, and each other rule for one layout of another source: a rule does not look at the layout.
KEPT_OUT = [
    *((layout, "plugin.yaml") for layout in LAYOUTS),
    ("a folder of nodes", "isolation.plugins"),
    ("an installed package", "isolation.raise"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "rule"), KEPT_OUT)
def test_code_of_every_layout_stays_out_of_the_host(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, layout: str, rule: str
) -> None:
    make, has_nodes, has_tools = LAYOUTS[layout]
    line, config = RULES[rule]
    monkeypatch.setattr(sys, "path", [*sys.path])
    make(workshop, line)
    if "permissions" in line:
        workshop.grant("p")
    host = workshop.open(config=config)
    tools = [("p:pid", "p:end")] * has_nodes + [("p:where", "p:leave")] * has_tools
    for where, end in tools:
        assert pid_of(host, where) != os.getpid()
        assert host.invoke_sync(end).error is not None
        assert pid_of(host, where) != os.getpid()
    if has_nodes:
        run = host.workflows.run_sync({"nodes": [{"id": "a", "type": "p:Pid"}], "edges": []})
        assert run.outputs["a"]["pid"] != os.getpid()
    assert host.plugins["p"].isolated
    assert not (workshop.root / "ran-outside").exists()


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if "__init__" not in name])
def test_without_a_rule_the_same_layouts_run_in_the_host(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    make, has_nodes, _ = LAYOUTS[layout]
    monkeypatch.setattr(sys, "path", [*sys.path])
    make(workshop, "")
    host = workshop.open()
    assert pid_of(host, "p:pid" if has_nodes else "p:where") == os.getpid()
    assert (workshop.root / "ran-outside").exists()


def test_a_rule_of_the_host_refuses_an_object_that_it_names(workshop: Workshop) -> None:
    thing = Plugin([], name="given")
    status = workshop.open(thing, config={"isolation": {"plugins": ["given"]}}).plugins["given"]
    assert (status.state, "isolation.plugins names it" in status.reason) == ("failed", True)


@pytest.mark.slow
def test_nodes_of_a_folder_without_init_are_read_anew(workshop: Workshop) -> None:
    folder = workshop.folder(
        "p",
        None,
        f"nodes: {{entry: nodes}}\ntools:{NODE_TOOLS}",
        **{"nodes__a.py": dedent(NODE).replace("{marker!r}", "'/dev/null'")},
    )
    host = workshop.open()
    assert pid_of(host, "p:pid") == os.getpid()
    (folder / "nodes/a.py").write_text(
        (folder / "nodes/a.py").read_text().replace("return os.getpid()", "return 5  # another")
    )
    host.plugins.reload_sync("p")
    assert pid_of(host, "p:pid") == 5
