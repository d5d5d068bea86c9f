"""A service that does everything a service should not do; its module is one that no view may lead to."""

from __future__ import annotations

import asyncio
import enum
import types
from collections.abc import Callable, Iterator
from typing import Any

from tavern_core import ToolFailed, hookimpl
from tavern_core.contract.protocols import Service
from tavern_core.errors import Finding, SettingsInvalid


class Colour(enum.StrEnum):
    RED = "red"


class OwnError(Exception):
    """Of the service's own module."""


class Store:
    """A service that does everything a service should not do."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {"list": [1, [2]], "map": {"a": {"b": 1}}}
        self.given: list[Any] = []
        self.gate: asyncio.Event | None = None

    def fetch(self, key: str, default: Any = None) -> Any:
        """Fetch what is kept."""
        return self.kept.get(key, default)

    def put(self, key: str, value: Any = None, *more: Any, **named: Any) -> int:
        """Keep something."""
        self.given += [value, *more, *named.values()]
        self.kept[key] = value
        return len(self.kept)

    def answer(self, what: str) -> Any:
        """Answer what no service should answer."""
        return ANSWERS[what](self)

    def fail(self, how: str) -> Any:
        """Fail."""
        try:
            inside = self
            if how == "attribute":
                return inside.nothing  # type: ignore[attr-defined]
            raise FAILURES[how](self)
        except Exception as error:
            if how.startswith("chained"):
                raise ValueError("chained") from error
            raise

    async def later(self, what: str) -> Any:
        """Answer later."""
        inside = self  # noqa: F841 - a variable that a frame would show
        await asyncio.sleep(0)
        return ANSWERS[what](self)

    async def fail_later(self, how: str) -> Any:
        """Fail later."""
        await asyncio.sleep(0)
        self.fail(how)

    async def wait(self) -> str:
        """Wait until the gate opens."""
        self.gate = asyncio.Event()
        inner = asyncio.ensure_future(self._inner())
        try:
            return await inner
        finally:
            self.given.append("ended")

    async def _inner(self) -> str:
        assert self.gate is not None
        await self.gate.wait()
        return "open"

    def stream(self) -> Iterator[int]:
        """Yield."""
        inside = self  # noqa: F841
        yield 1

    async def astream(self) -> Any:
        """Yield later."""
        yield 1

    def _internalReset(self) -> None:
        self.kept.clear()

    @property
    def trap(self) -> Any:
        raise AssertionError("a property was evaluated")


ANSWERS: dict[str, Callable[[Store], Any]] = {
    "self": lambda s: s,
    "method": lambda s: s.put,
    "function": lambda s: lambda: s,
    "class": lambda s: Store,
    "generator": lambda s: s.stream(),
    "iterator": lambda s: iter([s]),
    "map": lambda s: map(s.fetch, ["a"]),
    "zip": lambda s: zip([s], [s], strict=True),
    "async generator": lambda s: s.astream(),
    "dict view": lambda s: s.kept.keys(),
    "proxy of a proxy": lambda s: types.MappingProxyType({"deep": s}),
    "object in a list": lambda s: [1, [s]],
    "object as a key": lambda s: {s: 1},
    "set": lambda s: {1, 2},
    "bytes": lambda s: b"x",
    "bytearray": lambda s: bytearray(b"x"),
    "memoryview": lambda s: memoryview(b"x"),
    "exception": lambda s: ValueError(s),
    "module": lambda s: asyncio,
    "circle": lambda s: _circle(),
    "nan": lambda s: [float("nan")],
    "surrogate": lambda s: ["\ud800"],
    "deep": lambda s: _deep(),
}


def _circle() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


def _deep() -> list[Any]:
    items: list[Any] = []
    for _ in range(200):
        items = [items]
    return items


class Sly(str):
    """Text that brings something along."""

    __slots__ = ("along",)


FAILURES: dict[str, Callable[[Store], BaseException]] = {
    "key": lambda s: KeyError("k"),
    "own": lambda s: OwnError("own words", s),
    "with the object": lambda s: ValueError(s),
    "chained key": lambda s: KeyError(s),
    "tavern": lambda s: ToolFailed("cannot", hint="do it", retryable=True, outcome="unknown", thing=s, n=1),
    "settings": lambda s: SettingsInvalid("no", findings=(Finding("SETTINGS_INVALID", "bad", details={"o": s}),)),
    "system exit": lambda s: SystemExit(s),
    "stop": lambda s: StopIteration(s),
    "os": lambda s: FileNotFoundError(2, "gone", "/x"),
    "unicode": lambda s: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    "group": lambda s: ExceptionGroup("many", [ValueError(s), OwnError(s)]),
    "cannot say": lambda s: _Mute(s),
    "notes": lambda s: _noted(s),
}


class _Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("never")


def _noted(s: Store) -> Exception:
    error = ValueError("noted")
    error.__notes__ = [s]  # type: ignore[list-item]
    return error


class Keeper:
    def __init__(self, interface: type | None = None) -> None:
        self.store = Store()
        self.interface = interface

    @hookimpl
    def tavern_register_services(self) -> Any:
        return [Service("store", self.store, self.interface, description="Keeps things.")]

    @property
    def secrets(self) -> list[Any]:
        """What nobody may reach."""
        return [self, self.store, Store, OwnError, self.store.kept, self.store.given]
