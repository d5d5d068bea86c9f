"""Errors of pydantic in plain words: path inside the document, message, repair.

pydantic speaks of classes and union branches (`tools.tuple[ToolDefinition, ...].0.timeout`); people wrote a document. So
each error's `loc` is walked along the data: what is not in the data is a branch of a union, and of several branches only
the one that fits the kind of the written value is reported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tavern_core.model.naming_rules import KEBAB_CASE, camel
from tavern_core.model.nearest import did_you_mean, known_instead
from tavern_core.model.path_problem import Path, PathProblem
from tavern_core.model.safe_printing import printed

_SCALAR_TAGS: Final[Mapping[str, type]] = {"str": str, "int": int, "float": float, "bool": bool}
_EXPECTED: Final[Mapping[str, str]] = {
    "string_type": "text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
MOST_EXPLAINED: Final = 200
"""The most problems of one document that are described; the first ones suffice to start with."""
_OLD_BOOLEANS: Final = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


_OTHER_NAMES: Final[Mapping[str, str]] = {
    "inputSchema": "parameters",
    "outputSchema": "output",
    "toolId": "id",
    "name": "id",
    "title": "displayName",
    "label": "displayName",
}
"""Keys by which other formats call the same thing."""
_IN_CONTEXT: Final = {
    "readOnly": "readOnly", "read_only": "readOnly", "idempotent": "idempotent", "destructive": "destructive",
    "requiresApproval": "requiresApproval", "requires_approval": "requiresApproval", "untrusted": "untrusted",
}  # fmt: skip
"""Keys of a tool that belong in its `securityContext`."""


def explain(
    error: ValidationError,
    data: Any,
    model: type[BaseModel],
    shapes: Mapping[str, str] | None = None,
    shown: Callable[[Path, Any], Any] = lambda _, value: value,
) -> list[PathProblem]:
    """Every problem of `error` once, in the order of the model, in words about `data`.

    Args:
        shapes: key → how it looks, for those that hold a mapping, or a list of them.
        shown: the value at a path as it may be quoted.
    """
    return [_shaped(refusal, shapes) if shapes else refusal for refusal in _explain(error, data, model, shown)]


def _explain(
    error: ValidationError, data: Any, model: type[BaseModel], shown: Callable[[Path, Any], Any]
) -> list[PathProblem]:
    groups: dict[Path, list[tuple[tuple[str, ...], ErrorDetails]]] = {}
    for details in error.errors(include_url=False)[:MOST_EXPLAINED]:
        path, tags = _walk(details, data)
        groups.setdefault(path, []).append((tags, details))
    refusals: list[PathProblem] = []
    for path, found in groups.items():
        value = shown(path, _at(data, path))
        refusals += [_refusal(path, details, path[-1], model) for _, details in found if _is_of_key(details)]
        found = [(tags, details) for tags, details in found if not _is_of_key(details)]
        if not any(tags for tags, _ in found):
            refusals += [_refusal(path, details, value, model) for _, details in found]
            continue
        fitting = [details for tags, details in found if not tags or _is_ours(details) or _fits(tags[-1], value)]
        if fitting:
            refusals += [_refusal(path, details, value, model) for details in fitting]
        elif not any(len(other) > len(path) and other[: len(path)] == path for other in groups):
            # No branch of the union takes this kind of value, and none was followed further down.
            expected = list(dict.fromkeys(_EXPECTED.get(details["type"], "something else") for _, details in found))
            refusals.append(PathProblem(path, f"must be {' or '.join(expected)}, got {got(value)}", ""))
    return refusals


def _shaped(refusal: PathProblem, shapes: Mapping[str, str]) -> PathProblem:
    """The refusal with the shape of its key as repair, if a mapping or list, or another form of it, was expected and no more is known."""
    path = refusal.path[:-1] if refusal.at_key else refusal.path
    names = [part for part in path if isinstance(part, str)]
    example = shapes.get(names[-1], "") if names else ""
    is_item = bool(names) and path[-1] != names[-1] and not example.partition(": ")[2].startswith("[{")
    if refusal.hint or not example:
        return refusal
    if not refusal.at_key and (is_item or not refusal.message.startswith(("must be a mapping", "must be a list"))):
        return refusal
    return replace(refusal, hint=f"write `{example}`")


def _walk(details: ErrorDetails, data: Any) -> tuple[Path, tuple[str, ...]]:
    """The part of `loc` that is in the document, and the union branches that are not."""
    path: list[str | int] = []
    tags: list[str] = []
    current = data
    last = len(details["loc"]) - 1
    for index, part in enumerate(details["loc"]):
        if _holds(current, part):
            current = current[part]
        elif index == last and details["type"] == "missing":
            current = None
        else:
            if not (part == "[key]" or (isinstance(current, str) and part == "name")):
                tags.append(str(part))
            continue
        path.append(part)
        tags.clear()
    return tuple(path), tuple(tags)


def _holds(value: Any, part: str | int) -> bool:
    if isinstance(value, Mapping):
        return part in value
    return isinstance(value, list | tuple) and isinstance(part, int) and part < len(value)


def _at(data: Any, path: Path) -> Any:
    current: Any = data
    for part in path:
        try:
            current = current[part]
        except (KeyError, IndexError, TypeError):
            return None
    return current


def _is_of_key(details: ErrorDetails) -> bool:
    """Whether the key of a mapping was refused, and not its value."""
    return details["loc"][-1:] == ("[key]",)


def _is_ours(details: ErrorDetails) -> bool:
    """Whether one of the model's own validators refused the value: it had the right type."""
    return details["type"] in ("refused", "value_error")


