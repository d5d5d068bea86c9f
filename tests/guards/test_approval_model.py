"""Which calls are asked about: random rules against a model that is written down from the manual."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from tavern_core import ApprovalRequest, CallContext, Plugin, Tavern, tool


@dataclass(frozen=True)
class Tool:
    """A tool as the model knows it."""

    plugin: str
    local: str
    capabilities: tuple[str, ...] = ()
    asks: bool = False

    @property
    def id(self) -> str:
        return f"{self.plugin}:{self.local}"


TOOLS = [
    Tool("desk", "look"), Tool("desk", "lookup", ("read:fs",)), Tool("desk", "wipe", ("write:fs", "network"), asks=True),
    Tool("my-desk", "look", ("network",)), Tool("my-desk", "write", ("write:fs", "gpu")), Tool("text", "desk", ("gpu",)), Tool("text", "wipe", (), asks=True),
]  # fmt: skip
PLUGINS = sorted({one.plugin for one in TOOLS})
ENTRIES = [
    *(one.id for one in TOOLS), *sorted({one.local for one in TOOLS}), *PLUGINS, *(f"{name}:*" for name in PLUGINS),
    "desk:lo*", "desk:look*", "*:look", "*desk:look", "lo*", "*e", "*:wipe", "*", "*:*", "group:plugins", "group:some",
    "capability:read:fs", "capability:write:fs", "capability:network", "capability:gpu", "capability:write:*", "capability:*", "desk:none", "none",
]  # fmt: skip
GROUP = ["desk:look", "my-desk", "capability:gpu"]


def rank(entry: str, one: Tool, *, is_allowing: bool) -> tuple[int, int] | None:
    """How specifically an entry names a tool: the rows of the table in docs/configuration.md, the last of them 0."""
    if entry.startswith("capability:"):
        wanted = entry.removeprefix("capability:")
        if not any(fnmatchcase(capability, wanted) for capability in one.capabilities):
            return None
        return (0, 0) if "*" in wanted else (1, 0)
    if entry in ("*", "*:*", "group:plugins"):
        return 0, 0
    if entry == f"{one.plugin}:*":
        return 2, 0
    if "*" in entry:
        text = one.id if ":" in entry else one.local
        return (3, len(entry.replace("*", ""))) if fnmatchcase(text, entry) else None
    if ":" in entry:
        return (5, 0) if entry == one.id else None
    if entry == one.plugin:
        return 2, 0
    # What allows is read narrowly: the name of a plugin is not a tool's there.
    return (4, 0) if entry == one.local and not (is_allowing and entry in PLUGINS) else None


def expected(rules: dict[str, list[str]], one: Tool) -> str:
    found = []
    for decision, strength in (("deny", 2), ("ask", 1), ("allow", 0)):
        for written in rules.get(decision, []):
            for entry in GROUP if written == "group:some" else [written]:
                if (how := rank(entry, one, is_allowing=decision == "allow")) is not None:
                    found.append((how, strength, decision))
    if not found:
        return "ask" if one.asks else "run"
    (level, _), _, decision = max(found)
    if decision == "allow":
        return "ask" if one.asks and level < 4 else "run"
    return decision


class Office:
    """Hosts with all the tools, under different rules."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.asked: list[str] = []

    def approve(self, request: ApprovalRequest) -> bool:
        self.asked.append(request.tool)
        return False

    def outcomes(self, rules: dict[str, list[str]]) -> dict[str, str]:
        config: Any = {"audit": {"enabled": False}, "approval": rules, "tools": {"groups": {"some": GROUP}}}
        plugins = [
            Plugin(
                [_made(one) for one in TOOLS if one.plugin == name],
                name=name,
                manifest={"version": "1", "permissions": {"capabilities": _asked(name)}},
            )
            for name in PLUGINS
        ]
        context = CallContext(permissions=frozenset(c for one in TOOLS for c in one.capabilities))
        with Tavern.open(config=config, home=self.home, plugins=plugins, approve=self.approve) as tavern:
            return {one.id: self._outcome(tavern, one, context) for one in TOOLS}

    def _outcome(self, tavern: Tavern, one: Tool, context: CallContext) -> str:
        self.asked.clear()
        result = tavern.invoke_sync(one.id, {}, context=context)
        kind = result.error.kind if result.error is not None else ""
        assert (self.asked == [one.id]) is (kind == "APPROVAL_REJECTED"), (one.id, self.asked, kind)
        return {"": "run", "APPROVAL_REJECTED": "ask", "POLICY_DENIED": "deny"}[kind]


def _made(one: Tool) -> Any:
    def run() -> str:
        return "done"

    return tool(name=one.local, capabilities=list(one.capabilities), requires_approval=one.asks)(run)


def _asked(name: str) -> list[dict[str, str]]:
    return [
        {"name": capability}
        for capability in sorted({c for one in TOOLS if one.plugin == name for c in one.capabilities})
    ]


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    return Office(tmp_path_factory.mktemp("office") / "home")


def random_rules(chance: random.Random) -> dict[str, list[str]]:
    return {decision: chance.sample(ENTRIES, chance.choice([0, 1, 1, 2, 3])) for decision in ("deny", "ask", "allow")}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_random_rules_decide_as_the_manual_says(office: Office, seed: int) -> None:
    chance = random.Random(seed)
    wrong = []
    for _ in range(8):
        rules = random_rules(chance)
        found = office.outcomes(rules)
        wrong += [
            (rules, one.id, found[one.id], expected(rules, one))
            for one in TOOLS
            if found[one.id] != expected(rules, one)
        ]
    assert wrong == []


@pytest.mark.parametrize(
    ("rules", "one", "outcome"),
    [
        ({"ask": ["capability:gpu"], "allow": ["capability:write:fs"]}, "my-desk:write", "ask"),
        ({"deny": ["capability:gpu"], "allow": ["capability:write:fs"]}, "my-desk:write", "deny"),
        ({"ask": ["*"], "allow": ["capability:write:*"]}, "my-desk:write", "ask"),
        ({"ask": ["group:some"], "allow": ["my-desk:*"]}, "my-desk:write", "ask"),
    ],
)
def test_a_capability_with_a_longer_name_is_not_more_specific(
    office: Office, rules: dict[str, list[str]], one: str, outcome: str
) -> None:
    assert office.outcomes(rules)[one] == outcome
