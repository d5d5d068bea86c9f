"""Named services that plugins offer each other, and the views through which they are used.

A plugin never gets the object itself: it gets a view with one method for each published one. This is a guard rail against
mistakes, not a wall: in-process plugins are trusted code (docs/security.md).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tavern_core.contract.protocols import Service
from tavern_core.contract.published import published_methods
from tavern_core.errors import PolicyDenied, ToolFailed
from tavern_core.kernel.life.contributions import Contributions
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

    def allowed(self, name: str, plugin: str, may: Callable[[str], bool]) -> Service:
        """The service, when `plugin` brought it itself or may use it.

        Raises:
            ToolFailed: there is none (TOOL_ERROR).
            PolicyDenied: it is not declared and granted (POLICY_DENIED).
        """
        permission = f"service:use:{name}"
        if self.owner(name) not in (plugin, None) and not may(permission):
            raise PolicyDenied(
                f"{plugin} may not use the service {name!r}: {permission} is not declared and granted",
                hint=f"plugin.yaml: permissions: {{services: {{use: [{name}]}}}}, "
                f"then tavern plugins grant {plugin} {permission}",
                plugin=plugin,
                missing=[permission],
            )
        return self[name]

    def view(self, name: str, plugin: str, may: Callable[[str], bool]) -> Any:
        """A view of the service for `plugin`, with its published methods and nothing else. Raises as `allowed`.

        The service and the right to it are looked up at each call: after a reload the view reaches the new object, and
        after a revocation or when the service's plugin is stopped it reaches nothing.
        """
        return _view_of(self.allowed(name, plugin, may), lambda: self.allowed(name, plugin, may))


def _view_of(service: Service, now: Callable[[], Service]) -> Any:
    """An object of a class made for this service: each published method calls through, everything else is refused."""
    methods = {name: _through(service, name, now) for name in published_methods(service)}
    known = ", ".join(methods)

    def refuse(self: object, name: str, *value: object) -> Any:
        what = "is private" if name.startswith("_") else "is not published"
        raise AttributeError(f"{name!r} of service {service.name!r} {what}; published: {known}")

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


def _through(service: Service, name: str, now: Callable[[], Service]) -> Callable[..., Any]:
    def method() -> Callable[..., Any]:
        found = getattr(now().object, name, None)
        if not callable(found):
            raise ToolFailed(f"service {service.name!r} lacks the method {name!r} that it promised", service=service.name)
        return found  # type: ignore[no-any-return]

    if inspect.iscoroutinefunction(getattr(service.object, name, None)):

        async def call_async(self: object, *args: Any, **kwargs: Any) -> Any:
            return await method()(*args, **kwargs)

        call_async.__name__ = name
        return call_async

    def call(self: object, *args: Any, **kwargs: Any) -> Any:
        return method()(*args, **kwargs)

    call.__name__ = name
    return call
