"""`tavern.llms`: the language models of a host, for programs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tavern_core.contract.llm import LLM, LLMAnswer, Message, StreamingLLM, price_of
from tavern_core.errors import UsageError
from tavern_core.flow.llm_calls import ModelLike, Models
from tavern_core.model.call import CallContext


class LanguageModels:
    """Models of tavern.yaml and of plugins; each request is governed like the call of a tool."""

    def __init__(self, models: Models, wait: Callable[[Any], Any]) -> None:
        self._models, self._wait = models, wait

    def names(self) -> list[str]:
        """The names of all models, sorted. Outside of an event loop, the plugins that declare some are activated first."""
        if asyncio._get_running_loop() is None:
            self._wait(self._models.prepare())
        return self._models.names()

    def describe(self) -> list[dict[str, Any]]:
        """All models, as `names`.

        Returns:
            ``{name, kind, plugin, model, streams, local, contextTokens, price}``; what is not known is None.
        """
        return [self._described(name) for name in self.names()]

    def _described(self, name: str) -> dict[str, Any]:
        model = self._models.find(name)
        price = price_of(model)
        return {
            "name": name,
            "kind": str(getattr(model, "kind", "") or type(model).__name__),
            "plugin": self._models.owner(name),
            "model": str(getattr(model, "model", "") or "") or None,
            "streams": isinstance(model, StreamingLLM),
            "local": getattr(model, "is_local", False) is True,
            "contextTokens": getattr(model, "context_tokens", None),
            "price": {"input": price.input, "output": price.output, "currency": price.currency}
            if price is not None
            else None,
        }

    def find(self, name: str = "", *, context: CallContext | None = None, purpose: str = "") -> LLM:
        """A model with governed requests; a `StreamingLLM` if it streams. Plugins that only declare it must be active.

        Args:
            name: empty: the only one.
            context: the caller; None: the host itself.

        Raises:
            ToolFailed: there is none, or more than one (TOOL_ERROR).
        """
        return self._models.asked_by(name, context, purpose)

    async def complete(
        self,
        messages: str | Sequence[Message],
        model: ModelLike = "",
        options: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        purpose: str = "",
        on_text: Callable[[str], object] | None = None,
    ) -> LLMAnswer:
        """Ask a model. Cancelling the task cancels the request.

        Args:
            messages: the conversation, oldest first; a text is one message of the user.
            model: its name, or a model or a function of the messages itself; empty: the only one.
            options: of `contract.llm.LLM.complete`.
            context: the caller; None: the host itself, or the caller of the tool that runs.
            purpose: why, for hooks and the audit log.
            on_text: called with each piece of the text while the model streams.

        Raises:
            CallError: it was refused, or failed.
            UsageError: an argument has the wrong type (USAGE).
        """
        if not isinstance(messages, Sequence) or not isinstance(options, Mapping | None):
            wrong = messages if isinstance(options, Mapping | None) else options
            raise UsageError(
                f"a model takes a text or a list of messages, and a mapping of options, got {type(wrong).__name__}",
                hint='complete("Hello"), complete([{"role": "user", "content": "Hello"}], options={"temperature": 0})',
            )
        if not isinstance(context, CallContext | None):
            raise UsageError(f"the context of a request is a CallContext, got {type(context).__name__}")
        if not (on_text is None or callable(on_text)):
            raise UsageError(
                f"on_text is called with each piece of the answer, got {type(on_text).__name__}", hint="on_text=print"
            )
        conversation = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        return await self._models.ask(
            self._models.name_of(model), conversation, options or {}, context, purpose, on_text=on_text
        )

    def complete_sync(
        self,
        messages: str | Sequence[Message],
        model: ModelLike = "",
        options: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> LLMAnswer:
        """`complete` for code without an event loop."""
        answer: LLMAnswer = self._wait(self.complete(messages, model, options, **more))
        return answer
