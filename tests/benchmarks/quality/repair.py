"""How many broken answers are repaired by what the report says alone.

    python -m tests.benchmarks.quality.repair [--held-out] [--seed N]

Valid workflows (those of the example plugin text-nodes, and generated ones) are written as the patch that makes them. Each
patch is broken in every way below, and the assistant gets it as the answer of a model. The "model" that repairs it knows
nothing but its own answer and the report: it writes the suggested name, the first allowed value, the operation of the fix.
A workflow counts as repaired if it is valid, has all node types and the whole interface of the original, and no warning,
after at most two repair rounds. `--held-out` takes workflows of other node types and shapes (`held_out.py`), which were not
looked at while the reports were written; `--seed` begins with other generated ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tavern_core import LLMAnswer, ScriptedLLM, Tavern, hookimpl
from tests.benchmarks.quality import held_out

ROOT: Final = Path(__file__).parents[3]
ROUNDS: Final = 2
GENERATED: Final = 24
Patch = list[dict[str, Any]]
Break = Callable[[Patch, random.Random, Mapping[str, Any]], Patch | str | None]
"""(patch, random, workflow) → the broken patch or answer; None: this workflow cannot be broken so."""


# Valid workflows ---------------------------------------------------------------------------------------------------------

_STEPS: Final[Mapping[str, tuple[str, str, Mapping[str, Any], str]]] = {
    "core:Case": ("text", "text", {"form": "upper"}, "STRING"),
    "core:Replace": ("text", "text", {"old": "a", "new": "b"}, "STRING"),
    "core:Join": ("parts", "text", {"separator": ", "}, "STRING"),
    "core:LLM": ("prompt", "text", {}, "STRING"),
    "core:Split": ("text", "parts", {}, "ARRAY"),
}
"""Type → its input, its output, further values, the type of the output."""


def generated(seed: int, types: Mapping[str, Any]) -> dict[str, Any]:
    """A chain with branches: texts come in, are changed step by step and go out."""
    drawn = random.Random(seed)
    inputs = [f"text{number}" for number in range(1, drawn.randint(1, 2) + 1)]
    nodes: list[dict[str, Any]] = [{"id": "start", "type": "core:GroupInput"}]
    edges: list[dict[str, Any]] = []
    given = [("start", key) for key in inputs]
    unused = list(given)
    for number in range(drawn.randint(2, 7)):
        type_ = drawn.choice([name for name in _STEPS if name in types and name != "core:Split"])
        taken, out, values, _ = _STEPS[type_]
        known = {key: value for key, value in values.items() if key in types[type_].inputs}
        name = f"{type_.partition(':')[2].lower()}{number}"
        nodes.append({"id": name, "type": type_, "inputValues": known})
        source = unused.pop(0) if unused else drawn.choice(given)
        edges.append(_edge(len(edges), source, (name, taken)))
        given.append((name, out))
        unused.append((name, out))
    nodes.append({"id": "end", "type": "core:GroupOutput"})
    outputs = {}
    for number, source in enumerate(unused, 1):
        outputs[f"result{number}"] = {"dataFlowType": "STRING"}
        edges.append(_edge(len(edges), source, ("end", f"result{number}")))
    slots = {key: {"dataFlowType": "STRING", "required": True} for key in inputs}
    return {
        "name": f"generated {seed}",
        "nodes": nodes,
        "edges": edges,
        "interfaceInputs": slots,
        "interfaceOutputs": outputs,
    }


def _edge(number: int, source: tuple[str, str], target: tuple[str, str]) -> dict[str, Any]:
    ends = {"source": source[0], "sourceHandle": source[1], "target": target[0], "targetHandle": target[1]}
    return {"id": f"e{number}", **ends}


def patch_of(workflow: Mapping[str, Any]) -> Patch:
    """The patch that makes a workflow from nothing."""
    found: Patch = []
    for section in ("interfaceInputs", "interfaceOutputs"):
        found += [_add(section, key, slot) for key, slot in (workflow.get(section) or {}).items()]
    for section, keys in (("nodes", ("type", "inputValues", "configValues", "data")), ("edges", _ENDS)):
        for item in workflow[section]:
            found.append(_add(section, item["id"], {key: item[key] for key in keys if item.get(key)}))
    return found


_ENDS: Final = ("source", "sourceHandle", "target", "targetHandle")


def _add(section: str, key: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": f"/{section}/{key}", "value": json.loads(json.dumps(value))}


def needs_of(workflow: Mapping[str, Any]) -> dict[str, Any]:
    """What a model that plans well says the request needs."""
    types = sorted({node["type"] for node in workflow["nodes"]})
    return {
        "inputs": list(workflow.get("interfaceInputs") or {}),
        "outputs": list(workflow.get("interfaceOutputs") or {}),
        "nodes": types,
    }


# Ways of breaking ----------------------------------------------------------------------------------------------------------


def _of(patch: Patch, section: str) -> list[dict[str, Any]]:
    return [operation for operation in patch if operation["path"].startswith(f"/{section}/")]


def _inner(patch: Patch) -> list[dict[str, Any]]:
    """Nodes that are not the ends of the workflow."""
    return [op for op in _of(patch, "nodes") if not op["value"]["type"].startswith("core:Group")]


def _without(patch: Patch, *gone: Mapping[str, Any]) -> Patch:
    return [operation for operation in patch if all(operation is not each for each in gone)]


def _name(operation: Mapping[str, Any]) -> str:
    return str(operation["path"]).rpartition("/")[2]


def _edges_of(patch: Patch, name: str) -> list[dict[str, Any]]:
    return [op for op in _of(patch, "edges") if name in (op["value"]["source"], op["value"]["target"])]


def _rare(patch: Patch, drawn: random.Random) -> dict[str, Any] | None:
    """An inner node whose type occurs once."""
    count = Counter(op["value"]["type"] for op in _of(patch, "nodes"))
    return _any([op for op in _inner(patch) if count[op["value"]["type"]] == 1], drawn)


def _any(found: Sequence[dict[str, Any]], drawn: random.Random) -> dict[str, Any] | None:
    return drawn.choice(found) if found else None


def node_left_out(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
    gone = _rare(patch, drawn)
    return None if gone is None else _without(patch, gone)


def node_and_edges_left_out(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
    gone = _rare(patch, drawn)
    return None if gone is None else _without(patch, gone, *_edges_of(patch, _name(gone)))


def input_left_out(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
    gone = _any(_of(patch, "interfaceInputs"), drawn)
    return None if gone is None else _without(patch, gone)


def output_left_out(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
    gone = _any(_of(patch, "interfaceOutputs"), drawn)
    return None if gone is None else _without(patch, gone)


def output_and_edge_left_out(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
    gone = _any(_of(patch, "interfaceOutputs"), drawn)
    if gone is None:
        return None
    return _without(patch, gone, *[op for op in _of(patch, "edges") if op["value"].get("targetHandle") == _name(gone)])


def end_left_out(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
    gone = _any([op for op in _of(patch, "nodes") if op["value"]["type"] == "core:GroupOutput"], drawn)
    return None if gone is None else _without(patch, gone)


def edge_left_out(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
    ends = {_name(op) for op in _inner(patch)}
    gone = _any([op for op in _of(patch, "edges") if op["value"]["target"] in ends], drawn)
    return None if gone is None else _without(patch, gone)


def edge_to_output_left_out(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
    ends = {_name(op) for op in _of(patch, "nodes") if op["value"]["type"] == "core:GroupOutput"}
    gone = _any([op for op in _of(patch, "edges") if op["value"]["target"] in ends], drawn)
    return None if gone is None else _without(patch, gone)


def cycle(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
    """An edge that begins at a later node instead."""
    inner = {_name(op) for op in _inner(patch)}
    for op in _of(patch, "edges"):
        later = [
            e
            for e in _of(patch, "edges")
            if e["value"]["source"] == op["value"]["target"] and e["value"]["target"] in inner
        ]
        if op["value"]["target"] in inner and later:
            end = later[0]["value"]["target"]
            out = next((e["value"]["sourceHandle"] for e in _of(patch, "edges") if e["value"]["source"] == end), None)
            if out is not None:
                return _edited(patch, op, source=end, sourceHandle=out)
    return None


def _edited(patch: Patch, operation: Mapping[str, Any], **value: Any) -> Patch:
    return [{**op, "value": {**op["value"], **value}} if op is operation else op for op in patch]


def trailing_comma(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> str:
    return _text(patch, workflow, indent=1).replace("}\n ]", "},\n ]")


def single_quotes(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> str:
    return repr({"patch": patch, "needs": needs_of(workflow)})


def cut_off(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> str:
    text = _text(patch, workflow)
    return text[: drawn.randint(len(text) // 3, len(text) - 2)]


def prose(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> str:
    return "Sure! First add a node for each step, then connect them one after the other."


def whole_workflow(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> str:
    return json.dumps(workflow)


def misspelt_reference(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
    op = _any(_of(patch, "edges"), drawn)
    return None if op is None else _edited(patch, op, source=_typo(op["value"]["source"]))


def dangling_edge(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
    op = _any(_of(patch, "edges"), drawn)
    return None if op is None else [*patch, _add("edges", "extra", {**op["value"], "target": "postprocessing"})]


def wrong_output(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
    inner = {_name(op) for op in _inner(patch)}
    op = _any([op for op in _of(patch, "edges") if op["value"]["source"] in inner], drawn)
    return None if op is None else _edited(patch, op, sourceHandle="output")


def wrong_input(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
    inner = {_name(op) for op in _inner(patch)}
    op = _any([op for op in _of(patch, "edges") if op["value"]["target"] in inner], drawn)
    return None if op is None else _edited(patch, op, targetHandle=_typo(op["value"]["targetHandle"]))


def _wrong_kind(*targets: str) -> Break:
    """An edge that brings a list to one of these types, which need a text."""

    def broken(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
        inner = {_name(op): op["value"]["type"] for op in _inner(patch)}
        op = _any([op for op in _of(patch, "edges") if inner.get(op["value"]["target"]) in targets], drawn)
        if op is None:
            return None
        extra = [_add("nodes", "pieces", {"type": "core:Split", "inputValues": {"text": "a,b"}})]
        return [*extra, *_edited(patch, op, source="pieces", sourceHandle="parts")]

    return broken


def same_name_twice(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
    op = _any(_inner(patch), drawn)
    return None if op is None else [*patch, json.loads(json.dumps(op))]


def misspelt_type(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
    op = _any(_inner(patch), drawn)
    return None if op is None else _edited(patch, op, type=_typo(op["value"]["type"]))


def type_without_namespace(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
    op = _any(_inner(patch), drawn)
    return None if op is None else _edited(patch, op, type=op["value"]["type"].partition(":")[2])


def type_left_out(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
    op = _rare(patch, drawn)
    if op is None:
        return None
    return [{**o, "value": {k: v for k, v in o["value"].items() if k != "type"}} if o is op else o for o in patch]


def _valued(type_: str, **values: Any) -> Break:
    def broken(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
        op = _any([op for op in _inner(patch) if op["value"]["type"] == type_], drawn)
        return None if op is None else _edited(patch, op, inputValues={**op["value"].get("inputValues", {}), **values})

    return broken


def out_of_range(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch:
    return [*patch, _add("nodes", "pause", {"type": "core:Delay", "inputValues": {"ms": -5}})]


def wrong_rev(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch:
    return [{"op": "test", "path": "/rev", "value": 7}, *patch]


def no_slash(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
    op = _any(patch, drawn)
    return [{**o, "path": o["path"][1:]} if o is op else o for o in patch]


def unknown_operation(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
    op = _any(patch, drawn)
    return [{**o, "op": "insert"} if o is op else o for o in patch]


def own_ids(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
    op = _any(_inner(patch), drawn)
    return None if op is None else _edited(patch, op, id=_name(op), position={"x": 1, "y": 2})


def own_key(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
    op = _any(_inner(patch), drawn)
    return None if op is None else _edited(patch, op, inputs={"text": "a"})


def replace_what_is_new(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
    op = _any(_inner(patch), drawn)
    return [{**o, "op": "replace"} if o is op else o for o in patch]


def wrong_section(patch: Patch, drawn: random.Random, workflow: Mapping[str, Any]) -> Patch | None:
    op = _any(_of(patch, "edges"), drawn)
    return (
        None if op is None else [{**o, "path": o["path"].replace("/edges/", "/edge/")} if o is op else o for o in patch]
    )


def _typo(word: str) -> str:
    """A word with one letter less, near its end."""
    return word[:-2] + word[-1] if len(word) > 3 else word + "s"


WAYS: Final[Mapping[str, Break]] = {
    "required node type left out": node_left_out,
    "node and its edges left out": node_and_edges_left_out,
    "input variable missing": input_left_out,
    "output missing": output_left_out,
    "output and its edge missing": output_and_edge_left_out,
    "core:GroupOutput left out": end_left_out,
    "edge to a required input missing": edge_left_out,
    "edge to an output missing": edge_to_output_left_out,
    "cycle": cycle,
    "not JSON: trailing comma": trailing_comma,
    "not JSON: single quotes": single_quotes,
    "not JSON: cut off": cut_off,
    "prose instead of a patch": prose,
    "whole workflow instead of a patch": whole_workflow,
    "unknown reference": misspelt_reference,
    "dangling edge": dangling_edge,
    "wrong output handle": wrong_output,
    "wrong input handle": wrong_input,
    "wrong type of an edge": _wrong_kind("core:Case", "core:LLM"),
    "duplicate id": same_name_twice,
    "unknown node type": misspelt_type,
    "node type without namespace": type_without_namespace,
    "node without a type": type_left_out,
    "value out of range": out_of_range,
    "wrong enum": _valued("core:Case", form="UPPERCASE"),
    "wrong type of a value": _valued("core:Replace", old=3),
    "value of an unknown input": _valued("core:Case", language="en"),
    "wrong rev": wrong_rev,
    "path without a slash": no_slash,
    "unknown operation": unknown_operation,
    "replace of what is new": replace_what_is_new,
    "unknown section": wrong_section,
    "id and position in a value": own_ids,
    "unknown key of a node": own_key,
}
HELD_OUT_WAYS: Final[Mapping[str, Break]] = {
    **WAYS,
    "wrong type of an edge": _wrong_kind(*held_out.TEXT_TAKERS),
    "wrong enum": _valued("core:HttpFetch", method="FETCH"),
    "wrong type of a value": _valued("core:JsonGet", path=3),
    "value of an unknown input": _valued("core:JsonWrite", pretty=True),
}


def _text(patch: Patch, workflow: Mapping[str, Any], indent: int | None = None) -> str:
    return json.dumps({"patch": patch, "needs": needs_of(workflow)}, ensure_ascii=False, indent=indent)


# The repairer ---------------------------------------------------------------------------------------------------------------

_LINE: Final = re.compile(r"^\d+\. \[(\w+)\] (?:operation (\d+)(?:, )?)?(/[^ :]*)?:? ?(.*)$")
_OPERATION: Final = re.compile(r'\{"op": ')
_MEANT: Final = re.compile(r"did you mean '([^']*)'")
_LISTED: Final = re.compile(r"(?:that fit|there are|it has|allowed|do not occur): '?([^',;)]+)'?")
_LEAST: Final = re.compile(r"must be at least (-?[\d.]+)")
_WRONG: Final = re.compile(r"(?:got|no output|no input|no key|operation) '([^']*)'")


class Repairer:
    """Changes its last answer as the report says, and knows nothing else.

    Args:
        meant: what it wanted to say, for answers that are not JSON: it can say that again in the right form.
    """

    def __init__(self, answer: str, meant: str) -> None:
        self._answer, self._meant = answer, meant

    def __call__(self, messages: Sequence[Mapping[str, Any]]) -> str:
        if messages[-1]["role"] == "user" and len(messages) > 2:
            self._answer = self._corrected(str(messages[-1]["content"]))
        return self._answer

    def _corrected(self, report: str) -> str:
        lines = [found.groups() for text in report.splitlines() if (found := _LINE.match(text))]
        if any(code in ("BAD_JSON", "NO_PATCH", "WHOLE_WORKFLOW", "CUT_OFF") for code, *_ in lines):
            return self._meant  # the report asks for another form of the same
        data = json.loads(self._answer)
        patch: Patch = data["patch"]
        dropped: set[int] = set()
        for code, number, place, text in lines:
            at = int(number) if number else None
            self._follow(code, at, place or "", text, patch, dropped)
        data["patch"] = [operation for at, operation in enumerate(patch) if at not in dropped]
        return json.dumps(data, ensure_ascii=False)

    def _follow(self, code: str, at: int | None, place: str, text: str, patch: Patch, dropped: set[int]) -> None:
        """One line of a report."""
        if given := list(_operations(text)):
            for operation in given:
                _put(patch, operation)
        elif "leave operation" in text or "leave the operation out" in text:
            dropped.add(at or 0)
        elif "remove the edge" in text and "did you mean" not in text and at is not None:
            dropped.add(at)
        elif code == "UNUSED_NODE":
            gone = place.rpartition("/")[2]  # with its edges, as the fix says
            ends = [{op["path"][7:]} if op["path"].startswith("/nodes/") else _ends(op) for op in patch]
            dropped.update(number for number, names in enumerate(ends) if gone in names)
        elif 'write "op": "add"' in text and at is not None:
            patch[at]["op"] = "add"
        elif code == "BAD_POINTER" and at is not None:
            patch[at]["path"] = text.rpartition("write '")[2].partition("'")[0]
        elif code == "UNKNOWN_OP" and at is not None:
            patch[at]["op"] = _choice(text)
        elif at is not None:
            _rename(code, place, text, patch[at])


def _ends(operation: Mapping[str, Any]) -> set[Any]:
    value = operation.get("value")
    return {value.get("source"), value.get("target")} if isinstance(value, dict) else set()


def _operations(text: str) -> Iterator[dict[str, Any]]:
    """The operations that a fix spells out."""
    for found in _OPERATION.finditer(text):
        try:
            yield json.JSONDecoder().raw_decode(text, found.start())[0]
        except ValueError:  # a pattern such as {"op": ...}
            continue


def _put(patch: Patch, operation: dict[str, Any]) -> None:
    """Add an operation, or replace the one on the same path; nodes and slots come before edges."""
    for at, known in enumerate(patch):
        if known["path"] == operation["path"]:
            patch[at] = operation
            return
    patch.append(operation)


def _choice(text: str) -> str:
    found = _MEANT.search(text) or _LISTED.search(text)
    return found[1].strip() if found else ""


def _rename(code: str, place: str, text: str, operation: dict[str, Any]) -> None:
    """Write another name or value at the place of the problem."""
    path = str(operation["path"])
    value = operation.get("value")
    inner = place[len(path) :].split("/")[1:] if place.startswith(path) else []
    if code == "UNKNOWN_KEY" and not inner:
        operation["path"] = path.replace(f"/{place.split('/')[1]}/", f"/{_choice(text)}/", 1)
        return
    if not isinstance(value, dict):
        return
    if code == "UNKNOWN_KEY":
        value.pop(inner[0], None)
    elif code == "MISSING_TYPE":
        value["type"] = _choice(text)
    elif code == "UNKNOWN_INPUT":
        value["inputValues"].pop(inner[-1], None)
    elif code == "BAD_VALUE":
        least, wrong = _LEAST.search(text), value["inputValues"][inner[-1]]
        number = float(least[1]) if least else 0
        value["inputValues"][inner[-1]] = int(number) if least else _choice(text) or str(wrong)
    elif inner and (choice := _choice(text)):
        value[inner[0]] = choice


# Measuring ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One way of breaking."""

    way: str
    broken: int
    by_round: tuple[int, ...]
    """How many were repaired after 0, 1, 2 rounds."""
    left: tuple[str, ...] = ()
    """Workflows that were not."""

    @property
    def repaired(self) -> int:
        return sum(self.by_round)


