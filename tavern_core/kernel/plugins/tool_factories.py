"""Which ids come out of a factory: the ones it names, those it made for the host, or those plugin.yaml declares."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tavern_core.contract.tools import ToolFactory
from tavern_core.kernel.plugins.tool_offers import Described, Owner, specs_of
from tavern_core.model.call import CallContext


def ids_made(made: Any, owner: Owner) -> tuple[str, ...]:
    """The full ids of the tools that a factory made for a caller.

    Raises:
        PluginError: it is not a tool (ACTIVATION_FAILED).
    """
    return () if made is None else tuple(spec.name for spec in specs_of(made, owner))


def assign_names(
    described: Sequence[Described], made: Mapping[int, tuple[str, ...]], declared: Iterable[str]
) -> tuple[list[Described], int]:
    """Give the factories that have no names the ids that are known of them.

    Args:
        made: position of a factory without names → the ids it made for the host.
        declared: ids in plugin.yaml; those without another source must come from factories without names.

    Returns:
        All that is known by id, and the number of factories of which no id is known.
    """
    named = [replace(item, names=made[n]) if n in made else item for n, item in enumerate(described)]
    offered = {i for item in named for i in ([item.spec.name] if item.spec else item.names)}
    missing = tuple(tool_id for tool_id in declared if tool_id not in offered)
    loose = [item.factory for n, item in enumerate(described) if n in made and item.factory is not None]
    known = [item for item in named if item.spec is not None or item.names]
    if missing and loose:
        return [*known, Described(factory=_any_of(loose), names=missing)], 0
    return known, len(named) - len(known)


def _any_of(factories: Sequence[ToolFactory]) -> ToolFactory:
    """One factory that makes what all of them make."""
    if len(factories) == 1:
        return factories[0]

    async def make(context: CallContext) -> list[Any]:
        found: list[Any] = []
        for factory in factories:
            made = factory.make(context)
            made = await made if inspect.isawaitable(made) else made
            found += [] if made is None else made if isinstance(made, list | tuple) else [made]
        return found

    return ToolFactory(make, optional=all(factory.optional for factory in factories))
