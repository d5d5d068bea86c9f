"""The use of language models: tokens, money, and the budgets of plugins."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final

from tavern_core.contract.llm import LLMAnswer, Price, count_of
from tavern_core.errors import BudgetExceeded
from tavern_core.flow.prompt_hooks import ModelRequest, PromptChange
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.call import CallContext
from tavern_core.model.config import ModelBudget

_EVERYBODY: Final = "*"


@dataclass(slots=True)
class LlmUse:
    """A running request and its use."""

    request: ModelRequest
    context: CallContext | None
    asker: str
    """The plugin that asks; empty: the host."""
    changes: Sequence[PromptChange] = ()
    price: Price | None = None
    began: float = field(default_factory=time.perf_counter)
    streamed: list[str] = field(default_factory=list)
    """The pieces that have arrived."""
    tokens: dict[str, int] = field(default_factory=lambda: {"input": 0, "output": 0})
    is_estimated: bool = False

    def answered(self, answer: LLMAnswer) -> None:
        """Record the use that the model reports; estimate the rest."""
        self._estimate("".join((answer.text, *(call.arguments for call in answer.tool_calls))))
        reported = {name: count for name in self.tokens if (count := count_of(answer.usage, name)) is not None}
        self.tokens |= reported
        self.is_estimated = len(reported) < len(self.tokens)

    def broke_off(self) -> None:
        """Estimate the use of a failed request, on which the model may have worked."""
        self._estimate("".join(self.streamed))
        self.is_estimated = True

    def _estimate(self, answer: str) -> None:
        from tavern_core.model.token_estimate import tokens_of

        request = json.dumps([self.request.messages, self.request.options], ensure_ascii=False, default=str)
        self.tokens = {"input": tokens_of(request), "output": tokens_of(answer)}

    @property
    def cost(self) -> float | None:
        """The cost in the currency of the price; None: the price is not known."""
        if self.price is None:
            return None
        return round(self.price.of(self.tokens["input"], self.tokens["output"]), 9)


class PluginBudgets:
    """`limits.llms`: counted from the start of the host, in this process. Thread-safe.

    A request begins while budget is left; a running one may exceed it.
    """

    def __init__(self, written: Mapping[str, ModelBudget]) -> None:
        self._written = written
        self._lock = threading.Lock()
        self._used: dict[str, dict[str, float]] = {}

    def begin(self, use: LlmUse) -> None:
        """Count a request of a plugin.

        Raises:
            BudgetExceeded: its budget is used up, or money is limited and the price is not known (BUDGET_EXCEEDED).
        """
        plugin, price = use.asker, use.price
        found = self._of(plugin)
        if found is None:
            return
        place, budget = found
        if budget.money is not None and (price is None or price.currency != budget.currency):
            what = "unknown" if price is None else f"in {price.currency}"
            raise BudgetExceeded(
                f"{plugin} may not ask {use.request.model or 'the language model'}: its price is {what}, and {place}.money is limited",
                hint=f"set the price of the model in tavern.yaml, or remove {place}.money",
                limit=f"{place}.money",
            )
        limits = {"calls": budget.calls, "tokens": budget.tokens, "money": budget.money}
        with self._lock:
            used = self._used.setdefault(plugin, {"calls": 0, "tokens": 0, "money": 0.0})
            for name, most in limits.items():
                if most is not None and used[name] >= most:
                    raise BudgetExceeded(
                        f"{plugin} has used up {place}.{name}: {used[name]:g} of {most:g}",
                        hint=f"raise {place}.{name} in tavern.yaml; the host counts from its start",
                        limit=f"{place}.{name}",
                    )
            used["calls"] += 1

    def add(self, use: LlmUse) -> None:
        """Count the use of a request."""
        if self._of(use.asker) is None:
            return
        with self._lock:
            used = self._used[use.asker]
            used["tokens"] += sum(use.tokens.values())
            used["money"] += use.cost or 0.0

    def _of(self, plugin: str) -> tuple[str, ModelBudget] | None:
        """The place of a plugin's budget in the configuration, and the budget."""
        if not plugin or not self._written:
            return None
        key = plugin if plugin in self._written else _EVERYBODY
        budget = self._written.get(key)
        return None if budget is None else (f"limits.llms.{key}", budget)
