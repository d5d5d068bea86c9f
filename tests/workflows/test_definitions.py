"""Definitions of nodes: what is wrong with one is told when its plugin brings it, and the catalogue is always JSON."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel, Field

from tavern_core import Node, NodeContext, Out, Plugin, Port, Tavern, hookimpl, node
from tavern_core.errors import WorkflowInvalid
from tavern_core.model.node import NodeMode, NodeSpec, PassThrough, Slot
from tavern_core.schema.slot_to_schema import node_schema
from tests.rows import each_row

pytestmark = pytest.mark.anyio


def bringing(*offers: Any, name: str = "demo") -> Plugin:
    class Brings:
        @hookimpl
        def tavern_register_nodes(self) -> list[Any]:
            return list(offers)

    return Plugin(Brings(), name=name)


def marked(**options: Any) -> Any:
    @node("demo:X", **options)
    def x(a: str = "q") -> Out(r=str):
        return a

    return x


def with_default(annotation: Any, default: Any) -> Any:
    def y(a: Any = default) -> Out(r=str):
        return repr(a)

    y.__annotations__["a"] = annotation
    return node("demo:Y")(y)


class NoRun(Node):
    type = "demo:NoRun"


TWICE = marked()
WRONG: dict[str, tuple[Any, str]] = {
    "a default mode that is none": (marked(modes={"m": NodeMode("m")}, default_mode="zz"), "default_mode 'zz' is not one of its modes ('m')"),
    "a mode that is none": (marked(modes={"m": {"id": "m"}}), "modes['m'] is dict, not a NodeMode"),
    "a mode with another id": (marked(modes={"m": NodeMode("zz")}), "modes['m'] has the id 'zz'"),
    "a mode with an input that the code lacks": (marked(modes={"m": NodeMode("m", inputs={"b": Slot("b")})}), "input 'b' of mode 'm' is not one that its code takes"),
    "a mode with a slot of another key": (marked(modes={"m": NodeMode("m", outputs={"b": Slot("c")})}), "output 'b' of mode 'm' is not a slot of that key"),
    "a configuration schema that is none": (marked(config_schema={"type": "objekt"}), "'objekt' is not a JSON type"),
    "a configuration schema that is a list": (marked(config_schema=[1]), "config_schema is not a mapping"),
    "configuration values that do not fit": (
        marked(config_schema={"type": "object", "properties": {"k": {"type": "integer"}}}, config_values={"k": "x"}), "/k: must be integer",
    ),
    "a bypass that is none": (marked(bypass="nute"), "bypass is 'nute'"),
    "a bypass of other outputs": (marked(bypass=PassThrough({"zz": "a"})), "bypass names the output 'zz'"),
    "a bypass of other inputs": (marked(bypass=PassThrough({"r": "zz"})), "bypass names the input 'zz'"),
    "a version in quotes": (marked(version="2"), "version is '2', not a whole number"), "no version": (marked(version=0), "version is 0"),
    "a deadline below zero": (marked(timeout_ms=-5), "timeout_ms is -5"), "room for nobody": (marked(limit=0), "limit is 0"),
    "a name that is not text": (marked(display_name=5), "display_name is int, not text"), "a flag that is none": (marked(cache="yes"), "cache is str"),
    "a capability that is none": (marked(capabilities=["bogus"]), "'bogus' is not a capability"), "a type to replace that is none": (marked(replaces=["x"]), "replaces names 'x'"),
    "a default that is not a choice": (with_default(Literal["a", "b"], "zz"), "takes one of 'a', 'b', got 'zz'"),
    "a default of another type": (with_default(int, "x"), "takes INTEGER, got the text 'x'"),
    "a default out of bounds": (with_default(Annotated[int, Port(min=5)], 3), "must be at least 5, got 3"),
    "bounds the wrong way round": (with_default(Annotated[int, Port(min=5, max=1)], 3), "has the bounds 5 and 1"),
    "an input that takes no edge": (with_default(Annotated[list[int], Port(multi=True, max_connections=0)], ()), "takes 0 connections"),
    "a type that is none": (with_default(Annotated[str, Port(type="STRNG")], "a"), "is not a dataFlowType"),
    "a class without run": (NoRun, "it has no method run"),
    "a specification with a slot of another key": (NodeSpec("demo:Z", inputs={"a": Slot("b")}), "input 'a' is not a slot of that key"),
    "a specification with a type that is none": (NodeSpec("demo:Z", outputs={"a": Slot("a", "TEXT")}), "has the type 'TEXT'"),
    "a slot without configuration": (NodeSpec("demo:Z", inputs={"a": Slot("a", config=None)}), "input 'a': config is NoneType"),  # type: ignore[arg-type]
    "a slot with one category": (NodeSpec("demo:Z", inputs={"a": Slot("a", categories="Url")}), "input 'a': categories is 'Url'"),  # type: ignore[arg-type]
    "a slot with connections in words": (NodeSpec("demo:Z", inputs={"a": Slot("a", max_connections="2")}), "takes '2' connections"),  # type: ignore[arg-type]
    "a slot that is required in words": (NodeSpec("demo:Z", inputs={"a": Slot("a", required="yes")}), "input 'a': required is str"),  # type: ignore[arg-type]
    "a slot with a flag in words": (NodeSpec("demo:Z", inputs={"a": Slot("a", multi="no")}), "input 'a': multi is str"),  # type: ignore[arg-type]
    "a slot with a description that is none": (NodeSpec("demo:Z", inputs={"a": Slot("a", description=5)}), "input 'a': description is int"),  # type: ignore[arg-type]
    "a mode with a list of slots": (NodeSpec("demo:Z", modes={"m": NodeMode("m", inputs=[Slot("a")])}), "modes['m'] has slots that are list"),  # type: ignore[arg-type]
    "a capability for a list of them": (NodeSpec("demo:Z", capabilities="read:fs"), "capabilities is str, not a list of names"),  # type: ignore[arg-type]
    "no capabilities": (NodeSpec("demo:Z", capabilities=None), "capabilities is NoneType, not a list of names"),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_definition_that_cannot_be_used_fails_its_plugin_and_says_why(tmp_path: Path, name: str) -> None:
    offer, why = WRONG[name]
    with Tavern.open({"plugins": {"entryPoints": False}}, plugins=[bringing(offer)], home=tmp_path) as tavern:
        problems = tavern.workflows.check({"nodes": [{"id": "a", "type": "demo:X"}]})
        assert tavern.plugins["demo"].state == "failed"
        assert why in str(tavern.plugins["demo"].reason)
    assert [problem.code for problem in problems] == ["UNKNOWN_TYPE"]


class Model(BaseModel):
    k: int = 3


@dataclasses.dataclass
class Record:
    k: int = 3


class Form(enum.Enum):
    SHORT = "简短"


NOTHING = object()
DEFAULTS: list[tuple[Any, Any, Any]] = [
    (bytes, b"\xff\xfe\xfb", "//77"), (Annotated[list[bytes], Port(multi=True)], [b"\xff"], ["/w=="]), (Model, Model(), {"k": 3}), (Record, Record(), {"k": 3}),
    (Form, Form.SHORT, "简短"), (datetime.date, datetime.date(2020, 1, 1), "2020-01-01"), (float, math.inf, NOTHING), (Any, object(), NOTHING), (str, "\ud800", NOTHING),
    (set[int], {1}, [1]), (tuple[int, str], (1, "a"), [1, "a"]), (dict, {1: 2}, {"1": 2}),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(DEFAULTS)))
def test_the_catalogue_and_the_tool_of_a_node_are_json_whatever_its_defaults(tmp_path: Path, at: int) -> None:
    annotation, default, shown = DEFAULTS[at]
    with Tavern.open(
        {"plugins": {"entryPoints": False}}, plugins=[bringing(with_default(annotation, default))], home=tmp_path
    ) as tavern:
        [entry] = [entry for entry in tavern.nodes.catalogue() if entry["type"] == "Y"]
        json.dumps(entry, ensure_ascii=False, allow_nan=False).encode()
        assert entry["inputs"]["a"]["config"].get("default", NOTHING) == shown
        assert tavern.workflows.run_sync({"nodes": [{"id": "n", "type": "demo:Y"}]}, keep=False).ok


class Old(Node):
    """Its second version has another input; its configuration is judged by a schema, a method and a function."""

    type = "demo:Old"
    version = 2
    options = {"config_schema": {"type": "object", "properties": {"k": {"type": "integer"}}}}  # noqa: RUF012 - as plugins write it

    @classmethod
    def upgrade(cls, node: Mapping[str, Any], version: int) -> Mapping[str, Any]:
        return {**node, "inputValues": {"number": node["inputValues"]["num"]}}

    @classmethod
    def validate(cls, inputs: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
        inputs["number"] = 0  # type: ignore[index] - it is given a copy
        return "k must not be 13" if config.get("k") == 13 else []

    async def run(
        self,
        number: int = 0,
        more: Annotated[int | None, Port(required=lambda config: config["k"] > 5 if "k" in config else False)] = None,
    ) -> Out(y=int):
        return number


@node(
    "demo:Form",
    modes={"one": NodeMode("one"), "two": NodeMode("two", outputs={"二": Slot("二", "STRING")})},
    mode_config_key="form",
)
async def form(ctx: NodeContext, **inputs: Any) -> Out(one=str):
    return {"二" if ctx.mode == "two" else "one": ctx.mode}


NEWER = {"typeVersion": 3}
INSIDE: dict[str, tuple[dict[str, Any], list[tuple[str, str]]]] = {
    "an old version": ({"type": "demo:Old", "typeVersion": 1, "inputValues": {"num": 5}}, []),
    "an old version that cannot be upgraded": ({"type": "demo:Old", "typeVersion": 1}, [("BAD_CONFIG", "its upgrade failed with KeyError")]),
    "a newer version": ({"type": "demo:Old", **NEWER}, [("REQUIREMENT", "was written for version 3 of demo:Old; version 2 is there")]),
    "a configuration against its schema": ({"type": "demo:Old", "configValues": {"k": "x"}}, [("BAD_CONFIG", "/k: must be integer"), ("BAD_CONFIG", "is required is unknown")]),
    "a configuration against its method": ({"type": "demo:Old", "configValues": {"k": 13}, "inputValues": {"more": 1}}, [("BAD_VALUE", "k must not be 13")]),
    "an input that the configuration requires": ({"type": "demo:Old", "configValues": {"k": 6}}, [("MISSING_INPUT", "'more'")]),
    "a mode": ({"type": "demo:Form", "configValues": {"form": "two"}}, []),
    "a mode that does not exist": ({"type": "demo:Form", "configValues": {"form": "tow"}}, [("BAD_CONFIG", "form names 'tow', which does not exist")]),
}  # fmt: skip


def test_what_definitions_say_about_a_node_holds_at_the_top_and_in_groups(tmp_path: Path) -> None:
    for number, (given, _) in enumerate(INSIDE.values()):
        inner, group = f"inner-{number}", {"id": "g", "type": "core:NodeGroup"}
        outer = {"nodes": [{**group, "configValues": {"referencedWorkflowId": inner}}]}
        (tmp_path / f"{inner}.json").write_text(json.dumps({"nodes": [{"id": "a", **given}]}), "utf-8")
        (tmp_path / f"outer-{number}.json").write_text(json.dumps(outer), "utf-8")
    with Tavern.open(
        {"plugins": {"entryPoints": False}, "workflows": {"roots": [str(tmp_path)]}},
        plugins=[bringing(Old, form)],
        home=tmp_path / "home",
    ) as tavern:
        for number, (name, (_, expected)) in enumerate(INSIDE.items()):
            for workflow, node_ in ((f"inner-{number}", "a"), (f"outer-{number}", "g/a")):
                problems = tavern.workflows.check(workflow)
                assert [p.code for p in problems] == [code for code, _ in expected], (name, workflow)
                assert {p.node for p in problems} <= {node_}, (name, workflow)
                assert all(text in p.message for p, (_, text) in zip(problems, expected, strict=True)), (name, workflow)
                if not any(p.severity == "error" for p in problems):
                    assert tavern.workflows.run_sync(workflow, keep=False).ok, (name, workflow)


def test_an_upgraded_node_in_a_group_runs_as_its_class_has_it_now(tmp_path: Path) -> None:
    inner = {
        "interfaceOutputs": {"y": {"dataFlowType": "INTEGER"}},
        "nodes": [
            {"id": "a", "type": "demo:Old", "typeVersion": 1, "inputValues": {"num": 5}},
            {"id": "o", "type": "core:GroupOutput"},
        ],
        "edges": [{"id": "e", "source": "a", "sourceHandle": "y", "target": "o", "targetHandle": "y"}],
    }
    (tmp_path / "inner.json").write_text(json.dumps(inner), "utf-8")
    outer = {"nodes": [{"id": "g", "type": "core:NodeGroup", "configValues": {"referencedWorkflowId": "inner"}}]}
    with Tavern.open(
        {"plugins": {"entryPoints": False}, "workflows": {"roots": [str(tmp_path)]}},
        plugins=[bringing(Old)],
        home=tmp_path / "home",
    ) as tavern:
        assert tavern.workflows.run_sync(outer).outputs == {"g": {"y": 5}}
    assert json.loads((tmp_path / "inner.json").read_text("utf-8")) == inner


class AsMethods(Old):
    type = "demo:AsMethods"

    def __init__(self) -> None:
        self.most = 5

    def validate(self, inputs: Mapping[str, Any], config: Mapping[str, Any]) -> Any:  # type: ignore[override]
        return f"number must not be above {self.most}" if inputs["number"] > self.most else None

    def upgrade(self, node: Mapping[str, Any], version: int) -> Mapping[str, Any]:  # type: ignore[override]
        return {**node, "inputValues": {"number": self.most}}


class AsFunctions(Old):
    type = "demo:AsFunctions"

    @staticmethod
    def validate(inputs: Mapping[str, Any], config: Mapping[str, Any]) -> Any:  # type: ignore[override]
        return ["number must not be above 5"] if inputs["number"] > 5 else []

    @staticmethod
    def upgrade(node: Mapping[str, Any], version: int) -> Mapping[str, Any]:  # type: ignore[override]
        return {**node, "inputValues": {"number": 5}}


class Unmade(AsMethods):
    type = "demo:Unmade"

    def __init__(self) -> None:
        raise RuntimeError("no graphics card")


class Leaves(Old):
    type = "demo:Leaves"

    @classmethod
    def upgrade(cls, node: Mapping[str, Any], version: int) -> Mapping[str, Any]:
        sys.exit(3)

    @classmethod
    def validate(cls, inputs: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
        sys.exit("no graphics card")

    async def run(
        self, number: int = 0, more: Annotated[int | None, Port(required=lambda config: sys.exit())] = None
    ) -> Out(y=int):
        return number


def test_a_definition_that_calls_sys_exit_is_a_problem_of_its_node(tmp_path: Path) -> None:
    with Tavern.open({"plugins": {"entryPoints": False}}, plugins=[bringing(Leaves)], home=tmp_path) as tavern:
        problems = tavern.workflows.check({"nodes": [{"id": "a", "type": "demo:Leaves", "typeVersion": 1}]})
        assert [(p.code, p.node) for p in problems] == [("BAD_CONFIG", "a"), ("BAD_VALUE", "a"), ("BAD_CONFIG", "a")]
        found = (
            "its upgrade failed with SystemExit(3)",
            "failed with SystemExit('no graphics card')",
            "failed with SystemExit()",
        )
        assert all(text in p.message for p, text in zip(problems, found, strict=True))
        assert "Leaves" in {entry["type"] for entry in tavern.nodes.catalogue()}


def test_validate_and_upgrade_may_be_methods_of_any_kind(tmp_path: Path) -> None:
    with Tavern.open(
        {"plugins": {"entryPoints": False}}, plugins=[bringing(AsMethods, AsFunctions, Unmade)], home=tmp_path
    ) as tavern:
        for kind in ("demo:AsMethods", "demo:AsFunctions"):
            [problem] = tavern.workflows.check({"nodes": [{"id": "a", "type": kind, "inputValues": {"number": 6}}]})
            assert (problem.code, problem.message) == ("BAD_VALUE", f"'a' ({kind}): number must not be above 5")
            old = {"nodes": [{"id": "a", "type": kind, "typeVersion": 1, "inputValues": {"num": 1}}]}
            assert tavern.workflows.run_sync(old).outputs == {"a": {"y": 5}}
        [broken] = tavern.workflows.check({"nodes": [{"id": "a", "type": "demo:Unmade"}]})
        assert "validate of demo:Unmade failed with RuntimeError('no graphics card')" in broken.message


CHANGES: dict[str, tuple[Callable[[NodeSpec], Any], str, str]] = {
    "another name": (lambda d: dataclasses.replace(d, display_name="别名"), "NODE_CHANGED", "displayName"),
    "another default": (lambda d: dataclasses.replace(d, inputs={"a": dataclasses.replace(d.inputs["a"], config={"default": "z"})}), "NODE_CHANGED", "inputs"),
    "another type id": (lambda d: dataclasses.replace(d, type="demo:Other"), "NODE_LEFT_OUT", "type, owner or code"),
    "another owner": (lambda d: dataclasses.replace(d, plugin="guard"), "NODE_LEFT_OUT", "type, owner or code"),
    "other code": (lambda d: dataclasses.replace(d, impl=None), "NODE_LEFT_OUT", "type, owner or code"),
    "an input that the code lacks": (lambda d: dataclasses.replace(d, inputs={**d.inputs, "b": Slot("b")}), "NODE_LEFT_OUT", "not one that its code takes"),
    "an input less": (lambda d: dataclasses.replace(d, inputs={}), "NODE_LEFT_OUT", "took the input 'a' away"),
    "a type that is none": (lambda d: dataclasses.replace(d, outputs={"r": Slot("r", "TEXT")}), "NODE_LEFT_OUT", "not a dataFlowType"),
    "a schema that is none": (lambda d: dataclasses.replace(d, config_schema={"type": "objekt"}), "NODE_LEFT_OUT", "not a JSON type"),
    "no room": (lambda d: dataclasses.replace(d, limit=0), "NODE_LEFT_OUT", "limit is 0"),
    "no capabilities": (lambda d: dataclasses.replace(d, capabilities=None), "NODE_LEFT_OUT", "capabilities is NoneType"),
    "a slot without configuration": (lambda d: dataclasses.replace(d, inputs={"a": Slot("a", config=None)}), "NODE_LEFT_OUT", "config is NoneType"),
    "a slot with connections in words": (lambda d: dataclasses.replace(d, inputs={"a": Slot("a", max_connections="2")}), "NODE_LEFT_OUT", "takes '2'"),
    "a text": (lambda d: "no", "NODE_LEFT_OUT", "answered str"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_hook_makes_of_a_definition_is_judged_again_and_recorded(tmp_path: Path, name: str) -> None:
    how, code, words = CHANGES[name]

    class Guard:
        @hookimpl
        def tavern_before_register_node(self, definition: NodeSpec, owner: str) -> Any:
            return how(definition) if owner == "demo" else None

    with Tavern.open(
        {"plugins": {"entryPoints": False}}, plugins=[bringing(marked()), Plugin(Guard(), name="guard")], home=tmp_path
    ) as tavern:
        is_there = "demo:X" in tavern.nodes
        [found] = [d for d in tavern.diagnostics if d.code in ("NODE_CHANGED", "NODE_LEFT_OUT")]
    assert (found.code, found.plugin, words in found.message, is_there) == (code, "guard", True, code == "NODE_CHANGED")


OUT = {"id": "o", "type": "core:GroupOutput"}
INTERFACES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a default of another type": ({"interfaceInputs": {"n": {"dataFlowType": "INTEGER", "config": {"default": "x"}}}}, ["the default of input 'n' of the workflow does not fit"]),
    "a default written out": ({"interfaceInputs": {"n": {"matchCategories": ["ComboOption"], "config": {"default": {"value": "a"}, "suggestions": [{"value": "a"}]}}}}, []),
    "suggestions that are not a list": ({"interfaceInputs": {"n": {"matchCategories": ["ComboOption"], "config": {"suggestions": 5}}}}, []),
    "an output that nobody gives": ({"nodes": [OUT], "interfaceOutputs": {"果": {}}}, ["no edge gives output '果' of the workflow"]),
    "an output that is a value": ({"nodes": [{**OUT, "inputValues": {"果": 1}}], "interfaceOutputs": {"果": {}}}, []),
}  # fmt: skip


@each_row("name", INTERFACES)
def test_an_interface_that_cannot_be_meant_is_a_warning(plain: Tavern, name: str) -> None:
    flow, expected = INTERFACES[name]
    problems = plain.workflows.check({"nodes": [], **flow})
    given = dict.fromkeys(flow.get("interfaceInputs", ()), 1 if name == "a default of another type" else "a")
    assert plain.workflows.run_sync({"nodes": [], **flow}, given, keep=False).ok
    assert [(p.code, p.severity) for p in problems] == [("INTERFACE", "warning")] * len(expected)
    assert all(text in p.message for p, text in zip(problems, expected, strict=True))


EXECS: list[tuple[Any, str]] = [
    (None, ""), ({"retry": 2.0}, ""), ({"onError": "default", "defaults": {"text": "x"}}, ""), (5, "$exec of 'a': must be a mapping"), ({"retrys": 1}, "unknown key 'retrys'"),
    ({"retry": True}, "$exec.retry of 'a': must be a"), ({"timeoutMs": 0}, "must be greater than 0"), ({"onError": "stop"}, "'stop' is not one of fail, skip, default, port"),
    ({"onError": "default", "defaults": {"txt": 1}}, "$exec.defaults.txt of 'a': the node has no such output"), ({"defaults": {"text": 5}}, "$exec.defaults.text of 'a' takes STRING"),
]  # fmt: skip


@each_row("at", range(len(EXECS)))
def test_how_a_node_is_run_is_judged_with_its_outputs(plain: Tavern, at: int) -> None:
    given, wrong = EXECS[at]
    problems = plain.workflows.check({"nodes": [{"id": "a", "type": "core:Text", "configValues": {"$exec": given}}]})
    assert [(p.code, p.node) for p in problems] == ([("BAD_EXEC", "a")] if wrong else [])
    assert all(wrong in p.message for p in problems)


REQUIRED: list[tuple[str, str, str]] = [
    ("demo", "", ""), ("demo", ">=0", ""), ("core", ">=1", ""), ("tavern-core", ">=1,<2", ""), ("core-nodes-text", ">=1", ""), ("core", ">=99", "requires core >=99"),
    ("nope", "", "which is not installed"), ("demo", "banana", "cannot be compared"), ("demo", ">=99", "requires demo >=99"),
]  # fmt: skip


def test_a_missing_requirement_of_a_file_is_reported(tmp_path: Path) -> None:
    with Tavern.open({"plugins": {"entryPoints": False}}, plugins=[bringing(marked())], home=tmp_path) as tavern:
        for name, wanted, why in REQUIRED:
            problems = tavern.workflows.check({"nodes": [], "requires": {name: wanted}})
            assert [p.code for p in problems] == (["REQUIREMENT"] if why else []), (name, wanted)
            assert all(why in p.message for p in problems), (name, wanted)


def test_content_that_is_no_workflow_is_refused_with_the_place_in_it(plain: Tavern) -> None:
    with pytest.raises(WorkflowInvalid, match=r"nodes\.1\.id: must be text, got the number 1"):
        plain.workflows.check({"nodes": [{"id": "a", "type": "core:Text"}, {"id": 1, "type": "core:Text"}]})


WRITTEN: list[Any] = [
    Annotated[int | None, Port("数", min=1, lazy=True)], Annotated[int, Port("数", min=1, lazy=True)] | None, Optional[Annotated[int, Port("数", min=1, lazy=True)]],  # noqa: UP045 - as plugins write it
    None | Annotated[int, Field(ge=1), Port("数", lazy=True)],
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(WRITTEN)))
def test_a_port_says_the_same_on_either_side_of_none(tmp_path: Path, at: int) -> None:
    with Tavern.open(
        {"plugins": {"entryPoints": False}}, plugins=[bringing(with_default(WRITTEN[at], None))], home=tmp_path
    ) as tavern:
        slot = tavern.nodes["demo:Y"].inputs["a"]
    assert (slot.type, slot.display_name, dict(slot.config), slot.lazy, slot.required) == (
        "INTEGER",
        "数",
        {"min": 1},
        True,
        False,
    )


@pytest.mark.parametrize(
    ("config", "required"), [({}, ["a"]), ({"form": "short"}, ["a"]), ({"form": "long"}, ["a", "b"])]
)
def test_what_a_tool_of_a_node_requires_follows_from_the_configuration(
    tmp_path: Path, config: dict[str, Any], required: list[str]
) -> None:
    @node("demo:Z", config_values=config)
    def z(a: str, b: Annotated[int | None, Port(required=lambda config: config["form"] == "long")] = None) -> Out(
        r=str
    ):
        return a

    with Tavern.open({"plugins": {"entryPoints": False}}, plugins=[bringing(z)], home=tmp_path) as tavern:
        spec = tavern.nodes["demo:Z"]
    assert node_schema(spec.inputs, spec.config_values)["required"] == required
