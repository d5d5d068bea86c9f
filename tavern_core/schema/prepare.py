"""From the schema of an author to the schema for an engine.

    copied → draft chosen → house rules and meta-schema → closed (parameters only)

Everything that could make two engines answer differently is settled here, once: the draft, and keywords that only one
engine asserts (`content*`; `format` is an annotation to both, as 2020-12 says).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from tavern_core.errors import Finding, Location, SchemaInvalid
from tavern_core.frozen_dataclass import dataclass
from tavern_core.schema.bounded_json_copying import json_copy
from tavern_core.schema.patterns import pattern_flaw, written_out
from tavern_core.schema.problem import SchemaProblem, pointer
from tavern_core.schema.schema_lint_rules import VALIDATORS, Draft, draft_of, house_flaws
from tavern_core.schema.tree import Schema, SchemaReferences, children, leading_to, nodes_of, normalise_schema, walk
from tavern_core.schema.uniqueness import unique_items

if TYPE_CHECKING:
    from jsonschema.protocols import Validator as Engine

_ANNOTATIONS = ("$schema", "$vocabulary", "$comment", "contentEncoding", "contentMediaType", "contentSchema")
_UNSURE = frozenset({"$dynamicRef", "$recursiveRef", "unevaluatedProperties", "unevaluatedItems"})
_FALSE_IN_MAPS = ("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions")
_FALSE_IN_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MOST_FLAWS = 20
_FALSE_ALONE = ("not", "if", "then", "else", "contains", "propertyNames")


@dataclass(frozen=True, slots=True)
class PreparedSchema:
    """A checked schema, ready for either engine."""

    draft: Draft
    schema: Schema


def flaws_of(schema: object, *, is_foreign: bool = False) -> list[SchemaProblem]:
    """All problems that make a schema unusable: house rules first; the meta-schema only if those hold.

    Args:
        is_foreign: as for `house_flaws`.
    """
    flaws = house_flaws(schema, is_foreign=is_foreign)
    if any(flaw.severity == "error" for flaw in flaws) or not isinstance(schema, dict):
        return flaws
    return flaws + meta_flaws(schema, draft_of(schema) or "2020-12")


def prepare(
    schema: object,
    name: str = "",
    *,
    closing: Callable[[dict[str, Any], bool], None] | None = None,
    is_foreign: bool = False,
) -> PreparedSchema:
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
    if errors := [flaw for flaw in flaws_of(copy, is_foreign=is_foreign) if flaw.severity == "error"]:
        raise schema_invalid(errors, name)
    draft: Draft = "2020-12"
    if isinstance(copy, dict):
        draft = draft_of(copy) or draft
        if closing is not None:
            closing(copy, draft == "draft-07")
        if is_foreign:  # after closing, which needs every name that the schema declares
            _leave_untried_out(copy)
        for node in nodes_of(copy):
            for keyword in _ANNOTATIONS:
                node.pop(keyword, None)
    return PreparedSchema(draft, copy)


def untried_patterns(schema: Schema) -> Iterator[tuple[str, str, str]]:
    """(JSON pointer, pattern, why it cannot be tried) of each such pattern of a checked foreign schema."""
    for path, node in walk(schema):
        pattern_here = node.get("pattern")
        written = [((*path, "pattern"), pattern_here)] if isinstance(pattern_here, str) else []
        written += [((*path, "patternProperties", name), name) for name in _patterns_of_names(node)]
        for place, pattern in written:
            if (wrong := pattern_flaw(pattern)) is not None:
                yield pointer(place), pattern, wrong[0]


def untried_reason(schema: Schema) -> str:
    """The place of the first pattern of a schema that cannot be tried, and the reason; empty if all can.

    For schemas of other systems that people write for this host: no one else would validate them.
    """
    return next((f"{place}: {why}" for place, _, why in untried_patterns(schema)), "")


def checkable(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy of a checked foreign schema without the patterns that cannot be tried, for code that must not meet them."""
    copy: dict[str, Any] = json_copy(schema)[0]
    _leave_untried_out(copy)
    return copy


