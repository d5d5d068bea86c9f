"""Models that replay recorded answers, and record those of another model: one JSON object a line, found by a hash of the request.

{"request": "<sha256>", "messages": [...], "options": {...}, "answer": {"text": "Hello!", ...}}
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

from tavern_core.contract.llm import LLM, LLMAnswer, Message, StreamingLLM, answer_json, answer_of
from tavern_core.errors import ToolFailed, UpstreamError

_ARTIFACT: Final = re.compile(r"\bart-[0-9a-f]{20}\b")
_RECORD: Final = "record it: set `record: true` and `source` of this model in tavern.yaml, and ask once"


class RecordedModel:
    """A `StreamingLLM` that replays answers or records those of another model.

    Args:
        file: of the recording.
        source: the model whose answers are recorded; None: replay.
    """

    kind = "recorded"

    def __init__(
        self,
        file: Path,
        source: Callable[[], LLM] | None = None,
    ) -> None:
        self.is_local = source is None
        self._file, self._source = file, source
        self._lock = threading.Lock()
        self._answers: dict[str, list[LLMAnswer]] | None = None
        self._used: dict[str, int] = {}

    async def complete(self, messages: Sequence[Message], /, **options: Any) -> LLMAnswer:
        """See `LLM.complete`.

        Raises:
            UpstreamError: the request was not recorded (UPSTREAM_ERROR).
            ToolFailed: the file cannot be read or written (TOOL_ERROR).
        """
        if self._source is None:
            return self._next_answer(messages, options)
        answer = await self._source().complete(messages, **options)
        self._record(messages, options, answer)
        return answer

    async def stream(self, messages: Sequence[Message], /, **options: Any) -> AsyncIterator[str | LLMAnswer]:
        """See `StreamingLLM.stream`. Raises as `complete`."""
        source = None if self._source is None else self._source()
        if not isinstance(source, StreamingLLM):
            answer = await self.complete(messages, **options)
            for at in range(0, len(answer.text), 16):
                yield answer.text[at : at + 16]
            yield answer
            return
        text, final = list[str](), None
        try:
            async with aclosing(source.stream(messages, **options)) as pieces:  # type: ignore[type-var]
                async for piece in pieces:
                    if isinstance(piece, LLMAnswer):
                        final = piece
                    else:
                        text.append(piece)
                        yield piece
        except GeneratorExit:  # the receiver has read enough, as agents do behind a call
            self._record(messages, options, LLMAnswer("".join(text)))
            raise
        final = final or LLMAnswer("".join(text))
        self._record(messages, options, final)
        yield final

    def _next_answer(self, messages: Sequence[Message], options: Mapping[str, Any]) -> LLMAnswer:
        """The next answer to this request; the last one repeatedly."""
        key = request_hash(messages, options)
        with self._lock:
            if self._answers is None:
                self._answers = self._read()
            answers, position = self._answers.get(key, []), self._used.get(key, 0)
            self._used[key] = position + 1
        if not answers:
            raise UpstreamError(
                f"{self._file} has no answer to this request ({key[:12]})",
                hint=_RECORD,
                outcome="none",
                request=key,
            )
        return answers[min(position, len(answers) - 1)]

    def _read(self) -> dict[str, list[LLMAnswer]]:
        answers: dict[str, list[LLMAnswer]] = {}
        number = 1
        try:
            with self._file.open(encoding="utf-8") as lines:
                for line in lines:
                    if line.strip():
                        entry = json.loads(line)
                        answers.setdefault(entry["request"], []).append(answer_of(entry["answer"]))
                    number += 1
        except OSError as error:
            raise ToolFailed(
                f"{self._file} cannot be read: {error.strerror}",
                hint=_RECORD,
                fixFor="operator",
            ) from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ToolFailed(
                f"{self._file}:{number} is not a recorded answer: {error}", hint="delete the line", fixFor="operator"
            ) from error
        return answers

    def _record(self, messages: Sequence[Message], options: Mapping[str, Any], answer: LLMAnswer) -> None:
        line = {
            "request": request_hash(messages, options),
            "messages": [dict(message) for message in messages],
            "options": dict(options),
            "answer": answer_json(answer),
        }
        try:
            with self._lock, self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
        except OSError as error:
            raise ToolFailed(
                f"{self._file} cannot be written: {error.strerror}", fixFor="operator", outcome="done"
            ) from error


def request_hash(messages: Sequence[Message], options: Mapping[str, Any]) -> str:
    """SHA-256 of a request, the same in every process: the random ids of artifacts are replaced by numbers."""
    numbers: dict[str, str] = {}

    def numbered(found: re.Match[str]) -> str:
        return numbers.setdefault(found[0], f"art-{len(numbers)}")

    request = [[dict(message) for message in messages], dict(options)]
    text = json.dumps(request, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    text = _ARTIFACT.sub(numbered, text)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
