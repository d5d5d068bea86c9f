"""Positions for nodes without one: layers from left to right, ordered so that few edges cross. Deterministic, without recursion.

    layers by the longest path → order in each layer by the barycenter of the neighbours → coordinates by width and height

A node that has a position keeps it. New nodes are laid out beside the nodes they are connected with, where there is room. Nodes
inside a group node (`parentNode`) have positions relative to it, and are laid out among themselves; a group is as large as they need.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeGuard

from tavern_core.graph.order import topological
from tavern_core.graph.spatial_grid import SpatialGrid, bounding_box
from tavern_core.model import depths
from tavern_core.model.workflow import Workflow

COLUMN: Final = 280
ROW: Final = 120
WIDTH: Final = 200.0
HEIGHT: Final = 80.0
_GAP: Final = (COLUMN - WIDTH, ROW - HEIGHT)
_SLOT: Final = 24.0
"""Height of one further slot of a node."""
_PADDING: Final = 40.0
"""Between the frame of a group and the nodes in it."""
_FARTHEST: Final = 1e9
"""Pixels from the origin; nodes farther away are laid out again."""
_LARGEST: Final = 1e7
_SWEEPS: Final = 4
Point = tuple[float, float]
Size = tuple[float, float]


def layout(workflow: Workflow, *, keep: bool = True) -> Mapping[str, Point]:
    """Node id → (x, y) in pixels, of the upper left corner; relative to the group node for a node in one."""
    return layout_with_sizes(workflow, keep=keep)[0]


def layout_with_sizes(workflow: Workflow, *, keep: bool = True) -> tuple[dict[str, Point], dict[str, Size]]:
    """`layout`, and node id → (width, height): as written, else estimated; a group without a written size holds its nodes."""
    ids = list(dict.fromkeys(node.id for node in workflow.nodes))
    parents = _parents(workflow, set(ids))
    sizes, written = sizes_of(workflow), _written_sizes(workflow)
    fixed = _fixed(workflow) if keep else {}
    members: dict[str, list[str]] = {}
    for name in ids:
        members.setdefault(parents.get(name, ""), []).append(name)
    edges = _edges_by_parent(workflow, parents)
    places: dict[str, Point] = {}
    for parent in sorted(
        members, key=lambda name: -_depth(name, parents)
    ):  # inner groups first: they have to know their size
        inside = members[parent]
        found = _placed(inside, edges.get(parent, []), sizes, {name: fixed[name] for name in inside if name in fixed})
        if parent and not fixed.keys() & set(inside):
            found = {name: (x + _PADDING, y + _PADDING) for name, (x, y) in found.items()}
        if parent and parent not in written:
            right = max(found[name][0] + sizes[name][0] for name in inside)
            bottom = max(found[name][1] + sizes[name][1] for name in inside)
            sizes[parent] = max(sizes[parent][0], right + _PADDING), max(sizes[parent][1], bottom + _PADDING)
        places.update(found)
    return {name: places[name] for name in ids}, sizes


def sizes_of(workflow: Workflow) -> dict[str, Size]:
    """Node id → (width, height): as written, else estimated from its slots."""
    slots: dict[str, set[str]] = {node.id: set(node.input_values) for node in workflow.nodes}
    for edge in workflow.edges:
        if edge.target in slots:
            slots[edge.target].add(str(edge.target_handle))
    written = _written_sizes(workflow)
    return {
        name: written.get(name) or (WIDTH, HEIGHT + _SLOT * min(max(len(found) - 2, 0), 40))
        for name, found in slots.items()
    }


def is_laid_out(workflow: Workflow) -> bool:
    """Whether each node has a position that a picture can contain."""
    return all(_point(node.position) is not None for node in workflow.nodes)


def _written_sizes(workflow: Workflow) -> dict[str, Size]:
    """The sizes in the file; where it has only one side, the other is estimated."""
    found = {}
    for node in workflow.raw.get("nodes") or ():
        sides = [side if _is_number(side, _LARGEST) and side > 0 else 0 for side in map(node.get, ("width", "height"))]
        if any(sides):
            found[node["id"]] = float(sides[0] or WIDTH), float(sides[1] or HEIGHT)
    return found


def _fixed(workflow: Workflow) -> dict[str, Point]:
    return {node.id: at for node in workflow.nodes if (at := _point(node.position)) is not None}


def _point(position: Mapping[str, Any] | None) -> Point | None:
    """The position of a node; None: it has none, or one that no picture can contain."""
    x, y = (position or {}).get("x"), (position or {}).get("y")
    return (float(x), float(y)) if _is_number(x, _FARTHEST) and _is_number(y, _FARTHEST) else None


def _is_number(value: Any, most: float) -> TypeGuard[float]:
    """Whether a picture can contain this number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= most