def _fits(tag: str, value: Any) -> bool:
    """True when the union branch that pydantic calls `tag` is the one for values like this."""
    if tag in _SCALAR_TAGS:
        return type(value) is _SCALAR_TAGS[tag]
    if tag.startswith(("tuple[", "list[")):
        return isinstance(value, list | tuple)
    return isinstance(value, Mapping)


def _refusal(path: Path, details: ErrorDetails, value: Any, model: type[BaseModel]) -> PathProblem:
    kind = details["type"]
    context: Mapping[str, Any] = details.get("ctx") or {}
    if kind == "missing":
        return PathProblem(path, f"the key {str(path[-1])!r} is missing", f"add `{path[-1]}: …`", is_missing=True)
    if kind == "extra_forbidden":
        key = str(path[-1]) if path else ""
        known = known_keys(model, path[:-1])  # of all forms that are allowed here: `key` may belong to another one
        hint = "" if key in known else known_instead(key, known)
        if (other_name := _OTHER_NAMES.get(key)) in known:
            hint = f"write {other_name}"
        if "securityContext" in known and (meant := _IN_CONTEXT.get(key)) is not None:
            hint = f"write `securityContext: {{{meant}: …}}`"
        return PathProblem(path, f"unknown key {key!r:.80}", hint, at_key=True)
    if kind in _EXPECTED:
        return PathProblem(path, f"must be {_EXPECTED[kind]}, got {got(value)}", _type_hint(kind, value))
    if kind == "literal_error":
        expected = [part.strip().strip("'") for part in str(context["expected"]).replace(" or ", ", ").split(", ")]
        hint = did_you_mean(str(value), expected)
        return PathProblem(path, f"{got(value)} is not one of {', '.join(expected)}", hint, allowed=tuple(expected))
    if kind == "refused":  # one of the model's own validators, which says how to repair it
        at = (*path, context["key"]) if context.get("key") else path
        return PathProblem(at, str(context["message"]), str(context["hint"]))
    if kind == "value_error":  # the same, without a repair
        return PathProblem(path, str(context["error"]), "")
    if kind == "string_pattern_mismatch" and context["pattern"] == KEBAB_CASE:
        what, sample = ("name of a slot", "memory") if path[:1] == ("slots",) else ("plugin name", "my-plugin")
        message = f"{got(value)} is not a {what}: use words of a-z and 0-9 joined by '-'"
        return PathProblem(path, message, f"write {kebab}" if (kebab := _kebab(value)) else f"for example {sample}")
    if kind == "string_pattern_mismatch" and re.match(context["pattern"], lowered := str(value)[:64].lower()):
        return PathProblem(path, f"{got(value)} must be in lower case", f"write {lowered}")
    return PathProblem(path, _bound(kind, context, value) or details["msg"], "")


def _kebab(value: Any) -> str:
    """The plugin name closest to `value`; empty if no character of it is valid."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", str(value)[:64])
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def _bound(kind: str, context: Mapping[str, Any], value: Any) -> str:
    match kind:
        case "string_too_short":
            return "must not be empty" if context["min_length"] == 1 else f"needs {context['min_length']} characters"
        case "string_too_long":
            return f"is longer than {context['max_length']} characters"
        case "string_pattern_mismatch":
            return f"{got(value)} does not fit the pattern {context['pattern']}"
        case "greater_than":
            return f"must be greater than {_bare(context['gt'])}, got {got(value)}"
        case "less_than_equal":
            return f"must be at most {_bare(context['le'])}, got {got(value)}"
        case "greater_than_equal":
            return f"must be at least {_bare(context['ge'])}, got {got(value)}"
        case _:
            return ""


def _bare(bound: float) -> str:
    """A bound as one writes it: ``31,536,000``, also where the field takes fractions."""
    return f"{bound:,}".removesuffix(".0")


def _type_hint(kind: str, value: Any) -> str:
    if kind == "string_type" and isinstance(value, int | float):
        return f'put it in quotes: "{str(value).lower()}"'
    if kind in ("bool_type", "int_type", "float_type") and isinstance(value, str) and _is_bare(value):
        return f"write it without quotes: {value}"
    if kind == "bool_type" and isinstance(value, str) and value.lower() in _OLD_BOOLEANS:
        return f"write {_OLD_BOOLEANS[value.lower()]}; {value} is text in YAML 1.2"
    if kind in ("tuple_type", "list_type") and isinstance(value, str):
        return f"write it as a list: [{json.dumps(value[:60], ensure_ascii=False)}]"
    return ""


def _is_bare(text: str) -> bool:
    """True for text that is a number or truth value but for its quotes."""
    return text in ("true", "false") or re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text, re.ASCII) is not None


def got(value: Any) -> str:
    """A written value in a few words; containers only by their kind."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case str():
            return repr(value) if len(value) <= 80 else repr(value[:77] + "…")
        case int() | float():
            return f"the number {printed(value):.40}"
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case _:
            return f"<{type(value).__name__}>"


def known_keys(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """The keys that may be at `path` of a document of type `model`."""
    candidates = [model]
    for part in path:
        if isinstance(part, int):
            continue
        fields = [f for c in candidates for name, f in c.model_fields.items() if part in (name, f.alias, camel(name))]
        candidates = [found for f in fields for found in _models(f.annotation)]
    return [f.alias or name for c in candidates for name, f in c.model_fields.items()]


def _models(annotation: Any) -> Iterable[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)
