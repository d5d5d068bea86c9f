"""What annotations of nodes say of values: inputs are built and judged, outputs are judged where they are given, and a value has the
same type whether its node just ran, its answer was kept, or its run is taken up again; in the host and in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Tavern
from tavern_core.errors import WorkflowInvalid

TYPES = """
import dataclasses, datetime as dt, decimal, enum, uuid
from typing import Annotated, Any, Literal, Optional, Sequence, TypedDict, Union
from pydantic import BaseModel, Field
from tavern_core import Final, Node, NodeContext, Out, Port, Stream, node

class Item(BaseModel):
    name: str
    n: int = 0

@dataclasses.dataclass
class Record:
    a: int

class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"

class Options(TypedDict):
    x: int
"""
INPUTS: list[tuple[str, Any, str]] = [
    # annotation, plain data, what the node sees; what begins with "!" is a part of the refusal
    ("list[Item]", [{"name": "a"}], "[Item(name='a', n=0)]"),
    ("list[Item]", [{"nam": "a"}], "!name"),
    ("list[Item]", [3], "!0"),
    ("list[Item]", {"name": "a"}, "!takes ARRAY, got an object"),
    ("dict[str, Item]", {"k": {"name": "a"}}, "{'k': Item(name='a', n=0)}"),
    ("dict[str, Item]", {"k": 1}, "!k"),
    ("list[list[Item]]", [[{"name": "a"}], []], "[[Item(name='a', n=0)], []]"),
    ("list[list[Item]]", [{"name": "a"}], "!0"),
    ("dict[str, list[Item]]", {"k": [{"name": "a"}]}, "{'k': [Item(name='a', n=0)]}"),
    ("Item | None", {"name": "a"}, "Item(name='a', n=0)"),
    ("Optional[list[Item]]", [{"name": "a"}], "[Item(name='a', n=0)]"),
    ("list[Item | None]", [None, {"name": "a"}], "[None, Item(name='a', n=0)]"),
    ("int | list[Item]", [{"name": "a"}], "[Item(name='a', n=0)]"),
    ("int | str", 3.5, "!integer"),
    ("list[int]", [1, 2], "[1, 2]"),
    ("list[int]", [1.0], "[1]"),
    ("list[int]", ["1"], "!0"),
    ("list[int]", [True], "!0"),
    ("list[float]", [1], "[1.0]"),
    ("dict[str, int]", {"a": 1}, "{'a': 1}"),
    ("dict[str, int]", {"a": "x"}, "!a"),
    ("dict[int, str]", {"1": "a"}, "{1: 'a'}"),
    ("Sequence[int]", [1], "[1]"),
    ("tuple[int, str]", [1, "a"], "(1, 'a')"),
    ("tuple[int, str]", [1], "!"),
    ("set[int]", [1], "{1}"),
    ("list[Literal['a', 'b']]", ["a"], "['a']"),
    ("list[Literal['a', 'b']]", ["c"], "!0"),
    ("list[Color]", ["red"], "[<Color.RED: 'red'>]"),
    ("list[Color]", ["green"], "!0"),
    ("Literal[1, 'a']", "a", "'a'"),
    ("Options", {"x": 1}, "{'x': 1}"),
    ("Options", {"x": "a"}, "!x"),
    ("list[Record]", [{"a": 1}], "[Record(a=1)]"),
    ("dt.datetime", "2020-01-02T03:04:05", "datetime.datetime(2020, 1, 2, 3, 4, 5)"),
    ("list[dt.date]", ["2020-01-02"], "[datetime.date(2020, 1, 2)]"),
    ("list[dt.date]", ["yesterday"], "!0"),
    ("decimal.Decimal", "1.50", "Decimal('1.50')"),
    ("list[bytes]", ["/w=="], "[b'\\xff']"),
    ("Annotated[str, Field(max_length=2)]", "ab", "'ab'"),
    ("Annotated[str, Field(max_length=2)]", "abc", "!2"),
    ("Annotated[int, Field(gt=1)]", 1, "!greater than 1"),
    ("Annotated[list[Item], Field(min_length=1)]", [], "!1 item"),
    ("Annotated[list[Item], Port(multi=True)]", [{"name": "a"}], "[Item(name='a', n=0)]"),
    ("Annotated[list[list[int]], Port(multi=True)]", [[1], ["x"]], "!1"),
]
OUTPUTS: list[tuple[str, str, Any]] = [
    # annotation, what the node returns, what flows on; a text that begins with "!" is a part of the refusal
    ("int", "'no'", "!output 'out' is declared INTEGER, got the text 'no'"),
    ("int", "True", "!output 'out' is declared INTEGER, got the boolean true"),
    ("str", "None", "!output 'out' does not fit its declaration: must be string, got null"),
    ("str | None", "None", None),
    ("float", "3", 3.0),
    ("float", "float('nan')", "!FLOAT"),
    ("list[Item]", "[Item(name='a')]", [{"name": "a", "n": 0}]),
    ("list[Item]", "[1]", "!/0: must be object, got integer 1"),
    ("list[Item]", "[{'n': 1}]", "!/0/name: is required"),
    ("list[Item]", "[object()]", "!out"),
    ("dict[str, Item]", "{'k': Item(name='a')}", {"k": {"name": "a", "n": 0}}),
    ("dict[str, list[Item]]", "{'k': [Item(name='a')]}", {"k": [{"name": "a", "n": 0}]}),
    ("Item", "Item.model_construct(name=3)", "!/name: must be string, got integer 3"),
    ("Item | None", "None", None),
    ("list[int]", "(1, 2)", [1, 2]),
    ("list[int]", "['a']", "!/0: must be integer"),
    ("tuple[int, str]", "(1, 'a')", [1, "a"]),
    ("set[int]", "{1}", [1]),
    ("Color", "Color.RED", "red"),
    ("Color", "'green'", '!must be "red" or "blue"'),
    ("Literal['a', 'b']", "'c'", '!must be "a" or "b"'),
    ("dt.datetime", "dt.datetime(2020, 1, 2)", "2020-01-02T00:00:00"),
    ("Record", "Record(1)", {"a": 1}),
    ("Options", "{'x': 'a'}", "!/x: must be integer"),
    ("Annotated[int, Field(gt=1)]", "1", "!greater than 1"),
    ("dict", "Item(name='a')", {"name": "a", "n": 0}),
    ("dict", "{1: (2, {3})}", {"1": [2, [3]]}),
    ("Any", "[Item(name='a'), Color.RED, dt.date(2020, 1, 2), (1,)]", [{"name": "a", "n": 0}, "red", "2020-01-02", [1]]),
    ("bytes", "'text'", "!is declared bytes"),
]  # fmt: skip


def module() -> str:
    """A module of nodes: one for each row."""
    parts = [TYPES]
    for at, (annotation, _, _) in enumerate(INPUTS):
        parts.append(f"@node('p:In{at}')\nasync def in{at}(value: {annotation}) -> str:\n    return repr(value)\n")
    for at, (annotation, returned, _) in enumerate(OUTPUTS):
        parts.append(
            f"@node('p:Out{at}')\nasync def out{at}() -> Out(out={annotation}):\n    return {{'out': {returned}}}\n"
        )
    return "\n".join(parts)


MORE = f'''
{TYPES}
@node("p:Make", cache=True)
async def make() -> Out(items=list[Item], record=Record, pair=tuple[int, str], when=dt.datetime, color=Color, anything=Any):
    """Gives one of each."""
    return Out(items=[Item(name="a")], record=Record(1), pair=(1, "x"), when=dt.datetime(2020, 1, 2), color=Color.BLUE,
               anything=[Item(name="z"), (1, 2), {{3}}])

@node("p:See")
async def see(items: list[Item], record: Record, pair: tuple[int, str], when: dt.datetime, color: Color, anything: Any, loose: Any,
              text: str, ctx: NodeContext, asks: bool = False) -> str:
    """Says what it was given."""
    if asks:
        await ctx.ask({{"type": "string"}})
    return repr((items, record, pair, when, color, anything, loose, text))

class Lazy(Node):
    type = "p:Lazy"

    def needs(self, ctx, *, first: list[Item], **_: Any) -> list[str]:
        return ["second"] if first[0].n == 0 else []

    def fingerprint(self, ctx, *, first: list[Item], **_: Any) -> str:
        return first[0].name

    async def run(self, ctx: NodeContext, first: list[Item], second: Annotated[list[Item], Port(lazy=True)],
                  third: Annotated[list[Item], Port(lazy=True)]) -> str:
        return repr((first, second, await ctx.need("third")))

@node("p:Chunks")
async def chunks(bad: bool = False) -> Out(items=Stream[Item], count=int):
    yield Item(name="a")
    yield {{"nam": 1}} if bad else Item(name="b")
    yield Final(count=2)

@node("p:Read")
async def read(items: Stream[Item]) -> str:
    return repr([item async for item in items])

@node("p:Count")
async def count(items: list[Item], by: dict[str, Item] = {{}}, limits: list[int] = (1,), extra: Item | None = None) -> int:
    """Counts."""
    return len(items)
'''
TOOL = "{id: count, description: Counts, implementation: {type: node, nodeType: 'p:Count'}}"


class Place:
    def __init__(self, root: Path, isolation: str) -> None:
        self.home = root / "home"
        folder = root / "plugins" / "p"
        (folder / "nodes").mkdir(parents=True)
        (folder / "plugin.yaml").write_text(
            f'name: p\nversion: "1.0"\nnodes: {{entry: nodes}}\ntools: [{TOOL}]\nisolation: {isolation}\n'
        )
        (folder / "__init__.py").write_text("")
        (folder / "nodes" / "rows.py").write_text(module())
        (folder / "nodes" / "more.py").write_text(MORE)

    def open(self) -> Tavern:
        return Tavern.open(
            {"plugins": {"roots": [str(self.home.parent / "plugins")], "entryPoints": False}}, home=self.home
        )


@pytest.fixture(params=["none", "process"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(tmp_path, request.param)


@pytest.fixture
def tavern(place: Place) -> Iterator[Tavern]:
    with place.open() as host:
        yield host


def flow(*nodes: dict[str, Any], edges: str = "") -> dict[str, Any]:
    """A workflow; edges as ``a.out>b.in``."""
    made = []
    for at, edge in enumerate(edges.split()):
        source, target = (end.split(".") for end in edge.split(">"))
        made.append(
            {
                "id": str(at),
                "source": source[0],
                "sourceHandle": source[1],
                "target": target[0],
                "targetHandle": target[1],
            }
        )
    return {"nodes": list(nodes), "edges": made}


def at_a_wire(tavern: Tavern, at: int, value: Any) -> str:
    source = {"id": "v", "type": "core:Value", "inputValues": {"value": value}}
    handle = "value__0" if "multi" in INPUTS[at][0] else "value"
    sources, edges = [source], f"v.value>n.{handle}"
    if "multi" in INPUTS[at][0]:
        sources = [
            {"id": f"v{n}", "type": "core:Value", "inputValues": {"value": item}} for n, item in enumerate(value)
        ]
        edges = " ".join(f"v{n}.value>n.value__{n}" for n in range(len(value)))
    result = tavern.workflows.run_sync(flow(*sources, {"id": "n", "type": f"p:In{at}"}, edges=edges), keep=False)
    if result.errors:
        [error] = result.errors
        assert (error.path, error.kind, error.slot) == ("n", "INPUT_SCHEMA_INVALID", "value")
        return "!" + error.message
    return str(result.outputs["n"]["result"])


def in_a_file(tavern: Tavern, at: int, value: Any) -> str:
    try:
        result = tavern.workflows.run_sync(
            flow({"id": "n", "type": f"p:In{at}", "inputValues": {"value": value}}), keep=False
        )
    except WorkflowInvalid as error:
        [problem] = tavern.workflows.check(flow({"id": "n", "type": f"p:In{at}", "inputValues": {"value": value}}))
        assert (problem.code, problem.node, problem.slot) == ("BAD_VALUE", "n", "value")
        return f"!{error}"
    if result.errors:  # what no schema says, and only the process of the node knows
        return "!" + result.errors[0].message
    return str(result.outputs["n"]["result"])


@pytest.mark.slow
def test_inputs_become_what_annotations_say_or_are_refused_by_name(tavern: Tavern) -> None:
    for at, (annotation, value, expected) in enumerate(INPUTS):
        found = at_a_wire(tavern, at, value)
        if expected.startswith("!"):
            assert found.startswith("!"), (annotation, value, found)
            assert expected[1:] in found, (annotation, found)
            assert in_a_file(tavern, at, value).startswith("!"), (annotation, value)
        else:
            assert found == expected, annotation
            assert in_a_file(tavern, at, value) == expected, annotation


@pytest.mark.slow
def test_outputs_are_judged_at_the_node_that_gives_them_and_flow_on_as_plain_data(tavern: Tavern) -> None:
    for at, (annotation, returned, expected) in enumerate(OUTPUTS):
        keep = flow({"id": "n", "type": f"p:Out{at}"}, {"id": "v", "type": "core:Value"}, edges="n.out>v.value")
        result = tavern.workflows.run_sync(keep, keep=False)
        if isinstance(expected, str) and expected.startswith("!"):
            error = next((error for error in result.errors if error.path == "n"), None)
            if error is not None and error.kind == "TOOL_ERROR":  # what cannot leave its process is refused there
                assert returned in ("[object()]", "float('nan')"), (annotation, error)
                assert "cannot cross to another process" in error.message
                continue
            assert error is not None, (annotation, returned)
            assert error.kind == "OUTPUT_SCHEMA_INVALID", (annotation, error)
            assert expected[1:] in error.message, (annotation, error)
            assert f"p:Out{at}" in error.message
            assert "'out'" in error.hint
            assert result.states["v"] == "skipped"
        else:
            assert result.ok, (annotation, result.errors)
            assert result.outputs["v"]["value"] == expected, (annotation, returned)
            assert type(result.outputs["v"]["value"]) is type(expected), (annotation, returned)


def seen(**more: Any) -> dict[str, Any]:
    """Values of every kind, and a node that says what it was given."""
    wires = [f"m.{key}>s.{key}" for key in ("items", "record", "pair", "when", "color", "anything")]
    make = {"id": "m", "type": "p:Make", **more.pop("make", {})}
    wires += ["m.items>s.loose", "m.when>s.text"]
    return flow(make, {"id": "s", "type": "p:See", "inputValues": more}, edges=" ".join(wires))


SEEN = (
    "([Item(name='a', n=0)], Record(a=1), (1, 'x'), datetime.datetime(2020, 1, 2, 0, 0), <Color.BLUE: 'blue'>, "
    "[{'name': 'z', 'n': 0}, [1, 2], [3]], [{'name': 'a', 'n': 0}], '2020-01-02T00:00:00')"
)


@pytest.mark.slow
def test_a_value_has_the_same_type_fresh_and_cached(place: Place) -> None:
    for _ in range(2):
        with place.open() as tavern:
            for cache in ("none", "run", "session", "disk"):
                document = seen(make={"configValues": {"$exec": {"cache": cache}}})
                for _ in range(2):
                    result = tavern.workflows.run_sync(document)
                    assert not result.errors, (cache, result.errors)
                    assert result.outputs["s"]["result"] == SEEN, cache
                assert result.states["m"] == ("complete" if cache in ("none", "run") else "cached"), cache


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_value_has_the_same_type_in_a_run_that_is_taken_up(place: Place) -> None:
    async with place.open() as tavern:
        run = await tavern.workflows.start(seen(asks=True))
        async for event in run.events():
            if event.kind == "ask":
                run.cancel()
        assert (await run).states["m"] == "complete"
    async with place.open() as tavern:
        result = await tavern.workflows.resume(run.id, {"s#1": "go"})
        assert not result.errors, result.errors
        assert (result.states["m"], result.outputs["s"]["result"]) == ("cached", SEEN)


@pytest.mark.slow
def test_lazy_inputs_and_those_of_other_methods_are_built_as_well(tavern: Tavern) -> None:
    values = [{"id": key, "type": "core:Value", "inputValues": {"value": [{"name": key}]}} for key in ("a", "b", "c")]
    document = flow(*values, {"id": "n", "type": "p:Lazy"}, edges="a.value>n.first b.value>n.second c.value>n.third")
    result = tavern.workflows.run_sync(document)
    assert not result.errors, result.errors
    assert result.outputs["n"]["result"] == "([Item(name='a', n=0)], [Item(name='b', n=0)], [Item(name='c', n=0)])"
    values[2]["inputValues"]["value"] = [{"nam": 1}]
    [error] = tavern.workflows.run_sync(document).errors
    assert (error.path, error.kind, error.slot) == ("n", "INPUT_SCHEMA_INVALID", "third")


@pytest.mark.slow
def test_chunks_are_judged_where_they_are_written(tavern: Tavern) -> None:
    document = flow({"id": "w", "type": "p:Chunks"}, {"id": "r", "type": "p:Read"}, edges="w.items>r.items")
    assert tavern.workflows.run_sync(document).outputs["r"]["result"] == "[Item(name='a', n=0), Item(name='b', n=0)]"
    document["nodes"][0]["inputValues"] = {"bad": True}
    errors = {error.path: error for error in tavern.workflows.run_sync(document).errors}
    assert errors["w"].kind == "OUTPUT_SCHEMA_INVALID"
    assert "output 'items' does not fit its declaration: /name: is required" in errors["w"].message


@pytest.mark.slow
def test_the_tool_of_a_node_publishes_and_judges_what_the_annotations_say(tavern: Tavern) -> None:
    schema = tavern.tool_schema("p:count")["parameters"]
    assert schema["properties"]["items"] == {"type": "array", "items": {"$ref": "#/$defs/Item"}}
    assert schema["properties"]["by"]["additionalProperties"] == {"$ref": "#/$defs/Item"}
    assert schema["properties"]["limits"] == {"type": "array", "items": {"type": "integer"}, "default": [1]}
    assert schema["properties"]["extra"]["properties"]["n"] == {"type": "integer", "default": 0}
    assert schema["$defs"]["Item"]["required"] == ["name"]
    assert tavern.invoke_sync("p:count", {"items": [{"name": "a"}, {"name": "b"}]}).value == 2
    for wrong in (
        {"items": [{"nam": 1}]},
        {"items": [1]},
        {"items": [], "by": {"k": 1}},
        {"items": [], "limits": ["x"]},
    ):
        result = tavern.invoke_sync("p:count", wrong)
        assert result.error is not None
        assert result.error.kind == "INPUT_SCHEMA_INVALID", wrong
    [entry] = [entry for entry in tavern.nodes.catalogue() if entry["id"] == "p:Count"]
    assert json.loads(json.dumps(entry))["inputs"]["limits"]["schema"] == {
        "type": "array",
        "items": {"type": "integer"},
    }


def test_the_outputs_of_a_workflow_are_judged_by_its_interface(tavern: Tavern) -> None:
    document = flow(
        {"id": "v", "type": "core:Value", "inputValues": {"value": "x"}},
        {"id": "o", "type": "core:GroupOutput"},
        edges="v.value>o.n",
    )
    result = tavern.workflows.run_sync({**document, "interfaceOutputs": {"n": {"dataFlowType": "INTEGER"}}})
    [error] = result.errors
    assert (error.path, error.kind, error.slot, error.message) == (
        "o",
        "INPUT_SCHEMA_INVALID",
        "n",
        "input 'n': takes INTEGER, got the text 'x'",
    )
