"""Named services that plugins offer each other, and the views through which they are used.

A plugin never gets the object itself: it gets a view with one method for each published one. This is a guard rail against
mistakes, not a wall: in-process plugins are trusted code (docs/security.md).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tavern_core.contract.protocols import Service
from tavern_core.errors import ToolFailed
from tavern_core.kernel.contributions import Contributions
from tavern_core.model.nearest import did_you_mean

D = TypeVar("D")


class Services:
    """The services among the contributions, and views of them: ``"clock" in services``; iterating gives the names."""

    def __init__(self, contributions: Contributions) -> None:
        self._contributions = contributions

    def get(self, name: str, default: D | None = None) -> Service | D | None:
        """The registered service, or `default`."""
        found = self._contributions.get("services", name)
        return default if found is None else found

    def __contains__(self, name: object) -> bool:
        return name in self._contributions.all("services")

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self._contributions.all("services"))

    def __getitem__(self, name: str) -> Service:
        """The registered service.

        Raises:
            ToolFailed: there is none; the message names the nearest (TOOL_ERROR).
        """
        found = self._contributions.get("services", name)
        if found is None:
            raise ToolFailed(f"there is no service {name!r}", hint=did_you_mean(name, self.names()))
        return found  # type: ignore[no-any-return]

    def owner(self, name: str) -> str | None:
        """The plugin that brought a service."""
        return self._contributions.owner("services", name)

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._contributions.all("services"))

    def view(self, name: str) -> Any:
        """A view of the service with its published methods and nothing else."""
        return view_of(self[name])


def published_methods(service: Service) -> list[str]:
    """Names of the methods that a service publishes: the public ones of its interface, else of its class."""
    kind = service.interface or type(service.object)
    names = set()
    for cls in kind.__mro__:
        if cls is not object:
            names |= {k for k, v in vars(cls).items() if not k.startswith("_") and inspect.isroutine(v)}
    return sorted(names)


def view_of(service: Service) -> Any:
    """An object of a class made for this service: each published method calls through, everything else is refused."""
    methods: dict[str, Any] = {name: _through(getattr(service.object, name), name) for name in published_methods(service)}
    known = sorted(methods)

    def refuse(self: object, name: str, *value: object) -> Any:
        what = "is private" if name.startswith("_") else "is not published"
        raise AttributeError(f"{name!r} of service {service.name!r} {what}; published: {', '.join(known)}")

    label = f"<view of service {service.name!r}>"
    body = methods | {
        "__slots__": (),
        "__getattr__": refuse,
        "__setattr__": refuse,
        "__delattr__": refuse,
        "__repr__": lambda self: label,
        "__doc__": service.description,
    }
    return type(f"{service.name}View", (), body)()


def _through(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(method):

        async def call_async(self: object, *args: Any, **kwargs: Any) -> Any:
            return await method(*args, **kwargs)

        call_async.__name__ = name
        return call_async

    def call(self: object, *args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    call.__name__ = name
    return call
