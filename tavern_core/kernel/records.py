"""One plugin in one host: what it is, what it may do, and what became of it. Changed by the lifecycle only."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from tavern_core.contract.context import PluginContext
from tavern_core.errors import Finding, TavernError
from tavern_core.kernel.candidates import Candidate
from tavern_core.kernel.hook_table import Implementation
from tavern_core.kernel.plans import Usage
from tavern_core.model.plugin import PluginState, PluginStatus
from tavern_core.model.tool import ToolSpec


class Record:
    """The state of one plugin."""

    def __init__(self, candidate: Candidate, rank: int) -> None:
        self.candidate = candidate
        self.rank = rank
        """Place in the order of precedence; the lower one wins a clash."""
        self.state: PluginState = "found"
        self.reason = ""
        self.code = ""
        self.granted: frozenset[str] = frozenset()
        self.undecided: frozenset[str] = frozenset()
        self.findings: tuple[Finding, ...] = candidate.findings
        self.active = False
        self.activation: Future[None] | None = None
        self.activating_thread = 0
        self.thing: Any = None
        self.ctx: PluginContext | None = None
        self.usage = Usage(candidate.name)
        self.implementations: tuple[Implementation, ...] = ()
        self.started: list[Any] = []
        """Services that were started, in order."""
        self.specs: dict[str, ToolSpec] | None = None
        """Tools whose definition is known; None: not looked at yet."""
        self.provides: dict[str, tuple[str, ...]] = {}
        self.timings: dict[str, float] = {}

    @property
    def name(self) -> str:
        return self.candidate.name

    @property
    def usable(self) -> bool:
        """True when it may be activated."""
        return self.state in ("reviewed", "granted", "active", "pending_consent")

    def may(self, permission: str) -> bool:
        """True when `permission` is declared and granted."""
        return self.candidate.implicit or (permission in self.candidate.requested and permission in self.granted)

    def fail(self, error: TavernError) -> None:
        """Write down why it cannot be used."""
        self.state, self.code = "failed", error.code
        self.reason = f"{error.message} ({error.hint})" if error.hint else error.message
        self.findings = (*self.candidate.findings, *error.findings)

    def capabilities(self, spec: ToolSpec) -> frozenset[str]:
        """What the plugin lets this tool do: declared and granted; all of it for an object without a manifest."""
        if self.candidate.implicit:
            return spec.capabilities
        return self.granted & self.candidate.requested

    def status(self) -> PluginStatus:
        """A frozen picture."""
        candidate = self.candidate
        timings = dict(self.timings)
        for impl in self.implementations:
            if impl.timing.count:
                key = f"hook:{impl.hook.name}"
                timings[key] = timings.get(key, 0.0) + impl.timing.seconds * 1000
        requested = candidate.requested
        return PluginStatus(
            candidate.name,
            self.state,
            self.reason,
            candidate.version,
            candidate.facts.display_name or candidate.name,
            candidate.facts.description,
            requested,
            self.granted & requested if requested else self.granted,
            _provided(self),
            timings,
            candidate.source,
            candidate.distribution,
            candidate.location,
            self.findings,
            self.code,
        )


def _provided(record: Record) -> Mapping[str, tuple[str, ...]]:
    provides = dict(record.provides)
    if record.candidate.tool_ids and "tools" not in provides:
        provides["tools"] = record.candidate.tool_ids
    return provides
