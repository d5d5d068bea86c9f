"""What a patch of a large workflow costs, step by step, and how long a layout takes.

python tests/benchmarks/report.py --only patch
"""

from __future__ import annotations

import copy
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tavern_core import Tavern
from tavern_core.graph.layout import layout
from tavern_core.graph.patch import apply_patch
from tavern_core.graph.patch_ids import with_ids
from tavern_core.kernel.manifest.workflow_file_codec import workflow_of
from tavern_core.model.workflow import Workflow

CONDITIONS = (
    "audit on, where there is a host; chain of nodes, 1 MB of JSON; 100 operations of five kinds; CPU time; any CPU"
)
MB = 2_470
"""Nodes of a workflow of 1 MB."""
ROUNDS = 15


def chain(nodes: int) -> dict[str, Any]:
    """About 400 bytes a node, with its edge."""
    return {
        "nodes": [
            {
                "id": f"n{at}",
                "type": "core:Case",
                "position": {"x": at % 50 * 280, "y": at // 50 * 120},
                "displayName": f"Node {at}",
                "inputValues": {"form": "upper", **({"text": "start"} if at == 0 else {})},
                "configValues": {"note": "x" * 100, "more": [1, 2, {"at": at}]},
            }
            for at in range(nodes)
        ],
        "edges": [
            {"id": f"e{at}", "source": f"n{at}", "sourceHandle": "text", "target": f"n{at + 1}", "targetHandle": "text"}
            for at in range(nodes - 1)
        ],
    }


def operations(count: int, nodes: int) -> list[dict[str, Any]]:
    """Add a node, connect it, change a value, remove a node, test a value; the result has no errors."""
    found: list[dict[str, Any]] = []
    for at in range(count // 5):
        wire = {"source": f"new{at}", "sourceHandle": "text", "target": f"c{at}", "targetHandle": "text"}
        found += [
            {"op": "add", "path": f"/nodes/new{at}", "value": {"type": "core:Text", "inputValues": {"text": "hi"}}},
            {"op": "add", "path": f"/nodes/c{at}", "value": {"type": "core:Case"}},
            {"op": "add", "path": f"/edges/to{at}", "value": wire},
            {"op": "replace", "path": f"/nodes/n{at * 7}/inputValues/form", "value": "lower"},
            {"op": "remove", "path": f"/nodes/n{nodes - 1 - at}"},
        ]
    return found


def cpu(job: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Milliseconds of CPU time, the median of several rounds."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        job()
        times.append((time.process_time() - began) * 1e3)
    return statistics.median(times)


def random_workflow(nodes: int, edges: int) -> Workflow:
    dice = random.Random(1)
    ends = [sorted(dice.sample(range(nodes), 2)) for _ in range(edges)]
    wires = [{"id": f"e{at}", "source": f"n{a}", "target": f"n{b}"} for at, (a, b) in enumerate(ends)]
    return workflow_of({"nodes": [{"id": f"n{at}", "type": "core:Text"} for at in range(nodes)], "edges": wires})


def row(name: str, value: float, most: float | None = None, against: str = "", **more: Any) -> dict[str, Any]:
    """A figure in milliseconds, and its ratio to the most that it may be."""
    ratio = None if most is None else value / most
    shown = against or (f"{most:g} ms" if most is not None else "")
    target = 1 if most is not None else None
    return {"name": name, "value": value, "unit": "ms", "against": shown, "ratio": ratio, "target": target, **more}


def applying() -> list[dict[str, Any]]:
    """The steps before the check."""
    workflow, double = workflow_of(chain(MB)), workflow_of(chain(2 * MB))
    patch = operations(100, MB)
    assert 0.95e6 < len(json.dumps(workflow.raw)) < 1.1e6
    done = apply_patch(workflow, patch)
    once, twice = cpu(lambda: apply_patch(workflow, patch)), cpu(lambda: apply_patch(double, operations(100, 2 * MB)))
    more = cpu(lambda: apply_patch(workflow, operations(200, MB)))
    return [
        row("copy.deepcopy of the document", cpu(lambda: copy.deepcopy(workflow.raw))),
        row("apply 100 operations", once, 8),
        row("the same, a workflow of 2 MB", twice, 2.2 * once, "2.2 times 1 MB"),
        row("the same, 200 operations", more, 2.2 * once, "2.2 times 100 operations"),
        row("draw the ids", cpu(lambda: with_ids(done, 1))),
        row("apply one operation", cpu(lambda: apply_patch(workflow, patch[:1]))),
    ]


def governed(folder: Path) -> list[dict[str, Any]]:
    """The whole of a patch, with the check of the result, the layout of new nodes, the words and the file."""
    (folder / "flows").mkdir()
    with Tavern.open({"workflows": {"roots": [str(folder / "flows")]}}, home=folder / "home") as tavern:
        workflow, patch = tavern.workflows.find(chain(MB)), operations(100, MB)
        assert tavern.workflows.patch(workflow, patch, seed=1).ok
        fresh = [workflow.model_copy() for _ in range(5)]
        checked = cpu(lambda: tavern.workflows.check(fresh.pop()), rounds=5)
        whole = cpu(lambda: tavern.workflows.patch(workflow, patch, seed=1), rounds=5)
        session = tavern.workflows.session(workflow)
        one = [{"op": "replace", "path": "/nodes/n5/inputValues/form", "value": "title"}]
        single = cpu(lambda: session.apply(one), rounds=5)
        edits = chain(MB)

        def edit() -> None:
            with tavern.workflows.edit(edits).batch():
                pass

        def edit_often() -> None:
            editor = tavern.workflows.edit(edits)
            with editor.batch():
                for at in range(100):
                    editor.set_input(f"n{at}", "form", "lower")

        turns = [(cpu(edit, rounds=1), cpu(edit_often, rounds=1)) for _ in range(6)]
        opened, often = (min(times) for times in zip(*turns, strict=True))  # the collector decides between one and two
        return [
            row("the editor: open, and an empty batch, with two checks", opened),
            row("the same with 100 edits in the batch", often, 1.5 * opened, "1.5 times the empty one"),
            row("check of the result alone", checked),
            row("the whole patch: check, layout, words", whole),
            row("a session: apply one operation, with check and event", single),
        ]


def layouts() -> list[dict[str, Any]]:
    """Layouts from nothing, and of new nodes."""
    found = []
    for edges in (499, 1_000, 3_000):
        workflow = random_workflow(500, edges)
        conditions = f"no host; 500 nodes, {edges:,} random edges; CPU time; any CPU"
        found.append(row("layout", cpu(lambda workflow=workflow: layout(workflow)), 50, conditions=conditions))  # type: ignore[misc]
    return found


def rows() -> list[dict[str, Any]]:
    """The figures, for report.py."""
    with tempfile.TemporaryDirectory() as folder:
        return [*applying(), *governed(Path(folder)), *layouts()]
