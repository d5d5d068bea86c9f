"""Replay: runs the loop over a record, without model and tools, and compares the messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tavern_core.agents.agent_services import AgentServices
from tavern_core.agents.loop import AgentLoop
from tavern_core.agents.model_requests import AgentTask
from tavern_core.agents.playback import Playback
from tavern_core.agents.spending import BudgetTracker, Clock
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.agent_profile import AgentBudget
from tavern_core.model.agent_run import AgentOutcome, AgentRecord
from tavern_core.model.plain_data import json_members


@dataclass(frozen=True, slots=True)
class AgentReplay:
    """The outcome of a replay."""

    outcome: AgentOutcome
    differences: tuple[str, ...] = ()
    """The differences of the current loop from the recorded one."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """The conversation of the replay."""

    @property
    def ok(self) -> bool:
        """Whether the replay gave the same messages."""
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        return json_members(self, "ok", "differences", "outcome", "messages")


class _Comparison:
    """Compares the replies of a replay with the recorded ones."""

    def __init__(self, playback: Playback, mask: Callable[[Any], Any]) -> None:
        self._replies, self._mask = playback.replies, mask
        self.differences: list[str] = []
        self.seen: set[int] = set()

    def record(self, kind: str, data: Mapping[str, Any]) -> None:
        if kind != "reply":
            return
        step = data["step"]
        self.seen.add(step)
        recorded = self._replies.get(step)
        if recorded is not None and self._mask(list(data["messages"])) != recorded["messages"]:
            self.differences.append(f"step {step}: the host would answer the model differently now")

    def piece(self, step: int, piece: str) -> None:
        """Does nothing: a replay does not stream."""


async def replay_run(
    services: AgentServices, about: AgentTask, record: AgentRecord, limits: AgentBudget, mask: Callable[[Any], Any]
) -> AgentReplay:
    """Run the loop over a record."""
    playback = Playback(record.events, is_final=True)
    comparison = _Comparison(playback, mask)
    loop = AgentLoop(services, about, playback, BudgetTracker(limits, None, Clock()), comparison)
    outcome = await loop.run()
    unseen, differences = sorted(playback.replies.keys() - comparison.seen), comparison.differences
    differences += [f"step {step}: the replay does not reach it" for step in unseen]
    recorded_outcome = record.outcome
    if (
        recorded_outcome is not None
        and recorded_outcome.state == "done"
        and (outcome.state, mask(outcome.answer)) != ("done", recorded_outcome.answer)
    ):
        differences.append(f"the replay ends as {outcome.state}, with another answer")
    return AgentReplay(outcome, tuple(differences), tuple(mask(list(loop.messages))))
