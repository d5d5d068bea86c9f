"""`tavern.upstreams`: the systems whose tools become tools of this host, their states, and the operator's actions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, TypeVar

from tavern_core.contract.adapters import Connection, Documents
from tavern_core.errors import TavernError, ToolFailed, UpstreamError, UsageError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.access.tool_pins import Difference
from tavern_core.kernel.catalogue.tools import ToolsDiff
from tavern_core.kernel.plugins.lifecycle import Lifecycle
from tavern_core.model.call import CallContext
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.result import iso_utc
from tavern_core.schema.redact import redact_text
from tavern_core.upstreams.connections import UpstreamConnections, without_secrets
from tavern_core.upstreams.document_reads import DocumentReads
from tavern_core.upstreams.listing_cache import ListingCache, UncheckedPattern
from tavern_core.upstreams.quarantine import UpstreamQuarantine
from tavern_core.upstreams.tool_specs import local_name, unknown_overrides
from tavern_core.upstreams.upstream_plugin_candidates import UpstreamEntry, entry_of

T = TypeVar("T")
ANSWER_S: Final = 30.0
"""Seconds that an upstream may take to answer a check, or to deliver a resource or a prompt."""


@dataclass(frozen=True, slots=True)
class UpstreamStatus:
    """A row of `tavern.upstreams`."""

    name: str
    kind: str
    target: str
    """Its address, command line, distribution or folder; likely secrets are masked (not in review and lock file)."""
    plugin: str
    """The part of the ids of its tools before the colon."""
    state: str
    """`pending_consent`, `disabled`, `failed` (the plugin); or idle, connecting, open, failed (the connection)."""
    reason: str = ""
    tools: tuple[str, ...] = ()
    quarantined: tuple[str, ...] = ()
    """Tools that changed, are new or were renamed since the upstream was reviewed."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Name → why it is not a tool."""
    listed_at: float | None = None
    """Seconds since the epoch, UTC; None: never."""
    asked_at: float | None = None
    """When any process last listed or checked it; None: never."""
    latency_ms: float | None = None
    """The time of the last request."""
    last_error: str = ""
    description: str = ""
    version: str = ""
    unchecked: Mapping[str, tuple[UncheckedPattern, ...]] = field(default_factory=dict)
    """Tool → the patterns of its schemas that the host cannot validate."""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "target": self.target,
            "plugin": self.plugin,
            "state": self.state,
            "reason": self.reason,
            "tools": list(self.tools),
            "quarantined": list(self.quarantined),
            "leftOut": dict(self.left_out),
            "unchecked": [
                {"tool": tool, "pointer": one.pointer, "pattern": one.pattern, "reason": one.reason}
                for tool, found in self.unchecked.items()
                for one in found
            ],
            "listedAt": None if self.listed_at is None else iso_utc(self.listed_at),
            "askedAt": None if self.asked_at is None else iso_utc(self.asked_at),
            "latencyMs": None if self.latency_ms is None else round(self.latency_ms, 3),
            "lastError": self.last_error,
            "description": self.description,
            "version": self.version,
        }


