"""The record of a run for the loop: recorded answers and calls are not repeated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tavern_core.model.agent_run import AgentEvent

CallPosition = tuple[int, int]
"""(step, number of the call in the step)"""


class Playback:
    """The recorded part of a run.

    Args:
        is_final: for a replay: the loop ends with the record.
    """

    def __init__(self, events: Iterable[AgentEvent] = (), *, is_final: bool = False) -> None:
        self.is_final = is_final
        self.seq = 0
        self.seconds = 0.0
        self.messages = 0
        """The number of recorded initial messages."""
        self.answers: dict[int, Mapping[str, Any]] = {}
        self.calls: dict[CallPosition, Mapping[str, Any]] = {}
        """Calls that were begun."""
        self.reads: set[CallPosition] = set()
        """Calls of tools that only read."""
        self.masked: set[int] = set()
        """Steps with a secret part that was not stored."""
        self.results: dict[CallPosition, Mapping[str, Any]] = {}
        self.foreseen: dict[CallPosition, Mapping[str, Any] | None] = {}
        self.replies: dict[int, Mapping[str, Any]] = {}
        self.faults: list[Mapping[str, Any]] = []
        """Requests that failed."""
        self.compacted: dict[int, Mapping[str, Any]] = {}
        self.drawn = 0
        """The used part of the call budget; a call without a result is not counted, because it is repeated."""
        self.human_answers: dict[str, Any] = {}
        """Question → the answer of a person, until it is used: a later question may have the same name."""
        self.waiting_for: Mapping[str, Any] | None = None
        for event in events:
            self._take(event)

    def _take(self, event: AgentEvent) -> None:
        data, self.seq = event.data, event.seq
        self.seconds = data.get("seconds", self.seconds)
        self.drawn = data.get("drawn", self.drawn + (event.kind == "result"))
        if data.get("masked") and "step" in data:
            self.masked.add(data["step"])
        match event.kind:
            case "message":
                self.messages += 1
            case "answer":
                self.answers[data["step"]] = data
                self.waiting_for = None
                self.human_answers.clear()
            case "call":
                self.calls[data["step"], data["index"]] = data
            case "result":
                self.human_answers.clear()
                if data["reads"]:
                    self.reads.add((data["step"], data["index"]))
                self.results[data["step"], data["index"]] = data["result"]
            case "foreseen":
                self.foreseen[data["step"], data["index"]] = data["error"]
            case "fault":
                self.faults.append(data)
            case "reply":
                self.replies[data["step"]] = data
            case "compacted":
                self.compacted[data["step"]] = data
            case "given":
                self.human_answers |= data["answers"]
            case "waiting":
                self.waiting_for = data["waitingFor"]


class PlaybackEnds(Exception):
    """A replay has reached the end of the record."""


class PersonRequired(Exception):
    """The run needs a person to continue.

    Args:
        data: what the run waits for; see `AgentOutcome.waiting_for`.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        super().__init__(data.get("id", ""))
        self.data = data
        self.code = "APPROVAL_REQUIRED" if data["kind"] == "approval" else "INPUT_REQUIRED"
