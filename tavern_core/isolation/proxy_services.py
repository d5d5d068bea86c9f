"""The methods of a service in a worker, built from its description and equal to the originals on inspection."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tavern_core.contract.effects import MUTATES
from tavern_core.errors import sayable
from tavern_core.isolation.supervisor import Supervisor
from tavern_core.isolation.transport import judged
from tavern_core.isolation.worker.facilities import packed_arguments
from tavern_core.isolation.worker.service_methods import LONGEST_DOC


def proxy_service(supervisor: Supervisor, service: str, doc: str, facts: Mapping[str, Any]) -> Any:
    """An object whose methods call the worker."""
    body: dict[str, Any] = {"__slots__": (), "__doc__": doc}
    for name, described in facts.items():
        if str(name).isidentifier() and not name.startswith("_"):
            body[name] = _method(supervisor, service, name, described)
    return type(service if service.isidentifier() else "Service", (), body)()


def _method(supervisor: Supervisor, service: str, name: str, described: Mapping[str, Any]) -> Callable[..., Any]:
    def given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return packed_arguments(service, name, args, kwargs)

    if described["async"] is True:

        async def ask_later(self: object, *args: Any, **kwargs: Any) -> Any:
            return judged(await supervisor.ask_later("service", given(args, kwargs), "loop", f"{service}.{name}"))

        return _dressed(ask_later, name, described)

    def ask(self: object, *args: Any, **kwargs: Any) -> Any:
        return judged(supervisor.ask("service", given(args, kwargs)))

    return _dressed(ask, name, described)


def _dressed(method: Any, name: str, described: Mapping[str, Any]) -> Callable[..., Any]:
    """`method` with the name, the docstring, the mark and the parameters of the original."""
    method.__name__ = method.__qualname__ = name
    method.__doc__ = sayable(str(described["doc"]), LONGEST_DOC)
    if type(described["mutates"]) is bool:
        setattr(method, MUTATES, described["mutates"])
    if described["parameters"] is not None:
        empty = inspect.Parameter.empty
        parameters = [
            inspect.Parameter(str(n), inspect._ParameterKind(kind), default=... if optional is True else empty)
            for n, kind, optional in described["parameters"]
        ]
        method.__signature__ = inspect.Signature(parameters)
    return method  # type: ignore[no-any-return]
