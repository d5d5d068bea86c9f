"""Is the schema of a tool usable? Every finding has a JSON pointer and a repair.

house rules (size, depth, $ref, patterns, slips) → meta-schema of its draft → top is an object
                                                 → `required` names exist → defaults fit their own schema
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from tavern_core.errors import Finding, Location, SchemaInvalid
from tavern_core.model.json_pointer import exact_pointer
from tavern_core.model.nearest import did_you_mean
from tavern_core.schema.defaults import compile_defaults
from tavern_core.schema.prepare import flaws_of
from tavern_core.schema.problem import SchemaProblem, flaw, printable
from tavern_core.schema.schema_lint_rules import Draft, draft_of
from tavern_core.schema.tree import nodes_of, normalise_schema, walk
from tavern_core.schema.validate import compile_output_validator

__all__ = ["check_schema", "likely_slips", "normalise_schema", "whole_flaws"]

_MOST_FINDINGS = 50
_BASE = "https://tavern-core.invalid/checked"
_SHAPES = ("properties", "$ref", "allOf", "anyOf", "oneOf", "patternProperties", "additionalProperties")
_MANY = 1_000
"""Defaults; more may be too many to fill in, which only a trial shows."""
_PLAIN = frozenset({"default", "type", "enum", "title", "description", "examples"})
_PLAIN_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "boolean": (bool,), "integer": (int,), "number": (int, float),
}  # fmt: skip
_COMBINED = (
    "allOf", "anyOf", "oneOf", "$ref", "if", "patternProperties", "additionalProperties", "unevaluatedProperties",
)  # fmt: skip

_KEYWORDS = frozenset({
    "$anchor", "$comment", "$defs", "$dynamicAnchor", "$dynamicRef", "$id", "$ref", "$schema",
    "additionalItems", "additionalProperties", "allOf", "anyOf", "const", "contains", "contentEncoding",
    "contentMediaType", "contentSchema", "default", "definitions", "dependencies", "dependentRequired",
    "dependentSchemas", "deprecated", "description", "else", "enum", "examples", "exclusiveMaximum",
    "exclusiveMinimum", "format", "if", "items", "maxContains", "maxItems", "maxLength", "maxProperties",
    "maximum", "minContains", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "not", "oneOf",
    "pattern", "patternProperties", "prefixItems", "properties", "propertyNames", "readOnly", "required",
    "then", "title", "type", "unevaluatedItems", "unevaluatedProperties", "uniqueItems", "writeOnly",
    "x-tavern",
})  # fmt: skip
"""Every keyword of the drafts that are read, and our own mark."""
_OTHERS = frozenset(
    {"example", "enumNames", "enumDescriptions", "nullable", "discriminator", "xml", "id", "order", "name"}
)
"""Keywords of other systems that resemble one of JSON Schema and are not misspellings of it."""


def check_schema(
    schema: object, where: str | Location = "schema", *, output: bool = False, is_foreign: bool = False
) -> list[Finding]:
    """All problems of a schema; empty if it is valid. Never raises.

    Args:
        schema: a tool's parameters (or, with `output`, its result schema) as written.
        where: the place of the schema; the pointer of each finding is appended.
        output: allow any type at the top; otherwise it must be an object.
        is_foreign: its author cannot correct it. A pattern that cannot be tried is then a warning: it is not validated.

    Returns:
        Findings with code SCHEMA_INVALID; those of severity "error" make the tool unusable.
    """
    copy = normalise_schema(schema)
    flaws = flaws_of(copy, is_foreign=is_foreign)
    if not any(each.severity == "error" for each in flaws):
        flaws += [] if output else _top_flaws(copy)
        if isinstance(copy, dict):
            flaws += _required_flaws(copy)
            flaws += _default_flaws(copy, is_foreign=is_foreign)
            flaws += _rest_flaws(copy) if is_foreign and flaws else []
    flaws.sort(key=lambda each: each.severity != "error")
    return [_finding(each, where) for each in flaws[:_MOST_FINDINGS]] if flaws else []


def whole_flaws(schema: object) -> list[SchemaProblem]:
    """`flaws_of`, and the defaults that the schema itself refuses."""
    flaws = flaws_of(schema)
    if isinstance(schema, dict) and not any(each.severity == "error" for each in flaws):
        flaws = [*flaws, *_default_flaws(schema)]
    return flaws


def likely_slips(schema: dict[str, Any]) -> list[SchemaProblem]:
    """Likely mistakes in a valid schema: unknown keywords that resemble real ones, undeclared `required` names."""
    flaws = []
    for path, node in walk(schema):
        for keyword in node.keys() - _KEYWORDS - _OTHERS:
            if near := did_you_mean(keyword, _KEYWORDS, 1):
                message = f"the keyword {printable(keyword, 60)!r} means nothing in JSON Schema"
                flaws.append(flaw((*path, keyword), message, near, "warning"))
        if "dependencies" in node and draft_of(schema) != "draft-07":
            hint = "write `dependentRequired` or `dependentSchemas`"
            flaws.append(flaw((*path, "dependencies"), "`dependencies` is draft 7", hint, "warning"))
        if node.get("enum") == []:
            flaws.append(flaw((*path, "enum"), "no value fits an empty `enum`", "list its values", "warning"))
    return [*flaws, *_required_flaws(schema)][:_MOST_FINDINGS]


def _finding(problem: SchemaProblem, where: str | Location) -> Finding:
    base = Location(where) if isinstance(where, str) else where
    place = Location(base.file, base.line, base.column, base.pointer + problem.path)
    return Finding("SCHEMA_INVALID", problem.message, problem.hint, place, problem.severity)


def _top_flaws(schema: dict[str, Any] | bool) -> list[SchemaProblem]:
    hint = "write {type: object, properties: {…}}"
    if isinstance(schema, bool):
        return [flaw((), "parameters must be an object schema, not true or false", hint)]
    kind = schema.get("type")
    if kind not in (None, "object", ["object"]):
        return [flaw(("type",), f"parameters must be an object at the top, not {printable(str(kind), 60)}", hint)]
    if kind is None and not any(keyword in schema for keyword in _SHAPES):
        return [flaw((), "the parameters declare nothing, so anything is accepted", hint, "warning")]
    return []


def _required_flaws(schema: dict[str, Any]) -> list[SchemaProblem]:
    """Names that are required but not declared: usually a misspelling that makes every call fail."""
    flaws = []
    for path, node in walk(schema):
        declared = node.get("properties")
        if not isinstance(declared, dict) or any(keyword in node for keyword in _COMBINED):
            continue
        for name in node.get("required", ()):
            if name not in declared:
                hint = did_you_mean(name, declared) or "declare it in `properties`, or remove it from `required`"
                message = f"{printable(name, 60)!r} is required but not declared"
                flaws.append(flaw((*path, "required"), message, hint, "warning"))
    return flaws


def _default_flaws(schema: dict[str, Any], *, is_foreign: bool = False) -> list[SchemaProblem]:
    """Defaults that their own schema refuses, each with the defaults inside it filled in, as in a call."""
    with_default = [node for node in nodes_of(schema) if "default" in node]
    if len(with_default) <= _MANY and all(map(_plainly_fits, with_default)):
        return []
    paths = {str(number): path for number, (path, node) in enumerate(walk(schema)) if "default" in node}
    together = _each_default(schema, paths)
    try:
        fill = compile_defaults(together)
        filled = fill({}) if fill else {}
        problems = compile_output_validator(together, is_foreign=is_foreign).problems(filled, _MOST_FINDINGS)
    except SchemaInvalid as error:
        return [flaw((), error.message, error.hint)]
    flaws = []
    for problem in problems:
        _, number, *inside = problem.path.split("/")
        if number in paths:
            deeper = f" at /{'/'.join(inside)}" if inside else ""
            hint = problem.hint or f"write a default that is {problem.expected}"
            if problem.got == "null" and not inside:
                hint = "remove the default, or allow null in `type`"
            message = f"the default does not fit its own schema{deeper}: {problem.message}"
            flaws.append(flaw((*paths[number], "default"), message, hint))
    return flaws


def _rest_flaws(schema: dict[str, Any]) -> list[SchemaProblem]:
    """Problems that remain without the patterns that cannot be tried: a `$ref` may lead to what they describe."""
    try:
        compile_output_validator(schema, is_foreign=True).build()
    except SchemaInvalid as error:
        return [flaw((), error.message, error.hint)]
    return []


def _plainly_fits(node: dict[str, Any]) -> bool:
    """Whether a default fits its type, and nothing else in the schema could refuse it: true of most, and quick."""
    default, kind = node["default"], node.get("type")
    if not _PLAIN.issuperset(node) or not isinstance(kind, str) or type(default) not in _PLAIN_TYPES.get(kind, ()):
        return False
    return "enum" not in node or any(type(value) is type(default) and value == default for value in node["enum"])


def _each_default(schema: dict[str, Any], paths: dict[str, tuple[object, ...]]) -> dict[str, Any]:
    """A schema with one property for each place of `schema` that has a default."""
    draft: Draft = draft_of(schema) or "2020-12"
    base = schema.get("$id") if isinstance(schema.get("$id"), str) and not str(schema["$id"]).startswith("#") else _BASE
    header = {"$schema": schema["$schema"]} if "$schema" in schema else {}
    return {
        **header,
        "properties": {
            number: {"$ref": f"{base}#{quote(exact_pointer(path), safe='/~')}"} for number, path in paths.items()
        },
        "definitions" if draft == "draft-07" else "$defs": {"checked": {**schema, "$id": base}},
    }
