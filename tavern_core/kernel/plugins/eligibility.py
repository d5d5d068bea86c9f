"""Decides which plugins may be activated, from declarations, grants and configuration, without running plugin code.

The first reason found is reported, with what to do about it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from tavern_core.contract.permissions import TIER, TRUST, canonical_hook, is_permission, known_permissions
from tavern_core.errors import DependencyUnmet, ManifestInvalid, NameConflict, PluginError, TavernError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.foundation import Foundation
from tavern_core.kernel.grants.grants import GrantDecision
from tavern_core.kernel.plugins.candidate import PluginCandidate, isolation_reason
from tavern_core.kernel.plugins.lock_check import GRANTED_BY_PASSING, GrantDecisions
from tavern_core.kernel.plugins.plugin_record import USABLE, PluginCondition, PluginRecord
from tavern_core.model.naming_rules import RESERVED_NAMESPACES, is_reserved, is_reserved_namespace
from tavern_core.model.nearest import did_you_mean, fold
from tavern_core.model.plugin_status import Diagnostic

_NAMESPACES: Final = frozenset(map(fold, RESERVED_NAMESPACES))
_REVIEWED: Final = PluginCondition("reviewed")
"""No reason against it has been found so far; its grants are added next."""
LONGEST_PATH: Final = 20
"""Maximum names of a dependency cycle in a message."""


@dataclass(frozen=True, slots=True)
class EligibilityInputs:
    """The inputs of the check besides the plugins."""

    base: Foundation
    switched_off: Mapping[str, str]
    """Plugin → reason, as the operator left it."""
    core_tools: Mapping[str, str]
    """The host's own tools: folded local name → local name."""
    decisions: GrantDecisions


def check_eligibility(records: Mapping[str, PluginRecord], around: EligibilityInputs) -> None:
    """Set the condition of every record that is not active: state, reason and grants, replaced as a whole."""
    _review_names(records, around.base)
    waiting = [r for r in records.values() if not r.active]
    verdicts = {r.name: _judge_alone(r, around) for r in waiting}
    _judge_slots(records, verdicts, around.base)
    _judge_dependencies(waiting, verdicts, records)
    for record in waiting:
        verdict = verdicts[record.name]
        if verdict.state == "reviewed":
            verdict = granted_now(record, around)
        elif verdict.state == "failed":
            # Mark a plugin with a granted gate that cannot run: calls are refused meanwhile.
            verdict = replace(verdict, granted=_granted_anyway(record, around))
        record.apply_decision(verdict)


def _review_names(records: Mapping[str, PluginRecord], base: Foundation) -> None:
    """Report entries of tavern.yaml that match no plugin or permission, which would have no effect."""
    config = base.config
    lists: tuple[tuple[str, Iterable[str]], ...] = (
        ("plugins.load", config.plugins.load or ()),
        ("plugins.disable", config.plugins.disable),
        ("plugins.onFailure", config.plugins.on_failure),
        ("isolation.plugins", config.isolation.plugins),
        # These names follow the rules of tool lists: other spellings, and the host's own namespaces.
        ("limits.plugins", [n for n in config.limits.plugins if fold(n) not in {*map(fold, records), *_NAMESPACES}]),
    )
    for key, names in lists:
        for name in names:
            if name not in records:
                hint = did_you_mean(name, records) or "`tavern plugins list` shows the names"
                _report_name(f"{key}: there is no plugin {name!r:.80}", hint, base.diagnostics)
            elif key == "plugins.disable" and records[name].candidate.source == "builtin":
                _report_name(f"{key}: {name!r} is part of the host and stays", f"delete {name}", base.diagnostics)
    for name in config.isolation.raise_for:
        if not is_permission(canonical_hook(name) or name):
            hint = did_you_mean(name, known_permissions()) or "docs/permissions.md lists the permissions"
            _report_name(f"isolation.raise: {name!r:.80} is not a permission", hint, base.diagnostics)


def _report_name(message: str, hint: str, diagnostics: Diagnostics) -> None:
    diagnostics.put(Diagnostic("CONFIG_INVALID", f"{message}; the entry has no effect", hint=hint), judged=True)


