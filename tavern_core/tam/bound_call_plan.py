"""The result of binding: calls to run, and every problem of the text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tavern_core.errors import InputInvalid
from tavern_core.model.text_call import TamCall, TextProblem


class Plan(NamedTuple):
    """All calls of a text in the order they run, and all its problems, including those of the scanner."""

    calls: tuple[TamCall, ...] = ()
    problems: tuple[TextProblem, ...] = ()

    @property
    def errors(self) -> tuple[TextProblem, ...]:
        return tuple(problem for problem in self.problems if problem.severity == "error")


class Reference(NamedTuple):
    """An argument that is the result of an earlier step of the chain, written `{{step1}}` or `{{step1.path.to.0}}`."""

    step: int
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "{{" + ".".join((f"step{self.step}", *self.path)) + "}}"


_REFERENCE: Final = re.compile(r"\{\{[ \t]*step_?([0-9]{1,9})((?:\.[^\s.{}]{1,128}){0,32})[ \t]*\}\}")


def read_reference(text: str) -> Reference | None:
    """The reference if the whole `text` is one, or None."""
    found = _REFERENCE.fullmatch(text.strip()) if "{{" in text else None
    return Reference(int(found[1]), tuple(found[2].split(".")[1:])) if found else None


def resolve_references(arguments: Mapping[str, Any], results: Mapping[int, Any]) -> dict[str, Any]:
    """`arguments` with every `Reference` replaced by the result of the earlier step.

    Args:
        results: value of each step that has run, by step number.

    Raises:
        InputInvalid: a step has no result, or its result has no such path; `details.argument` names the argument.
    """
    return {
        name: _follow(name, value, results) if isinstance(value, Reference) else value
        for name, value in arguments.items()
    }


def _follow(name: str, reference: Reference, results: Mapping[int, Any]) -> Any:
    if reference.step not in results:
        raise InputInvalid(
            f"{name}: {reference} refers to step {reference.step}, which has no result",
            hint=f"Step {reference.step} failed, or runs in the background: repeat this step when you have its result.",
            argument=name,
        )
    value = results[reference.step]
    for depth, part in enumerate(reference.path):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list | tuple) and part.isascii() and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            found = Reference(reference.step, reference.path[:depth])
            hint = ""
            if isinstance(value, Mapping):
                hint = f"It has {', '.join(map(str, list(value)[:12]))}."
            elif isinstance(value, list | tuple):
                hint = f"It has {len(value)} items, from 0." if value else "It is empty."
            raise InputInvalid(
                f"{name}: {reference} names {part!r}, which {found} does not have",
                hint=hint,
                argument=name,
            )
    return value
