"""Tools that the embedding program registers itself, one by one, while the host is open (seed 004 §6.1).

They belong to an object plugin of the program, `app` by default, so that they are listed, checked, recorded and
removed like all others. The program is the host, so it may give them other prefixes: ``workflow/send`` becomes the id
``workflow:send``, unless a plugin of that name exists, which alone may name its tools. The original spelling
always stays an alias.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tavern_core.contract.plugin import Plugin
from tavern_core.errors import ActivationFailed, NameConflict, ToolFileInvalid, UsageError
from tavern_core.kernel.plugins.candidate import object_candidate
from tavern_core.kernel.plugins.lifecycle import Lifecycle
from tavern_core.kernel.plugins.plugin_record import PluginCondition, PluginRecord
from tavern_core.kernel.plugins.registry_entries import refuse_bad_schemas
from tavern_core.kernel.plugins.tool_spec_reading import OfferingPlugin, describe, spec_from_mapping
from tavern_core.kernel.registry import RegistryEntry
from tavern_core.model.naming_rules import RESERVED_NAMESPACES, folded_id, is_local_name, is_plugin_name, is_reserved
from tavern_core.model.nearest import known_instead
from tavern_core.model.tool import ToolSpec

_PREFIX = re.compile(r"(?P<prefix>[^:/.]+)[:/.](?P<local>.+)", re.DOTALL)


class Registration:
    """Adds tools to a running host."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle, self._registry = lifecycle, lifecycle.tables.registry

    async def register(self, offers: list[Any], plugin: str) -> tuple[str, ...]:
        """Register tools, all or none, and return their ids.

        Raises:
            UsageError: `plugin` is a plugin that was installed or passed to `Tavern.open` (USAGE).
            NameConflict: a tool has the name of one that is registered, or `plugin` is reserved (NAME_CONFLICT).
            PluginError: something in `offers` is not a tool, or has a bad schema.
        """
        record = await self._own_record(plugin)
        written: dict[str, str] = {}

        def named(name: str) -> str:
            tool_id = self._id_of(name, plugin)
            written[tool_id] = name
            return tool_id

        def from_mapping(data: Mapping[str, Any]) -> ToolSpec:
            if "id" in data and "inputSchema" not in data:
                return spec_from_mapping(data, record.candidate.origin.manifest())
            return replace(spec := _written_out(data), name=named(spec.name), plugin=plugin)

        kinds = self._lifecycle.tables.contributions.kinds_of_plugins()
        owner = OfferingPlugin(
            plugin, record.candidate.version, {}, from_mapping=from_mapping, named=named, kinds=kinds
        )
        entries: list[RegistryEntry] = []
        for item in describe(offers, owner):
            if not item.ids:
                raise UsageError("a factory that is registered needs names=[...]")
            spec = item.spec
            if spec is not None:
                refuse_bad_schemas(spec)
                if spec.kind in ("script", "skill"):
                    raise ActivationFailed(
                        f"{spec.name}: a tool of kind {spec.kind!r} runs a file of its plugin's folder; a program has none",
                        hint="put it into a folder with a plugin.yaml",
                    )
                if (name := written.get(spec.name, spec.name)) != spec.name and name != spec.local_name:
                    spec = replace(spec, aliases=(*spec.aliases, name))
            optional = spec.optional if spec else bool(item.factory and item.factory.optional)
            entries += [RegistryEntry(tool_id, plugin, spec, item.factory, optional) for tool_id in item.ids]
        return self._add(record, entries)

    def _add(self, record: PluginRecord, fresh: list[RegistryEntry]) -> tuple[str, ...]:
        known = self._registry.of_plugin(record.name)
        taken = {**self._registry.entries(), **{entry.id: entry for entry in known}}
        made: dict[str, str] = {}
        for entry in fresh:
            folded = folded_id(entry.id)
            found = taken.get(entry.id) or self._registry.find(entry.id)
            other = made.get(folded) or (found.id if found is not None and folded_id(found.id) == folded else None)
            if other is not None:
                alike = "" if other == entry.id else f" as {other!r}: case, - and _ do not count"
                raise NameConflict(f"the tool {entry.id!r} is registered already{alike}", hint="choose another name")
            made[folded] = entry.id
        entries = [*known, *fresh]
        aliases = {alias: entry.id for entry in entries if entry.spec for alias in entry.spec.aliases}
        self._registry.put(record.name, record.rank, entries, aliases)
        record.provides["tools"] = tuple(entry.id for entry in entries)
        return tuple(entry.id for entry in fresh)

    def _id_of(self, written: str, plugin: str) -> str:
        """The id of a tool that the program calls `written`.

        Raises:
            ActivationFailed: no id can be made from it (ACTIVATION_FAILED).
        """
        if not isinstance(written, str):
            raise ActivationFailed(f"{plugin}: a tool's name is text, got {type(written).__name__}")
        found = _PREFIX.fullmatch(written.strip())
        if found is not None and is_local_name(found["local"]) and self._is_free(found["prefix"], plugin):
            return f"{found['prefix']}:{found['local']}"
        local = re.sub(r"[:/]", ".", written.strip(" :/"))  # its prefix is another plugin's name, or none
        if not is_local_name(local):
            raise ActivationFailed(
                f"{plugin}: {written!r:.200} is not a tool name",
                hint="use 1 to 64 letters, digits, _ . - (A-Z a-z 0-9)",
            )
        return f"{plugin}:{local}"

    def _is_free(self, prefix: str, plugin: str) -> bool:
        if prefix == plugin or prefix in RESERVED_NAMESPACES:
            return True
        return is_plugin_name(prefix) and prefix not in self._lifecycle.records

    async def _own_record(self, plugin: str) -> PluginRecord:
        """The record of the program's own plugin, created when it is first needed."""
        record = self._lifecycle.records.get(plugin)
        if record is None and is_reserved(plugin):
            raise NameConflict(f"the name {plugin!r} is reserved for the host", hint="choose another for plugin=")
        if record is None:
            candidate = object_candidate(Plugin(SimpleNamespace(), name=plugin))
            record = self._lifecycle.records.new(candidate, len(self._lifecycle.records))
            record.condition = PluginCondition("granted")
            self._lifecycle.records[plugin] = record
            await self._lifecycle.activate(plugin)
        elif not isinstance(record.thing, SimpleNamespace) or vars(record.thing):
            raise UsageError(
                f"{plugin!r} is a plugin; tools of a program need a name of their own", hint="leave plugin= out"
            )
        return record


