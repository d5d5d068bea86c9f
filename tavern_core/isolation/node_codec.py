"""Node types, and the values of nodes, as JSON and back. What cannot cross is refused when the plugin is activated."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, Final

from tavern_core.contract.nodes import Final as Ends
from tavern_core.contract.nodes import Out, Skip
from tavern_core.errors import ActivationFailed, sayable
from tavern_core.isolation.codec import CannotCross, as_json
from tavern_core.kernel.nodes.json_values import NotPlain, from_plain, to_plain
from tavern_core.kernel.nodes.value_conversion import plain
from tavern_core.model.node import NodeMode, NodeSpec, PassThrough, Slot
from tavern_core.schema.limits import json_copy

_SLOT: Final = tuple(f.name for f in fields(Slot))
_NODE: Final = tuple(
    f.name for f in fields(NodeSpec) if f.name not in ("inputs", "outputs", "bypass", "modes", "capabilities", "impl")
)

_BYTES: Final = "$bytes"
NOTHING: Final = ["nothing", None]
"""Instead of the value of a lazy input that never comes."""


def told_node(spec: NodeSpec, *, is_shown: bool = False) -> dict[str, Any]:
    """A node type without its code.

    Args:
        is_shown: to be looked at only. What cannot be told is told as text then, and a function in a slot as True.

    Raises:
        ActivationFailed: something of it cannot be told: a function in a slot (ACTIVATION_FAILED).
    """
    told = {name: getattr(spec, name) for name in _NODE}
    told["inputs"] = [_told_slot(spec, slot, is_shown) for slot in spec.inputs.values()]
    told["outputs"] = [_told_slot(spec, slot, is_shown) for slot in spec.outputs.values()]
    told["capabilities"] = sorted(spec.capabilities)
    told["bypass"] = (
        [dict(spec.bypass.outputs), dict(spec.bypass.defaults)] if isinstance(spec.bypass, PassThrough) else spec.bypass
    )
    told["modes"] = [
        [key, mode.id, mode.display_name, *([_told_slot(spec, s, is_shown) for s in part.values()] if part is not None else None
                                            for part in (mode.inputs, mode.outputs))]
        for key, mode in spec.modes.items()
    ]  # fmt: skip
    told = {k: list(v) if isinstance(v, tuple) else v for k, v in told.items()}
    copy, problem = json_copy(told)
    if problem is not None and is_shown:
        return as_json(told)  # type: ignore[no-any-return]
    if problem is not None:
        raise cannot_cross(spec.type, str(problem))
    return copy  # type: ignore[no-any-return]


def cannot_cross(what: str, why: str) -> ActivationFailed:
    """The refusal of a node that only the host's own process could run."""
    return ActivationFailed(
        f"nodes: an isolated plugin cannot offer {sayable(what, 200)}: {why}",
        hint="write what the slot is as a plain value, or take `isolation: process` out of plugin.yaml",
        section="nodes",
    )


