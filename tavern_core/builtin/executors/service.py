"""Tools of kind `service`: a published method of a registered service, called with the arguments as keywords.

The service is looked up for each call: its plugin may be activated, reloaded or disabled in between, and a tool must
never go on talking to the object of before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tavern_core.contract.context import PluginContext
from tavern_core.contract.hookspecs import hookimpl
from tavern_core.contract.protocols import BoundTool, Executor, Service, ToolHome
from tavern_core.errors import ToolFailed, ToolFileInvalid
from tavern_core.model.call import ToolCall
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.tool import ToolSpec

_KEYS = ("type", "service", "method")


@hookimpl
def tavern_register_executors(ctx: PluginContext) -> Mapping[str, Executor]:
    return {"service": ServiceExecutor()}


class ServiceExecutor:
    """Runs ``implementation: {type: service, service: name, method: m}``."""

    def bind(self, tool: ToolSpec, home: ToolHome, /) -> BoundTool:
        """Check the two names; the service itself is asked for at each call.

        Raises:
            ToolFileInvalid: a name is missing, the method is private, or no parameters are declared (TOOL_FILE_INVALID).
        """
        name, method = (_word(tool, key) for key in ("service", "method"))
        if not is_public(method):
            raise ToolFileInvalid(
                f"tool {tool.name}: method {method!r} of service {name!r} is private",
                hint="only public methods can be tools; publish one that does what is needed",
            )
        if unknown := sorted(
            k for k, v in tool.implementation.items() if k not in _KEYS and v not in (None, (), [], "")
        ):
            raise ToolFileInvalid(
                f"tool {tool.name}: a service has no {unknown[0]!r}", hint=did_you_mean(unknown[0], _KEYS)
            )
        if tool.input_schema.get("type") != "object" or "properties" not in tool.input_schema:
            raise ToolFileInvalid(
                f"tool {tool.name}: a service tool must declare its parameters",
                hint='add "parameters": {"type": "object", "properties": {…}} to the tool file',
            )

        def run(arguments: Mapping[str, Any], call: ToolCall | None) -> Any:
            return published_method(home.service(name), name, method)(**arguments)

        return BoundTool(run, is_async=False, blocking=not tool.fast)


def _word(tool: ToolSpec, key: str) -> str:
    value = tool.implementation.get(key)
    if isinstance(value, str) and value and (key == "service" or value.isidentifier()):
        return value
    raise ToolFileInvalid(
        f"tool {tool.name}: implementation.{key} must be a name, got {value!r}",
        hint='write "implementation": {"type": "service", "service": "clock", "method": "now"}',
    )


def is_public(method: str) -> bool:
    """False for ``_private`` and ``__dunder__`` names."""
    return not method.startswith("_")


def published_methods(service: object, interface: type | None = None) -> list[str]:
    """The names of the methods that a service publishes; nothing of the object is evaluated.

    Args:
        service: the object itself.
        interface: whose public methods count; default: the object's own class.
    """
    source = interface or type(service)
    found = {
        name: member
        for cls in reversed(source.__mro__)
        if cls is not object
        for name, member in vars(cls).items()
        if is_public(name)
    }
    return [name for name, member in found.items() if _is_method(member)]


def _is_method(member: object) -> bool:
    plain = member.__func__ if isinstance(member, staticmethod | classmethod) else member
    return inspect.isroutine(plain)


def published_method(service: object, name: str, method: str) -> Callable[..., Any]:
    """The bound method of a service; attributes, properties, classes and private names are not methods.

    Args:
        service: the registered object, or the `Service` that holds it with its interface.
        name: the service's name, for the message.

    Raises:
        ToolFailed: the service publishes no such method (TOOL_ERROR).
    """
    interface = service.interface if isinstance(service, Service) else None
    target = service.object if isinstance(service, Service) else service
    published = published_methods(target, interface)
    if method not in published:
        raise ToolFailed(
            f"service {name!r} publishes no method {method!r}",
            hint=did_you_mean(method, published) or f"it has: {', '.join(sorted(published)) or 'none'}",
            service=name,
            method=method,
            published=sorted(published),
        )
    bound: Callable[..., Any] = getattr(target, method)
    return bound
