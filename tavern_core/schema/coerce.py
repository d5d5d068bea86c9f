"""From text to the declared type, for inputs where everything is text: the command line's `key=value`, form fields.

    enum, const                                 the trimmed text, as one of the declared values
    integer number boolean object array null    the trimmed text, as strict JSON
    string, or no type declared                 the text itself, verbatim

In a union the listed values come first, then every type but string, then string. The API, HTTP bodies and MCP never
use this: JSON has types, and a tool that wants a number refuses a string there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from tavern_core.schema.json_reader import NotJson, read_json
from tavern_core.schema.problem import SchemaProblem, json_type, pointer, printable
from tavern_core.schema.secret_forms import MASK
from tavern_core.schema.secret_text import redact_text
from tavern_core.schema.secrets import is_secret_name
from tavern_core.schema.tree import Refs

_MOST_ALTERNATIVES = 200
_WORDS = ("null", "boolean", "integer", "number", "object", "array")


def coerce_text(
    schema: Mapping[str, Any] | bool, given: Mapping[str, str]
) -> tuple[dict[str, Any], list[SchemaProblem]]:
    """Give each text the type its parameter declares.

    Args:
        schema: the tool's parameters.
        given: parameter name -> text; undeclared names keep their text, for the validator to check.

    Returns:
        the values, and a problem for each text that fits no declared type (without its value).
    """
    values: dict[str, Any] = {}
    problems: list[SchemaProblem] = []
    root = dict(schema) if isinstance(schema, Mapping) else {}
    refs = Refs(root)
    for name, text in given.items():
        declared = list(_declared(root, name, refs))
        alternatives = [leaf for part in declared for leaf in _alternatives(part, refs)]
        value, problem = _read(text, alternatives[:_MOST_ALTERNATIVES], pointer((name,)))
        if problem is None:
            values[name] = value
        else:
            problems.append(problem)
    return values, problems


def _declared(root: dict[str, Any], name: str, refs: Refs) -> Iterator[dict[str, Any]]:
    """The schemas of one parameter, also inside `allOf`, `anyOf`, `oneOf` and `$ref` at the top."""
    stack: list[Any] = [root]
    seen: set[int] = set()
    while stack:
        node = stack.pop(0)
        if not isinstance(node, dict) or id(node) in seen:
            continue
        seen.add(id(node))
        held = node.get("properties")
        if isinstance(held, dict) and isinstance(held.get(name), dict):
            yield held[name]
        stack.append(refs.resolve(node))
        for keyword in ("allOf", "anyOf", "oneOf"):
            stack.extend(node[keyword] if isinstance(node.get(keyword), list) else ())


def _alternatives(schema: dict[str, Any], refs: Refs) -> Iterator[dict[str, Any]]:
    """A schema with its unions and references split: each part with a type or a list of values."""
    stack: list[Any] = [schema]
    seen: set[int] = set()
    while stack:
        node = stack.pop(0)
        if not isinstance(node, dict) or id(node) in seen:
            continue
        seen.add(id(node))
        if node.keys() & {"type", "enum", "const"}:
            yield node
        stack.append(refs.resolve(node))
        for keyword in ("allOf", "anyOf", "oneOf"):
            stack.extend(node[keyword] if isinstance(node.get(keyword), list) else ())


def _read(text: str, alternatives: list[dict[str, Any]], where: str) -> tuple[Any, SchemaProblem | None]:
    listed = [value for leaf in alternatives for value in _listed(leaf)]
    free = [leaf for leaf in alternatives if not _listed(leaf)]
    trimmed = text.strip()
    for value in listed:
        if value == trimmed and isinstance(value, str):
            return value, None
    kinds = {kind for leaf in free for kind in _types(leaf)}
    wanted = kinds | {json_type(value) for value in listed}
    if wanted - {"string"}:
        with suppress(NotJson):
            parsed = read_json(trimmed)
            for value in listed:
                if type(value) is type(parsed) and value == parsed:
                    return value, None
            if _fits(parsed, kinds):
                return parsed, None
    if "string" in kinds or not wanted:
        return text, None
    return None, _misfit(text, listed, kinds, where)


def _listed(leaf: dict[str, Any]) -> list[Any]:
    if "const" in leaf:
        return [leaf["const"]]
    return leaf["enum"] if isinstance(leaf.get("enum"), list) else []


def _types(leaf: dict[str, Any]) -> list[str]:
    kind = leaf.get("type")
    return (
        [kind]
        if isinstance(kind, str)
        else [each for each in kind if isinstance(each, str)]
        if isinstance(kind, list)
        else []
    )


def _fits(value: Any, kinds: set[str]) -> bool:
    kind = json_type(value)
    if kind == "string":
        return False  # quoted text is text with quotes
    if kind == "integer":
        return bool(kinds & {"integer", "number"})
    return kind in kinds or (kind == "number" and "integer" in kinds and float(value).is_integer())


def _misfit(text: str, listed: list[Any], kinds: set[str], where: str) -> SchemaProblem:
    words = [kind for kind in _WORDS if kind in kinds]
    words += [f'"{printable(value, 40)}"' if isinstance(value, str) else str(value) for value in listed[:12]]
    expected = " or ".join(words)
    shown = MASK if is_secret_name(where) else f'"{redact_text(printable(text, 60))}"'
    hint = {"boolean": "write true or false", "object": 'write JSON: {"key": value}', "array": "write JSON: [1, 2]"}
    return SchemaProblem(where, f"must be {expected}, got {shown}", expected, shown, hint.get(words[0], ""), "type")
