"""TAVERN_* variables as configuration: ``TAVERN_LIMITS__TIMEOUT_MS=500`` is ``limits.timeoutMs: 500``.

The model decides the meaning of a text: numbers, booleans (``1 true yes on``), lists (``a,b`` or ``[a, b]``), mappings
(``{a: b}``), ``null`` where a value may be missing. An empty text is an empty list or mapping, and an error elsewhere.

    TAVERN_LOAD_PLUGINS      plugins.load: only these; empty: none
    TAVERN_DISABLE_PLUGINS   added to plugins.disable, so that it never switches one on
    TAVERN_HOME              the state folder (configuration.py)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from tavern_core.errors import ConfigInvalid, Finding, Location
from tavern_core.kernel.config.config_and_state_paths import PREFIX
from tavern_core.kernel.config.config_key_lookup import (
    FREE,
    Keys,
    annotation_at,
    canonical,
    put,
    section_keys,
    section_of,
    shape_of,
    spelt,
)
from tavern_core.kernel.config.layer_reading import ConfigLayer
from tavern_core.model.config import HostConfig
from tavern_core.model.nearest import did_you_mean

_NOT_BY_NAME: Final = frozenset({"config", "secrets"})  # TAVERN_CONFIG looks like a path, and secrets have references
_NAMED: Final[Mapping[str, Keys]] = {
    "TAVERN_LOAD_PLUGINS": ("plugins", "load"),
    "TAVERN_DISABLE_PLUGINS": ("plugins", "disable"),
} | {
    f"TAVERN_{name.upper()}": (info.alias or name,)
    for name, info in HostConfig.model_fields.items()
    if name not in _NOT_BY_NAME and shape_of(info.annotation)[0] != "section"
}
"""Variables for keys that are in no section, and the two that most people expect."""
_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"0", "false", "no", "off"})
_NULL: Final = frozenset({"null", "none", "~"})


def value_from_text(path: Keys, text: str) -> Any:
    """The typed text as the value at `path`, in the type of its key; below `config` and `settings` as YAML reads it.

    Raises:
        ConfigInvalid: the text cannot be such a value (CONFIG_INVALID).
    """
    try:
        return _flow(text) if path[0] in FREE and len(path) > 1 else _value(path, text.strip())
    except _InvalidText as error:
        raise ConfigInvalid(f"{'.'.join(path)}: {error.args[0]}", hint=error.args[1]) from None


class _InvalidText(ValueError):
    """A text that is invalid at its place. args: message, hint."""


def environment_layer(env: Mapping[str, str], cwd: Path, disabled: tuple[str, ...] = ()) -> ConfigLayer:
    """The layer of all TAVERN_* variables of `env`.

    Args:
        disabled: plugins that the layers below disable already.
    """
    data: dict[str, Any] = {}
    names: dict[Keys, str] = {}
    findings: list[Finding] = []
    for name in sorted(n for n in env if n.startswith(PREFIX)):
        try:
            path = _path(name)
            if path is None:
                continue
            value = _value(path, env[name].strip())
        except _InvalidText as error:
            findings.append(Finding(ConfigInvalid.code, f"{name}: {error.args[0]}", error.args[1], Location(name)))
            continue
        if name == "TAVERN_DISABLE_PLUGINS":
            value = [*dict.fromkeys((*disabled, *value))]
        if path in names:
            message = f"{name} and {names[path]} are the same key"
            findings.append(Finding(ConfigInvalid.code, message, "unset one of them", Location(name)))
        names[path] = name
        put(data, path, value)

    def locate(keys: Keys) -> Location:
        found = next((names[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in names), "environment")
        return Location(found, pointer=".".join(keys))

    return ConfigLayer("environment", canonical(data)[0], locate, cwd, tuple(findings))


def _path(name: str) -> Keys | None:
    """The key that a variable names; None for one that is not a configuration."""
    if name in _NAMED:
        return _NAMED[name]
    words = name[len(PREFIX) :].split("__")
    if len(words) < 2:
        return None  # TAVERN_HOME, TAVERN_TRACE_PLUGINS … and what other programs call TAVERN_SOMETHING
    path: list[str] = []
    section: Any = HostConfig
    for word in words:
        if (model := section_of(section)) is not None:
            key = spelt(model, word)
            if key in FREE and not path:
                variable = "set TAVERN_SETTINGS to {key: value}, or " if key == "settings" else ""
                raise _InvalidText(f"{key!r} has keys of its own", f"{variable}use tavern.yaml")
            if key is None:
                raise _InvalidText(
                    f"there is no key {word!r}" + (f" in {path[0]!r}" if path else ""), _nearest(model, word)
                )
        elif shape_of(section)[0] == "mapping":
            key = word.lower().replace("_", "-")  # names of groups and plugins: variables have no other letters
        else:
            raise _InvalidText(f"{'.'.join(path)} is a single value", f"set {PREFIX}{'__'.join(words[: len(path)])}")
        path.append(key)
        section = annotation_at(tuple(path))
    return tuple(path)


def _nearest(section: type[BaseModel], word: str) -> str:
    keys = list(section_keys(section))
    return did_you_mean(word, keys) or f"there are: {', '.join(keys)}"


def _value(path: Keys, text: str) -> Any:
    shape, optional = shape_of(annotation_at(path))
    if optional and text.lower() in _NULL:
        return None
    match shape:
        case "list":
            return _list(text)
        case "mapping" | "section":
            return _mapping(text)
        case _ if not text:
            raise _InvalidText("is empty", "unset it, or give a value" + (" (or `null`)" if optional else ""))
        case "boolean":
            return _boolean(text)
        case "integer":
            return _integer(text)
        case _:
            return text


def _list(text: str) -> list[Any]:
    if text.startswith("["):
        value = _flow(text)
        if not isinstance(value, list):
            raise _InvalidText(f"{text!r:.60} is not a list", "write a,b or [a, b]")
        return value
    return [part for piece in text.split(",") if (part := piece.strip())]


def _mapping(text: str) -> dict[str, Any]:
    value = _flow(text) if text else {}
    if not isinstance(value, dict):
        raise _InvalidText(f"{text!r:.60} is not a mapping", 'write {key: value} or {"key": "value"}')
    return value


def _flow(text: str) -> Any:
    from tavern_core.kernel.text.yaml_reader import read_yaml

    document = read_yaml(text, "value")
    if not document.is_readable:
        raise _InvalidText(document.findings[0].message, document.findings[0].hint or "write it as JSON")
    return document.data


def _boolean(text: str) -> bool:
    if text.lower() in _YES | _NO:
        return text.lower() in _YES
    raise _InvalidText(f"{text!r:.60} is neither true nor false", "write true or false")


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise _InvalidText(f"{text!r:.60} is not a whole number", "write digits, for example 500") from None