def _leave_untried_out(schema: dict[str, Any]) -> None:
    """Remove the patterns that cannot be tried. The rest accepts all that the whole would accept.

    Any text may fit such a pattern, and a property under one may be anything. So what refuses values that fit a schema with
    such a pattern (`not`, `if`, more than one of `oneOf`, too many that a `contains` counts) is removed, too.
    """
    nodes = nodes_of(schema)
    of_text = [node for node in nodes if isinstance(pattern := node.get("pattern"), str) and pattern_flaw(pattern)]
    of_names = [(node, name) for node in nodes for name in _patterns_of_names(node) if pattern_flaw(name)]
    if not of_text and not of_names:
        return
    refs = SchemaReferences(schema)
    # `unevaluated*` may be removed below, and it is not known here where a dynamic reference leads.
    found = [*of_text, *(node for node, _ in of_names), *(node for node in nodes if not _UNSURE.isdisjoint(node))]
    vague = leading_to(found, nodes, lambda node: _applied(node, refs))
    for node in of_text:
        del node["pattern"]
    for node, name in of_names:
        del node["patternProperties"][name]
        node.pop("additionalProperties", None)
    is_open = bool(of_names)
    for node in nodes:
        for keyword in ("not", "if"):
            if id(node.get(keyword)) in vague:
                del node[keyword]
                is_open = True
        if any(id(part) in vague for part in node.get("oneOf", ())):
            node["allOf"] = [*node.get("allOf", ()), {"anyOf": node.pop("oneOf")}]
        if id(node.get("contains")) in vague:
            node.pop("maxContains", None)
    for node in nodes if is_open else ():
        node.pop("unevaluatedProperties", None)
        node.pop("unevaluatedItems", None)


def _patterns_of_names(node: dict[str, Any]) -> list[str]:
    return list(held) if isinstance(held := node.get("patternProperties"), dict) else []


def _applied(node: dict[str, Any], refs: SchemaReferences) -> Iterator[dict[str, Any]]:
    """The schemas that judge a value, or a part of it, for `node`."""
    yield from (inner for path, inner in children(node) if path[0] not in ("$defs", "definitions"))
    if isinstance(target := refs.resolve(node), dict):
        yield target


def to_explain(prepared: PreparedSchema, value: Any) -> Schema:
    """The schema for jsonschema's explanation of why `value` does not fit.

    Patterns of names are replaced by lists of the names in `value`, because jsonschema uses Python's `re`.
    """
    schema: Schema = json_copy(prepared.schema)[0]
    names: frozenset[str] | None = None
    number = 0
    is_newer = prepared.draft != "draft-07"
    for node in nodes_of(schema):
        if is_newer and isinstance(node.get("dependencies"), dict):
            _write_dependencies_out(node)
        if isinstance(pattern_properties := node.get("patternProperties"), dict):
            names = _names_in(value) if names is None else names
            written = {}
            for pattern, inner in pattern_properties.items():
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


def _write_dependencies_out(node: dict[str, Any]) -> None:
    """The validating engine reads the `dependencies` of draft 7 in later drafts, too; jsonschema does not."""
    for name, needed in node["dependencies"].items():
        keyword = "dependentRequired" if isinstance(needed, list) else "dependentSchemas"
        node.setdefault(keyword, {}).setdefault(name, needed)


def _write_false_out(node: dict[str, Any]) -> None:
    """jsonschema loses the place of a value refused by the schema `false`; it keeps that of `{"not": {}}`."""
    for keyword in _FALSE_IN_MAPS:
        value = node.get(keyword)
        for name in [name for name, inner in value.items() if inner is False] if isinstance(value, dict) else ():
            node[keyword][name] = {"not": {}}
    for keyword in _FALSE_IN_LISTS:
        if isinstance(value := node.get(keyword), list):
            node[keyword] = [{"not": {}} if inner is False else inner for inner in value]
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


# The meta-schema of a draft --------------------------------------------------------------------------------------------


@cache
def python_draft(draft: Draft) -> type[Engine]:
    """jsonschema's validator class of a draft."""
    import jsonschema

    found: type[Engine] = getattr(jsonschema, VALIDATORS[draft])
    return found


@cache
def _meta_engine(draft: Draft) -> Engine:
    """The validator for schemas of a draft; a list of ten thousand types costs no more than reading it."""
    import attrs
    from jsonschema import validators

    extend: Callable[..., Any] = validators.extend
    made = extend(python_draft(draft), {"uniqueItems": unique_items})
    # The parts of a meta-schema name their draft, for which jsonschema would take its own class again.
    made.evolve = lambda engine, **changes: attrs.evolve(engine, **changes)
    judge: Engine = made(made.META_SCHEMA)
    return judge


def meta_flaws(schema: dict[str, Any], draft: Draft) -> list[SchemaProblem]:
    """The problems of a schema of bounded size by the meta-schema of its draft."""
    if _is_quickly_accepted(schema, draft):
        return []
    from tavern_core.schema.explain import explain

    errors = _meta_engine(draft).iter_errors(schema)
    return explain(errors, _MOST_FLAWS)


def _is_quickly_accepted(schema: dict[str, Any], draft: Draft) -> bool:
    import jsonschema_rs

    named = {"draft-07": "http://json-schema.org/draft-07/schema#"}.get(
        draft, f"https://json-schema.org/draft/{draft}/schema"
    )
    try:
        return bool(jsonschema_rs.meta.is_valid({**schema, "$schema": named}))
    except ValueError:
        return False
