"""Models with prepared answers: for tests, examples and work without a network.

answers:
  - Hello!
  - text: Let me look.
    toolCalls: [{name: text_count, arguments: {text: one two}}]
    usage: {input: 12, output: 7}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tavern_core.contract.llm import LLMAnswer, Message, ModelCall, ScriptedLLM
from tavern_core.contract.structured_answers import schema_validator, structured
from tavern_core.errors import ConfigInvalid

LARGEST: Final = 16_000_000
_KEYS: Final = frozenset({"text", "toolCalls", "usage", "finishReason", "data"})


class ScriptedModel(ScriptedLLM):
    """A `ScriptedLLM` whose answers are data; with the option `schema` it answers with the JSON in the text."""

    def __init__(self, answers: Sequence[Any], *, where: str) -> None:
        """Raises ConfigInvalid: an answer is invalid (CONFIG_INVALID); the error names `where`."""
        super().__init__([_answer(written, f"{where}[{place}]") for place, written in enumerate(answers)])

    async def complete(self, messages: Sequence[Message], /, **options: Any) -> LLMAnswer:
        answer = await super().complete(messages, **options)
        if options.get("schema") is None or answer.data is not None or answer.tool_calls:
            return answer
        data = structured(answer.text, schema_validator(options["schema"]), answer.finish_reason)
        return LLMAnswer(answer.text, answer.finish_reason, answer.usage, answer.model, (), data)


def read_answers(file: Path) -> list[Any]:
    """The answers in a YAML or JSON file: a list, or ``{answers: [...]}``.

    Raises:
        ConfigInvalid: it cannot be read, or holds no such list (CONFIG_INVALID).
    """
    try:
        if file.stat().st_size > LARGEST:
            raise ConfigInvalid(f"{file}: larger than {LARGEST:,} bytes")
        written = yaml.safe_load(file.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ConfigInvalid(
            f"{file}: cannot be read: {error}", hint="write a list of answers as YAML or JSON"
        ) from error
    answers = written.get("answers") if isinstance(written, Mapping) else written
    if not isinstance(answers, list) or not answers:
        raise ConfigInvalid(f"{file}: holds no answers", hint="write a list of answers as YAML or JSON")
    return answers


def _answer(written: Any, where: str) -> LLMAnswer:
    if isinstance(written, str):
        return LLMAnswer(written, model="scripted")
    if not isinstance(written, Mapping) or not all(isinstance(key, str) for key in written):
        raise ConfigInvalid(f"{where}: an answer is a text or a mapping", hint="- text: Hello!")
    if unknown := sorted(written.keys() - _KEYS):
        raise ConfigInvalid(f"{where}: unknown key {unknown[0]!r}", hint=f"keys: {', '.join(sorted(_KEYS))}")
    calls = tuple(_call(call, place, where) for place, call in enumerate(written.get("toolCalls") or ()))
    usage = written.get("usage") or {}
    if not isinstance(usage, Mapping) or not all(type(count) is int for count in usage.values()):
        raise ConfigInvalid(f"{where}.usage: expected numbers of tokens", hint="usage: {input: 12, output: 7}")
    finish = str(written.get("finishReason") or ("tool_calls" if calls else "stop"))
    return LLMAnswer(str(written.get("text") or ""), finish, dict(usage), "scripted", calls, written.get("data"))


def _call(written: Any, place: int, where: str) -> ModelCall:
    if not isinstance(written, Mapping) or not isinstance(written.get("name"), str):
        raise ConfigInvalid(
            f"{where}.toolCalls[{place}]: a call has a name and arguments", hint="{name: text_count, arguments: {}}"
        )
    arguments = written.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ModelCall(str(written.get("id") or f"call_{place}"), written["name"], text)
