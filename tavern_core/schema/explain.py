"""Why a value does not fit a schema, in words a person or a model can act on.

One format for both engines: jsonschema finds the places, this file describes them. Values marked secret
(`writeOnly`, `format: password`, `x-tavern: {secret: true}`, or a property name of a secret) are never shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from tavern_core.model import depths
from tavern_core.model.message_translation import EITHER, Row, joined, say
from tavern_core.model.nearest import did_you_mean, nearest
from tavern_core.model.safe_printing import listed
from tavern_core.schema.json_reader import WORDS, NotJson, read_json
from tavern_core.schema.problem import SchemaProblem, describe, json_type, pointer, printable
from tavern_core.schema.secret_names import is_secret_name, is_secret_schema
from tavern_core.schema.secret_scanning import redact_text

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

_MOST_NAMES = 12
_LONGEST_READ: Final = 100_000
"""Characters of a text that is read to explain why it is no value."""
_NUMBER: Final = re.compile(r"\s*[-+]?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?\s*")


_WORDS: Final[dict[str, Row]] = {
    "must": ("must be {expected}, got {got}", "应为 {expected}，实际为 {got}"),
    "must_be": ("must be {expected}", "应为 {expected}"),
    "must_be_out": ("must be left out", "不能给出"),
    "fits": ("a value that fits `{keyword}`", "符合 `{keyword}` 的值"),
    "remove": ("remove it", "去掉它"),
    "add": ("add {name}", "加上 {name}"),
    "required": ("is required", "必须给出"),
    "rename": ("rename {written!r} to {meant!r}", "把 {written!r} 改名为 {meant!r}"),
    "name_must": ("the name must be {expected}", "名称应为 {expected}"),
    "rename_it": ("rename it", "改名"),
    "allowed_name": ("an allowed name", "允许的名称"),
    "known": ("known are {names}", "可用的有 {names}"),
    "nothing_here": ("nothing may be given here", "这里不能有任何内容"),
    "unknown": ("unknown argument {name!r}", "没有参数 {name!r}"),
    "hidden": ("{kind} (not shown)", "{kind}（不显示）"),
    "array_of": ("array of {items}", "{items} 的 array"),
    "unquoted_number": ("write the number without quotes", "数不加引号"),
    "whole_number": ("write a whole number", "写整数"),
    "unquoted_boolean": ("write true or false without quotes", "写 true 或 false，不加引号"),
    "no_number": ("a boolean is not a number", "boolean 不是数"),
    "no_uri": (
        "a $uri is only for parameters that take an object; give the value itself",
        "$uri 只用于 object 参数；请给出值本身",
    ),
    "no_null": ("leave it out instead of null", "不要写 null，直接省略"),
    "into_list": ("put it into a list", "把它放进列表"),
    "blanks": ("remove the blanks around it", "去掉两边的空白"),
    "itself": ("send the {kind} itself, not its text", "给出 {kind} 本身，而不是它的文本"),
    "whenever": ("{names} whenever {name} is given", "给出 {name} 时也要有 {names}"),
    "given_with": ("given with {what}", "完整的：{what}"),
    "also": ("{one}; {other}", "{one}；{other}"),
    "at_least": ("at least {limit}", "至少 {limit}"),
    "at_most": ("at most {limit}", "至多 {limit}"),
    "greater": ("greater than {limit}", "大于 {limit}"),
    "less": ("less than {limit}", "小于 {limit}"),
    "multiple": ("a multiple of {limit}", "{limit} 的倍数"),
    "at_least_characters": ("at least {limit} characters long, it has {has}", "至少 {limit} 个字符（现有 {has} 个）"),
    "at_most_characters": ("at most {limit} characters long, it has {has}", "至多 {limit} 个字符（现有 {has} 个）"),
    "at_least_items": ("at least {limit} items long, it has {has}", "至少 {limit} 项（现有 {has} 项）"),
    "at_most_items": ("at most {limit} items long, it has {has}", "至多 {limit} 项（现有 {has} 项）"),
    "at_least_members": (
        "an object of at least {limit} members, it has {has}",
        "至少 {limit} 个成员的 object（现有 {has} 个）",
    ),
    "at_most_members": (
        "an object of at most {limit} members, it has {has}",
        "至多 {limit} 个成员的 object（现有 {has} 个）",
    ),
    "shorten": ("shorten it", "缩短它"),
    "pattern": ("text that matches the pattern {limit}", "符合模式 {limit} 的文本"),
    "unique": ("an array without repeated items", "没有重复项的 array"),
    "no_repetition": ("remove the repetition", "去掉重复项"),
    "contains": ("an array with a fitting item", "含有合适项的 array"),
    "something_else": ("something else", "其他值"),
    "alternative": ("one of the alternatives", "可选形式之一"),
    "one_alternative": ("exactly one of the alternatives", "恰好一种可选形式"),
    "too_many_fit": ("it fits more than one; be more specific", "它符合不止一种；请写得更明确"),
    "shorter": ("a shorter array", "更短的 array"),
    "left_out": ("left out", "省略"),
    "no_value": ("the schema allows no value at all", "这里不允许任何值"),
}
"""Every explanation, in English and in Chinese; see `model.language`."""


def explain(errors: Iterable[ValidationError], limit: int) -> list[SchemaProblem]:
    """The first `limit` problems of jsonschema's errors, in its order, without repetitions."""
    reported = dict.fromkeys(islice(_explain_all(errors, 0), limit))
    return list(reported)


