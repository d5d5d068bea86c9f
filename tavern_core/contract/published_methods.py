"""The published methods of a service: its public ones. `@read_only` and `@mutates` say which of them change something.

    class Store(Protocol):
        @read_only
        def fetch(self, key: str) -> str: ...

        @mutates
        def put(self, key: str, value: str) -> None: ...

A plugin with ``service:use:store`` may only call methods marked `@read_only`; changing needs
``service:write:store``. A method without a mark always counts as changing. The host reports it to
the author (SERVICE_UNMARKED), and `tavern plugins check` shows the line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

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


def view_members(service: str, methods: Iterable[str], doc: str) -> dict[str, Any]:
    """Attributes of a service view's class besides its methods: they refuse other attributes, changes and copies."""
    label, method_names = f"<view of service {service!r}>", ", ".join(methods)

    def refuse(self: object, name: str, *value: object) -> Any:
        reason = "is private" if name.startswith("_") else "is not published"
        raise AttributeError(f"{name!r} of service {service!r} {reason}; published: {method_names}")

    def cannot_copy(self: object, protocol: object = None) -> Any:
        raise TypeError(f"{label} cannot be copied or pickled: ask for it with ctx.service({service!r})")

    return {
        "__slots__": (),
        "__module__": "tavern",
        "__doc__": doc,
        "__getattr__": refuse,
        "__setattr__": refuse,
        "__delattr__": refuse,
        "__repr__": lambda self: label,
        "__reduce_ex__": cannot_copy,
        "__reduce__": cannot_copy,
    }


def _mark(member: object) -> object:
    return getattr(function_of(member), MUTATES, None)


def _is_method(member: object) -> bool:
    return inspect.isroutine(function_of(member))


F = TypeVar("F", bound=Callable[..., Any])
MUTATES: Final = "__tavern_mutates__"
"""The attribute of a marked function: True for `@mutates`, False for `@read_only`."""


def read_only(method: F) -> F:
    """Mark a published method that changes nothing of its service; `service:use` is enough to call it.

    Raises:
        ValueError: it is marked `@mutates` already.
    """
    return _marked(method, False)


def mutates(method: F) -> F:
    """Mark a published method that changes something; another plugin needs `service:write` to call it.

    Raises:
        ValueError: it is marked `@read_only` already.
    """
    return _marked(method, True)


def function_of(member: object) -> object:
    """The function inside a staticmethod or classmethod; anything else as it is."""
    return member.__func__ if isinstance(member, staticmethod | classmethod) else member


def _marked(method: F, changes: bool) -> F:
    function = function_of(method)
    if getattr(function, MUTATES, changes) is not changes:
        raise ValueError(
            f"{getattr(function, '__qualname__', method)} is marked both @read_only and @mutates: leave one out"
        )
    setattr(function, MUTATES, changes)
    return method
