"""Arguments and answers of hooks as JSON and back: in addition to `codec.py`, runs, nodes, node types and slot values.

A hook in a worker sees what it would see in the host, as far as that can be transferred. Other values (an object among the
inputs of a node, a function for whether a slot is required) stay in the host: the hook sees that they exist, may return
them, and the host restores its own.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final, get_args

from tavern_core.contract.nodes import Skip
from tavern_core.errors import sayable
from tavern_core.isolation.codec import pack, unpack
from tavern_core.isolation.node_codec import reported_node
from tavern_core.kernel.nodes.node_json import unpack_node
from tavern_core.model.node import NodeSpec, Slot
from tavern_core.model.run import NodeInfo, RunInfo, RunState
from tavern_core.schema.limits import json_copy

_STATES: Final = frozenset(get_args(RunState))
_OF_SLOTS: Final = ("inputs", "outputs")


class Stays:
    """Placeholder for a value that cannot be transferred: it can only be returned."""

    __slots__ = ("key", "kind")

    def __init__(self, key: str, kind: str) -> None:
        self.key = key
        self.kind = kind

    def __repr__(self) -> str:
        return f"<a {self.kind} that stays in the host>"


def pack_shown(value: Any) -> list[Any]:
    """An argument or an answer of a hook, for the other side.

    Raises:
        CannotCross: it is not a value of hooks.
    """
    match value:
        case RunInfo():
            return ["run", [value.run_id, value.workflow, value.principal, value.state]]
        case NodeInfo():
            config, problem = json_copy(dict(value.config))
            return ["node", [value.path, value.type, config if problem is None else {}, value.plugin]]
        case NodeSpec():
            return ["definition", reported_node(value, is_shown=True)]
        case Mapping() if json_copy(dict(value))[1] is not None and all(type(key) is str for key in value):
            return ["values", {key: _pack_part(key, part) for key, part in value.items()}]
    return pack(value)


def unpack_shown(packed: Any, known: Mapping[str, Any]) -> Any:
    """The inverse of `pack_shown`.

    Args:
        known: the arguments that the hook got, by name.

    Raises:
        ValueError: it is not the output of `pack_shown`.
    """
    if type(packed) is not list or len(packed) != 2 or packed[0] not in ("run", "node", "definition", "values"):
        return unpack(packed, known)
    tag, data = packed
    try:
        if tag == "run":
            return _run(*data)
        if tag == "node":
            path, type_, config, plugin = data
            return NodeInfo(_text(path), _text(type_), dict(config), _text(plugin))
        if tag == "definition":
            return _definition(data, known.get("definition"))
        inputs = known.get("inputs")
        mine = inputs if isinstance(inputs, Mapping) else {}
        return {_text(key): _unpack_part(part, mine) for key, part in data.items()}
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"an invalid {tag}: {error!r}") from error


def _pack_part(key: str, value: Any) -> list[Any]:
    if value is Skip:
        return ["skip", None]
    if isinstance(value, bytes | bytearray | memoryview):
        return ["bytes", base64.b64encode(value).decode()]
    if isinstance(value, Stays):
        return ["stays", [value.key, value.kind]]
    copy, problem = json_copy(value)
    return ["json", copy] if problem is None else ["stays", [key, sayable(type(value).__name__, 100)]]


def _unpack_part(packed: Any, mine: Mapping[str, Any]) -> Any:
    tag, data = packed
    if tag == "skip":
        return Skip
    if tag == "bytes":
        return base64.b64decode(data, validate=True)
    if tag == "stays":
        key, kind = _text(data[0]), _text(data[1])
        return mine[key] if key in mine else Stays(key, kind)
    if tag != "json":
        raise ValueError("an invalid value")
    return data


def _run(run_id: Any, workflow: Any, principal: Any, state: Any) -> RunInfo:
    if state not in _STATES:
        raise ValueError("an invalid run")
    return RunInfo(_text(run_id), _text(workflow), _text(principal), state)


def _definition(told: Any, shown: Any) -> NodeSpec:
    """A node type; if it comes back changed, it keeps the parts that were not transferred."""
    if not isinstance(shown, NodeSpec):
        return unpack_node(told, None)
    heard, crossed = unpack_node(told, None), unpack_node(reported_node(shown, is_shown=True), None)
    changed = {
        f.name: new
        for f in fields(NodeSpec)
        if f.name != "impl" and (new := getattr(heard, f.name)) != getattr(crossed, f.name)
    }
    for side in _OF_SLOTS:
        if side in changed:
            changed[side] = _slots(changed[side], getattr(crossed, side), getattr(shown, side))
    return replace(shown, **changed)


def _slots(heard: Mapping[str, Slot], crossed: Mapping[str, Slot], shown: Mapping[str, Slot]) -> dict[str, Slot]:
    found = {}
    for key, slot in heard.items():
        if (before := crossed.get(key)) is None:
            found[key] = slot
            continue
        changed = {f.name: new for f in fields(Slot) if (new := getattr(slot, f.name)) != getattr(before, f.name)}
        found[key] = replace(shown[key], **changed)
    return found


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("no text")
    return value
