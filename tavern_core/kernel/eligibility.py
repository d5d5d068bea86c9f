"""Which plugins may be activated: judged from what is declared, granted and configured, without plugin code.

The first reason found is the one that is told; each says what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from tavern_core.errors import DependencyUnmet, ManifestInvalid, NameConflict, PluginError
from tavern_core.kernel.candidates import Candidate
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.records import Record
from tavern_core.model.config import HostConfig
from tavern_core.model.ids import RESERVED_NAMESPACES
from tavern_core.model.nearest import did_you_mean, fold


class Granted(Protocol):
    """What the lock file says about one plugin's requests."""

    @property
    def granted(self) -> frozenset[str]: ...

    @property
    def undecided(self) -> frozenset[str]: ...


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the judgement depends on besides the plugins."""

    host_version: str
    config: HostConfig
    switched_off: Mapping[str, str]
    """Plugin → reason, as the operator left it."""
    safe_mode: bool
    core_tools: Collection[str]
    """Local names of the host's own tools."""
    decide: Callable[[Candidate], Granted]
    granted_to: Callable[[str], frozenset[str]]
    """What the lock file grants a plugin, whatever state it is in."""


def judge(records: Mapping[str, Record], around: Circumstances, diagnostics: Diagnostics) -> None:
    """Set state, reason and grants of every record that is not active."""
    waiting = [r for r in records.values() if not r.active]
    for record in waiting:
        record.state, record.reason, record.code = "found", "", ""
        _judge_alone(record, around, diagnostics)
    _judge_slots(waiting, around.config.slots, diagnostics)
    _judge_dependencies(waiting, records)
    for record in waiting:
        if record.state == "reviewed":
            _grant(record, around)
        elif record.state == "failed":
            # A plugin whose gate was granted and that cannot run must be known as such: calls are refused meanwhile.
            record.granted = around.granted_to(record.name)


def _judge_alone(record: Record, around: Circumstances, diagnostics: Diagnostics) -> None:
    candidate = record.candidate
    record.state = "reviewed"
    if candidate.fixed_id:
        return
    if why := _switched_off(record, around):
        record.state, record.reason = "disabled", why
        return
    if candidate.errors:
        first, *others = candidate.errors
        more = f", and {len(others)} more" if others else ""
        record.fail(ManifestInvalid(f"{first}{more}", hint=f"tavern plugins check {candidate.name}", findings=candidate.errors))
        record.code = first.code
        return
    if candidate.name in RESERVED_NAMESPACES:
        record.fail(NameConflict(f"{candidate.name!r} is a namespace of the host", hint="rename the plugin"))
        return
    if (taken := {fold(n): n for n in around.core_tools}.get(fold(candidate.name))) is not None:
        record.fail(NameConflict(f"plugin {candidate.name!r} has the name of the core tool {taken!r}", hint="rename the plugin"))
        return
    if candidate.facts.isolation == "process":
        record.fail(
            PluginError(
                f"{candidate.name} asks for isolation: process, which this version of the host cannot give",
                hint="it is not run in-process instead; remove `isolation: process` only if you trust its code",
            )
        )
        return
    _judge_host_version(record, around, diagnostics)


def _switched_off(record: Record, around: Circumstances) -> str:
    name, plugins = record.name, around.config.plugins
    if around.safe_mode and record.candidate.source != "object":
        return "safe mode: only the host's own plugins run"
    if plugins.load is not None and name not in plugins.load and record.candidate.source != "object":
        return "not in plugins.load (TAVERN_LOAD_PLUGINS)"
    if name in plugins.disable:
        return "named in plugins.disable (TAVERN_DISABLE_PLUGINS)"
    if name in around.switched_off:
        reason = around.switched_off[name]
        return f"disabled by the operator{': ' + reason if reason else ''}; `tavern plugins enable {name}` turns it on"
    return ""


def _judge_host_version(record: Record, around: Circumstances, diagnostics: Diagnostics) -> None:
    facts = record.candidate.facts
    if facts.requires_host and not _satisfies(around.host_version, facts.requires_host):
        record.fail(
            DependencyUnmet(
                f"{record.name} needs tavern-core {facts.requires_host}; this is {around.host_version}",
                hint=f"pip install 'tavern-core{facts.requires_host}'",
            )
        )
    elif facts.tested_host and not _satisfies(around.host_version, facts.tested_host):
        diagnostics.add(
            "HOST_UNTESTED", f"tested with tavern-core {facts.tested_host}; this is {around.host_version}", plugin=record.name
        )


