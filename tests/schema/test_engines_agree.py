"""jsonschema-rs and jsonschema give the same answer for every schema and every value."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tavern_core.schema.bounded_json_copying import json_copy
from tavern_core.schema.closed import close
from tavern_core.schema.prepare import flaws_of, prepare
from tavern_core.schema.validate import compile_output_validator, compile_validator
from tavern_core.schema.validation_engines import engine_of, explaining_engine
from tests.rows import each_row

DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def check(schema: Any, value: Any, expected: bool | None = None, *, parameters: bool = False) -> None:
    """Both engines judge `value` alike (and as expected), and a refusal is explained."""
    prepared = prepare(schema, closing=close if parameters else None)
    copy, problem = json_copy(value)
    assert problem is None
    fast, slow = engine_of(prepared, "").is_valid, explaining_engine(prepared, copy)
    assert fast(copy) == slow.is_valid(copy), (schema, value)
    validator = (compile_validator if parameters else compile_output_validator)(schema)
    assert validator.is_valid(value) == fast(copy)
    assert bool(validator.problems(value)) != validator.is_valid(value)
    if expected is not None:
        assert validator.is_valid(value) is expected, (schema, value)


@each_row(
    ("schema", "value", "expected"),
    [
        ({"type": "integer"}, 1.0, True),
        ({"type": "integer"}, 1.5, False),
        ({"type": "integer"}, True, False),
        ({"type": "number"}, False, False),
        ({"type": "boolean"}, 1, False),
        ({"type": "integer"}, 2**70, True),
        ({"type": "integer", "maximum": 5}, 2**70, False),
        ({"type": "integer", "minimum": -(2**63)}, -(2**63) - 1, False),
        ({"type": "integer"}, 10**4000, True),
        ({"type": "integer", "multipleOf": 3}, 10**30, False),
        ({"type": "integer"}, 1e300, True),
        ({"maximum": 2**53}, 2**53 + 1, False),
        ({"multipleOf": 0.1}, 0.3, True),
        ({"multipleOf": 0.01}, 19.99, True),
        ({"multipleOf": 0.01}, 19.999, False),
        ({"multipleOf": 2}, 4.0, True),
        ({"enum": [1]}, True, False),
        ({"enum": [1]}, 1.0, True),
        ({"const": 0}, False, False),
        ({"const": [1]}, [True], False),
        ({"const": 0.0}, -0.0, True),
        ({"enum": [10**30]}, 10**30, True),
        ({"uniqueItems": True}, [1, True], True),
        ({"uniqueItems": True}, [1, 1.0], False),
        ({"uniqueItems": True}, [{"a": 1}, {"a": True}], True),
        ({"pattern": "^\\d+$"}, "１２", False),
        ({"pattern": "^\\w+$"}, "中文", False),
        ({"pattern": "^\\p{Script=Han}+$"}, "中文", True),
        ({"pattern": "^\\p{L}+$"}, "ä1", False),
        ({"pattern": "^a$"}, "a\n", False),
        ({"pattern": "^.$"}, "😀", True),
        ({"pattern": "^\\S+$"}, "\u00a0", False),
        ({"pattern": "(?i)^abc$"}, "ABC", True),
        ({"pattern": "^[^a]$"}, "\n", True),
        ({"patternProperties": {"^\\d$": {"type": "null"}}, "additionalProperties": False}, {"１": None}, False),
        ({"minLength": 2}, "😀", False),
        ({"maxLength": 1}, "e\u0301", False),
        ({"format": "email"}, "no address", True),
        ({"format": "date"}, "tomorrow", True),
        ({"$schema": DRAFT_7, "contentEncoding": "base64", "contentMediaType": "application/json"}, "!", True),
        ({"$schema": DRAFT_7, "items": [{"type": "integer"}], "additionalItems": False}, [1, 2], False),
        ({"prefixItems": [{"type": "integer"}], "items": False}, [1, 2], False),
        ({"$schema": DRAFT_7, "dependencies": {"a": ["b"]}}, {"a": 1}, False),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, False),
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, {"a": 1}, False),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, {"b": 1}, False),
        ({"contains": {"const": 1}, "maxContains": 1}, [1, 1], False),
        ({"$defs": {"n": {"$anchor": "n", "type": "integer"}}, "$ref": "#n"}, "x", False),
        ({"$defs": {"n": {"$id": "node.json", "type": "array", "items": {"$ref": "#"}}}, "$ref": "node.json"}, [[[1]]], False),
        ({"$schema": DRAFT_7, "definitions": {"n": {"$id": "#n", "type": "integer"}}, "$ref": "#n"}, "x", False),
        ({"$schema": DRAFT_7, "definitions": {"n": True}, "$ref": "#/definitions/n", "type": "integer"}, "x", True),
        ({"$defs": {"a/b~c %": {"type": "integer"}}, "$ref": "#/$defs/a~1b~0c%20%25"}, "x", False),
        (True, {"anything": [1]}, True),
        (False, 1, False),
    ],
)  # fmt: skip
def test_known_differences_between_the_engines_do_not_show(schema: Any, value: Any, expected: bool) -> None:
    check(schema, value, expected)


names = st.sampled_from(["a", "b", "c", "名"])
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.integers(-(2**80), 2**80),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "a", "ab", "b1", "中", "1", "a\n", "😀"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=8,
)
types = st.sampled_from(["string", "integer", "number", "boolean", "object", "array", "null"])
patterns = st.sampled_from(["^a", "b$", "^[ab]+$", "\\d", "^\\w*$", "中", "^(a|b1)?$", "[^a]", "^.{1,2}$", "(?=a)a"])
small = st.integers(0, 3)
numbers = st.one_of(st.integers(-5, 5), st.floats(-5, 5).map(lambda number: round(number, 2)))
leaves = st.one_of(
    st.booleans(),
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.one_of(types, st.lists(types, min_size=1, max_size=3, unique=True)),
            "enum": st.lists(values, min_size=1, max_size=3),
            "const": values,
            "minimum": numbers,
            "exclusiveMaximum": numbers,
            "multipleOf": st.sampled_from([1, 2, 0.5, 0.1, 3]),
            "minLength": small,
            "maxLength": small,
            "pattern": patterns,
            "minItems": small,
            "uniqueItems": st.booleans(),
            "maxProperties": small,
            "required": st.lists(names, max_size=2, unique=True),
            "format": st.sampled_from(["date", "email", "ipv4", "uri"]),
        },
    ),
)


def _combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {},
        optional={
            "type": types,
            "properties": st.dictionaries(names, inner, max_size=3),
            "additionalProperties": inner,
            "patternProperties": st.dictionaries(patterns, inner, max_size=2),
            "propertyNames": inner,
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "contains": inner,
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=3),
            "oneOf": st.lists(inner, min_size=1, max_size=3),
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "required": st.lists(names, max_size=2, unique=True),
            "dependentRequired": st.dictionaries(names, st.lists(names, max_size=2, unique=True), max_size=2),
            "dependentSchemas": st.dictionaries(names, inner, max_size=1),
            "unevaluatedProperties": st.sampled_from([False, {"type": "integer"}]),
            "$ref": st.sampled_from(["#/$defs/leaf", "#/$defs/node"]),
        },
    )


schemas = st.recursive(leaves, _combined, max_leaves=6)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(st.data())
def test_both_engines_agree_on_random_schemas_and_values(data: st.DataObject) -> None:
    schema = data.draw(schemas)
    if isinstance(schema, dict):
        node = {"type": "object", "properties": {"a": {"$ref": "#/$defs/node"}, "b": {"type": "string"}}}
        schema = {**schema, "$defs": {"leaf": {"type": "integer"}, "node": node}}
    parameters = data.draw(st.booleans())
    if any(flaw.severity == "error" for flaw in flaws_of(schema)):
        return
    for value in data.draw(st.lists(values, min_size=1, max_size=5)):
        check(schema, value, parameters=parameters and isinstance(schema, dict))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_closing_never_refuses_more_than_unknown_names(data: st.DataObject) -> None:
    schema = data.draw(schemas.filter(lambda schema: isinstance(schema, dict)))
    node = {"type": "object", "properties": {"a": {"$ref": "#/$defs/node"}, "b": {"type": "string"}}}
    schema = {**schema, "$defs": {"leaf": {"type": "integer"}, "node": node}}
    if flaws_of(schema):
        return
    as_written, closed = compile_output_validator(schema), compile_validator(schema)
    for value in data.draw(st.lists(values, min_size=1, max_size=5)):
        if closed.is_valid(value) and not _negates(schema):
            assert as_written.is_valid(value)


def _negates(schema: Any) -> bool:
    """Where a closed part is negated (or must match exactly one branch), closing it may accept more."""
    if isinstance(schema, dict):
        return bool(schema.keys() & {"not", "oneOf", "if", "contains"}) or any(map(_negates, schema.values()))
    return isinstance(schema, list) and any(map(_negates, schema))
