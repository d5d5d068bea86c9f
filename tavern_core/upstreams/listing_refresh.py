"""When upstreams are listed, and how their tools are registered.

looked up, never listed      sync code waits a while, code under an event loop continues without
looked up, out of date       listed again in the background; the known tools are used meanwhile
a tool of it was called      a call of an upstream that was never listed waits for its list
it reports a change          listed again in the background
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from tavern_core.contract.adapters import Listing, UpstreamTool
from tavern_core.errors import TavernError, UpstreamError
from tavern_core.kernel.catalogue.tools import ToolsDiff
from tavern_core.kernel.plugins.lifecycle import Lifecycle
from tavern_core.model.event import TOOLS_CHANGED
from tavern_core.model.plugin_status import Diagnostic
from tavern_core.model.safe_printing import seen
from tavern_core.schema.secret_encodings import secret_redactor
from tavern_core.upstreams.connections import UpstreamConnections
from tavern_core.upstreams.listing_cache import (
    ListingCache,
    ListingIndexEntry,
    UpstreamDefinitions,
    UpstreamHealth,
    definition,
)
from tavern_core.upstreams.quarantine import UpstreamQuarantine
from tavern_core.upstreams.tool_specs import (
    Masks,
    local_name,
    sound,
    unchecked_patterns,
    unknown_overrides,
    well_formed,
)
from tavern_core.upstreams.upstream_plugin_candidates import UpstreamEntry

LIST_S: Final = 60.0
"""The time limit of a listing, including all pages."""
WAIT_S: Final = 10.0
"""Seconds that a look-up by sync code waits for upstreams that were never listed."""
PAUSE_S: Final = 0.5
"""The minimum time between two listings of an upstream that reports changes."""
AGAIN_S: Final = 60.0
"""Seconds that an upstream is not listed again after a failed listing, unless a caller names it."""
CLOSING_S: Final = 5.0
"""Seconds that closing the host waits for upstreams that answered the last time."""

_LATE: Final = "it had not listed its tools when the host was closed"


class ListingRefresh:
    """Keeps the listings of a host's upstreams up to date."""

    def __init__(
        self,
        entries: Mapping[str, UpstreamEntry],
        cache: ListingCache,
        lifecycle: Lifecycle,
        connections: UpstreamConnections,
        quarantine: UpstreamQuarantine,
    ) -> None:
        self.errors: dict[str, TavernError] = {}
        """Upstream → the error of its last listing or check."""
        self._entries = entries
        self._cache = cache
        self._lifecycle = lifecycle
        self._base = lifecycle.tables.base
        self._connections = connections
        self._quarantine = quarantine
        self._locks: dict[str, asyncio.Lock] = {}
        self._not_before: dict[str, float] = {}
        self._beginning = threading.Lock()
        self._under_way: dict[str, concurrent.futures.Future[None]] = {}
        self._changes: set[str] = set()
        """Upstreams that reported a change and were not listed since."""
        self._first: set[str] = set()
        """Upstreams whose first listing is being registered."""
        self._listed_at: dict[str, float] = {}
        self._reported: dict[str, tuple[float | None, tuple[Diagnostic, ...]]] = {}
        """Upstream → the time of its listing, and the reported findings about its schemas."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting = threading.Lock()
        for entry in entries.values():
            entry.list_changed.subscribe(partial(self._changed, entry))

    def looked_for(self) -> None:
        """Called before tools are looked up."""
        now = time.time()
        for entry in self._entries.values():
            self._report(entry)
        due = [e for e in self._entries.values() if not self._is_under_way(e) and self._is_due(e, now)]
        if not due:
            return
        begun = {entry.name: self._begin(entry) for entry in due}
        new = [begun[entry.name] for entry in due if not entry.is_listed]
        if new and asyncio._get_running_loop() is None and self._waiting.acquire(blocking=False):
            try:
                concurrent.futures.wait(new, WAIT_S)
            finally:
                self._waiting.release()

    def _report(self, entry: UpstreamEntry) -> None:
        """Report schemas that are not validated; again if an activation has removed the report."""
        diagnostics, listed = self._base.diagnostics, self._cache.listed(entry.name)
        if listed is None or not entry.is_listed:
            return
        at, found = self._reported.get(entry.name, (None, ()))
        if at != listed.at:
            # Otherwise each process would read all definitions.
            current = entry.unchecked() if listed.has_unchecked else ()
            if current != found:
                diagnostics.withdraw("PATTERN_UNCHECKED", upstream=entry.name)
            found = current
            self._reported[entry.name] = listed.at, found
        if found and not diagnostics.has("PATTERN_UNCHECKED", upstream=entry.name):
            for one in found:
                diagnostics.put(one)

    def _changed(self, entry: UpstreamEntry) -> None:
        """Handle a reported change: list the upstream again, once for many reports. From any thread."""
        self._base.portal.loop().call_soon_threadsafe(self._note_change, entry)

    async def find(self, plugin: str) -> bool:
        """List an upstream that was never listed, because one of its tools is needed; True: there may be tools now."""
        entry = next((e for e in self._entries.values() if e.plugin == plugin), None)
        if entry is None or self._connections.missing(entry):
            return False
        if entry.is_listed and entry.name not in self._first:
            return False
        await asyncio.shield(asyncio.wrap_future(self._begin(entry)))  # others may wait for the same listing
        return entry.is_listed

    async def refresh(self, entry: UpstreamEntry) -> ToolsDiff:
        """List an upstream and register its tools. Runs on the host's loop.

        Raises:
            CallError: it does not answer, or lacks a required grant.
        """
        async with self._locks.setdefault(entry.name, asyncio.Lock()):
            self._changes.discard(entry.name)
            try:
                etag = await asyncio.to_thread(self._etag, entry)
                listing = await self._connections.ask(entry, lambda one: one.list_tools(etag), LIST_S)
                diff = await asyncio.to_thread(self._take, entry, listing)
            except TavernError as error:
                self._failed(entry, error)
                await self.note_health(entry, error)
                raise
            finally:
                self._listed_at[entry.name] = time.monotonic()
            self._base.diagnostics.withdraw("UPSTREAM_FAILED", upstream=entry.name)
            await self.note_health(entry)
            return diff

    @property
    def is_busy(self) -> bool:
        """Whether upstreams are being listed in the background."""
        return bool(self._tasks) or any(not one.done() for one in self._under_way.values())

    async def close(self) -> None:
        """Finish listings in the background: a short command may be the only one to ask. Runs on the host's loop."""
        running: list[tuple[str, asyncio.Future[None]]] = [(task.get_name(), task) for task in self._tasks]
        running += [
            (name, asyncio.wrap_future(future)) for name, future in self._under_way.items() if not future.done()
        ]
        awaited = [(name, future) for name, future in running if not self._had_failed(name)]
        if awaited:
            await asyncio.wait([future for _, future in awaited], timeout=CLOSING_S)
        for name in {name for name, future in awaited if not future.done()}:
            await self.note_health(self._entries[name], UpstreamError(_LATE))
        for _, future in running:
            future.cancel()
        if running:
            await asyncio.wait([future for _, future in running])

    def forget_lateness(self, entry: UpstreamEntry) -> None:
        """Ignore an unfinished later listing, because the operator has accepted the known one."""
        health = self._cache.health(entry.name)
        if health is not None and health.error == _LATE:
            self._cache.note_health(entry.name, replace(health, error=""))

    def _had_failed(self, name: str) -> bool:
        health = self._cache.health(name)
        return health is not None and health.fingerprint == self._entries[name].fingerprint and bool(health.error)

    async def note_health(self, entry: UpstreamEntry, error: TavernError | None = None) -> None:
        """Store the outcome of a request to an upstream, also for other processes; unless it was not allowed."""
        if self._connections.missing(entry):
            return
        if error is None:
            self.errors.pop(entry.name, None)
        else:
            self.errors[entry.name] = error
            if self._connections.flaw(entry) is not None:
                return  # each process finds it, and it would remain after the adapter's plugin is there again
        health = UpstreamHealth(
            entry.fingerprint,
            time.time(),
            self._connections.session(entry).latency_ms,
            "" if error is None else seen(self._base.known_secrets.mask_text(error.message))[:500],
        )
        await asyncio.to_thread(self._cache.note_health, entry.name, health)

    def _is_under_way(self, entry: UpstreamEntry) -> bool:
        running = self._under_way.get(entry.name)
        return running is not None and not running.done()

    def _begin(self, entry: UpstreamEntry) -> concurrent.futures.Future[None]:
        """List an upstream in the background, unless that is in progress."""
        with self._beginning:
            if not self._is_under_way(entry):
                listing = asyncio.run_coroutine_threadsafe(self._refresh_quietly(entry), self._base.portal.loop())
                self._under_way[entry.name] = listing
            return self._under_way[entry.name]

    async def _refresh_quietly(self, entry: UpstreamEntry) -> None:
        with suppress(TavernError):  # the status gives the reason
            await self.refresh(entry)

    def _note_change(self, entry: UpstreamEntry) -> None:
        if entry.name not in self._changes:
            self._changes.add(entry.name)
            task = asyncio.create_task(self._list_change(entry), name=entry.name)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _list_change(self, entry: UpstreamEntry) -> None:
        await asyncio.sleep(max(0.0, self._listed_at.get(entry.name, 0.0) + PAUSE_S - time.monotonic()))
        if entry.name in self._changes:  # no later listing contains the change
            await self._refresh_quietly(entry)

    def _is_due(self, entry: UpstreamEntry, now: float) -> bool:
        if time.monotonic() < self._not_before.get(entry.name, 0.0) or self._connections.missing(entry):
            return False
        listed = self._cache.listed(entry.name)
        if listed is None or listed.fingerprint != entry.fingerprint:
            return True
        valid_s = (entry.config.refresh_ms if listed.ttl_ms is None else max(listed.ttl_ms, 1000)) / 1000
        return not listed.at <= now <= listed.at + valid_s  # the clock may have been set back since

    def _failed(self, entry: UpstreamEntry, error: TavernError) -> None:
        self._not_before[entry.name] = time.monotonic() + AGAIN_S
        self._base.diagnostics.add(
            "UPSTREAM_FAILED",
            f"the tools of upstream {entry.name} could not be listed: {error.message}",
            plugin=entry.plugin,
            hint=error.hint or f"tavern upstreams check {entry.name}",
            details={"upstream": entry.name},
        )

    def _etag(self, entry: UpstreamEntry) -> str:
        """The tag of the known listing; empty: its definitions were lost, or an older version left more tools out.

        In a thread: it reads the definitions.
        """
        known = entry.definitions
        is_whole = bool(known.tools) and entry.is_listed and known.unchecked is not None
        return (self._cache.listed(entry.name) or _NEVER).etag if is_whole else ""

    def _take(self, entry: UpstreamEntry, listing: Listing | None) -> ToolsDiff:
        """Store a listing and register its tools. Runs in a thread, as it checks each schema."""
        now, before = time.time(), entry.tools()
        if listing is None and entry.is_listed:  # nothing has changed
            known = self._cache.listed(entry.name) or _NEVER
            self._cache.store(entry.name, replace(known, at=now), entry.definitions)
            return ToolsDiff()
        listing = well_formed(listing)
        secrets = self._connections.secrets[entry.name]
        mask = secret_redactor(self._base.known_secrets.values | secrets.values)
        tools, left_out = sound(listing, entry.config, Masks(mask, secrets.mask_text if secrets.values else str))
        reviewed = self._quarantine.reviewed(entry)
        unchecked = unchecked_patterns(tools)
        listed = ListingIndexEntry(entry.fingerprint, now, listing.ttl_ms, listing.etag, tuple(tools), bool(unchecked))
        left_out = {mask(name): mask(why) for name, why in left_out.items()}
        definitions = UpstreamDefinitions(
            tools, left_out, mask(listing.description), mask(listing.version), reviewed, unchecked
        )
        if not entry.is_listed:
            self._first.add(entry.name)
        try:
            return self._register(entry, listed, definitions, before)
        finally:
            self._first.discard(entry.name)

    def _register(
        self,
        entry: UpstreamEntry,
        listed: ListingIndexEntry,
        definitions: UpstreamDefinitions,
        before: Mapping[str, UpstreamTool],
    ) -> ToolsDiff:
        is_same = before == definitions.tools and entry.definitions.version == definitions.version
        self._cache.store(entry.name, listed, definitions)
        self._quarantine.first_seen(entry)
        self._report(entry)
        for problem, hint in unknown_overrides(entry.name, entry.config, definitions).items():
            self._base.diagnostics.add("CONFIG_INVALID", problem, plugin=entry.plugin, hint=hint)
        if not is_same:  # even if no reviewer would see a change: calls are bound to data of the adapter
            self._lifecycle.tools_changed(entry.plugin, entry.candidate())
        if diff := _diff(before, definitions.tools):
            ids = {key: [f"{entry.plugin}:{local_name(n)}" for n in names] for key, names in diff.to_json().items()}
            self._base.recorder.note(TOOLS_CHANGED, {"upstream": entry.name, **ids}, plugin=entry.plugin)
        return diff


_NEVER: Final = ListingIndexEntry("", 0.0, None, "", ())


def _diff(before: Mapping[str, UpstreamTool], now: Mapping[str, UpstreamTool]) -> ToolsDiff:
    changed = (n for n in now.keys() & before.keys() if definition(now[n]) != definition(before[n]))
    return ToolsDiff(
        tuple(sorted(now.keys() - before.keys())), tuple(sorted(before.keys() - now.keys())), tuple(sorted(changed))
    )
