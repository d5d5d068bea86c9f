"""The answer of a node as its outputs by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationError

from tavern_core.contract.nodes import Final, Out, Skip
from tavern_core.errors import OutputInvalid
from tavern_core.flow.engine.plan_tables import PreparedOutput, PreparedStep
from tavern_core.frozen_dataclass import dataclass
from tavern_core.graph.slot_compatibility import as_float, nesting_mismatch, value_mismatch
from tavern_core.kernel.nodes.annotation_coercion import plain, why_not
from tavern_core.kernel.nodes.json_values import to_plain
from tavern_core.model.nearest import did_you_mean
from tavern_core.schema.bounded_json_copying import NotPlainData

Outputs = Mapping[str, Any]
SKIPPED: Outputs = {}
"""The outputs of a step without any; compared by identity."""


@dataclass(frozen=True, slots=True)
class SettledAnswer:
    """An answer whose outputs are known already."""

    outputs: Outputs
    how: Literal["checked", "recalled", "unread"]
    """`recalled`: they are those of an earlier run of the node. `unread`: its stream was stopped, because it had no readers,
    and no step needed its other outputs."""


def outputs_of(work: PreparedStep, answer: Any) -> Outputs:
    """The outputs in an answer, as plain data: a mapping, `Out`, `Final`, a tuple in order, or the bare value of a single output.

    Raises:
        OutputInvalid: an output is missing, there is one that the node does not have, or its value is not one that the
            node declares (OUTPUT_SCHEMA_INVALID).
    """
    outputs = _named(work, answer)
    values: dict[str, Any] | None = None
    for key, value in outputs.items():
        gives = work.outputs.get(key)
        if value is Skip or (gives is not None and type(value) is gives.quick):
            continue
        fit = checked_output(work, gives, value) if gives is not None else plain(_bounded(work, key, value))
        if fit is not value:
            values = dict(outputs) if values is None else values
            values[key] = fit
    return outputs if values is None else values


def checked_output(work: PreparedStep, gives: PreparedOutput, value: Any) -> Any:
    """An output value of a node as plain data; for a stream, one chunk. Raises OutputInvalid: as `outputs_of`."""
    slot = gives.slot
    fit = plain(_bounded(work, slot.key, value))
    if slot.type == "FLOAT" and type(fit) is int:
        fit = as_float(fit)
    if (fit is None and gives.validator is None) or not (why := _mismatch(gives, fit)):
        return fit
    raise OutputInvalid(
        f"{work.step.type}: output {slot.key!r} {why}",
        hint=f"return what the node declares for {slot.key!r}, or declare what it returns",
        output=slot.key,
    )


def _bounded(work: PreparedStep, key: str, value: Any) -> Any:
    if why := nesting_mismatch(value):
        raise OutputInvalid(f"{work.step.type}: output {key!r} {why}", hint="return a flatter value", output=key)
    return value


def _mismatch(gives: PreparedOutput, value: Any) -> str:
    """Why `value` does not fit the declaration of the node; empty if it fits."""
    if value is not None and (why := value_mismatch(gives.slot, value)):
        return why.replace("takes", "is declared", 1)
    if gives.validator is not None:
        if gives.validator.is_valid(value):
            return ""
        try:
            found = gives.validator.problems(to_plain(value, tagged=False))  # bytes also fit a text
        except NotPlainData:
            found = None
        if found is not None:
            return f"does not fit its declaration: {found[0]}" if found else ""
    try:
        if gives.adapter is not None:
            gives.adapter.validate_python(value)
    except ValidationError as error:
        return f"does not fit its declaration: {why_not(error)}"
    return ""


def _named(work: PreparedStep, answer: Any) -> Outputs:
    if answer is Skip:
        return SKIPPED
    batch, single = work.batch, work.single
    if isinstance(answer, Final):
        answer = answer.values
    elif isinstance(answer, Out):
        answer = answer.slots
    elif single and not (work.code is not None and work.code.names_outputs and _names(answer, single)):
        return {single: answer}
    if single and not _names(answer, single):
        return {single: answer}
    if isinstance(answer, tuple) and len(answer) == len(batch):
        return dict(zip(batch, answer, strict=True))
    if not batch and answer is None:
        return {}
    if not isinstance(answer, Mapping):
        if not batch and not work.step.spec.dynamic_slots:
            return {}
        raise OutputInvalid(
            f"{work.step.type} answered {type(answer).__name__}; it has the outputs {', '.join(batch)}",
            hint=f"return {{{', '.join(f'{key!r}: ...' for key in batch)}}}",
        )
    if missing := [key for key in batch if key not in answer]:
        raise OutputInvalid(
            f"{work.step.type} did not give its output {missing[0]!r}",
            hint="return every output; return Skip for an output without a value",
        )
    if len(answer) > len(batch) and not work.step.spec.dynamic_slots:
        extra = next(key for key in answer if key not in batch)
        hint = did_you_mean(str(extra), batch) or f"it has {', '.join(batch) or 'none'}"
        raise OutputInvalid(f"{work.step.type} gave {extra!r}, which is not an output of it", hint=hint)
    return answer


def _names(answer: Any, single: str) -> bool:
    return isinstance(answer, Mapping) and len(answer) == 1 and single in answer
