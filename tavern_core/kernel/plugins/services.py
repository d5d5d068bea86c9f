"""Named services that plugins offer each other, and the views through which they use them.

A plugin never gets the object itself: it gets a view with the published methods (`kernel/views`). In-process
plugins are still trusted code: docs/security.md describes what a view prevents and what it does not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from tavern_core.contract.protocols import Service, ServiceUser
from tavern_core.contract.published_methods import changing_methods, published, unmarked_methods
from tavern_core.errors import PolicyDenied, ToolFailed
from tavern_core.kernel.plugins.contribution_registry import Contributions
from tavern_core.kernel.signal import Signal
from tavern_core.kernel.views.service_view import Epoch, view_of
from tavern_core.kernel.views.values import exact
from tavern_core.model.capability_scope import Scope
from tavern_core.model.config import LimitsConfig
from tavern_core.model.nearest import did_you_mean

D = TypeVar("D")


class CallerLookup(Protocol):
    """Looks up the rights of a plugin's services within the running call (`Service.for_plugin`)."""

    def of(self, plugin: str, capability: str) -> Scope:
        """The current effective scope of a capability."""
        ...

    def may_act(self, capability: str) -> bool:
        """See `ServiceUser.may_act`."""
        ...


class GrantedPlugin(Protocol):
    """A plugin that uses services, with its grants."""

    @property
    def name(self) -> str: ...

    def may(self, permission: str, /) -> bool:
        """Whether a permission is declared and granted."""
        ...


class Services:
    """The services among the contributions, and views of them: ``"clock" in services``; iterating gives the names.

    Args:
        limits: maximum text through a view.
        callers: for services that depend on the running call.
        changed: emitted when every view must check its rights and its object again.
    """

    def __init__(
        self, contributions: Contributions, limits: LimitsConfig, callers: CallerLookup, changed: Signal
    ) -> None:
        self._contributions = contributions
        self._callers = callers
        self._per_plugin: dict[tuple[str, str], tuple[Service, Service]] = {}
        self._limits = limits
        self._epoch = Epoch()
        changed.subscribe(self._epoch.turn)

    def get(self, name: str, default: D | None = None) -> Service | D | None:
        """The registered service, or `default`."""
        found = self._contributions.get("services", name)
        return default if found is None else found

    def __contains__(self, name: object) -> bool:
        return name in self._contributions.all("services")

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def __getitem__(self, name: str) -> Service:
        """The registered service; its override, if a plugin overrides it.

        Raises:
            ToolFailed: it does not exist; the message names the nearest (TOOL_ERROR).
        """
        found = self._contributions.get("services", name)
        if found is None:
            raise ToolFailed(f"there is no service {name!r}", hint=did_you_mean(name, self.names(everything=True)))
        return found  # type: ignore[no-any-return]

    def owner(self, name: str) -> str | None:
        """The plugin whose service is used under this name."""
        return self._contributions.owner("services", name)

    def names(self, *, everything: bool = False) -> list[str]:
        """The names of plugins' services, sorted.

        Args:
            everything: include the host's own (`contract/core_services.py`).
        """
        found = self._contributions.all("services")
        contributions = self._contributions
        return sorted(n for n in found if everything or not contributions.is_builtin(contributions.original(n)[0]))

    def allowed(self, name: str, user: GrantedPlugin, method: str = "") -> Service:
        """The service, if `user` contributed it or may use it. For a plugin that overrides it: the overridden one.

        Args:
            method: the method to call; a method that is not marked `@read_only` needs the right to write.

        Raises:
            ToolFailed: it does not exist (TOOL_ERROR).
            PolicyDenied: the use is not declared and granted (POLICY_DENIED).
        """
        plugin = user.name
        if self._contributions.overrides(name, plugin):
            owner, beneath = self._contributions.original(name)
            if beneath is None:
                raise ToolFailed(f"{plugin} contributes the service {name!r} itself, and it overrides none")
            return self._made_for(beneath, plugin, owner)
        write = f"service:write:{name}"
        if user.may(write) or self.owner(name) is None or self._is_its_own(name, plugin):
            return self._made_for(self[name], plugin)
        if not user.may(f"service:use:{name}"):
            otherwise = f"; if it requests {write}: tavern plugins grant {plugin} {write}"
            raise _denied(plugin, name, "use", f"may not use the service {name!r}", otherwise)
        if method and method in changing_methods(self[name]):
            raise self._needs_write(name, plugin, method)
        return self._made_for(self[name], plugin)

    def _is_its_own(self, name: str, plugin: str) -> bool:
        """Whether the plugin contributed it, even if overridden, or overrides it."""
        contributed = self._contributions
        return plugin in (self.owner(name), contributed.original(name)[0]) or contributed.overrides(name, plugin)

    def _needs_write(self, name: str, plugin: str, method: str) -> PolicyDenied:
        what, otherwise = "changes it", ""
        if method in unmarked_methods(self[name]):
            what = "counts as changing it, because it is not marked"
            otherwise = f"; if it only looks: {self.owner(name)} writes @read_only above it"
        denied = _denied(plugin, name, "write", f"may look at the service {name!r}, and {method!r} {what}", otherwise)
        denied.details["method"] = method
        return denied

    def _made_for(self, service: Service, plugin: str, owner: str | None = None) -> Service:
        """The service as one plugin uses it: the same object each time, until another service takes its name.

        Args:
            owner: its plugin; None: the plugin whose service is in use under its name.
        """
        if service.for_plugin is None or not self._contributions.is_builtin(owner or self.owner(service.name)):
            return service
        cached = self._per_plugin.get((service.name, plugin))
        if cached is None or cached[0] is not service:
            scope, may_act = partial(self._callers.of, plugin), self._callers.may_act
            user = ServiceUser(plugin, scope, self._contributions.is_builtin(plugin), may_act)
            cached = self._per_plugin[service.name, plugin] = service, replace(service, object=service.for_plugin(user))
        return cached[1]

    def view(self, name: str, user: GrantedPlugin) -> Any:
        """A view of the service for `user`, with only its published methods. Raises as `allowed`.

        The service and the right to it are looked up again after every change: after a reload the view uses the new
        object, and after a revocation or a stop of one of the two plugins it refuses every call.
        """
        name, plugin = exact(name), user.name
        service = self.allowed(name, user)

        def find(method: str) -> Callable[..., Any]:
            if not self._is_its_own(name, plugin) and method in changing_methods(self[name]):
                sys.audit("tavern_core.service_change", plugin, name, method)
            return _method(self.allowed(name, user, method), method)

        return view_of(name, published(service), find, self._epoch, self._limits, service.description)


def _method(service: Service, name: str) -> Callable[..., Any]:
    """The service's own bound method.

    Raises:
        ToolFailed: it does not publish the method, or lacks a method of its interface (TOOL_ERROR).
    """
    found = getattr(service.object, name, None) if name in published(service) else None
    if not callable(found):
        text = f"service {service.name!r} lacks the method {name!r} that it promised"
        raise ToolFailed(text, service=service.name, method=name)
    return found  # type: ignore[no-any-return]


def _denied(plugin: str, name: str, right: str, what: str, otherwise: str) -> PolicyDenied:
    permission = f"service:{right}:{name}"
    line = f"permissions: {{services: {{{right}: [{name}]}}}}, then tavern plugins grant {plugin} {permission}"
    said = f"{plugin} {what}: {permission} is not declared and granted"
    hint = f"plugin.yaml: {line}{otherwise}"
    return PolicyDenied(said, hint=hint, plugin=plugin, missing=[permission], service=name)
