"""The base of types that are read from files, and how a validator of one refuses a value."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError


class FilePart(BaseModel):
    """A part of a file: keys are camelCase there and snake_case here, and unknown ones are refused."""

    model_config = ConfigDict(
        defer_build=True, extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True
    )


def refused(message: str, hint: str = "", key: str = "") -> PydanticCustomError:
    """A validation error that carries its repair (`ctx["hint"]`).

    Args:
        key: the entry of the refused mapping that is at fault; empty: the whole value.
    """
    return PydanticCustomError("refused", "{message}", {"message": message, "hint": hint, "key": key})
