"""The arguments of hooks: copies that share no mutable objects and no code of other plugins.

A hook that writes into an argument changes only its own copy. It returns what it wants to change, and the
host checks and records that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tavern_core.model.call import ToolCall
from tavern_core.model.event import Event
from tavern_core.model.node import NodeMode, NodeSpec, PassThrough, Slot
from tavern_core.model.result import ToolResult
from tavern_core.model.tool import ToolSpec
from tavern_core.schema.bounded_json_copying import copied_parts, json_or


class _CodePlaceholder:
    """A placeholder for the code of a tool or a node: a hook can return it, but neither call nor inspect it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<its plugin's code>"


CODE: Final = _CodePlaceholder()


class ToolSnapshot:
    """A tool as hooks see it: each plugin has its own copy, made at its first hook call for the tool."""

    __slots__ = ("_copies", "id", "spec")

    def __init__(self, spec: ToolSpec) -> None:
        self.spec = spec
        self.id = spec.id
        self._copies: dict[str, ToolSpec] = {}

    def to(self, plugin: str) -> ToolSpec:
        """The copy of one plugin."""
        if (copy := self._copies.get(plugin)) is None:
            copy = self._copies[plugin] = copy_for_plugin(self.spec)
        return copy


def copy_for_plugin(value: Any) -> Any:
    """The copy of `value` for a plugin: shares no mutable object with it, and holds no code."""
    if isinstance(value, ToolCall):
        return replace(value, arguments=copy_json(value.arguments))
    if isinstance(value, ToolResult):
        content = copy_json([dict(block) for block in value._content]) if value._content else ()
        error = value.error and replace(value.error, details=copied_parts(value.error.details))
        return value.replace(
            value=copy_json(value.value), content=tuple(content), meta=copy_json(value._meta), error=error
        )
    if isinstance(value, Event):
        return replace(value, data=copy_json(value.data))
    if isinstance(value, ToolSpec):
        return replace(
            value,
            impl=None if value.impl is None else CODE,
            input_schema=copied_parts(value.input_schema),
            output_schema=value.output_schema and copied_parts(value.output_schema),
            implementation=copied_parts(value.implementation),
            config_schema=tuple(copied_parts(item) for item in value.config_schema),
            examples=tuple(
                replace(e, arguments=copied_parts(e.arguments), result=copied_parts(e.result)) for e in value.examples
            ),
        )
    if isinstance(value, NodeSpec):
        return _shown_node(value)
    return value


def is_its_code(answer: ToolSpec | NodeSpec, spec: ToolSpec | NodeSpec) -> bool:
    """Whether a definition that a hook derived from its copy of `spec` still stands for the same code."""
    return answer.impl is (None if spec.impl is None else CODE)


def copy_json(value: Any) -> Any:
    """A copy of JSON; what is not JSON stays as it is (validation refuses it later)."""
    return json_or(value, value)


def _shown_node(spec: NodeSpec) -> NodeSpec:
    bypass = spec.bypass
    if isinstance(bypass, PassThrough):
        bypass = PassThrough(dict(bypass.outputs), copied_parts(bypass.defaults))
    return replace(
        spec,
        impl=None if spec.impl is None else CODE,
        inputs=_slots(spec.inputs),
        outputs=_slots(spec.outputs),
        config_schema=copied_parts(spec.config_schema),
        config_values=copied_parts(spec.config_values),
        bypass=bypass,
        modes={key: _mode(mode) for key, mode in spec.modes.items()},
    )


def _mode(mode: NodeMode) -> NodeMode:
    inputs, outputs = (None if slots is None else _slots(slots) for slots in (mode.inputs, mode.outputs))
    return replace(mode, inputs=inputs, outputs=outputs)


def _slots(slots: Mapping[str, Slot]) -> dict[str, Slot]:
    return {
        key: replace(slot, config=copied_parts(slot.config), actions=tuple(map(copied_parts, slot.actions)))
        for key, slot in slots.items()
    }
