"""What a JSON Schema allows, as a list of alternatives: unions split, local references followed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from tavern_core.model import depths
from tavern_core.model.language import say
from tavern_core.tam.wording import WORDS, joined

Schema: TypeAlias = Mapping[str, Any]

_SHOWN: Final = 60
_MOST_LEAVES: Final = 100
TYPES: Final = ("null", "boolean", "integer", "number", "object", "array", "string")


def resolve(schema: Any, root: Schema) -> Any:
    """Follow local `$ref`s (`#/…`); other references and cyclic ones mean anything."""
    for _ in range(depths.WRAPPED):
        if not isinstance(schema, Mapping) or not isinstance(reference := schema.get("$ref"), str):
            return schema
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        target = _pointed(reference, root)
        schema = {**target, **beside} if isinstance(target, Mapping) else beside or target
    return {}


def _pointed(reference: str, root: Schema) -> Any:
    if not reference.startswith("#"):
        return {}
    target: Any = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping) and name in target:
            target = target[name]
        elif isinstance(target, list) and name.isdecimal() and int(name) < len(target):
            target = target[int(name)]
        else:
            return {}
    return target


def leaves(schema: Any, root: Schema, depth: int = 0) -> list[Any]:
    """The alternatives of a schema: unions split, `$ref` followed, `allOf` merged."""
    schema = resolve(schema, root)
    if not isinstance(schema, Mapping) or depth > depths.BRANCHES:
        return [schema]
    if isinstance(parts := schema.get("allOf"), list):
        merged: dict[str, Any] = {}
        for part in parts:
            part = resolve(part, root)
            merged.update(part if isinstance(part, Mapping) else {})
        merged.update({key: value for key, value in schema.items() if key != "allOf"})
        schema = merged
    found: list[Any] = []
    for word in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(word), list) and options:
            beside = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
            for option in options:
                for leaf in leaves(option, root, depth + 1):
                    found.append({**beside, **leaf} if isinstance(leaf, Mapping) else leaf)
                    if len(found) >= _MOST_LEAVES:
                        return found
    return found or [schema]


def types_of(leaf: Any) -> frozenset[str]:
    """The JSON types one alternative allows; none declared means a string, or the types of its keywords."""
    if not isinstance(leaf, Mapping):
        return frozenset(("string",)) if leaf is not False else frozenset()
    declared = leaf.get("type")
    if isinstance(declared, str):
        return frozenset((declared,))
    if isinstance(declared, list):
        return frozenset(name for name in declared if isinstance(name, str))
    if "properties" in leaf:
        return frozenset(("object", "string"))
    if "items" in leaf or "prefixItems" in leaf:
        return frozenset(("array", "string"))
    return frozenset(("string",))


def literals_of(leaf: Any) -> list[Any] | None:
    """The values an alternative lists, or None if it lists none."""
    if isinstance(leaf, Mapping):
        if "const" in leaf:
            return [leaf["const"]]
        if isinstance(listed := leaf.get("enum"), list):
            return listed
    return None


def type_of(value: Any) -> str:
    """The JSON type of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, Mapping) else "array"


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: `true` is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def shown(value: Any) -> str:
    """A value for a message, shortened."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return repr(text) if isinstance(value, str) else text


def expected(schema: Any, root: Schema) -> str:
    """What a schema expects, in words: ``integer``, ``one of 'a', 'b'``, ``array of integer or null``."""
    words: list[str] = []
    for leaf in leaves(schema, root):
        listed = literals_of(leaf)
        if listed is not None:
            some = ", ".join(shown(value) for value in listed[:20])
            word = (
                say(WORDS["one_of"], values=some + (", …" if len(listed) > 20 else ""))
                if len(listed) != 1
                else shown(listed[0])
            )
        else:
            names = [name for name in TYPES if name in types_of(leaf)]
            word = joined("either", names) or say(WORDS["nothing"])
            if names == ["array"] and "items" in leaf:
                inner = resolve(leaf["items"], root)
                if isinstance(inner, Mapping) and isinstance(inner.get("type"), str):
                    word = say(WORDS["array_of"], items=inner["type"])
        if word not in words:
            words.append(word)
    return joined("either", words)
