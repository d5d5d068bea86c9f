"""From the text of a value to the type its JSON Schema declares (TAM rule 11).

    integer number boolean object array null    parsed from the trimmed text as strict JSON (no NaN, no Infinity)
    enum, const                                 the trimmed text, as one of the declared values
    string, or nothing declared                 the text itself, verbatim

In a union the literals come first, then every type but string, then string: `5` is a number where a number is allowed,
`null` is nothing where nothing is allowed, and everything else stays text. `misfit` then checks the value against the
keywords a model gets wrong most (types inside, enum, required, unknown names, bounds, lengths). It is no full validator;
the host hands one to `bind`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn, TypeAlias

Schema: TypeAlias = Mapping[str, Any]

_DEEPEST: Final = 100
_LONGEST_NUMBER: Final = 1000
_SHOWN: Final = 60
_MOST_LEAVES: Final = 100
_WHOLE_NUMBER: Final = re.compile("-?(?:0|[1-9][0-9]{0,17})")
TYPES: Final = ("null", "boolean", "integer", "number", "object", "array", "string")


class NotJson(ValueError):
    """The text is not the strict JSON we accept."""


def _refuse_constant(name: str) -> NoReturn:
    raise NotJson(f"{name} is not allowed")


def _read_int(text: str) -> int:
    if len(text) > _LONGEST_NUMBER:
        raise NotJson(f"a number of {len(text)} digits is too long")
    return int(text)


def _read_float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise NotJson("the number is too large")
    return value


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1) if len(names) < 1000 else "a name"
        raise NotJson(f"{twice!r} appears twice in one object")
    return value


_DECODER = json.JSONDecoder(
    object_pairs_hook=_read_object, parse_int=_read_int, parse_float=_read_float, parse_constant=_refuse_constant
)


def read_json(text: str) -> Any:
    """Strict JSON: no NaN, no Infinity, no duplicate names, numbers a double can hold, at most 100 levels deep.

    Raises:
        NotJson: with the reason.
    """
    if text.count("[") + text.count("{") > _DEEPEST and _depth(text) > _DEEPEST:
        raise NotJson(f"nested deeper than {_DEEPEST} levels")
    try:
        return _DECODER.decode(text)
    except NotJson:
        raise
    except json.JSONDecodeError as error:
        raise NotJson(f"not valid JSON: {error.msg} at character {error.pos + 1}") from None
    except (ValueError, RecursionError) as error:
        raise NotJson(f"not valid JSON: {error}") from None


def _depth(text: str) -> int:
    """How deep the brackets outside strings are nested; stops counting when it is too deep."""
    depth = deepest = 0
    in_string = escaped = False
    for sign in text:
        if in_string:
            if escaped:
                escaped = False
            elif sign == "\\":
                escaped = True
            elif sign == '"':
                in_string = False
        elif sign == '"':
            in_string = True
        elif sign in "[{":
            depth += 1
            deepest = max(deepest, depth)
            if deepest > _DEEPEST:
                return deepest
        elif sign in "]}":
            depth -= 1
    return deepest


def resolve(schema: Any, root: Schema) -> Any:
    """Follow local `$ref`s (`#/…`); other references and endless ones mean anything."""
    for _ in range(_DEEPEST):
        if not isinstance(schema, Mapping) or not isinstance(reference := schema.get("$ref"), str):
            return schema
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        target = _pointed(reference, root)
        schema = {**target, **beside} if isinstance(target, Mapping) else target if not beside else beside
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
    """The alternatives of a schema: unions taken apart, `$ref` followed, `allOf` merged."""
    schema = resolve(schema, root)
    if not isinstance(schema, Mapping) or depth > 8:
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
    """The JSON types one alternative allows; none declared means a string, or what its keywords speak of."""
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
    """The values an alternative lists, or None where it lists none."""
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


def _is_type(value: Any, allowed: frozenset[str]) -> bool:
    kind = type_of(value)
    if kind in allowed or (kind == "integer" and "number" in allowed):
        return True
    return kind == "number" and "integer" in allowed and float(value).is_integer()


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
            word = f"one of {some}" + (", …" if len(listed) > 20 else "") if len(listed) != 1 else shown(listed[0])
        else:
            names = [name for name in TYPES if name in types_of(leaf)]
            word = " or ".join(names) or "nothing"
            if names == ["array"] and "items" in leaf:
                inner = resolve(leaf["items"], root)
                if isinstance(inner, Mapping) and isinstance(inner.get("type"), str):
                    word = f"array of {inner['type']}"
        if word not in words:
            words.append(word)
    return " or ".join(words)


class Reader:
    """Reads the text of one parameter. Made once per parameter, used for every call.

    `verbatim` is True where the text is the value and nothing can be wrong with it.
    """

    __slots__ = ("_kinds", "_literals", "_root", "_schema", "_string", "_whole", "expected", "verbatim")

    def __init__(self, schema: Any, root: Schema) -> None:
        self._schema, self._root = schema, root
        alternatives = leaves(schema, root)
        listed = [literals_of(leaf) for leaf in alternatives]
        self._literals = [value for values in listed if values is not None for value in values]
        free = [leaf for leaf, values in zip(alternatives, listed, strict=True) if values is None]
        self._kinds: frozenset[str] = frozenset().union(*(types_of(leaf) for leaf in free)) - {"string"}
        self._string = any("string" in types_of(leaf) for leaf in free)
        self.expected = expected(schema, root)
        bare = not self._literals and all(_is_bare(leaf) for leaf in free)
        self._whole = bare and not self._string and self._kinds <= {"integer", "number"}
        self.verbatim = bare and self._string and not self._kinds

    @property
    def takes_strings(self) -> bool:
        return self._string or any(isinstance(value, str) for value in self._literals)

    def read(self, text: str) -> tuple[Any, str]:
        """The value, and what is wrong with it (empty: nothing)."""
        if self.verbatim:
            return text, ""
        trimmed = text.strip()
        if self._whole and _WHOLE_NUMBER.fullmatch(trimmed):
            return int(trimmed), ""
        for literal in self._literals:
            if isinstance(literal, str) and literal == text:
                return literal, ""
        for literal in self._literals:
            if isinstance(literal, str) and literal.strip() == trimmed:
                return literal, ""
        why = ""
        if self._kinds or self._literals:
            try:
                value = self._from_json(trimmed)
            except NotJson as error:
                why = str(error)
            else:
                wrong = self.check(value) if not self._string or type_of(value) != "string" else "a string"
                if not wrong:
                    return value, ""
                why = wrong
        if self._string:
            return text, self.check(text)
        return None, why if why.startswith(("expected", "/")) else f"expected {self.expected}, got {shown(text)}" + (
            f" ({why})" if why and not why.startswith("got") else ""
        )

    def _from_json(self, trimmed: str) -> Any:
        value = read_json(trimmed)
        if isinstance(value, float) and "integer" in self._kinds and "number" not in self._kinds and value.is_integer():
            return int(value)
        return value

    def check(self, value: Any) -> str:
        """What is wrong with a value that is typed already."""
        return misfit(value, self._schema, self._root)


_ANNOTATIONS: Final = frozenset(
    ["type", "title", "description", "default", "defaultValue", "examples", "deprecated", "readOnly", "writeOnly", "format", "$comment"]
)


def _is_bare(leaf: Any) -> bool:
    return leaf is True or (isinstance(leaf, Mapping) and leaf.keys() <= _ANNOTATIONS)


def misfit(value: Any, schema: Any, root: Schema, path: str = "", depth: int = 0) -> str:
    """Why `value` does not fit `schema`, with a JSON pointer into the value; empty where it fits."""
    schema = resolve(schema, root)
    if schema is False:
        return _wrong(path, "nothing is allowed here")
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return ""
    allowed = types_of(schema) if "type" in schema else frozenset(TYPES)
    if not _is_type(value, allowed):
        return _wrong(path, f"expected {expected(schema, root)}, got {shown(value)}")
    listed = literals_of(schema)
    if listed is not None and not any(same(value, literal) for literal in listed):
        return _wrong(path, f"expected {expected({'enum': listed}, root)}, got {shown(value)}")
    for part in _list(schema.get("allOf")):
        if wrong := misfit(value, part, root, path, depth + 1):
            return wrong
    for word in ("anyOf", "oneOf"):
        options = _list(schema.get(word))
        if options:
            wrongs = [misfit(value, option, root, path, depth + 1) for option in options]
            if all(wrongs):
                return wrongs[0] if len(wrongs) == 1 else _wrong(path, f"expected {expected(schema, root)}, got {shown(value)}")
    return _out_of_bounds(value, schema, path) or _misfit_inside(value, schema, root, path, depth)


def _wrong(path: str, what: str) -> str:
    return f"{path}: {what}" if path else what


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


_BOUNDS: Final = (
    ("minimum", lambda value, bound: value >= bound, "at least"),
    ("maximum", lambda value, bound: value <= bound, "at most"),
    ("exclusiveMinimum", lambda value, bound: value > bound, "more than"),
    ("exclusiveMaximum", lambda value, bound: value < bound, "less than"),
)
_SIZES: Final = {str: ("Length", "characters"), list: ("Items", "items"), dict: ("Properties", "names")}


def _out_of_bounds(value: Any, schema: Schema, path: str) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        for word, holds, says in _BOUNDS:
            bound = schema.get(word)
            if isinstance(bound, int | float) and not isinstance(bound, bool) and not holds(value, bound):
                return _wrong(path, f"expected {says} {bound}, got {shown(value)}")
    elif type(value) in _SIZES:
        word, unit = _SIZES[type(value)]
        least, most = schema.get("min" + word), schema.get("max" + word)
        if isinstance(least, int) and len(value) < least:
            return _wrong(path, f"expected at least {least} {unit}, got {len(value)}")
        if isinstance(most, int) and len(value) > most:
            return _wrong(path, f"expected at most {most} {unit}, got {len(value)}")
    return ""


def _misfit_inside(value: Any, schema: Schema, root: Schema, path: str, depth: int) -> str:
    if isinstance(value, list):
        first = _list(schema.get("prefixItems"))
        rest = schema.get("items", True)
        for index, item in enumerate(value):
            inner = first[index] if index < len(first) else rest
            if inner is not True and (wrong := misfit(item, inner, root, f"{path}/{index}", depth + 1)):
                return wrong
    elif isinstance(value, Mapping):
        properties = schema.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        for name in missing(schema, value):
            return _wrong(path, f"{name!r} is missing")
        for name, item in value.items():
            pointer = f"{path}/{name}"
            if name in properties:
                if wrong := misfit(item, properties[name], root, pointer, depth + 1):
                    return wrong
            elif "patternProperties" not in schema and (wrong := _misfit_extra(item, schema, root, pointer, depth)):
                return wrong
    return ""


def _misfit_extra(item: Any, schema: Schema, root: Schema, pointer: str, depth: int) -> str:
    extra = schema.get("additionalProperties", True)
    if extra is False:
        return _wrong(pointer, "no such name is declared")
    return misfit(item, extra, root, pointer, depth + 1) if extra is not True else ""


def missing(schema: Schema, given: Iterable[str]) -> list[str]:
    """The required names that are not given and have no default the host would fill in."""
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    given = set(given)
    names: list[str] = []
    for name in _list(schema.get("required")):
        declared = properties.get(name) if isinstance(name, str) else None
        if isinstance(declared, Mapping) and ("default" in declared or "defaultValue" in declared):
            continue
        if isinstance(name, str) and name not in given:
            names.append(name)
    return names
