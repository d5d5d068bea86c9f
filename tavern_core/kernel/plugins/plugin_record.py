"""The record of one plugin in one host: its identity, its rights and its state. Only the lifecycle changes it."""

from __future__ import annotations

import threading
from collections.abc import ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

from tavern_core.contract.context import PluginContext
from tavern_core.contract.tools import ToolFactory
from tavern_core.errors import Finding, TavernError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.hooks.table import HookImplementation
from tavern_core.kernel.manifest.declared_tools import DeclaredTools
from tavern_core.kernel.plugins.candidate import OVERRIDE, PluginCandidate
from tavern_core.kernel.plugins.plugin_facilities import GrantedFacilities
from tavern_core.kernel.signal import Signal
from tavern_core.model.naming_rules import split_id
from tavern_core.model.nearest import fold
from tavern_core.model.plugin_status import Diagnostic, PluginState, PluginStatus
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.model.setting_declaration import SettingItem

GATE = "hook:server:tool:check"
D = TypeVar("D")
USABLE = frozenset({"reviewed", "granted", "active", "pending_consent"})


@dataclass(frozen=True, slots=True)
class PluginCondition:
    """The decision about a plugin. Replaced as a whole, so that readers never see a part of it."""

    state: PluginState = "found"
    reason: str = ""
    code: str = ""
    granted: frozenset[str] = frozenset()
    undecided: frozenset[str] = frozenset()
    findings: tuple[Finding, ...] = ()
    error: TavernError | None = None
    """The error that made it fail."""
    fix: str = ""
    """The command or line of configuration that makes it usable, if there is one."""
    scopes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Granted capability → its scope, as written; absent: without limit (`effective_scopes.py` resolves the paths)."""
    changed: frozenset[str] = frozenset()
    """The parts that have changed since the review: ``version``, ``manifest``, ``artifact``."""
    note: str = ""
    """The same as a sentence; empty if nothing changed."""
    kept_apart: str = ""
    """Why it stays in a process of its own although it no longer requests one; empty: it does not."""

    @property
    def explanation(self) -> str:
        """The reason and, for a failed plugin, the repair; for readers that see only this text."""
        hint = self.error.hint if self.error is not None else ""
        return f"{self.reason} ({hint})" if hint else self.reason


class ActiveCalls:
    """The running calls of one plugin, whose end waits for them. Only atomic set operations change `calls`."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls: set[Any] = set()
        """Of type `RunningCall`."""


