"""Tool files of kind `workflow` and `node`: what they infer, whose nodes and files they may name, bytes, lists, streams."""

from __future__ import annotations

import base64
import json
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from tavern_core import Final, Out, Plugin, Port, Stream, Tavern, hookimpl, node
from tests.workflows.folder import Flows

pytestmark = pytest.mark.anyio


@node("own:Everything")
async def everything(
    text: str, needed: Annotated[list[str], Port(multi=True)], number: Annotated[float, Port(min=0.5, max=9)] = 1.5, count: Annotated[int, Port("Zahl", min=1)] = 3,
    flag: bool = False, choice: Literal["a", "b"] = "b", many: Annotated[list[int], Port(multi=True, max=5)] = (),
    raw: bytes | None = None, some: dict[str, Any] | None = None, items: list[Any] | None = None, what: Any = None,
    chunks: Stream[str] | None = None,
) -> Out(said=dict, back=bytes):  # fmt: skip
    """Takes one of each.

    Args:
        text: what is said.
        many: numbers.
    """
    return {"said": {"text": text, "many": many, "kind": type(raw).__name__, "choice": choice}, "back": raw or b""}


@node("own:Tick")
async def tick(n: int = 3) -> Out(chunks=Stream[str], text=str):
    for at in range(n):
        yield str(at)
    yield Final(text="done")


class Own:
    @hookimpl
    def tavern_register_nodes(self) -> list[Any]:
        return [everything, tick, repeat, wrap, to_bytes, numbers, letters, total, free, picky, opaque]


class Foo:
    """A folder plugin of tool files and workflows, without Python."""

    def __init__(self, flows: Flows, depends: str = "dependsOn: {own: ''}\n") -> None:
        self.flows = flows
        self.folder = flows.root / "plugins" / "foo"
        (self.folder / "tools").mkdir(parents=True)
        (self.folder / "flows").mkdir()
        text = f'name: foo\nversion: "1.0"\ntools: {{entry: ./tools}}\nworkflows: {{entry: flows}}\n{depends}'
        (self.folder / "plugin.yaml").write_text(text, "utf-8")

    def tool(
        self,
        name: str,
        output: dict[str, Any] | None = None,
        parameters: dict[str, Any] | None = None,
        **implementation: Any,
    ) -> None:
        data = {"id": name, "displayName": name, "description": "", "implementation": implementation}
        data |= {} if output is None else {"output": output}
        data |= {} if parameters is None else {"parameters": parameters}
        (self.folder / "tools" / f"{name}.tool.json").write_text(json.dumps(data), "utf-8")

    def flow(self, name: str, nodes: list[dict[str, Any]], edges: list[str], /, **rest: Any) -> None:
        wires = []
        for at, wire in enumerate(edges):
            (a, b), (c, d) = (end.split(".") for end in wire.split(">"))
            wires.append({"id": str(at), "source": a, "sourceHandle": b, "target": c, "targetHandle": d})
        (self.folder / "flows" / f"{name}.json").write_text(
            json.dumps({"nodes": nodes, "edges": wires, **rest}), "utf-8"
        )

    def open(self, *others: Plugin) -> Tavern:
        return self.flows.open(
            Plugin(Own(), name="own"), *others, plugins={"roots": [str(self.flows.root / "plugins")]}
        )


IN, OUT = {"id": "i", "type": "core:GroupInput"}, {"id": "o", "type": "core:GroupOutput"}


async def test_a_node_as_a_tool_says_everything_its_definition_says(flows: Flows) -> None:
    foo = Foo(flows)
    foo.tool("all", type="node", nodeType="own:Everything")
    async with foo.open() as tavern:
        schema = tavern.tool_schema("foo:all")
    assert schema == {
        "name": "foo:all",
        "description": "Takes one of each.",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string", "description": "what is said."},
                "needed": {"type": "array", "items": {"type": "string"}},
                "number": {"type": "number", "minimum": 0.5, "maximum": 9, "default": 1.5},
                "count": {"type": "integer", "description": "Zahl", "minimum": 1, "default": 3},
                "flag": {"type": "boolean", "default": False},
                "choice": {"type": "string", "enum": ["a", "b"], "default": "b"},
                "many": {
                    "type": "array",
                    "description": "numbers.",
                    "items": {"type": "integer", "maximum": 5},
                    "default": [],
                },
                "raw": {"type": "string", "contentEncoding": "base64"},
                "some": {"type": "object"},
                "items": {"type": "array"},
                "what": {},
                "chunks": {"type": "string"},
            },
            "required": ["text", "needed"],
        },
    }


