"""Where marks are found: arrays, objects, references, alternatives; and that wrong ones are not passed over."""

from __future__ import annotations

from typing import Any

import pytest

from tavern_core import CallContext
from tavern_core.contract.decisions import Deny
from tavern_core.contract.guards.guarded_arguments import guard, marked
from tavern_core.model.parameter_guard_marks import Guard
from tavern_core.model.tool import ToolSpec
from tavern_core.schema.guarded_value_search import TooMuchMarked, compile_guarded
from tavern_core.schema.schema_check import check_schema
from tests.guards.conftest import Desk
from tests.rows import each_row

P: dict[str, Any] = {"x-tavern": {"guard": "path"}}
U: dict[str, Any] = {"x-tavern": {"guard": "url"}}


def places(schema: Any, value: Any) -> dict[str, str]:
    """Pointer → kinds, for every value that is judged."""
    find = compile_guarded(schema)
    return {one.pointer: "+".join(sorted(g.kind for g in one.guards)) for one in find(value)} if find else {}


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _otherwise(test: Any) -> dict[str, Any]:
    """A schema that marks `a` where `k` does not fit `test`."""
    return {"if": obj(k=test), "else": obj(a=P)}


DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
BY_KIND = {
    "oneOf": [
        obj(kind={"const": "file"}, at={"type": "string", **P}),
        obj(kind={"enum": ["web", "site"]}, at={"type": "string", **U}),
        obj(kind={"const": "none"}, at={"type": "string"}),
    ]
}
TREE = {"$ref": "#/$defs/n", "$defs": {"n": obj(file=P, kids={"type": "array", "items": {"$ref": "#/$defs/n"}})}}

