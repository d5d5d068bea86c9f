"""Hooks on nodes and workflows see and change the same in a process of their own as in the host's."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Tavern
from tavern_core.contract.nodes import Skip
from tavern_core.errors import PolicyDenied
from tavern_core.isolation.node_codec import HOOK_VALUES, OpaqueValue
from tavern_core.kernel.hooks.argument_copies import copy_for_plugin
from tavern_core.model.node import NodeSpec, Slot
from tavern_core.model.run import NodeInfo, RunInfo
from tests.rows import each_row

from ..engine.workbench import flow
from ..host.workshop import Workshop

NODES = """
from tavern_core.contract.nodes import node

@node("n:raw")
def raw(text: str) -> bytes:
    "Gives bytes."
    return text.encode()

@node("n:size")
def size(data: bytes, rest: dict | None = None) -> int:
    "Counts bytes."
    return len(data)

@node("n:hidden")
def hidden() -> int:
    "Is left out."
    return 1
"""
HOOKS = """
import json
from dataclasses import replace
from tavern_core import deny, hookimpl

def tell(ctx, *said):
    with open(ctx.data_dir / "hooks.txt", "a", encoding="utf-8") as file:
        print(*said, file=file)

@hookimpl
def tavern_before_register_node(definition, owner, ctx):
    if definition.type == "n:hidden":
        return deny("not here")
    if definition.type == "n:size":
        slot = replace(definition.inputs["data"], display_name="Bytes to count")
        return replace(definition, description="Counted by another", inputs={**definition.inputs, "data": slot})

@hookimpl
def tavern_before_workflow(run, inputs, ctx):
    tell(ctx, "before", type(run).__name__, run.workflow, run.principal, run.state, json.dumps(dict(inputs), sort_keys=True))
    if inputs.get("text") == "forbidden":
        return deny("not that word")
    return {**inputs, "text": inputs["text"] + "!"}

@hookimpl
def tavern_after_workflow(run, outputs, ctx):
    tell(ctx, "after", run.state, json.dumps(dict(outputs), sort_keys=True))

@hookimpl
def tavern_before_patch(patch, workflow, ctx):
    if patch[0]["op"] == "remove":
        return deny("nothing is removed")
    return [*patch, {"op": "add", "path": "/description", "value": f"{len(workflow['nodes'])} nodes"}]

@hookimpl
def tavern_before_node(node, inputs, run, ctx):
    tell(ctx, "node", node.path, node.type, node.plugin, run.workflow, sorted((key, repr(value)) for key, value in inputs.items()))
    if node.type == "n:size":
        return {**inputs, "data": inputs["data"] + b"??"}

@hookimpl
def tavern_after_node(node, outputs, run, ctx):
    tell(ctx, "gave", node.path, sorted((key, repr(value)) for key, value in outputs.items()))
