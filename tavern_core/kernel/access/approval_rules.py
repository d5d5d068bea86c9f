"""Rules for tools that need an approval: the section `approval` of tavern.yaml.

    approval:
      ask: ["file-operator:*", "capability:write:db"]
      allow: [file-operator:ReadFile]
      deny: ["capability:danger:*"]

An entry is one of `tool_selectors`, or ``capability:<name>``, which is every tool that needs it. The most specific
entry decides:

    5  one tool by its id         4  one tool by its local name    3  a wildcard, the longer the more specific
    2  all tools of one plugin    1  a capability                  0  ``*``, ``group:plugins``, a wildcard of capabilities

Of equally specific ones `deny` wins over `ask`, and `ask` over `allow`. A tool that asks for approval itself is only let
through without approval by an entry that names it (5, 4). An approval that a gate requests at a call is always required.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.access.tool_selectors import Rank, SelectorTargets, ToolList, ToolNames, is_group, specificity
from tavern_core.model.capability import forbids, is_capability
from tavern_core.model.config import ApprovalConfig
from tavern_core.model.tool import ToolSpec

CAPABILITY: Final = "capability:"
_Decision = Literal["deny", "ask", "allow"]
_STRENGTH: Final[Mapping[str, int]] = {"deny": 2, "ask": 1, "allow": 0}
_NAMED: Final = 4


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """The rule for one tool, before any gate is called."""

    decision: Literal["deny", "ask"]
    place: str
    """The place of the rule: ``approval.ask[0]``, or ``the tool``."""
    reason: str


@dataclass(frozen=True, slots=True)
class _Entry:
    decision: _Decision
    place: str
    written: str
    matcher: ToolList | None
    """None for a capability."""

    def rank(self, tool: ToolSpec, names: ToolNames) -> Rank | None:
        """The specificity with which the entry names the tool; None if it does not name it."""
        if self.matcher is None:
            wanted = self.written.strip()[len(CAPABILITY) :]
            named = any(forbids((wanted,), capability) for capability in tool.capabilities)
            return (0 if "*" in wanted else 1, 0) if named else None
        return specificity(self.written, self.matcher, names)


class ApprovalRules:
    """The section `approval`, compiled."""

    def __init__(self, config: ApprovalConfig, known: SelectorTargets, file: str) -> None:
        self._file = file
        self._entries: list[_Entry] = []
        for place, entries, decision in _lists(config):
            for index, written in enumerate(entries):
                for entry in known.groups.expand(written) if is_group(written) else [written]:
                    matcher = None
                    if not is_capability_entry(entry):
                        matcher = ToolList.compile(place, [entry], known, wide=decision != "allow")
                    self._entries.append(_Entry(decision, f"{place}[{index}]", entry, matcher))

    def of(self, tool: ToolSpec) -> ApprovalRule | None:
        """The rule by which calls of `tool` are refused or need approval; None if they run without it."""
        best: tuple[Rank, int, _Entry] | None = None
        names = ToolNames.of(tool) if self._entries else None
        for entry in self._entries:
            if names is not None and (rank := entry.rank(tool, names)) is not None:
                found = rank, _STRENGTH[entry.decision], entry
                if best is None or found[:2] > best[:2]:
                    best = found
        if best is not None and best[2].decision != "allow":
            entry = best[2]
            reason = f"the entry {entry.written!r} at {entry.place} in {self._file}"
            return ApprovalRule("deny" if entry.decision == "deny" else "ask", entry.place, reason)
        if tool.requires_approval and (best is None or best[0][0] < _NAMED):
            return ApprovalRule("ask", "the tool", "the tool requires approval of each call")
        return None


def _lists(config: ApprovalConfig) -> Iterator[tuple[str, Sequence[str], _Decision]]:
    yield "approval.deny", config.deny, "deny"
    yield "approval.ask", config.ask, "ask"
    yield "approval.allow", config.allow, "allow"


def tool_entries(config: ApprovalConfig) -> Iterator[tuple[str, Sequence[str], bool]]:
    """(place, entries that name tools, whether they are read widely), to find misspelt ones."""
    for place, entries, decision in _lists(config):
        yield (
            place,
            ["*" if is_capability_entry(e) and known_capability(e) else e for e in entries],
            decision != "allow",
        )


def is_capability_entry(entry: str) -> bool:
    """True for ``capability:<name>``."""
    return entry.strip().startswith(CAPABILITY)


def known_capability(entry: str) -> bool:
    """True when an entry names a capability that exists, or a wildcard of some."""
    wanted = entry.strip()[len(CAPABILITY) :]
    return is_capability(wanted) or wanted.endswith("*")
