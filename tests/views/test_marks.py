"""`service:use` reaches what a service marks `@read_only`, and nothing of which nobody said that it only looks."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol

import pytest

from tavern_core import Plugin, hookimpl, mutates, read_only
from tavern_core.contract.protocols import Service
from tavern_core.contract.published_methods import changing_methods, unmarked_methods
from tavern_core.errors import PolicyDenied

from ..host.conftest import Opened, home, opened  # noqa: F401 - fixtures
from ..host.workshop import codes, reported


class Shelf:
    """Says nothing of its methods."""

    def look(self) -> str:
        return "looked"

    def put(self) -> str:
        return "put"


class Silent(Protocol):
    def look(self) -> str: ...

    def put(self) -> str: ...


class HalfMarked(Protocol):
    @read_only
    def look(self) -> str: ...

    def put(self) -> str: ...


class Marked(Protocol):
    @read_only
    def look(self) -> str: ...

    @mutates
    def put(self) -> str: ...


class OnlyChanges(Protocol):
    def look(self) -> str: ...

    @mutates
    def put(self) -> str: ...


class MarkedShelf(Shelf):
    @read_only
    def look(self) -> str:
        return "looked"


class OverridesWithoutMark(MarkedShelf):
    def look(self) -> str:
        return "looked, and threw something away"


class Inherits(Marked, Protocol):
    """All marks come from its base."""


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any) -> Any:
        return function(*args)

    return call


class Decorated(Protocol):
    @logged
    @read_only
    def look(self) -> str: ...

    def put(self) -> str: ...


class OutsideOfStatic(Shelf):
    @read_only
    @staticmethod
    def look() -> str:  # type: ignore[override]
        return "looked"


class OddMark(Shelf):
    def look(self) -> str:
        return "looked"

    look.__tavern_mutates__ = 0  # type: ignore[attr-defined] # no mark of ours: equal to False, and not False


Case = tuple[Callable[[], Any], type | None, bool, list[str]]
SERVICES: dict[str, Case] = {
    # object, interface, does `use` reach look()?, what is told to be unmarked
    "no interface, no marks": (Shelf, None, False, ["look", "put"]),
    "no interface, marks of its class": (MarkedShelf, None, True, ["put"]),
    "a subclass that overrides without a mark": (OverridesWithoutMark, None, False, ["look", "put"]),
    "an interface without marks": (Shelf, Silent, False, ["look", "put"]),
    "an interface without marks before a marked class": (MarkedShelf, Silent, False, ["look", "put"]),
    "an interface that marks one": (Shelf, HalfMarked, True, ["put"]),
    "an interface that marks all": (Shelf, Marked, True, []),
    "an interface that marks changes only": (Shelf, OnlyChanges, False, ["look"]),
    "an interface that inherits its marks": (Shelf, Inherits, True, []),
    "a decorated mark": (Shelf, Decorated, True, ["put"]),
    "a mark above staticmethod": (OutsideOfStatic, None, True, ["put"]),
    "a mark that is none": (OddMark, None, False, ["look", "put"]),
}


class Brings:
    def __init__(self, service: Service) -> None:
        self.service = service
        self.ctx: Any = None

    @hookimpl
    def tavern_register_services(self, ctx: Any) -> list[Service]:
        self.ctx = ctx
        return [self.service]


class Uses:
    ctx: Any = None

    @hookimpl
    def tavern_start(self, ctx: Any) -> None:
        self.ctx = ctx


def using(right: str) -> tuple[Plugin, Uses]:
    uses = Uses()
    asked = {"permissions": {"services": {right: ["shelf"]}}}
    return Plugin(uses, manifest={"name": "user", "version": "1", "start": True, **asked}), uses


@pytest.mark.parametrize("what", SERVICES)
def test_only_marked_methods_are_reached_with_the_right_to_look(opened: Opened, what: str) -> None:  # noqa: F811
    made, interface, may_look, unmarked = SERVICES[what]
    brings = Brings(Service("shelf", made(), interface))
    plugin, uses = using("use")
    host = opened(Plugin(brings, name="owner"), plugin)
    view = uses.ctx.service("shelf")
    for method in ("look", "put"):
        if may_look and method == "look":
            assert view.look() == "looked"
            continue
        with pytest.raises(PolicyDenied) as denied:
            getattr(view, method)()
        assert f"user may look at the service 'shelf', and {method!r}" in denied.value.message
        assert "service:write:shelf is not declared and granted" in denied.value.message
        assert (
            "permissions: {services: {write: [shelf]}}, then tavern plugins grant user service:write:shelf"
            in denied.value.hint
        )
        assert ("owner writes @read_only above it" in denied.value.hint) == (method in unmarked)
        facts = {"plugin": "user", "missing": ["service:write:shelf"], "service": "shelf", "method": method}
        assert denied.value.details == facts
    assert brings.ctx.service("shelf").put() == "put"  # who brought it uses all of it
    assert ("SERVICE_UNMARKED" in codes(host, "owner")) == bool(unmarked)
    assert all(name in reported(host, "SERVICE_UNMARKED") for name in unmarked)


@pytest.mark.parametrize("what", SERVICES)
def test_the_right_to_write_reaches_every_published_method(opened: Opened, what: str) -> None:  # noqa: F811
    made, interface, _, unmarked = SERVICES[what]
    service = Service("shelf", made(), interface)
    plugin, uses = using("write")
    opened(Plugin(Brings(service), name="owner"), plugin)
    view = uses.ctx.service("shelf")
    assert (view.look()[:6], view.put()) == ("looked", "put")
    assert unmarked_methods(service) == unmarked
    assert changing_methods(service) >= {*unmarked}


def test_methods_written_in_c_carry_no_mark_and_count_as_changing() -> None:
    service = Service("words", {"a": 1})
    assert changing_methods(service) == {*unmarked_methods(service)}
    assert "get" in unmarked_methods(service)


def both_ways(first: Any, second: Any) -> None:
    def look() -> None: ...

    second(first(look))


@pytest.mark.parametrize(("first", "second"), [(read_only, mutates), (mutates, read_only)])
def test_a_method_marked_both_ways_is_an_error_of_its_author(first: Any, second: Any) -> None:
    with pytest.raises(ValueError, match="look is marked both @read_only and @mutates"):
        both_ways(first, second)
    both_ways(first, first)
