"""Which node types give what an input needs, and take what an output gives.

Only ports that say something count: everything fits a WILDCARD, and nearly every node has a STRING.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tavern_core.frozen import dataclass
from tavern_core.graph.slots import misfit
from tavern_core.model.node import NodeSpec, Slot

_TELLING: Final = frozenset({"OBJECT", "BINARY", "ARRAY"})
_Form = tuple[str, tuple[str, ...], bool, bool]
"""What decides whether two slots fit: type, categories, stream, multi."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of many node types, by their form: types share few forms."""

    givers: Mapping[_Form, tuple[Slot, tuple[str, ...]]]
    """Form of an output → one such slot, and the types that have it."""
    takers: Mapping[_Form, tuple[Slot, tuple[str, ...]]]

    @classmethod
    def of(cls, specs: Iterable[NodeSpec]) -> Ports:
        """Args: specs: in the order in which the answers name types."""
        listed = list(specs)
        return cls(
            _by_form((spec.type, spec.outputs) for spec in listed),
            _by_form((spec.type, spec.inputs) for spec in listed),
        )

    def giving(self, target: Slot) -> list[str]:
        """The types with an output for the input `target`; none for an input that nearly everything fits."""
        if not is_telling(target):
            return []
        return [type_ for slot, types in self.givers.values() if _fits(slot, target) for type_ in types]

    def taking(self, source: Slot) -> list[str]:
        """The types with an input for the output `source`."""
        if not is_telling(source):
            return []
        return [type_ for slot, types in self.takers.values() if _fits(source, slot) for type_ in types]


def is_telling(slot: Slot) -> bool:
    """Whether few slots fit this one."""
    return bool(slot.categories) or slot.is_stream or slot.type in _TELLING


def _fits(source: Slot, target: Slot) -> bool:
    """Stricter than an edge: a slot with categories is only matched by one that shares a category."""
    if bool(source.categories) != bool(target.categories):
        return False
    return misfit(source, target) is None


def _by_form(sides: Iterable[tuple[str, Mapping[str, Slot]]]) -> dict[_Form, tuple[Slot, tuple[str, ...]]]:
    found: dict[_Form, tuple[Slot, dict[str, None]]] = {}
    for type_, slots in sides:
        for slot in slots.values():
            if is_telling(slot):
                form = slot.type, slot.categories, slot.is_stream, slot.multi
                found.setdefault(form, (slot, {}))[1][type_] = None
    return {form: (slot, tuple(types)) for form, (slot, types) in found.items()}
