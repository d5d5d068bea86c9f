"""Language models that programs pass themselves, instead of the name of a configured one."""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from tavern_core.contract.llm import LLM, Message, ScriptedLLM
from tavern_core.errors import UsageError

ModelLike = str | LLM | Callable[[Sequence[Message]], Any]
"""How a program names a model: its name, the model itself, or a function from messages to the text of the answer."""
_PREFIX: Final = "passed:"
_MOST: Final = 1_000
"""Models of one host; the ones that were not used for longest are dropped."""


class PassedModels:
    """The models that programs passed, by the names that they got. Thread-safe."""

    def __init__(self) -> None:
        self._models: dict[str, tuple[Any, LLM]] = {}
        """Name → what was passed, and the model; the last used one is at the end."""
        self._numbers = itertools.count(1)
        self._own = secrets.token_hex(4)
        self._lock = threading.Lock()

    def name_of(self, model: LLM | Callable[[Sequence[Message]], Any]) -> str:
        """The name of a model; the same object always gets the same one.

        Raises:
            UsageError: it is not a model (USAGE).
        """
        if not isinstance(model, LLM) and not callable(model):
            raise UsageError(
                f"a model is a name, an object with `complete`, or a function of the messages, got {type(model).__name__}",
                hint='model="gpt", or model=ScriptedLLM([...])',
            )
        with self._lock:
            for name, (passed, _) in self._models.items():
                if passed is model:
                    return name
            # A stored run must not find another process's model under its name.
            name = f"{_PREFIX}{self._own}-{next(self._numbers)}"
            self._models[name] = model, model if isinstance(model, LLM) else ScriptedLLM(model)
            if len(self._models) > _MOST:
                del self._models[next(iter(self._models))]
            return name

    def get(self, name: str) -> LLM | None:
        """The model with this name; None: there is none, or none any more."""
        with self._lock:
            if (found := self._models.pop(name, None)) is None:
                return None
            self._models[name] = found
            return found[1]


def is_passed(name: str) -> bool:
    """Whether a name was given to a passed model."""
    return name.startswith(_PREFIX)
