"""What a service publishes: only its public methods; and which of them change something."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from tavern_core.contract.effects import MUTATES, function_of

if TYPE_CHECKING:
    from tavern_core.contract.protocols import Service


def published_methods(service: Service) -> list[str]:
    """The names of the published methods, sorted. No attribute of the object is evaluated.

    Published are the methods of the service's interface, or else of its object's class, including bases, except names that start with
    ``_``, attributes, properties, nested classes, attributes of the instance, and methods of `object`.
    """
    return list(published(service))


def published(service: Service) -> dict[str, object]:
    """`published_methods` with the attribute of the class: a function, or a descriptor of one."""
    found: dict[str, object] = {}
    for cls in reversed((service.interface or type(service.object)).__mro__):
        if cls is not object:
            found |= vars(cls)  # a subclass that overrides a method with something else removes it
    return {name: member for name, member in sorted(found.items()) if not name.startswith("_") and _is_method(member)}


def changing_methods(service: Service) -> frozenset[str]:
    """The published methods that need write permission: all that are not marked `@read_only`."""
    return frozenset(name for name, member in published(service).items() if _mark(member) is not False)


def unmarked_methods(service: Service) -> list[str]:
    """The published methods without a mark, sorted; they count as changing."""
    return [name for name, member in published(service).items() if type(_mark(member)) is not bool]


def _mark(member: object) -> object:
    return getattr(function_of(member), MUTATES, None)


def _is_method(member: object) -> bool:
    return inspect.isroutine(function_of(member))