def _instance(error: ValidationError) -> Any:
    return error.instance  # typed as perhaps unset, which no error here is


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


def _plain(error: ValidationError, keyword: str, limit: Any = None) -> SchemaProblem:
    limit = _limit(error) if limit is None else limit
    explainer = _EXPLAINERS.get(keyword)
    expected, hint = explainer(limit, _instance(error)) if explainer else (say(_WORDS["fits"], keyword=keyword), "")
    got = "" if keyword in _SIZED else _got(error)
    return SchemaProblem(
        pointer(error.absolute_path),
        say(_WORDS["must"], expected=expected, got=got) if got else say(_WORDS["must_be"], expected=expected),
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
        pointer(path),
        say(_WORDS["must_be_out"]),
        "nothing",
        json_type(_instance(error)),
        say(_WORDS["remove"]),
        "false",
    )


def _missing(error: ValidationError) -> SchemaProblem:
    needed = [name for name in _limit(error) if isinstance(name, str)]
    missing = [name for name in needed if name not in _instance(error)]
    # jsonschema reports one error per name, its message starts with the name's repr
    name = next((name for name in missing if error.message.startswith(repr(name))), missing[0] if missing else "")
    schema = error.schema if isinstance(error.schema, dict) else {}
    declared = schema.get("properties", {})
    expected = _type_words(declared.get(name)) if isinstance(declared, dict) else ""
    unknown = [key for key in _instance(error) if isinstance(key, str) and key not in declared]
    near = nearest(name, unknown, 1)
    wanted = f"{printable(name, 60)!r}" + (f" ({expected})" if expected else "")
    hint = _rename(near[0], name) if near else say(_WORDS["add"], name=wanted)
    return SchemaProblem(
        pointer([*error.absolute_path, name]), say(_WORDS["required"]), wanted, "nothing", hint, "required"
    )


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
    """The repair of an argument that is missing under one name and unknown under another: the same for both."""
    return say(_WORDS["rename"], written=printable(written, 60), meant=printable(meant, 60))


def _matches(pattern: str, name: str) -> bool:
    return re.search(pattern, name) is not None  # `prepare.to_explain` wrote the names out


def _bad_name(error: ValidationError) -> SchemaProblem:
    name = _instance(error)
    path = [*error.absolute_path, name]
    if error.validator in ("enum", "propertyNames"):
        known = _limit(error) if error.validator == "enum" else ()
        return _unknown(str(name), path, [each for each in known if isinstance(each, str)], "additionalProperties")
    explainer = _EXPLAINERS.get(str(error.validator))
    expected = explainer(_limit(error), name)[0] if explainer else say(_WORDS["allowed_name"])
    return SchemaProblem(
        pointer(path),
        say(_WORDS["name_must"], expected=expected),
        expected,
        describe(name),
        say(_WORDS["rename_it"]),
        "propertyNames",
    )


def _unknown(name: str, path: list[Any], declared: Iterable[str], keyword: str) -> SchemaProblem:
    names = list(declared)
    known = listed(names, _MOST_NAMES, lambda each: printable(each, 60))
    hint = did_you_mean(name, names) or (say(_WORDS["known"], names=known) if names else say(_WORDS["nothing_here"]))
    return SchemaProblem(
        pointer(path),
        say(_WORDS["unknown"], name=printable(name, 60)),
        f"one of {known}" if names else "no arguments",
        "",
        hint,
        keyword,
    )


