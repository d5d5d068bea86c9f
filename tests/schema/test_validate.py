"""A validator refuses what does not fit, says why in words one can act on, and never raises on a value."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import sys
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tavern_core.errors import SchemaInvalid
from tavern_core.schema.problem import SchemaProblem
from tavern_core.schema.validate import Validator, compile_output_validator, compile_validator
from tests.rows import each_row

TWO = {
    "type": "object",
    "properties": {"count": {"type": "integer"}, "unit": {"enum": ["words", "characters"]}},
    "required": ["count"],
}


class Level(enum.IntEnum):
    LOW = 1


class Unit(enum.StrEnum):
    WORDS = "words"


class Name(str):
    __slots__ = ()


def nested(depth: int, inner: Any = None) -> Any:
    value = inner
    for _ in range(depth):
        value = [value]
    return value


def tell(schema: Any, value: Any) -> list[str]:
    """Every problem as one line."""
    validator = compile_validator(schema, name="test:tool")
    assert validator.is_valid(value) is False
    return [str(problem) for problem in validator.problems(value)]


@each_row(
    ("value", "expected"),
    [
        ({"count": 1}, []),
        ({}, ["/count: is required (add 'count' (integer))"]),
        ({"Count": 1}, ["/count: is required (rename 'Count' to 'count')", "/Count: unknown argument 'Count' (rename 'Count' to 'count')"]),
        ({"count": "1"}, ['/count: must be integer, got string "1" (write the number without quotes)']),
        ({"count": True}, ["/count: must be integer, got boolean true (a boolean is not a number)"]),
        ({"count": None}, ["/count: must be integer, got null (leave it out instead of null)"]),
        ({"count": 1, "unit": "word"}, ["/unit: must be \"words\" or \"characters\", got string \"word\" (did you mean 'words'?)"]),
        ({"count": 1, "zzz": 1}, ["/zzz: unknown argument 'zzz' (known are count, unit)"]),
        ([1], ["must be object, got array of 1"]),
        ("x" * 500, None),
        ({"count": [1, 2, 3]}, ["/count: must be integer, got array of 3"]),
        ({"count": {"a": 1}}, ["/count: must be integer, got object with a"]),
    ],
)  # fmt: skip
def test_a_refusal_names_the_place_the_expectation_and_the_repair(value: Any, expected: list[str] | None) -> None:
    if expected == []:
        assert compile_validator(TWO).is_valid(value)
        assert compile_validator(TWO).problems(value) == []
    else:
        reported = tell(TWO, value)
        assert reported == (expected or reported)
        assert all(len(line) < 200 for line in reported)


@each_row(
    ("schema", "value", "expected"),
    [
        ({"minimum": 1}, 0, "must be at least 1, got integer 0"),
        ({"maximum": 1}, 2, "must be at most 1, got integer 2"),
        ({"exclusiveMinimum": 1}, 1, "must be greater than 1, got integer 1"),
        ({"exclusiveMaximum": 1.5}, 2.5, "must be less than 1.5, got number 2.5"),
        ({"multipleOf": 0.5}, 0.75, "must be a multiple of 0.5, got number 0.75"),
        ({"minLength": 3}, "ab", "must be at least 3 characters long, it has 2"),
        ({"maxLength": 1}, "ab", "must be at most 1 characters long, it has 2 (shorten it)"),
        ({"minItems": 1}, [], "must be at least 1 items long, it has 0"),
        ({"maxItems": 1}, [1, 2], "must be at most 1 items long, it has 2"),
        ({"uniqueItems": True}, [1, 1], "must be an array without repeated items, got array of 2 (remove the repetition)"),
        ({"pattern": "^\\d+$"}, "x", 'must be text that matches the pattern "^\\d+$", got string "x"'),
        ({"const": "a"}, "b", 'must be "a", got string "b"'),
        ({"not": {"type": "string"}}, "b", 'must be something else, got string "b"'),
        ({"type": ["integer", "null"]}, "b", 'must be integer or null, got string "b"'),
        ({"type": "number"}, "-1.5e3", 'must be number, got string "-1.5e3" (write the number without quotes)'),
        ({"type": "number"}, "1e999", 'must be number, got string "1e999" (the number is too large)'),
        ({"type": "integer"}, "1.5", 'must be integer, got string "1.5" (write a whole number)'),
        ({"type": ["null", "object"]}, '{"a": 1}', 'must be null or object, got string "{"a": 1}" (send the object itself, not its text)'),
        ({"type": "object"}, '{"a": 1, "a": 2}', "must be object, got string \"{\"a\": 1, \"a\": 2}\" ('a' appears twice in one object)"),
        ({"type": "array"}, "[NaN]", 'must be array, got string "[NaN]" (NaN is not allowed)'),
        ({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "string"}}]}, True, "must be integer or array of string, got boolean true"),
        ({"properties": {"a": False}}, {"a": 1}, "/a: must be left out (remove it)"),
        (False, 1, "must be left out, got integer 1 (the schema allows no value at all)"),
        ({"type": "string"}, {"$uri": "file:///b"}, "must be string, got object with $uri (a $uri is only for parameters that take an object; give the value itself)"),
        ({"required": ["a/b"]}, {}, "/a~1b: is required (add 'a/b')"),
        ({"properties": {"o": {"properties": {"t": {"type": "string"}}, "required": ["t"]}}}, {"o": {}}, "/o/t: is required (add 't' (string))"),
        ({"properties": {"u": {"enum": ["x", "y"]}}, "required": ["u"]}, {}, "/u: is required (add 'u' (\"x\" or \"y\"))"),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "must be given with b whenever a is given, got object with a"),
        ({"dependencies": {"a": ["b"]}}, {"a": 1}, "must be given with b whenever a is given, got object with a"),
        ({"dependencies": {"a": {"required": ["b"]}}}, {"a": 1}, "/b: is required (add 'b')"),
        ({"dependencies": {"a": {"$ref": "#/dependencies/c"}, "c": {"required": ["b"]}}}, {"a": 1}, "/b: is required (add 'b')"),
        ({"patternProperties": {"^a": {"type": "string"}}, "properties": {"b": {"$ref": "#/patternProperties/%5Ea"}}}, {"b": 1}, "/b: does not fit the schema"),
        ({"properties": {"a": {"enum": []}}}, {"a": 1}, "/a: must be left out, got integer 1"),
        ({"propertyNames": {"maxLength": 2}}, {"abc": 1}, "/abc: the name must be at most 2 characters long, it has 3 (rename it)"),
        ({"items": {"properties": {"x": {"type": "integer"}}}}, [{"x": 1}, {"x": "2"}], '/1/x: must be integer, got string "2" (write the number without quotes)'),
        ({"oneOf": [{"minimum": 1}, {"minimum": 2}]}, 3, "must be exactly one of the alternatives, got integer 3 (it fits more than one; be more specific)"),
    ],
)  # fmt: skip
def test_each_keyword_is_explained_in_plain_words(schema: Any, value: Any, expected: str) -> None:
    problems = compile_output_validator(schema).problems(value)
    assert [str(problem) for problem in problems] == [expected]


def test_of_several_alternatives_the_one_that_came_closest_is_explained() -> None:
    shapes = [
        {"properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}}, "required": ["kind", "radius"]},
        {"properties": {"kind": {"const": "box"}, "size": {"type": "number"}}, "required": ["kind", "size"]},
    ]
    schema = {"type": "object", "properties": {"shape": {"anyOf": shapes}}}
    assert tell(schema, {"shape": {"kind": "box", "size": "3"}}) == [
        '/shape/size: must be number, got string "3" (write the number without quotes)'
    ]


SHAPES = [
    {"properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}}, "required": ["kind", "radius"]},
    {"properties": {"kind": {"enum": ["box", "cube"]}, "size": {"type": "number"}}, "required": ["kind", "size"]},
]
EDGE = {"properties": {"edge": {"const": 1}}, "required": ["edge"]}
VERSIONS = [{"properties": {"kind": {"const": kind}, "v": {"const": v}}} for kind, v in (("a", 1), ("b", 2))]
FLAGS = [{"properties": {"flag": {"const": flag}}} for flag in (True, 1, None)]


@each_row(
    ("shapes", "value", "expected"),
    [
        (SHAPES, {"kind": "ball"}, ['/kind: must be "circle" or "box" or "cube", got string "ball"']),
        (SHAPES, {"kind": "bxo", "size": 1}, ['/kind: must be "circle" or "box" or "cube", got string "bxo" (did you mean \'box\'?)']),
        (SHAPES, {"kind": 7}, ['/kind: must be "circle" or "box" or "cube", got integer 7']),
        (SHAPES, {"kind": "box", "size": "x"}, ['/size: must be number, got string "x"']),
        (SHAPES, {"radius": 1}, ["/kind: is required (add 'kind' (string \"circle\"))"]),
        ([*SHAPES, EDGE], {"kind": "ball", "edge": 2}, ["/edge: must be 1, got integer 2"]),
        ([*SHAPES, SHAPES[0]], {"kind": "ball"}, ['/kind: must be "circle" or "box" or "cube", got string "ball"']),
        (VERSIONS, {"kind": "a", "v": 3}, ["/v: must be 1, got integer 3"]),
        (VERSIONS, {"kind": "c", "v": 3}, ['/kind: must be "a" or "b", got string "c"']),
        (FLAGS, {"flag": 2}, ["/flag: must be true or 1 or null, got integer 2"]),
    ],
)  # fmt: skip
@each_row("keyword", ["anyOf", "oneOf"])
def test_a_property_that_says_which_alternative_it_is_may_have_the_value_of_any_of_them(
    keyword: str, shapes: list[Any], value: Any, expected: list[str]
) -> None:
    problems = compile_output_validator({keyword: shapes}).problems(value)
    assert [str(problem) for problem in problems] == expected


@pytest.mark.parametrize(
    "part",
    [{"type": "integer", "writeOnly": True}, {"type": "integer", "format": "password"}, {"type": "integer", "x-tavern": {"secret": True}}],
)  # fmt: skip
def test_a_secret_is_never_part_of_an_explanation(part: dict[str, Any]) -> None:
    reported = compile_validator({"type": "object", "properties": {"value": part}}).problems({"value": "hunter2"})
    assert "hunter2" not in repr(reported)
    reported = compile_validator({"type": "object", "properties": {"apiKey": {"type": "integer"}}}).problems(
        {"apiKey": "hunter2"}
    )
    assert "hunter2" not in repr(reported)


@each_row(
    ("value", "words"),
    [
        ((1, 2), "tuple is not JSON (use a list)"),
        ({1, 2}, "set is not JSON (use a list)"),
        (b"x", "bytes is not JSON (use base64 text)"),
        (decimal.Decimal("1"), "Decimal is not JSON"),
        (datetime.datetime(2026, 1, 1), "datetime is not JSON (use .isoformat())"),
        (object(), "object is not JSON"),
        (float("nan"), "NaN is not a JSON number"),
        (float("-inf"), "Infinity is not a JSON number"),
        ("\ud800", "lone surrogate"),
        ({1: 2}, "keys must be strings"),
        ({"\udfff": 2}, "lone surrogate"),
        (nested(65), "nested deeper than 64 levels"),
        (nested(100_000), "nested deeper than 64 levels"),
        pytest.param(10**5000, "too large to be written", id="huge"),
    ],
)
@each_row("wrap", [lambda value: value, lambda value: {"a": value}, lambda value: {"a": [value]}])
@each_row("schema", [{}, True, {"properties": {"a": {}}}, {"type": ["object", "array", "string", "number"]}])
def test_what_is_not_json_is_refused_and_named(value: Any, words: str, wrap: Any, schema: Any) -> None:
    validator = compile_output_validator(schema)
    assert validator.is_valid(wrap(value)) is False
    (problem,) = validator.problems(wrap(value))
    assert words in str(problem)
    problem.message.encode("utf-8")


def test_a_value_that_contains_itself_is_refused() -> None:
    value: dict[str, Any] = {"a": 1}
    value["again"] = [value]
    schema = {"$ref": "#/$defs/node", "$defs": {"node": {"additionalProperties": {"$ref": "#/$defs/node"}}}}
    assert compile_output_validator(schema).problems(value) == [
        SchemaProblem("/again/0", "contains itself", "a tree", "a cycle", "remove the reference", "limit")
    ]


@pytest.mark.slow
def test_a_small_structure_that_stands_for_an_endless_one_is_refused() -> None:
    value: list[Any] = []
    for _ in range(40):
        value = [value, value]
    assert "more than 500,000 values" in str(compile_output_validator({}).problems(value)[0])


@each_row(
    ("schema", "value"),
    [
        ({"type": "integer"}, Level.LOW),
        ({"enum": ["words"]}, Unit.WORDS),
        ({"type": "string"}, Name("x")),
        ({"type": "object", "required": ["a"]}, collections.OrderedDict(a=Name("x"))),
        ({"type": "object", "required": ["a"]}, collections.defaultdict(list, a=1)),
    ],
)
def test_subclasses_of_json_types_count_as_their_base(schema: Any, value: Any) -> None:
    assert compile_output_validator(schema).is_valid(value)


def test_a_recursive_schema_judges_values_to_the_depth_limit() -> None:
    schema = {"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}}
    validator = compile_output_validator(schema)
    assert validator.is_valid(nested(63, []))
    assert not validator.is_valid(nested(63, 1))
    assert validator.problems(nested(63, 1))


@each_row("ref", ["http://127.0.0.1:1/x.json", "file:///etc/passwd", "other.json", "#/$defs/nothing", "urn:x:y"])
def test_a_ref_out_of_the_schema_is_refused_and_never_fetched(ref: str) -> None:
    validator = compile_validator({"type": "object", "properties": {"a": {"$ref": ref}}}, name="evil:tool")
    with pytest.raises(SchemaInvalid, match=r"evil:tool.*/properties/a/\$ref"):
        validator.is_valid({"a": 1})
    with pytest.raises(SchemaInvalid):
        validator.problems({})


def test_a_validator_may_be_made_of_any_schema_and_complains_when_used() -> None:
    for schema in (
        {"type": "objct"},
        {"properties": [1]},
        {"pattern": "("},
        {"$schema": "http://json-schema.org/draft-04/schema#"},
    ):
        validator = compile_validator(schema)
        with pytest.raises(SchemaInvalid) as caught:
            validator.build()
        assert caught.value.findings
        assert caught.value.findings[0].where is not None


@pytest.mark.slow
def test_overlapping_alternatives_in_a_recursive_schema_cost_no_exponential_time() -> None:
    array = {"type": "array", "items": {"$ref": "#/$defs/n"}}
    schema = {"$ref": "#/$defs/n", "$defs": {"n": {"anyOf": [{"type": "integer"}, array, {**array, "maxItems": 5}]}}}
    validator = compile_output_validator(schema)
    assert validator.is_valid(nested(50, 1))
    assert not validator.is_valid(nested(50, "no"))
    assert "too many alternatives" in str(validator.problems(nested(50, "no")))


@pytest.mark.slow
def test_repeated_items_are_found_in_linear_time() -> None:
    items = [{"n": n} for n in range(20_000)]
    validator = compile_output_validator({"uniqueItems": True, "maxItems": 100_000, "contains": {"type": "null"}})
    assert [problem.keyword for problem in validator.problems(items)] == ["contains"]
    assert [problem.keyword for problem in validator.problems([*items, {"n": 5.0}, None])] == ["uniqueItems"]


def test_limit_bounds_the_number_of_problems() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert len(compile_validator(schema).problems({f"x{n}": n for n in range(100)}, limit=5)) == 5


def test_the_schema_may_be_changed_after_it_was_built() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    validator = compile_validator(schema).build()
    schema["properties"]["b"] = {}  # type: ignore[index]
    assert not validator.is_valid({"b": 1})


def test_threads_may_race_for_the_first_use() -> None:
    validators = [compile_validator(TWO) for _ in range(50)]
    start, wrong = threading.Barrier(4), list[Any]()

    def use() -> None:
        start.wait()
        for validator in validators:
            if not validator.is_valid({"count": 1}) or validator.is_valid({"count": "x"}) or validator.accepts({}):
                wrong.append(validator)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_making_a_validator_builds_nothing() -> None:
    validator = compile_validator({"type": "objct"}, name="x")
    assert isinstance(validator, Validator)
    assert repr(validator) == "<Validator x>"


def test_little_stack_is_no_reason_to_raise() -> None:
    schema = {"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}}
    validator = compile_output_validator(schema).build()

    def deep(levels: int) -> Any:
        return deep(levels - 1) if levels else (validator.is_valid(nested(60, 1)), validator.problems(nested(60, 1)))

    valid, problems = deep(sys.getrecursionlimit() - 300)
    assert valid is False
    assert problems


anything = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.decimals(), st.dates(), st.uuids(),
        st.characters(categories=["Cs"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner), st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), inner, max_size=3)
    ),
    max_leaves=6,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(anything)
def test_no_value_makes_it_raise(value: Any) -> None:
    for schema in (TWO, {}, {"type": "object", "additionalProperties": {"type": ["string", "number", "array"]}}):
        validator = compile_validator(schema)
        assert validator.is_valid(value) is not bool(validator.problems(value))
        for problem in validator.problems(value):
            str(problem).encode("utf-8")
            assert problem.to_json()["path"] == problem.path
