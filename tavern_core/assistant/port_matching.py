"""Which node types give what an input needs, and take what an output gives.

Only ports that say something count: everything fits a WILDCARD, and nearly every node has a STRING.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tavern_core.graph.slot_compatibility import misfit
from tavern_core.model.node import NodeSpec, Slot

_TELLING: Final = frozenset({"OBJECT", "BINARY", "ARRAY"})
_Form = tuple[str, tuple[str, ...], bool, bool]
"""What decides whether two slots fit: type, categories, stream, multi."""
_Types = Mapping[_Form, tuple[Slot, tuple[str, ...]]]
"""Form → one such slot, and the types that have it. Types share few forms."""


class Ports:
    """The ports of many node types.

    Args:
        specs: in the order in which answers name types.
    """

    def __init__(self, specs: Iterable[NodeSpec] = ()) -> None:
        listed = list(specs)
        self._givers = _by_form((spec.type, spec.outputs) for spec in listed)
        self._takers = _by_form((spec.type, spec.inputs) for spec in listed)
        self._giving: dict[_Form, tuple[str, ...]] = {}
        self._taking: dict[_Form, tuple[str, ...]] = {}

    def giving(self, target: Slot) -> tuple[str, ...]:
        """The types with an output for the input `target`; none for an input that nearly everything fits."""
        form = _form(target)
        if form not in self._giving:
            self._giving[form] = _types(self._givers, lambda source: is_telling(target) and _fits(source, target))
        return self._giving[form]

    def taking(self, source: Slot) -> tuple[str, ...]:
        """The types with an input for the output `source`; none for an output that fits nearly everything."""
        form = _form(source)
        if form not in self._taking:
            self._taking[form] = _types(self._takers, lambda target: is_telling(source) and _fits(source, target))
        return self._taking[form]


def is_telling(slot: Slot) -> bool:
    """Whether few slots fit this one."""
    return bool(slot.categories) or slot.is_stream or slot.type in _TELLING


def _form(slot: Slot) -> _Form:
    return slot.type, slot.categories, slot.is_stream, slot.multi


def _fits(source: Slot, target: Slot) -> bool:
    """Stricter than an edge: a slot with categories is only matched by one that shares a category."""
    return bool(source.categories) == bool(target.categories) and misfit(source, target) is None


def _types(forms: _Types, fits: Callable[[Slot], bool]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(type_ for slot, types in forms.values() if fits(slot) for type_ in types))


def _by_form(sides: Iterable[tuple[str, Mapping[str, Slot]]]) -> _Types:
    found: dict[_Form, tuple[Slot, dict[str, None]]] = {}
    for type_, slots in sides:
        for slot in slots.values():
            if is_telling(slot):
                found.setdefault(_form(slot), (slot, {}))[1][type_] = None
    return {form: (slot, tuple(types)) for form, (slot, types) in found.items()}
