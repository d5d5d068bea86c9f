"""Why a value does not fit a schema, in words a person or a model can act on.

One format whatever engine refused: jsonschema finds the places, this file tells them. Values marked secret
(`writeOnly`, `format: password`, `x-tavern: {secret: true}`, or a telling property name) are never shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from tavern_core.model.nearest import did_you_mean, nearest
from tavern_core.schema.patterns import WRITTEN
from tavern_core.schema.problem import SchemaProblem, describe, json_type, pointer, printable
from tavern_core.schema.secret_text import redact_text
from tavern_core.schema.secrets import is_secret_name, is_secret_schema

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

_MOST_NAMES = 12
_DEEPEST_BRANCH = 8


def explain(errors: Iterable[ValidationError], limit: int) -> list[SchemaProblem]:
    """The first `limit` problems behind jsonschema's errors, in its order, without repetitions."""
    told = dict.fromkeys(islice(_explain_all(errors, 0), limit))
    return list(told)


def _instance(error: ValidationError) -> Any:
    return error.instance


def _limit(error: ValidationError) -> Any:
    return error.validator_value


def _explain_all(errors: Iterable[ValidationError], depth: int) -> Iterator[SchemaProblem]:
    for error in errors:
        yield from _explain(error, depth)


def _explain(error: ValidationError, depth: int) -> Iterator[SchemaProblem]:
    keyword = str(error.validator)
    steps = list(error.absolute_schema_path)
    if keyword == "not" and _limit(error) == {}:
        yield _forbidden(error)
    elif "propertyNames" in steps[-2:]:
        yield _bad_name(error)
    elif keyword in ("additionalProperties", "unevaluatedProperties") and isinstance(_instance(error), dict):
        yield from _unknown_names(error)
    elif keyword in ("anyOf", "oneOf") and error.context:
        yield from _best_branch(error, depth)
    elif keyword == "required":
        yield _missing(error)
    else:
        yield _plain(error, keyword)


def _plain(error: ValidationError, keyword: str) -> SchemaProblem:
    limit = _limit(error)
    if keyword == "pattern" and isinstance(error.schema, dict):
        limit = error.schema.get(WRITTEN, limit)
    tell = _TELL.get(keyword)
    expected, hint = tell(limit, _instance(error)) if tell else (f"a value that fits `{keyword}`", "")
    got = "" if keyword in _SIZED else _got(error)
    return SchemaProblem(
        pointer(error.absolute_path),
        f"must be {expected}" + (f", got {got}" if got else ""),
        expected,
        got or _size(_instance(error)),
        hint if not _is_secret(error) else "",
        keyword,
    )


def _forbidden(error: ValidationError) -> SchemaProblem:
    """The schema `false`: nothing fits."""
    path = [*error.absolute_path]
    if "propertyNames" in list(error.absolute_schema_path)[-2:]:
        path.append(_instance(error))
    return SchemaProblem(
        pointer(path), "must be left out", "nothing", json_type(_instance(error)), "remove it", "false"
    )


def _missing(error: ValidationError) -> SchemaProblem:
    needed = [name for name in _limit(error) if isinstance(name, str)]
    missing = [name for name in needed if name not in _instance(error)]
    # jsonschema reports one error per name, its message begins with the name's repr
    name = next((name for name in missing if error.message.startswith(repr(name))), missing[0] if missing else "")
    schema = error.schema if isinstance(error.schema, dict) else {}
    declared = schema.get("properties", {})
    expected = _type_words(declared.get(name)) if isinstance(declared, dict) else ""
    unknown = [key for key in _instance(error) if isinstance(key, str) and key not in declared]
    near = nearest(name, unknown, 1)
    wanted = f"{printable(name, 60)!r}" + (f" ({expected})" if expected else "")
    hint = _rename(near[0], name) if near else f"add {wanted}"
    return SchemaProblem(pointer([*error.absolute_path, name]), "is required", wanted, "nothing", hint, "required")


