"""Reading a resource or a prompt of an upstream: the rules, and the record in the log.

Lists and profiles name tools. A read is compared with lists as ``<upstream>:<address or prompt>``, so that an entry for
the whole upstream applies, too; a profile allows the reads of each upstream of which it lists a tool.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal

from tavern_core.errors import PolicyDenied, TavernError, UsageError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.catalogue.profile_resolution import Inventories
from tavern_core.kernel.catalogue.tool_spec_cache import ToolSpecs
from tavern_core.model.call import CallContext, check_caller, shortfall
from tavern_core.model.event import UPSTREAM_READ
from tavern_core.model.naming_rules import split_id
from tavern_core.schema.redact import for_record
from tavern_core.upstreams.facilities import UpstreamGrants
from tavern_core.upstreams.listing_refresh import ListingRefresh
from tavern_core.upstreams.upstream_plugin_candidates import UpstreamEntry

DocumentKind = Literal["resource", "prompt"]
_LONGEST_NAME: Final = 2_000
_ABOUT: Final = ("principal", "requestId", "taskId", "traceId", "userId", "profile")
"""The caller's fields in the log."""


@dataclass(frozen=True, slots=True)
class DocumentReads:
    """The rules for reads, and their record."""

    granted: UpstreamGrants
    inventories: Inventories
    listings: ListingRefresh

    @property
    def specs(self) -> ToolSpecs:
        return self.granted.specs

    async def read(
        self,
        entry: UpstreamEntry,
        kind: DocumentKind,
        name: str,
        context: CallContext | None,
        ask: Callable[[], Awaitable[Mapping[str, Any]]],
    ) -> Mapping[str, Any]:
        """The result of `ask`, if the caller may have it and the read could be recorded.

        Args:
            name: the address of a resource, or the name of a prompt.

        Raises:
            UsageError: no resource or prompt can have that name (USAGE).
            PolicyDenied: the caller may not read it, or `audit.required` is set and the log failed (POLICY_DENIED).
        """
        check_caller(context)
        caller, began = context or self.specs.default, time.monotonic()
        shown = self.specs.base.known_secrets.mask_text(name[:_LONGEST_NAME])
        caller_json = caller.to_json()
        read = {"upstream": entry.name, "what": kind, "name": shown}
        data = {**read, **{key: caller_json[key] for key in _ABOUT if caller_json[key]}}
        try:
            _check_name(kind, name)
            await self._admit(entry, name, caller, is_host=context is None)
            answer = await ask()
        except (TavernError, asyncio.CancelledError) as error:
            code = error.code if isinstance(error, TavernError) else "CANCELLED"
            text = for_record(error.message) if isinstance(error, TavernError) else "the caller stopped waiting"
            self._note(entry, {**data, "ok": False, "error": {"kind": code, "message": text}}, began)
            raise
        written = json.dumps(answer, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass")
        digest = f"sha256:{hashlib.sha256(written).hexdigest()}"
        if not self._note(entry, {**data, "ok": True, "bytes": len(written), "digest": digest}, began):
            raise PolicyDenied(
                f"{entry.name}: the {kind} was read, but that cannot be recorded and audit.required is set",
                hint="make room for the audit log, or set audit.required: false",
            )
        return answer

    def _note(self, entry: UpstreamEntry, data: Mapping[str, Any], began: float) -> bool:
        """Record the read; False: it must be recorded and could not be."""
        timed = {**data, "durationMs": round((time.monotonic() - began) * 1000, 3)}
        return self.specs.base.recorder.demanded(UPSTREAM_READ, timed, entry.plugin)

    async def _admit(self, entry: UpstreamEntry, name: str, caller: CallContext, *, is_host: bool) -> None:
        """Raise PolicyDenied if lists, profile or permissions do not allow the caller this read (POLICY_DENIED)."""
        document, inventory = f"{entry.plugin}:{name}", None
        if caller.profile is not None:
            await self.listings.find(entry.plugin)  # the profile may name tools of an upstream that was never listed
            try:
                inventory = await self.inventories.resolved(caller.profile)
            except TavernError as error:
                text = f"{document} was refused: {error.message}"
                raise PolicyDenied(text, hint=error.hint, profile=caller.profile) from error
        access = replace(self.specs.policy().for_tool(document), is_listed=False)
        if not (verdict := access.verdict(caller, inventory)):
            raise PolicyDenied(f"{document} was refused: {verdict.reason}", hint=verdict.fix, rule=verdict.rule)
        if inventory is not None and all(split_id(tool)[0] != entry.plugin for tool in inventory.tools):
            raise PolicyDenied(
                f"{document} was refused: the agent profile {inventory.name!r} lists no tool of {entry.name}",
                hint=f"add a tool of {entry.name} to tool_ids_inventory of the profile {inventory.name!r}",
                rule=f"profile:{inventory.name}",
            )
        record = self.specs.lifecycle.records.get(entry.plugin)
        if is_host or record is None:
            return
        limits = None if inventory is None else inventory.capabilities
        rights = replace(self.granted.rights(record), caller=caller.permissions, profile=limits)
        needs = entry.config.capabilities(entry.permissions)
        if (lacks := shortfall(entry.plugin, needs, rights, caller)) is not None:
            raise PolicyDenied(lacks.reason, hint=lacks.fix, missing=list(lacks.missing), side=lacks.side)


def _check_name(kind: DocumentKind, name: str) -> None:
    """Raise UsageError if a server would read the name differently than lists do, such as without blanks (USAGE)."""
    if not name or not name.isprintable() or name != name.strip():
        kind_text = "address of a resource" if kind == "resource" else "name of a prompt"
        raise UsageError(
            f"{name!r:.200} is not the {kind_text}",
            hint="write text without control characters, and without blanks around it",
        )