class Broken:
    """A plugin whose model gives one answer and repairs it."""

    def __init__(self) -> None:
        self.say: Callable[[Sequence[Mapping[str, Any]]], str] = lambda messages: ""
        self.model = ScriptedLLM(lambda messages: LLMAnswer(self.say(messages)))

    @hookimpl
    def tavern_register_llms(self) -> dict[str, Any]:
        return {"broken": self.model}


def examples() -> list[dict[str, Any]]:
    """The workflows of the example plugin text-nodes."""
    folder = ROOT / "example_plugins" / "text-nodes" / "tavern_plugin_text_nodes" / "workflows"
    return [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]


async def measured(
    count: int = GENERATED, ways: Mapping[str, Break] = WAYS, *, first: int = 0, is_held_out: bool = False
) -> list[Row]:
    """One row for each way of breaking.

    Args:
        first: the seed of the first generated workflow.
        is_held_out: the workflows of `held_out.py` alone.
    """
    sys.path.insert(0, str(ROOT / "example_plugins" / "text-nodes"))
    import tavern_plugin_text_nodes

    plugin = Broken()
    config = {"plugins": {"roots": [], "entryPoints": False}}
    with tempfile.TemporaryDirectory() as home:
        async with Tavern.open(config, plugins=[plugin, tavern_plugin_text_nodes], home=home) as tavern:
            types = {spec.type: spec for spec in await tavern.nodes.listed()}
            seeds = range(first, first + count)
            if is_held_out:
                valid = [held_out.workflow(seed) for seed in seeds]
            else:
                valid = [*examples(), *(generated(seed, types) for seed in seeds)]
            return [await _row(tavern, plugin, way, make, valid) for way, make in ways.items()]