def _best_branch(error: ValidationError, depth: int) -> Iterator[SchemaProblem]:
    """Explain the closest alternative; all of them if the type alone decides."""
    branches: dict[Any, list[ValidationError]] = {}
    for inner in error.context or ():
        branches.setdefault(inner.schema_path[0], []).append(inner)
    here = len(error.absolute_path)
    alternatives = [part for part in _limit(error) if isinstance(part, dict | bool)]
    if all(any(_is_type_error(inner, here) for inner in group) for group in branches.values()):
        words = list(dict.fromkeys(word for part in alternatives if (word := _type_words(part))))
        expected = joined(EITHER, words) or say(_WORDS["alternative"])
        got = _got(error)
        yield SchemaProblem(
            pointer(error.absolute_path),
            say(_WORDS["must"], expected=expected, got=got),
            expected,
            got,
            "",
            str(error.validator),
        )
        return
    if tags := _wrong_tags(list(branches.values()), here):
        choices = {repr(value): value for tag in tags for value in _choices(tag)}  # 1 and True are two
        yield _plain(tags[0], "enum", list(choices.values()))
        return
    best = min(branches.values(), key=lambda group: _distance(group, here))
    if depth >= depths.BRANCHES:
        yield _plain(error, str(error.validator))
    else:
        yield from _explain_all(best, depth + 1)


def _is_type_error(error: ValidationError, depth: int) -> bool:
    return len(error.absolute_path) == depth and error.validator in ("type", "const", "enum")


def _wrong_tags(branches: list[list[ValidationError]], depth: int) -> list[ValidationError]:
    """The errors of a property that has another value in each of the alternatives, and fits none; empty if there is no such one.

    Alternatives of which fewer such properties are wrong are meant: the others do not count.
    """
    found = [{tag.absolute_path[-1]: tag for tag in reversed(group) if _is_wrong_tag(tag, depth)} for group in branches]
    fewest = min(map(len, found))
    found = [tags for tags in found if len(tags) == fewest]
    name = next((name for name in reversed(found[0]) if all(name in tags for tags in found)), None)
    return [] if name is None else [tags[name] for tags in found]


def _is_wrong_tag(error: ValidationError, depth: int) -> bool:
    return len(error.absolute_path) == depth + 1 and error.validator in ("const", "enum")


def _choices(error: ValidationError) -> list[Any]:
    limit = _limit(error)
    return list(limit) if error.validator == "enum" else [limit]


def _distance(group: list[ValidationError], depth: int) -> tuple[bool, bool, int, int]:
    """The distance of a value from one alternative: wrong type, wrong discriminator, how shallow, how many errors."""
    wrong_type = any(len(error.absolute_path) == depth and error.validator == "type" for error in group)
    wrong_tag = any(_is_wrong_tag(error, depth) for error in group)
    deepest = max(len(error.absolute_path) for error in group)
    return wrong_type, wrong_tag, -deepest, len(group)


def _is_secret(error: ValidationError) -> bool:
    if isinstance(error.schema, Mapping) and is_secret_schema(error.schema):
        return True
    return any(isinstance(part, str) and is_secret_name(part) for part in error.absolute_path)


def _got(error: ValidationError) -> str:
    if _is_secret(error):
        return say(_WORDS["hidden"], kind=json_type(_instance(error)))
    text = describe(_instance(error))
    return text if (safe := redact_text(text)) == text else safe  # the first exists in both languages


def _size(value: object) -> str:
    if isinstance(value, str):
        return f"{len(value)} characters"
    return f"{len(value)}" if isinstance(value, list | dict) else describe(value)


def _type_words(schema: object) -> str:
    """The type that a schema requires, in words: ``integer``, ``array of string``, ``"a" or "b"``."""
    if not isinstance(schema, dict):
        return ""
    if "const" in schema:
        return describe(schema["const"])
    if isinstance(schema.get("enum"), list):
        return _one_of(schema["enum"])
    kind = schema.get("type")
    if isinstance(kind, list):
        return joined(EITHER, map(str, kind))
    if kind == "array" and (inner := _type_words(schema.get("items"))):
        return say(_WORDS["array_of"], items=inner)
    return kind if isinstance(kind, str) else ""


def _one_of(values: list[Any]) -> str:
    shown = [_literal(value) for value in values[:_MOST_NAMES]]
    return joined(EITHER, [*shown, "…"] if len(values) > len(shown) else shown)


