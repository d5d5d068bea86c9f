"""The used part of a run's budget: requests, calls, tokens, seconds, money."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from tavern_core.contract.llm import Price
from tavern_core.errors import UsageError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.agent_profile import AgentBudget
from tavern_core.model.pydantic_errors import explain

T = TypeVar("T")
_PAUSED_S: Final = 0.5
"""The interval of time checks while the clock is paused."""
BudgetLike = AgentBudget | Mapping[str, Any] | None
Pause = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class StopReason:
    """Why a run ends before its task is done."""

    reason: str
    fix: str
    code: str = "BUDGET_EXCEEDED"


class Clock:
    """The seconds of a run, without the time in which it waits for people.

    Args:
        seconds: the time used by earlier processes.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._before = seconds
        self._began = time.monotonic()
        self._waited = 0.0
        self._waiting: list[float] = []

    @property
    def seconds(self) -> float:
        now = time.monotonic()
        waiting_s = now - min(self._waiting) if self._waiting else 0.0
        return self._before + now - self._began - self._waited - waiting_s

    @property
    def is_paused(self) -> bool:
        return bool(self._waiting)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause while a person is asked; nested pauses count once."""
        began = time.monotonic()
        self._waiting.append(began)
        try:
            yield
        finally:
            self._waiting.remove(began)
            if not self._waiting:
                self._waited += time.monotonic() - began

    def paused_with(self, outer: Pause | None) -> Pause:
        """`paused` for a run inside another run, whose clock is paused, too."""

        @contextmanager
        def both() -> Iterator[None]:
            with nullcontext() if outer is None else outer(), self.paused():
                yield

        return both


class TimeBudgetExceeded(Exception):
    """The time budget is used up."""


class BudgetTracker:
    """Counts the used budget.

    Args:
        price: the price of the model; None: unknown.
    """

    def __init__(self, budget: AgentBudget, price: Price | None, clock: Clock) -> None:
        self._budget = budget
        self._price = price
        self.clock = clock
        self.steps = self.calls = self.input = self.output = 0

    @property
    def cost(self) -> float | None:
        """The cost in the currency of the price."""
        return None if self._price is None else self._price.of(self.input, self.output)

    @property
    def currency(self) -> str:
        return "" if self._price is None else self._price.currency

    @property
    def seconds_left(self) -> float | None:
        """None: there is no limit."""
        return None if self._budget.seconds is None else self._budget.seconds - self.clock.seconds

    async def within(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work within the time budget; waiting for people does not count.

        Raises:
            TimeBudgetExceeded: the time is used up; the work is cancelled.
        """
        running, clock = asyncio.ensure_future(work), self.clock
        try:
            while True:
                remaining = self.seconds_left
                seconds = (
                    None if remaining is None else max(remaining, _PAUSED_S) if clock.is_paused else max(remaining, 0.0)
                )
                done, _ = await asyncio.wait([running], timeout=seconds)
                if done:
                    return running.result()
                if not clock.is_paused and self.out_of_time() is not None:
                    raise TimeBudgetExceeded
        finally:
            if not running.done():
                running.cancel()
                await asyncio.wait([running])

    def is_last(self, step: int) -> bool:
        """Whether the budget has one request left after this one."""
        return self._budget.steps - step == 1

    def answered(self, tokens_in: int, tokens_out: int) -> None:
        """Count one answer of the model."""
        self.steps += 1
        self.input += tokens_in
        self.output += tokens_out

    def lost(self, tokens_in: int, tokens_out: int) -> None:
        """Count a request that failed."""
        self.input += tokens_in
        self.output += tokens_out

    def before_request(self, prompt: int) -> StopReason | None:
        """Why the next request is not made; None: it is made.

        Args:
            prompt: its estimated tokens.
        """
        budget = self._budget
        if self.steps >= budget.steps:
            return StopReason(f"the budget of {budget.steps} requests to the model is used up", _more("steps"))
        if budget.tokens is not None and self.input + self.output + prompt > budget.tokens:
            used = self.input + self.output
            return StopReason(
                f"{used:,} of {budget.tokens:,} tokens are used, and the next request takes about {prompt:,}",
                _more("tokens"),
            )
        if budget.money is not None and self._price is not None:
            total_cost = self._price.of(self.input + prompt, self.output)
            if total_cost > budget.money:
                reason = (
                    f"the next request would make the run cost {total_cost:.4f} {budget.currency} of {budget.money:g}"
                )
                return StopReason(reason, _more("money"))
        return self.out_of_time()

    def out_of_calls(self, made: int) -> StopReason | None:
        """Why no more calls are made: `made` is the whole budget of calls."""
        if made < self._budget.calls:
            return None
        return StopReason(f"the budget of {self._budget.calls} tool calls is used up", _more("calls"))

    def out_of_time(self) -> StopReason | None:
        """Why nothing more may begin: the time is used up."""
        remaining = self.seconds_left
        if remaining is None or remaining > 0:
            return None
        return StopReason(f"the budget of {self._budget.seconds:g} seconds is used up", _more("seconds"), "TIMEOUT")


def check_price(budget: AgentBudget, price: Price | None, model: str) -> None:
    """Refuse a money budget that cannot be enforced.

    Raises:
        UsageError: the model's price is unknown, or in another currency (USAGE).
    """
    if budget.money is None:
        return
    if price is None:
        raise UsageError(
            f"the budget is {budget.money:g} {budget.currency}, but the price of the model {model or '(the only one)'} is not known",
            hint="give the model a price in tavern.yaml, or leave money out of the budget and limit tokens",
        )
    if price.currency != budget.currency:
        raise UsageError(
            f"the budget is in {budget.currency}, and the price of the model in {price.currency}",
            hint=f'"currency": "{price.currency}"',
        )


def _more(name: str) -> str:
    return f"resume it with a larger budget: tavern agent resume RUN --budget {name}=..."


def budget_of(known: AgentBudget, given: BudgetLike) -> AgentBudget:
    """A budget with the given fields replaced. Raises UsageError (USAGE)."""
    if isinstance(given, AgentBudget) or given is None:
        return given or known
    if not isinstance(given, Mapping):
        raise UsageError(f"a budget is a mapping, got {type(given).__name__}", hint='{"steps": 10, "money": 0.5}')
    try:
        return AgentBudget.model_validate({**known.model_dump(), **given})
    except ValidationError as error:
        first = explain(error, given, AgentBudget)[0]
        names = ", ".join(AgentBudget.model_fields)
        raise UsageError(
            f"budget.{first.place}: {first.message}", hint=first.hint or f"a budget has: {names}"
        ) from error
