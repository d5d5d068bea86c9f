"""What a view of a service costs on top of calling the service itself.

    python tests/benchmarks/report.py --only views

Both calls take turns, so that both see the same machine; the figure is the difference of the fastest rounds. The bound of half
a microsecond is for calls with plain arguments and answers; what is copied costs in addition, by its size.
"""

from __future__ import annotations

import asyncio
import tempfile
import timeit
from collections.abc import Callable
from typing import Any, Protocol

from tavern_core import Plugin, Service, Tavern, hookimpl, mutates, read_only

CONDITIONS = "a service, no tool call: nothing to audit; arguments as named; any CPU"
MOST_US = 0.5
TIMES = 50_000
ROUNDS = 9


class Counting(Protocol):
    @read_only
    def now(self) -> int: ...

    @mutates
    def add(self, a: int, b: int = 1) -> int: ...

    @read_only
    def facts(self) -> dict[str, Any]: ...

    @read_only
    def table(self) -> list[Any]: ...

    @read_only
    async def later(self) -> int: ...


class Counter:
    def __init__(self) -> None:
        self.kept = [{"name": f"row {n}", "tags": ["a", "b"], "size": n} for n in range(20)]

    def now(self) -> int:
        return 3

    def add(self, a: int, b: int = 1) -> int:
        return a + b

    def facts(self) -> dict[str, Any]:
        return {"name": "n", "size": 1, "on": True}

    def table(self) -> list[Any]:
        return self.kept

    async def later(self) -> int:
        return 3


class Brings:
    def __init__(self, counter: Counter) -> None:
        self.counter = counter

    @hookimpl
    def tavern_register_services(self) -> list[Service]:
        return [Service("counter", self.counter, Counting)]


class Uses:
    view: Any = None

    @hookimpl
    def tavern_start(self, ctx: Any) -> None:
        self.view = ctx.service("counter")


def added(direct: Callable[[], Any], viewed: Callable[[], Any], times: int) -> tuple[float, float]:
    """Microseconds of the direct call, and what the view adds."""
    one, two = timeit.Timer(direct), timeit.Timer(viewed)
    pairs = [(one.timeit(times), two.timeit(times)) for _ in range(ROUNDS)]
    fastest = [min(values) / times * 1e6 for values in zip(*pairs, strict=True)]
    return fastest[0], fastest[1] - fastest[0]


async def _drive(call: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        await call()


def rows() -> list[dict[str, Any]]:
    """All rows: area, name, value, unit, against, ratio, target."""
    counter, uses = Counter(), Uses()
    manifest = {"name": "uses", "version": "1", "start": True, "permissions": {"services": {"write": ["counter"]}}}
    config = {"plugins": {"entryPoints": False, "roots": []}}
    plugins = [Plugin(Brings(counter), name="brings"), Plugin(uses, manifest=manifest)]
    found: list[dict[str, Any]] = []

    def tell(
        name: str, direct: Callable[[], Any], viewed: Callable[[], Any], *, bound: bool, times: int = TIMES
    ) -> None:
        floor, more = added(direct, viewed, times)
        found.append(
            {
                "area": "views",
                "name": name,
                "value": round(more, 3),
                "unit": "µs more",
                "against": f"the direct call: {floor:.3f} µs" + (f"; bound: {MOST_US} µs more" if bound else ""),
                "ratio": round(more / MOST_US, 2) if bound else None,
                "target": 1 if bound else None,
            }
        )

    with tempfile.TemporaryDirectory() as home, Tavern.open(config, home=home, plugins=plugins):
        view = uses.view
        tell("no arguments, a number", counter.now, view.now, bound=True)
        tell("two numbers, a number", lambda: counter.add(1, 2), lambda: view.add(1, 2), bound=True)
        tell("a number and one by name", lambda: counter.add(1, b=2), lambda: view.add(1, b=2), bound=False)
        tell("a mapping of three values", counter.facts, view.facts, bound=False)
        tell("20 mappings with lists", counter.table, view.table, bound=False, times=2_000)
        times = 2_000
        floor, more = added(
            lambda: asyncio.run(_drive(counter.later, times)), lambda: asyncio.run(_drive(view.later, times)), 1
        )
        found.append(
            {
                "area": "views",
                "name": "an async method that does not wait",
                "value": round(more / times, 3),
                "unit": "µs more",
                "against": f"the direct call: {floor / times:.3f} µs",
                "ratio": None,
                "target": None,
            }
        )
    return found
