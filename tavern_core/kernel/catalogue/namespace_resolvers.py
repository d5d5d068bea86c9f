"""Tools with a prefix that a plugin resolves, such as ``library:``.

A resolver is code of a plugin. It runs within the time limit of hooks, and its answers follow the rules of every tool;
a resolver that fails loses only its own tools.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

from tavern_core.contract.protocols import NamespaceResolver
from tavern_core.errors import ActivationFailed, CallError, TavernError, UpstreamError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.catalogue.tool_spec_cache import ToolSpecs
from tavern_core.kernel.execution.sync_async_drivers import ExecutionMode, step_by_hand
from tavern_core.kernel.plugins.plugin_record import PluginRecord
from tavern_core.kernel.plugins.registry_entries import refuse_bad_schemas
from tavern_core.kernel.plugins.tool_spec_validation import refuse_unsound
from tavern_core.kernel.registry import RegistryEntry
from tavern_core.model.naming_rules import spellings, split_id
from tavern_core.model.safe_printing import printed
from tavern_core.model.tool import ToolSpec

MOST_NAMES = 1_000


def canonical(written: str) -> str:
    """The canonical id of `written` in a namespace: ``jobs.getResult`` is ``jobs:getResult``."""
    return spellings(written)[:2][-1]


class Namespaces:
    """The namespaces of one host. Safe for threads."""

    def __init__(self, specs: ToolSpecs) -> None:
        base, tables = specs.base, specs.lifecycle.tables
        self._specs = specs
        self._contributions = tables.contributions
        self._calls = tables.calls
        self.inline = base.inline
        self._rest_s = base.config.limits.hook_rest_ms / 1000
        self._paused: dict[str, tuple[Any, float]] = {}
        """Prefix → a resolver that hung, and until when it is not called (monotonic clock)."""

    def inactive(self, prefixes: Collection[str]) -> list[str]:
        """Inactive plugins that may contribute one of these prefixes: they declare it, or declare no names."""
        wanted = {prefix for prefix in prefixes if prefix and self._contributions.get("namespaces", prefix) is None}
        found = []
        for record in self._specs.lifecycle.records.values() if wanted else ():
            if record.can_start and "namespaces" in record.candidate.facts.sections:
                declared = record.candidate.facts.declared.get("namespaces", ())
                if not declared or not wanted.isdisjoint(declared):
                    found.append(record.name)
        return found

    async def wake(self, prefixes: Collection[str]) -> None:
        """Activate the plugins that contribute these prefixes; the status of one that fails gives the reason."""
        names = self.inactive(prefixes)
        await self._specs.lifecycle.activate_all(lambda record: record.name in names)

    async def find(self, written: str, mode: ExecutionMode) -> tuple[ToolSpec, PluginRecord] | None:
        """The tool of an id, after the hooks, and its plugin; None: no plugin resolves the prefix, or no such tool.

        Raises:
            UpstreamError: the plugin or its resolver failed, hung or did not return a tool (UPSTREAM_ERROR).
            PolicyDenied: a hook hides the tool (POLICY_DENIED).
        """
        prefix, local = map(str.strip, split_id(canonical(written)))  # a blank must not separate it from its lists
        resolver, owner = self._contributions.get("namespaces", prefix), self._contributions.owner("namespaces", prefix)
        if resolver is None or owner is None:
            return None
        answer = await self._call_resolver(prefix, owner, resolver, resolver.resolve, local, mode=mode)
        if answer is None:
            return None
        try:
            spec = _sound(answer, prefix, local, owner)
        except TavernError as error:
            raise self._failure(prefix, owner, error.message, error.hint) from error
        spec = await self._specs.decorated(spec, RegistryEntry(spec.id, owner, spec, optional=spec.optional), mode)
        return spec, self._specs.lifecycle.records[owner]

    def find_sync(self, written: str) -> tuple[ToolSpec, PluginRecord] | None:
        """`find` for sync code, among active plugins. Raises as `find`."""
        return step_by_hand(self.find(written, self.inline))

    def resolvers(self) -> dict[str, SyncNamespaceResolver]:
        """Prefix → its resolver, for calls from sync code."""
        return {prefix: SyncNamespaceResolver(self, prefix) for prefix in self._contributions.all("namespaces")}

    async def names(self, prefix: str, mode: ExecutionMode) -> list[str]:
        """The local names that a resolver suggests. Raises UpstreamError as `find`."""
        resolver, owner = self._contributions.get("namespaces", prefix), self._contributions.owner("namespaces", prefix)

        def listed() -> list[str]:
            found: Iterable[Any] = resolver.names()
            return [name for name in islice(found, MOST_NAMES) if isinstance(name, str)]

        return (
            []
            if resolver is None or owner is None
            else await self._call_resolver(prefix, owner, resolver, listed, mode=mode)
        )

    async def _call_resolver(
        self, prefix: str, owner: str, resolver: NamespaceResolver, function: Any, *args: Any, mode: ExecutionMode
    ) -> Any:
        paused, until = self._paused.get(prefix, (None, 0.0))
        if paused is resolver and time.monotonic() < until:
            raise self._failure(prefix, owner, "took too long and is left alone for a while")
        try:
            return await self._calls.work("it", function, *args, mode=mode)
        except Exception as error:
            if isinstance(error, TimeoutError):
                self._paused[prefix] = resolver, time.monotonic() + self._rest_s
            raise self._failure(prefix, owner, f"failed with {printed(error):.300}") from error

    def _failure(self, prefix: str, owner: str, why: str, hint: str = "") -> UpstreamError:
        text = f"the namespace {prefix!r} of {owner} {why}"
        self._specs.diagnostics.add(
            "NAMESPACE_FAILED", text, plugin=owner, hint=hint or f"tavern plugins info {owner}", severity="error"
        )
        return UpstreamError(text, hint=hint or f"see plugin {owner}", plugin=owner, outcome="none")


@dataclass(frozen=True, slots=True)
class SyncNamespaceResolver:
    """A resolver for calls from sync code (`contract.protocols.NamespaceResolver`). Raises as `Namespaces.find`."""

    _all: Namespaces
    _prefix: str

    def resolve(self, local: str, /) -> ToolSpec | None:
        found = self._all.find_sync(f"{self._prefix}:{local}")
        return None if found is None else found[0]

    def names(self) -> list[str]:
        try:
            return step_by_hand(self._all.names(self._prefix, self._all.inline))
        except CallError:
            return []


def _sound(answer: Any, prefix: str, local: str, owner: str) -> ToolSpec:
    """A resolver's answer as a tool of its plugin.

    Raises:
        ActivationFailed: it is not a tool, or has an invalid schema (ACTIVATION_FAILED).
    """
    if not isinstance(answer, ToolSpec):
        raise ActivationFailed(f"answered {type(answer).__name__} for {local!r:.100}, and no ToolSpec")
    if not isinstance(answer.name, str) or split_id(answer.name)[0] not in ("", prefix):
        raise ActivationFailed(f"answered {answer.name!r:.100} for {f'{prefix}:{local}'!r:.100}")
    spec = replace(answer, name=f"{prefix}:{local}", plugin=owner)
    refuse_unsound(spec)
    refuse_bad_schemas(spec)
    return spec
