"""Does a value fit a schema? Compiled once per tool, lazily; a quick yes and an explained no.

    compile_validator(schema) ──first use──> checked, closed, prepared ──> is_valid   jsonschema-rs, or jsonschema
                                                                      └──> problems   always jsonschema, our words

Nothing is imported or built before the first use, so ten thousand tools register in a moment. Building is idempotent:
two threads that race for the first use build the same thing twice, and both are right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tavern_core.schema.closed import close
from tavern_core.schema.limits import is_plain, measured_copy
from tavern_core.schema.prepare import Prepared, prepare
from tavern_core.schema.problem import SchemaProblem

if TYPE_CHECKING:
    from jsonschema.protocols import Validator as Engine

_SMALL = 1 << 63
Closing = Callable[[dict[str, Any], bool], None]


class Validator:
    """One compiled schema.

    Attributes:
        is_valid: ``(value) -> bool``, safe for any Python value: what is not JSON, too deep or cyclic is refused,
            nothing is raised. About 0.25 µs for a two-integer object with the extra `fast`. Read it from the
            validator at each call, or after `build()`: the first use replaces it by something faster.
        accepts: ``(value) -> bool``, the engine's own bound method, about 0.1 µs; only for values known to be plain
            JSON of bounded depth (parsed text, `json_copy`, or after `is_valid`/`is_plain`).
        schema: as written. name: whose it is.

    Raises:
        SchemaInvalid: by the first use of any of these when the schema cannot be used; `build()` finds out early.
    """

    __slots__ = ("_closing", "_engine", "_prepared", "accepts", "is_valid", "name", "schema")

    def __init__(self, schema: Mapping[str, Any] | bool, name: str, closing: Closing | None) -> None:
        self.schema = schema
        self.name = name
        self._closing = closing
        self._prepared: Prepared | None = None
        self._engine: Engine | None = None
        self.is_valid: Callable[[Any], bool] = self._first_is_valid
        self.accepts: Callable[[Any], bool] = self._first_accepts

    def __repr__(self) -> str:
        return f"<Validator {self.name or 'of a schema'}>"

    def build(self) -> Validator:
        """Check the schema and compile it now; without this it happens on first use. Returns itself."""
        if self._prepared is None:
            from tavern_core.schema.engine import fast_is_valid

            prepared = prepare(self.schema, self.name, closing=self._closing)
            try:
                accepts = fast_is_valid(prepared)
            except ValueError:  # a schema only jsonschema-rs cannot compile (e.g. an enormous counted pattern)
                accepts = None
            self.accepts = accepts or self._python_accepts
            quick = accepts is not None and _refuses_unknown_names(prepared.schema)
            self.is_valid = _quickly_guarded(self.accepts) if quick else _guarded(self.accepts)
            self._prepared = prepared  # last: another thread that sees it sees the rest
        return self

    @property
    def judged_by(self) -> dict[str, Any] | bool:
        """The schema that values are held against: as written, but closed (parameters). Not to be changed."""
        prepared = self.build()._prepared
        assert prepared is not None
        return prepared.schema

    def problems(self, value: object, limit: int = 20) -> list[SchemaProblem]:
        """Why `is_valid` refuses `value`; empty exactly when it accepts.

        Args:
            value: anything.
            limit: most problems told.
        """
        if self.build().is_valid(value):
            return []
        copy, problem = measured_copy(value)
        if problem is not None:
            return [problem]
        from tavern_core.schema.engine import TooMuchWork, bounded_work
        from tavern_core.schema.explain import explain

        try:
            with bounded_work(copy):
                found = explain(self._python().iter_errors(copy), limit)
        except RecursionError:
            return [SchemaProblem("", "is nested too deep to be judged", keyword="limit", hint="flatten it")]
        except TooMuchWork:
            hint = "the schema has too many alternatives to say where; send something simpler"
            return [SchemaProblem("", "does not fit the schema", keyword="limit", hint=hint)]
        return found or [SchemaProblem("", "does not fit the schema", keyword="schema")]

    def _first_is_valid(self, value: Any) -> bool:
        return self.build().is_valid(value)

    def _first_accepts(self, value: Any) -> bool:
        return self.build().accepts(value)

    def _python(self) -> Engine:
        if self._engine is None:
            from tavern_core.schema.engine import python_engine

            prepared = self._prepared or prepare(self.schema, self.name, closing=self._closing)
            self._engine = python_engine(prepared)
        return self._engine

    def _python_accepts(self, value: Any) -> bool:
        from tavern_core.schema.engine import TooMuchWork, bounded_work

        try:
            with bounded_work(value):
                return self._python().is_valid(value)
        except (RecursionError, TooMuchWork):
            return False


def _guarded(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """`accepts` behind the check that the value is plain JSON, or can be copied to plain JSON (subclasses)."""

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
    """True for the closed object that most tools have: the engine itself looks at every key."""
    return (
        isinstance(schema, dict) and schema.get("additionalProperties") is False and "patternProperties" not in schema
    )


def _quickly_guarded(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """`_guarded` for jsonschema-rs and a closed object of integers, booleans and ASCII text: one short loop.

    Keys need no look here: jsonschema-rs raises ValueError for one that is no text, and no other name is declared.
    """
    carefully = _guarded(accepts)
    least, most = -_SMALL, _SMALL

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


def compile_validator(schema: Mapping[str, Any] | bool, *, name: str = "") -> Validator:
    """A validator for a tool's parameters: what the schema does not declare is refused (see `closed`).

    Args:
        schema: JSON Schema, draft 7, 2019-09 or 2020-12 (by `$schema`, default 2020-12). It is not changed, and must
            not be changed before the first use.
        name: whose schema it is, e.g. the tool id; used in errors.
    """
    return Validator(schema, name, close)


def compile_output_validator(schema: Mapping[str, Any] | bool, *, name: str = "") -> Validator:
    """A validator that means exactly what JSON Schema says: undeclared properties pass unless the schema refuses."""
    return Validator(schema, name, None)
