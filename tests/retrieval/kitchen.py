"""Hosts with node types of a kitchen, a few hundred others beside them, and example workflows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tavern_core import NodeSpec, Plugin, Slot, Tavern, hookimpl


def typed(key: str, kind: str, *, required: bool = False) -> Slot:
    """A slot whose kind is a category, as editors draw it."""
    return Slot(key, "OBJECT", required=required, categories=(kind,))


def a_node(type_: str, name: str, about: str = "", takes: str = "", gives: str = "", **more: Any) -> NodeSpec:
    """A node type; `takes` and `gives` are kinds: ``"dough filling"``."""
    inputs = {kind: typed(kind, kind, required=True) for kind in takes.split()}
    outputs = {kind: typed(kind, kind) for kind in gives.split()}
    return NodeSpec(type_, inputs, outputs, display_name=name, description=about, impl=print, **more)


KITCHEN = [
    a_node("kitchen:Mix", "Mix", "Stirs flour and water into a dough.", "", "dough", category="prepare"),
    a_node("kitchen:Knead", "揉面", "反复按压面团，使其光滑。", "dough", "dough", category="准备"),
    a_node("kitchen:Bake", "Bake", "Heats dough in the oven until it is bread.", "dough", "bread", category="heat"),
    a_node("kitchen:Boil", "煮沸", "把水或汤加热到沸腾。", "water", "water", category="加热"),
    a_node("kitchen:Tap", "Tap", "Where it all begins.", "", "water", category="prepare"),
    a_node("kitchen:Slice", "Slice", "Cuts bread into pieces.", "bread", "slices", category="cut"),
    a_node("kitchen:Serve", "端上桌", "把做好的菜端给客人。", "slices", "", category="serve"),
    a_node("kitchen:OldOven", "Bake", "Heats dough in the oven.", "dough", "bread", deprecated=True),
]
OTHERS = [a_node(f"kitchen:Other{n}", f"Gadget {n}", f"Does thing number {n} for the neighbours.") for n in range(300)]


class Nodes:
    """A plugin with node types that can change."""

    def __init__(self, *specs: NodeSpec) -> None:
        self.specs = list(specs)

    @hookimpl
    def tavern_register_nodes(self) -> list[NodeSpec]:
        return self.specs


class Kitchen:
    """A folder of example workflows and a state folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.examples = root / "examples"
        self.examples.mkdir()

    def example(self, name: str, types: Sequence[str], description: str = "", **more: Any) -> Path:
        path = self.examples / f"{name}.json"
        content = {"name": name, "description": description, **a_flow(types), **more}
        path.write_text(json.dumps(content, ensure_ascii=False), "utf-8")
        return path

    def open(self, *plugins: Any, nodes: Sequence[NodeSpec] = (*KITCHEN, *OTHERS), **config: Any) -> Tavern:
        settings = {
            "plugins": {"entryPoints": False},
            "workflows": {"roots": []},
            "assistant": {"examples": [str(self.examples)]},
            **config,
        }
        given = [Plugin(Nodes(*nodes), name="kitchen"), *plugins]
        return Tavern.open(settings, plugins=given, home=self.root / "home")


def a_flow(types: Sequence[str], edges: Sequence[Mapping[str, str]] = ()) -> dict[str, Any]:
    """A workflow with one node of each type, named n0, n1 …"""
    nodes = [{"id": f"n{at}", "type": type_} for at, type_ in enumerate(types)]
    return {"nodes": nodes, "edges": [{"id": f"e{at}", **edge} for at, edge in enumerate(edges)]}


def types_of(host: Tavern, request: str, **options: Any) -> list[str]:
    return [match.type for match in host.nodes.retrieve(request, **options)]