class PluginRecord:
    """The state of one plugin.

    Args:
        rank: position in the order of precedence; the lower one wins a clash.
        changed: emitted when its condition has changed.
    """

    def __init__(self, candidate: PluginCandidate, rank: int, changed: Signal) -> None:
        self.candidate = candidate
        self.name = candidate.name
        self.rank = rank
        self._changed = changed
        self._condition = PluginCondition(findings=candidate.findings)
        self.activation_error: TavernError | None = None
        """The error of its last failed activation; kept until it is reloaded, enabled or granted again."""
        self.active = False
        self.claimed = False
        """Whether its own activation or stop is managing its entries in the host's tables."""
        self.paused = False
        """Whether it was stopped only because a dependency was; it is activated again when that is available."""
        self.thing: Any = None
        self.ctx: PluginContext | None = None
        self.facilities: GrantedFacilities | None = None
        """The host's side of its context, while that is valid."""
        self.usage = ActiveCalls()
        self.implementations: tuple[HookImplementation, ...] = ()
        self.started: list[Any] = []
        """The services that were started, in order."""
        self.specs: dict[str, ToolSpec] | None = None
        """Tools whose definition is known; None: not read yet."""
        self.drafts: Mapping[str, ToolSpec] = {}
        """The declared part of tools whose parameters only the code knows; set as soon as `specs` is."""
        self.settings_complete = False
        """Whether the settings of its tools are declared, too; before activation they are declared on demand."""
        self.coded_settings: tuple[SettingItem, ...] | None = None
        """Settings that only its code declares, as of its last activation; None: it was not active yet."""
        self.tool_findings = candidate.tool_findings
        """Findings about its declared tools, as of the last read."""
        self.open_factories: tuple[ToolFactory, ...] = ()
        """Factories without names: their tools are known only after a call for a caller."""
        self.provides: dict[str, tuple[str, ...]] = {}
        self.timings: dict[str, float] = {}
        self.trusted_files: str | None = None
        """For a skill that had to be trusted: names and times of its files when they were compared with the trust."""
        self._declared: DeclaredTools | None = None
        """The declarations as last read from its files."""
        self._lock = threading.Lock()

    @property
    def condition(self) -> PluginCondition:
        """The current decision about it."""
        return self._condition

    @condition.setter
    def condition(self, condition: PluginCondition) -> None:
        self._condition = condition
        self._changed.emit()

    @property
    def state(self) -> PluginState:
        return self.condition.state

    @property
    def reason(self) -> str:
        """The reason for its state, for people."""
        return self.condition.reason

    @property
    def fix(self) -> str:
        """The repair that makes it usable."""
        return self.condition.fix or "tavern doctor"

    @property
    def granted(self) -> frozenset[str]:
        return self.condition.granted

    @property
    def usable(self) -> bool:
        """Whether it may be activated."""
        return self.condition.state in USABLE

    @property
    def can_start(self) -> bool:
        """Whether it may be activated and is not active."""
        return not self.active and self.usable

    @property
    def has_settings(self) -> bool:
        """Whether its settings may be seen and changed; those of a failed plugin, too, as that may repair it."""
        return self.state != "disabled" and not self.candidate.errors

    @property
    def uses_hooks(self) -> bool:
        """Whether it was granted a hook of the host: it must be active before any tool is called."""
        if self.candidate.is_nodes_alone:
            return False
        return self.candidate.implicit or any(p.startswith("hook:") and self.may(p) for p in self.candidate.requested)

    @property
    def has_gate(self) -> bool:
        """Whether it was granted a gate: while it is not active, calls lack a check that the operator granted.

        An object without a manifest is granted what it implements, as it has nothing to declare that.
        """
        if self.candidate.implicit:
            return not self.candidate.fixed_id and self.candidate.may_gate
        return GATE in self.granted

    @property
    def starts_early(self) -> bool:
        """Whether it is activated as soon as the host opens, not on first use (DESIGN §5)."""
        candidate = self.candidate
        if candidate.is_nodes_alone:
            return False
        if candidate.fixed_id or candidate.implicit or candidate.may_hide_tools or candidate.facts.start:
            return True
        return (
            "services" in candidate.facts.sections
            or self.uses_hooks
            or any(map(self.may_override, candidate.overrides))
        )

    def may_override(self, service: str) -> bool:
        """Whether it may replace this service with its own."""
        return self.may(f"{OVERRIDE}{service}") and not self.candidate.implicit

    def may(self, permission: str) -> bool:
        """Whether `permission` is declared and granted."""
        return self.candidate.implicit or (permission in self.candidate.requested and permission in self.granted)

    def apply_decision(self, condition: PluginCondition) -> None:
        """Apply a decision, unless it was made before the plugin became active."""
        with self._lock:
            if not self.active and condition != self._condition:
                self.condition = condition

    def note_changes(self, *, changed: frozenset[str], note: str) -> None:
        """Record the result of a comparison of its files."""
        with self._lock:
            self.condition = replace(self.condition, changed=changed, note=note)

    def became(self, condition: PluginCondition, *, active: bool) -> None:
        """Set the condition that activation or stopping resulted in."""
        with self._lock:
            self.active, self.condition = active, condition

    def failed(self, error: TavernError) -> PluginCondition:
        """The condition of a plugin that cannot be used because of `error`.

        The reason is shown after the plugin's name and with the fix, so it contains neither.
        """
        return PluginCondition(
            "failed",
            error.message.removeprefix(f"{self.name}: "),
            error.code,
            self.granted,
            self.condition.undecided,
            (*self.candidate.findings, *(f for f in error.findings if f not in self.candidate.findings)),
            error,
            error.hint,
            self.condition.scopes,
            kept_apart=self.condition.kept_apart,
        )

    def read_tools(self) -> DeclaredTools:
        """Read the current declarations of its tools from its files, and store them."""
        declared = self.candidate.origin.tools()
        if declared is not self._declared:
            self.tool_findings = declared.findings
            self.drafts = {spec.name: spec for spec in (*declared.of_code, *declared.drafts)}
            self._declared = declared  # last: another thread that finds it relies on the rest
        return declared

    @property
    def left_out(self) -> frozenset[str]:
        """Folded local names of tools with invalid declarations; tools of the code with these names are left out."""
        wrong = (str(f.details.get("tool", "")) for f in self.tool_findings if f.severity == "error")
        return frozenset(map(_folded_local, filter(None, wrong))) - set(map(_folded_local, self.candidate.tool_ids))

    def may_offer(self, tool_id: str) -> bool:
        """Whether the code may offer a tool: its declaration is valid, or nothing is declared."""
        declared = self.candidate.tool_ids
        return tool_id in declared if declared else not self.left_out

    def is_intact(self) -> bool:
        """False if it may be used because its files are trusted, but they have changed since it became active."""
        return self.trusted_files is None or self.candidate.origin.fingerprint() == self.trusted_files

    def capabilities(self, spec: ToolSpec) -> frozenset[str]:
        """The permissions of this tool: declared and granted ones; everything for an object without a manifest.

        Callers of an upstream's tool may need more than the upstream itself, if the operator or the upstream says so.
        """
        if self.candidate.implicit:
            return spec.capabilities
        plugin_capabilities = self.granted & self.candidate.requested
        return (
            plugin_capabilities | (spec.capabilities - self.candidate.requested)
            if self.candidate.source == "upstream"
            else plugin_capabilities
        )

    def problems(self) -> Iterator[Diagnostic]:
        """Its failure, and the findings about its manifest and tools: all that is known without running its code."""
        condition, error = self._condition, self._condition.error
        if error is not None and condition.state == "failed":
            yield Diagnostic(condition.code, error.message, self.name, error.hint, "error", dict(error.details))
        if condition.state == "disabled":
            return  # a disabled plugin need not be repaired
        if (changed := self.changed_since_review()) is not None:
            yield changed
        findings = self.candidate.findings
        if findings and self.candidate.errors:
            findings = ()  # already counted by the error of an invalid manifest
        for finding in (*findings, *self.tool_findings):
            yield _as_diagnostic(finding, self.name)

    def changed_since_review(self) -> Diagnostic | None:
        """A diagnostic if a plugin has changed since its permissions were granted; else None.

        A new version needs no action. Changed code with the same version does, because people review versions.
        """
        if not (note := self._condition.note):
            return None
        hint = f"tavern plugins review {self.name}; `tavern plugins lock` notes it as reviewed"
        if "version" in self._condition.changed:
            return Diagnostic("GRANTS_CARRIED_OVER", note, self.name, hint, "info")
        return Diagnostic("CODE_CHANGED", note, self.name, hint, "warning")

    def status(self) -> PluginStatus:
        """A frozen snapshot."""
        candidate, condition = self.candidate, self.condition
        timings = dict(self.timings)
        for impl in self.implementations:
            if impl.timing.count:
                key = f"hook:{impl.hook.name}"
                timings[key] = timings.get(key, 0.0) + impl.timing.seconds * 1000
        requested = candidate.requested
        return PluginStatus(
            candidate.name,
            condition.state,
            "; ".join(filter(None, (condition.explanation, candidate.pause_notice()))),
            candidate.version,
            candidate.facts.display_name or candidate.name,
            candidate.facts.description,
            requested,
            condition.granted & requested if requested else condition.granted,
            _provided(self),
            timings,
            candidate.source,
            candidate.distribution,
            candidate.location,
            (*condition.findings, *self.tool_findings),
            condition.code,
            condition.scopes,
            condition.note,
            isolated=candidate.isolated(),
        )


