"""Overrides of services: whether a service may replace another one, and which of several overrides is used.

An override is used through the interface of the replaced service, so it must have all its methods, callable in
every way in which the replaced ones are. Its other methods are not published.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tavern_core.contract.protocols import Service
from tavern_core.contract.published_methods import function_of, published
from tavern_core.frozen_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ServiceOverride:
    """A plugin's service that replaces another one of the same name."""

    plugin: str
    rank: int
    """The plugin's position in the order of precedence; the lowest one wins."""
    service: Service


def winner(overrides: Mapping[str, ServiceOverride]) -> ServiceOverride | None:
    """The override in use, of those that plugins contribute; independent of the order of activation."""
    return min(overrides.values(), key=lambda o: (o.rank, o.plugin), default=None)


def standing_in(replaced: Service | None, override: Service) -> Service:
    """The override with the published methods of the replaced service."""
    if replaced is None:
        return override
    interface = replaced.interface or type(replaced.object)
    return replace(override, interface=interface, description=override.description or replaced.description)


def differences(replaced: Service, override: Service) -> list[str]:
    """Why `override` cannot replace `replaced`, method by method; empty if it can. Calls neither."""
    found: list[str] = []
    offered = published(Service(override.name, override.object))
    for name, wanted in published(replaced).items():
        if (method := offered.get(name)) is None:
            found.append(f"it has no method {name}{_shown(wanted)}")
            continue
        if inspect.iscoroutinefunction(function_of(wanted)) != inspect.iscoroutinefunction(function_of(method)):
            kinds = ("async def", "def") if inspect.iscoroutinefunction(function_of(wanted)) else ("def", "async def")
            found.append(f"{name} must be `{kinds[0]}`, it is `{kinds[1]}`")
        found += (
            f"{name}{_shown(method)}: {why}; wanted is {name}{_shown(wanted)}" for why in _mismatches(wanted, method)
        )
    return found


def _mismatches(wanted: object, given: object) -> Iterator[str]:
    """The ways in which calls that `wanted` accepts would fail with `given`."""
    want, have = _parameters(wanted), _parameters(given)
    if want is None or have is None:
        return  # written in C, or hiding its parameters: only the name is known
    kinds = {p.kind for p in have}
    takes_any = inspect.Parameter.VAR_POSITIONAL in kinds
    takes_named = inspect.Parameter.VAR_KEYWORD in kinds
    by_name = {p.name: p for p in have if p.kind in _NAMED}
    in_order = [p for p in have if p.kind in _PLACED]
    for at, parameter in enumerate(p for p in want if p.kind in _PLACED):
        placed = in_order[at] if at < len(in_order) else None
        if placed is None and not takes_any:
            yield f"parameter {parameter.name!r} is missing"
        elif parameter.kind in _NAMED and parameter.name not in by_name and not takes_named:
            yield (
                f"parameter {parameter.name!r} is missing"
                if placed is None
                else f"{parameter.name!r} is called {placed.name!r}"
            )
        elif placed is not None and parameter.name in by_name and placed.name != parameter.name:
            yield f"{parameter.name!r} is in another place"
        elif placed is not None and parameter.default is not _NONE and placed.default is _NONE:
            yield f"{parameter.name!r} must be optional"
    for parameter in (p for p in want if p.kind is inspect.Parameter.KEYWORD_ONLY):
        match = by_name.get(parameter.name)
        if match is None and not takes_named:
            yield f"parameter {parameter.name!r} is missing"
        elif match is not None and parameter.default is not _NONE and match.default is _NONE:
            yield f"{parameter.name!r} must be optional"
    known = {p.name for p in want}
    extra = [p for at, p in enumerate(in_order) if at >= sum(w.kind in _PLACED for w in want) and p.name not in known]
    extra += [p for p in have if p.kind is inspect.Parameter.KEYWORD_ONLY and p.name not in known]
    for parameter in extra:
        if parameter.default is _NONE:
            yield f"{parameter.name!r} is not known to its callers and must be optional"
    for kind, what in ((inspect.Parameter.VAR_POSITIONAL, "*args"), (inspect.Parameter.VAR_KEYWORD, "**kwargs")):
        if any(p.kind is kind for p in want) and kind not in kinds:
            yield f"it must take {what}"


_NONE = inspect.Parameter.empty
_PLACED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _parameters(member: object) -> list[inspect.Parameter] | None:
    """The parameters that a caller passes, without `self`."""
    function: Any = function_of(member)
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    bound = not isinstance(member, staticmethod) and found and found[0].kind in _PLACED
    return found[1:] if bound else found


def _shown(member: object) -> str:
    parameters = _parameters(member)
    if parameters is None:
        return "(...)"
    bare = [p.replace(annotation=_NONE, default=_NONE if p.default is _NONE else ...) for p in parameters]
    return str(inspect.Signature(bare)).replace("Ellipsis", "...")
