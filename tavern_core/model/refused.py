"""How a validator of a model refuses a value."""

from __future__ import annotations

from pydantic_core import PydanticCustomError


def refused(message: str, hint: str = "") -> PydanticCustomError:
    """A validation error that carries its repair (`ctx["hint"]`)."""
    context = {"message": message, "hint": hint}
    return PydanticCustomError("refused", "{message}", context)