def _judge_slots(waiting: list[Record], chosen: Mapping[str, str], diagnostics: Diagnostics) -> None:
    """Of the plugins that name an exclusive slot, one may be active: the configured one, else the first by precedence."""
    by_slot: dict[str, list[Record]] = {}
    for record in waiting:
        if record.state == "reviewed" and not record.candidate.fixed_id:
            for slot in record.candidate.facts.slots:
                by_slot.setdefault(slot, []).append(record)
    for slot, rivals in by_slot.items():
        wanted = chosen.get(slot)
        if wanted is not None and wanted not in {r.name for r in rivals}:
            hint = did_you_mean(wanted, [r.name for r in rivals])
            diagnostics.add("SLOT_UNFILLED", f"slots.{slot} names {wanted!r}, which does not offer it", hint=hint)
        winner = next((r for r in rivals if r.name == wanted), min(rivals, key=lambda r: (r.rank, r.name)))
        for loser in rivals:
            if loser is not winner:
                loser.state = "disabled"
                loser.reason = f"slot {slot!r} is taken by {winner.name}; choose with slots: {{{slot}: {loser.name}}} in tavern.yaml"


def _judge_dependencies(waiting: list[Record], records: Mapping[str, Record]) -> None:
    """Missing, failed and disabled dependencies and cycles; repeated until nothing changes."""
    for record in waiting:
        if record.state == "reviewed" and (path := _cycle(record.name, records)):
            record.fail(
                DependencyUnmet(f"plugins depend on each other in a circle: {' → '.join(path)}", hint="remove one dependsOn")
            )
    changed = True
    while changed:
        changed = False
        for record in waiting:
            if record.state == "reviewed" and (why := _unmet(record, records)):
                record.fail(DependencyUnmet(why[0], hint=why[1]))
                changed = True


def _unmet(record: Record, records: Mapping[str, Record]) -> tuple[str, str] | None:
    for name, specifier in record.candidate.facts.depends_on.items():
        needed = records.get(name)
        wanted = f"{name} {specifier}".strip()
        if needed is None:
            close = did_you_mean(name, records)
            return f"{record.name} needs the plugin {wanted}, which is not installed", close or f"install the plugin {name}"
        if not needed.usable:
            return f"{record.name} needs the plugin {name}, which is {needed.state}: {needed.reason}", f"repair {name} first"
        if specifier and not _satisfies(needed.candidate.version, specifier):
            return f"{record.name} needs {wanted}; installed is {needed.candidate.version}", f"upgrade or downgrade {name}"
    return None


def _cycle(start: str, records: Mapping[str, Record]) -> list[str]:
    """The path of a circle through `start`, or []. Walks with a stack of its own: chains may be long."""
    stack: list[tuple[str, list[str]]] = [(start, [start])]
    seen: set[str] = set()
    while stack:
        name, path = stack.pop()
        for needed in _needs(records.get(name)):
            if needed == start:
                return [*path, start]
            if needed not in seen:
                seen.add(needed)
                stack.append((needed, [*path, needed]))
    return []


def _needs(record: Record | None) -> Iterable[str]:
    if record is None or record.candidate.errors or record.candidate.fixed_id:
        return ()
    return record.candidate.facts.depends_on


def _grant(record: Record, around: Circumstances) -> None:
    candidate = record.candidate
    if candidate.source in ("builtin", "object"):
        record.granted, record.undecided, record.state = candidate.requested, frozenset(), "granted"
        return
    decision = around.decide(candidate)
    record.granted = decision.granted & candidate.requested
    record.undecided = decision.undecided
    record.state = "pending_consent" if record.undecided else "granted"
    if record.undecided:
        wanted = ", ".join(sorted(record.undecided))
        record.reason = f"asks for {wanted}; decide with `tavern plugins grant {record.name}`"


def _satisfies(version: str, specifier: str) -> bool:
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return False
