"""The requests of one proposal to one model, each of them governed, and their usage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tavern_core.assistant.proposal import ModelUsage
from tavern_core.contract.llm import LLMAnswer, Message, Price
from tavern_core.contract.structured_answers import MISMATCH
from tavern_core.errors import CallError, TavernError
from tavern_core.flow.composition import WorkflowServices
from tavern_core.model.call import CallContext

_NO_SCHEMA: Final = frozenset({"UPSTREAM_ERROR", "TOOL_ERROR", "OUTPUT_SCHEMA_INVALID"})
"""Codes with which an API may refuse structured output."""


class ModelRequests:
    """The requests to one model for one proposal."""

    def __init__(self, flow: WorkflowServices, model: str, context: CallContext | None, purpose: str) -> None:
        self._models = flow.models
        self._name, self.context, self._purpose = model, context, purpose
        self._takes_schema = True
        self.usages: list[Mapping[str, int]] = []

    async def ask(self, messages: Sequence[Message], schema: Mapping[str, Any]) -> LLMAnswer:
        """Ask for structured output; a model that cannot give it is asked for text. Raises CallError."""
        if self._takes_schema:
            try:
                return await self._send(messages, {"schema": schema})
            except CallError as error:
                is_mismatch = MISMATCH in error.details
                if not is_mismatch and (error.retryable or error.code not in _NO_SCHEMA):
                    raise
                self._takes_schema = False
        return await self._send(messages, {})

    async def _send(self, messages: Sequence[Message], options: Mapping[str, Any]) -> LLMAnswer:
        answer = await self._models.ask(self._name, messages, options, self.context, self._purpose)
        self.usages.append(answer.usage)
        return answer

    @property
    def context_tokens(self) -> int | None:
        """The window of the model, if it is known."""
        found = self._attribute("context_tokens")
        return found if isinstance(found, int) and found > 0 else None

    @property
    def spent(self) -> ModelUsage:
        """The usage of the requests so far."""
        price = self._attribute("price")
        return ModelUsage.of(self.usages, price if isinstance(price, Price) else None)

    def _attribute(self, name: str) -> Any:
        try:
            return getattr(self._models.find(self._name), name, None)
        except TavernError:  # a replacement of the service knows other models
            return None
