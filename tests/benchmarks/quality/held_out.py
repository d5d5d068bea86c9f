"""Workflows and values for `repair.py` that were not used while the reports were written: other node types, types of data and shapes.

python -m tests.benchmarks.quality.repair --held-out
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

FIRST_SEED: Final = 1_000
_STEPS: Final[Mapping[str, tuple[Mapping[str, str], str, str, Mapping[str, Any]]]] = {
    "core:Ask": ({"prompt": "STRING"}, "answer", "STRING", {}),
    "core:Delay": ({"value": "WILDCARD"}, "value", "WILDCARD", {"ms": 5}),
    "core:HttpFetch": ({"url": "STRING"}, "text", "STRING", {"method": "POST"}),
    "core:JsonGet": ({"value": "WILDCARD"}, "value", "WILDCARD", {"path": "a.b"}),
    "core:JsonParse": ({"text": "STRING"}, "value", "WILDCARD", {}),
    "core:JsonSet": ({"target": "WILDCARD", "value": "WILDCARD"}, "value", "WILDCARD", {"path": "a"}),
    "core:JsonWrite": ({"value": "WILDCARD"}, "text", "STRING", {"indent": 2}),
    "core:Length": ({"value": "WILDCARD"}, "length", "INTEGER", {}),
    "core:Split": ({"text": "STRING"}, "parts", "ARRAY", {"separator": ","}),
}
"""Type → its connected inputs, its output and the type of that, further values."""
_INPUTS: Final = ("STRING", "INTEGER", "ARRAY", "OBJECT")
TEXT_TAKERS: Final = ("core:Ask", "core:HttpFetch", "core:JsonParse", "core:Split")


def workflow(seed: int) -> dict[str, Any]:
    """Several inputs of different types, joins of two branches, and an output for each loose end."""
    drawn = random.Random(seed)
    slots = {f"arg{n}": drawn.choice(_INPUTS) for n in range(1, drawn.randint(2, 4))} | {"topic": "STRING"}
    nodes: list[dict[str, Any]] = [{"id": "entry", "type": "core:GroupInput"}]
    edges: list[dict[str, Any]] = []
    given = [("entry", key, type_) for key, type_ in slots.items()]
    unused = list(given)

    def connect(source: tuple[str, str, str], target: str, handle: str) -> None:
        ends = {"source": source[0], "sourceHandle": source[1], "target": target, "targetHandle": handle}
        edges.append({"id": f"w{len(edges)}", **ends})
        if source in unused:
            unused.remove(source)

    for number in range(drawn.randint(3, 9)):
        type_ = drawn.choice(list(_STEPS))
        inputs, out, made, values = _STEPS[type_]
        name = f"step-{number}"
        nodes.append({"id": name, "type": type_, "inputValues": dict(values)})
        for handle, wanted in inputs.items():
            fitting = [source for source in unused if _fits(source[2], wanted)]
            connect(drawn.choice(fitting or [s for s in given if _fits(s[2], wanted)]), name, handle)
        given.append((name, out, made))
        unused.append(given[-1])
    nodes.append({"id": "exit", "type": "core:GroupOutput"})
    outputs = {}
    for number, source in enumerate(list(unused), 1):
        outputs[f"part{number}"] = {"dataFlowType": source[2]}
        connect(source, "exit", f"part{number}")
    interface = {key: {"dataFlowType": type_, "required": True} for key, type_ in slots.items()}
    return {
        "name": f"held out {seed}", "nodes": nodes, "edges": edges, "interfaceInputs": interface, "interfaceOutputs": outputs,
    }  # fmt: skip


def _fits(given: str, wanted: str) -> bool:
    return "WILDCARD" in (given, wanted) or given == wanted or (given, wanted) == ("INTEGER", "STRING")
