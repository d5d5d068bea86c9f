"""The house rules for JSON Schemas: restrictions beyond the meta-schema.

Bounded in size, depth and work; `$ref` stays inside the schema and has no cycles; patterns are linear;
frequent mistakes of other vendors' schemas are reported with their repair. Each flaw is located by JSON pointer.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from tavern_core.model import depths
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.parameter_guard_marks import MARK, mark_flaws
from tavern_core.schema.bounded_json_copying import is_plain, measure
from tavern_core.schema.patterns import pattern_flaw
from tavern_core.schema.problem import SchemaProblem, flaw, json_type, printable
from tavern_core.schema.tree import REFERENCES, SchemaReferences, same_place, walk

Draft: TypeAlias = Literal["draft-07", "2019-09", "2020-12"]

MAX_SCHEMA_NODES: Final = 20_000
MAX_SCHEMA_CHARS: Final = 1_000_000
_FEW_NODES: Final = 500
MAX_WORK: Final = 5_000
"""Subschemas that may apply to one value at one place, counting every path to them."""

_DRAFT_7: Final = "json-schema.org/draft-07/schema"
_DRAFTS: Final[dict[str, Draft]] = {
    _DRAFT_7: "draft-07",
    "json-schema.org/draft/2019-09/schema": "2019-09",
    "json-schema.org/draft/2020-12/schema": "2020-12",
}
VALIDATORS: Final[dict[Draft, str]] = {
    "draft-07": "Draft7Validator", "2019-09": "Draft201909Validator", "2020-12": "Draft202012Validator",
}  # fmt: skip
"""Draft → its class, which jsonschema and jsonschema-rs call the same."""
_TYPES: Final = ("string", "integer", "number", "boolean", "object", "array", "null")
_SLIPS: Final = {
    "any": "leave `type` out: without it every value fits",
    "int": "write `integer`",
    "int32": "write `integer`",
    "int64": "write `integer`",
    "long": "write `integer`",
    "float": "write `number`",
    "double": "write `number`",
    "decimal": "write `number`",
    "str": "write `string`",
    "text": "write `string`",
    "bool": "write `boolean`",
    "dict": "write `object`",
    "map": "write `object`",
    "list": "write `array`",
    "tuple": "write `array` with `prefixItems`",
    "none": "write `null`",
    "nil": "write `null`",
    "date": "write `type: string` with `format: date`",
    "datetime": "write `type: string` with `format: date-time`",
    "file": "write `type: string` with `x-tavern: {guard: path}`",
    "enum": "write `enum: [...]` instead of `type`",
}


def draft_of(schema: dict[str, Any]) -> Draft | None:
    """The draft a schema is written in; 2020-12 without `$schema`, None if it names another one."""
    named = schema.get("$schema")
    if named is None:
        return "2020-12"
    if not isinstance(named, str):
        return None
    address = named.strip().removesuffix("#").rstrip("/")
    return _DRAFTS.get(address.removeprefix("https://").removeprefix("http://"))


def house_flaws(schema: object, *, is_foreign: bool = False) -> list[SchemaProblem]:
    """Every house rule a schema breaks, in the order of the document's walk; empty when it may be used.

    Args:
        is_foreign: its author cannot correct it. A pattern that cannot be tried is then a warning: it is not validated.
    """
    # The quick question first: most schemas are small, and their text is at least as long as all strings in them.
    small = is_plain(schema, depths.VALUE, _FEW_NODES) and len(repr(schema)) <= MAX_SCHEMA_CHARS
    problem = None if small else measure(schema, depths.VALUE, MAX_SCHEMA_NODES, MAX_SCHEMA_CHARS)
    if problem is not None:
        return [SchemaProblem(problem.path, f"not usable as a schema: {problem.message}", hint=problem.hint)]
    if isinstance(schema, bool):
        return []
    if not isinstance(schema, dict):
        return [flaw((), f"a schema is an object, not {json_type(schema)}", "write {type: object, properties: …}")]
    if draft_of(schema) is None:
        named = printable(str(schema["$schema"]), 80)
        hint = "use 2020-12 (or leave `$schema` out) or draft-07"
        return [flaw(("$schema",), f"the draft {named!r} is not supported", hint)]
    return _node_flaws(schema, "warning" if is_foreign else "error")


def _node_flaws(schema: dict[str, Any], of_patterns: Literal["error", "warning"]) -> list[SchemaProblem]:
    nodes = list(walk(schema))
    takes_lists = draft_of(schema) != "2020-12"
    flaws: list[SchemaProblem] = []
    has_refs = False
    for path, node in nodes:
        if "type" in node:
            flaws += _type_flaws(path, node["type"])
        if isinstance(node.get("required"), bool):
            hint = (
                f"list {path[-1]!r} in the `required` array of the object around it"
                if path
                else "write a list of names"
            )
            flaws.append(flaw((*path, "required"), "`required` must be a list of names", hint))
        if isinstance(node.get("items"), list) and not takes_lists:
            hint = f"write `prefixItems`, or add `$schema: http://{_DRAFT_7}#` at the top"
            flaws.append(flaw((*path, "items"), "must be object or boolean; a list of `items` is draft 7", hint))
        if "pattern" in node or "patternProperties" in node:
            flaws += _pattern_flaws(path, node, of_patterns)
        if MARK in node:
            flaws += [
                flaw((*path, MARK, *([option] if option else [])), message, hint)
                for option, message, hint in mark_flaws(node[MARK])
            ]
        for key in node:
            if key != MARK and key.lower().replace("_", "-") in (MARK, "xtavern"):
                flaws.append(flaw((*path, key), f"{key!r:.40} is not a mark", f"write {MARK}"))
        has_refs = has_refs or any(keyword in node for keyword in REFERENCES)
    if has_refs:
        flaws += _ref_flaws(schema, nodes)
    return flaws


def _type_flaws(path: tuple[object, ...], kind: object) -> list[SchemaProblem]:
    flaws = []
    for name in kind if isinstance(kind, list) else [kind]:
        if isinstance(name, str) and name not in _TYPES:
            hint = _SLIPS.get(name.lower()) or did_you_mean(name, _TYPES) or f"use one of {', '.join(_TYPES)}"
            flaws.append(flaw((*path, "type"), f"{printable(name, 40)!r} is not a JSON type", hint))
    return flaws


def _pattern_flaws(
    path: tuple[object, ...], node: dict[str, Any], severity: Literal["error", "warning"]
) -> list[SchemaProblem]:
    flaws = []
    if isinstance(pattern := node.get("pattern"), str) and (wrong := pattern_flaw(pattern)):
        flaws.append(flaw((*path, "pattern"), *wrong, severity))
    pattern_properties = node.get("patternProperties")
    for name in pattern_properties if isinstance(pattern_properties, dict) else ():
        if wrong := pattern_flaw(name):
            flaws.append(flaw((*path, "patternProperties", name), *wrong, severity))
    return flaws


def _ref_flaws(schema: dict[str, Any], nodes: list[tuple[tuple[object, ...], dict[str, Any]]]) -> list[SchemaProblem]:
    refs = SchemaReferences(schema)
    flaws: list[SchemaProblem] = []
    for path, node in nodes:
        for keyword in REFERENCES:
            if keyword in node and refs.resolve(node, keyword) is None:
                flaws.append(_lost(path, keyword, node[keyword], schema))
    if flaws:
        return flaws
    work: dict[int, int] = {}
    for path, node in nodes:
        count = _work(node, refs, work)
        if count < 0:
            message = "the `$ref` leads back to itself without going deeper into the value"
            return [flaw(path, message, "break the circle")]
        if count > MAX_WORK:
            message = f"more than {MAX_WORK:,} subschemas check one value here"
            return [flaw(path, message, "refer to shared parts less often")]
    return []


def _lost(path: tuple[object, ...], keyword: str, ref: object, schema: dict[str, Any]) -> SchemaProblem:
    where = (*path, keyword)
    if not isinstance(ref, str):
        return flaw(where, f"`{keyword}` must be text such as '#/$defs/name'")
    names = [f"#/{section}/{name}" for section in ("$defs", "definitions") for name in _names(schema.get(section))]
    if not ref.startswith("#"):
        message = f"{printable(ref, 80)!r} is outside this schema; references are never fetched"
        return flaw(where, message, "copy it into `$defs`")
    hint = did_you_mean(ref, names) or ("known are " + ", ".join(names[:5]) if names else "put the schema into `$defs`")
    return flaw(where, f"{printable(ref, 80)!r} points to no schema in this one", hint)


def _names(held: object) -> list[str]:
    return list(held) if isinstance(held, dict) else []


def _work(root: dict[str, Any], refs: SchemaReferences, known: dict[int, int]) -> int:
    """The number of subschemas that apply to the value of `root`; -1 for a cycle. Iterative: chains may be long."""
    stack: list[tuple[dict[str, Any], bool]] = [(root, False)]
    open_nodes: set[int] = set()
    while stack:
        node, done = stack.pop()
        parts = [inner for _, inner in same_place(node)]
        parts += [
            target
            for keyword in REFERENCES
            if keyword in node and isinstance(target := refs.resolve(node, keyword), dict)
        ]
        if done:
            open_nodes.discard(id(node))
            known[id(node)] = min(1 + sum(known[id(part)] for part in parts), MAX_WORK + 1)
        elif id(node) in open_nodes:
            return -1
        elif id(node) not in known:
            open_nodes.add(id(node))
            stack.append((node, True))
            stack.extend((part, False) for part in parts)
    return known[id(root)]
