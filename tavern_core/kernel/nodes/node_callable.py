"""The code of a node: the function behind it, and how it must be called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from hashlib import blake2b
from types import CodeType
from typing import Any, Literal

from pydantic import TypeAdapter

from tavern_core.contract.nodes import Node
from tavern_core.frozen_dataclass import dataclass

CallForm = Literal["async", "sync", "stream", "sync_stream"]
"""A coroutine function, a function, an async generator, a generator."""


@dataclass(frozen=True, slots=True)
class NodeCode:
    """The code of one node type.

    Args:
        function: called with the inputs as keywords; of a class form the unbound `run`.
        context: the parameter that gets the NodeContext; empty: none does.
        adapters: input → makes a model, a date, an enum from plain values.
        answers: output → checks the plugin's own objects, which no schema covers.
        cls: the class form; an object of it is made for each run.
        takes_all: it has ``**inputs``.
        names_outputs: declared with ``-> Out(...)``.
    """

    function: Callable[..., Any]
    form: CallForm
    context: str = ""
    adapters: Mapping[str, TypeAdapter[Any]] = field(default_factory=dict)
    cls: type[Node] | None = None
    takes_all: bool = False
    names_outputs: bool = False
    where: str = ""
    """``file:line``"""
    answers: Mapping[str, TypeAdapter[Any]] = field(default_factory=dict)


def code_hash(offer: Any) -> str:
    """A hash of a function or of the methods of a class, the same in every process: for code without known files."""
    functions = [value for _, value in sorted(vars(offer).items())] if isinstance(offer, type) else [offer]
    found = blake2b(digest_size=16)
    for function in functions:
        code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
        for part in _parts(code) if isinstance(code, CodeType) else ():
            found.update(part)
    return found.hexdigest()


def _parts(code: CodeType) -> Iterator[bytes]:
    queue = [code]
    while queue:
        here = queue.pop()
        yield here.co_code
        yield repr(here.co_names).encode("utf-8", "surrogatepass")
        for constant in here.co_consts:
            if isinstance(constant, CodeType):
                queue.append(constant)
            else:  # the order of a set is another in every process
                yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant).encode(
                    "utf-8", "surrogatepass"
                )


def mark_not_begun(error: BaseException) -> None:
    """Record on an error of an isolated node that its worker never got the request."""
    error.__tavern_not_begun__ = True  # type: ignore[attr-defined]


def has_not_begun(error: BaseException) -> bool:
    """Whether no attempt of the failed node has begun; only the host's own code marks errors so, before it runs plugin code."""
    return getattr(error, "__tavern_not_begun__", None) is True and getattr(error, "__tavern_attempts__", 1) == 1