async def test_bytes_cross_json_as_base64_in_both_directions(flows: Flows) -> None:
    foo = Foo(flows)
    foo.tool("all", type="node", nodeType="own:Everything")
    flows.write(
        "bytes",
        {"e": {"type": "own:Everything", "text": "", "needed": ["x"], "raw": base64.b64encode(b"abc").decode()}},
    )
    flows.write("wrong", {"e": {"type": "own:Everything", "text": "", "needed": ["x"], "raw": "no base64!"}})
    flows.write(
        "through", {"i": IN["type"], "e": {"type": "own:Everything", "text": "", "needed": []}, "o": OUT["type"]}, "i.d>e.raw e.back>o.d",
        interfaceInputs={"d": {"dataFlowType": "BINARY"}}, interfaceOutputs={"d": {"dataFlowType": "BINARY"}}, description="d",
    )  # fmt: skip
    async with foo.open() as tavern:
        called = await tavern.invoke("foo:all", {"text": "t", "needed": [], "raw": "YWJj", "many": [1, 2]})
        [problem] = tavern.workflows.check("wrong")
        run = await tavern.workflows.run("bytes")
        through = await tavern.invoke("workflow:through", {"d": "YWJj"})
        refused = await tavern.invoke("workflow:through", {"d": "no base64!"})
    assert called.value == {"said": {"text": "t", "many": [1, 2], "kind": "bytes", "choice": "b"}, "back": "YWJj"}, (
        called.error
    )
    assert (problem.code, "base64" in problem.message) == ("BAD_VALUE", True)
    assert run.outputs["e"]["back"] == b"abc"
    assert (through.value, refused.error.kind if refused.error else "") == ("YWJj", "INPUT_SCHEMA_INVALID")


async def test_a_workflow_as_a_tool_of_a_plugin_takes_the_interface_of_its_file(flows: Flows) -> None:
    foo = Foo(flows)
    foo.tool("join", type="workflow", workflowId="flows/join.json")
    foo.flow(
        "join", [IN, {"id": "m", "type": "core:Join", "inputValues": {"separator": "-"}}, OUT], ["i.parts>m.parts", "m.text>o.text"],
        name="Joins", description="Joins texts.",
        interfaceInputs={"parts": {"dataFlowType": "STRING", "multi": True, "required": True, "displayName": "Texts"}},
        interfaceOutputs={"text": {"dataFlowType": "STRING"}},
    )  # fmt: skip
    async with foo.open() as tavern:
        schema = tavern.tool_schema("foo:join")
        result = await tavern.invoke("foo:join", {"parts": ["a", "b", "c"]})
        listed = await tavern.invoke("workflow:foo.join", {"parts": []})
        wrong = await tavern.invoke("foo:join", {"parts": "a"})
    assert schema["description"] == "Joins texts."
    assert schema["parameters"] == {
        "type": "object",
        "properties": {"parts": {"type": "array", "description": "Texts", "items": {"type": "string"}}},
        "required": ["parts"],
    }
    assert (result.value, listed.value) == ("a-b-c", ""), (result.error, listed.error)
    assert wrong.error is not None
    assert wrong.error.kind == "INPUT_SCHEMA_INVALID"


@node("own:Repeat")
async def repeat(text: str) -> Out(out=str):
    return text * 2


@node("own:Wrap")
async def wrap(text: str) -> Out(out=dict):
    return {"out": {"out": text, "more": 1}}


@node("own:Bytes")
async def to_bytes(text: str) -> Out(out=bytes):
    return text.encode()


NAMED = {"type": "object", "properties": {"out": {"type": "string"}}, "required": ["out"]}
OTHER = {"type": "object", "properties": {"out": {"type": "string"}, "more": {"type": "integer"}}}


SINGLE: list[tuple[str, dict[str, Any] | None, Any]] = [
    # the type of a node, the output that its tool declares, what the tool gives
    ("own:Repeat", None, "abab"),
    ("own:Repeat", {"type": "string"}, "abab"),
    ("own:Repeat", NAMED, {"out": "abab"}),
    ("own:Wrap", None, {"out": "ab", "more": 1}),
    ("own:Wrap", OTHER, {"out": "ab", "more": 1}),
]


