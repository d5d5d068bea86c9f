"""The record of a run, node by node: built from its events, its outputs and the workflow that ran."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tavern_core.contract.nodes import Skip
from tavern_core.flow.engine.node_outputs import Outputs
from tavern_core.flow.engine.plan_tables import PreparedPlan
from tavern_core.flow.engine.sqlite_run_store import StoredRun
from tavern_core.graph.slot_compatibility import convert_value
from tavern_core.model.node import ABSENT
from tavern_core.model.run import FINAL_STATES, NodeRecord, RunEvent, RunRecord

_STATES: Final = FINAL_STATES | {"queued", "running"}
_ASKING: Final = {"ask": "waiting", "answered": "running"}


def _noted(events: Iterable[RunEvent]) -> dict[str, dict[str, Any]]:
    """Path → the facts about a node in the events."""
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        if not event.path:
            continue
        if event.kind == "queued":
            found[event.path] = {"state": "queued"}  # of a resumed run: it begins again
        node = found.setdefault(event.path, {"state": "queued"})
        if event.kind in _ASKING:
            node["state"] = _ASKING[event.kind]
        if event.kind not in _STATES:
            continue
        node["state"] = event.kind
        node |= {"started": event.time} if event.kind == "running" else {}
        node |= {
            name: event.data[key]
            for name, key in (("duration_ms", "durationMs"), ("bytes", "bytes"), ("error", "error"))
            if key in event.data
        }
    return found


def record_of(
    kept: StoredRun,
    events: Iterable[RunEvent],
    outputs: Mapping[str, Outputs],
    has_ended: bool,
    prepared: PreparedPlan | None = None,
) -> RunRecord:
    """Build the record.

    Args:
        outputs: path → outputs of a node.
        has_ended: no process runs it: what was running then is interrupted.
        prepared: the workflow that ran, for the inputs of its nodes; None: not available any more.
    """
    outputs_by_path = {
        path: {key: value for key, value in those.items() if value is not Skip} for path, those in outputs.items()
    }
    found = _noted(events)
    for path in outputs_by_path:  # it ended, but its process ended before that was written
        found.setdefault(path, {"state": "complete"})
    if has_ended:
        stays = FINAL_STATES | {"waiting"} if kept.state == "waiting" else FINAL_STATES
        for node in found.values():
            node["state"] = node["state"] if node["state"] in stays else "interrupted"
    inputs = _inputs(prepared, kept, outputs_by_path)
    nodes = {
        path: NodeRecord(path, **facts, inputs=inputs.get(path, {}), outputs=outputs_by_path.get(path, {}))
        for path, facts in found.items()
    }
    return RunRecord(
        kept.run_id,
        kept.workflow,
        kept.state,
        kept.started,
        kept.latency_ms,
        kept.inputs,
        kept.questions,
        kept.errors,
        nodes,
    )


def _inputs(
    prepared: PreparedPlan | None, kept: StoredRun, outputs_by_path: Mapping[str, Outputs]
) -> dict[str, dict[str, Any]]:
    """The inputs of the workflow's own nodes: values of the file, and values from edges."""
    works = prepared.works if prepared is not None else ()
    defaults = (
        {key: slot.default for key, slot in prepared.plan.inputs.items() if slot.default is not ABSENT}
        if prepared is not None
        else {}
    )
    interface = {**defaults, **(kept.inputs if kept.changed is None else kept.changed)}
    from_ = [interface if work.step.kind == "input" else outputs_by_path.get(work.step.id, {}) for work in works]
    found = {}
    for work in works:
        inputs = dict(work.values)
        for one in work.single_inputs:
            if one.output in from_[one.step]:
                value = from_[one.step][one.output]
                inputs[one.key] = value if one.converts is None else convert_value(value, *one.converts)
        for many in work.many:
            inputs[many.key] = [from_[step][key] for step, key, _ in many.sources if key in from_[step]]
        found[work.step.id] = inputs
    return found
