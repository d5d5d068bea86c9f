"""The parameters of a JSON Schema whose arguments are written as text: names, readers, missing ones and problems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tavern_core.errors import SchemaInvalid
from tavern_core.schema.alternatives_expansion import SchemaRoot
from tavern_core.schema.defaults import Fill, compile_defaults
from tavern_core.schema.patterns import PatternInvalid, fits
from tavern_core.schema.problem import SchemaProblem
from tavern_core.schema.text_coercion import TextReader
from tavern_core.schema.validate import Validator

_ANY: Final = TextReader((True,), SchemaRoot(True))


class TextParameters:
    """A JSON Schema of parameters, prepared for arguments in text.

    Args:
        schema: the schema of the whole arguments object. An invalid schema allows everything.
    """

    def __init__(self, schema: object) -> None:
        self._root = SchemaRoot(schema)
        root_schema = self._root.schema
        merged = self._root.alternatives(
            {key: value for key, value in root_schema.items() if key not in ("anyOf", "oneOf")}
        )[0]
        self.schema: dict[str, Any] = merged if isinstance(merged, dict) else {}
        self._declared = self._root.properties
        self._readers: dict[str, TextReader] = {}
        self._extra = self.schema.get("additionalProperties", self.schema.get("unevaluatedProperties", True))
        self._known_names = _only_names(self.schema.get("propertyNames"))
        self._required = tuple(self._without_default())
        self._verbatim: frozenset[str] | None = None
        self._judge: tuple[Fill | None, Validator] | None = None
        patterns = self.schema.get("patternProperties")
        self._patterns: Mapping[str, Any] = patterns if isinstance(patterns, Mapping) else {}

    def _without_default(self) -> Iterator[str]:
        """The required parameters that have no default the host would fill in."""
        required = self.schema.get("required")
        for name in required if isinstance(required, list) else ():
            parts = self._declared.get(name, ()) if isinstance(name, str) else ()
            if isinstance(name, str) and not any(
                isinstance(part, dict) and ("default" in part or "defaultValue" in part) for part in parts
            ):
                yield name

    @property
    def names(self) -> tuple[str, ...]:
        """All known names: the declared ones, then those that only some alternative of the schema declares."""
        return (*self._declared, *sorted((self._known_names or frozenset()) - self._declared.keys()))

    def reader(self, name: str) -> TextReader | None:
        """The reader for the text of parameter `name`; None if the schema allows no such parameter."""
        known = self._readers.get(name)
        if known is not None:
            return known
        if name in self._declared:
            known = self._readers[name] = TextReader(self._declared[name], self._root)
            return known
        is_vague = False
        for pattern, schema in self._patterns.items():
            if (matches := _matches(pattern, name)) is True:
                return TextReader((schema,), self._root)
            is_vague = is_vague or matches is None
        if is_vague:
            return _ANY
        if self._extra is False or (self._known_names is not None and name not in self._known_names):
            return None
        return _ANY if not isinstance(self._extra, dict) else TextReader((self._extra,), self._root)

    def declared(self, key: str) -> TextReader | None:
        """The reader for the text of the parameter that is spelled `key`; None if there is none."""
        return self.reader(key) if key in self._declared else None

    def takes(self, name: str) -> bool:
        return self.reader(name) is not None

    @property
    def verbatim(self) -> frozenset[str]:
        """The declared parameters whose value is their verbatim text."""
        if self._verbatim is None:
            self._verbatim = frozenset(
                name for name in self._declared if (reader := self.reader(name)) and reader.verbatim
            )
        return self._verbatim

    def requires_more(self, given: Mapping[str, object]) -> bool:
        return any(name not in given for name in self._required)

    def missing(self, given: Mapping[str, object]) -> list[str]:
        """The required parameters that are not given and have no default the host would fill in."""
        return [name for name in self._required if name not in given]

    def problems(self, arguments: Mapping[str, Any]) -> list[SchemaProblem]:
        """The problems of typed arguments by the schema; none if the schema is not usable."""
        try:
            if self._judge is None:
                schema = self._root.schema
                self._judge = compile_defaults(schema), Validator(schema, "", None, is_foreign=True)
            fill, validator = self._judge
            completed = arguments if fill is None else fill(arguments)
            if validator.accepts(completed):
                return []
        except (SchemaInvalid, ValueError):
            return []  # ValueError: a lone surrogate, which is for the host to refuse
        return [problem for problem in validator.problems(completed) if problem.keyword not in ("json", "limit")]


def _only_names(schema: Any) -> frozenset[str] | None:
    """The names that `propertyNames` lists; None if it lists none."""
    if schema is False:
        return frozenset()
    listed = schema.get("enum") if isinstance(schema, Mapping) else None
    return frozenset(name for name in listed if isinstance(name, str)) if isinstance(listed, list) else None


def _matches(pattern: object, name: str) -> bool | None:
    """Whether a name fits; None for a pattern that cannot be tried, which another system may see as fitting."""
    try:
        return isinstance(pattern, str) and fits(pattern, name)
    except PatternInvalid:
        return None
