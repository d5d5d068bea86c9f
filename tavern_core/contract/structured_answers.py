"""Structured answers: the text of a model as JSON that fits a schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tavern_core.errors import InputInvalid, TavernError, UpstreamError
from tavern_core.schema.json_reader import NotJson, read_json
from tavern_core.schema.validate import Validator, compile_output_validator

MISMATCH: Final = "start"
"""The detail of the error of an answer that is not structured as requested: its beginning."""
MISFIT: Final = MISMATCH
"""Deprecated: the name that `MISMATCH` had before."""


def schema_validator(schema: Any) -> Validator:
    """The validator of the option `schema`, compiled before a request is paid for.

    Raises:
        InputInvalid: it is not a JSON Schema (INPUT_SCHEMA_INVALID).
    """
    if not isinstance(schema, Mapping):
        raise InputInvalid("the option `schema` is a JSON Schema: an object", hint='schema={"type": "object", …}')
    try:
        return compile_output_validator(schema, name="schema").build()
    except TavernError as error:
        raise InputInvalid(f"the option `schema`: {error.message}", hint=error.hint) from error


def structured(text: str, validator: Validator, finish: str) -> Any:
    """The answer as data.

    Raises:
        UpstreamError: it is not JSON, or does not fit the schema (UPSTREAM_ERROR); another request may give a better answer.
    """
    cut = "; it was cut at max_tokens" if finish == "length" else ""
    try:
        data = read_json(text)
    except NotJson as error:
        raise _mismatch(f"is not JSON: {str(error).removeprefix('not valid JSON: ')}{cut}", text) from error
    if problems := validator.problems(data):
        raise _mismatch(f"does not fit the schema: {problems[0].path or '/'}: {problems[0].message}{cut}", text)
    return data


def _mismatch(why: str, text: str) -> UpstreamError:
    return UpstreamError(
        f"the structured answer of the model {why}",
        hint="ask again, or use a model that supports structured answers",
        retryable=True,
        outcome="none",
        start=text[:200],  # MISMATCH
    )