class Upstreams(Mapping[str, UpstreamStatus]):
    """Name → status. Actions are coroutines and, with `_sync`, plain calls. Safe for threads and event loops.

    Args:
        entries: the configured upstreams.
        reads: the rules for reading resources and prompts, and the lists of tools.
    """

    def __init__(
        self,
        entries: Mapping[str, UpstreamEntry],
        cache: ListingCache,
        lifecycle: Lifecycle,
        quarantine: UpstreamQuarantine,
        connections: UpstreamConnections,
        reads: DocumentReads,
    ) -> None:
        base = lifecycle.tables.base
        self._entries = dict(entries)
        self._cache = cache
        self._lifecycle = lifecycle
        self._wait = base.portal.run
        self._known = base.known_secrets
        self._reads = reads
        self._quarantine = quarantine
        self._connections = connections
        self._listings = reads.listings
        self.find = self._listings.find
        """Lists an upstream whose tools are not known yet, because one of them is needed."""
        if entries:
            base.signals.lookup.subscribe(self._listings.looked_for)

    # Looking ----------------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> UpstreamStatus:
        if name not in self._entries:
            raise KeyError(name)
        return self._status(self._entries[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def status(self, name: str) -> UpstreamStatus:
        """The status of one upstream.

        Raises:
            UpstreamNotFound: there is no such upstream; names the nearest (UPSTREAM_NOT_FOUND).
        """
        return self._status(self._entry(name))

    def differences(self, name: str) -> dict[str, tuple[Difference, ...]]:
        """Tool → its differences from the review. Raises UpstreamNotFound (UPSTREAM_NOT_FOUND)."""
        return self._quarantine.differences(self._entry(name))

    def flaws(self) -> dict[str, UpstreamError]:
        """Upstream → the error of its entry, as far as that is known before any connection or activation."""
        found = {name: self._connections.flaw(entry) for name, entry in self._entries.items()}
        return {name: flaw for name, flaw in found.items() if flaw is not None}

    def unknown_overrides(self, name: str) -> dict[str, str]:
        """Errors of the entry about tools that the stored listing does not have → what to do about each.

        Raises:
            UpstreamNotFound: there is no such upstream (UPSTREAM_NOT_FOUND).
        """
        entry = self._entry(name)
        return unknown_overrides(name, entry.config, entry.definitions) if entry.is_listed else {}

    # Acting -----------------------------------------------------------------------------------------------------------

    async def refresh(self, name: str | None = None) -> dict[str, ToolsDiff]:
        """List the tools of one upstream again, or of all that may be used.

        Returns:
            upstream → what changed. If all were listed, a failure is in the status of its upstream.

        Raises:
            UpstreamNotFound: there is no such upstream (UPSTREAM_NOT_FOUND).
            CallError: the named one does not answer, or lacks a required grant.
        """
        if name is not None:
            entry = self._entry(name)
            return {name: await self._connections.on_loop(self._refresh_now(entry))}
        return await self._refresh(self._entries.values())

    async def refresh_used(self) -> dict[str, ToolsDiff]:
        """`refresh` of all upstreams that this process has used or listed."""
        return await self._refresh(filter(self._connections.was_used, self._entries.values()))

    async def _refresh(self, wanted: Iterable[UpstreamEntry]) -> dict[str, ToolsDiff]:
        entries = [entry for entry in wanted if not self._connections.missing(entry)]
        listed = (self._connections.on_loop(self._refresh_now(entry)) for entry in entries)
        found = await asyncio.gather(*listed, return_exceptions=True)
        for result in found:
            if isinstance(result, BaseException) and not isinstance(result, TavernError):
                raise result
        return {e.name: r for e, r in zip(entries, found, strict=True) if isinstance(r, ToolsDiff)}

    async def check(self, name: str) -> UpstreamStatus:
        """Check now whether an upstream answers. Raises as `refresh`."""
        entry = self._entry(name)
        self._connections.session(entry).try_at_once()
        try:
            await self._ask(entry, lambda connection: connection.check())
        except TavernError as error:
            await self._listings.note_health(entry, error)
            raise
        await self._listings.note_health(entry)
        return self._status(entry)

    async def connect(self, name: str, show: Callable[[str], None] | None = None) -> UpstreamStatus:
        """Connect to an upstream, list its tools, and accept their definitions at the first time. Raises as `refresh`.

        Args:
            show: shows a person an address to open in a browser, if the upstream requires a login; None: there is no
                person.
        """
        if show is not None:
            await self._connections.log_in(self._entry(name), show)
        await self.refresh(name)
        return self.status(name)

    async def disconnect(self, name: str) -> UpstreamStatus:
        """Close the connections to an upstream; the next call opens them again. Raises UpstreamNotFound (UPSTREAM_NOT_FOUND)."""
        entry = self._entry(name)
        await self._connections.close(entry.name)
        return self._status(entry)

    def accept(self, name: str, tools: Sequence[str] = ()) -> UpstreamStatus:
        """Accept the current definitions of an upstream's tools as reviewed.

        Args:
            tools: names as the upstream spells them, alone or after its own, or ids; none: all. Removed tools are
                forgotten.

        Raises:
            UpstreamNotFound: there is no such upstream (UPSTREAM_NOT_FOUND).
            UsageError: it has no such tool (USAGE).
            PluginNotFound: there is no grant for the upstream yet (PLUGIN_NOT_FOUND).
        """
        entry = self._entry(name)
        known = {*entry.tools(), *self._quarantine.differences(entry)}
        spellings = {f"{entry.plugin}:{name}": tool for tool in known for name in (tool, local_name(tool))}
        chosen = [spellings.get(tool, tool) for tool in tools]
        hint = f"there are: {', '.join(sorted(known)[:10]) or 'none'}"
        for tool in chosen:
            if tool not in known:
                raise UsageError(f"{name} has no tool {tool!r:.80}", hint=did_you_mean(tool, known) or hint)
        self._quarantine.accept(entry, chosen or None)
        self._listings.forget_lateness(entry)
        self._lifecycle.tools_changed(entry.plugin, entry.candidate())
        return self._status(entry)

    async def close(self) -> None:
        """Close every connection."""
        if self._listings.is_busy:
            await self._connections.on_loop(self._listings.close())
        await self._connections.close()

    # Resources and prompts --------------------------------------------------------------------------------------------

    async def resources(self, name: str) -> list[Mapping[str, Any]]:
        """The resources of an upstream (MCP). Raises as `refresh`; ToolFailed: its kind has none (TOOL_ERROR)."""
        return list(await self._ask(self._entry(name), lambda one: _documents(name, one).list_resources()))

    async def read_resource(self, name: str, uri: str, *, context: CallContext | None = None) -> Mapping[str, Any]:
        """Read a resource. The event UPSTREAM_READ records the caller and the address, not the content.

        Args:
            context: the caller, who needs the permissions of a call, and whose lists and profile must allow the
                upstream; its credentials are used. None: the host itself.

        Raises:
            PolicyDenied: the caller may not read it (POLICY_DENIED).
            UsageError: an argument has the wrong type (USAGE); else as `resources`.
        """
        entry = self._entry(name)
        _must_be_text("read_resource takes the address of a resource", uri)

        def ask() -> Awaitable[Mapping[str, Any]]:
            return self._ask(entry, lambda one: _documents(name, one).read_resource(uri), context)

        return await self._reads.read(entry, "resource", uri, context, ask)

    async def prompts(self, name: str) -> list[Mapping[str, Any]]:
        """The prompts that an upstream offers (MCP). Raises as `resources`."""
        return list(await self._ask(self._entry(name), lambda one: _documents(name, one).list_prompts()))

    async def get_prompt(
        self,
        name: str,
        prompt: str,
        arguments: Mapping[str, str] | None = None,
        *,
        context: CallContext | None = None,
    ) -> Mapping[str, Any]:
        """A prompt, filled in. Arguments and errors as for `read_resource`."""
        entry, values = self._entry(name), {} if arguments is None else arguments
        _must_be_text("get_prompt takes the name of a prompt", prompt)
        if not isinstance(values, Mapping):
            raise UsageError(f"the arguments of a prompt are a mapping of texts, got {type(values).__name__}")
        _must_be_text("the arguments of a prompt are a mapping of texts", *values, *values.values())

        def ask() -> Awaitable[Mapping[str, Any]]:
            return self._ask(entry, lambda one: _documents(name, one).get_prompt(prompt, values), context)

        return await self._reads.read(entry, "prompt", prompt, context, ask)

    # The same for sync code -------------------------------------------------------------------------------------------

    def refresh_sync(self, name: str | None = None) -> dict[str, ToolsDiff]:
        """`refresh` for sync code."""
        return self._wait(self.refresh(name))

    def check_sync(self, name: str) -> UpstreamStatus:
        """`check` for sync code."""
        return self._wait(self.check(name))

    def connect_sync(self, name: str, show: Callable[[str], None] | None = None) -> UpstreamStatus:
        """`connect` for sync code."""
        return self._wait(self.connect(name, show))

    async def _refresh_now(self, entry: UpstreamEntry) -> ToolsDiff:
        self._connections.session(entry).try_at_once()
        return await self._listings.refresh(entry)

    async def _ask(
        self, entry: UpstreamEntry, work: Callable[[Connection], Awaitable[T]], context: CallContext | None = None
    ) -> T:
        answer = await self._connections.ask(entry, work, ANSWER_S, context)
        found: T = without_secrets(answer, self._known.values | self._connections.secrets[entry.name].renewed)
        return found

    def _entry(self, name: str) -> UpstreamEntry:
        return entry_of(self._entries, name)

    def _status(self, entry: UpstreamEntry) -> UpstreamStatus:
        record, listed = self._lifecycle.records.get(entry.plugin), self._cache.listed(entry.name)
        session, definitions = self._connections.session(entry), entry.definitions
        error = self._listings.errors.get(entry.name) or session.error
        health = self._cache.health(entry.name)
        if health is not None and health.fingerprint != entry.fingerprint:
            health = None
        was_used = error is not None or session.latency_ms is not None  # by this process, whose data are newer
        latency_ms, last_error = session.latency_ms, self._known.mask_text(error.message) if error is not None else ""
        if health is not None and not was_used:
            latency_ms, last_error = health.latency_ms, health.error
        is_ours = record is not None and entry.is_plugin(record.candidate)
        state: str = self._connections.state(entry) if is_ours else "failed"
        reason = ""
        if record is not None and is_ours and self._connections.missing(entry):
            state = "pending_consent" if record.usable else record.state
            reason = record.reason or f"not granted: tavern plugins review {entry.plugin}"
        elif record is not None and not is_ours:
            reason = f"another plugin is called {entry.plugin!r}; give the upstream a `namespace`"
        if (flaw := self._connections.flaw(entry)) is not None:
            state, reason = "failed", f"{flaw.message} ({flaw.hint})" if flaw.hint else flaw.message
        return UpstreamStatus(
            entry.name,
            entry.config.kind,
            redact_text(entry.config.target),
            entry.plugin,
            state,
            reason,
            tuple(sorted(f"{entry.plugin}:{local_name(tool)}" for tool in entry.tools())),
            tuple(f"{entry.plugin}:{local_name(tool)}" for tool in self._quarantine.quarantined(entry)),
            definitions.left_out,
            listed.at if listed is not None and entry.is_listed else None,
            health.at if health is not None else None,
            latency_ms,
            last_error,
            definitions.description,
            definitions.version,
            {f"{entry.plugin}:{local_name(name)}": found for name, found in (definitions.unchecked or {}).items()},
        )


def _must_be_text(rule: str, *values: object) -> None:
    for value in values:
        if not isinstance(value, str):
            raise UsageError(f"{rule}, got {type(value).__name__}")


def _documents(name: str, connection: Connection) -> Documents:
    if not isinstance(connection, Documents):
        raise ToolFailed(f"upstream {name} has no resources and prompts: its kind knows none")
    return connection