def heard_node(told: Mapping[str, Any], impl: Any) -> NodeSpec:
    """The inverse of `told_node`.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    facts: dict[str, Any] = {name: tuple(told[name]) if isinstance(told[name], list) else told[name] for name in _NODE}
    wrong = [
        name for name in ("type", "description", "display_name", "category", "source") if type(facts[name]) is not str
    ]
    if wrong or type(facts["version"]) is not int:
        raise ValueError("a damaged node")
    bypass = told["bypass"]
    return NodeSpec(
        **facts,
        inputs=_slots(told["inputs"]),
        outputs=_slots(told["outputs"]),
        capabilities=frozenset(map(str, told["capabilities"])),
        bypass=PassThrough(dict(bypass[0]), dict(bypass[1]))
        if isinstance(bypass, list)
        else "mute"
        if bypass == "mute"
        else None,
        modes={
            str(key): NodeMode(str(mode), str(name), *(None if part is None else _slots(part) for part in parts))
            for key, mode, name, *parts in told["modes"]
        },
        impl=impl,
    )


def _told_slot(spec: NodeSpec, slot: Slot, is_shown: bool) -> dict[str, Any]:
    if callable(slot.required) and is_shown:
        slot = replace(slot, required=True)
    elif callable(slot.required):
        raise cannot_cross(spec.type, f"whether {slot.key!r} is required is a function of its configuration")
    told = {name: list(v) if isinstance(v := getattr(slot, name), tuple) else v for name in _SLOT}
    if isinstance(default := slot.config.get("default"), bytes):
        told["config"] = {**slot.config, "default": {_BYTES: base64.b64encode(default).decode()}}
    return told


def _slots(told: Any) -> dict[str, Slot]:
    found = []
    for slot in told:
        one: dict[str, Any] = {
            name: tuple(slot[name]) if isinstance(slot[name], list) else slot[name] for name in _SLOT
        }
        default = one["config"].get("default")
        if isinstance(default, dict) and default.keys() == {_BYTES}:
            one["config"] = {**one["config"], "default": base64.b64decode(default[_BYTES], validate=True)}
        found.append(Slot(**one))
    if any(
        type(slot.key) is not str or type(slot.type) is not str or not isinstance(slot.schema, dict | None)
        for slot in found
    ):
        raise ValueError("a damaged slot")
    return {slot.key: slot for slot in found}


def pack_value(value: Any) -> list[Any]:
    """One value of a slot, as plain data.

    Raises:
        CannotCross: it holds something that is neither JSON nor bytes.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return ["bytes", base64.b64encode(value).decode()]
    copy, problem = json_copy(value)
    if problem is None:
        return ["json", copy]
    with suppress(NotPlain):
        copy, tagged = json_copy(to_plain(plain(value)))
        if tagged is None:
            return ["tagged", copy]
    raise CannotCross(f"{type(value).__name__} cannot cross to another process: {problem}")


def unpack_value(packed: Any) -> Any:
    """The inverse of `pack_value`. Raises ValueError."""
    tag, data = packed
    if tag == "bytes":
        return base64.b64decode(data, validate=True)
    return from_plain(data) if tag == "tagged" else data


def pack_answer(answer: Any) -> list[Any]:
    """What a node answered. Raises CannotCross."""
    if answer is Skip:
        return ["skip", None]
    for kind, tag in ((Out, "out"), (Ends, "out")):
        if isinstance(answer, kind):
            answer = answer.slots if isinstance(answer, Out) else answer.values
            if not isinstance(answer, Mapping):
                return pack_answer(answer)
            return [tag, {str(key): _part(value) for key, value in answer.items()}]
    if isinstance(answer, tuple):
        return ["tuple", [_part(value) for value in answer]]
    if isinstance(answer, Mapping) and any(value is Skip or isinstance(value, bytes) for value in answer.values()):
        return ["mapping", {str(key): _part(value) for key, value in answer.items()}]
    return pack_value(answer)


def unpack_answer(packed: Any) -> Any:
    """The inverse of `pack_answer`. Raises ValueError, TypeError."""
    tag, data = packed
    if tag == "skip":
        return Skip
    if tag in ("out", "mapping"):
        values = {key: unpack_answer(value) for key, value in data.items()}
        return Out(**values) if tag == "out" and all(key.isidentifier() for key in values) else values
    return tuple(unpack_answer(value) for value in data) if tag == "tuple" else unpack_value(packed)


def _part(value: Any) -> list[Any]:
    return ["skip", None] if value is Skip else pack_value(value)


NO_END: Final = ["skip", None]
"""Instead of the end of a node that streams: it asked for a lazy input that never comes."""


def pack_final(final: Ends) -> list[Any]:
    """The last thing that a streaming node yields. Raises CannotCross."""
    values = final.values
    if isinstance(values, Mapping):
        return ["final", {str(key): _part(value) for key, value in values.items()}]
    return ["last", pack_answer(values)]


def unpack_final(packed: Any) -> Ends | None:
    """The inverse of `pack_final`; None for a node that ended without. Raises ValueError, TypeError, AttributeError."""
    tag, data = packed
    if tag == "end":
        return None
    if tag not in ("final", "last"):
        raise ValueError("no end of a stream")
    return Ends({key: unpack_answer(value) for key, value in data.items()} if tag == "final" else unpack_answer(data))
