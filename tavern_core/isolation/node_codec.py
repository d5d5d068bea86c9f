"""Node types, and the values of nodes, as JSON and back. Other node types are refused when the plugin is activated."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from tavern_core.contract.nodes import Final as Ends
from tavern_core.contract.nodes import Out, Skip
from tavern_core.errors import ActivationFailed, sayable
from tavern_core.isolation.codec import CannotCross, as_json
from tavern_core.kernel.nodes.json_values import NotPlain, from_plain, to_plain
from tavern_core.kernel.nodes.node_json import NotData, node_members, pack_node
from tavern_core.kernel.nodes.value_conversion import plain
from tavern_core.model.node import NodeSpec
from tavern_core.schema.limits import json_copy

NOTHING: Final = ["nothing", None]
"""Replaces the value of a lazy input that never arrives."""


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
    """The error for a node that only the host's own process could run."""
    return ActivationFailed(
        f"nodes: an isolated plugin cannot offer {sayable(what, 200)}: {why}",
        hint="write what the slot is as a plain value, or take `isolation: process` out of plugin.yaml",
        section="nodes",
    )


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
    """The answer of a node. Raises CannotCross."""
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
"""Replaces the end of a streaming node that requested a lazy input that never arrives."""


def pack_final(final: Ends) -> list[Any]:
    """The last value of a streaming node. Raises CannotCross."""
    values = final.values
    if isinstance(values, Mapping):
        return ["final", {str(key): _part(value) for key, value in values.items()}]
    return ["last", pack_answer(values)]


def unpack_final(packed: Any) -> Ends | None:
    """The inverse of `pack_final`; None for a node without one. Raises ValueError, TypeError, AttributeError."""
    tag, data = packed
    if tag == "end":
        return None
    if tag not in ("final", "last"):
        raise ValueError("no end of a stream")
    return Ends({key: unpack_answer(value) for key, value in data.items()} if tag == "final" else unpack_answer(data))
