"""What a service publishes: its public methods and nothing else; and which of them change something."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from tavern_core.contract.effects import MUTATES, function_of

if TYPE_CHECKING:
    from tavern_core.contract.protocols import Service


def published_methods(service: Service) -> list[str]:
    """The names of the methods that others may call, sorted. Nothing of the object is evaluated.

    Public are the methods of the service's interface, or else of its object's class, bases included: not what begins with
    ``_``, not attributes, properties or nested classes, nothing that an instance carries, nothing of `object`.
    """
    return list(published(service))


def published(service: Service) -> dict[str, object]:
    """`published_methods` with what the class says of each: a function, or a descriptor of one."""
    found: dict[str, object] = {}
    for cls in reversed((service.interface or type(service.object)).__mro__):
        if cls is not object:
            found |= vars(cls)  # a subclass that overrides a method with something else takes it away
    return {name: member for name, member in sorted(found.items()) if not name.startswith("_") and _is_method(member)}


def changing_methods(service: Service) -> frozenset[str]:
    """The published methods that need more than the right to look: all that are not marked `@read_only`."""
    return frozenset(name for name, member in published(service).items() if _mark(member) is not False)


def unmarked_methods(service: Service) -> list[str]:
    """The published methods of which nobody said what they do, sorted; they count as changing."""
    return [name for name, member in published(service).items() if type(_mark(member)) is not bool]


def _mark(member: object) -> object:
    return getattr(function_of(member), MUTATES, None)


def _is_method(member: object) -> bool:
    return inspect.isroutine(function_of(member))