"""
PERMISSIONS = """permissions: {hooks: ["hook:server:workflow:before-execute", "hook:server:workflow:after-execute",
  "hook:server:node:before-execute", "hook:server:node:after-execute", "hook:server:nodemanager:before-register", "hook:server:workflow:before-patch"]}"""
FLOW = flow(
    {"i": "core:GroupInput", "raw": "n:raw", "size": "n:size", "o": "core:GroupOutput"},
    "i.text>raw.text raw.result>size.data size.result>o.count",
    interfaceInputs={"text": {"dataFlowType": "STRING"}},
    interfaceOutputs={"count": {"dataFlowType": "INTEGER"}},
)


@pytest.fixture(scope="module", params=["none", "process"])
def host(request: pytest.FixtureRequest) -> Iterator[Tavern]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root, pytest.MonkeyPatch.context() as patch:
        shop = Workshop(Path(root), patch)
        shop.folder("n", None, "nodes: {entry: more.py}", **{"more.py": NODES})
        folder = shop.folder("w", None, f"{PERMISSIONS}\nisolation: {request.param}")
        (folder / "__init__.py").write_text(HOOKS)
        tavern = shop.open()
        tavern.grant("w", all_requested=True)
        yield tavern
        shop.end()


def reported(host: Tavern) -> list[str]:
    file = host.logs.path.parents[1] / "data" / "w" / "hooks.txt"
    return file.read_text("utf-8").splitlines() if file.exists() else []


@pytest.mark.slow
def test_hooks_see_and_change_runs_and_nodes(host: Tavern) -> None:
    before = len(reported(host))
    result = host.workflows.run_sync(FLOW, {"text": "\u56db"})
    assert (result.ok, dict(result.outputs)) == (True, {"count": 6}), result.errors
    assert reported(host)[before:] == [
        'before RunInfo  host running {"text": "\\u56db"}',
        "node raw n:raw n  [('text', \"'\u56db!'\")]",
        "gave raw [('result', \"b'\\\\xe5\\\\x9b\\\\x9b!'\")]",
        "node size n:size n  [('data', \"b'\\\\xe5\\\\x9b\\\\x9b!'\")]",
        "gave size [('result', '6')]",
        'after complete {"count": 6}',
    ]
    changed = [(e.path, dict(e.data)) for e in host.workflows.events(result.run_id) if e.kind == "changed"]
    assert changed == [("", {"plugin": "w", "inputs": "text"}), ("size", {"plugin": "w", "inputs": "data"})]


@pytest.mark.slow
def test_hooks_refuse_runs_and_nodes(host: Tavern) -> None:
    with pytest.raises(PolicyDenied, match="not that word"):
        host.workflows.run_sync(FLOW, {"text": "forbidden"})
    types = {spec.type: spec for spec in host.nodes.list()}
    assert {"n:raw", "n:size", "core:Switch", "core:Map"} <= types.keys()
    assert "n:hidden" not in types
    size = types["n:size"]
    assert (size.description, size.inputs["data"].display_name) == ("Counted by another", "Bytes to count")


@pytest.mark.slow
def test_hooks_change_and_refuse_patches(host: Tavern) -> None:
    outcome = host.workflows.patch(FLOW, [{"op": "add", "path": "/nodes/n", "value": {"type": "core:Text"}}])
    assert (outcome.ok, outcome.changed_by, outcome.workflow.description) == (True, ("w",), "4 nodes"), outcome.problems
    with pytest.raises(PolicyDenied, match="nothing is removed"):
        host.workflows.patch(FLOW, [{"op": "remove", "path": "/nodes/raw"}])


SHOWN = NodeSpec(
    "n:x",
    inputs={"a": Slot("a", required=lambda config: bool(config)), "b": Slot("b", "STRING", config={"default": b"raw"})},
    outputs={"y": Slot("y", "INTEGER")},
    capabilities=frozenset({"read:fs"}),
    plugin="n",
    impl=object(),
)
THING = object()
INPUTS: dict[str, Any] = {"text": "a", "data": b"\0\xff", "none": Skip, "thing": THING, "deep": {"a": [1, None]}}


def back_and_forth(value: Any, known: dict[str, Any]) -> Any:
    """What the host has of a value that it showed and that came back as it was."""
    return HOOK_VALUES.decode(
        json.loads(json.dumps(HOOK_VALUES.encode(HOOK_VALUES.decode(HOOK_VALUES.encode(value), {})))), known
    )


@each_row(
    ("name", "value"),
    [
        ("run", RunInfo("r", "w", "p", "waiting")),
        ("node", NodeInfo("g/n", "t:X", {"a": [1]}, "t")),
        ("definition", copy_for_plugin(SHOWN)),
        ("inputs", INPUTS),
        ("inputs", {}),
        ("outputs", {"y": 3, "z": Skip}),
    ],
)
def test_what_comes_back_unchanged_is_what_was_shown(name: str, value: Any) -> None:
    assert back_and_forth(value, {name: value}) == value


def test_what_cannot_cross_is_handed_back_and_nothing_else() -> None:
    there = HOOK_VALUES.decode(HOOK_VALUES.encode(INPUTS), {})
    assert isinstance(there["thing"], OpaqueValue)
    assert repr(there["thing"]) == "<a object that stays in the host>"
    moved = {"other": there["thing"], "text": "b"}
    assert HOOK_VALUES.decode(HOOK_VALUES.encode(moved), {"inputs": INPUTS}) == {"other": THING, "text": "b"}
    foreign = HOOK_VALUES.decode(["values", {"x": ["stays", ["absent", "Secret"]]}], {"inputs": INPUTS})
    assert isinstance(foreign["x"], OpaqueValue)


def test_a_changed_node_type_keeps_what_did_not_cross() -> None:
    own = copy_for_plugin(SHOWN)
    there = HOOK_VALUES.decode(HOOK_VALUES.encode(own), {})
    slot = replace(there.inputs["a"], description="new")
    back = HOOK_VALUES.decode(
        HOOK_VALUES.encode(replace(there, inputs={**there.inputs, "a": slot}, category="c")), {"definition": own}
    )
    assert back.impl is own.impl
    assert (back.category, back.inputs["a"].description) == ("c", "new")
    assert back.inputs["a"].required is own.inputs["a"].required
    assert back.inputs["b"] == own.inputs["b"]


DAMAGED: list[Any] = [
    None, [], ["run"], ["run", None], ["run", ["a"]], ["run", ["a", "b", "c", "forged"]], ["run", [1, "b", "c", "running"]],
    ["node", ["a", "b", 3, "c"]], ["node", {"a": 1}], ["definition", None], ["definition", {}], ["definition", {"type": 3}],
    ["values", []], ["values", {"a": 3}], ["values", {"a": ["bytes", "*"]}], ["values", {"a": ["pickle", "x"]}],
    ["values", {"a": ["stays", "x"]}], ["values", {"a": ["stays", [[], "x"]]}], ["nothing", 3],
]  # fmt: skip


@each_row("packed", DAMAGED)
def test_a_forged_answer_is_a_value_error(packed: Any) -> None:
    with pytest.raises(ValueError):
        HOOK_VALUES.decode(packed, {"inputs": INPUTS, "definition": copy_for_plugin(SHOWN)})
