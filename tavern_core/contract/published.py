"""What a service publishes: its public methods and nothing else."""

from __future__ import annotations

import inspect

from tavern_core.contract.protocols import Service


def published_methods(service: Service) -> list[str]:
    """The names of the methods that others may call, sorted. Nothing of the object is evaluated.

    Public are the methods of the service's interface, or else of its object's class, bases included: not what begins with
    ``_``, not attributes, properties or nested classes, nothing that an instance carries, nothing of `object`.
    """
    found: dict[str, object] = {}
    for cls in reversed((service.interface or type(service.object)).__mro__):
        if cls is not object:
            found |= vars(cls)  # a subclass that overrides a method with something else takes it away
    return sorted(name for name, member in found.items() if not name.startswith("_") and _is_method(member))


def _is_method(member: object) -> bool:
    plain = member.__func__ if isinstance(member, staticmethod | classmethod) else member
    return inspect.isroutine(plain)
