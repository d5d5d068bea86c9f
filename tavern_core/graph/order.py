"""The order of a graph, or its cycle. Without recursion: a chain of 10,000 is an ordinary graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol, TypeVar

K = TypeVar("K", bound=Hashable)


def topological(after: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Order nodes so that each follows the nodes that it needs.

    Args:
        after: node → the nodes that need it; a node may occur several times.

    Returns:
        ``(order, stuck)``: `stuck` are the nodes in cycles and everything after them, empty if there is no cycle.
        Nodes that are ready at the same time keep the order of their numbers.
    """
    waits = [0] * len(after)
    for targets in after:
        for target in targets:
            waits[target] += 1
    order = [node for node, count in enumerate(waits) if count == 0]
    for node in order:  # grows while it is read
        for target in after[node]:
            waits[target] -= 1
            if waits[target] == 0:
                order.append(target)
    return order, [node for node, count in enumerate(waits) if count > 0]


def circles(after: Sequence[Sequence[int]], stuck: Sequence[int]) -> list[list[int]]:
    """Disjoint cycles among the `stuck` nodes of `topological`, each ``[a, b, c]`` for a → b → c → a.

    Every stuck node is on one of them, or comes after one.
    """
    unordered = set(stuck)
    before: dict[int, list[int]] = {node: [] for node in stuck}
    for node in stuck:
        for target in after[node]:
            if target in unordered:
                before[target].append(node)
    found: list[list[int]] = []
    settled: set[int] = set()
    for start in stuck:
        # Walking backwards from a stuck node never ends at a ready one, so it returns to itself.
        positions: dict[int, int] = {}
        path: list[int] = []
        node = start
        while node not in positions and node not in settled:
            positions[node] = len(path)
            path.append(node)
            node = before[node][0]
        if node not in settled:
            circle = path[positions[node] :][::-1]
            at = circle.index(min(circle))
            found.append(circle[at:] + circle[:at])
        settled.update(path)
    return found


class Successors(Protocol[K]):
    """Node → the nodes after it: a list, or a mapping with an entry for every node."""

    def __getitem__(self, node: K, /) -> Iterable[K]: ...


def reachable_along(edges: Iterable[tuple[K, K]], starts: Iterable[K]) -> set[K]:
    """The `starts` and every node to which `edges` lead from them."""
    after: defaultdict[K, list[K]] = defaultdict(list)
    for source, target in edges:
        after[source].append(target)
    return reachable(after, starts)


def reachable(after: Successors[K], starts: Iterable[K]) -> set[K]:
    """The `starts` and every node that can be reached from them."""
    found = set(starts)
    queue = list(found)
    while queue:
        for target in after[queue.pop()]:
            if target not in found:
                found.add(target)
                queue.append(target)
    return found
