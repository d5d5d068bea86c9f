"""The description of a service's methods: enough to create equal ones."""

from __future__ import annotations

import inspect
from typing import Any, Final

from tavern_core.contract.effects import MUTATES, function_of
from tavern_core.contract.protocols import Service
from tavern_core.contract.publishing import published

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