def _judge_alone(record: PluginRecord, around: EligibilityInputs) -> PluginCondition:
    candidate = record.candidate
    if candidate.fixed_id:
        return _REVIEWED
    if (switched_off := _switched_off(record, around)) is not None:
        return PluginCondition("disabled", switched_off[0], fix=switched_off[1], findings=candidate.findings)
    if candidate.errors:
        first, *others = candidate.errors
        more = f", and {len(others)} more" if others else ""
        command = {"vcp": "plugins info", "skill": "skills check"}.get(candidate.source, "plugins check")
        hint = f"tavern {command} {candidate.name}"
        wrong = record.failed(ManifestInvalid(f"{first}{more}", hint=hint))
        return replace(wrong, code=first.code)
    if candidate.facts.off:
        return PluginCondition("disabled", candidate.facts.off, findings=candidate.findings)
    error = _obstacle(record, around)
    return _REVIEWED if error is None else record.failed(error)


def _obstacle(record: PluginRecord, around: EligibilityInputs) -> TavernError | None:
    """Why a valid, enabled plugin cannot be used; None: it can."""
    candidate = record.candidate
    if is_reserved(candidate.name):
        return NameConflict(f"the name {candidate.name!r} is reserved for the host", hint="rename the plugin")
    claimed = [name for name in candidate.facts.declared.get("namespaces", ()) if is_reserved_namespace(name)]
    if claimed and candidate.source != "object":
        text = f"the namespace {claimed[0]!r} is reserved: only the host and the objects given to Tavern.open may provide it"
        return NameConflict(text, hint="choose another under `namespaces:` in plugin.yaml")
    if (host_tool := around.core_tools.get(fold(candidate.name))) is not None:
        text = f"plugin {candidate.name!r} has the name of the core tool {host_tool!r}"
        return NameConflict(text, hint="rename the plugin")
    if candidate.source == "object" and (why := isolation_reason(candidate.facts, around.base.config.isolation)):
        text = f"{candidate.name} must run in its own process ({why}), but it is an object of this program, whose code runs here already"
        return PluginError(text, hint="put it into a folder or package, or remove what requires its own process")
    return _judge_host_version(record, around.base) or around.decisions.refusal(candidate) or record.activation_error


def _switched_off(record: PluginRecord, around: EligibilityInputs) -> tuple[str, str] | None:
    """Why a plugin is disabled, and how to enable it; None: it is enabled."""
    name, plugins = record.name, around.base.config.plugins
    if around.base.is_safe_mode and record.candidate.source != "object":
        return "safe mode: only the host's own plugins run", "open the host without safe mode"
    if plugins.load is not None and name not in plugins.load and record.candidate.source != "object":
        place = around.base.loaded.origins.get("plugins.load", "")
        if not plugins.load:
            return f"no plugins are to be loaded{_by(place)}", "leave that out"
        return f"plugins.load does not name it{_by(place)}", f"add {name} to plugins.load"
    if name in plugins.disable:
        place = around.base.loaded.origins.get("plugins.disable", "")
        return f"named in plugins.disable{_by(place)}", f"take {name} out of plugins.disable"
    if name in around.switched_off:
        reason = around.switched_off[name]
        enable = f"tavern plugins enable {name}"
        return f"disabled by the operator{': ' + reason if reason else ''}; `{enable}` turns it on", enable
    return None


def _by(origin: str) -> str:
    return f" ({origin})" if origin else ""


def _judge_host_version(record: PluginRecord, base: Foundation) -> DependencyUnmet | None:
    facts = record.candidate.facts
    if not fits_host(base.version, facts.requires_host):
        text = f"{record.name} needs tavern-core {facts.requires_host}; this is {base.version}"
        return DependencyUnmet(text, hint=f"pip install 'tavern-core{facts.requires_host}'")
    if not fits_host(base.version, facts.tested_host):
        text = f"tested with tavern-core {facts.tested_host}; this is {base.version}"
        base.diagnostics.put(Diagnostic("HOST_UNTESTED", text, record.name), judged=True)
    return None


