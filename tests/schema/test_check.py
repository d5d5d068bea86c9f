"""A schema that cannot be used, or is surely a slip, is found before a call is made, at its place, with the repair."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core.errors import Location
from tavern_core.schema.schema_check import check_schema, normalise_schema
from tests.counting import calls_made
from tests.rows import each_row

DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def tool(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def found(schema: Any, **options: Any) -> list[tuple[str, str]]:
    """(pointer, severity) of every finding."""
    findings = check_schema(schema, "t.json", **options)
    assert all(finding.code == "SCHEMA_INVALID" and finding.message and str(finding) for finding in findings)
    return [(finding.where.pointer, finding.severity) for finding in findings if finding.where]


@each_row(
    "schema",
    [
        tool(a={"type": "integer", "default": 1}),
        tool(a={"type": "string", "defaultValue": "x"}),
        {"$schema": DRAFT_7, **tool(a={"$ref": "#/definitions/x"}), "definitions": {"x": {"type": "integer", "default": 3}}},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", **tool()},
        {"$schema": "https://json-schema.org/draft/2019-09/schema#", **tool()},
        tool(a={**tool(x={"type": "integer", "default": 1}), "required": ["x"], "default": {}}),
        tool(tree={"$ref": "#/$defs/n"}) | {"$defs": {"n": tool(next={"$ref": "#/$defs/n"})}},
        tool(a={"enum": ["http://example.com", {"$ref": "nowhere"}]}),
        tool(a={"default": {"$ref": "nowhere"}, "type": "object"}),
        tool(a={"const": {"type": "any"}}),
        tool(type={"type": "string"}, required={"type": "boolean"}, pattern={"type": "string"}),
        {**tool(a={}), "required": ["b"], "anyOf": [{"properties": {"b": {}}}]},
        {"type": ["object"], "properties": {}},
        {"allOf": [tool(a={})]},
        tool(**{"x" * 300: {"type": "integer", "default": 1}, "a/b~c %": {"default": 1}}),
    ],
)  # fmt: skip
def test_a_good_schema_has_no_findings(schema: Any) -> None:
    assert found(schema) == []


@each_row(
    ("schema", "pointer", "words"),
    [
        (None, "", "a schema is an object"),
        ("x", "", "a schema is an object"),
        (True, "", "must be an object schema"),
        ({"type": "array"}, "/type", "object at the top"),
        ({1: 2}, "", "keys must be strings"),
        ({"type": "object", "x": float("nan")}, "/x", "NaN"),
        ({"type": "object", "x": {1, 2}}, "/x", "set is not JSON"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, "/$schema", "2020-12"),
        ({"$schema": 5}, "/$schema", "not supported"),
        (tool(a={"type": "any"}), "/properties/a/type", "leave `type` out"),
        (tool(a={"type": "int"}), "/properties/a/type", "write `integer`"),
        (tool(a={"type": "strin"}), "/properties/a/type", "did you mean 'string'"),
        (tool(a={"type": ["string", "nil"]}), "/properties/a/type", "write `null`"),
        (tool(a={"type": "string", "required": True}), "/properties/a/required", "'a' in the `required` array"),
        (tool(a={"minimum": "3"}), "/properties/a/minimum", "must be number"),
        (tool(a={"enum": "x"}), "/properties/a/enum", "must be array"),
        (tool(a=5), "/properties/a", "must be object or boolean"),
        ({"type": "object", "properties": []}, "/properties", "must be object"),
        (tool(a={"items": [{}]}), "/properties/a/items", "must be object or boolean"),
        (tool(a={"items": [{}]}), "/properties/a/items", "write `prefixItems`"),
        (tool(a={"pattern": "^(?!x)"}), "/properties/a/pattern", "look-around"),
        (tool(a={"pattern": "("}), "/properties/a/pattern", "unclosed group"),
        (tool(a={"patternProperties": {"(a)\\1": {}}}), "/properties/a/patternProperties/(a)\\1", "backreferences"),
        (tool(a={"$ref": "http://x/y"}), "/properties/a/$ref", "references are never fetched"),
        (tool(a={"$ref": "#/$defs/Nod"}) | {"$defs": {"Node": {}}}, "/properties/a/$ref", "did you mean '#/$defs/Node'"),
        (tool(a={"$ref": 5}), "/properties/a/$ref", "must be text"),
        (tool(a={"$ref": "#/properties/a/enum", "enum": [1]}), "/properties/a/$ref", "points to no schema"),
        ({"type": "object", "$ref": "#"}, "", "back to itself"),
        (tool(a={"allOf": [{"$ref": "#/properties/a"}]}), "/properties/a", "back to itself"),
        (tool(a={"type": "integer", "default": "3"}), "/properties/a/default", "without quotes"),
        (tool(a={"type": "integer", "default": None}), "/properties/a/default", "allow null"),
        (tool(a={"type": "integer", "defaultValue": "x"}), "/properties/a/default", "does not fit"),
        (tool(a={"$ref": "#/$defs/n"}) | {"$defs": {"n": {"type": "integer", "default": "x"}}}, "/$defs/n/default", "does not fit"),
        (tool(a={"items": {"type": "integer", "default": "x"}}), "/properties/a/items/default", "does not fit"),
        (tool(a={**tool(n={"$ref": "#/properties/a", "default": {}}), "default": {}}), "", "contains itself"),
    ],
)  # fmt: skip
def test_a_flaw_is_found_at_its_place_with_the_repair(schema: Any, pointer: str, words: str) -> None:
    findings = check_schema(schema, "t.json")
    assert [finding for finding in findings if finding.severity == "error"]
    first = findings[0]
    assert first.where == Location("t.json", pointer=pointer)
    assert words in f"{first.message} {first.hint}"


def test_a_required_name_that_is_not_declared_is_a_warning_with_the_nearest_name() -> None:
    (finding,) = check_schema({**tool(path={}), "required": ["pth"]})
    assert finding.severity == "warning"
    assert finding.hint == "did you mean 'path'?"


def test_an_output_schema_may_be_of_any_type() -> None:
    assert found({"type": "array"}, output=True) == []
    assert found(True, output=True) == []
    assert found({"type": "lst"}, output=True) == [("/type", "error")]


def test_a_finding_keeps_the_line_of_where_the_schema_stands() -> None:
    where = Location("plugin.yaml", 8, 7, "/tools/0/parameters")
    (finding,) = check_schema(tool(a={"type": "int"}), where)
    assert finding.where == Location("plugin.yaml", 8, 7, "/tools/0/parameters/properties/a/type")


def _deep(levels: int) -> Any:
    schema: Any = {}
    for _ in range(levels):
        schema = {"properties": {"a": schema}}
    return schema


def _work(levels: int) -> Any:
    names = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"type": "object", "$ref": "#/$defs/d0", "$defs": {**names, f"d{levels}": {}}}


def _growing_defaults(levels: int) -> Any:
    names = {
        f"d{n}": tool(a={"$ref": f"#/$defs/d{n + 1}", "default": {}}, b={"$ref": f"#/$defs/d{n + 1}", "default": {}})
        for n in range(levels)
    }
    return {**tool(x={"$ref": "#/$defs/d0", "default": {}}), "$defs": {**names, f"d{levels}": {}}}


@pytest.mark.parametrize(
    "schema",
    [
        _deep(40),
        {"type": "object", "enum": [0] * 50_000},
        {"type": "object", "description": "x" * 2_000_000},
        _work(30),
        _growing_defaults(30),
        {
            "type": "object",
            "$ref": "#/$defs/d0",
            "$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(3_000)},
        },
    ],
    ids=["deep", "many", "long", "work", "defaults", "chain"],
)
def test_a_schema_that_would_cost_too_much_is_refused(schema: Any) -> None:
    assert ("error") in {severity for _, severity in found(schema)}


def test_default_value_is_an_alias_and_loses_against_default() -> None:
    given_ = tool(a={"defaultValue": 1}, b={"default": 2, "defaultValue": 3}, defaultValue={"type": "string"})
    assert normalise_schema(given_) == tool(a={"default": 1}, b={"default": 2}, defaultValue={"type": "string"})
    assert given_["properties"]["a"] == {"defaultValue": 1}
    unusable = object()
    assert normalise_schema(unusable) is unusable


keywords = st.sampled_from(
    ["type", "properties", "items", "allOf", "anyOf", "$ref", "$defs", "pattern", "required", "default", "enum", "const", "minimum",
     "additionalProperties", "$id", "$anchor", "$schema", "if", "not", "dependentSchemas", "prefixItems", "x"]
)  # fmt: skip
nonsense = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(["#", "#/$defs/x", "object", "(a"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keywords, inner, max_size=4)),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(nonsense)
def test_no_schema_makes_the_check_raise(schema: Any) -> None:
    for finding in [*check_schema(schema), *check_schema(schema, output=True)]:
        str(finding).encode("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    "draft", [DRAFT_7, "https://json-schema.org/draft/2019-09/schema", "https://json-schema.org/draft/2020-12/schema"]
)
def test_a_long_list_of_wrong_types_is_refused_in_linear_time(draft: str) -> None:
    def work(count: int) -> int:
        schema = {"$schema": draft, **tool(a={"type": list(range(count))})}
        return calls_made(lambda: found(schema))

    work(10)  # what is made once for all
    assert work(1_000) <= 2.2 * work(500) + 200
