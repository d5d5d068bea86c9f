"""The JSON form of node types, of nodes' inputs and answers, and of what hooks on nodes and workflows get.

    VALUES      one value of a slot              ANSWERS     what a node answered
    HOOK_VALUES an argument or an answer of a hook

A hook in a separate process sees what it would see in the host, as far as that can cross. Other values (an object among
a node's inputs, a function that decides whether a slot is required) stay in the host: the hook gets a placeholder that
it may return, and the host puts the original in its place.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final, get_args

from tavern_core.contract.nodes import Final as Ends
from tavern_core.contract.nodes import Out, Skip
from tavern_core.errors import ActivationFailed, sayable
from tavern_core.isolation.codec import (
    CALL_TABLE,
    CannotCross,
    Codec,
    SharedObjects,
    TypeCodec,
    as_json,
    crossing,
    decode_items,
    mapping_of,
    text_of,
)
from tavern_core.kernel.nodes.annotation_coercion import plain
from tavern_core.kernel.nodes.json_values import from_plain, to_plain
from tavern_core.kernel.nodes.node_serialization import NotData, node_members, pack_node, unpack_node
from tavern_core.model.node import NodeSpec, Slot
from tavern_core.model.run import NodeInfo, RunInfo, RunState
from tavern_core.schema.bounded_json_copying import NotPlainData, json_or

NOTHING: Final = ["nothing", None]
"""Replaces the value of a lazy input whose source gives nothing."""
NO_END: Final = ["skip", None]
"""Replaces the end of a streaming node that requested a lazy input without a value."""
ENDED: Final = ["end", None]
"""Replaces the end of a streaming node without further outputs."""
_STATES: Final = frozenset(get_args(RunState))

# Node types -------------------------------------------------------------------------------------------------------------


def reported_node(spec: NodeSpec, *, is_shown: bool = False) -> dict[str, Any]:
    """A node type without its code.

    Args:
        is_shown: for display only; other values become text.

    Raises:
        ActivationFailed: a part of it is not data: a function in a slot (ACTIVATION_FAILED).
    """
    try:
        return as_json(node_members(spec, is_shown=True)) if is_shown else pack_node(spec)
    except NotData as error:
        raise cannot_cross(spec.type, str(error)) from error


def cannot_cross(what: str, why: str) -> ActivationFailed:
    """The error for a node that can only run in the host's own process."""
    return ActivationFailed(
        f"nodes: an isolated plugin cannot offer {sayable(what, 200)}: {why}",
        hint="write what the slot is as a plain value, or take `isolation: process` out of plugin.yaml",
        section="nodes",
    )


# Values and answers -----------------------------------------------------------------------------------------------------


def _tagged(value: Any) -> Any:
    what = type(value).__name__
    try:
        value = to_plain(plain(value))
    except NotPlainData:
        pass  # refused below, with the location
    return crossing(what, value)


def _slots(values: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): VALUES.encode(value) for key, value in values.items()}


def _values(data: Any) -> dict[str, Any]:
    return {key: VALUES.decode(value) for key, value in mapping_of(data).items()}


def _pack_final(final: Ends) -> Any:
    return _slots(final.values) if isinstance(final.values, Mapping) else ANSWERS.encode(final.values)


def _unpack_final(data: Any, known: SharedObjects) -> Ends:
    return Ends(_values(data) if type(data) is dict else ANSWERS.decode(data))


def _unpack_out(data: Any, known: SharedObjects) -> Out | dict[str, Any]:
    values = _values(data)
    return Out(**values) if all(key.isidentifier() for key in values) else values


_BYTES: Final = TypeCodec(
    "bytes",
    (bytes, bytearray, memoryview),
    lambda value: base64.b64encode(value).decode(),
    lambda data, known: base64.b64decode(data, validate=True),
)
_SKIP: Final = TypeCodec("skip", (type(Skip),), lambda value: None, lambda data, known: Skip)
_TAGGED: Final = TypeCodec("tagged", (), _tagged, lambda data, known: from_plain(data))
VALUES: Final = Codec(_BYTES, _SKIP, rest=_TAGGED)
ANSWERS: Final = Codec(
    _BYTES,
    _SKIP,
    TypeCodec("out", (Out,), lambda out: _slots(out.slots), _unpack_out),
    TypeCodec("final", (Ends,), _pack_final, _unpack_final),
    TypeCodec(
        "tuple",
        (tuple,),
        lambda values: [VALUES.encode(value) for value in values],
        lambda data, known: tuple(VALUES.decode(value) for value in data),
    ),
    rest=_TAGGED,
)