@pytest.mark.parametrize("kind", ["node", "workflow"])
async def test_a_single_output_keeps_its_name_where_the_tool_declares_an_object_with_it(
    flows: Flows, kind: str
) -> None:
    foo = Foo(flows)
    for number, (type_, output, _) in enumerate(SINGLE):
        if kind == "node":
            foo.tool(f"one_{number}", output, type="node", nodeType=type_)
            continue
        foo.flow(
            f"one_{number}", [IN, {"id": "n", "type": type_}, OUT], ["i.text>n.text", "n.out>o.out"],
            interfaceInputs={"text": {"dataFlowType": "STRING", "required": True}},
            interfaceOutputs={"out": {"dataFlowType": "STRING" if type_ == "own:Repeat" else "OBJECT"}},
        )  # fmt: skip
        foo.tool(f"one_{number}", output, type="workflow", workflowId=f"flows/one_{number}.json")
    async with foo.open() as tavern:
        for number, (type_, output, value) in enumerate(SINGLE):
            result = await tavern.invoke(f"foo:one_{number}", {"text": "ab"})
            begun = await tavern.invoke(f"foo:one_{number}", {"text": "ab"}, job=True)
            assert (await tavern.jobs.wait(str(begun.job), 10)).is_over, (type_, output)
            later = tavern.jobs.result(str(begun.job))
            assert (result.value, later.value) == (value, value), (type_, output, result.error, later.error)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("type_", "output", "value"),
    [
        ("own:Repeat", None, "abab"),
        ("own:Repeat", NAMED, {"out": "abab"}),
        ("own:Wrap", NAMED, {"out": "ab", "more": 1}),
        ("own:Bytes", None, "YWI="),
    ],
)
async def test_a_run_that_is_resumed_has_the_result_that_it_would_have_had(
    flows: Flows, type_: str, output: dict[str, Any] | None, value: Any
) -> None:
    foo, out = Foo(flows), {"own:Repeat": "STRING", "own:Wrap": "OBJECT", "own:Bytes": "BINARY"}[type_]
    foo.flow(
        "one", [{"id": "q", "type": "core:Ask", "inputValues": {"prompt": "what?"}}, {"id": "n", "type": type_}, OUT],
        ["q.answer>n.text", "n.out>o.out"], interfaceOutputs={"out": {"dataFlowType": out}},
    )  # fmt: skip
    foo.tool("one", output, type="workflow", workflowId="flows/one.json")
    async with foo.open() as tavern:
        first, second = [str((await tavern.invoke("foo:one", {}, job=True)).job) for _ in range(2)]
        for job in (first, second):
            assert (await tavern.jobs.wait(job, 10)).status == "input_required"
        assert tavern.jobs.answer(first, "ab")
        assert (await tavern.jobs.wait(first, 10)).status == "completed"
        expected = tavern.jobs.result(first)
    async with foo.open() as tavern:
        assert (await tavern.workflows.resume(second, {"q#1": "ab"})).ok
        resumed = tavern.jobs.result(second)
        assert (expected.value, resumed.value) == (value, value)
        assert (await tavern.invoke("jobs:getResult", {"jobId": second})).value["value"] == value


async def test_an_interface_input_that_takes_several_gives_its_items_or_the_list(flows: Flows) -> None:
    slot = {"dataFlowType": "INTEGER", "multi": True}
    inner = {"i": IN["type"], "l": "core:Join", "v": "core:Length", "o": OUT["type"]}
    flows.write("inner", inner, "i.n>l.parts i.n>v.value l.text>o.text v.length>o.count", interfaceInputs={"n": slot},
                interfaceOutputs={"text": {"dataFlowType": "STRING"}, "count": {"dataFlowType": "INTEGER"}})  # fmt: skip
    flows.write("outer", {"a": {"type": "t:Inc", "x": 1}, "b": {"type": "t:Inc", "x": 2},
                          "g": {"type": "core:NodeGroup", "config": {"referencedWorkflowId": "inner"}}}, "a.y>g.n b.y>g.n")  # fmt: skip
    flows.write("wrong", {"i": IN["type"], "a": "t:Inc"}, "i.n>a.x", interfaceInputs={"n": slot})
    async with flows.open() as tavern:
        assert (await tavern.workflows.run("inner", {"n": [7, 8, 9]})).outputs == {"text": "7\n8\n9", "count": 3}
        assert (await tavern.workflows.run("outer")).outputs == {"g": {"text": "2\n3", "count": 2}}
        [problem] = tavern.workflows.check("wrong")
    assert (problem.code, "gives a list" in problem.message) == ("TYPE_MISMATCH", True)


