"""A tool exported for each provider's API, under a name that leads back to it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tavern_core.errors import NameConflict, UsageError
from tavern_core.model.tool import ToolSpec
from tavern_core.schema.provider_tool_export import DIALECTS, WireNames, export_tool, wire_name
from tavern_core.schema.schema_check import check_schema
from tests.rows import each_row

SUMMARIZE = ToolSpec(
    name="workflow:summarize_text",
    description="对提供的长文本进行摘要。当需要理解大量文本的核心内容时使用。",
    display_name="摘要",
    read_only=True,
    input_schema={
        "type": "object",
        "properties": {
            "text_to_summarize": {"type": "string", "description": "需要进行摘要处理的原始长文本内容。"},
            "summary_length": {"type": "string", "description": "期望的摘要长度。", "enum": ["简短", "中等", "详细"]},
        },
        "required": ["text_to_summarize"],
    },
    output_schema={"type": "object", "properties": {"summary_result": {"type": "string"}}},
)


def tool(schema: dict[str, Any], **options: Any) -> ToolSpec:
    return ToolSpec(name="p:t", description="d", input_schema=schema, **options)


def test_json_is_the_form_of_the_original_design() -> None:
    assert export_tool(SUMMARIZE) == {
        "name": "workflow:summarize_text",
        "description": "对提供的长文本进行摘要。当需要理解大量文本的核心内容时使用。",
        "parameters": {
            "type": "object",
            "properties": {
                "text_to_summarize": {"type": "string", "description": "需要进行摘要处理的原始长文本内容。"},
                "summary_length": {
                    "type": "string",
                    "description": "期望的摘要长度。",
                    "enum": ["简短", "中等", "详细"],
                },
            },
            "required": ["text_to_summarize"],
        },
    }


def test_the_other_dialects_have_their_own_shape_and_a_wire_name() -> None:
    schema, name = dict(SUMMARIZE.input_schema), "workflow__summarize_text"
    text = SUMMARIZE.description
    assert export_tool(SUMMARIZE, "openai") == {
        "type": "function",
        "function": {"name": name, "description": text, "parameters": schema},
    }
    assert export_tool(SUMMARIZE, "anthropic") == {"name": name, "description": text, "input_schema": schema}
    assert export_tool(SUMMARIZE, "gemini") == {"name": name, "description": text, "parameters": schema}
    assert export_tool(SUMMARIZE, "mcp") == {
        "name": name,
        "title": "摘要",
        "description": text,
        "inputSchema": schema,
        "outputSchema": SUMMARIZE.output_schema,
        "annotations": {"title": "摘要", "readOnlyHint": True},
    }


def test_mcp_hints_say_what_a_writing_tool_does() -> None:
    writing = tool(
        {"type": "object"},
        capabilities=frozenset({"danger:destructive"}),
        idempotent=True,
        output_schema={"type": "string"},
    )
    exported = export_tool(writing, "mcp")
    assert exported["annotations"] == {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True}
    assert "outputSchema" not in exported


def test_an_unknown_dialect_names_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        export_tool(SUMMARIZE, "openia")
    assert caught.value.hint == "did you mean 'openai'?"


@each_row("dialect", list(DIALECTS))
def test_our_own_marks_stay_at_home_and_the_tool_is_not_changed(dialect: str) -> None:
    schema = {
        "type": "object",
        "x-tavern": {"x": 1},
        "properties": {
            "x-tavern": {"type": "string", "x-tavern": {"guard": "path"}, "defaultValue": "a"},
            "n": {"items": {"x-tavern-y": 1}},
        },
    }
    before = repr(schema)
    exported = export_tool(tool(schema), dialect)
    assert "guard" not in repr(exported)
    assert "x-tavern-y" not in repr(exported)
    assert "'x-tavern': {'type': 'string'" in repr(exported)
    assert "defaultValue" not in repr(exported)
    assert repr(schema) == before


@each_row(
    ("schema", "properties", "required"),
    [
        ({}, {}, []),
        ({"properties": {"a": {}}}, {"a": {}}, []),
        ({"anyOf": [{"properties": {"a": {}}, "required": ["a", "k"]}, {"properties": {"b": {}, "k": {}}, "required": ["k"]}]}, {"a": {}, "b": {}, "k": {}}, ["k"]),
        ({"allOf": [{"properties": {"a": {}}, "required": ["a"]}], "properties": {"b": {}}}, {"a": {}, "b": {}}, ["a"]),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "object", "properties": {"a": {}}}}}, {"a": {}}, []),
        ({"properties": {"k": {}}, "if": {}, "then": {"properties": {"t": {}}, "required": ["t"]}}, {"k": {}, "t": {}}, []),
    ],
)  # fmt: skip
@each_row("dialect", ["openai", "anthropic"])
def test_there_is_one_plain_object_at_the_top(schema: Any, properties: Any, required: list[str], dialect: str) -> None:
    exported = export_tool(tool(schema), dialect)
    found = exported["input_schema"] if dialect == "anthropic" else exported["function"]["parameters"]
    assert found["type"] == "object"
    assert found["properties"] == properties
    assert sorted(found.get("required", [])) == required
    assert not found.keys() & {"anyOf", "oneOf", "allOf", "not", "enum", "$ref", "if"}


@each_row(
    ("part", "written"),
    [
        ({"type": "integer"}, {"type": "integer"}),
        ({"type": ["string", "null"]}, {"type": "string", "nullable": True}),
        ({"type": ["string", "integer"]}, {"anyOf": [{"type": "string"}, {"type": "integer"}]}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}], "description": "n"}, {"type": "integer", "nullable": True, "description": "n"}),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        ({"const": "a"}, {"type": "string", "enum": ["a"]}),
        ({"enum": [1, 2], "description": "n"}, {"type": "integer", "description": "n (one of 1, 2)"}),
        ({"$ref": "#/$defs/c", "description": "mine"}, {"type": "string", "enum": ["x"], "description": "mine"}),
        ({"allOf": [{"type": "object"}, {"properties": {"a": {"type": "string"}}}]}, {"type": "object", "properties": {"a": {"type": "string"}}}),
        ({"type": "array"}, {"type": "array", "items": {"type": "string"}}),
        ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}, {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}}),
        ({"type": "string", "format": "uuid"}, {"type": "string", "description": "(format: uuid)"}),
        ({"type": "string", "format": "date-time"}, {"type": "string", "format": "date-time"}),
        ({"type": "integer", "exclusiveMinimum": 0, "maximum": 9}, {"type": "integer", "minimum": 1, "maximum": 9}),
        ({"type": "object", "additionalProperties": {"type": "string"}}, {"type": "object"}),
        ({}, {"type": "string"}),
        (True, {"type": "string"}),
        ({"type": "string", "uniqueItems": True, "not": {}, "x": 1, "$comment": "c"}, {"type": "string"}),
        ({"type": "integer", "default": 3, "title": "T"}, {"type": "integer", "default": 3, "title": "T"}),
    ],
)  # fmt: skip
def test_gemini_gets_its_subset(part: Any, written: Any) -> None:
    schema = {"type": "object", "properties": {"p": part}, "required": ["p", "gone"], "$defs": {"c": {"enum": ["x"]}}}
    parameters = export_tool(tool(schema), "gemini")["parameters"]
    assert parameters == {"type": "object", "properties": {"p": written}, "required": ["p"]}


def test_gemini_cuts_recursion_and_leaves_out_empty_parameters() -> None:
    recursive = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/n"}},
        "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}, "m": {"$ref": "#/$defs/n"}}}},
    }
    assert check_schema(recursive) == []
    exported = repr(export_tool(tool(recursive), "gemini"))
    assert "$ref" not in exported
    assert len(exported) < 500_000
    assert "parameters" not in export_tool(tool({"type": "object", "properties": {}}), "gemini")


WIRE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")


@each_row(
    ("tool_id", "name"),
    [
        ("text:count", "text__count"),
        ("my-plugin:do_it", "my-plugin__do_it"),
        ("BilibiliFetch:getSubtitle", "BilibiliFetch__getSubtitle"),
        ("plain", "plain"),
        ("a:_b", "a___b"),
    ],
)
def test_usual_ids_stay_readable(tool_id: str, name: str) -> None:
    assert wire_name(tool_id) == name


def test_ids_that_look_alike_have_different_names() -> None:
    ids = ["a:b_c", "a_b:c", "a__b", "a:b", "a.b", "a/b", "a-b", "a:b.c", "a:b-c", "A:b", "工具:计数", "工具:数", "插件:计数", "", ":", "1:2", "_:x",
           "a:" + "x" * 64, "a:" + "x" * 63 + "y", "x" * 200, "a:b:c", "a b", "a:b c", "\ud800"]  # fmt: skip
    names = [wire_name(each) for each in ids]
    assert len(set(names)) == len(ids)
    assert all(WIRE.match(name) for name in names)
    known = WireNames(ids)
    assert [known.tool_id(name) for name in names] == ids
    assert known.tool_id("a:b") == "a:b"
    assert known.tool_id("nothing") is None
    assert known.all() == sorted(names)


@pytest.mark.slow
@given(st.lists(st.one_of(st.text(max_size=90), st.text("ab:_.-", max_size=12)), unique=True, max_size=30))
def test_names_are_legal_and_reversible(ids: list[str]) -> None:
    known = WireNames(ids)
    for each in ids:
        assert WIRE.match(wire_name(each))
        assert known.tool_id(wire_name(each)) == each


def test_a_collision_is_refused_and_names_both() -> None:
    made_up = wire_name("a:b.").replace("__", ":", 1)
    assert wire_name(made_up) == wire_name("a:b.")
    with pytest.raises(NameConflict, match=r"'a:b\.' and 'a:b_"):
        WireNames(["a:b.", made_up])
