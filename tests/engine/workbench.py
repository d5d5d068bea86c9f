"""Workflows written briefly, and run by the engine alone, without a host."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tavern_core.flow.engine.plan_tables import prepare
from tavern_core.flow.engine.run import Run, RunHost, RunStart
from tavern_core.flow.engine.run_options import RunOptions
from tavern_core.graph.compile import CompileResult, compile_workflow
from tavern_core.graph.problems import FlowProblem
from tavern_core.kernel.execution.threads import ThreadPool
from tavern_core.kernel.nodes.node_signature_reading import NodeOwner, describe_nodes
from tavern_core.model.call import CallContext
from tavern_core.model.node import NodeSpec, Slot
from tavern_core.model.run import RunResult
from tavern_core.model.workflow import Workflow

CORE = {
    "core:GroupInput": NodeSpec("core:GroupInput"),
    "core:GroupOutput": NodeSpec("core:GroupOutput"),
    "core:NodeGroup": NodeSpec("core:NodeGroup"),
    "core:Map": NodeSpec(
        "core:Map",
        {"items": Slot("items", "ARRAY", required=True)},
        {"results": Slot("results", "ARRAY"), "count": Slot("count", "INTEGER")},
    ),
    "core:Loop": NodeSpec("core:Loop", outputs={"iterations": Slot("iterations", "INTEGER")}),
}


class Library:
    """Node types and workflows that a test knows."""

    def __init__(self, nodes: Iterable[Any] = (), workflows: Iterable[Workflow] = ()) -> None:
        found = describe_nodes(list(nodes), NodeOwner("t", "1"))
        self.types = CORE | {spec.type: spec for spec in found}
        self.flows = {flow.id: flow for flow in workflows}

    def node(self, type_: str) -> NodeSpec | None:
        return self.types.get(type_)

    def node_types(self) -> Iterable[str]:
        return self.types

    def why_no_node(self, type_: str) -> str:
        return f"install or enable the plugin {type_.partition(':')[0]!r}"

    def workflow(self, id_: str) -> Workflow | None:
        return self.flows.get(id_)

    def workflow_ids(self) -> Iterable[str]:
        return self.flows

    def problems_of(self, workflow: Workflow) -> Iterable[FlowProblem]:
        return ()


class Facilities:
    """Nodes under test reach nothing but a logger."""

    def logger(self, plugin: str) -> logging.Logger:
        return logging.getLogger(f"tavern.plugin.{plugin}")

    def llm(self, plugin: str, name: str, *_: Any) -> Any:
        raise LookupError(name)

    def service(self, plugin: str, name: str) -> Any:
        raise LookupError(name)

    async def invoke(self, *_: Any) -> Any:
        raise LookupError("no tools here")


def flow(nodes: Mapping[str, Any], edges: str = "", name: str = "", **rest: Any) -> Workflow:
    """A workflow: ``flow({"a": "t:Inc", "b": {"type": "t:Inc", "x": 1}}, "a.y>b.x")``.

    Of a node written as a mapping, `type`, `config` and `exec` are what they say and everything else are input values.
    """
    written = []
    for key, given in nodes.items():
        data = {"type": given} if isinstance(given, str) else dict(given)
        config = dict(data.pop("config", {}))
        if "exec" in data:
            config["$exec"] = data.pop("exec")
        orders = data.pop("orders", {})
        own = data.pop("data", {})
        written.append(
            {
                "id": key,
                "type": data.pop("type"),
                "configValues": config,
                "inputConnectionOrders": orders,
                "data": own,
                "inputValues": data,
            }
        )
    wires = []
    for at, wire in enumerate(edges.split()):
        source, target = wire.split(">")
        (a, b), (c, d) = source.split("."), target.split(".")
        wires.append({"id": f"e{at}", "source": a, "sourceHandle": b, "target": c, "targetHandle": d})
    data = {"nodes": written, "edges": wires, **rest}
    return Workflow.model_validate(data).model_copy(update={"id": name, "raw": data})


def group(workflow: str, **given: Any) -> dict[str, Any]:
    """A node that stands for another workflow."""
    config = given.pop("config", {})
    return {
        "type": given.pop("type", "core:NodeGroup"),
        "config": {"referencedWorkflowId": workflow, **config},
        **given,
    }


def compiled(workflow: Workflow, nodes: Iterable[Any] = (), workflows: Iterable[Workflow] = ()) -> CompileResult:
    return compile_workflow(workflow, Library(nodes, workflows))


def made(
    workflow: Workflow, nodes: Iterable[Any] = (), inputs: Mapping[str, Any] | None = None, workflows: Iterable[Workflow] = (),
    **options: Any,
) -> Run:  # fmt: skip
    """A run that was not begun. Problems of the workflow fail the test."""
    own = {name: options.pop(name) for name in ("cache", "answers", "around") if name in options}
    found = compiled(workflow, nodes, workflows)
    assert found.plan is not None, [str(problem) for problem in found.problems]
    return Run(
        prepare(found.plan), inputs or {}, host=RunHost(ThreadPool(8, "node"), Facilities()), context=CallContext(),
        options=RunOptions(**options), beginning=RunStart(**own),
    )  # fmt: skip


async def ran(
    workflow: Workflow, nodes: Iterable[Any] = (), inputs: Mapping[str, Any] | None = None, **options: Any
) -> RunResult:
    """What a run came to."""
    return await made(workflow, nodes, inputs, **options).execute()


def kinds(run: Run, path: str) -> list[str]:
    """What happened to one node."""
    return [event.kind for event in run.events() if event.path == path]


async def reported(run: Run, condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; looked at after each event of the run."""
    happened = asyncio.Event()
    stop = run.listen(happened.set)
    try:
        while not condition():
            await happened.wait()
            happened.clear()
    finally:
        stop()