# Hooks ------------------------------------------------------------------------------------------------------------------


class OpaqueValue:
    """A placeholder for a value that cannot cross: a hook can only return it."""

    __slots__ = ("key", "kind")

    def __init__(self, key: str, kind: str) -> None:
        self.key = key
        self.kind = kind

    def __repr__(self) -> str:
        return f"<a {self.kind} that stays in the host>"


def _unpack_stays(data: Any, mine: SharedObjects) -> Any:
    key, kind = text_of(data[0]), text_of(data[1])
    return mine[key] if key in mine else OpaqueValue(key, kind)


_SHOWN: Final = Codec(
    _BYTES, _SKIP, TypeCodec("stays", (OpaqueValue,), lambda value: [value.key, value.kind], _unpack_stays)
)


def _pack_shown(key: str, value: Any) -> list[Any]:
    try:
        return _SHOWN.encode(value)
    except CannotCross:
        return ["stays", [key, sayable(type(value).__name__, 100)]]


def _pack_slots(values: Any) -> dict[str, Any]:
    if not isinstance(values, Mapping) or not all(type(key) is str for key in values):
        crossing(type(values).__name__, values)  # refuses it, with the location
    return {key: _pack_shown(key, part) for key, part in values.items()}


def _unpack_slots(data: Any, known: SharedObjects) -> dict[str, Any]:
    inputs = known.get("inputs")
    mine = inputs if isinstance(inputs, Mapping) else {}
    return {text_of(key): _SHOWN.decode(part, mine) for key, part in data.items()}


def _unpack_run(data: Any, known: SharedObjects) -> RunInfo:
    run_id, workflow, principal, state = data
    if state not in _STATES:
        raise ValueError("an invalid run")
    return RunInfo(text_of(run_id), text_of(workflow), text_of(principal), state)


def _pack_info(node: NodeInfo) -> list[Any]:
    return [node.path, node.type, json_or(dict(node.config), {}), node.plugin]


def _unpack_info(data: Any, known: SharedObjects) -> NodeInfo:
    return NodeInfo(*decode_items(data, text_of, text_of, mapping_of, text_of))


def _unpack_definition(data: Any, known: SharedObjects) -> NodeSpec:
    """A node type that was sent and returned changed; fields that did not cross keep their values."""
    new, shown = unpack_node(data), known.get("definition")
    if not isinstance(shown, NodeSpec):
        return new
    crossed = unpack_node(reported_node(shown, is_shown=True))
    changed = _changed(new, crossed)
    changed.pop("impl", None)
    for side in changed.keys() & {"inputs", "outputs"}:
        before, shown_slots = getattr(crossed, side), getattr(shown, side)
        changed[side] = {
            key: replace(shown_slots[key], **_changed(slot, before[key])) if key in before else slot
            for key, slot in changed[side].items()
        }
    return replace(shown, **changed)


def _changed(new: NodeSpec | Slot, before: NodeSpec | Slot) -> dict[str, Any]:
    """The fields in which two values of the same type differ, with the values of the first."""
    return {f.name: value for f in fields(new) if (value := getattr(new, f.name)) != getattr(before, f.name)}


HOOK_VALUES: Final = Codec(
    *CALL_TABLE,
    TypeCodec("run", (RunInfo,), lambda run: [run.run_id, run.workflow, run.principal, run.state], _unpack_run),
    TypeCodec("node", (NodeInfo,), _pack_info, _unpack_info),
    TypeCodec("definition", (NodeSpec,), lambda spec: reported_node(spec, is_shown=True), _unpack_definition),
    rest=TypeCodec("values", (), _pack_slots, _unpack_slots),
)
