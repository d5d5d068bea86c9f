"""A node type without its code as plain JSON, and back: for the index of plugins and for other processes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

from tavern_core.model.node import NodeMode, NodeSpec, PassThrough, Slot
from tavern_core.schema.bounded_json_copying import json_copy

_SLOT: Final = tuple(f.name for f in fields(Slot))
_NODE: Final = tuple(
    f.name for f in fields(NodeSpec) if f.name not in ("inputs", "outputs", "bypass", "modes", "capabilities", "impl")
)
_BYTES: Final = "$bytes"


class NotData(ValueError):
    """Something of a node type is not data: a function in a slot, an object."""


def pack_node(spec: NodeSpec) -> dict[str, Any]:
    """The JSON of a node type.

    Raises:
        NotData: something of it is not JSON.
    """
    copy, problem = json_copy(node_members(spec))
    if problem is not None:
        raise NotData(str(problem))
    return copy  # type: ignore[no-any-return]


def node_members(spec: NodeSpec, *, is_shown: bool = False) -> dict[str, Any]:
    """The members that `pack_node` copies: all but the code.

    Args:
        is_shown: for display only; a function in a slot is True then.

    Raises:
        NotData: a function decides whether a slot is required.
    """
    members = {name: getattr(spec, name) for name in _NODE}
    members["inputs"] = [_slot_members(slot, is_shown) for slot in spec.inputs.values()]
    members["outputs"] = [_slot_members(slot, is_shown) for slot in spec.outputs.values()]
    members["capabilities"] = sorted(spec.capabilities)
    members["bypass"] = (
        [dict(spec.bypass.outputs), dict(spec.bypass.defaults)] if isinstance(spec.bypass, PassThrough) else spec.bypass
    )
    members["modes"] = [
        [key, mode.id, mode.display_name, *([_slot_members(s, is_shown) for s in part.values()] if part is not None else None
                                            for part in (mode.inputs, mode.outputs))]
        for key, mode in spec.modes.items()
    ]  # fmt: skip
    return {k: list(v) if isinstance(v, tuple) else v for k, v in members.items()}


def unpack_node(packed: Mapping[str, Any], impl: Any = None) -> NodeSpec:
    """The inverse of `pack_node`.

    Args:
        impl: the code, or its placeholder.

    Raises:
        ValueError, KeyError, TypeError: it is not a packed node type.
    """
    facts: dict[str, Any] = {
        name: tuple(packed[name]) if isinstance(packed[name], list) else packed[name] for name in _NODE
    }
    texts = ("type", "description", "display_name", "category", "source")
    if any(type(facts[name]) is not str for name in texts) or type(facts["version"]) is not int:
        raise ValueError("an invalid node")
    bypass = packed["bypass"]
    return NodeSpec(
        **facts,
        inputs=_slots(packed["inputs"]),
        outputs=_slots(packed["outputs"]),
        capabilities=frozenset(map(str, packed["capabilities"])),
        bypass=PassThrough(dict(bypass[0]), dict(bypass[1]))
        if isinstance(bypass, list)
        else "mute"
        if bypass == "mute"
        else None,
        modes={
            str(key): NodeMode(str(mode), str(name), *(None if part is None else _slots(part) for part in parts))
            for key, mode, name, *parts in packed["modes"]
        },
        impl=impl,
    )


def _slot_members(slot: Slot, is_shown: bool) -> dict[str, Any]:
    if callable(slot.required) and is_shown:
        slot = replace(slot, required=True)
    elif callable(slot.required):
        raise NotData(f"whether {slot.key!r} is required is a function of its configuration")
    members = {name: list(v) if isinstance(v := getattr(slot, name), tuple) else v for name in _SLOT}
    if isinstance(default := slot.config.get("default"), bytes):
        members["config"] = {**slot.config, "default": {_BYTES: base64.b64encode(default).decode()}}
    return members


def _slots(packed: Any) -> dict[str, Slot]:
    found = []
    for slot in packed:
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
        raise ValueError("an invalid slot")
    return {slot.key: slot for slot in found}