CASES: list[tuple[Any, Any, dict[str, str]]] = [
    (obj(a=P), {"a": "x"}, {"/a": "path"}),
    (obj(a=P), {"a": 3}, {"/a": "path"}),
    (obj(a=P), {"a": None}, {}),
    (obj(a=P), {}, {}),
    (obj(a={"type": "array", "items": P}), {"a": ["x", "y"]}, {"/a/0": "path", "/a/1": "path"}),
    (obj(a={"type": "array", **P}), {"a": ["x", ["y"]]}, {"/a/0": "path", "/a/1/0": "path"}),
    (obj(a={"type": "object", **P}), {"a": {"b": "x", "c": {"d": "y"}}}, {"/a/b": "path", "/a/c/d": "path"}),
    (obj(a={"prefixItems": [{}, P]}), {"a": ["x", "y", "z"]}, {"/a/1": "path"}),
    (obj(a={"prefixItems": [{}], "items": P}), {"a": ["x", "y", "z"]}, {"/a/1": "path", "/a/2": "path"}),
    (obj(a={"items": [{}, P], "additionalItems": U}), {"a": ["x", "y", "z"]}, {"/a/1": "path", "/a/2": "url"}),
    (obj(a={"contains": P}), {"a": ["x"]}, {"/a/0": "path"}),
    (obj(a={"unevaluatedItems": P}), {"a": ["x"]}, {"/a/0": "path"}),
    ({"additionalProperties": P}, {"a": "x"}, {"/a": "path"}),
    ({"unevaluatedProperties": P}, {"a": "x"}, {"/a": "path"}),
    ({**obj(a={}), "additionalProperties": P}, {"a": "x", "b": "y"}, {"/b": "path"}),
    ({"patternProperties": {"^f_": P}}, {"f_a": "x", "g": "y"}, {"/f_a": "path"}),
    ({**obj(f_a={}), "patternProperties": {"^f_": P}}, {"f_a": "x"}, {"/f_a": "path"}),
    ({"patternProperties": {"^f_": P}, "additionalProperties": U}, {"f_a": "x", "g": "y"}, {"/f_a": "path", "/g": "url"}),
    ({"propertyNames": P}, {"x": 1}, {"/x (its name)": "path"}),
    ({"propertyNames": P, "additionalProperties": U}, {"x": "y"}, {"/x": "url", "/x (its name)": "path"}),
    (obj(a={"$ref": "#/$defs/p"}) | {"$defs": {"p": P}}, {"a": "x"}, {"/a": "path"}),
    (obj(a={"$ref": "#p"}) | {"$defs": {"p": {"$anchor": "p", **P}}}, {"a": "x"}, {"/a": "path"}),
    (obj(a={"$ref": "#/$defs/p", "x-tavern": {"guard": "url"}}) | {"$defs": {"p": P}}, {"a": "x"}, {"/a": "path+url"}),
    (TREE, {"file": "a", "kids": [{"file": "b", "kids": [{"file": "c"}]}]}, {"/file": "path", "/kids/0/file": "path", "/kids/0/kids/0/file": "path"}),
    (obj(a={"anyOf": [{"type": "string", **P}, {"type": "null"}]}), {"a": "x"}, {"/a": "path"}),
    (obj(a={"anyOf": [{"type": "string", **P}, {"type": "integer"}]}), {"a": 3}, {}),
    (obj(a={"anyOf": [{"type": "string", "pattern": "^/", **P}, {"type": "string"}]}), {"a": "../x"}, {"/a": "path"}),
    (obj(a={"anyOf": [{"type": "string", "maxLength": 2, **P}, {"type": "string"}]}), {"a": "long"}, {"/a": "path"}),
    (obj(a={"anyOf": [P, U]}), {"a": "x"}, {"/a": "path+url"}),
    (obj(a={"allOf": [{"type": "string"}, P]}), {"a": "x"}, {"/a": "path"}),
    (obj(a={"oneOf": [{"type": "array", "items": P}, {"type": "string", **P}]}), {"a": ["x"]}, {"/a/0": "path"}),
    (BY_KIND, {"kind": "file", "at": "x"}, {"/at": "path"}),
    (BY_KIND, {"kind": "site", "at": "x"}, {"/at": "url"}),
    (BY_KIND, {"kind": "none", "at": "x"}, {}),
    (BY_KIND, {"at": "x"}, {"/at": "path+url"}),
    ({"if": obj(k={"const": 1}) | {"required": ["k"]}, "then": obj(a=P), "else": obj(a=U)}, {"k": 1, "a": "x"}, {"/a": "path"}),
    ({"if": obj(k={"const": 1}) | {"required": ["k"]}, "then": obj(a=P), "else": obj(a=U)}, {"k": 2, "a": "x"}, {"/a": "url"}),
    ({"if": obj(k={"pattern": "^f"}), "then": obj(a=P), "else": obj(a=U)}, {"k": "g", "a": "x"}, {"/a": "path+url"}),
    ({"dependentSchemas": {"k": obj(a=P)}}, {"k": 1, "a": "x"}, {"/a": "path"}),
    ({"dependentSchemas": {"k": obj(a=P)}}, {"a": "x"}, {}),
    ({"dependencies": {"k": obj(a=P)}}, {"k": 1, "a": "x"}, {"/a": "path"}),
    (obj(a={"not": P}), {"a": "x"}, {}),
    (_otherwise({"const": [1]}), {"k": [True], "a": "x"}, {"/a": "path"}),
    (_otherwise({"const": [1]}), {"k": [1.0], "a": "x"}, {}),
    (_otherwise({"const": {"x": 1}}), {"k": {"x": True}, "a": "x"}, {"/a": "path"}),
    (_otherwise({"enum": [[[0]]]}), {"k": [[False]], "a": "x"}, {"/a": "path"}),
    (DRAFT_7 | obj(a={"$ref": "#/definitions/p", "type": "null"}) | {"definitions": {"p": P}}, {"a": "x"}, {"/a": "path"}),
    (DRAFT_7 | obj(a={"$ref": "#/definitions/p", "const": "z"}) | {"definitions": {"p": P}}, {"a": "x"}, {"/a": "path"}),
    (DRAFT_7 | _otherwise({"$ref": "#/definitions/k", "const": 1}) | {"definitions": {"k": {"type": "integer"}}}, {"k": 2, "a": "x"}, {"/a": "path"}),
    ({"patternProperties": {"^\\D$": P}}, {"٣": "x"}, {"/٣": "path"}),
    ({"patternProperties": {"^\\W$": P}}, {"é": "x"}, {"/é": "path"}),
    ({"patternProperties": {"^\\s$": P}}, {"\ufeff": "x"}, {"/\ufeff": "path"}),
    ({"patternProperties": {"^\\s$": {}}, "additionalProperties": P}, {"\x1c": "x"}, {"/\x1c": "path"}),
    ({"patternProperties": {"^\\w$": {}}, "additionalProperties": P}, {"é": "x"}, {"/é": "path"}),
    ({"patternProperties": {"^a$": {}}, "additionalProperties": P}, {"a\n": "x"}, {"/a\n": "path"}),
    ({"patternProperties": {"^é+$": P}, "additionalProperties": U}, {"éé": "x", "e": "y"}, {"/e": "url", "/éé": "path"}),
    (obj(**{"a/b": {"items": P}}), {"a/b": ["x"]}, {"/a~1b/0": "path"}),
    (obj(**{"x-tavern": P}), {"x-tavern": "x"}, {"/x-tavern": "path"}),
    (obj(a={"default": P, "enum": ["x", P]}), {"a": "x"}, {}),
    (obj(a={"format": "uri"}), {"a": "x"}, {"/a": "url"}),
    (obj(a={"format": "iri-reference"}), {"a": "x"}, {"/a": "url"}),
    (obj(a={"format": "path"}, b={"format": "directory-path"}), {"a": "x", "b": "y"}, {"/a": "path", "/b": "path"}),
    (obj(a={"format": "email"}, b={"format": "sql"}), {"a": "x", "b": "y"}, {"/b": "sql"}),
    (obj(a={"format": "uri", "x-tavern": {"guard": "path"}}), {"a": "x"}, {"/a": "path"}),
    (obj(a={"format": "uri", "x-tavern": {"guard": "none"}}), {"a": "x"}, {}),
    (obj(a={"format": "uri", "x-tavern": {"secret": True}}), {"a": "x"}, {"/a": "url"}),
    (obj(path={"type": "string"}, url={"type": "string"}, sql={"type": "string"}), {"path": "/etc", "url": "x", "sql": "y"}, {}),
]  # fmt: skip


