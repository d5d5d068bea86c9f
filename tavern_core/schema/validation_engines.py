"""The two engines behind one function each: jsonschema-rs validates, jsonschema explains.

Both get a prepared schema and plain JSON only, and give the same answers; `tests/schema` compares them on random input.
Neither ever fetches anything: jsonschema-rs is offline, jsonschema has an empty registry.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tavern_core.schema.bounded_json_copying import count_values
from tavern_core.schema.patterns import fits, options
from tavern_core.schema.prepare import PreparedSchema, python_draft, schema_invalid, to_explain
from tavern_core.schema.problem import flaw
from tavern_core.schema.schema_lint_rules import VALIDATORS, Draft
from tavern_core.schema.tree import REFERENCES
from tavern_core.schema.uniqueness import unique_items

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator as Engine

_WORK: ContextVar[list[int] | None] = ContextVar("_WORK", default=None)


class TooMuchWork(Exception):
    """A recursive schema with overlapping alternatives takes exponential time on this value."""


@contextmanager
def bounded_work(value: Any) -> Iterator[None]:
    """Limit the references that jsonschema follows for `value`; jsonschema-rs caches its results.

    Raises:
        TooMuchWork: from inside, when the limit is reached.
    """
    token = _WORK.set([1_000 + 20 * count_values(value)])
    try:
        yield
    finally:
        _WORK.reset(token)


def _counted(follow: Any) -> Any:
    def reference(engine: Engine, ref: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
        remaining = _WORK.get()
        if remaining is not None:
            remaining[0] -= 1
            if remaining[0] < 0:
                raise TooMuchWork
        yield from follow(engine, ref, value, schema) or ()

    return reference


def engine_of(prepared: PreparedSchema, name: str) -> Any:
    """The validator of jsonschema-rs.

    Args:
        name: the owner of the schema, for the error message.

    Raises:
        SchemaInvalid: it cannot be compiled (SCHEMA_INVALID).
    """
    import jsonschema_rs

    made = getattr(jsonschema_rs, VALIDATORS[prepared.draft])
    try:
        return made(prepared.schema, validate_formats=False, offline=True, pattern_options=options())
    except ValueError as error:
        reason = str(error).partition("\n")[0][:300]
        raise schema_invalid([flaw((), f"it cannot be compiled: {reason}", "simplify it")], name) from error


def explaining_engine(prepared: PreparedSchema, value: Any) -> Engine:
    """A validator of jsonschema that explains why `value` does not fit."""
    from referencing import Registry

    return _python_class(prepared.draft)(to_explain(prepared, value), registry=Registry())


@functools.cache
def _python_class(draft: Draft) -> type[Engine]:
    from jsonschema import validators

    extend: Callable[..., type[Engine]] = validators.extend
    base = python_draft(draft).VALIDATORS
    keywords = {"multipleOf": _multiple_of, "uniqueItems": unique_items, "pattern": _pattern}
    keywords |= {keyword: _counted(base[keyword]) for keyword in REFERENCES if keyword in base}
    return extend(python_draft(draft), keywords)


def _pattern(engine: Engine, wanted: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    """`pattern`, matched by the linear engine."""
    from jsonschema.exceptions import ValidationError

    if engine.is_type(value, "string") and not fits(wanted, value):
        yield ValidationError(f"{value!r} does not match {wanted!r}")


def _multiple_of(engine: Engine, step: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    """`multipleOf` on the written digits, so that 0.3 is a multiple of 0.1 (binary floats would say no)."""
    from jsonschema.exceptions import ValidationError

    if not engine.is_type(value, "number"):
        return
    if isinstance(value, int) and isinstance(step, int):
        fits = value % step == 0
    else:
        number, unit = Decimal(repr(value)), Decimal(repr(step))
        top, bottom = number.as_integer_ratio(), unit.as_integer_ratio()
        fits = (top[0] * bottom[1]) % (top[1] * bottom[0]) == 0
    if not fits:
        yield ValidationError(f"{value!r} is not a multiple of {step!r}")
