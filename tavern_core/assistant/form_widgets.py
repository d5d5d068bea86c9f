"""Form layouts: how an editor shows the inputs of a tool or workflow, and its results.

    {"title", "description", "submit",
     "groups":  {"main": {"title", "order", "collapsed"}},
     "fields":  {"text": {"group", "order", "widget", "label", "help", "placeholder"}},
     "outputs": {"result": {"order", "widget", "label"}}}

Everything is keyed by name, so that a JSON Patch shifts nothing. `proposed_layout` makes a layout by rule; `mismatches` checks one
against the schema; `panel` lets a model change one through the same cycle of patches as a workflow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tavern_core.assistant.model_answers import ParsedAnswer
from tavern_core.assistant.model_requests import ModelRequests
from tavern_core.assistant.prompt import layout_messages, prompt_tokens
from tavern_core.assistant.proposal import Panel
from tavern_core.assistant.repair_cycle import PatchVerdict, negotiate
from tavern_core.errors import UsageError
from tavern_core.graph.json_patch import apply_patch
from tavern_core.graph.patch_paths import UNSAFE_KEY
from tavern_core.graph.patch_problems import PatchProblem, PatchRefused
from tavern_core.model.json_pointer import exact_pointer
from tavern_core.model.message_translation import Language
from tavern_core.model.nearest import did_you_mean, known_instead, nearest
from tavern_core.model.tool import ToolSpec
from tavern_core.schema.secret_names import is_secret_schema

TEXT_WIDGETS: Final = ("text", "textarea", "markdown", "code", "url", "file", "color", "date", "datetime", "password")
OUTPUT_WIDGETS: Final = ("text", "markdown", "code", "json", "table", "image", "audio", "video", "number", "hidden")
_WIDGETS: Final[Mapping[str, tuple[str, ...]]] = {
    "string": TEXT_WIDGETS,
    "integer": ("number", "slider"),
    "number": ("number", "slider"),
    "boolean": ("switch", "checkbox"),
    "array": ("list", "tags", "files", "json"),
    "object": ("json",),
}
_CHOICES: Final = ("select", "radio")
_KEYS: Final[Mapping[str, Mapping[str, type]]] = {
    "groups": {"title": str, "order": int, "collapsed": bool},
    "fields": {"group": str, "order": int, "widget": str, "label": str, "help": str, "placeholder": str},
    "outputs": {"order": int, "widget": str, "label": str},
}
_TEXTS: Final = ("title", "description", "submit")
_FEW_CHOICES: Final = 3
_MANY_FIELDS: Final = 4
"""More optional fields than this are collapsed."""
_LONG_TEXT: Final = re.compile(
    r"(text|prompt|content|body|message|description|template|正文|文本|内容|提示)", re.IGNORECASE
)
_FILE: Final = re.compile(r"(^|_)(file|path|folder)($|_)|文件|路径", re.IGNORECASE)
_WORD: Final = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])|[^\W_a-zA-Z0-9]+")
_MAIN: Final = "main"
_MORE: Final = "more"


def proposed_layout(
    title: str, description: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> dict[str, Any]:
    """A layout by rule: required fields first, the others in a group of their own, a widget for each type.

    Args:
        outputs: output → its schema.
    """
    properties = properties_of(inputs)
    required = [name for name in properties if name in (inputs.get("required") or ())]
    optional = [name for name in properties if name not in required]
    split = bool(required and optional)
    groups = {_MAIN: {"title": "", "order": 1, "collapsed": False}}
    if split:
        groups[_MORE] = {"title": "Options", "order": 2, "collapsed": len(optional) > _MANY_FIELDS}
    fields = {}
    for order, name in enumerate((*required, *optional), 1):
        group = _MORE if split and name in optional else _MAIN
        fields[name] = {"group": group, "order": order, **_field(name, properties[name])}
    shown = {
        name: {"order": order, "widget": _output_widget(schema), "label": _label(name, schema)}
        for order, (name, schema) in enumerate(outputs.items(), 1)
    }
    return {
        "title": title, "description": description, "submit": "Run", "groups": groups, "fields": fields, "outputs": shown,
    }  # fmt: skip


def mismatches(layout: Any, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> list[PatchProblem]:
    """Everything in a layout that does not fit the schema."""
    if not isinstance(layout, Mapping):
        return [_wrong([], "a layout is an object", "keep title, groups, fields and outputs")]
    return [*_shape(layout), *_fields(layout, inputs), *_outputs(layout, outputs)]


def widgets_for(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The widgets that can edit a value of this schema."""
    if schema.get("enum"):
        return _CHOICES
    if is_secret_schema(schema):
        return ("password",)
    kind = _kind(schema)
    if kind == "array" and isinstance(schema.get("items"), Mapping) and schema["items"].get("enum"):
        return ("multiselect", "json")
    found = _WIDGETS.get(kind, ("json", "text"))
    has_bounds = "minimum" in schema and "maximum" in schema
    return found if has_bounds or "slider" not in found else tuple(widget for widget in found if widget != "slider")