def _judge_slots(records: Mapping[str, PluginRecord], verdicts: dict[str, PluginCondition], base: Foundation) -> None:
    """Of the plugins that name the same exclusive slot, one may be active: the active one, else the configured one,
    else the first by precedence."""
    chosen, rivals = base.config.slots, dict[str, list[PluginRecord]]()
    for record in records.values():
        fit = record.active or verdicts[record.name].state == "reviewed"
        for slot in record.candidate.facts.slots if fit else ():
            rivals.setdefault(slot, []).append(record)
    for slot, wanted in chosen.items():
        names = [r.name for r in rivals.get(slot, ())]
        if wanted in names:
            continue
        why, hint = "does not offer it", did_you_mean(wanted, names)
        condition = verdicts.get(wanted)
        if condition is not None and _may_offer(records[wanted], slot, condition):
            why, hint = (
                f"is {condition.state}: {condition.reason}",
                f"repair or enable {wanted}, or name another plugin",
            )
        base.diagnostics.add("SLOT_UNFILLED", f"slots.{slot} names {wanted!r}, which {why}", hint=hint)
    for slot, claimants in rivals.items():
        winner = min(claimants, key=lambda r: (not r.active, r.name != chosen.get(slot), r.rank, r.name))
        for loser in claimants:
            if loser is not winner and not loser.active:
                reason = f"slot {slot!r} is taken by {winner.name}; choose with slots: {{{slot}: {loser.name}}} in tavern.yaml"
                verdicts[loser.name] = PluginCondition("disabled", reason, findings=loser.candidate.findings)


def _may_offer(record: PluginRecord, slot: str, condition: PluginCondition) -> bool:
    """Whether a plugin offers a slot, or would do so if its plugin.yaml could be read."""
    return slot in record.candidate.facts.slots or condition.state == "failed"


def _judge_dependencies(
    waiting: list[PluginRecord], verdicts: dict[str, PluginCondition], records: Mapping[str, PluginRecord]
) -> None:
    """Check for missing, failed and disabled dependencies and cycles; repeated until stable."""
    tied = _tied(records)
    for record in waiting if tied else ():
        if verdicts[record.name].state == "reviewed" and (path := _circle(record.name, tied)):
            text = f"plugins depend on each other in a circle: {' → '.join(path)}"
            verdicts[record.name] = record.failed(DependencyUnmet(text, hint="remove one dependsOn"))
    needing = [record for record in waiting if record.candidate.facts.depends_on]
    changed = True
    while changed:
        changed = False
        for record in needing:
            if verdicts[record.name].state == "reviewed" and (error := _unmet(record, verdicts, records)):
                verdicts[record.name] = record.failed(error)
                changed = True


def _unmet(
    record: PluginRecord, verdicts: Mapping[str, PluginCondition], records: Mapping[str, PluginRecord]
) -> DependencyUnmet | None:
    for name, specifier in record.candidate.facts.depends_on.items():
        needed = records.get(name)
        wanted = f"{name} {specifier}".strip()
        if needed is None:
            hint = did_you_mean(name, records) or f"install the plugin {name}"
            return DependencyUnmet(f"{record.name} needs the plugin {wanted}, which is not installed", hint=hint)
        condition = verdicts.get(name, needed.condition)
        if condition.state not in USABLE:
            text = f"{record.name} needs the plugin {name}, which is {condition.state}: {condition.reason}"
            return DependencyUnmet(text, hint=f"repair {name} first")
        if specifier and not _satisfies(needed.candidate.version, specifier):
            text = f"{record.name} needs {wanted}; installed is {needed.candidate.version}"
            return DependencyUnmet(text, hint=f"upgrade or downgrade {name}")
    return None


def _tied(records: Mapping[str, PluginRecord]) -> dict[str, tuple[str, ...]]:
    """Plugins in a dependency cycle, or dependent on one, each with its dependencies among them; usually none."""
    every = ((name, {n for n in _needs(record) if n in records}) for name, record in records.items())
    remaining = {name: needs for name, needs in every if needs}
    needed_by: dict[str, list[str]] = {}
    for name, needs in remaining.items():
        for needed in needs:
            needed_by.setdefault(needed, []).append(name)
    free = [name for name in needed_by if name not in remaining]
    while free:
        name = free.pop()
        for other in needed_by.get(name, ()):
            remaining[other].discard(name)
            if not remaining[other]:
                del remaining[other]
                free.append(other)
    return {name: tuple(sorted(needs)) for name, needs in remaining.items()}


