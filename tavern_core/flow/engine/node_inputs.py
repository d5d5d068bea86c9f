"""The inputs of a step: values of its file, outputs of other steps, and streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tavern_core.contract.nodes import Skip
from tavern_core.flow.engine.node_outputs import Outputs
from tavern_core.flow.engine.node_value_encoding import private
from tavern_core.flow.engine.plan_tables import ListInput, PreparedStep
from tavern_core.flow.engine.streams import StepStreams
from tavern_core.graph.slot_compatibility import convert_value
from tavern_core.model.node import ABSENT


def inputs_of(work: PreparedStep, outputs: Sequence[Outputs | None], streams: StepStreams) -> dict[str, Any] | None:
    """The inputs of a step; None if it must be skipped: a needed value, or all values, will never arrive.

    An input of the workflow that its caller left out skips nothing: the default replaces it, else null.

    Args:
        outputs: of the steps of the plan, by number; those that it needs are complete.
    """
    inputs = work.fresh_values()
    came = missed = 0
    for one in work.single_inputs:
        value = outputs[one.step].get(one.output, Skip)  # type: ignore[union-attr]
        if value is Skip:
            missed, came = missed + 1, came + one.is_given
            if one.is_required and work.step.kind == "node" and not one.is_given:
                return None
            if one.default is not ABSENT:
                inputs[one.key] = private(one.default)
            elif one.is_given and (work.step.plan is None or work.step.bypass is not None):
                inputs[one.key] = None
            continue
        came += 1
        if one.converts is not None:
            value = convert_value(value, *one.converts)
        elif one.is_shared:
            value = private(value)
        inputs[one.key] = value
    for many in work.many:
        values = [
            value if converts is None else convert_value(value, *converts)
            for step, key, converts in many.sources
            if (value := outputs[step].get(key, Skip)) is not Skip  # type: ignore[union-attr]
        ]
        came, missed = came + len(values) + len(many.given), missed + len(many.sources) - len(values)
        if many.lists:
            values = items_of(many, outputs)
        if not values and many.is_required:
            if not many.given:
                return None
            values = [None]
        if many.is_shared:
            values = [private(value) for value in values]
        inputs[many.key] = values
    for binding in work.step.streams:
        readers = streams.at(work.step.index, binding.key)
        if not readers:
            return None
        inputs[binding.key] = readers if binding.slot.multi else readers[0]
    if missed and not came and not work.step.streams and work.step.kind != "output":
        return None
    return inputs


def items_of(many: ListInput, outputs: Sequence[Outputs | None]) -> list[Any]:
    """The values of an input with several sources, some of which are lists of values."""
    found: list[Any] = []
    for at, (step, key, converts) in enumerate(many.sources):
        value = (outputs[step] or {}).get(key, Skip)
        if value is Skip:
            continue
        values = value if at in many.lists and isinstance(value, list | tuple) else [value]
        found += values if converts is None else [convert_value(item, *converts) for item in values]
    return found