def _written_out(data: Mapping[str, Any]) -> ToolSpec:
    """A tool in the format of seed 004 §4.1: name, version, kind, inputSchema, outputSchema, capabilities …

    Raises:
        ToolFileInvalid: it has no name, or a value of the wrong type (TOOL_FILE_INVALID).
    """
    name = data.get("name", data.get("id"))
    if not isinstance(name, str):
        raise ToolFileInvalid("a tool that is registered needs a name", hint='write {"name": "my-app/tool", ...}')
    wrong = [key for key, kind in _KINDS.items() if data.get(key) is not None and not isinstance(data[key], kind)]
    if wrong:
        raise ToolFileInvalid(f"tool {name!r:.200}: {wrong[0]} cannot be {type(data[wrong[0]]).__name__}")
    if data.get("kind", "python") == "python" and not callable(data.get("impl")) and not data.get("implementation"):
        raise ToolFileInvalid(f"tool {name!r:.200} has nothing to run", hint='add "impl": a function, or a "kind"')
    for part, known, where in ((data, _KEYS, ""), (data.get("costHints") or {}, _COST_HINTS, "costHints: ")):
        if unknown := [key for key in part if key not in known]:
            raise ToolFileInvalid(
                f"tool {name!r:.200}: {where}unknown key {unknown[0]!r:.80}",
                hint=known_instead(str(unknown[0]), sorted(known)),
            )
    values = {key: value for key, value in data.items() if value is not None}
    try:
        return replace(ToolSpec.from_json({**values, "id": name}), impl=data.get("impl"), source="")
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise ToolFileInvalid(f"tool {name!r:.200} cannot be read: {error}") from error


_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("version", "kind", "description", "displayName", "endpoint", "resourceId"), str),
    **dict.fromkeys(("tags", "capabilities", "aliases", "examples"), (list, tuple, set, frozenset)),
    **dict.fromkeys(("inputSchema", "costHints", "implementation"), Mapping),
    "outputSchema": (Mapping, bool),
}
"""The types of a written-out tool's values."""

_KEYS = frozenset({*ToolSpec("").to_json(), "endpoint", "resourceId", "implementation", "impl"})
"""The keys of a written-out tool."""
_COST_HINTS = frozenset(ToolSpec("").to_json()["costHints"])