# Groups ------------------------------------------------------------------------------------------------------------------


def _parents(workflow: Workflow, ids: set[str]) -> dict[str, str]:
    """Node → the group node around it; without circles, and without groups that are nested too deeply."""
    found = {
        node.id: node.parent_node for node in workflow.nodes if node.parent_node in ids and node.parent_node != node.id
    }
    known: dict[str, str] = {name: parent for name, parent in found.items() if parent is not None}
    return {name: parent for name, parent in known.items() if _depth(name, known) <= depths.VALUE}


def _depth(name: str, parents: Mapping[str, str]) -> int:
    depth = 0
    while name in parents and depth <= depths.VALUE:
        name, depth = parents[name], depth + 1
    return depth + (1 if name else 0)


def _edges_by_parent(workflow: Workflow, parents: Mapping[str, str]) -> dict[str, list[tuple[str, str]]]:
    """Group → its edges, between the two nodes directly inside it that contain the ends."""
    ids = {node.id for node in workflow.nodes}
    found: dict[str, list[tuple[str, str]]] = {}
    for edge in workflow.edges:
        if edge.source not in ids or edge.target not in ids:
            continue
        if not parents:
            found.setdefault("", []).append((edge.source, edge.target))
            continue
        around = {group: name for name, group in _chain(edge.source, parents)}
        for name, group in _chain(edge.target, parents):
            if group in around:
                if around[group] != name:
                    found.setdefault(group, []).append((around[group], name))
                break
    return found


