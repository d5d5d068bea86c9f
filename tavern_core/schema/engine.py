"""The two validation engines behind one function each: jsonschema-rs (extra `fast`) accepts, jsonschema explains.

Both get a prepared schema and plain JSON only, and answer alike; `tests/schema` compares them on random input.
Neither ever fetches anything: jsonschema-rs is offline, jsonschema has an empty registry.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tavern_core.schema.meta import python_draft, rust
from tavern_core.schema.patterns import LONGEST, is_linear
from tavern_core.schema.prepare import Prepared, for_engine
from tavern_core.schema.rules import Draft
from tavern_core.schema.uniqueness import unique_items

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator as Engine

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_WORK: ContextVar[list[int] | None] = ContextVar("_WORK", default=None)
_BACKTRACK_LIMIT = 100_000
"""Steps of one pattern with look-around on one string; beyond it the value is refused."""


class TooMuchWork(Exception):
    """A recursive schema with overlapping alternatives takes exponential time on this value."""


@contextmanager
def bounded_work(value: Any) -> Iterator[None]:
    """Let jsonschema follow only so many references while it judges `value`; jsonschema-rs remembers what it has judged.

    Raises:
        TooMuchWork: from inside, when the allowance is used up.
    """
    token = _WORK.set([1_000 + 20 * _size(value)])
    try:
        yield
    finally:
        _WORK.reset(token)


def _size(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(_size, value.values()))
    return 1 + sum(map(_size, value)) if isinstance(value, list) else 1


def _counted(follow: Any) -> Any:
    def reference(engine: Engine, ref: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
        left = _WORK.get()
        if left is not None:
            left[0] -= 1
            if left[0] < 0:
                raise TooMuchWork
        yield from follow(engine, ref, value, schema) or ()

    return reference


def fast_is_valid(prepared: Prepared) -> Callable[[Any], bool] | None:
    """jsonschema-rs's own bound method, or None without the extra `fast`.

    Raises:
        ValueError: jsonschema-rs does not understand the schema.
    """
    module = rust()
    if module is None:
        return None
    classes = {
        "draft-07": module.Draft7Validator,
        "2019-09": module.Draft201909Validator,
        "2020-12": module.Draft202012Validator,
    }
    linear = all(is_linear(pattern) for pattern in prepared.patterns)
    options = module.RegexOptions() if linear else module.FancyRegexOptions(backtrack_limit=_BACKTRACK_LIMIT)
    validator = classes[prepared.draft](
        for_engine(prepared, "rust"), validate_formats=False, offline=True, pattern_options=options
    )
    is_valid: Callable[[Any], bool] = validator.is_valid
    return is_valid


def python_engine(prepared: Prepared) -> Engine:
    """A jsonschema validator for the prepared schema."""
    from referencing import Registry

    return _python_class(prepared.draft)(for_engine(prepared, "python"), registry=Registry())


@functools.cache
def _python_class(draft: Draft) -> type[Engine]:
    from jsonschema import validators

    extend: Callable[..., type[Engine]] = validators.extend
    base = python_draft(draft).VALIDATORS
    own = {"multipleOf": _multiple_of, "uniqueItems": unique_items, "pattern": _capped(base["pattern"])}
    own |= {keyword: _counted(base[keyword]) for keyword in _REFERENCES if keyword in base}
    return extend(python_draft(draft), own)


def _capped(search: Any) -> Any:
    """`pattern` that refuses text too long to be tried by a backtracking engine."""

    def pattern(engine: Engine, wanted: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
        from jsonschema.exceptions import ValidationError

        longest = schema.get(LONGEST)
        if longest is not None and isinstance(value, str) and len(value) > longest:
            yield ValidationError(f"{len(value)} characters are too many to be tried on the pattern")
        else:
            yield from search(engine, wanted, value, schema) or ()

    return pattern


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
