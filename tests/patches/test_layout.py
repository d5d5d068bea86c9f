"""Layout: layers without overlaps, the same each time, and nothing that a person placed moves."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core import Tavern
from tavern_core.graph.layout import layout, layout_with_sizes
from tavern_core.kernel.manifest.workflow_file_codec import workflow_of
from tavern_core.model.workflow import Workflow
from tests.counting import calls_made
from tests.patches.example import TEMPLATE, edge, flow, op
from tests.rows import each_row

SIZES = st.none() | st.integers(1, 900)


def drawn(seed: int, nodes: int, edges: int, *, placed: float = 0.0, inside: float = 0.0) -> Workflow:
    """A random graph; some nodes have a size, a position, or stand inside of an earlier one."""
    dice = random.Random(seed)
    made: list[dict[str, Any]] = []
    for at in range(nodes):
        node: dict[str, Any] = {"id": f"n{at}", "type": "core:Text"}
        if dice.random() < 0.3:
            node |= {"width": dice.randint(1, 900), "height": dice.randint(1, 900)}
        if dice.random() < placed:
            node["position"] = {"x": at % 9 * 1_000, "y": at // 9 * 1_000}
        if at and dice.random() < inside:
            node["parentNode"] = f"n{dice.randrange(at)}"
        made.append(node)
    ends = [(dice.randrange(nodes), dice.randrange(nodes)) for _ in range(edges)] if nodes else []
    wires = [
        {"id": f"e{at}", "source": f"n{a}", "target": f"n{b}", "targetHandle": f"k{at % 7}"}
        for at, (a, b) in enumerate(ends)
    ]
    return workflow_of({"nodes": made, "edges": wires})


def overlaps(workflow: Workflow, *, keep: bool = True) -> list[tuple[str, str]]:
    """Pairs of nodes in one group that overlap, except two that were placed by a person."""
    places, sizes = layout_with_sizes(workflow, keep=keep)
    nodes = list(workflow.nodes)
    found = []
    for at, one in enumerate(nodes):
        for other in nodes[:at]:
            if one.parent_node != other.parent_node or (keep and one.position and other.position):
                continue
            (x, y), (left, top) = places[one.id], places[other.id]
            (width, height), (wide, high) = sizes[one.id], sizes[other.id]
            if x < left + wide and left < x + width and y < top + high and top < y + height:
                found.append((other.id, one.id))
    return found


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.integers(0, 10**6),
    st.integers(0, 40),
    st.integers(0, 60),
    st.sampled_from([0.0, 0.3, 0.9]),
    st.sampled_from([0.0, 0.4]),
)
def test_nodes_never_overlap_and_what_is_placed_stays(
    seed: int, nodes: int, edges: int, placed: float, inside: float
) -> None:
    workflow = drawn(seed, nodes, edges, placed=placed, inside=inside)
    assert overlaps(workflow) == []
    places = layout(workflow)
    assert set(places) == {node.id for node in workflow.nodes}
    assert all(places[n.id] == (n.position["x"], n.position["y"]) for n in workflow.nodes if n.position)
    assert places == layout(workflow), "the same each time"


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(0, 40))
def test_all_can_be_laid_out_again(seed: int, nodes: int, edges: int) -> None:
    workflow = drawn(seed, nodes, edges, placed=0.5)
    assert overlaps(workflow, keep=False) == []


@each_row("seed", range(5))
def test_edges_of_an_acyclic_workflow_lead_to_the_right(seed: int) -> None:
    dice = random.Random(seed)
    ends = [sorted(dice.sample(range(30), 2)) for _ in range(45)]
    wires = [{"id": f"e{at}", "source": f"n{a}", "target": f"n{b}"} for at, (a, b) in enumerate(ends)]
    places = layout(workflow_of({"nodes": [{"id": f"n{at}", "type": "t"} for at in range(30)], "edges": wires}))
    assert all(places[f"n{a}"][0] < places[f"n{b}"][0] for a, b in ends)


def crossings(workflow: Workflow) -> int:
    places = layout(workflow)
    wires = [(places[e.source], places[e.target]) for e in workflow.edges]
    return sum(
        a[0] == c[0] and b[0] == d[0] and (a[1] - c[1]) * (b[1] - d[1]) < 0
        for at, (a, b) in enumerate(wires) for c, d in wires[:at]
    )  # fmt: skip


def test_parallel_chains_do_not_cross() -> None:
    names = [f"{row}{column}" for column in range(4) for row in "abcdef"]
    nodes = [{"id": name, "type": "t"} for name in ["start", *random.Random(1).sample(names, len(names)), "end"]]
    wires = [(f"{row}{c}", f"{row}{c + 1}") for row in "fbdace" for c in range(3)]
    wires += [("start", f"{row}0") for row in "abcdef"] + [(f"{row}3", "end") for row in "fedcba"]
    edges = [{"id": f"e{at}", "source": one, "target": other} for at, (one, other) in enumerate(wires)]
    assert crossings(workflow_of({"nodes": nodes, "edges": edges})) == 0


def test_a_new_node_stands_beside_its_neighbour_and_nothing_else_moves(tmp_path: Any) -> None:
    with Tavern.open({"plugins": {"entryPoints": False}}, home=tmp_path) as tavern:
        outcome = tavern.workflows.patch(
            flow(), [op("add", "/nodes/n", TEMPLATE), op("add", "/edges/e", edge("n.text", "join.parts"))]
        )
    places = {node.id: node.position for node in outcome.workflow.nodes}
    new = places.pop(outcome.ids["n"])
    assert places == {node["id"]: node["position"] for node in flow()["nodes"]}
    assert new is not None and new["x"] < places["join"]["x"] and abs(new["y"] - places["join"]["y"]) < 400
    assert overlaps(outcome.workflow) == []


def test_a_group_is_as_large_as_its_nodes_need() -> None:
    workflow = workflow_of({
        "nodes": [
            {"id": "box", "type": "core:frame"}, {"id": "after", "type": "t"},
            *({"id": f"n{at}", "type": "t", "parentNode": "box"} for at in range(6)),
        ],
        "edges": [{"id": f"e{at}", "source": f"n{at}", "target": f"n{at + 1}"} for at in range(5)] + [{"id": "x", "source": "n5", "target": "after"}],
    })  # fmt: skip
    places, sizes = layout_with_sizes(workflow)
    width, height = sizes["box"]
    assert all(places[f"n{at}"][0] > 0 and places[f"n{at}"][0] + sizes[f"n{at}"][0] < width for at in range(6))
    assert all(places[f"n{at}"][1] > 0 and places[f"n{at}"][1] + sizes[f"n{at}"][1] < height for at in range(6))
    assert places["after"][0] > places["box"][0] + width, "the edge out of the group counts"


ODD: dict[str, list[dict[str, Any]]] = {
    "parents in a circle": [{"id": "a", "type": "t", "parentNode": "b"}, {"id": "b", "type": "t", "parentNode": "a"}],
    "a node inside of itself": [{"id": "a", "type": "t", "parentNode": "a"}],
    "a parent that does not exist": [{"id": "a", "type": "t", "parentNode": "ghost"}],
    "a thousand groups in groups": [{"id": f"n{at}", "type": "t", "parentNode": f"n{at + 1}"} for at in range(1_000)],
    "sizes that are none": [{"id": "a", "type": "t", "width": "wide", "height": -1}, {"id": "b", "type": "t", "width": 1e300, "height": True}],
    "positions that are none": [{"id": "a", "type": "t", "position": {"x": 1e300, "y": 0}}, {"id": "b", "type": "t", "position": {"x": True}}],
    "nodes far apart": [{"id": "a", "type": "t", "position": {"x": -1e9, "y": 1e9}}, {"id": "b", "type": "t"}],
    "a node as large as everything": [{"id": "a", "type": "t", "position": {"x": 0, "y": 0}, "width": 1e5, "height": 1e5}, {"id": "b", "type": "t"}],
    "an id twice": [{"id": "a", "type": "t"}, {"id": "a", "type": "t"}],
    "nothing": [],
}  # fmt: skip


@each_row("name", ODD)
def test_an_odd_file_is_laid_out_all_the_same(name: str) -> None:
    nodes = ODD[name]
    ends = [node["id"] for node in nodes]
    edges = [{"id": f"e{at}", "source": one, "target": other} for at, (one, other) in enumerate(pairwise(ends))]
    places, _ = layout_with_sizes(workflow_of({"nodes": nodes, "edges": edges}))
    assert set(places) == set(ends)
    assert all(abs(x) < 1e10 and abs(y) < 1e10 for x, y in places.values())


@each_row("position", [{"x": "1", "y": None}, {"x": 1}, {"x": True, "y": 2}, {"x": 1e300, "y": 0}])
def test_a_position_that_is_none_is_replaced_where_all_others_have_one(tmp_path: Any, position: dict[str, Any]) -> None:
    content = flow()
    content["nodes"][1]["position"] = position
    with Tavern.open({"plugins": {"entryPoints": False}}, home=tmp_path) as tavern:
        placed = tavern.workflows.layout(content, keep=True)
    kept = {node["id"]: node["position"] for node in content["nodes"]}
    moved = [node.id for node in placed.nodes if node.position != kept[node.id]]
    assert (moved, overlaps(placed)) == ([content["nodes"][1]["id"]], [])


@pytest.mark.slow
def test_the_work_grows_with_the_number_of_nodes() -> None:
    def work(nodes: int, placed: float) -> int:
        workflow = drawn(3, nodes, nodes * 2, placed=placed)
        return calls_made(lambda: layout(workflow))

    for placed in (0.0, 0.5):
        assert work(1_200, placed) < 2.6 * work(600, placed)
    chain = workflow_of({"nodes": [{"id": f"n{at}", "type": "t"} for at in range(10_000)],
                         "edges": [{"id": f"e{at}", "source": f"n{at}", "target": f"n{at + 1}"} for at in range(9_999)]})  # fmt: skip
    assert layout(chain)["n9999"] == (9_999 * 280.0, 0.0)


@each_row("size", [{"height": 900}, {"width": 900}, {"width": 300_000, "height": 300_000}])
@each_row("place", [{}, {"position": {"x": 0, "y": 0}}], ids=["free", "placed"])
def test_a_size_counts_also_if_it_is_huge_or_of_one_side(size: dict[str, int], place: dict[str, Any]) -> None:
    made = [{"id": name, "type": "core:Text"} | (size | place if name == "a" else {}) for name in "abcdef"]
    places = layout(workflow_of({"nodes": made, "edges": []}))
    width, height = size.get("width", 200), size.get("height", 80)
    (left, top), others = places["a"], [places[name] for name in "bcdef"]
    assert not [at for at in others if left - 200 < at[0] < left + width and top - 80 < at[1] < top + height]