def _literal(value: object) -> str:
    if isinstance(value, str):
        return f'"{printable(value, 60)}"'
    return describe(value).removeprefix(json_type(value)).strip() or json_type(value)


def _explain_type(limit: Any, value: Any) -> tuple[str, str]:
    names = [limit] if isinstance(limit, str) else list(limit)
    hint = ""
    if isinstance(value, str):
        hint = _hint_about_text(names, value)
    elif isinstance(value, bool) and {"integer", "number"} & set(names):
        hint = say(_WORDS["no_number"])
    elif isinstance(value, dict) and set(value) == {"$uri"}:
        hint = say(_WORDS["no_uri"])
    elif value is None:
        hint = say(_WORDS["no_null"])
    elif "array" in names and not isinstance(value, dict):
        hint = say(_WORDS["into_list"])
    return joined(EITHER, names), hint


def _hint_about_text(names: list[Any], text: str) -> str:
    """How to repair a text in the place of another type; where all values are written as text, it may be a value with a flaw."""
    if {"integer", "number"} & set(names) and _NUMBER.fullmatch(text):
        number = float(text)
        if number in (float("inf"), float("-inf")):
            return say(WORDS["number_too_large"])
        is_whole = "number" in names or number.is_integer()
        return say(_WORDS["unquoted_number" if is_whole else "whole_number"])
    if "boolean" in names:
        return say(_WORDS["unquoted_boolean"])
    if not (kind := next((name for name in names if name in ("object", "array")), "")):
        return ""
    if text.lstrip()[:1] in ("{", "[") and len(text) <= _LONGEST_READ:
        try:
            read_json(text.strip())
        except NotJson as error:
            return redact_text(str(error))
    return say(_WORDS["itself"], kind=kind)


def _explain_enum(limit: Any, value: Any) -> tuple[str, str]:
    hint = did_you_mean(value, [each for each in limit if isinstance(each, str)]) if isinstance(value, str) else ""
    if not hint and isinstance(value, str) and value.strip() in limit:
        hint = say(_WORDS["blanks"])
    return _one_of(limit) if limit else say(_WORDS["left_out"]), hint


def _bounds(row: str, hint: str = "") -> Callable[[Any, Any], tuple[str, str]]:
    return lambda limit, value: (say(_WORDS[row], limit=_literal(limit)), say(_WORDS[hint]) if hint else "")


def _sized(row: str, hint: str = "") -> Callable[[Any, Any], tuple[str, str]]:
    return lambda limit, value: (say(_WORDS[row], limit=limit, has=len(value)), say(_WORDS[hint]) if hint else "")


def _explain_dependent(limit: Any, value: Any) -> tuple[str, str]:
    lacking = {
        name: [each for each in needed if each not in value]
        for name, needed in limit.items()
        if isinstance(needed, list) and name in value
    }
    words = [say(_WORDS["whenever"], names=", ".join(names), name=name) for name, names in lacking.items() if names]
    return say(
        _WORDS["given_with"],
        what=joined(_WORDS["also"], words),
    ), ""


_SIZED = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}

_EXPLAINERS: dict[str, Callable[[Any, Any], tuple[str, str]]] = {
    "type": _explain_type,
    "enum": _explain_enum,
    "const": lambda limit, value: (_literal(limit), ""),
    "minimum": _bounds("at_least"),
    "maximum": _bounds("at_most"),
    "exclusiveMinimum": _bounds("greater"),
    "exclusiveMaximum": _bounds("less"),
    "multipleOf": _bounds("multiple"),
    "minLength": _sized("at_least_characters"),
    "maxLength": _sized("at_most_characters", "shorten"),
    "minItems": _sized("at_least_items"),
    "maxItems": _sized("at_most_items"),
    "minProperties": _sized("at_least_members"),
    "maxProperties": _sized("at_most_members"),
    "pattern": _bounds("pattern"),
    "uniqueItems": _bounds("unique", "no_repetition"),
    "contains": _bounds("contains"),
    "not": _bounds("something_else"),
    "anyOf": _bounds("alternative"),
    "oneOf": _bounds("one_alternative", "too_many_fit"),
    "items": _bounds("shorter"),
    "additionalItems": _bounds("shorter"),
    "unevaluatedItems": _bounds("shorter"),
    "dependentRequired": _explain_dependent,
    "dependencies": _explain_dependent,
    "None": lambda limit, value: (say(_WORDS["left_out"]), say(_WORDS["no_value"])),
}
