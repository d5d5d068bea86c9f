"""From the schema of an author to the schema for an engine.

    copied → draft chosen → house rules and meta-schema → closed (parameters only)

Everything that could make two engines answer differently is settled here, once: the draft, and keywords that only one
engine asserts (`content*`; `format` is an annotation to both, as 2020-12 says).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tavern_core.errors import Finding, Location, SchemaInvalid
from tavern_core.frozen_dataclass import dataclass
from tavern_core.schema.bounded_json_copying import json_copy
from tavern_core.schema.meta import meta_flaws
from tavern_core.schema.patterns import pattern_flaw, written_out
from tavern_core.schema.problem import SchemaProblem
from tavern_core.schema.schema_lint_rules import Draft, draft_of, house_flaws
from tavern_core.schema.tree import Schema, nodes_of, normalise_schema

_ANNOTATIONS = ("$schema", "$vocabulary", "$comment", "contentEncoding", "contentMediaType", "contentSchema")


_FALSE_IN_MAPS = ("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions")
_FALSE_IN_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_FALSE_ALONE = ("not", "if", "then", "else", "contains", "propertyNames")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked schema, ready for either engine."""

    draft: Draft
    schema: Schema
    unchecked: tuple[str, ...] = ()
    """Unsupported patterns of a foreign schema: values are not validated against them."""


def flaws_of(schema: object) -> list[SchemaProblem]:
    """Everything that keeps a schema from being used, house rules first; the meta-schema only when those hold."""
    flaws = house_flaws(schema)
    if any(flaw.severity == "error" for flaw in flaws) or not isinstance(schema, dict):
        return flaws
    return flaws + meta_flaws(schema, draft_of(schema) or "2020-12")


def prepare(
    schema: object,
    name: str = "",
    *,
    closing: Callable[[dict[str, Any], bool], None] | None = None,
    is_foreign: bool = False,
) -> Prepared:
    """Check and rewrite a schema.

    Args:
        schema: the schema as written; it is not changed.
        name: the owner of the schema, for the error message.
        closing: the function that makes it refuse undeclared properties (`closed.close` for parameters), or None.
        is_foreign: the author cannot correct it, so an unsupported pattern is left out instead of being an error.

    Raises:
        SchemaInvalid: with one finding for each flaw, located by JSON pointer.
    """
    copy = normalise_schema(schema)
    unchecked = _without_untried(copy) if is_foreign and isinstance(copy, dict) else ()
    if errors := [flaw for flaw in flaws_of(copy) if flaw.severity == "error"]:
        raise schema_invalid(errors, name)
    draft: Draft = "2020-12"
    if isinstance(copy, dict):
        draft = draft_of(copy) or draft
        if closing is not None:
            closing(copy, draft == "draft-07")
        for node in nodes_of(copy):
            for keyword in _ANNOTATIONS:
                node.pop(keyword, None)
    return Prepared(draft, copy, unchecked)


def _without_untried(schema: dict[str, Any]) -> tuple[str, ...]:
    """Remove unsupported patterns; a property under one may be anything."""
    found: list[str] = []
    for node in nodes_of(schema):
        if isinstance(pattern := node.get("pattern"), str) and pattern_flaw(pattern) is not None:
            found.append(node.pop("pattern"))
        held = node.get("patternProperties")
        for name in [name for name in held if pattern_flaw(name) is not None] if isinstance(held, dict) else ():
            found.append(name)
            del node["patternProperties"][name]
            node.pop("additionalProperties", None)
            node.pop("unevaluatedProperties", None)
    return tuple(dict.fromkeys(found))


def to_explain(prepared: Prepared, value: Any) -> Schema:
    """The schema for jsonschema's explanation of why `value` does not fit.

    Patterns of names are replaced by lists of the names in `value`, because jsonschema uses Python's `re`.
    """
    schema: Schema = json_copy(prepared.schema)[0]
    names: frozenset[str] | None = None
    number = 0
    for node in nodes_of(schema):
        if isinstance(held := node.get("patternProperties"), dict):
            names = _names_in(value) if names is None else names
            written = {}
            for pattern, inner in held.items():
                number += 1
                written[written_out(pattern, names, number)] = inner
            node["patternProperties"] = written
        _write_false_out(node)
    return schema


def _names_in(value: Any) -> frozenset[str]:
    """The keys of every object in plain JSON."""
    names: set[str] = set()
    waiting = [value]
    while waiting:
        here = waiting.pop()
        if isinstance(here, dict):
            names.update(here)
            waiting += here.values()
        elif isinstance(here, list):
            waiting += here
    return frozenset(names)


def _write_false_out(node: dict[str, Any]) -> None:
    """jsonschema loses the place of a value refused by the schema `false`; it keeps that of `{"not": {}}`."""
    for keyword in _FALSE_IN_MAPS:
        held = node.get(keyword)
        for name in [name for name, inner in held.items() if inner is False] if isinstance(held, dict) else ():
            node[keyword][name] = {"not": {}}
    for keyword in _FALSE_IN_LISTS:
        if isinstance(held := node.get(keyword), list):
            node[keyword] = [{"not": {}} if inner is False else inner for inner in held]
    for keyword in _FALSE_ALONE:
        if node.get(keyword) is False:
            node[keyword] = {"not": {}}


def schema_invalid(flaws: list[SchemaProblem], name: str) -> SchemaInvalid:
    """The error for a schema that cannot be used."""
    findings = tuple(
        Finding("SCHEMA_INVALID", flaw.message, flaw.hint, Location(name or "schema", pointer=flaw.path))
        for flaw in flaws
    )
    first = flaws[0]
    place = f" at {first.path}" if first.path else ""
    return SchemaInvalid(
        f"the schema{f' of {name}' if name else ''} cannot be used{place}: {first.message}",
        hint=first.hint,
        findings=findings,
    )