def _circle(start: str, tied: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The shortest path from a plugin back to itself, or []; the middle of a long path is left out."""
    came_from: dict[str, str] = {}
    queue = deque([start] if start in tied else [])
    while queue:
        name = queue.popleft()
        if start in tied[name]:
            back = [name]
            while back[-1] != start:
                back.append(came_from[back[-1]])
            path = [*reversed(back), start]
            return path if len(path) <= LONGEST_PATH else [*path[: LONGEST_PATH - 3], "…", *path[-2:]]
        for needed in tied[name]:
            if needed not in came_from and needed != start:
                came_from[needed] = name
                queue.append(needed)
    return []


def _needs(record: PluginRecord) -> Iterable[str]:
    if record.candidate.errors or record.candidate.fixed_id:
        return ()
    return record.candidate.facts.depends_on


def granted_now(record: PluginRecord, around: EligibilityInputs) -> PluginCondition:
    """The condition of a plugin without any reason against it, with its grants."""
    candidate = record.candidate
    if candidate.source in GRANTED_BY_PASSING:  # passing it to the host grants its requests
        return PluginCondition(
            "granted", granted=candidate.requested, findings=candidate.findings, scopes=candidate.scopes
        )
    decision = around.decisions.of(candidate)
    granted = decision.granted & candidate.requested
    if TRUST.id in candidate.requested - granted:
        return _untrusted(candidate, decision)
    kept_apart = "" if decision.tier == candidate.tier else f"it was granted for there, and {TIER.id} was not"
    missing = candidate.requested - granted | ({TIER.id} if kept_apart else frozenset())
    is_pending, name = decision.is_pending, record.name
    return PluginCondition(
        "pending_consent" if is_pending else "granted",
        undecided_reason(name, decision.undecided) if is_pending else missing_reason(name, missing),
        granted=granted,
        undecided=decision.undecided,
        findings=candidate.findings,
        fix=f"tavern plugins grant {name}" if is_pending else "",
        scopes=decision.scopes,
        changed=decision.changed,
        note=decision.note,
        kept_apart=kept_apart,
    )


def _untrusted(candidate: PluginCandidate, decision: GrantDecision) -> PluginCondition:
    """A skill whose current files are not trusted: no model sees any of it."""
    skill = candidate.facts.display_name
    why = "its files are not those that were trusted" if decision.changed else "it came with the project"
    if TRUST.id not in decision.undecided:
        why = "its operator does not trust it"
    return PluginCondition(
        "disabled",
        f"{why}; `tavern skills show {skill}` shows it, `tavern skills trust {skill}` lets it be used",
        undecided=decision.undecided,
        findings=candidate.findings,
        fix=f"tavern skills trust {skill}",
        changed=decision.changed,
        note=decision.note,
    )


def _granted_anyway(record: PluginRecord, around: EligibilityInputs) -> frozenset[str]:
    """The grants of a plugin that cannot run, as far as known without its manifest."""
    if record.candidate.source in GRANTED_BY_PASSING:
        return record.candidate.requested
    decided = around.decisions.grants.get(record.name)
    return frozenset() if decided is None else decided.granted


def undecided_reason(name: str, undecided: Collection[str]) -> str:
    """The requests that a person has to decide."""
    stays = " (it stays in its own process until then)" if TIER.id in undecided else ""
    return f"asks for {', '.join(sorted(undecided))}{stays}; decide with `tavern plugins grant {name}`"


def missing_reason(name: str, missing: Collection[str]) -> str:
    """The refused permissions of a plugin; empty if there are none."""
    if not missing:
        return ""
    listed = sorted(missing)
    return f"goes without {', '.join(listed)}, which was refused; `tavern plugins grant {name} {' '.join(listed)}` allows it"


def fits_host(version: str, specifier: str) -> bool:
    """Whether a version of tavern-core is in the range of `requires.host` or `requires.tested`; empty: any is."""
    if not specifier:
        return True
    from packaging.version import Version  # here, because the host's own plugins do not need it

    return _satisfies(Version(version).base_version, specifier)  # a development version of 1.0 counts as 1.0


def _satisfies(version: str, specifier: str) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return False