def _unknown_names(error: ValidationError) -> Iterator[SchemaProblem]:
    schema = error.schema if isinstance(error.schema, dict) else {}
    declared = schema.get("properties", {})
    for name in _instance(error):
        if name in declared or (error.validator == "unevaluatedProperties" and repr(name) not in error.message):
            continue
        if any(_matches(pattern, name) for pattern in schema.get("patternProperties", ())):
            continue
        problem = _unknown(name, [*error.absolute_path, name], declared, str(error.validator))
        required = schema.get("required")
        lacking = [key for key in required if key not in _instance(error)] if isinstance(required, list) else []
        near = nearest(name, declared, 1) if isinstance(name, str) else []
        yield replace(problem, hint=_rename(name, near[0])) if near and near[0] in lacking else problem


def _rename(written: str, meant: str) -> str:
    """The repair of an argument that is missing under one name and unknown under another: said alike of both."""
    return f"rename {printable(written, 60)!r} to {printable(meant, 60)!r}"


def _matches(pattern: str, name: str) -> bool:
    import re

    return re.search(pattern, name) is not None


def _bad_name(error: ValidationError) -> SchemaProblem:
    name = _instance(error)
    path = [*error.absolute_path, name]
    if error.validator in ("enum", "propertyNames"):
        known = _limit(error) if error.validator == "enum" else ()
        return _unknown(str(name), path, [each for each in known if isinstance(each, str)], "additionalProperties")
    tell = _TELL.get(str(error.validator))
    expected = tell(_limit(error), name)[0] if tell else "an allowed name"
    return SchemaProblem(
        pointer(path), f"the name must be {expected}", expected, describe(name), "rename it", "propertyNames"
    )


def _unknown(name: str, path: list[Any], declared: Iterable[str], keyword: str) -> SchemaProblem:
    names = list(declared)
    known = ", ".join(printable(each, 60) for each in names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")
    hint = did_you_mean(name, names) or (f"known are {known}" if names else "nothing may be given here")
    return SchemaProblem(
        pointer(path),
        f"unknown argument {printable(name, 60)!r}",
        f"one of {known}" if names else "no arguments",
        "",
        hint,
        keyword,
    )


def _best_branch(error: ValidationError, depth: int) -> Iterator[SchemaProblem]:
    """Explain the alternative that came closest; all of them when the type alone decides."""
    branches: dict[Any, list[ValidationError]] = {}
    for inner in error.context or ():
        branches.setdefault(inner.schema_path[0], []).append(inner)
    here = len(error.absolute_path)
    alternatives = [part for part in _limit(error) if isinstance(part, dict | bool)]
    if all(any(_is_type_error(inner, here) for inner in group) for group in branches.values()):
        words = list(dict.fromkeys(word for part in alternatives if (word := _type_words(part))))
        expected = " or ".join(words) or "one of the alternatives"
        got = _got(error)
        yield SchemaProblem(
            pointer(error.absolute_path), f"must be {expected}, got {got}", expected, got, "", str(error.validator)
        )
        return
    best = min(branches.values(), key=lambda group: _distance(group, here))
    if depth >= _DEEPEST_BRANCH:
        yield _plain(error, str(error.validator))
    else:
        yield from _explain_all(best, depth + 1)


def _is_type_error(error: ValidationError, depth: int) -> bool:
    return len(error.absolute_path) == depth and error.validator in ("type", "const", "enum")


def _distance(group: list[ValidationError], depth: int) -> tuple[bool, bool, int, int]:
    """How far a value is from one alternative: wrong type, wrong discriminator, how shallow, how many errors."""
    wrong_type = any(len(error.absolute_path) == depth and error.validator == "type" for error in group)
    wrong_tag = any(len(error.absolute_path) == depth + 1 and error.validator in ("const", "enum") for error in group)
    deepest = max(len(error.absolute_path) for error in group)
    return wrong_type, wrong_tag, -deepest, len(group)


def _is_secret(error: ValidationError) -> bool:
    if isinstance(error.schema, Mapping) and is_secret_schema(error.schema):
        return True
    return any(isinstance(part, str) and is_secret_name(part) for part in error.absolute_path)


def _got(error: ValidationError) -> str:
    if _is_secret(error):
        return f"{json_type(_instance(error))} (not shown)"
    return redact_text(describe(_instance(error)))


def _size(value: object) -> str:
    if isinstance(value, str):
        return f"{len(value)} characters"
    return f"{len(value)}" if isinstance(value, list | dict) else describe(value)


def _type_words(schema: object) -> str:
    """The type a schema asks for, in words: ``integer``, ``array of string``, ``"a" or "b"``."""
    if not isinstance(schema, dict):
        return ""
    if "const" in schema:
        return describe(schema["const"])
    if isinstance(schema.get("enum"), list):
        return _one_of(schema["enum"])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " or ".join(str(each) for each in kind)
    if kind == "array" and (inner := _type_words(schema.get("items"))):
        return f"array of {inner}"
    return kind if isinstance(kind, str) else ""


def _one_of(values: list[Any]) -> str:
    shown = [_literal(value) for value in values[:_MOST_NAMES]]
    return " or ".join(shown) + (" or …" if len(values) > len(shown) else "")


def _literal(value: object) -> str:
    if isinstance(value, str):
        return f'"{printable(value, 60)}"'
    return describe(value).removeprefix(json_type(value)).strip() or json_type(value)


def _tell_type(limit: Any, value: Any) -> tuple[str, str]:
    names = [limit] if isinstance(limit, str) else list(limit)
    hint = ""
    if isinstance(value, str) and {"integer", "number"} & set(names):
        hint = "write the number without quotes"
    elif isinstance(value, str) and "boolean" in names:
        hint = "write true or false without quotes"
    elif isinstance(value, str) and {"object", "array"} & set(names):
        hint = f"send the {names[0]} itself, not its text"
    elif isinstance(value, bool) and {"integer", "number"} & set(names):
        hint = "a boolean is not a number"
    elif isinstance(value, dict) and set(value) == {"$uri"}:
        hint = "a $uri is only for parameters that take an object; give the value itself"
    elif value is None:
        hint = "leave it out instead of null"
    elif "array" in names and not isinstance(value, dict):
        hint = "put it into a list"
    return " or ".join(names), hint


def _tell_enum(limit: Any, value: Any) -> tuple[str, str]:
    hint = did_you_mean(value, [each for each in limit if isinstance(each, str)]) if isinstance(value, str) else ""
    if not hint and isinstance(value, str) and value.strip() in limit:
        hint = "remove the blanks around it"
    return _one_of(limit), hint


def _bounds(words: str, hint: str = "") -> Callable[[Any, Any], tuple[str, str]]:
    return lambda limit, value: (words.format(_literal(limit)), hint)


def _tell_dependent(limit: Any, value: Any) -> tuple[str, str]:
    lacking = {
        name: [each for each in needed if each not in value]
        for name, needed in limit.items()
        if isinstance(needed, list) and name in value
    }
    words = [f"{', '.join(names)} whenever {name} is given" for name, names in lacking.items() if names]
    return "given with " + "; ".join(words), ""


_SIZED = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}

