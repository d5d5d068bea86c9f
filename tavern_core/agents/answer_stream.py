"""Reads an answer of a model: follows the stream, ends it when enough was received, and cuts it to the valid part."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from tavern_core import tam
from tavern_core.agents.repetition import is_looping
from tavern_core.contract.llm import LLMAnswer, ModelCall, count_of
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.config import TamConfig
from tavern_core.model.token_estimate import tokens_of

MOST_CHARS: Final = 1_000_000
"""Maximum characters of one answer; `tam.maxText` may lower it."""
MOST_CALLS: Final = 128
"""Maximum blocks and maximum native calls of one answer; if there are more, none is made."""
MOST_ARGUMENTS: Final = 4_000_000
"""Characters of the arguments of all native calls of an answer."""
_LOOK_EVERY: Final = 2_000
_MARKER: Final = "[REQUEST_TOOL]"
_ONE_FENCE: Final = re.compile(r"(?P<before>[^`]{0,200})```[^\n`]{0,40}\n(?P<inside>.*)\n```", re.DOTALL)
Fault = Literal["", "repeats", "too_long"]


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The valid part of a model's answer."""

    text: str
    calls: tuple[ModelCall, ...] = ()
    finish: str = "stop"
    input: int = 0
    output: int = 0
    is_estimated: bool = False
    """Whether the model did not report its tokens."""
    model: str = ""
    dropped: int = 0
    """Received characters after the block at which the model should have stopped."""
    fault: Fault = ""
    said: str = ""
    """The text outside of blocks and thoughts."""
    blocks: int = 0
    hides_call: bool = False
    """Whether the reasoning contains a call, which does not run there."""

    def to_json(self) -> dict[str, Any]:
        return {
            "text": self.text, "toolCalls": [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in self.calls],
            "finishReason": self.finish, "usage": {"input": self.input, "output": self.output}, "estimated": self.is_estimated,
            "model": self.model, "dropped": self.dropped, "fault": self.fault,
        }  # fmt: skip


class AnswerReader:
    """Follows the text of an answer while it streams.

    Args:
        tam_config: the settings for reading TAM.
        many_blocks: whether to continue after the first block.
        reads_blocks: whether the agent calls tools by TAM.
        on_piece: called with each piece of the valid part.
    """

    def __init__(
        self,
        tam_config: TamConfig,
        *,
        many_blocks: bool,
        reads_blocks: bool = True,
        on_piece: Callable[[str], object] = lambda piece: None,
    ) -> None:
        self._most = min(MOST_CHARS, tam_config.max_text)
        self._scanner = tam.Scanner(
            ignore_fenced=tam_config.ignore_fenced, max_block=tam_config.max_block, thoughts=tam_config.thoughts
        )
        self._stops = reads_blocks and not many_blocks
        self._on_piece = on_piece
        self._parts: list[str] = []
        self._size = self._checked_size = 0
        self._is_open = False
        self._end: int | None = None
        self._plain_pieces: list[str] = []
        self._thoughts: list[str] = []
        self.fault: Fault = ""
        self.blocks = 0

    def feed(self, piece: str) -> bool:
        """Add the next piece; True: enough was received."""
        if self._end is not None or self.fault:
            self._size += len(piece)
            return True
        piece = piece[: self._most + 1 - self._size].encode("utf-8", "replace").decode()
        self._parts.append(piece)
        self._size += len(piece)
        for event in self._scanner.feed(piece):
            self._see(event)
        if self._end is None and self._size > self._most:
            self.fault = "too_long"
        elif self._end is None and not self._is_open and self._size - self._checked_size >= _LOOK_EVERY:
            self._checked_size = self._size
            self.fault = "repeats" if is_looping("".join(self._parts[-2 * _LOOK_EVERY :])) else ""
        self._on_piece(piece)
        return self._end is not None or bool(self.fault)

    def close(self) -> None:
        """Mark the end of the answer."""
        for event in self._scanner.close():
            self._see(event)

    def _see(self, event: tam.Event) -> None:
        if self._end is not None:
            return
        if isinstance(event, tam.BlockStart):
            self._is_open = True
        elif isinstance(event, tam.Block):
            self._is_open = False
            self.blocks += 1
            if self._stops and event.closed:
                self._end = event.end
        elif isinstance(event, tam.Text):
            (self._thoughts if event.thought else self._plain_pieces).append(event.text)

    @property
    def text(self) -> str:
        """The valid part of the text."""
        text = "".join(self._parts)
        return text[: self._most if self._end is None else self._end]

    @property
    def dropped(self) -> int:
        """Characters after the block, without blanks and the end of a code fence, which are harmless."""
        return 0 if self._end is None else len("".join(self._parts)[self._end :].strip().strip("`").strip())

    @property
    def plain_text(self) -> str:
        return "".join(self._plain_pieces).strip()

    @property
    def hides_call(self) -> bool:
        return _MARKER in "".join(self._thoughts).upper()


def fenced_content(said: str) -> str:
    """The content of an answer that is one code fence, or a few words and one without a block; else empty."""
    found = _ONE_FENCE.fullmatch(said.strip())
    if found is None or "```" in found["inside"] or (found["before"] and _MARKER in found["inside"].upper()):
        return ""
    return found["inside"]


def answer_of_model(said: LLMAnswer, listener: AnswerReader, prompt_tokens: int) -> ModelAnswer:
    """The valid part of a completed answer.

    Args:
        listener: a new reader.
        prompt_tokens: an estimate, for models that do not report usage.
    """
    listener.feed(said.text)
    listener.close()
    usage = said.usage if isinstance(said.usage, Mapping) else {}
    calls = tuple(_bounded(said.tool_calls))
    is_estimated = count_of(usage, "input") is None or count_of(usage, "output") is None
    output_tokens = tokens_of(said.text) + sum(tokens_of(call.arguments) for call in calls)
    return ModelAnswer(
        listener.text, calls, said.finish_reason,
        _count(usage, "input", prompt_tokens), _count(usage, "output", output_tokens), is_estimated,
        said.model, listener.dropped, listener.fault, listener.plain_text, listener.blocks, listener.hides_call,
    )  # fmt: skip


def _count(usage: Mapping[str, int], name: str, otherwise: int) -> int:
    return otherwise if (count := count_of(usage, name)) is None else count


def _bounded(calls: Sequence[ModelCall]) -> Iterator[ModelCall]:
    """The calls as valid text; if there are too many or they are too large, enough of them to detect that."""
    room, ids = MOST_ARGUMENTS + 1, set[str]()
    for number, call in enumerate(calls[: MOST_CALLS + 1]):
        arguments = _clean(call.arguments, room)
        room -= len(arguments)
        call_id = _clean(call.id, 200)
        if not call_id or call_id in ids:  # an API refuses results that it cannot match to a call
            call_id = f"call-{number}"
        ids.add(call_id)
        yield ModelCall(call_id, _clean(call.name, 200), arguments)


def _clean(text: object, most: int) -> str:
    return str(text)[:most].encode("utf-8", "replace").decode()


def answer_of_record(data: Mapping[str, Any], listener: AnswerReader) -> ModelAnswer:
    """A recorded answer.

    Args:
        listener: a new reader.
    """
    listener.feed(data["text"])
    listener.close()
    calls = tuple(ModelCall(c["id"], c["name"], c["arguments"]) for c in data["toolCalls"])
    usage = data["usage"]
    return ModelAnswer(
        data["text"], calls, data["finishReason"], usage["input"], usage["output"], data["estimated"], data["model"], data["dropped"],
        data["fault"], listener.plain_text, listener.blocks, listener.hides_call,
    )  # fmt: skip