async def test_workflows_of_one_plugin_call_each_other_by_name(flows: Flows) -> None:
    foo = Foo(flows)
    group = {"id": "g", "type": "core:NodeGroup", "configValues": {"referencedWorkflowId": "inner"}}
    text = {"id": "t", "type": "core:Text", "inputValues": {"text": "of the plugin"}}
    foo.flow("inner", [text, OUT], ["t.text>o.r"], interfaceOutputs={"r": {"dataFlowType": "STRING"}})
    foo.flow("outer", [group, OUT], ["g.r>o.r"], interfaceOutputs={"r": {"dataFlowType": "STRING"}})
    foo.tool("outer", type="workflow", workflowId="flows/outer.json")
    flows.write("inner", {"t": {"type": "core:Text", "text": "of a folder"}, "o": OUT["type"]}, "t.text>o.r",
                interfaceOutputs={"r": {"dataFlowType": "STRING"}})  # fmt: skip
    async with foo.open() as tavern:
        values = [
            (await tavern.invoke(name, {})).value for name in ("foo:outer", "workflow:foo.outer", "workflow:inner")
        ]
    assert values == ["of the plugin", "of the plugin", "of a folder"]


@pytest.mark.parametrize(
    ("depends", "type_", "works"),
    [
        ("dependsOn: {own: ''}\n", "own:Tick", True),
        ("", "own:Tick", False),
        ("", "core:Delay", True),
        ("", "gone:Type", False),
    ],
)
async def test_a_plugin_makes_tools_of_its_own_nodes_of_the_hosts_and_of_those_it_depends_on(
    flows: Flows, depends: str, type_: str, works: bool
) -> None:
    foo = Foo(flows, depends)
    foo.tool("one", type="node", nodeType=type_)
    async with foo.open() as tavern:
        result = await tavern.invoke("foo:one", {"ms": 0} if "Delay" in type_ else {})
    assert result.ok is works, result.error
    if not works:
        assert result.error is not None
        assert "does not depend on" in result.error.message
        assert "dependsOn" in result.error.fix


@pytest.mark.parametrize("written", ["../outside.json", "/etc/passwd", "flows/absent.json", "absent", "tools"])
async def test_a_workflow_file_is_one_inside_of_the_plugin(flows: Flows, tmp_path: Path, written: str) -> None:
    (flows.root / "plugins" / "outside.json").parent.mkdir(exist_ok=True)
    (flows.root / "plugins" / "outside.json").write_text('{"nodes": [], "edges": []}', "utf-8")
    foo = Foo(flows)
    foo.tool("one", type="workflow", workflowId=written)
    async with foo.open() as tavern:
        result = await tavern.invoke("foo:one", {})
        assert [found.code for found in tavern.diagnostics if "one" in found.message] == ["TOOL_FILE_INVALID"]
    assert result.error is not None
    assert result.error.kind in ("TOOL_NOT_FOUND", "UPSTREAM_ERROR")
    assert not result.ok


async def test_what_a_stream_said_can_be_read_from_the_run_behind_the_call(flows: Flows) -> None:
    foo = Foo(flows)
    flows.write("ticks", {"t": {"type": "own:Tick", "n": 4}, "o": OUT["type"]}, "t.chunks>o.said t.text>o.end", description="d",
                interfaceOutputs={"said": {"dataFlowType": "STRING", "isStream": True}, "end": {"dataFlowType": "STRING"}})  # fmt: skip
    async with foo.open() as tavern:
        result = await tavern.invoke("workflow:ticks", {})
        assert result.job is not None
        chunks = [
            event.data["chunks"]
            for event in tavern.workflows.events(result.job)
            if event.kind == "chunk" and event.path == "o"
        ]
    assert result.value == {"said": "0123", "end": "done"}
    assert [chunk["said"] for chunk in chunks] == list("0123"), chunks


@node("own:Numbers")
async def numbers(n: int) -> Out(out=Stream[int]):
    for at in range(n):
        yield at


@node("own:Letters")
async def letters(text: Stream[str], times: int = 1) -> Out(n=int):
    yield Final(n=times * sum([len(chunk) async for chunk in text]))


