"""The compiled intake says yes only to what the engine accepts, and its copies are the careful copies."""

from __future__ import annotations

import enum
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, TypeAdapter

from tavern_core.errors import SchemaInvalid
from tavern_core.kernel.views.values import copy_builtins
from tavern_core.schema.bounded_json_copying import NotPlainData, is_plain, json_copy, measure, quick_copy
from tavern_core.schema.compiled_argument_validation import compile_intake
from tavern_core.schema.defaults import compile_defaults
from tavern_core.schema.deserialization import made_of_json
from tavern_core.schema.validate import compile_validator
from tests.rows import each_row

PLENTY = 16_000_000


class Text(str):
    __slots__ = ()


class Mask(str):
    """A name that claims to be another."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other == "a" or str.__eq__(self, other)  # type: ignore[arg-type]

    def __hash__(self) -> int:
        return hash("a")


class Number(int):
    pass


class Table(dict):  # type: ignore[type-arg]
    pass


class Row(list):  # type: ignore[type-arg]
    pass


class Level(enum.IntEnum):
    HIGH = 1


class Colour(enum.StrEnum):
    RED = "a"


def knot() -> list[Any]:
    tied: list[Any] = []
    tied.append(tied)
    return tied


def bomb(width: int = 20, depth: int = 40) -> list[Any]:
    """Small in memory, endless to walk."""
    parts: list[Any] = []
    for _ in range(depth):
        parts = [parts] * width
    return parts


def deep(levels: int) -> Any:
    value: Any = 1
    for at in range(levels):
        value = [value] if at % 2 else {"a": value}
    return value


def mutable_parts(value: Any) -> set[int]:
    found = {id(value)} if isinstance(value, dict | list) else set()
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        found |= mutable_parts(inner)
    return found


def order(value: Any) -> Any:
    """A value with the order of its names in plain sight, and its exact types."""
    if isinstance(value, dict):
        return [type(value), [(type(name), name, order(item)) for name, item in value.items()]]
    return [type(value), list(map(order, value))] if isinstance(value, list) else [type(value), value]


names = st.sampled_from(["a", "b", "c", "d", "e", "名", "a b", "'\"\\\n{"])
odd = st.sampled_from(
    [
        Text("a"), Number(1), Level.HIGH, Colour.RED, float("nan"), float("inf"), -0.0, 1e300, 10**400, 2**63, -(2**63),
        2**63 - 1, "\ud800", "中", "x" * 5000, (1,), (), b"a", {1}, Table(a=1), Row([1]), {Text("a"): 1}, {Mask("evil"): 1}, {1: 1},
        knot(), deep(70), [0] * 100, object(),
    ]
)  # fmt: skip
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.integers(),
    st.floats(-5, 5),
    st.sampled_from(["", "a", "b", "ab", "abc"]),
)
values = st.recursive(
    st.one_of(scalars, scalars, odd),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=4)),
    max_leaves=10,
)

bounds = st.one_of(st.integers(-3, 3), st.sampled_from([0.5, -0.5, 1.0, 2**53, 2**60]))
small = st.integers(0, 3)
leaves = st.one_of(
    st.just({}),
    st.just(True),
    st.fixed_dictionaries(
        {"type": st.just("string")}, optional={"minLength": small, "maxLength": small, "format": st.just("date")}
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["integer", "number", ["integer", "null"], ["number", "string"]])},
        optional={"minimum": bounds, "maximum": bounds, "exclusiveMinimum": bounds, "exclusiveMaximum": bounds},
    ),
    st.sampled_from(["boolean", "null", "object", "array", ["boolean", "null"], ["object", "array", "integer"]]).map(
        lambda t: {"type": t}
    ),
    st.lists(scalars, min_size=1, max_size=3).map(lambda chosen: {"enum": chosen}),
    st.tuples(scalars, st.sampled_from(["string", "integer"])).map(lambda both: {"const": both[0], "type": both[1]}),
    # These have no shape: the engine judges them.
    st.sampled_from(
        [{"pattern": "^a"}, {"multipleOf": 2}, {"type": "array", "uniqueItems": True}, {"not": {"type": "null"}}, False]
    ),
)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(names, inner, max_size=6)},
        optional={
            "required": st.lists(names, max_size=2, unique=True),
            "additionalProperties": st.sampled_from([False, True, {"type": "integer"}]),
        },
    )


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        _objects(inner),
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner}, optional={"minItems": small, "maxItems": small}
        ),
        st.fixed_dictionaries({"type": st.just("object"), "additionalProperties": inner}),
        inner.map(lambda one: {"anyOf": [one, {"type": "null"}]}),
        st.lists(inner, min_size=1, max_size=2).map(lambda some: {"anyOf": some}),
        st.just({"$ref": "#/$defs/leaf"}),
        st.just({"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}),
    )


NODE = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "integer"}}}}
schemas = _objects(st.recursive(leaves, _nested, max_leaves=5)).map(
    lambda schema: {**schema, "$defs": {"leaf": {"type": "integer", "minimum": 0}, "node": NODE}}
)


def fitting(schema: Any, draw: Any) -> Any:
    """A value that often fits: random values alone hardly ever would."""
    if not isinstance(schema, dict) or draw(st.integers(0, 9)) == 0:
        return draw(values)
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    if "anyOf" in schema:
        return fitting(draw(st.sampled_from(schema["anyOf"])), draw)
    if "$ref" in schema:
        return fitting(NODE if "node" in schema["$ref"] else {"type": "integer"}, draw)
    kind = schema.get("type")
    kind = draw(st.sampled_from(kind)) if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties") or {}
        chosen = draw(st.permutations(list(properties))) if properties else []
        needed = set(schema.get("required", ()))
        found = {name: fitting(properties[name], draw) for name in chosen if name in needed or draw(st.booleans())}
        if isinstance(others := schema.get("additionalProperties"), dict) and not properties:
            found |= {name: fitting(others, draw) for name in draw(st.lists(names, max_size=3))}
        return found
    if kind == "array":
        return [fitting(schema.get("items", {}), draw) for _ in range(draw(st.integers(0, 3)))]
    one_of = {"string": st.text(max_size=3), "integer": st.integers(-3, 3), "number": st.floats(-3, 3) | st.integers(-3, 3),
              "boolean": st.booleans(), "null": st.none()}  # fmt: skip
    return draw(one_of.get(kind, values))


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(st.data())
def test_what_the_intake_takes_the_engine_accepts_and_its_copy_is_the_careful_one(data: st.DataObject) -> None:
    schema = data.draw(schemas)
    try:
        validator = compile_validator(schema).build()
    except SchemaInvalid:
        return
    intake = compile_intake(validator.judged_by, PLENTY)
    if intake is None:
        return
    for _ in range(4):
        value = fitting(schema, data.draw)
        taken = intake(value)
        if taken is None:
            continue
        careful, problem = json_copy(value)
        assert problem is None
        assert order(taken) == order(careful)
        assert is_plain(taken)
        assert validator.accepts(taken)
        assert not validator.problems(taken)
        assert mutable_parts(taken).isdisjoint(mutable_parts(value))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(values)
def test_a_quick_copy_is_the_careful_copy(value: Any) -> None:
    copy = quick_copy(value)
    if copy is not None:
        careful, problem = json_copy(value)
        assert problem is None
        assert order(copy) == order(careful)
        assert mutable_parts(copy).isdisjoint(mutable_parts(value))


SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "maxLength": 6000},
        "count": {"type": "integer", "minimum": 0.5, "maximum": 9},
        "ratio": {"type": "number", "exclusiveMaximum": 1},
        "tags": {"type": "array", "items": {"enum": ["a", "b", 1, None]}, "maxItems": 3},
        "owner": {"type": "object", "properties": {"name": {"type": ["string", "null"]}}, "required": ["name"]},
        "sizes": {"type": "object", "additionalProperties": {"type": "integer"}},
        "any": {},
        "rows": {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}},
    },
}


def taken(arguments: Any, schema: Any = SCHEMA, most: int = PLENTY) -> Any:
    intake = compile_intake(compile_validator(schema).judged_by, most)
    assert intake is not None
    return intake(arguments)


@each_row(
    "arguments",
    [
        {},
        {"text": "", "count": 1, "ratio": 0},
        {"text": "中文 😀"},
        {"ratio": -(2**62)},
        {"sizes": {"中": 1, "b": 2}, "count": 9},
        {"tags": ["a", 1, None], "owner": {"name": None}},
        {"rows": [[True], [], [False, True]]},
        {"any": {"a": [1, {"b": 2.5}], "c": "中"}},
        {"any": None, "text": "order", "count": 2},
        {"any": deep(40)},
    ],
)
def test_ordinary_arguments_are_taken_at_a_glance(arguments: Any) -> None:
    found = taken(arguments)
    assert order(found) == order(arguments)
    assert mutable_parts(found).isdisjoint(mutable_parts(arguments))


@each_row(
    "arguments",
    [
        None, [], "text", 1, Table(), {"text": 1}, {"text": Text("a")}, {"text": Colour.RED}, {"text": "\ud800"}, {"text": "x" * 5000},
        {"count": 0}, {"count": 10}, {"count": True}, {"count": 1.0}, {"count": Level.HIGH}, {"ratio": 1}, {"ratio": float("nan")},
        {"ratio": -float("inf")}, {"ratio": False}, {"tags": "ab"}, {"tags": ("a",)}, {"tags": ["c"]}, {"tags": [True]}, {"tags": [1.0]},
        {"tags": ["a"] * 4}, {"tags": Row()}, {"owner": {}}, {"owner": {"name": "n", "age": 1}}, {"owner": {Text("name"): "n"}},
        {"owner": Table(name="n")}, {"unknown": 1}, {Text("count"): 1}, {1: 1}, {"sizes": {1: 1}}, {"sizes": {"a": "b"}},
        {"sizes": {"\ud800": 1}}, {"sizes": dict.fromkeys(map(str, range(100)), 1)}, {"any": knot()}, {"any": bomb()}, {"any": deep(70)},
        {"any": b""}, {"any": [float("nan")]}, {"any": "x" * 5000}, {"rows": [[1]]}, {"rows": [[True] * 100]},
    ],
)  # fmt: skip
def test_uncertain_values_are_left_to_the_engine(arguments: Any) -> None:
    assert taken(arguments) is None


def test_a_name_that_claims_to_be_another_is_not_believed() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert taken({"a": 1}, schema) == {"a": 1}
    assert taken({Mask("evil"): 1}, schema) is None


def test_names_with_quotes_line_breaks_and_keywords_are_only_names() -> None:
    wild = ['"', "'''", "\\", "\n    import os", "{x}", "return None", "c1", "lambda", "__class__", "%s", "#"]
    schema = {"type": "object", "properties": {name: {"enum": [name, "ok"]} for name in wild}, "required": wild[:3]}
    arguments = {name: name for name in wild}
    assert taken(arguments, schema) == arguments
    assert taken(arguments | {"#": "no"}, schema) is None


@each_row(
    "part",
    [
        {"type": "string", "pattern": "^a"}, {"oneOf": [{"type": "string"}, {"type": "null"}]}, {"allOf": [{"type": "string"}]},
        {"not": {}}, {"if": {}, "then": {}}, {"type": "array", "uniqueItems": True}, {"type": "array", "prefixItems": [True]},
        {"type": "array", "contains": {}}, {"type": "object", "minProperties": 1}, {"type": "object", "patternProperties": {"a": {}}},
        {"type": "object", "dependentRequired": {"a": ["b"]}}, {"type": "integer", "multipleOf": 3}, {"minimum": 1},
        {"type": "integer", "minimum": 2**60}, {"anyOf": [{"type": "integer"}, {"type": "number"}]}, {"$ref": "#"}, False,
        {"type": "integer", "default": "not a number"}, {"type": "object", "propertyNames": {"maxLength": 3}},
    ],
)  # fmt: skip
def test_a_schema_that_says_more_than_a_glance_can_judge_has_no_intake(part: Any) -> None:
    schema = {"type": "object", "properties": {"a": part}}
    assert compile_intake(compile_validator(schema).judged_by, PLENTY) is None


def test_what_defaults_add_was_judged_when_the_intake_was_compiled() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "default": 3},
            "b": {"type": "object", "properties": {"c": {"type": "string", "default": "x"}}, "default": {}},
        },
    }
    fill = compile_defaults(schema)
    validator = compile_validator(schema)
    assert fill is not None
    for arguments in ({}, {"a": 1}, {"b": {}}, {"b": {"c": "y"}}):
        assert validator.accepts(fill(taken(arguments, schema)))


def test_no_call_holds_more_text_than_it_may() -> None:
    properties = {name: {"type": "string"} for name in "abcd"}
    schema = {"type": "object", "properties": properties}
    for most in (1_100, 2_000, 20_000):
        longest = 0
        for length in (200, 256, 270, 400, 499, 500, 4_000, 4_096, 5_000):
            found = taken(dict.fromkeys("abcd", "x" * length), schema, most)
            assert found is None or measure(found, max_chars=most) is None
            longest = max(longest, 0 if found is None else length)
        assert longest >= 200
    assert compile_intake(compile_validator(schema).judged_by, 1_000) is None


def test_a_quick_copy_has_room_for_so_much_and_no_more() -> None:
    assert quick_copy({"ab": "cd"}, room=6) == {"ab": "cd"}
    assert quick_copy({"ab": "cd"}, room=5) is None
    assert quick_copy([[[]]], levels=3) == [[[]]]
    assert quick_copy([[[]]], levels=2) is None
    assert quick_copy(bomb()) is None
    assert quick_copy(knot()) is None


def test_whole_numbers_beside_something_deep_cut_nothing_of_it() -> None:
    class Part(BaseModel):
        model_config = ConfigDict(strict=True)
        count: int
        rest: Any

    deep: Any = "inside"
    for _ in range(150):
        deep = [deep]
    assert made_of_json(TypeAdapter(Part), {"count": 2.0, "rest": deep}) == Part(count=2, rest=deep)


def _biting(base: type) -> Any:
    """A subclass that overwrites what a careless look at its objects would call."""

    def bite(*_: object, **__: object) -> Any:
        raise AssertionError

    names = (
        "__eq__ __ne__ __hash__ __len__ __iter__ __getitem__ __contains__ __str__ __repr__ __bool__ __getattribute__"
    )
    return type("Biting", (base,), dict.fromkeys(names.split(), bite))


class Key(str):
    """A key that bites once it is in its object."""

    __slots__ = ()
    is_armed = False

    def __hash__(self) -> int:
        assert not Key.is_armed
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        assert not Key.is_armed
        return str.__eq__(self, other)  # type: ignore[arg-type]

    def __str__(self) -> str:
        raise AssertionError


def _nested(levels: int, innermost: Any) -> Any:
    value = innermost
    for _ in range(levels):
        outer = _biting(dict)()
        dict.__setitem__(outer, Key("k"), value)
        value = outer
    return value


def _in_a_ring() -> Any:
    ring = _nested(2, None)
    dict.__setitem__(dict.__getitem__(ring, Key("k")), Key("k"), ring)
    return ring


BITING: dict[str, tuple[Callable[[], Any], str]] = {
    "a list": (lambda: list.__new__(_biting(list)), ""),
    "a number": (lambda: float.__new__(_biting(float), 1.5), ""),
    "not a number": (lambda: [float.__new__(_biting(float), "nan")], "/0: NaN is not a JSON number"),
    "an object": (lambda: [_biting(object)()], "/0: Biting is not JSON"),
    "a member": (lambda: _nested(2, b"x"), "/k/k: bytes is not JSON"),
    "too deep": (lambda: _nested(200, None), "is nested deeper than"),
    "a ring": (_in_a_ring, "/k/k: contains itself"),
}


@pytest.mark.parametrize("case", BITING)
def test_no_code_of_a_value_runs_when_it_is_looked_at_and_copied(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, said = BITING[case]
    value = make()
    monkeypatch.setattr(Key, "is_armed", True)
    copy, problem = json_copy(value)
    assert said in ("" if problem is None else str(problem)) and (problem is None) == (not said)
    assert type(copy) in (list, float, type(None))
    with suppress(NotPlainData):
        copy_builtins(value, 1_000)
