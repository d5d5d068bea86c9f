"""Which plugin makes something fail? Halves of the plugins are enabled until one is left. Pure: the caller runs the attempts.

dependencies first:   a, b (needs a), c, d      each prefix of this order can run alone
fails with all, works with none                 so there is a shortest prefix that fails, and its last plugin is guilty
works with the guilty one alone                 then it fails together with another one, found in the same way
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tavern_core.frozen_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class BisectResult:
    """The result."""

    plugins: tuple[str, ...]
    """The plugins that fail together, the first found first; empty: none."""
    why_not: str = ""
    """Why none was found."""


def find_guilty(
    depends_on: Mapping[str, Iterable[str]], fails: Callable[[frozenset[str]], bool], always: Iterable[str] = ()
) -> BisectResult:
    """Find what fails with all plugins and not without them.

    Args:
        depends_on: plugin → what it needs; names that are not keys are always enabled.
        fails: runs an attempt with exactly these plugins enabled. Never called twice for one set.
        always: enabled in every attempt.
    """
    enabled = with_dependencies(always, depends_on)
    order = [name for name in dependencies_first(depends_on) if name not in enabled]
    tried: dict[frozenset[str], bool] = {}

    def bad(plugins: Iterable[str]) -> bool:
        chosen = frozenset(enabled | with_dependencies(plugins, depends_on))
        if chosen not in tried:
            tried[chosen] = fails(chosen)
        return tried[chosen]

    if not bad(order):
        return BisectResult((), "it does not fail with all plugins")
    if bad(()):
        alone = f"with {', '.join(sorted(enabled))} alone" if enabled else "without any plugin"
        return BisectResult((), f"it fails {alone}, too")
    found: list[str] = []
    while not found or not bad(found):
        rest = [name for name in order if name not in with_dependencies(found, depends_on)]
        if found:  # the plugins after the first one are not needed
            rest = rest[: sum(order.index(name) < order.index(found[0]) for name in rest)]
        if not rest:
            return BisectResult(tuple(found), "")
        found.append(_shortest(rest, lambda beginning: bad([*found, *beginning])))
    return BisectResult(tuple(found))


def _shortest(names: Sequence[str], fails: Callable[[Sequence[str]], bool]) -> str:
    """The last name of the shortest failing prefix; the whole list fails, the empty one does not."""
    low, high = 0, len(names)
    while high - low > 1:
        middle = (low + high) // 2
        if fails(names[:middle]):
            high = middle
        else:
            low = middle
    return names[high - 1]


def with_dependencies(names: Iterable[str], depends_on: Mapping[str, Iterable[str]]) -> set[str]:
    """`names` and everything they need."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in depends_on and name not in found:
            found.add(name)
            waiting += depends_on[name]
    return found


def dependencies_first(depends_on: Mapping[str, Iterable[str]]) -> list[str]:
    """All names, each after its dependencies; among equals by name. A cycle appears where it is found."""
    order: list[str] = []
    visited: set[str] = set()
    for root in sorted(depends_on):
        path = [(root, iter(sorted(depends_on[root])))] if root not in visited else []
        visited.add(root)
        while path:
            name, needs = path[-1]
            following = next((n for n in needs if n in depends_on and n not in visited), None)
            if following is None:
                order.append(name)
                path.pop()
            else:
                visited.add(following)
                path.append((following, iter(sorted(depends_on[following]))))
    return order
