"""The base of types that are read from files, and how a validator of one refuses a value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError


class FilePart(BaseModel):
    """A part of a file: keys are camelCase there and snake_case here, and unknown ones are refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        defer_build=True, extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True
    )


def describe_fields(
    properties: dict[str, Any], model: type[BaseModel], instead: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Describe the properties of a JSON Schema of `model` by the docstrings of their fields.

    Args:
        properties: changed in place.
        instead: other sentences, by key.
    """
    texts: dict[str, str] = {}
    for part in reversed(model.__mro__):
        if issubclass(part, BaseModel) and part is not BaseModel:
            texts.update(_field_docstrings(part))
    for name, field in model.model_fields.items():
        key = field.serialization_alias or name
        if key in properties and (text := instead.get(key) or texts.get(name)):
            properties[key] = {"description": text, **properties[key]}


def _field_docstrings(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    import ast
    import inspect

    (definition,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(definition, ast.ClassDef)
    for field, text in pairwise(definition.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            sentence = re.sub(r" \(seed \d+[^)]*\)", "", " ".join(ast.literal_eval(text.value).split()))
            yield field.target.id, re.sub(r"\bNone\b", "null", sentence.replace("``", "`"))


def refused(message: str, hint: str = "", key: str = "") -> PydanticCustomError:
    """A validation error that carries its repair (`ctx["hint"]`).

    Args:
        key: the entry of the refused mapping that is at fault; empty: the whole value.
    """
    return PydanticCustomError("refused", "{message}", {"message": message, "hint": hint, "key": key})