@each_row(("schema", "value", "found"), CASES)
def test_marks_are_found_wherever_they_may_hold(schema: Any, value: Any, found: dict[str, str]) -> None:
    assert places(schema, value) == found


def test_a_schema_that_marks_nothing_costs_nothing() -> None:
    assert compile_guarded(obj(a={"type": "string"}, b=TREE | {"$defs": {"n": obj()}})) is None


def test_a_schema_that_refers_to_itself_in_many_ways_is_searched_in_time() -> None:
    many = {
        "anyOf": [{"$ref": "#"}, {"type": "array", "items": {"$ref": "#"}}],
        "items": {"anyOf": [{"$ref": "#"}] * 8},
    }
    schema = {
        "$ref": "#/$defs/n",
        "$defs": {"n": {"items": {"anyOf": [{"$ref": "#/$defs/n"}] * 8 + [P]}, **P}, "m": many},
    }
    value: Any = "x"
    for _ in range(60):
        value = [value]
    assert list(places(schema, value).values()) == ["path"]


@pytest.mark.slow
def test_arguments_with_more_than_can_be_looked_at_are_refused() -> None:
    find = compile_guarded(obj(a={"items": P}))
    assert find is not None
    with pytest.raises(TooMuchMarked):
        find({"a": ["x"] * 120_000})


@pytest.mark.slow
def test_too_many_values_are_a_refusal(desk: Desk, tmp_path: Any) -> None:
    call = desk.tool(obj(a={"type": "array", "items": {"type": "string", **P}}))
    result = call({"a": ["x"] * 120_000}, workspace_dir=str(tmp_path))
    assert result.error is not None
    assert result.error.kind == "POLICY_DENIED"
    assert "too many" in result.error.message


