"""The context of a plugin in a worker: the same methods as in the host, each calling the host."""

from __future__ import annotations

import inspect
import itertools
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from tavern_core.contract.context import PluginContext, Runtime
from tavern_core.contract.protocols import Service
from tavern_core.contract.published_methods import MUTATES, function_of, published, view_members
from tavern_core.errors import Outcome
from tavern_core.isolation.codec import CannotCross
from tavern_core.isolation.worker.host_client import HostClient
from tavern_core.kernel.views.values import copy_builtins
from tavern_core.model.safe_printing import encodable
from tavern_core.schema.bounded_json_copying import MAX_CHARS, NotPlainData, json_or
from tavern_core.schema.redact import compile_redactor

LONGEST_LINE: Final = 10_000
"""Characters of one line of the log."""


class WorkerFacilities:
    """The host's side of the plugin's context (`contract.context.PluginFacilities`)."""

    def __init__(self, host_client: HostClient, data_dir: Path) -> None:
        self._host_client = host_client
        self._data_dir = data_dir
        self._numbers = itertools.count(1)
        self.watches: dict[int, Callable[[Any], None]] = {}
        """Number → the plugin's callback for a changed setting."""

    def get_config(self, option: str) -> Any:
        return self._host_client.request("get_config", option=option)

    def plugin_config(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._host_client.request("plugin_config")
        return found

    def on_config_change(self, option: str, callback: Callable[[Any], None]) -> None:
        number = next(self._numbers)
        self.watches[number] = callback
        try:
            self._host_client.request("on_config_change", option=option, watch=number)
        except BaseException:
            del self.watches[number]
            raise

    def service(self, name: str) -> Any:
        found = self._host_client.request("service", name=name)
        return _view(self._host_client, name, found["methods"], found["description"])

    def secret(self, name: str) -> str:
        return str(self._host_client.request("secret", name=name))

    def data_dir(self) -> Path:
        self._data_dir.mkdir(parents=True, exist_ok=True)
        return self._data_dir


def _view(host_client: HostClient, name: str, methods: Mapping[str, bool], description: str) -> Any:
    """A view of a service as plugins in the host get it, with the same methods and refusals.

    Args:
        methods: name → whether it is async.
    """
    host = _HostServices(host_client)
    body = {method: remote_method(host, name, method, is_async) for method, is_async in methods.items()}
    body |= view_members(name, methods, description)
    return type(f"{name}View", (), body)()


class RemoteServices(Protocol):
    """Services that run in another process."""

    def call(self, given: dict[str, Any]) -> Any:
        """Call the method that `packed_arguments` names, and wait for the answer."""

    async def call_later(self, given: dict[str, Any]) -> Any:
        """`call` under an event loop."""


class _HostServices:
    """The services of the host."""

    def __init__(self, host_client: HostClient) -> None:
        self._host_client = host_client

    def call(self, given: dict[str, Any]) -> Any:
        return self._host_client.request("call_service", **given)

    async def call_later(self, given: dict[str, Any]) -> Any:
        return await self._host_client.request_later("call_service", **given)


def remote_method(services: RemoteServices, service: str, name: str, is_async: bool) -> Any:
    """A method of a service that sends its arguments to the other side, and returns the answer."""

    async def later(self: object, *args: Any, **kwargs: Any) -> Any:
        return await services.call_later(packed_arguments(service, name, args, kwargs))

    def now(self: object, *args: Any, **kwargs: Any) -> Any:
        return services.call(packed_arguments(service, name, args, kwargs))

    method: Any = later if is_async else now
    method.__name__ = method.__qualname__ = name
    return method


def packed_arguments(service: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The call of a service's method for the other side. Raises CannotCross: one of them is not JSON."""
    given = as_in_a_view(f"an argument of {service}.{method}", {"args": list(args), "kwargs": kwargs}, "none")
    return {"name": service, "method": method, **given}


def as_in_a_view(what: str, value: Any, outcome: Outcome) -> Any:
    """A copy of `value`, as a view in the host would make it: tuples as lists, read-only mappings as mappings.

    Args:
        what: a name for the value, for the message.
        outcome: the outcome of the service's call, for the error.

    Raises:
        CannotCross: it is not JSON.
    """
    try:
        return copy_builtins(value, MAX_CHARS)
    except NotPlainData as refused:
        raise CannotCross(f"{what} cannot cross to another process: {refused.problem}", outcome) from None


def context_of(facts: Mapping[str, Any], facilities: WorkerFacilities, folder: Path | None) -> PluginContext:
    """The plugin's context, as sent by the host."""
    return PluginContext(
        facts["id"],
        facts["name"],
        facts["version"],
        facts["description"],
        facts["source"],
        facts["config"],
        Runtime(*facts["runtime"]),
        logging.getLogger(f"tavern.plugin.{facts['id']}"),
        folder,
        facilities,
    )


def facts_of_context(ctx: PluginContext) -> dict[str, Any]:
    """The description from which a worker makes the same context."""
    # Values that look like secrets in the host's free-form configuration stay there: secrets cross by name only.
    runtime = ctx.runtime
    return {
        "id": ctx.id,
        "name": ctx.name,
        "version": ctx.version,
        "description": ctx.description,
        "source": ctx.source,
        "config": json_or(compile_redactor()(dict(ctx.config)), {}),
        "runtime": [runtime.host_version, runtime.python_version, runtime.safe_mode],
    }


class HostLogHandler(logging.Handler):
    """Sends log records of the worker to the host, which masks and writes them."""

    def __init__(self, host_client: HostClient) -> None:
        super().__init__()
        self._host_client = host_client
        self._busy = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(self._busy, "now", False):
            return
        self._busy.now = True
        try:
            text = self.format(record)
        except Exception as error:  # noqa: BLE001 - arguments that do not fit the message
            text = f"{record.msg!r:.1000} could not be logged: {error!r:.200}"
        finally:
            self._busy.now = False
        text = encodable(text)[:LONGEST_LINE]
        self._host_client.send("log", level=record.levelno, logger=record.name[:200], text=text)


# Service methods ------------------------------------------------------------------------------------------------------
# The description of a service's methods: enough to create equal ones.

LONGEST_DOC: Final = 4_000
"""Transferred characters of one docstring."""


def method_facts(service: Service) -> dict[str, Any]:
    """Published method → its description."""
    return {name: _facts(service, name, member) for name, member in published(service).items()}


def _facts(service: Service, name: str, member: object) -> dict[str, Any]:
    function: Any = function_of(member)
    try:
        found = list(inspect.signature(function).parameters.values())
        if isinstance(member, staticmethod):
            found.insert(0, inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY))
        parameters = [[p.name, int(p.kind), p.default is not p.empty] for p in found]
    except (TypeError, ValueError):
        parameters = None
    bound = getattr(service.object, name, None)
    return {
        "async": inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(bound),
        "mutates": getattr(function, MUTATES, None),
        "doc": (inspect.getdoc(function) or "")[:LONGEST_DOC],
        "parameters": parameters,
    }
