"""Classes and streams of isolated nodes: the same results as in the host, and nothing left behind when they end badly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tavern_core import CallContext, Tavern
from tavern_core.errors import WorkflowInvalid

from ..host.workshop import Workshop

pytestmark = pytest.mark.slow

NODES = '''
import asyncio, os, time
from typing import Annotated, Any, AsyncIterator
from pydantic import BaseModel
from tavern_core.contract.nodes import Final, Node, NodeContext, Out, Port, Skip, Stream, node

NOTES = os.environ.get("TMPDIR", "/tmp")

@node("p:Words")
async def words(text: str) -> Out(words=Stream[str], count=int):
    parts = text.split()
    for part in parts:
        yield part
    yield Final(count=len(parts))

@node("p:Numbers")
def numbers(up_to: int = 3):
    for number in range(up_to):
        yield number
numbers.__annotations__["return"] = AsyncIterator[int]

@node("p:Two")
async def two() -> Out(a=Stream[str], b=Stream[bytes]):
    yield {"a": "x"}
    yield {"b": b"\\x00y"}
    yield {"a": "z", "b": b"w"}
    yield Final()

@node("p:Upper")
async def upper(words: Stream[str]) -> AsyncIterator[str]:
    async for word in words:
        yield word.upper()

@node("p:Join")
async def join(words: Stream[Any], until: int = 99) -> str:
    found = []
    async for word in words:
        found.append(word.decode() if isinstance(word, bytes) else str(word))
        if len(found) == until:
            break
    return " ".join(found)

@node("p:Both")
async def both(a: Stream[str], b: Stream[bytes], ctx: NodeContext) -> str:
    ctx.progress(1, 2)
    first = [chunk async for chunk in b]
    return f"{[chunk async for chunk in a]} {first} {(await ctx.invoke('core:none', {})).ok}"

@node("p:Many")
async def many(words: Annotated[list[Stream[str]], Port(multi=True)]) -> str:
    return " ".join([chunk async for one in words for chunk in _in(one)]) if False else str(len(words))

@node("p:Breaks")
async def breaks(after: int = 2) -> AsyncIterator[str]:
    for number in range(after):
        yield str(number)
    raise ValueError("no more")

@node("p:Pid")
def pid() -> int:
    return os.getpid()

@node("p:Never")
async def never(after: int = 20) -> AsyncIterator[str]:
    number = 0
    while True:
        yield str(number)
        number += 1

@node("p:Unfinished")
async def unfinished() -> Out(chunks=Stream[str], text=str):
    yield "a"

@node("p:Skips")
async def skips() -> Out(chunks=Stream[str], text=str):
    yield "a"
    yield Final(text=Skip)

@node("p:Slow")
async def slow() -> AsyncIterator[str]:
    yield "a"
    await asyncio.sleep(600)

@node("p:Spins")
async def spins() -> AsyncIterator[str]:
    yield "a"
    while True: pass

@node("p:Stuck")
def stuck() -> AsyncIterator[str]:
    yield "a"
    while True: pass

@node("p:Dies")
async def dies() -> AsyncIterator[str]:
    yield "a"
    os._exit(3)

@node("p:Holds")
async def holds(words: Stream[str]) -> str:
    async for word in words:
        await asyncio.sleep(600)
    return ""

@node("p:Counted")
async def counted() -> AsyncIterator[int]:
    with open(os.environ["TMPDIR"] + "/count", "w") as file:
        for number in range(1000):
            file.write("x")
            file.flush()
            yield number

@node("p:Forges")
async def forges(how: str) -> AsyncIterator[str]:
    from tavern_core.isolation.worker import streams
    from tavern_core.isolation import stream_window
    yield "a"
    call = next(o for o in __import__("gc").get_objects() if type(o) is streams.StreamingCall)
    for _ in range(10 * stream_window.WINDOW if how == "chunks" else 1):  # the host may hand on some before it has all
        call.send({"chunks": {"chunk": ["json", "x"]}, "took": {"took": 0, "count": 5}, "far": {"took": 99, "count": 1},
                  "less": {"took": 0, "count": -3}, "left": {"left": -1}, "none": {}, "id": {"id": 77, "chunk": ["json", 1]},
                  "tag": {"chunk": ["nothing", 1]}, "text": {"chunk": "text"}, "final": {"ok": ["final", 7]}, "word": {"ok": 3}}[how])
    await asyncio.sleep(600)

class Point(BaseModel):
    x: int

@node("p:Points")
async def points(bad: bool = False) -> AsyncIterator[dict]:
    yield {"x": 1}
    yield {"x": "no"} if bad else {"x": "2"}

@node("p:Point")
def point(x: int = 1) -> dict:
    return {"x": x}

@node("p:Sums")
async def sums(points: Stream[Point], more: Annotated[list[Point], Port(multi=True)] = ()) -> int:
    return sum([point.x async for point in points]) + sum(point.x for point in more)

class Pick(Node):
    """Takes what it needs."""
    type = "p:Pick"
    def __init__(self):
        self.asked = 0
    def needs(self, ctx, *, which, **_):
        self.asked += 1
        return [which]
    async def run(self, ctx: NodeContext, which: str, a: Annotated[str, Port(lazy=True)] = "", b: Annotated[str, Port(lazy=True)] = "") -> Out(text=str, asked=int):
        return Out(text=f"{which}={a}{b} {ctx.type}", asked=self.asked)

class Sized(Node):
    type = "p:Sized"
    version = 2
    def validate(self, inputs, config):
        return "n is too large" if inputs["n"] > 5 else None
    def upgrade(self, node, version):
        return {**node, "inputValues": {"n": 3}}
    def run(self, n: int = 1) -> int:
        return n

class Plain(Node):
    type = "p:Plain"
    made = 0
    def __init__(self):
        Plain.made += 1
    def run(self, n: int = 1) -> int:
        self.n = getattr(self, "n", 0) + n
        return self.n

class Counts(Node):
    type = "p:Counts"
    async def run(self, words: Stream[str]) -> Out(chunks=Stream[int], total=int):
        self.total = 0
        async for word in words:
            self.total += len(word)
            yield self.total
        yield Final(total=self.total)

class Stamped(Node):
    type = "p:Stamped"
    version = 2
    cache = True
    runs = 0
    def fingerprint(self, ctx, *, n, **_):
        return n // 10
    @classmethod
    def validate(cls, inputs, config):
        if inputs.get("n") == 13:
            yield "13 is not a number"
    @classmethod
    def upgrade(cls, node, version):
        return {**node, "inputValues": {"n": 7}} if version < 2 else node
    def run(self, n: int = 1) -> Out(n=int, runs=int):
        Stamped.runs += 1
        return Out(n=n, runs=Stamped.runs)

@node("p:Wants")
async def wants(ctx: NodeContext, a: Annotated[str, Port(lazy=True)] = "") -> AsyncIterator[str]:
    yield "before"
    yield await ctx.need("a")

@node("p:Nothing")
def nothing() -> str:
    return Skip

class Cross(Node):
    type = "p:Cross"
    def needs(self, ctx, **inputs):
        raise KeyError("needs")
    async def run(self, a: Annotated[str, Port(lazy=True)] = "") -> str:
        return a
'''
MANIFEST = "nodes: {entry: more.py}"


def node(name: str, type_: str, **inputs: Any) -> dict[str, Any]:
    version = inputs.pop("version", None)
    return {"id": name, "type": type_, "inputValues": inputs, **({"typeVersion": version} if version else {})}


def flow(*nodes: dict[str, Any], edges: str = "", out: str) -> dict[str, Any]:
    """A workflow whose outputs are `out`: ``name=node.output …``."""
    wanted = dict(pair.split("=") for pair in out.split())
    pairs = [pair.split(">") for pair in edges.split()] + [[source, f"out.{name}"] for name, source in wanted.items()]
    streams = {name for name in wanted if name.startswith("s_")}
    return {
        "nodes": [*nodes, {"id": "out", "type": "core:GroupOutput"}],
        "edges": [
            dict(
                zip(
                    ("id", "source", "sourceHandle", "target", "targetHandle"),
                    (f"e{n}", *a.split("."), *b.split(".")),
                    strict=True,
                )
            )
            for n, (a, b) in enumerate(pairs)
        ],
        "interfaceOutputs": {
            name: {"dataFlowType": "WILDCARD", **({"isStream": True} if name in streams else {})} for name in wanted
        },
    }


def words(count: int) -> str:
    return " ".join(f"w{n}" for n in range(count))


FLOWS: dict[str, dict[str, Any]] = {
    "a stream and a last answer": flow(node("w", "p:Words", text="a b c"), out="s_words=w.words count=w.count"),
    "a stream of nothing": flow(node("w", "p:Words", text=""), out="s_words=w.words count=w.count"),
    "far more than the window": flow(
        node("w", "p:Words", text=words(500)), node("u", "p:Upper"), node("j", "p:Join", until=10_000),
        edges="w.words>u.words u.result>j.words", out="text=j.result",
    ),
    "large chunks": flow(node("w", "p:Words", text=f"{'x' * 2_000_000} {'y' * 900_000}"), node("j", "p:Join"), edges="w.words>j.words", out="text=j.result"),
    "a sync generator": flow(node("n", "p:Numbers", up_to=40), node("j", "p:Join"), edges="n.result>j.words", out="text=j.result"),
    "two streams, one after the other": flow(node("t", "p:Two"), node("b", "p:Both"), edges="t.a>b.a t.b>b.b", out="text=b.result"),
    "a reader that has enough": flow(
        node("w", "p:Words", text=words(300)), node("j", "p:Join", until=3), edges="w.words>j.words", out="text=j.result count=w.count"
    ),
    "a writer that breaks": flow(node("w", "p:Breaks", after=40), node("j", "p:Join"), edges="w.result>j.words", out="text=j.result"),
    "a writer that breaks, and nobody reads": flow(node("w", "p:Breaks"), node("p", "p:Plain"), out="s_x=w.result n=p.result"),
    "models in a stream and from several edges": flow(
        node("p", "p:Points"), node("a", "p:Point", x=10), node("b", "p:Point", x=20), node("s", "p:Sums"),
        edges="p.result>s.points a.result>s.more__0 b.result>s.more__1", out="sum=s.result",
    ),
    "a chunk that is not a model": flow(node("p", "p:Points", bad=True), node("s", "p:Sums"), edges="p.result>s.points", out="sum=s.result"),
    "no Final": flow(node("w", "p:Unfinished"), out="s_x=w.chunks text=w.text"),
    "Final with Skip": flow(node("w", "p:Skips"), out="s_x=w.chunks text=w.text"),
    "a class that asks for what it needs": flow(
        node("a", "p:Words", text="x y"), node("j", "p:Join"), node("p", "p:Pick", which="b", a="1"),
        edges="a.words>j.words j.result>p.b", out="text=p.text asked=p.asked",
    ),
    "a class, one object a run": flow(node("a", "p:Plain", n=2), node("b", "p:Plain", n=5), out="a=a.result b=b.result"),
    "a class that streams both ways": flow(
        node("w", "p:Words", text=words(60)), node("c", "p:Counts"), edges="w.words>c.words", out="s_c=c.chunks total=c.total"
    ),
    "a lazy input that never comes": flow(node("n", "p:Nothing"), node("w", "p:Wants"), edges="n.result>w.a", out="s_x=w.result"),
    "needs that fail": flow(node("c", "p:Cross"), out="text=c.result"),
    "a fingerprint": flow(node("s", "p:Stamped", n=4, version=2), out="n=s.n runs=s.runs"),
    "the same fingerprint again": flow(node("s", "p:Stamped", n=4, version=2), out="n=s.n runs=s.runs"),
    "an upgrade": flow(node("s", "p:Stamped", n=4, version=1), out="n=s.n"),
    "a value that validate refuses": flow(node("s", "p:Stamped", n=13, version=2), out="n=s.n"),
    "a plain method that validates": flow(node("s", "p:Sized", n=13, version=2), out="n=s.result"),
    "a plain method that upgrades": flow(node("s", "p:Sized", n=13, version=1), out="n=s.result"),
}  # fmt: skip


def seen(host: Tavern, document: dict[str, Any]) -> Any:
    """What a run came to, without what differs from run to run."""
    try:
        result = host.workflows.run_sync(document)
    except WorkflowInvalid as error:
        return [str(finding) for finding in error.findings]
    errors = {e.path: [e.kind, e.message, e.slot] for e in result.errors}
    return json.loads(json.dumps([result.state, dict(result.outputs), errors], default=str))


def opened(workshop: Workshop, *kinds: str, config: dict[str, Any] | None = None) -> dict[str, Tavern]:
    """A host for each tier, with the nodes of above."""
    hosts = {}
    for isolation in kinds:
        workshop.home = workshop.root / isolation
        workshop.plugins = workshop.root / f"plugins-{isolation}"
        folder = workshop.folder("p", None, f"{MANIFEST}\nisolation: {isolation}", **{"more.py": NODES})
        (folder / "__init__.py").write_text("")
        hosts[isolation] = workshop.open(config=config)
    return hosts


@pytest.mark.slow
def test_classes_and_streams_give_the_same(workshop: Workshop) -> None:
    hosts = opened(workshop, "none", "process")
    found = {
        isolation: {name: seen(host, document) for name, document in FLOWS.items()} for isolation, host in hosts.items()
    }
    for name in FLOWS:
        assert found["process"][name] == found["none"][name], name
    assert found["none"]["models in a stream and from several edges"][:2] == ["complete", {"sum": 33}]
    assert found["none"]["a plain method that validates"] == ["BAD_VALUE: 's' (p:Sized): n is too large"]
    assert found["none"]["a plain method that upgrades"][:2] == ["complete", {"n": 3}]
    assert found["none"]["a chunk that is not a model"][2]["s"][0] == "INPUT_SCHEMA_INVALID"


ENDINGS = {
    # how a node ends → (its flow, kind of the error, what the message says, does its process live on)
    "cancelled at its deadline": ("p:Slow", {}, "TIMEOUT", "", True),
    "spinning": ("p:Spins", {}, "TIMEOUT", "", False),
    "a thread that never ends": ("p:Stuck", {}, "TIMEOUT", "", False),
    "its process dies": ("p:Dies", {}, "UPSTREAM_ERROR", "exited with code 3", False),
    "chunks beyond the window": ("p:Forges", {"how": "chunks"}, "UPSTREAM_ERROR", "more than it may be ahead", False),
    "taken what was not given": ("p:Forges", {"how": "took"}, "UPSTREAM_ERROR", "was stopped", False),
    "streams it does not have": ("p:Forges", {"how": "far"}, "UPSTREAM_ERROR", "was stopped", False),
    "less than nothing": ("p:Forges", {"how": "less"}, "UPSTREAM_ERROR", "was stopped", False),
    "a stream of a negative number": ("p:Forges", {"how": "left"}, "UPSTREAM_ERROR", "the number of a stream", False),
    "no message at all": ("p:Forges", {"how": "none"}, "UPSTREAM_ERROR", "was stopped", False),
    "a message of another call": (
        "p:Forges",
        {"how": "id"},
        "UPSTREAM_ERROR",
        "an answer without a request",
        False,
    ),
    "a chunk that is none": ("p:Forges", {"how": "text"}, "UPSTREAM_ERROR", "of an isolated plugin sent", None),
    "a Final that is none": ("p:Forges", {"how": "final"}, "UPSTREAM_ERROR", "of an isolated plugin sent", None),
    "an answer that is none": ("p:Forges", {"how": "word"}, "UPSTREAM_ERROR", "of an isolated plugin sent", None),
}


def pid_of(host: Tavern) -> int:
    result = host.workflows.run_sync({"nodes": [node("p", "p:Pid")], "edges": []})
    assert result.ok, result.errors
    return int(result.outputs["p"]["result"])


@pytest.fixture(scope="module")
def isolated(module_shop: Workshop) -> Tavern:
    return opened(module_shop, "process")["process"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ENDINGS)
def test_a_stream_that_ends_badly_is_reported_and_the_next_one_works(isolated: Tavern, how: str) -> None:
    type_, inputs, kind, message, lives = ENDINGS[how]
    host = isolated
    host.plugins.reload_sync("p")  # a process that has had no other call
    before = pid_of(host)
    writer = {
        **node("w", type_, **inputs),
        "configValues": {"$exec": {"timeoutMs": 700 if kind == "TIMEOUT" else 20_000}},
    }
    result = host.workflows.run_sync(flow(writer, node("j", "p:Join"), edges="w.result>j.words", out="text=j.result"))
    reported = {e.path: (e.kind, e.message) for e in result.errors}
    assert (result.state, reported["w"][0], message in reported["w"][1]) == ("error", kind, True), reported
    assert lives is None or (pid_of(host) == before) == lives
    assert host.workflows.run_sync(FLOWS["a stream and a last answer"]).outputs["count"] == 3


@pytest.mark.slow
@pytest.mark.anyio
async def test_cancelled_runs_leave_neither_lanes_nor_objects_behind(workshop: Workshop) -> None:
    host = opened(workshop, "process", config={"limits": {"threads": 1}})["process"]  # four lanes of a kind
    for _ in range(12):
        handle = await host.workflows.start(
            flow(node("n", "p:Never"), node("h", "p:Holds"), edges="n.result>h.words", out="text=h.result")
        )
        async for event in handle.events():
            if event.kind == "chunk":
                break
        handle.cancel()
        assert (await handle).state == "cancelled"
    result = await host.workflows.run(FLOWS["far more than the window"])
    assert (result.state, len(result.outputs["text"].split())) == ("complete", 500)


@pytest.mark.anyio
async def test_a_slow_reader_holds_its_writer_up(workshop: Workshop) -> None:
    host = opened(workshop, "process")["process"]
    handle = await host.workflows.start(
        flow(node("n", "p:Counted"), node("h", "p:Holds"), edges="n.result>h.words", out="text=h.result")
    )
    async for event in handle.events():
        if event.kind == "chunk" and event.data.get("number") == 20:
            break
    written = (workshop.root / "process" / "data" / "p" / "count").stat().st_size
    handle.cancel()
    await handle
    assert 20 <= written <= 100


ASKS = """
from tavern_core.contract.nodes import Node, NodeContext, node
from typing import AsyncIterator

