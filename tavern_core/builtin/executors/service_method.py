"""Tools of kind `service`: a published method of a registered service, called with the arguments as keywords.

The service is looked up for each call: its plugin may be activated, reloaded or disabled in between, and a tool must
never use the old object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tavern_core.contract.context import PluginContext
from tavern_core.contract.hookspecs import hookimpl
from tavern_core.contract.protocols import BoundTool, Executor, Service, ToolHome
from tavern_core.contract.published_methods import published_methods
from tavern_core.contract.tool_settings import when_set_up
from tavern_core.errors import ToolFailed, ToolFileInvalid
from tavern_core.model.call import ToolCall
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.tool import ToolSpec

_KEYS = ("type", "service", "method")


@hookimpl(fast=True)
def tavern_register_executors(ctx: PluginContext) -> Mapping[str, Executor]:
    return {"service": ServiceExecutor()}


class ServiceExecutor:
    """Runs ``implementation: {type: service, service: name, method: m}``."""

    def bind(self, tool: ToolSpec, home: ToolHome, /) -> BoundTool:
        """Check the tool file; the service itself is looked up at each call.

        Raises:
            ToolFileInvalid: a name is missing, the method is private, or no parameters are declared (TOOL_FILE_INVALID).
        """
        name, method = _name(tool, "service"), _name(tool, "method")
        if method.startswith("_") or not method.isidentifier():
            raise ToolFileInvalid(
                f"tool {tool.name}: {method!r} is not a public method",
                hint="publish a method of the service that does what the tool needs, and name that",
            )
        _check_keys(tool)
        if tool.input_schema.get("type") != "object" or "properties" not in tool.input_schema:
            raise ToolFileInvalid(
                f"tool {tool.name}: a service tool must declare its parameters",
                hint='add "parameters": {"type": "object", "properties": {…}} to the tool file',
            )

        def run(arguments: Mapping[str, Any], call: ToolCall | None) -> Any:
            return find_method(home.service(name), name, method)(**arguments)

        bound = BoundTool(run, is_async=False, blocking=not tool.fast, place=f"as a method of the service {name!r}")
        return when_set_up(bound, tool, home)


def _name(tool: ToolSpec, key: str) -> str:
    value = tool.implementation.get(key)
    if isinstance(value, str) and value:
        return value
    raise ToolFileInvalid(
        f"tool {tool.name}: implementation.{key} must be a name, got {value!r}",
        hint='write "implementation": {"type": "service", "service": "clock", "method": "now"}',
    )


def _check_keys(tool: ToolSpec) -> None:
    keys = {key for key, value in tool.implementation.items() if value not in (None, "", (), [])}
    for key in sorted(keys.difference(_KEYS)):
        raise ToolFileInvalid(f"tool {tool.name}: a service tool has no {key!r}", hint=did_you_mean(key, _KEYS))


def find_method(found: object, name: str, method: str) -> Callable[..., Any]:
    """The bound method of a service.

    Args:
        found: the host's entry of `name`: the `Service`, or its object.

    Raises:
        ToolFailed: the service publishes no such method, or lacks one of its interface (TOOL_ERROR).
    """
    service = found if isinstance(found, Service) else Service(name, found)
    published = published_methods(service)
    if method not in published:
        raise ToolFailed(
            f"service {name!r} publishes no method {method!r}",
            hint=did_you_mean(method, published) or f"it publishes: {', '.join(published) or 'nothing'}",
            service=name,
            method=method,
            published=published,
        )
    bound = getattr(service.object, method, None)
    if not callable(bound):
        raise ToolFailed(
            f"service {name!r} lacks the method {method!r} that its interface promises", service=name, method=method
        )
    return bound  # type: ignore[no-any-return]
