"""The keys of tavern.yaml by its model: their spellings, and the kinds of values that they take.

A path is a tuple of keys in the spelling of the file: ``("limits", "timeoutMs")``. The free parts (`config`, `settings`,
names of groups, callers, slots) take any key.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, create_model
from pydantic.fields import FieldInfo

from tavern_core.model.config import HostConfig
from tavern_core.model.nearest import fold

Keys = tuple[str, ...]
ValueShape = Literal["section", "mapping", "list", "boolean", "integer", "text", "anything"]
FREE: Final = frozenset({"config", "settings"})
"""Top-level keys whose values the model does not describe."""
REFERENCE_MARK: Final = "$"
"""The first character of a key that makes a mapping a single value: ``{"$env": "NAME"}``."""


def model_for(keys: Container[str]) -> type[HostConfig]:
    """The model of a tavern.yaml with these top-level keys: those of upstreams and language models are imported only if needed."""
    return _model("upstreams" in keys, "llms" in keys)


@functools.cache
def _model(has_upstreams: bool, has_llms: bool) -> type[HostConfig]:
    sections: dict[str, Any] = {}
    if has_upstreams:
        from tavern_core.model.upstream_config import Upstreams

        sections["upstreams"] = (Upstreams, HostConfig.model_fields["upstreams"])
    if has_llms:
        from tavern_core.model.llm_config import Llms

        sections["llms"] = (Llms, HostConfig.model_fields["llms"])
    return create_model("HostConfig", __base__=HostConfig, **sections) if sections else HostConfig


def section_keys(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """The keys of a section as they are in files (camelCase) → their fields."""
    return {info.alias or name: info for name, info in section.model_fields.items()}


def annotation_at(path: Keys) -> Any:
    """The type of the value at `path`; None if the model knows no such key."""
    here: Any = model_for(path[:1])
    for key in path:
        here, _ = _required(here)
        if (section := section_of(here)) is not None:
            if (info := section_keys(section).get(key)) is None:
                return None
            here = info.annotation
        elif get_origin(here) is dict:
            here = get_args(here)[1]
        elif get_origin(here) is tuple:
            here = get_args(here)[0]
        else:
            return here if here is Any else None
    return here


def shape_of(annotation: Any) -> tuple[ValueShape, bool]:
    """The kind of value that a type takes, and whether it may be null."""
    kind, optional = _required(annotation)
    if section_of(kind) is not None:
        return "section", optional
    origin = get_origin(kind) or kind
    shapes: dict[Any, ValueShape] = {dict: "mapping", tuple: "list", bool: "boolean", int: "integer", str: "text"}
    return ("text" if origin is Literal else shapes.get(origin, "anything")), optional


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The model of a section; None for any other type."""
    kind, _ = _required(annotation)
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _required(annotation: Any) -> tuple[Any, bool]:
    """The type without ``Annotated`` and ``| None``; True where None was allowed."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = [a for a in get_args(annotation) if a is not type(None)]
        return _required(kinds[0])[0], len(kinds) < len(get_args(annotation))
    return annotation, False


def siblings(path: Keys) -> list[str]:
    """The keys beside the last part of `path`, for suggestions."""
    section = section_of(annotation_at(path[:-1]))
    return [] if section is None else list(section_keys(section))


def canonical(data: Mapping[str, Any], section: type[BaseModel] = HostConfig) -> tuple[dict[str, Any], list[Keys]]:
    """`data` with snake_case keys in the file's spelling, and the paths that were given in both spellings.

    Unknown keys and values of the wrong kind stay as they are: validation names them.
    """
    names = {name: info.alias or name for name, info in section.model_fields.items()}
    result: dict[str, Any] = {}
    twice: list[Keys] = []
    for written, value in data.items():
        key = names.get(written, written)
        if key in result:
            twice.append((key,))
            continue
        if key in names.values() and (kind := section_of(section_keys(section)[key].annotation)) is not None:
            if value is None:
                continue  # a section whose lines are all comments
            if isinstance(value, Mapping):
                value, deeper = canonical(value, kind)
                twice += [(key, *path) for path in deeper]
        result[key] = value
    if issubclass(section, HostConfig) and isinstance(result.get("settings"), Mapping):
        result["settings"] = dict(flat_settings(result["settings"]))
    return result, twice


def flat_settings(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Setting keys with their values; nested mappings are another way to write dots."""
    for key, value in values.items():
        if isinstance(value, Mapping) and not any(str(k).startswith(REFERENCE_MARK) for k in value):
            yield from flat_settings(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def spelt(section: type[BaseModel], word: str) -> str | None:
    """The key that `word` (``TIMEOUT_MS``, ``timeoutms``) means in a section."""
    return next((key for key in section_keys(section) if fold(key) == fold(word)), None)


def key_path(written: str) -> Keys:
    """The path that a dotted key means, in the spelling of files: ``limits.timeout_ms`` → ``("limits", "timeoutMs")``.

    Unknown parts stay as they are. A setting's key is one part, with `settings` before it or without:
    ``extensions.text.style`` → ``("settings", "extensions.text.style")``.
    """
    return ("settings", written) if written.startswith("extensions.") else split_key(written, spelt)


def split_key(
    written: str, spell: Callable[[type[BaseModel], str], str | None] = lambda section, word: None, above: Keys = ()
) -> Keys:
    """The path that a dotted key means below `above`. Names in a mapping may have dots: those of tools, callers, aliases.

    Args:
        spell: the key that a word means in a section; None: the word itself.
    """
    head, dot, rest = written.partition(".")
    if not above and head in FREE and rest:
        return (head, rest) if head == "settings" else (head, *rest.split("."))
    if (section := section_of(annotation_at(above))) is not None:
        key = spell(section, head) or head
        return (key, *split_key(rest, spell, (*above, key))) if dot else (key,)
    entry = annotation_at((*above, ""))
    words = written.split(".")
    if (inner := section_of(entry)) is not None:
        for at in range(1, len(words)):
            if spelt(inner, words[at]) is not None:
                name = ".".join(words[:at])
                return (name, *split_key(".".join(words[at:]), spell, (*above, name)))
    if entry is Any and above != ("secrets",):  # values of any shape, such as the options of a model
        return tuple(words)
    end = next((at for at, word in enumerate(words) if at and word.startswith(REFERENCE_MARK)), len(words))
    return (".".join(words[:end]), *words[end:])


def put(data: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set the value at `path`; creates missing sections, and replaces values that are no sections."""
    for key in path[:-1]:
        if not isinstance(data.get(key), dict):
            data[key] = {}
        data = data[key]
    if value != {} or not isinstance(data.get(path[-1]), dict):  # an empty section changes nothing
        data[path[-1]] = value


def leaves(value: Any, path: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Every single value with its path; an empty mapping and a reference are single values."""
    if isinstance(value, Mapping) and value and not any(str(k).startswith(REFERENCE_MARK) for k in value):
        for key, item in value.items():
            yield from leaves(item, (*path, str(key)))
    else:
        yield path, value
