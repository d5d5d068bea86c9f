"""Whether the host can use a node definition: checked when a plugin contributes it, and again when a hook changes it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from tavern_core.errors import TavernError
from tavern_core.graph.slot_compatibility import value_mismatch
from tavern_core.model.capability import is_capability
from tavern_core.model.naming_rules import is_local_name, split_id
from tavern_core.model.node import ABSENT, JSON_TYPES, NodeMode, NodeSpec, PassThrough, Slot
from tavern_core.schema.validate import compile_validator

_Kinds = tuple[tuple[Any, str, tuple[str, ...]], ...]
"""(type, the type in words, the fields of this type)"""
_OF_NODE: Final[_Kinds] = (
    (str, "text", ("display_name", "description", "category", "replaced_by", "default_mode", "mode_config_key",
                   "client_script_url", "resource")),
    (bool, "True or False", ("deprecated", "experimental", "dynamic_slots", "is_preview_unsafe", "is_ui_node", "cache",
                             "fast")),
    (Mapping, "a mapping", ("inputs", "outputs", "modes", "config_schema", "config_values")),
    (list | tuple | set | frozenset, "a list of names", ("capabilities", "replaces")),
)  # fmt: skip
_OF_SLOT: Final[_Kinds] = (
    (str, "text", ("display_name", "description")),
    (bool, "True or False", ("multi", "is_stream", "lazy", "allow_dynamic_type", "hide_handle")),
    (Mapping, "a mapping", ("config",)),
)
_COUNTS: Final = ("version", "timeout_ms", "limit", "width")


def definition_mismatch(spec: NodeSpec, takes: Collection[str] | None = None) -> str:
    """The problem of a node definition, in one sentence; empty if it is valid.

    Args:
        takes: the inputs that the node's code can be given; None: any.
    """
    return next(_wrong(spec, takes), "")


def _wrong(spec: NodeSpec, takes: Collection[str] | None) -> Iterator[str]:
    yield from _wrong_values(spec)
    sides: list[tuple[str, Any, Any]] = [("", spec.inputs, spec.outputs)]
    for key, mode in spec.modes.items():
        if not isinstance(mode, NodeMode):
            yield f"modes[{key!r}] is {type(mode).__name__}, not a NodeMode"
        if mode.id != key:
            yield f"modes[{key!r}] has the id {mode.id!r}"
        if odd := [
            slots for slots in (mode.inputs, mode.outputs) if slots is not None and not isinstance(slots, Mapping)
        ]:
            yield f"modes[{key!r}] has slots that are {type(odd[0]).__name__}, not a mapping"
        sides.append((f" of mode {key!r}", mode.inputs or {}, mode.outputs or {}))
    if spec.default_mode and spec.default_mode not in spec.modes:
        yield f"default_mode {spec.default_mode!r} is not one of its modes ({', '.join(map(repr, spec.modes)) or 'it has none'})"
    for where, inputs, outputs in sides:
        for side, slots in (("input", inputs), ("output", outputs)):
            for key, slot in slots.items():
                yield from (f"{side} {key!r}{where}{what}" for what in _wrong_slot(key, slot))
        if takes is not None and (more := sorted(set(inputs) - set(takes))):
            yield f"input {more[0]!r}{where} is not one that its code takes"
    yield from _wrong_bypass(
        spec, {key for _, inputs, _ in sides for key in inputs}, {key for _, _, outputs in sides for key in outputs}
    )
    yield from _wrong_config(spec)


def _wrong_kinds(found: Any, kinds: _Kinds) -> Iterator[str]:
    for kind, words, names in kinds:
        for name in names:
            if not isinstance(value := getattr(found, name), kind):
                yield f"{name} is {type(value).__name__}, not {words}"


def _wrong_values(spec: NodeSpec) -> Iterator[str]:
    yield from _wrong_kinds(spec, _OF_NODE)
    for name in _COUNTS:
        count = getattr(spec, name)
        is_count = isinstance(count, int) and not isinstance(count, bool) and count > 0
        if not is_count and (count is not None or name == "version"):
            yield f"{name} is {count!r:.80}, not a whole number above zero"
    for capability in sorted(map(str, spec.capabilities)):
        if not is_capability(capability):
            yield f"{capability!r} is not a capability"
    for old in spec.replaces:
        if not isinstance(old, str) or not all(map(is_local_name, split_id(old))):
            yield f"replaces names {old!r:.80}, which is not a full node type"


def _wrong_slot(key: Any, slot: Any) -> Iterator[str]:
    if not isinstance(slot, Slot) or not isinstance(key, str) or not key or slot.key != key:
        yield " is not a slot of that key"
        return
    if slot.type not in JSON_TYPES:
        yield f" has the type {slot.type!r}, which is not a dataFlowType ({', '.join(JSON_TYPES)})"
    yield from (f": {what}" for what in _wrong_kinds(slot, _OF_SLOT))
    if not isinstance(slot.required, bool) and not callable(slot.required):
        yield f": required is {type(slot.required).__name__}, not True, False or a function of the configuration"
    if not isinstance(slot.categories, list | tuple) or not all(isinstance(one, str) for one in slot.categories):
        yield f": categories is {slot.categories!r:.80}, not a list of texts"
    if slot.max_connections is not None and (type(slot.max_connections) is not int or slot.max_connections < 1):
        yield f" takes {slot.max_connections!r:.80} connections"
    if slot.schema is not None:
        try:
            compile_validator(slot.schema, name=key).build()
        except (TavernError, TypeError, AttributeError) as error:
            yield f" has a schema that cannot be used: {error}"
    low, high = slot.config.get("min"), slot.config.get("max")
    if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
        yield f" has the bounds {low} and {high}"
    default = slot.default
    is_plain = isinstance(default, str | int | float | list | dict) and not (
        isinstance(default, float) and not math.isfinite(default)
    )
    if default is not ABSENT and is_plain and not slot.is_stream and (why := value_mismatch(slot, default)):
        yield f" {why}: its default does not fit"


def _wrong_bypass(spec: NodeSpec, inputs: Collection[str], outputs: Collection[str]) -> Iterator[str]:
    if spec.bypass is None or spec.bypass == "mute":
        return
    if not isinstance(spec.bypass, PassThrough):
        yield f'bypass is {spec.bypass!r:.80}: "mute", or a PassThrough'
        return
    if spec.dynamic_slots:
        return
    named = [("output", key, outputs) for key in (*spec.bypass.outputs, *spec.bypass.defaults)]
    for side, key, known in (*named, *(("input", key, inputs) for key in spec.bypass.outputs.values())):
        if key not in known:
            yield f"bypass names the {side} {key!r}, which it does not have"


def _wrong_config(spec: NodeSpec) -> Iterator[str]:
    if not spec.config_schema:
        return
    try:
        found = compile_validator(spec.config_schema, name=spec.type).problems(dict(spec.config_values))
    except TavernError as error:
        yield f"config_schema: {error.message}"
        return
    for problem in found:
        if problem.keyword != "required":
            yield f"config_values do not fit config_schema: {problem}"