def _chain(name: str, parents: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """(node, group around it) from a node outwards."""
    while True:
        group = parents.get(name, "")
        yield name, group
        if not group:
            return
        name = group


# One group, or the top level ---------------------------------------------------------------------------------------------


def _placed(
    names: Sequence[str], edges: Sequence[tuple[str, str]], sizes: Mapping[str, Size], fixed: Mapping[str, Point]
) -> dict[str, Point]:
    places = dict(fixed)
    free = [name for name in names if name not in fixed]
    if not free:
        return places
    room = SpatialGrid(_GAP)
    for name, at in fixed.items():
        room.add((*at, *sizes[name]))
    among = {name: list[str]() for name in free}
    attached: dict[str, list[tuple[str, bool]]] = {}
    for source, target in edges:
        if source in among and target in among:
            among[source].append(target)
        elif source in among:
            attached.setdefault(source, []).append((target, False))
        elif target in among:
            attached.setdefault(target, []).append((source, True))
    blocks = _blocks(among)
    lonely = [block[0] for block in blocks if len(block) == 1 and block[0] not in attached]
    for block in [block for block in blocks if len(block) > 1 or block[0] in attached] + ([lonely] if lonely else []):
        inside = _grid(block, sizes) if block is lonely else _layered(block, among, sizes)
        wanted = _wanted(block, inside, attached, places, sizes)
        box = bounding_box([(*inside[name], *sizes[name]) for name in block])
        if wanted is None:
            left, _, _, bottom = room.bounds
            wanted = (left, bottom + _GAP[1]) if room.boxes else (0.0, 0.0)
        dx, dy = room.nearest((wanted[0] + box[0], wanted[1] + box[1], box[2], box[3]))
        dx, dy = dx - box[0], dy - box[1]
        for name in block:
            places[name] = inside[name][0] + dx, inside[name][1] + dy
            room.add((*places[name], *sizes[name]))
    return places


def _blocks(among: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """The connected parts, in the order of the file."""
    linked: dict[str, list[str]] = {name: [] for name in among}
    for source, targets in among.items():
        for target in targets:
            linked[source].append(target)
            linked[target].append(source)
    visited: set[str] = set()
    found: list[list[str]] = []
    number = {name: at for at, name in enumerate(among)}
    for start in among:
        if start in visited:
            continue
        visited.add(start)
        part = [start]
        for name in part:  # grows while it is read
            for other in linked[name]:
                if other not in visited:
                    visited.add(other)
                    part.append(other)
        found.append(sorted(part, key=number.__getitem__))
    return found


def _wanted(
    block: Sequence[str], inside: Mapping[str, Point], attached: Mapping[str, Sequence[tuple[str, bool]]],
    places: Mapping[str, Point], sizes: Mapping[str, Size],
) -> Point | None:  # fmt: skip
    """The origin of a block that puts its nodes beside their fixed neighbours; None: it has none."""
    lefts: list[float] = []
    rights: list[float] = []
    middles: list[float] = []
    for name in block:
        for other, is_before in attached.get(name, ()):
            (x, y), (width, height) = places[other], sizes[other]
            middles.append(y + height / 2 - inside[name][1] - sizes[name][1] / 2)
            if is_before:
                lefts.append(x + width + _GAP[0] - inside[name][0])
            else:
                rights.append(x - _GAP[0] - sizes[name][0] - inside[name][0])
    if not middles:
        return None
    return (max(lefts) if lefts else min(rights)), sum(middles) / len(middles)


def _grid(names: Sequence[str], sizes: Mapping[str, Size]) -> dict[str, Point]:
    """Nodes without edges, in rows."""
    columns = math.ceil(math.sqrt(len(names)))
    wide = max(sizes[name][0] for name in names) + _GAP[0]
    found: dict[str, Point] = {}
    top = 0.0
    for at in range(0, len(names), columns):
        row = names[at : at + columns]
        found.update({name: (column * wide, top) for column, name in enumerate(row)})
        top += max(sizes[name][1] for name in row) + _GAP[1]
    return found


def _layered(names: Sequence[str], among: Mapping[str, Sequence[str]], sizes: Mapping[str, Size]) -> dict[str, Point]:
    """The nodes of one connected part, from (0, 0) to the right and down."""
    if len(names) == 1:
        return {names[0]: (0.0, 0.0)}
    number = {name: at for at, name in enumerate(names)}
    after = [[number[target] for target in dict.fromkeys(among[name]) if target != name] for name in names]
    before: list[list[int]] = [[] for _ in names]
    for node, targets in enumerate(after):
        for target in targets:
            before[target].append(node)
    layers = _ordered(_layers(after, before), before, after)
    size = [sizes[name] for name in names]
    y = _heights(layers, before, after, [height for _, height in size])
    found: dict[str, Point] = {}
    left = 0.0
    for layer in layers:
        for node in layer:
            found[names[node]] = left, y[node]
        left += max(size[node][0] for node in layer) + _GAP[0]
    return found


def _layers(after: Sequence[Sequence[int]], before: Sequence[Sequence[int]]) -> list[list[int]]:
    """Node numbers by the longest path from a source; sources stand directly before what needs them."""
    order, stuck = topological(after)
    depth = [0] * len(after)
    done = [False] * len(after)
    for node in (*order, *stuck):  # in a cycle, what comes first in the file stands first
        depth[node] = max((depth[other] + 1 for other in before[node] if done[other]), default=0)
        done[node] = True
    for node, targets in enumerate(after):
        if targets and not before[node]:
            depth[node] = max(min(depth[target] for target in targets) - 1, 0)
    found: dict[int, list[int]] = {}
    for node, at in enumerate(depth):
        found.setdefault(at, []).append(node)
    return [found[at] for at in sorted(found)]


def _ordered(
    layers: list[list[int]], before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]
) -> list[list[int]]:
    """The layers, each sorted by the mean place of the neighbours on one side, then on the other."""
    place = [0.0] * len(before)

    def settle(layer: list[int]) -> None:
        for at, node in enumerate(layer):
            place[node] = (at + 0.5) / len(layer)

    for layer in layers:
        settle(layer)
    for _ in range(_SWEEPS):
        for neighbours, row in ((before, layers), (after, layers[::-1])):
            for layer in row:
                means = {
                    n: sum(place[o] for o in neighbours[n]) / len(neighbours[n]) if neighbours[n] else place[n]
                    for n in layer
                }
                layer.sort(key=means.__getitem__)
                settle(layer)
    return layers


def _heights(
    layers: Sequence[Sequence[int]],
    before: Sequence[Sequence[int]],
    after: Sequence[Sequence[int]],
    heights: Sequence[float],
) -> list[float]:
    """The y of each node: in the order of its layer, without overlaps, as close to the middle of its neighbours as that allows."""
    y = [0.0] * len(heights)
    middle = [0.0] * len(heights)

    def stack(layer: Sequence[int], wanted: Mapping[int, float]) -> None:
        bottom, offset = -_FARTHEST, 0.0
        for node in layer:
            y[node] = max(wanted[node] - heights[node] / 2, bottom)
            bottom = y[node] + heights[node] + _GAP[1]
            offset += y[node] + heights[node] / 2 - wanted[node]
        shift = offset / len(layer)
        for node in layer:
            y[node] -= shift
            middle[node] = y[node] + heights[node] / 2

    for layer in layers:
        stack(layer, dict.fromkeys(layer, 0.0))
    for _ in range(_SWEEPS):
        for neighbours, row in ((before, layers), (after, layers[::-1])):
            for layer in row:
                means = {
                    n: sum(middle[o] for o in neighbours[n]) / len(neighbours[n]) if neighbours[n] else middle[n]
                    for n in layer
                }
                stack(layer, means)
    top = min(y)
    return [value - top for value in y]
