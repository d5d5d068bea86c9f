"""Validation of a value by a schema: compiled lazily, once per tool; with a fast check and explained refusals.

    compile_validator(schema) ──first use──> checked, closed, prepared ──> is_valid   jsonschema-rs
                                                                      └──> problems   jsonschema, our words

Nothing is imported or built before the first use, so ten thousand tools register in a moment. Building is idempotent:
if two threads race for the first use, both build the same validator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final

from tavern_core.schema.bounded_json_copying import SMALL, is_plain, measured_copy
from tavern_core.schema.closed import close
from tavern_core.schema.prepare import PreparedSchema, prepare
from tavern_core.schema.problem import SchemaProblem, pointer

_MOST_PLACES: Final = 100
Closing = Callable[[dict[str, Any], bool], None]


class Validator:
    """A compiled schema.

    Attributes:
        is_valid: ``(value) -> bool``, safe for any Python value: a value that is not JSON, too deep or cyclic is refused,
            nothing is raised. About 0.25 µs for a two-integer object. Read it from the
            validator at each call, or after `build()`: the first use replaces it by something faster.
        accepts: ``(value) -> bool``, the engine's own bound method, about 0.1 µs; only for values known to be plain
            JSON of bounded depth (parsed text, `json_copy`, or after `is_valid`/`is_plain`).
        schema: as written. name: its owner.

    Raises:
        SchemaInvalid: at the first use of any of these, if the schema is unusable; `build()` detects it early.
    """

    __slots__ = ("_closing", "_engine", "_is_foreign", "_prepared", "accepts", "is_valid", "name", "schema")

    def __init__(
        self, schema: Mapping[str, Any] | bool, name: str, closing: Closing | None, is_foreign: bool = False
    ) -> None:
        self.schema = schema
        self.name = name
        self._closing = closing
        self._prepared: PreparedSchema | None = None
        self._is_foreign = is_foreign
        self._engine: Any = None
        self.is_valid: Callable[[Any], bool] = self._first_is_valid
        self.accepts: Callable[[Any], bool] = self._first_accepts

    def __repr__(self) -> str:
        return f"<Validator {self.name or 'of a schema'}>"

    def build(self) -> Validator:
        """Check the schema and compile it now; without this it happens on first use. Returns itself."""
        if self._prepared is None:
            from tavern_core.schema.validation_engines import engine_of

            prepared = prepare(self.schema, self.name, closing=self._closing, is_foreign=self._is_foreign)
            self._engine = engine_of(prepared, self.name)
            self.accepts = self._engine.is_valid
            quick = _refuses_unknown_names(prepared.schema)
            self.is_valid = _quickly_guarded(self.accepts) if quick else _guarded(self.accepts)
            self._prepared = prepared  # last: a thread that sees it also sees the rest
        return self

    @property
    def judged_by(self) -> dict[str, Any] | bool:
        """The schema used for validation: as written, but closed (parameters). Do not change it."""
        prepared = self.build()._prepared
        assert prepared is not None
        return prepared.schema

    def problems(self, value: object, limit: int = 20) -> list[SchemaProblem]:
        """Why `is_valid` refuses `value`; empty exactly when it accepts.

        Args:
            value: anything.
            limit: maximum number of problems.
        """
        if self.build().is_valid(value):
            return []
        copy, problem = measured_copy(value)
        if problem is not None:
            return [problem]
        from referencing.exceptions import Unresolvable

        from tavern_core.schema.explain import explain
        from tavern_core.schema.validation_engines import TooMuchWork, bounded_work, explaining_engine

        assert self._prepared is not None
        try:
            with bounded_work(copy):
                found = explain(explaining_engine(self._prepared, copy).iter_errors(copy), limit)
        except RecursionError:
            return [SchemaProblem("", "is nested too deep to be checked", keyword="limit", hint="flatten it")]
        except (
            Unresolvable
        ):  # into a keyword that the explaining engine gets in another form, as `#/patternProperties/^a`
            found = []
        except TooMuchWork:
            hint = "the schema has too many alternatives to say where; send something simpler"
            return [SchemaProblem("", "does not fit the schema", keyword="limit", hint=hint)]
        return self._where_it_was_refused(copy, found)

    def _first_is_valid(self, value: Any) -> bool:
        return self.build().is_valid(value)

    def _first_accepts(self, value: Any) -> bool:
        return self.build().accepts(value)

    def _where_it_was_refused(self, value: Any, explained: list[SchemaProblem]) -> list[SchemaProblem]:
        """The explanations, if one concerns a place that the validating engine refuses; else that place."""
        places = [pointer(error.instance_path) for error in islice(self._engine.iter_errors(value), _MOST_PLACES)]
        for problem in explained:
            if any(problem.path.startswith(place) or place.startswith(problem.path) for place in places):
                return explained
        place = places[0] if places else ""
        return [SchemaProblem(place, "does not fit the schema", keyword="schema"), *explained]


def _guarded(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """`accepts` after a check that the value is plain JSON, or can be copied to plain JSON (subclasses)."""

    def is_valid(value: Any) -> bool:
        try:
            if is_plain(value):
                return accepts(value)
            copy, problem = measured_copy(value)
            return problem is None and accepts(copy)
        except (ValueError, OverflowError, RuntimeError):
            return False  # a value that another thread is changing, or that the engine cannot read

    return is_valid


def _refuses_unknown_names(schema: Any) -> bool:
    """True for the closed object that most tools have: the engine itself checks every key."""
    return (
        isinstance(schema, dict) and schema.get("additionalProperties") is False and "patternProperties" not in schema
    )


def _quickly_guarded(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """`_guarded` for jsonschema-rs and a closed object of integers, booleans and ASCII text: one short loop.

    Keys need no check: jsonschema-rs raises ValueError for a key that is not text, and refuses undeclared names.
    """
    carefully = _guarded(accepts)
    least, most = -SMALL, SMALL

    def is_valid(value: Any) -> bool:
        try:
            if type(value) is dict:
                for item in value.values():
                    kind = type(item)
                    if kind is int:
                        if least < item < most:
                            continue
                    elif kind is bool or (kind is str and item.isascii()):
                        continue
                    return carefully(value)
                return accepts(value)
        except (ValueError, RuntimeError):
            return False
        return carefully(value)

    return is_valid


def compile_validator(schema: Mapping[str, Any] | bool, *, name: str = "", is_foreign: bool = False) -> Validator:
    """A validator for a tool's parameters: undeclared properties are refused (see `closed`).

    Args:
        schema: JSON Schema, draft 7, 2019-09 or 2020-12 (by `$schema`, default 2020-12). It is not changed, and must
            not be changed before the first use.
        name: the owner of the schema, e.g. the tool id; used in errors.
        is_foreign: it comes from another product. Its unsupported patterns are not validated (`prepare.untried_patterns`).
    """
    return Validator(schema, name, close, is_foreign)


def compile_output_validator(
    schema: Mapping[str, Any] | bool, *, name: str = "", is_foreign: bool = False
) -> Validator:
    """A validator that means exactly what JSON Schema says: undeclared properties pass unless the schema refuses.

    Args:
        schema: as for `compile_validator`, and so are the other arguments.
    """
    return Validator(schema, name, None, is_foreign)
