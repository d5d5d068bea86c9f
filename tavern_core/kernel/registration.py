"""Tools that the embedding program registers itself, one by one, while the host is open (seed 004 §6.1).

They belong to an object plugin of the program's own, `app` by default, so that they are listed, judged, recorded and
removed like all others.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tavern_core.contract.plugin import Plugin
from tavern_core.errors import NameConflict, UsageError
from tavern_core.kernel.candidates import object_candidate
from tavern_core.kernel.lifecycle import Lifecycle
from tavern_core.kernel.offers import Owner, describe
from tavern_core.kernel.records import Record, Standing
from tavern_core.kernel.registry import Entry, Registry


class Registration:
    """Adds tools to a running host."""

    def __init__(self, lifecycle: Lifecycle, registry: Registry) -> None:
        self._lifecycle = lifecycle
        self._registry = registry

    async def register(self, offers: list[Any], plugin: str) -> tuple[str, ...]:
        """Register tools, all or none, and return their ids.

        Raises:
            UsageError: `plugin` is a plugin that was installed or passed to `Tavern.open` (USAGE).
            NameConflict: a tool has the name of one that is registered (NAME_CONFLICT).
            PluginError: something in `offers` is no tool, or has a bad schema.
        """
        record = await self._own(plugin)
        described = describe(offers, Owner(plugin, record.candidate.version, {}))
        known = self._registry.of_plugin(plugin)
        entries = list(known)
        for item in described:
            ids = [item.spec.name] if item.spec else list(item.names)
            if not ids:
                raise UsageError("a factory that is registered needs names=[...]")
            for tool_id in ids:
                if any(e.id == tool_id for e in entries):
                    raise NameConflict(f"the tool {tool_id!r} is registered already", hint="choose another name")
                optional = item.spec.optional if item.spec else bool(item.factory and item.factory.optional)
                entries.append(Entry(tool_id, plugin, item.spec, item.factory, optional))
        self._registry.put(plugin, record.rank, entries, {})
        record.provides["tools"] = tuple(e.id for e in entries)
        return tuple(e.id for e in entries[len(known) :])

    async def _own(self, plugin: str) -> Record:
        """The record of the program's own plugin, made when it is first needed."""
        record = self._lifecycle.records.get(plugin)
        if record is None:
            candidate = object_candidate(Plugin(SimpleNamespace(), name=plugin))
            record = Record(candidate, len(self._lifecycle.records))
            record.standing = Standing("granted")
            self._lifecycle.records[plugin] = record
            await self._lifecycle.activate(plugin)
        elif not isinstance(record.thing, SimpleNamespace) or vars(record.thing):
            raise UsageError(
                f"{plugin!r} is a plugin; tools of a program need a name of their own", hint="leave plugin= out"
            )
        return record
