"""Defaults fill in what is missing as AJV's useDefaults does, never what is given, and every call gets its own copies."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tavern_core.errors import SchemaInvalid
from tavern_core.schema.defaults import compile_defaults
from tests.rows import each_row


def tool(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


TREE = {
    "$ref": "#/$defs/n",
    "$defs": {"n": tool(v={"default": 0}, kids={"type": "array", "items": {"$ref": "#/$defs/n"}})},
}


@each_row(
    ("schema", "value", "filled"),
    [
        (tool(a={"default": 1}), {}, {"a": 1}),
        (tool(a={"default": 1}), {"a": 2}, {"a": 2}),
        (tool(a={"default": 1}), {"a": None}, {"a": None}),
        (tool(a={"default": None}), {}, {"a": None}),
        (tool(a={"default": False}), {}, {"a": False}),
        (tool(a={"defaultValue": 0.7}), {}, {"a": 0.7}),
        (tool(a={"default": [1, {"b": 2}]}), {}, {"a": [1, {"b": 2}]}),
        (tool(a={"default": 1}, b={}), {"b": 2, "x": 3}, {"a": 1, "b": 2, "x": 3}),
        (tool(a=tool(b={"default": 1})), {}, {}),
        (tool(a=tool(b={"default": 1})), {"a": {}}, {"a": {"b": 1}}),
        (tool(a=tool(b={"default": 1})), {"a": "text"}, {"a": "text"}),
        (tool(a={**tool(b={"default": 1}), "default": {}}), {}, {"a": {"b": 1}}),
        (tool(a={**tool(b={"default": 1}), "default": {"b": 2, "c": 3}}), {}, {"a": {"b": 2, "c": 3}}),
        (tool(a={"items": tool(x={"default": 1})}), {"a": [{}, {"x": 2}, 3]}, {"a": [{"x": 1}, {"x": 2}, 3]}),
        (tool(a={"prefixItems": [tool(x={"default": 1})]}), {"a": [{}, {}]}, {"a": [{"x": 1}, {}]}),
        ({"properties": {"a": {"items": [tool(x={"default": 1})]}}}, {"a": [{}, {}]}, {"a": [{"x": 1}, {}]}),
        (tool(a={"additionalProperties": tool(x={"default": 1})}), {"a": {"k": {}}}, {"a": {"k": {"x": 1}}}),
        ({**tool(a={}), "additionalProperties": tool(x={"default": 1})}, {"a": {}, "b": {}}, {"a": {}, "b": {"x": 1}}),
        ({"allOf": [tool(a={"default": 1}), tool(b={"default": 2})]}, {}, {"a": 1, "b": 2}),
        ({**tool(a={"default": 1}), "allOf": [tool(a={"default": 2})]}, {}, {"a": 1}),
        (tool(a={"$ref": "#/$defs/x"}) | {"$defs": {"x": {"default": 5}}}, {}, {"a": 5}),
        (tool(a={"$ref": "#/$defs/x", "default": 6}) | {"$defs": {"x": {"default": 5}}}, {}, {"a": 6}),
        (tool(a={"$ref": "#x"}) | {"$defs": {"x": {"$anchor": "x", "default": 5}}}, {}, {"a": 5}),
        (tool(a={"allOf": [{"default": 5}]}), {}, {"a": 5}),
        (TREE, {"kids": [{}, {"kids": [{"v": 7}]}]}, {"v": 0, "kids": [{"v": 0}, {"v": 0, "kids": [{"v": 7}]}]}),
        (tool(a={"default": 1}, l={"items": {}}), [], []),
        (tool(a={"default": 1}), "no object", "no object"),
    ],
)
def test_what_is_filled_in(schema: Any, value: Any, filled: Any) -> None:
    fill = compile_defaults(schema)
    assert fill is not None
    before = copy.deepcopy(value)
    assert fill(value) == filled
    assert value == before


@each_row(
    "schema",
    [
        {},
        True,
        tool(a={"type": "integer"}),
        {"anyOf": [tool(a={"default": 1})]},
        {"if": {}, "then": tool(a={"default": 1})},
        tool(a={"not": tool(b={"default": 1})}),
        {"default": {"a": 1}},
        {**tool(a={}), "$defs": {"unused": tool(b={"default": 1})}},
        tool(a={"enum": [{"default": 1}]}),
    ],
)
def test_a_schema_without_a_default_to_fill_has_no_step(schema: Any) -> None:
    assert compile_defaults(schema) is None


def test_every_call_gets_copies_of_its_own() -> None:
    schema = tool(a={"default": {"list": []}}, b=tool(c={"default": [1]}))
    fill = compile_defaults(schema)
    assert fill is not None
    first, second = fill({"b": {}}), fill({"b": {}})
    first["a"]["list"].append(1)
    first["b"]["c"].append(2)
    assert second == {"b": {"c": [1]}, "a": {"list": []}} == fill({"b": {}})
    schema["properties"]["a"]["default"]["list"].append("changed later")
    assert fill({})["a"] == {"list": []}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/n", "$defs": {"n": tool(next={"$ref": "#/$defs/n", "default": {}})}},
        {"$ref": "#/$defs/a", "$defs": {"a": tool(b={"$ref": "#/$defs/b", "default": {}}), "b": tool(a={"$ref": "#/$defs/a", "default": {}})}},
    ],
)  # fmt: skip
def test_a_default_inside_itself_is_refused(schema: Any) -> None:
    with pytest.raises(SchemaInvalid, match="contains itself"):
        compile_defaults(schema)


def test_a_long_chain_of_references_is_no_problem() -> None:
    names = {f"d{n}": tool(a={"$ref": f"#/$defs/d{n + 1}"}) for n in range(2_000)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**names, "d2000": tool(x={"default": 1})}}
    fill = compile_defaults(schema)
    assert fill is not None
    assert fill({"a": {"a": {}}}) == {"a": {"a": {}}}


@pytest.mark.slow
def test_values_without_an_end_are_left_for_the_validation_to_refuse() -> None:
    fill = compile_defaults(TREE)
    assert fill is not None
    endless: dict[str, Any] = {}
    endless["kids"] = [endless, endless]
    assert fill(endless)["v"] == 0
    deep: dict[str, Any] = {}
    for _ in range(50_000):
        deep = {"kids": [deep]}
    assert fill(deep)["v"] == 0


names = st.sampled_from("abc")
plain = st.recursive(st.integers(0, 3), lambda inner: st.dictionaries(names, inner, max_size=2), max_leaves=4)
schemas = st.recursive(
    st.one_of(st.just({}), st.fixed_dictionaries({"default": plain})),
    lambda inner: st.builds(
        lambda properties, default: tool(**properties) | default,
        st.dictionaries(names, inner, max_size=3),
        st.one_of(st.just({}), st.fixed_dictionaries({"default": st.dictionaries(names, plain, max_size=2)})),
    ),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=75, deadline=None)
@given(schema=schemas, value=st.dictionaries(names, plain, max_size=3))
def test_filling_twice_changes_nothing_more_and_given_values_stay(schema: Any, value: Any) -> None:
    fill = compile_defaults(schema)
    assume(fill is not None)
    assert fill is not None
    once = fill(value)
    assert fill(once) == once
    assert _contains(once, value)


def _contains(filled: Any, given_: Any) -> bool:
    if isinstance(given_, dict) and isinstance(filled, dict):
        return all(key in filled and _contains(filled[key], item) for key, item in given_.items())
    return bool(filled == given_)