@node("p:Asks")
async def asks(ctx: NodeContext) -> str:
    try:
        return str((await ctx.service("net").fetch("http://127.0.0.1:9/"))["status"])
    except Exception as error:
        return str(error)

@node("p:AsksOn")
async def asks_on(ctx: NodeContext) -> AsyncIterator[str]:
    for _ in range(2):
        yield await asks(ctx)
"""
REACHES = """nodes: {entry: more.py}
permissions: {services: {use: [net]}, capabilities: [{name: read:web, scope: ["127.0.0.1:9"]}]}
"""


@pytest.mark.slow
@pytest.mark.parametrize(("type_", "out"), [("p:Asks", "x"), ("p:AsksOn", "s_x")])
def test_a_node_calls_in_the_name_of_the_caller_of_the_workflow(workshop: Workshop, type_: str, out: str) -> None:
    found = {}
    for isolation in ("none", "process"):
        workshop.home = workshop.root / isolation
        workshop.plugins = workshop.root / f"plugins-{isolation}"
        folder = workshop.folder("p", None, f"{REACHES}\nisolation: {isolation}", **{"more.py": ASKS})
        (folder / "__init__.py").write_text("")
        workshop.grant("p")
        host = workshop.open()
        document = flow(node("n", type_), out=f"{out}=n.result")
        narrow = CallContext(
            principal="user:a", permissions=frozenset({"read:web"}), scopes={"read:web": ("example.org",)}
        )
        nothing = CallContext(principal="user:b", permissions=frozenset({"read:fs"}))
        found[isolation] = [
            str(host.workflows.run_sync(document, context=context).outputs[out]) for context in (None, narrow, nothing)
        ]
    assert found["process"] == found["none"]
    assert ["cannot be reached" in said for said in found["none"]] == [True, False, False], found
