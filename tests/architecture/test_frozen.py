"""Our frozen dataclasses behave like those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import field
from typing import Any, ClassVar

import pytest

from tavern_core.frozen_dataclass import dataclass as ours
from tests.rows import each_row

theirs = dataclasses.dataclass


@ours(frozen=True, slots=True)
class Point:
    """A point."""

    kinds: ClassVar[int] = 1
    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list, compare=False)
    note: str = field(default="n", init=False, repr=False)
    z: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", abs(self.x))


def made(dataclass: Any, frozen: bool = True) -> Any:
    @dataclass(slots=True, **({"frozen": True} if frozen else {}))
    class Point:
        """A point."""

        kinds: ClassVar[int] = 1
        x: int
        y: int = 0
        tags: list[str] = field(default_factory=list, compare=False)
        note: str = field(default="n", init=False, repr=False)
        z: int = field(default=1, kw_only=True)

        def __post_init__(self) -> None:
            object.__setattr__(self, "x", abs(self.x))

    return Point


USES: dict[str, Any] = {
    "repr": lambda c: repr(c(-1, 2, z=3)).rpartition(".")[2],
    "equal": lambda c: (c(1) == c(-1), c(1) == c(2), c(1) == 1, c(1, tags=["a"]) == c(1)),
    "hash": lambda c: (hash(c(1)) == hash(c(-1)), len({c(1), c(-1), c(2)})),
    "own defaults": lambda c: c(1).tags is c(1).tags,
    "fields": lambda c: [(f.name, f.type, f.kw_only, f.init) for f in dataclasses.fields(c)],
    "annotations": lambda c: (c.__annotations__, c.kinds),
    "subclass": lambda c: (type("Sub", (c,), {})(-1).x, c(-2).x, inspect.isfunction(c.__init__)),
    "replace": lambda c: repr(dataclasses.replace(c(1), y=5, z=6)).rpartition(".")[2],
    "asdict": lambda c: dataclasses.asdict(c(1, tags=["a"])),
    "match": lambda c: c.__match_args__,
    "slots": lambda c: (c.__slots__, hasattr(c(1), "__dict__")),
    "parameters": lambda c: [(p.name, p.kind, p.annotation) for p in inspect.signature(c).parameters.values()],
    "is one": lambda c: (dataclasses.is_dataclass(c), c.__dataclass_params__.frozen),
    "copy": lambda c: (copy.copy(c(1)) == c(1), copy.deepcopy(c(1, tags=["a"])).tags),
}


@each_row("use", USES)
def test_they_do_the_same(use: str) -> None:
    assert USES[use](made(ours)) == USES[use](made(theirs))


@each_row("use", [use for use in USES if use != "hash"])
def test_those_that_may_change_do_the_same(use: str) -> None:
    assert USES[use](made(ours, frozen=False)) == USES[use](made(theirs, frozen=False))


def test_those_that_may_change_have_no_hash() -> None:
    changed = made(ours, frozen=False)(1)
    changed.x = 7
    assert (changed.x, dataclasses.replace(changed), copy.copy(changed)) == (7, changed, changed)
    with pytest.raises(TypeError, match="unhashable"):
        hash(changed)


@each_row("wrong", [lambda c: c(), lambda c: c(1, 2, [], 4), lambda c: c(1, w=2), lambda c: c(1, x=2)])
def test_wrong_arguments_raise_the_same(wrong: Any) -> None:
    said = []
    for dataclass in (ours, theirs):
        with pytest.raises(TypeError) as caught:
            wrong(made(dataclass))
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_nothing_of_them_changes() -> None:
    point = Point(1)
    for change in (lambda: setattr(point, "x", 2), lambda: setattr(point, "w", 2), lambda: delattr(point, "x")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change()
    assert point == Point(1)


class Named(Point):
    """A plain subclass, with a dictionary."""

    name = "p"


def test_a_subclass_is_made_as_well_and_does_not_change() -> None:
    one = Named(-1, 2, z=3)
    assert (type(one), one.x, one.y, one.z, one.tags) == (Named, 1, 2, 3, [])
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.x = 5
    point = Point(1)
    point.__init__(4)  # type: ignore[misc]
    assert (type(point), point.x) == (Point, 4)


def test_they_are_pickled_and_print_themselves_within_themselves() -> None:
    tags: list[Any] = []
    point = Point(1, tags=tags)
    assert pickle.loads(pickle.dumps(Point(2, 3, ["a"], z=4))) == Point(2, 3, ["a"], z=4)
    tags.append(point)
    assert repr(point) == "Point(x=1, y=0, tags=[...], z=1)"


@pytest.mark.parametrize("dataclass", [ours, theirs])
def test_a_frozen_class_extends_a_frozen_one(dataclass: Any) -> None:
    @dataclass(frozen=True, slots=True)
    class Place(made(dataclass)):  # type: ignore[misc]
        name: str = "here"

    place = Place(-1, 2, name="there")
    assert (place.x, place.name, place == Place(1, 2, name="there"), place == Place(1, 2)) == (1, "there", True, False)
    assert dataclasses.replace(place, y=5).y == 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        place.name = "elsewhere"