@node("own:Total")
async def total(items: Stream[int]) -> Out(doubled=Stream[int], total=int):
    found = 0
    async for item in items:
        found += item
        yield 2 * item
    yield Final(total=found)


@node("own:Free")
async def free(x, y=2) -> Out(both=list):  # type: ignore[no-untyped-def]
    return [x, y]


@node("own:Picky")
async def picky(day: date | None = None, raw: bytes = b"", days: list[date] | None = None) -> str:
    return f"{day} {raw!r}"


@pytest.mark.parametrize(
    ("type_", "arguments", "value"),
    [
        ("own:Tick", {"n": 4}, {"chunks": "0123", "text": "done"}),
        ("own:Tick", {"n": 0}, {"chunks": "", "text": "done"}),
        ("own:Numbers", {"n": 3}, [0, 1, 2]),
        ("own:Letters", {"text": "三个字"}, 3),
        ("own:Letters", {"text": "abc", "times": 2}, 6),
        ("own:Total", {"items": [1, 2, 3]}, {"doubled": [2, 4, 6], "total": 6}),
        ("own:Free", {"x": {"any": "value"}}, [{"any": "value"}, 2]),
        ("own:Free", {"x": 1, "y": None}, [1, None]),
    ],
)
async def test_streams_of_a_node_tool_are_given_and_answered_as_a_whole(
    flows: Flows, type_: str, arguments: dict[str, Any], value: Any
) -> None:
    foo = Foo(flows)
    foo.tool("one", type="node", nodeType=type_)
    async with foo.open() as tavern:
        result = await tavern.invoke("foo:one", arguments)
    assert result.value == value, result.error


@pytest.mark.parametrize(
    ("arguments", "path", "said"),
    [
        ({"day": "soon"}, "/day", "input 'day': Input should be a valid date"),
        ({"raw": "***"}, "/raw", "input 'raw' takes bytes, in JSON as base64"),
        ({"days": ["2026-01-01", "x"]}, "/days", "input 'days'"),
    ],
)
async def test_an_argument_that_does_not_fit_its_node_is_an_error_of_the_caller(
    flows: Flows, arguments: dict[str, Any], path: str, said: str
) -> None:
    foo = Foo(flows)
    foo.tool("one", type="node", nodeType="own:Picky")
    async with foo.open() as tavern:
        error = (await tavern.invoke("foo:one", arguments)).error
    assert error is not None
    assert (error.kind, error.outcome, error.fix) == ("INPUT_SCHEMA_INVALID", "none", f"correct '{path[1:]}'")
    assert said in error.message
    assert [problem["path"] for problem in error.details["problems"]] == [path]


@node("own:Opaque")
async def opaque():  # type: ignore[no-untyped-def]
    return object()


async def test_an_output_that_json_cannot_hold_is_an_error_of_work_that_is_done(flows: Flows) -> None:
    foo = Foo(flows)
    foo.tool("one", type="node", nodeType="own:Opaque")
    async with foo.open() as tavern:
        error = (await tavern.invoke("foo:one", {})).error
    assert error is not None
    assert (error.kind, error.outcome) == ("OUTPUT_SCHEMA_INVALID", "done")


async def test_a_workflow_tool_takes_a_stream_of_numbers_as_a_list(flows: Flows) -> None:
    foo = Foo(flows)
    flows.write("sum", {"i": "core:GroupInput", "t": {"type": "own:Total"}, "o": OUT["type"]}, "i.items>t.items t.total>o.total", description="d",
                interfaceInputs={"items": {"dataFlowType": "INTEGER", "isStream": True, "required": True}}, interfaceOutputs={"total": {"dataFlowType": "INTEGER"}})  # fmt: skip
    async with foo.open() as tavern:
        schema = tavern.tools["workflow:sum"].input_schema
        result = await tavern.invoke("workflow:sum", {"items": [1, 2]})
    assert schema["properties"]["items"] == {"type": "array", "items": {"type": "integer"}}
    assert result.value == 3, result.error


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"nodes": [}', "one.json:1:12: not JSON: expecting value"),
        (b"\xff\xfe", "one.json:1:1: the file is UTF-16"),
        (b'{"nodes": [{"id": "a", "type": "own:Gone"}], "edges": []}', "which does not exist"),
    ],
)
async def test_a_file_that_cannot_run_is_refused_before_anything_began(flows: Flows, content: bytes, said: str) -> None:
    foo = Foo(flows)
    foo.tool("one", type="workflow", workflowId="flows/one.json")
    (foo.folder / "flows" / "one.json").write_bytes(content)
    async with foo.open() as tavern:
        error = (await tavern.invoke("foo:one", {})).error
    assert error is not None
    assert (error.kind, error.outcome, error.details["code"]) == ("UPSTREAM_ERROR", "none", "WORKFLOW_INVALID")
    assert said in error.message


