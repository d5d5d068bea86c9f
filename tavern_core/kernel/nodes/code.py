"""What runs when a node runs: the function behind it, and how it wants to be called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter

from tavern_core.contract.nodes import Node

Form = Literal["async", "sync", "stream", "sync_stream"]
"""A coroutine function, a function, an async generator, a generator."""


@dataclass(frozen=True, slots=True)
class NodeCode:
    """The code of one node type.

    Args:
        function: called with the inputs as keywords; of a class form the unbound `run`.
        context: the parameter that gets the NodeContext; empty: none does.
        adapters: input → what makes a model, a date, an enum out of plain values.
        cls: the class form; an object of it is made for each run.
        takes_all: it has ``**inputs``.
        names_outputs: declared with ``-> Out(...)``.
    """

    function: Callable[..., Any]
    form: Form
    context: str = ""
    adapters: Mapping[str, TypeAdapter[Any]] = field(default_factory=dict)
    cls: type[Node] | None = None
    takes_all: bool = False
    names_outputs: bool = False
    where: str = ""
    """``file:line``"""
