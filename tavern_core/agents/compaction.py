"""Fits a conversation into the model's window. Pure and deterministic; the result names everything that was left out.

    1. results of tools, the oldest first, become one line each, with the address of the full result
    2. then whole turns, the oldest first, become one line together

The system prompt and the task stay unchanged, and so do the last turns, as long as they fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tavern_core.agents.notices import sentence
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.message_translation import Language
from tavern_core.model.token_estimate import tokens_of

TARGET: Final = 0.6
"""The share of the window that is filled after compaction, so that the next one is some steps away."""
KEPT_TURNS: Final = 2
"""The last turns, which stay unchanged; if they do not fit, only the last one."""
_SHORT: Final = 400
"""Characters; a shorter message is not replaced by a line."""
_BEGINNING: Final = 160
_LINE: Final = 60
"""The approximate tokens of the line that replaces a message, without the quoted beginning."""
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The messages to replace."""

    results: tuple[int, ...] = ()
    """Positions of messages that become one line each."""
    turns: tuple[int, int] = (0, 0)
    """Start and end (exclusive) of the messages that become one line together."""


def tokens_of_messages(messages: Sequence[Message]) -> int:
    """The estimated tokens of a conversation."""
    return sum(_size(message) for message in messages)


def plan_compaction(messages: Sequence[Message], window: int) -> CompactionPlan | None:
    """The plan for a conversation; None: it fits.

    Args:
        messages: system, task, then turns that each begin with an assistant's message.
        window: the size of the window in tokens.
    """
    if tokens_of_messages(messages) <= window:
        return None
    for kept in range(KEPT_TURNS, 0, -1):
        plan, remaining = _with_turns(messages, window, kept)
        if remaining <= window:
            break
    return plan


def _with_turns(messages: Sequence[Message], window: int, kept_turns: int) -> tuple[CompactionPlan | None, int]:
    """A plan that keeps this many turns, and the approximate tokens that remain."""
    total, goal = tokens_of_messages(messages), int(window * TARGET)
    begin = _begin(messages)
    turns = [at for at in range(begin, len(messages)) if messages[at]["role"] == "assistant"]
    last = turns[-kept_turns] if len(turns) > kept_turns else begin
    results: list[int] = []

    def leave_out(start: int, stop: int, most: int) -> None:
        nonlocal total
        for at in range(start, stop):
            message = messages[at]
            if total > most and message["role"] != "assistant" and len(message["content"]) > _SHORT:
                results.append(at)
                total -= _size(message) - _size_of_line(message)

    leave_out(begin, last, goal)
    end = begin
    for at in turns:
        if total <= goal or at >= last:
            break
        end = next((after for after in turns if after > at), last)
        total -= sum(_size_of_line(messages[i]) if i in results else _size(messages[i]) for i in range(at, end))
    leave_out(last, len(messages) - 1, window)  # the last turns too, if necessary
    kept = tuple(at for at in results if at >= end)
    return (CompactionPlan(kept, (begin, end)) if kept or end > begin else None), total


def shorten(
    messages: Sequence[Message], plan: CompactionPlan, addresses: Sequence[str], language: Language
) -> list[Message]:
    """The conversation after a plan was applied.

    Args:
        addresses: of the full texts: one for each message of `plan.results`, then one for the turns, if any.
    """
    begin, end = plan.turns
    lines = dict(zip(plan.results, addresses, strict=False))
    shortened: list[Message] = []
    for at, message in enumerate(messages):
        if at == begin and end > begin:
            shortened.append(
                {
                    "role": "user",
                    "content": sentence("turns_left_out", language, count=end - begin, whole=addresses[-1]),
                }
            )
        if begin <= at < end:
            continue
        if at in lines:
            first = " ".join(message["content"][:_BEGINNING].split())
            text = sentence("result_left_out", language, first=first, count=len(message["content"]), whole=lines[at])
            message = {**message, "content": text}
        shortened.append(message)
    return shortened


def as_text(messages: Sequence[Message]) -> str:
    """Messages as a text that the model may read again."""
    return "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in messages)


def _begin(messages: Sequence[Message]) -> int:
    """The position of the first turn: after system prompt and task."""
    return next((at for at, message in enumerate(messages) if message["role"] == "assistant"), len(messages))


def _size_of_line(message: Message) -> int:
    """The approximate tokens of the line that replaces a message."""
    return tokens_of(message["content"][:_BEGINNING]) + _LINE


def _size(message: Message) -> int:
    calls = message.get("toolCalls") or ()
    return (
        4 + tokens_of(str(message["content"])) + sum(tokens_of(f"{call['name']}{call['arguments']}") for call in calls)
    )
