"""The language models of ``llms`` in tavern.yaml. Each is made, and its kind imported, with its first request."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

from tavern_core.contract.llm import LLMAnswer, Message, Price, StreamingLLM
from tavern_core.errors import CallError, TavernError, ToolFailed
from tavern_core.flow.llm_calls import Models
from tavern_core.kernel.config.configuration import LoadedConfig
from tavern_core.kernel.settings.store import SettingsStore
from tavern_core.model.llm_config import LlmConfig
from tavern_core.model.secret_references import SECRET, is_operators_reference

_LOCAL: Final = frozenset({"scripted", "recorded"})
Secret = Callable[[str, Any], str]
"""(its place in tavern.yaml, the reference): the text behind it."""


def configured_llms(loaded: LoadedConfig, settings: SettingsStore, models: Models) -> dict[str, ConfiguredLLM]:
    """Name → model; nothing is connected or read.

    Args:
        models: all models, for those that record another one.
    """

    def secret(place: str, reference: Any) -> str:
        if SECRET in reference:
            return settings.secret(str(reference[SECRET]), loaded.config.secrets)
        return settings.secret(place, {place: reference})

    return {
        name: ConfiguredLLM(name, entry, loaded.base_dir, secret, models) for name, entry in loaded.config.llms.items()
    }


class ConfiguredLLM:
    """A language model of tavern.yaml as a `StreamingLLM`."""

    def __init__(self, name: str, entry: LlmConfig, folder: Path, secret: Secret, models: Models) -> None:
        self.kind = entry.kind
        self.model: str = entry.model or ""
        self.context_tokens: int | None = entry.context_tokens
        self.price: Price | None = None if entry.price is None else Price(**entry.price.model_dump())
        self.is_local: bool = entry.kind in _LOCAL and not entry.record
        self._name, self._entry, self._folder, self._secret, self._models = name, entry, folder, secret, models
        self._lock = threading.Lock()
        self._made: StreamingLLM | None = None

    async def complete(self, messages: Sequence[Message], /, **options: Any) -> LLMAnswer:
        """See `LLM.complete`."""
        return await self._own().complete(messages, **options)

    async def stream(self, messages: Sequence[Message], /, **options: Any) -> AsyncIterator[str | LLMAnswer]:
        """See `StreamingLLM.stream`."""
        async with aclosing(self._own().stream(messages, **options)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                yield piece

    def _own(self) -> StreamingLLM:
        with self._lock:
            if self._made is None:
                try:
                    self._made = self._make()
                except CallError:
                    raise
                except TavernError as error:
                    raise ToolFailed(
                        f"the language model {self._name!r} cannot be used: {error.message}", hint=error.hint,
                        fixFor="operator",
                    ) from error  # fmt: skip
            return self._made

    def _make(self) -> StreamingLLM:
        entry, options = self._entry, self._entry.options
        match entry.kind:
            case "openai":
                from tavern_core.builtin.llms.openai.model import OpenAILLM

                return OpenAILLM(
                    entry.base_url or "", self.model, key=self._key, headers=self._headers, options=options,
                    timeout_s=entry.timeout_ms / 1000, max_bytes=entry.max_bytes, retries=entry.retries,
                )  # fmt: skip
            case "pydantic-ai":
                from tavern_core.builtin.llms.pydantic_ai import PydanticAILLM

                return PydanticAILLM(self.model, key=self._key, options=options)
            case "scripted":
                from tavern_core.builtin.llms.scripted import ScriptedModel, read_answers

                if entry.answers is not None:
                    return ScriptedModel(entry.answers, where=f"llms.{self._name}.answers")
                file = self._file()
                return ScriptedModel(read_answers(file), where=str(file))
            case _:
                from tavern_core.builtin.llms.recorded import RecordedModel

                source = entry.source
                return RecordedModel(
                    self._file(), (lambda: self._models.find(source)) if entry.record and source else None
                )

    def _file(self) -> Path:
        return (self._folder / Path(self._entry.file or "").expanduser()).absolute()

    def _key(self) -> str:
        """The key as it is now: it may be replaced while the host runs."""
        return "" if self._entry.key is None else self._resolved(f"llms.{self._name}.key", self._entry.key)

    def _headers(self) -> Mapping[str, str]:
        return {
            name: self._resolved(f"llms.{self._name}.headers.{name}", value) if is_operators_reference(value) else value
            for name, value in self._entry.headers.items()
        }

    def _resolved(self, place: str, reference: Any) -> str:
        try:
            return self._secret(place, reference)
        except TavernError as error:
            raise ToolFailed(
                f"the language model {self._name!r}: {error.message}", hint=error.hint, fixFor="operator"
            ) from error
