"""Undeclared properties are refused wherever a place declares some, and nothing else is."""

from __future__ import annotations

from typing import Any

from tavern_core.schema.validate import compile_output_validator, compile_validator
from tests.rows import each_row

DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
A, B = {"properties": {"a": {}}}, {"properties": {"b": {}}}


def place(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema in the place of a property."""
    return {"type": "object", "properties": {"p": schema}}


@each_row(
    ("schema", "accepted", "refused"),
    [
        ({"type": "object"}, [{}], [{"a": 1}]),
        ({"type": "object", "properties": {}}, [{}], [{"a": 1}]),
        ({}, [{"a": 1}], []),
        (A, [{"a": 1}], [{"b": 1}]),
        ({"type": "object", "required": ["a"]}, [{"a": 1}], [{"a": 1, "b": 1}]),
        ({**A, "additionalProperties": True}, [{"b": 1}], []),
        ({**A, "additionalProperties": {"type": "integer"}}, [{"b": 1}], [{"b": "x"}]),
        ({**A, "unevaluatedProperties": True}, [{"b": 1}], []),
        ({**A, "patternProperties": {"^x": {}}}, [{"x": 1}, {"b": 1}], []),
        ({"allOf": [A, B]}, [{"a": 1, "b": 1}], [{"c": 1}]),
        ({"anyOf": [A, B]}, [{"a": 1}, {"b": 1}], [{"c": 1}]),
        ({**A, "oneOf": [{"required": ["a"]}, {**B, "required": ["b"]}]}, [{"a": 1}, {"b": 1}], [{"a": 1, "c": 1}]),
        ({**A, "anyOf": [{"required": ["a"]}, {"required": ["z"]}]}, [{"a": 1}, {"z": 1}], [{"a": 1, "c": 1}]),
        ({"if": {"properties": {"k": {"const": 1}}}, "then": B, **A}, [{"k": 1, "b": 1}, {"a": 1}], [{"c": 1}]),
        ({**A, "dependentSchemas": {"a": B}}, [{"a": 1, "b": 1}], [{"c": 1}]),
        ({**A, "dependentRequired": {"x": ["y"]}}, [{"x": 1, "y": 1}], [{"c": 1}]),
        ({**A, "allOf": [{"additionalProperties": True}]}, [{"c": 1}], []),
        ({**A, "propertyNames": {"maxLength": 1}}, [{"a": 1}], [{"b": 1}, {"aa": 1}]),
        ({"$ref": "#/$defs/x", "$defs": {"x": A}}, [{"a": 1}], [{"b": 1}]),
        ({"$ref": "#/$defs/x", **B, "$defs": {"x": A}}, [{"a": 1, "b": 1}], [{"c": 1}]),
        ({"allOf": [{"$ref": "#/$defs/x"}, B], "$defs": {"x": A}}, [{"a": 1, "b": 1}], [{"c": 1}]),
        ({**DRAFT_7, "allOf": [{"$ref": "#/definitions/x"}, B], "definitions": {"x": A}}, [{"a": 1, "b": 1}], [{"c": 1}]),
        ({**DRAFT_7, "$ref": "#/definitions/x", "definitions": {"x": A}}, [{"a": 1}], [{"c": 1}]),
        (place(A), [{"p": {"a": 1}}, {"p": 5}], [{"p": {"b": 1}}]),
        (place({"type": "object"}), [{"p": {"b": 1}}], []),
        (place({"type": "object", "properties": {}}), [{"p": {"b": 1}}], []),
        (place({"type": "array", "items": A}), [{"p": [{"a": 1}]}], [{"p": [{"b": 1}]}]),
        (place({"prefixItems": [A]}), [{"p": [{"a": 1}]}], [{"p": [{"b": 1}]}]),
        (place({"additionalProperties": A}), [{"p": {"x": {"a": 1}}}], [{"p": {"x": {"b": 1}}}]),
        (place({"anyOf": [{"type": "object", **A}, {"type": "string"}]}), [{"p": {"a": 1}}, {"p": "x"}], [{"p": {"b": 1}}]),
        (place({"anyOf": [{"type": "object", **A}, {"type": "object"}]}), [{"p": {"b": 1}}], []),
        (place({"anyOf": [{"type": "object", **A}, True]}), [{"p": {"b": 1}}], []),
        (place({"anyOf": [{"type": "object", **A}, {"enum": ["x", 1]}]}), [{"p": "x"}], [{"p": {"b": 1}}]),
        (
            {**place({"allOf": [{"$ref": "#/properties/q"}, B]}), "properties": {"p": {"allOf": [{"$ref": "#/properties/q"}, B]}, "q": A}},
            [{"p": {"a": 1, "b": 1}}],
            [{"p": {"c": 1}}],
        ),
        (
            {"$defs": {"n": {**A, "properties": {"a": {}, "next": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"},
            [{"next": {"next": {"a": 1}}}],
            [{"next": {"next": {"b": 1}}}],
        ),
        (
            {**DRAFT_7, "definitions": {"n": {"properties": {"a": {}, "next": {"$ref": "#/definitions/n"}}}}, **place({"$ref": "#/definitions/n"})},
            [{"p": {"next": {"a": 1}}}],
            [{"p": {"next": {"b": 1}}}, {"p": {"b": 1}}],
        ),
    ],
)  # fmt: skip
def test_exactly_the_undeclared_names_are_refused(schema: Any, accepted: list[Any], refused: list[Any]) -> None:
    closed = compile_validator(schema)
    for value in accepted:
        assert closed.problems(value) == []
    for value in refused:
        assert closed.problems(value)


def test_an_output_schema_means_exactly_what_it_says() -> None:
    assert compile_output_validator({"type": "object", **A}).is_valid({"b": 1})


def test_the_refusal_names_the_argument_and_the_known_ones() -> None:
    schema = {"allOf": [A, B], "properties": {"p": {"properties": {"path": {}}}}}
    reported = [str(problem) for problem in compile_validator(schema).problems({"p": {"pth": 1}, "zz": 1})]
    assert reported == [
        "/p/pth: unknown argument 'pth' (did you mean 'path'?)",
        "/zz: unknown argument 'zz' (known are a, b, p)",
    ]
