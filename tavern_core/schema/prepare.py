"""From the schema somebody wrote to the schema an engine gets.

    copied → draft chosen → house rules and meta-schema → closed (parameters only) → patterns in the engine's dialect

Everything that could make two engines answer differently is settled here, once: the draft, patterns, and keywords
that only one engine asserts (`content*`; `format` is an annotation to both, as 2020-12 says).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tavern_core.errors import Finding, Location, SchemaInvalid
from tavern_core.frozen import dataclass
from tavern_core.schema.limits import json_copy
from tavern_core.schema.meta import meta_flaws
from tavern_core.schema.normalise import normalise_schema
from tavern_core.schema.patterns import LONGEST, WRITTEN, Dialect, in_dialect, longest_text
from tavern_core.schema.rules import Draft, Flaw, draft_of, house_flaws
from tavern_core.schema.tree import Schema, nodes_of

_ANNOTATIONS = ("$schema", "$vocabulary", "$comment", "contentEncoding", "contentMediaType", "contentSchema")


_FALSE_IN_MAPS = ("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions")
_FALSE_IN_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_FALSE_ALONE = ("not", "if", "then", "else", "contains", "propertyNames")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked schema, ready for either engine."""

    draft: Draft
    schema: Schema
    patterns: frozenset[str]
    """Every regular expression in it, as written."""


def flaws_of(schema: object) -> list[Flaw]:
    """Everything that keeps a schema from being used, house rules first; the meta-schema only when those hold."""
    flaws = house_flaws(schema)
    if any(flaw.severity == "error" for flaw in flaws) or not isinstance(schema, dict):
        return flaws
    return flaws + meta_flaws(schema, draft_of(schema) or "2020-12")


def prepare(
    schema: object, name: str = "", *, closing: Callable[[dict[str, Any], bool], None] | None = None
) -> Prepared:
    """Check and rewrite a schema.

    Args:
        schema: the schema as written; it is not changed.
        name: whose schema it is, for the error message.
        closing: what makes it refuse undeclared properties (`closed.close` for parameters), or None.

    Raises:
        SchemaInvalid: with one finding for each flaw, located by JSON pointer.
    """
    copy = normalise_schema(schema)
    if errors := [flaw for flaw in flaws_of(copy) if flaw.severity == "error"]:
        raise schema_invalid(errors, name)
    draft: Draft = "2020-12"
    patterns: set[str] = set()
    if isinstance(copy, dict):
        draft = draft_of(copy) or draft
        if closing is not None:
            closing(copy, draft == "draft-07")
        for node in nodes_of(copy):
            for keyword in _ANNOTATIONS:
                node.pop(keyword, None)
            if isinstance(pattern := node.get("pattern"), str):
                patterns.add(pattern)
            patterns.update(node.get("patternProperties", ()))
    return Prepared(draft, copy, frozenset(patterns))


def for_engine(prepared: Prepared, dialect: Dialect) -> Schema:
    """The schema with its patterns written for one engine's regular expressions."""
    if dialect == "rust" and not prepared.patterns:
        return prepared.schema
    schema: Schema = json_copy(prepared.schema)[0]
    for node in nodes_of(schema):
        if isinstance(pattern := node.get("pattern"), str):
            node["pattern"] = in_dialect(pattern, dialect)
            if dialect == "python":
                node[LONGEST], node[WRITTEN] = longest_text(pattern), pattern
        if isinstance(held := node.get("patternProperties"), dict):
            node["patternProperties"] = {in_dialect(pattern, dialect): inner for pattern, inner in held.items()}
        if dialect == "python":
            _write_false_out(node)
    return schema


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


def schema_invalid(flaws: list[Flaw], name: str) -> SchemaInvalid:
    """The error for a schema that cannot be used."""
    findings = tuple(
        Finding("SCHEMA_INVALID", flaw.message, flaw.hint, Location(name or "schema", pointer=flaw.pointer))
        for flaw in flaws
    )
    first = flaws[0]
    place = f" at {first.pointer}" if first.pointer else ""
    return SchemaInvalid(
        f"the schema{f' of {name}' if name else ''} cannot be used{place}: {first.message}",
        hint=first.hint,
        findings=findings,
    )