@each_row(
    ("mark", "said"),
    [
        ({"guard": "pth"}, "did you mean 'path'?"),
        ({"guard": 3}, "3 is not a guard"),
        ({"gard": "path"}, "did you mean 'guard'?"),
        ({"secret": True, "root": "workspace"}, "a mark has guard, secret"),
        ({"guard": "path", "rot": "x"}, "did you mean 'root'?"),
        ({"guard": "path", "mode": "append"}, "'append' is not a valid mode"),
        ({"guard": "url", "schemes": "https"}, "list of texts"),
        ({"guard": "sql", "dialect": 1}, "is a text"),
        ({"guard": "none", "root": "x"}, "unknown option"),
        ("path", "is an object"),
    ],
)
def test_a_mark_that_says_nothing_right_is_an_error_of_the_schema(mark: Any, said: str) -> None:
    findings = check_schema(obj(a={"type": "string", "x-tavern": mark}))
    assert len(findings) == 1
    assert findings[0].severity == "error"
    assert said in str(findings[0])
    assert "/properties/a/x-tavern" in str(findings[0].where)


def test_the_values_of_a_text_that_may_be_address_or_path_are_judged_as_what_they_can_be(
    desk: Desk, tmp_path: Any
) -> None:
    call = desk.tool(obj(a={"anyOf": [{"type": "string", **P}, {"type": "string", **U}]}), "read:web")
    context = {"workspace_dir": str(tmp_path)}
    assert call({"a": "notes/x.txt"}, **context).ok
    for refused in ("../x", "http://127.0.0.1/", "//127.0.0.1/", "/etc/passwd", "\\\\host\\x"):
        assert not call({"a": refused}, **context).ok, refused


@pytest.mark.parametrize("key", ["x_tavern", "X-Tavern", "xTavern"])
def test_a_mark_under_another_name_is_an_error_of_the_schema(key: str) -> None:
    findings = check_schema(obj(a={"type": "string", key: {"guard": "path"}}))
    assert [(one.severity, "write x-tavern" in str(one)) for one in findings] == [("error", True)]


@each_row(("value", "fine"), [("x/y?z", True), ("", True), ("https://example.com", True), ("//127.0.0.1/x", False), ("http://127.0.0.1", False)])  # fmt: skip
def test_a_reference_is_judged_when_it_names_a_host(desk: Desk, value: str, fine: bool) -> None:
    assert desk.tool(obj(a={"type": "string", "format": "uri-reference"}), "read:web")({"a": value}).ok is fine


def test_values_that_a_hook_puts_in_and_defaults_are_judged(tmp_path: Any) -> None:
    from tavern_core import Plugin, Tavern, hookimpl, tool

    @tool
    def look(p: str = "/etc/passwd") -> str:
        return p

    class Changer:
        @hookimpl
        def tavern_before_execute(self, call: Any) -> Any:
            return {"p": "../x"} if call.arguments else None

        @hookimpl
        def tavern_before_register_tool(self, tool: Any) -> Any:
            import dataclasses

            schema = {"type": "object", "properties": {"p": {"type": "string", "default": "/etc/passwd", **P}}}
            return dataclasses.replace(tool, input_schema=schema)

    plugins = [Plugin([look], name="desk"), Plugin(Changer(), name="changer")]
    with Tavern.open(config={}, home=tmp_path / "home", plugins=plugins) as tavern:
        context = CallContext(workspace_dir=str(tmp_path))
        for arguments in ({"p": "fine.txt"}, {}):
            result = tavern.invoke_sync("desk:look", arguments, context=context)
            assert result.error is not None
            assert result.error.kind == "POLICY_DENIED", result.error


def test_pydantic_writes_the_mark_too() -> None:
    from typing import Annotated

    from pydantic import BaseModel

    class Job(BaseModel):
        source: Annotated[str, Guard.path(mode="read")]
        page: Annotated[str | None, Guard.url(schemes=["https"])] = None

    found = Job.model_json_schema()["properties"]
    assert found["source"]["x-tavern"] == {"guard": "path", "mode": "read"}
    assert found["page"]["x-tavern"] == {"guard": "url", "schemes": ["https"]}


def test_the_policy_of_a_plugin_finds_the_values_that_a_tool_marks() -> None:
    tool = ToolSpec("text:read", input_schema=obj(a=P, b=U, c={"type": "string"}))
    found = marked(tool, {"a": "/x", "b": "https://x.test", "c": "/y"})
    assert not isinstance(found, Deny)
    assert {(one.pointer, one.value, bool(guard(one, "path"))) for one in found} == {
        ("/a", "/x", True),
        ("/b", "https://x.test", False),
    }