def properties_of(inputs: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Input → its schema."""
    properties = inputs.get("properties")
    return {name: _single(each) for name, each in properties.items()} if isinstance(properties, Mapping) else {}


def _single(schema: Any) -> Mapping[str, Any]:
    """A schema without the null of an optional value."""
    if not isinstance(schema, Mapping):
        return {}
    for key in ("anyOf", "oneOf"):
        kinds = [each for each in schema.get(key) or () if isinstance(each, Mapping) and each.get("type") != "null"]
        if len(kinds) == 1:
            return {**{name: value for name, value in schema.items() if name != key}, **kinds[0]}
    return schema


def _kind(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    names = [name for name in kind if name != "null"] if isinstance(kind, list) else [kind]
    return str(names[0]) if len(names) == 1 else ""


def _field(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    found = {"widget": _widget(name, schema), "label": _label(name, schema)}
    help_ = str(schema.get("description") or "")
    return found | ({"help": help_} if help_ and help_ != found["label"] else {})


def _widget(name: str, schema: Mapping[str, Any]) -> str:
    allowed = widgets_for(schema)
    choices = schema.get("enum")
    if choices:
        return "radio" if len(choices) <= _FEW_CHOICES else "select"
    if allowed is TEXT_WIDGETS:
        if schema.get("format") in ("uri", "url"):
            return "url"
        if schema.get("format") in ("date", "date-time"):
            return "date" if schema["format"] == "date" else "datetime"
        return "textarea" if _LONG_TEXT.search(name) else "file" if _FILE.search(name) else "text"
    if _kind(schema) == "array" and "list" in allowed:
        items = schema.get("items")
        return "tags" if isinstance(items, Mapping) and items.get("type") == "string" else "json"
    return "slider" if "slider" in allowed else allowed[0]


def _output_widget(schema: Mapping[str, Any]) -> str:
    kind = _kind(schema)
    return {"string": "text", "integer": "number", "number": "number", "boolean": "text"}.get(kind, "json")


def _label(name: str, schema: Mapping[str, Any]) -> str:
    """The title, else the name in words.

    >>> _label("maxFrame_rate", {})
    'Max frame rate'
    """
    title = schema.get("title")
    if isinstance(title, str) and title.strip():
        return title.strip()
    words = " ".join(word if word.isupper() and len(word) > 1 else word.lower() for word in _WORD.findall(name)) or name
    return words[:1].upper() + words[1:]


def _shape(layout: Mapping[str, Any]) -> Iterator[PatchProblem]:
    for key, value in layout.items():
        if key in _TEXTS:
            if not isinstance(value, str):
                yield _wrong([key], f"{key} is text", "write a text")
        elif key not in _KEYS:
            yield _wrong([key], f"a layout has no key {key!r:.80}", known_instead(key, (*_TEXTS, *_KEYS)))
        elif not isinstance(value, Mapping):
            yield _wrong([key], f"{key} is an object: name → settings", "key them by name")
        else:
            for name, entry in value.items():
                yield from _entry(key, name, entry)


def _entry(section: str, name: str, entry: Any) -> Iterator[PatchProblem]:
    known = _KEYS[section]
    if name == UNSAFE_KEY:
        yield _wrong([section, name], f"{name!r} is not a name", "choose another name")
    if not isinstance(entry, Mapping):
        yield _wrong([section, name], f"{name!r:.80} in {section} is an object", f"with the keys {', '.join(known)}")
        return
    for key, value in entry.items():
        if key not in known:
            yield _wrong(
                [section, name, key], f"there is no key {key!r:.80} in {section}", known_instead(key, list(known))
            )
        elif not isinstance(value, known[key]) or (known[key] is int and isinstance(value, bool)):
            expected = {str: "text", int: "a whole number", bool: "true or false"}[known[key]]
            yield _wrong([section, name, key], f"{key} of {name!r:.80} is {expected}", f"write {expected}")


def _fields(layout: Mapping[str, Any], inputs: Mapping[str, Any]) -> Iterator[PatchProblem]:
    properties, fields = properties_of(inputs), _section(layout, "fields")
    groups = _section(layout, "groups")
    for name in inputs.get("required") or ():
        if name not in fields:
            path = json.dumps(exact_pointer(["fields", name]), ensure_ascii=False)
            fix = f'add {{"op": "add", "path": {path}, "value": {{"group": ..., "order": ..., "widget": ...}}}}'
            yield _wrong(["fields", name], f"the required input {name!r} has no field", fix)
    for name, field in fields.items():
        if name not in properties:
            yield _wrong(
                ["fields", name], f"there is no input {name!r:.80}", _one_of(name, properties), tuple(properties)
            )
            continue
        if not isinstance(field, Mapping):
            continue
        yield from _choice(["fields", name, "widget"], field.get("widget"), widgets_for(properties[name]), "widget")
        yield from _choice(["fields", name, "group"], field.get("group"), tuple(groups), "group")


def _outputs(layout: Mapping[str, Any], outputs: Mapping[str, Any]) -> Iterator[PatchProblem]:
    for name, shown in _section(layout, "outputs").items():
        if name not in outputs:
            yield _wrong(["outputs", name], f"there is no output {name!r:.80}", _one_of(name, outputs), tuple(outputs))
        elif isinstance(shown, Mapping):
            yield from _choice(["outputs", name, "widget"], shown.get("widget"), OUTPUT_WIDGETS, "widget")


def _choice(place: Sequence[str], value: Any, allowed: tuple[str, ...], what: str) -> Iterator[PatchProblem]:
    if value not in allowed:
        near = tuple(nearest(value, allowed)) if isinstance(value, str) else ()
        text = f"{value!r:.80} is no {what} here"
        yield PatchProblem(
            "LAYOUT",
            text,
            pointer=exact_pointer(place),
            hint=_one_of(str(value), allowed),
            allowed=allowed,
            nearest=near,
        )


def _one_of(name: str, known: Any) -> str:
    return did_you_mean(name, known) or f"one of {', '.join(map(str, known))}"


def _section(layout: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = layout.get(key)
    return found if isinstance(found, Mapping) else {}


def _wrong(place: Sequence[str], message: str, fix: str, allowed: tuple[str, ...] = ()) -> PatchProblem:
    return PatchProblem("LAYOUT", message, pointer=exact_pointer(place), hint=fix, allowed=allowed)


_ONLY: Final = "result"
"""The name of a result that is not an object."""


def _with_widgets(inputs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The properties of a schema, each with the widgets that fit it."""
    required = inputs.get("required") or ()
    return {
        name: {**schema, "widgets": widgets_for(schema), "required": name in required}
        for name, schema in properties_of(inputs).items()
    }


async def panel(
    subject: ToolSpec,
    request: str,
    requests: ModelRequests,
    layout: Mapping[str, Any] | None,
    rounds: int,
    language: Language,
) -> Panel:
    """See `Assistant.panel`."""
    inputs, outputs = dict(subject.input_schema), _outputs_of(subject.output_schema)
    if layout is not None and (layout_problems := mismatches(layout, inputs, outputs)):
        raise UsageError(
            f"the layout does not fit {subject.id}: {layout_problems[0].message}",
            hint=layout_problems[0].hint,
            problems=[problem.to_json() for problem in layout_problems],
        )
    current = layout or proposed_layout(subject.display_name or subject.id, subject.description, inputs, outputs)
    if not request.strip():
        return Panel(True, current, inputs, outputs)

    async def judge(answered: ParsedAnswer) -> PatchVerdict[Mapping[str, Any]]:
        try:
            changed = apply_patch(current, list(answered.patch))
        except PatchRefused as refused:
            return PatchVerdict(None, refused.problems)
        problems = mismatches(changed, inputs, outputs)
        return PatchVerdict(None if problems else changed, problems)

    tokens = prompt_tokens(requests.context_tokens)
    shown = {name: {**schema, "widgets": OUTPUT_WIDGETS} for name, schema in outputs.items()}
    messages = layout_messages(request, current, _with_widgets(inputs), shown, language, tokens=tokens)
    ended = await negotiate(requests.ask, messages, judge, rounds=rounds, language=language)
    found = ended.result
    return Panel(
        found is not None, current if found is None else found, inputs, outputs,
        ended.answered.reason if ended.answered is not None else "", ended.declined, ended.problems,
        tuple(ended.rounds), requests.spent,
    )  # fmt: skip


def _outputs_of(schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Output → its schema."""
    properties = schema.get("properties") if schema is not None else None
    if isinstance(properties, Mapping):
        return {name: each if isinstance(each, Mapping) else {} for name, each in properties.items()}
    return {_ONLY: dict(schema or {})}