class PluginRecords(MutableMapping[str, PluginRecord]):
    """Name → record, by rank. Each change makes a new mapping, so iteration is safe.

    A removed record is no longer contained, but ``records[name]`` still returns it, for callers that just found its
    tools.

    Args:
        changed: emitted when the condition of a record has changed.
    """

    def __init__(self, changed: Signal) -> None:
        self._records: dict[str, PluginRecord] = {}
        self._removed: dict[str, PluginRecord] = {}
        self._changed = changed

    def __getitem__(self, name: str) -> PluginRecord:
        found = self._records.get(name)
        return self._removed[name] if found is None else found

    def new(self, candidate: PluginCandidate, rank: int) -> PluginRecord:
        """A record for a plugin that is not in the mapping yet."""
        return PluginRecord(candidate, rank, self._changed)

    def __setitem__(self, name: str, record: PluginRecord) -> None:
        self.add([record])

    def add(self, records: Iterable[PluginRecord]) -> None:
        """Add several at once: each change copies the whole mapping."""
        now = {**self._records, **{record.name: record for record in records}}
        self._records = {name: now[name] for _, name in sorted([(record.rank, name) for name, record in now.items()])}

    def __delitem__(self, name: str) -> None:
        record = self._removed[name] = self._records[name]
        record.became(replace(record.condition, state="failed", reason="it is no longer there"), active=False)
        self._records = {other: kept for other, kept in self._records.items() if other != name}

    def __contains__(self, name: object) -> bool:
        return name in self._records

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def values(self) -> ValuesView[PluginRecord]:
        """The records of one snapshot."""
        return self._records.values()

    def items(self) -> ItemsView[str, PluginRecord]:
        """Names and records of one snapshot."""
        return self._records.items()

    @overload
    def get(self, key: str, /) -> PluginRecord | None: ...

    @overload
    def get(self, key: str, /, default: D) -> PluginRecord | D: ...

    def get(self, key: str, /, default: D | None = None) -> PluginRecord | D | None:
        """The current record, or `default`."""
        return self._records.get(key, default)


def _provided(record: PluginRecord) -> Mapping[str, tuple[str, ...]]:
    """Its contributions: those it offers while active, otherwise those it declares."""
    provides = dict(record.provides)
    if record.can_start:
        provides = {section: tuple(sorted(names)) for section, names in record.candidate.facts.declared.items()}
    if record.candidate.tool_ids and "tools" not in provides:
        provides["tools"] = record.candidate.tool_ids
    return provides


def _folded_local(tool_id: str) -> str:
    return fold(split_id(tool_id)[1])


def _as_diagnostic(finding: Finding, plugin: str) -> Diagnostic:
    where = finding.where
    details = {**({"file": where.file, "line": where.line} if where else {}), **finding.details}
    return Diagnostic(finding.code, finding.located, plugin, finding.hint, finding.severity, details)