async def _row(tavern: Tavern, plugin: Broken, way: str, make: Break, valid: Sequence[Mapping[str, Any]]) -> Row:
    rounds: Counter[int] = Counter()
    left: list[str] = []
    for seed, workflow in enumerate(valid):
        patch = patch_of(workflow)
        broken = make(json.loads(json.dumps(patch)), random.Random(seed), workflow)
        if broken is None:
            continue
        text = broken if isinstance(broken, str) else _text(broken, workflow)
        plugin.say = Repairer(text, _text(patch, workflow))
        proposal = await tavern.assistant.propose("make this workflow", model="broken", rounds=ROUNDS)
        if proposal.ok and not proposal.warnings and _is_whole(proposal.workflow.raw, workflow):
            rounds[len(proposal.rounds) - 1] += 1
        else:
            left.append(str(workflow.get("name")))
    by_round = tuple(rounds[number] for number in range(ROUNDS + 1))
    return Row(way, sum(by_round) + len(left), by_round, tuple(left))


def _is_whole(made: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether nothing that the request needs is gone."""
    have, need = ({"types": Counter(n["type"] for n in w["nodes"]), **{k: set(w.get(k) or {}) for k in _INTERFACE}} for w in (made, wanted))  # fmt: skip
    return not need["types"] - have["types"] and all(have[key] == need[key] for key in _INTERFACE)


_INTERFACE: Final = ("interfaceInputs", "interfaceOutputs")


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    lines = ["| way of breaking | broken | as it is | 1 round | 2 rounds | repaired |", "|---|---|---|---|---|---|"]
    for row in rows:
        share = f"{100 * row.repaired / row.broken:.0f} %" if row.broken else "–"
        lines.append(f"| {row.way} | {row.broken} | {' | '.join(map(str, row.by_round))} | {share} |")
    broken, repaired = sum(row.broken for row in rows), sum(row.repaired for row in rows)
    totals = " | ".join(str(sum(row.by_round[at] for row in rows)) for at in range(ROUNDS + 1))
    return "\n".join([*lines, f"| **all** | {broken} | {totals} | **{100 * repaired / broken:.1f} %** |"])


def main() -> None:
    parser = argparse.ArgumentParser(description="How many broken answers are repaired by what the report says alone.")
    parser.add_argument(
        "--held-out", action="store_true", help="workflows that were not used while the reports were written"
    )
    parser.add_argument("--seed", type=int, help="of the first generated workflow")
    args = parser.parse_args()
    first = args.seed if args.seed is not None else held_out.FIRST_SEED if args.held_out else 0
    ways = HELD_OUT_WAYS if args.held_out else WAYS
    rows = asyncio.run(measured(ways=ways, first=first, is_held_out=args.held_out))
    print(table(rows))
    for row in rows:
        if row.left:
            print(f"not repaired, {row.way}: {', '.join(row.left)}", file=sys.stderr)


if __name__ == "__main__":
    main()