async def test_a_default_that_does_not_fit_is_not_said_to_be_an_argument(flows: Flows) -> None:
    foo = Foo(flows)
    flows.write("one", {"i": "core:GroupInput", "o": OUT["type"]}, "i.n>o.n", description="d",
                interfaceInputs={"n": {"dataFlowType": "INTEGER", "config": {"default": "4"}}}, interfaceOutputs={"n": {"dataFlowType": "INTEGER"}})  # fmt: skip
    async with foo.open() as tavern:
        error = (await tavern.invoke("workflow:one", {})).error
        given = await tavern.invoke("workflow:one", {"n": 4})
    assert error is not None
    assert error.message == "workflow one: the default of input 'n' takes INTEGER, got the text '4'"
    assert (error.fix, given.value) == ("give n, or correct interfaceInputs", 4)


async def test_the_log_says_which_plugin_changed_which_inputs_of_a_run_and_shows_no_secret(flows: Flows) -> None:
    class Hook:
        @hookimpl
        def tavern_before_workflow(self, inputs: dict[str, Any]) -> dict[str, Any]:
            return {**inputs, "text": "bye", "pin": "new-pin-77", "raw": b"xyz"}

    interface = {key: {"dataFlowType": "STRING", "required": True} for key in ("text", "pin")}
    interface |= {"raw": {"dataFlowType": "BINARY", "required": True}}
    text = {"type": "string"}
    foo = Foo(flows)
    foo.flow("one", [IN, OUT], ["i.text>o.text"], interfaceInputs=interface,
             interfaceOutputs={"text": {"dataFlowType": "STRING"}}, description="d")  # fmt: skip
    foo.tool("go", type="workflow", workflowId="flows/one.json", parameters={
        "type": "object", "properties": {"text": text, "raw": text, "pin": {"type": "string", "format": "password"}},
    })  # fmt: skip
    async with foo.open(Plugin(Hook(), name="hook")) as tavern:
        called = await tavern.invoke("foo:go", {"text": "hi", "pin": "old-pin-55", "raw": "YWJj"})
        story = tavern.logs.explain(called.call_id)
        [changed] = tavern.logs.records("WORKFLOW_CHANGED")
    assert called.value == "bye", called.error
    assert (changed.plugin, changed.data["changedBy"]) == ("hook", [{"plugin": "hook", "changed": "pin, raw, text"}])
    assert story is not None
    assert [(row["path"], row.get("before"), row["after"]) for row in story.diff] == [
        ("/inputs/pin", "***", "***"),
        ("/inputs/raw", "YWJj", "<bytes>"),
        ("/inputs/text", "hi", "bye"),
    ]


async def test_a_secret_input_that_a_hook_copies_into_another_input_is_not_in_the_log(flows: Flows) -> None:
    class Hook:
        @hookimpl
        def tavern_before_workflow(self, inputs: dict[str, Any]) -> dict[str, Any]:
            return {**inputs, "text": f"{inputs['text']} with {inputs['pin']}"}

    interface = {key: {"dataFlowType": "STRING", "required": True} for key in ("text", "pin")}
    text = {"type": "string"}
    foo = Foo(flows)
    foo.flow("one", [IN, OUT], ["i.text>o.text"], interfaceInputs=interface,
             interfaceOutputs={"text": {"dataFlowType": "STRING"}}, description="d")  # fmt: skip
    foo.tool("go", type="workflow", workflowId="flows/one.json", parameters={
        "type": "object", "properties": {"text": text, "pin": {"type": "string", "format": "password"}},
    })  # fmt: skip
    async with foo.open(Plugin(Hook(), name="hook")) as tavern:
        await tavern.invoke("foo:go", {"text": "hi", "pin": "orange-55-horse"})
        [changed] = tavern.logs.records("WORKFLOW_CHANGED")
    assert changed.data["diff"] == [{"plugin": "hook", "path": "/inputs/text", "before": "hi", "after": "hi with ***"}]
