"""Why a value does not fit a JSON Schema, for the usual mistakes of models: types, enum, required, unknown names, bounds.

Not a full validator: the host passes one to `bind`. Bounded in depth.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tavern_core.model import depths
from tavern_core.model.language import say
from tavern_core.model.nearest import did_you_mean
from tavern_core.tam.alternatives import TYPES, Schema, expected, literals_of, resolve, same, shown, type_of, types_of
from tavern_core.tam.wording import WORDS

_MOST_STEPS: Final = 50_000
_BOUNDS: Final[tuple[tuple[str, Callable[[Any, Any], bool], str], ...]] = (
    ("minimum", operator.ge, "at least"),
    ("maximum", operator.le, "at most"),
    ("exclusiveMinimum", operator.gt, "more than"),
    ("exclusiveMaximum", operator.lt, "less than"),
)
_SIZES: Final[dict[type, tuple[str, str]]] = {
    str: ("Length", "characters"),
    list: ("Items", "items"),
    dict: ("Properties", "names"),
}


class _Budget:
    """How many schemas one check may still visit: references can multiply exponentially."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = _MOST_STEPS

    def spend(self) -> bool:
        self.left -= 1
        return self.left >= 0


def misfit(value: Any, schema: Any, root: Schema) -> str:
    """Why `value` does not fit `schema`, with a JSON pointer into the value; empty if it fits.

    Bounded: more than 100 levels or 50,000 schemas are left to the host's validator.
    """
    return _misfit(value, schema, root, "", 0, _Budget())


def _misfit(value: Any, schema: Any, root: Schema, path: str, depth: int, budget: _Budget) -> str:
    schema = resolve(schema, root)
    if schema is False:
        return _wrong(path, say(WORDS["nothing_allowed"]))
    if not isinstance(schema, Mapping) or depth > depths.WRAPPED or not budget.spend():
        return ""
    allowed = types_of(schema) if "type" in schema else frozenset(TYPES)
    if not _is_type(value, allowed):
        return _wrong(path, say(WORDS["expected"], expected=expected(schema, root), got=shown(value)))
    listed = literals_of(schema)
    if listed is not None and not any(same(value, literal) for literal in listed):
        return _wrong(path, say(WORDS["expected"], expected=expected({"enum": listed}, root), got=shown(value)))
    for part in _list(schema.get("allOf")):
        if wrong := _misfit(value, part, root, path, depth + 1, budget):
            return wrong
    for word in ("anyOf", "oneOf"):
        options = _list(schema.get(word))
        if options:
            wrongs = [_misfit(value, option, root, path, depth + 1, budget) for option in options]
            if all(wrongs):
                return (
                    wrongs[0]
                    if len(wrongs) == 1
                    else _wrong(path, say(WORDS["expected"], expected=expected(schema, root), got=shown(value)))
                )
    return _out_of_bounds(value, schema, path) or _misfit_inside(value, schema, root, path, depth, budget)


def _is_type(value: Any, allowed: frozenset[str]) -> bool:
    kind = type_of(value)
    if kind in allowed or (kind == "integer" and "number" in allowed):
        return True
    return kind == "number" and "integer" in allowed and float(value).is_integer()


def _wrong(path: str, what: str) -> str:
    return say(WORDS["at"], path=path, what=what) if path else what


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _out_of_bounds(value: Any, schema: Schema, path: str) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        for word, holds, says in _BOUNDS:
            bound = schema.get(word)
            if isinstance(bound, int | float) and not isinstance(bound, bool) and not holds(value, bound):
                return _wrong(path, say(WORDS["expected"], expected=say(WORDS[says], bound=bound), got=shown(value)))
    elif type(value) in _SIZES:
        word, unit = _SIZES[type(value)]
        least, most = schema.get("min" + word), schema.get("max" + word)
        if isinstance(least, int) and len(value) < least:
            return _wrong(
                path,
                say(
                    WORDS["expected"],
                    expected=say(WORDS["at least"], bound=say(WORDS[unit], bound=least)),
                    got=len(value),
                ),
            )
        if isinstance(most, int) and len(value) > most:
            return _wrong(
                path,
                say(
                    WORDS["expected"],
                    expected=say(WORDS["at most"], bound=say(WORDS[unit], bound=most)),
                    got=len(value),
                ),
            )
    return ""


def _misfit_inside(value: Any, schema: Schema, root: Schema, path: str, depth: int, budget: _Budget) -> str:
    if isinstance(value, list):
        first = _list(schema.get("prefixItems"))
        rest = schema.get("items", True)
        for index, item in enumerate(value):
            inner = first[index] if index < len(first) else rest
            if inner is not True and (wrong := _misfit(item, inner, root, f"{path}/{index}", depth + 1, budget)):
                return wrong
    elif isinstance(value, Mapping):
        properties = schema.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        for name in missing(schema, value):
            return _wrong(path, say(WORDS["name_missing"], name=name))
        for name, item in value.items():
            pointer = f"{path}/{name}"
            if name in properties:
                if wrong := _misfit(item, properties[name], root, pointer, depth + 1, budget):
                    return wrong
            elif "patternProperties" not in schema and (
                wrong := _misfit_extra(item, schema, root, pointer, depth, budget)
            ):
                return wrong
    return ""


def _misfit_extra(item: Any, schema: Schema, root: Schema, pointer: str, depth: int, budget: _Budget) -> str:
    extra = schema.get("additionalProperties", True)
    if extra is False:
        names = schema.get("properties")
        near = did_you_mean(pointer.rpartition("/")[2], filter(_is_text, names)) if isinstance(names, Mapping) else ""
        return _wrong(
            pointer,
            say(WORDS["because"], what=say(WORDS["no_such_name"]), why=near) if near else say(WORDS["no_such_name"]),
        )
    return _misfit(item, extra, root, pointer, depth + 1, budget) if extra is not True else ""


def _is_text(name: object) -> bool:
    return isinstance(name, str)


def missing(schema: Schema, given: Iterable[str]) -> list[str]:
    """The missing required names without a default that the host would fill in."""
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