_TELL: dict[str, Callable[[Any, Any], tuple[str, str]]] = {
    "type": _tell_type,
    "enum": _tell_enum,
    "const": lambda limit, value: (_literal(limit), ""),
    "minimum": _bounds("at least {}"),
    "maximum": _bounds("at most {}"),
    "exclusiveMinimum": _bounds("greater than {}"),
    "exclusiveMaximum": _bounds("less than {}"),
    "multipleOf": _bounds("a multiple of {}"),
    "minLength": lambda limit, value: (f"at least {limit} characters long, it has {len(value)}", ""),
    "maxLength": lambda limit, value: (f"at most {limit} characters long, it has {len(value)}", "shorten it"),
    "minItems": lambda limit, value: (f"at least {limit} items long, it has {len(value)}", ""),
    "maxItems": lambda limit, value: (f"at most {limit} items long, it has {len(value)}", ""),
    "minProperties": lambda limit, value: (f"an object of at least {limit} members, it has {len(value)}", ""),
    "maxProperties": lambda limit, value: (f"an object of at most {limit} members, it has {len(value)}", ""),
    "pattern": _bounds("text that matches the pattern {}"),
    "uniqueItems": _bounds("an array without repeated items", "remove the repetition"),
    "contains": _bounds("an array with a fitting item"),
    "not": _bounds("something else"),
    "anyOf": _bounds("one of the alternatives"),
    "oneOf": _bounds("exactly one of the alternatives", "it fits more than one; be more specific"),
    "items": _bounds("a shorter array"),
    "additionalItems": _bounds("a shorter array"),
    "unevaluatedItems": _bounds("a shorter array"),
    "dependentRequired": _tell_dependent,
    "dependencies": _tell_dependent,
    "None": lambda limit, value: ("left out", "the schema allows no value at all"),
}
