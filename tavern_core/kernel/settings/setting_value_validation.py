"""Validates the value of a setting, from a text or from a reference, and the declaration of a setting: its key, bounds,
choices, and default by its own rules (seed 000 §17.1, FEATURES H1-H4).

    {"$env": "NAME"}             an environment variable
    {"$file": "path"}            a file; relative to the folder of the file that has the reference
    {"$keyring": "service/name"} the system's key ring (extra `keyring`)

References are stored as they are and followed only when a plugin needs the value, so that no secret is in a settings file.
Errors name the setting and the reference, never the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tavern_core.errors import Finding, Location, SettingsInvalid, StateDamaged
from tavern_core.kernel.files.atomic_file import read_text
from tavern_core.kernel.settings.secret_masking import is_secret
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.path_problem import PathProblem
from tavern_core.model.safe_printing import is_text
from tavern_core.model.secret_references import REFERENCES, is_reference

if TYPE_CHECKING:
    from tavern_core.model.setting_declaration import SettingItem

Keyring = Callable[[str, str], str | None]
"""``keyring(service, name)`` → the secret, or None."""
LARGEST_SECRET: Final = 64 * 1024
LONGEST_TEXT: Final = 64 * 1024
_MOST_SHOWN: Final = 5
_WITH_CHOICES = ("select", "button-group")
_WITH_NUMBERS = ("number", "slider")
_YES: Final = frozenset({"true", "1", "yes", "on"})
_NO: Final = frozenset({"false", "0", "no", "off"})


def setting_error(key: str, message: str, hint: str = "") -> SettingsInvalid:
    """The error about one setting."""
    finding = Finding(SettingsInvalid.code, message, hint, Location(key))
    return SettingsInvalid(f"{key}: {message}", hint=hint, findings=(finding,), key=key)


def all_refused(findings: Sequence[Finding], what: str = "") -> SettingsInvalid:
    """The error about several settings: the problem of each, and once how to repair them."""
    shown = findings[:_MOST_SHOWN]
    hints = dict.fromkeys(finding.hint for finding in shown if finding.hint)
    text = what + "; ".join(finding.located for finding in shown)
    return SettingsInvalid(text, hint="; ".join(hints), findings=tuple(findings))


def problem_of(item: SettingItem, value: Any) -> tuple[str, str] | None:
    """Why `value` may not be stored for this setting, as (message, hint); None when it may."""

    if not item.holds_value:
        return "is a button and holds no value", f"its action is {item.action!r}" if item.action else ""
    if isinstance(value, Mapping):
        return _reference_problem(value)
    if item.required and value in (None, ""):
        return "is required", ""
    problem = value_problem(item, value) or _unstorable(value)
    return (_wanted(item), "") if problem is not None and is_secret(item) else problem


def from_text(item: SettingItem, text: str) -> Any:
    """Text from a command line or a reference in the setting's type; unchanged if it does not fit."""
    from tavern_core.schema.json_reader import json_or_text  # not loaded at the start

    word = text.strip()
    if word.startswith("{"):
        return json_or_text(text)
    match item.type:
        case "boolean" if word.lower() in _YES | _NO:
            return word.lower() in _YES
        case "number" | "slider":
            return json_or_text(text)
        case "select" | "button-group":
            return next((c for c in item.choices() if not isinstance(c, str) and _written(c) == word), text)
        case _:
            return text


def follow(
    item: SettingItem, key: str, reference: Mapping[str, Any], base: Path, env: Mapping[str, str], keyring: Keyring
) -> Any:
    """The value behind a reference, checked like a direct value.

    Raises:
        SettingsInvalid: it has no value, or the value is invalid (SETTINGS_INVALID).
    """

    kind, name = next(iter(reference.items()))
    match kind:
        case "$env":
            text = env.get(name, "")
            if not text:
                state = "is empty" if name in env else "is not set"
                raise setting_error(key, f"the environment variable {name} {state}", f"export {name}=…")
        case "$file":
            text = _from_file(key, base / Path(name).expanduser())
        case _:
            text = _from_keyring(key, name, keyring)
    value = from_text(item, text) if not text.strip().startswith("{") else text
    if value_problem(item, value) is not None:
        raise setting_error(key, f"what {kind} {name} holds {_wanted(item)}", "correct it there")
    return value


def system_keyring(service: str, name: str) -> str | None:
    """The system's key ring, imported when it is first needed."""
    try:
        import keyring
    except ImportError:
        raise SettingsInvalid(
            "the key ring needs an extra package", hint="pip install 'tavern-core[keyring]'"
        ) from None
    found = keyring.get_password(service, name)
    return None if found is None else str(found)


def _from_file(key: str, path: Path) -> str:
    try:
        # Secrets are often mounted as links; it is the operator who wrote the path.
        text = read_text(path.resolve(), LARGEST_SECRET)
    except (StateDamaged, OSError, RuntimeError) as error:
        raise setting_error(key, f"the file {path} cannot be used: {error}", "correct the path or the file") from error
    if text is None:
        raise setting_error(key, f"there is no file {path}", "create it, readable only for yourself")
    if not (text := text.strip("\r\n")):
        raise setting_error(key, f"the file {path} is empty", "put the secret into it")
    return text


def _from_keyring(key: str, name: str, keyring: Keyring) -> str:
    service, _, entry = name.rpartition("/")
    hint = f"keyring set {service} {entry}"
    try:
        text = keyring(service, entry)
    except SettingsInvalid as error:
        raise setting_error(key, error.message, error.hint) from error
    except Exception as error:
        raise setting_error(key, f"the key ring failed: {type(error).__name__}", hint) from error
    if not text:
        raise setting_error(key, f"the key ring has no {entry!r} of {service!r}", hint)
    return text


def _wanted(item: SettingItem) -> str:
    """The values that a setting allows, without the given value: that may be a secret in the wrong place."""
    match item.type:
        case "boolean":
            return "must be true or false"
        case "select" | "button-group":
            return f"must be one of {', '.join(str(choice) for choice in item.choices()[:12])}"
        case "number" | "slider":
            bounds = (("from", item.min), ("to", item.max), ("in steps of", item.step))
            return " ".join(["must be a number", *(f"{word} {limit:g}" for word, limit in bounds if limit is not None)])
        case _:
            return f"must be text of at most {LONGEST_TEXT:,} characters"


def _unstorable(value: Any) -> tuple[str, str] | None:
    """The problem of a value that a file could not store and return unchanged; None: it can."""
    if isinstance(value, int) and value.bit_length() > 256:
        return "is too large a number", ""
    if not isinstance(value, str):
        return None
    if len(value) > LONGEST_TEXT:
        return f"is longer than {LONGEST_TEXT:,} characters", "put it into a file of your own"
    if not is_text(value):
        return "holds half a character (a lone surrogate)", "write the text again"
    return None


def _reference_problem(value: Mapping[str, Any]) -> tuple[str, str] | None:
    forms = "{$env: NAME}, {$file: path} or {$keyring: service/name}"
    if not is_reference(value):
        near = next((did_you_mean(str(k), REFERENCES) for k in value), "")
        return "must be a single value, or a reference", near or f"references are {forms}"
    kind, name = next(iter(value.items()))
    if not isinstance(name, str) or not name.strip() or "\0" in name or _unstorable(name):
        return f"{kind} needs a name", f"references are {forms}"
    if kind == "$keyring" and not all(name.rpartition("/")[::2]):
        return "$keyring needs service/name", "for example {$keyring: my-plugin/token}"
    return None


def _written(value: float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def key_problem(key: str, plugin: str) -> PathProblem | None:
    """Why `key` is not ``extensions.{plugin}.{option}``, or None."""
    first, _, rest = key.partition(".")
    owner, _, option = rest.partition(".")
    if first == "extensions" and owner == plugin and option:
        return None
    wanted = f"extensions.{plugin}.{option or key.rpartition('.')[2] or 'option'}"
    if first == "extensions" and owner and owner != plugin:
        message = f"the setting {key!r} belongs to the plugin {owner!r}, not to {plugin!r}"
    else:
        message = f"the key {key!r} is not of the form extensions.{plugin}.<option>"
    return PathProblem(("key",), message, f"write {wanted}")


def setting_problems(item: SettingItem) -> Iterator[PathProblem]:
    """Everything in a declared setting that contradicts itself, apart from its key."""
    if item.min is not None and item.max is not None and item.min > item.max:
        yield PathProblem(("min",), f"min {item.min:g} is larger than max {item.max:g}", "give min the smaller number")
    if item.type in _WITH_CHOICES and not item.options:
        yield PathProblem(("options",), f"a {item.type} needs options", "add `options: [a, b]`")
    if item.type not in _WITH_NUMBERS:
        for field in ("min", "max", "step"):
            if getattr(item, field) is not None:
                text = f"{field} has no effect for a setting of type {item.type}"
                yield PathProblem((field,), text, f"remove {field}, or make it a setting of type number or slider")
    if item.default_value is not None and (problem := value_problem(item, item.default_value)):
        yield PathProblem(("defaultValue",), f"the default {problem[0]}", problem[1])


def value_problem(item: SettingItem, value: Any) -> tuple[str, str] | None:
    """Why `value` is not allowed for this setting, as (sentence without subject, hint), or None."""
    from tavern_core.model.pydantic_errors import got

    match item.type:
        case "action-button":
            return "cannot exist: an action-button holds no value", "delete defaultValue"
        case "boolean":
            return None if isinstance(value, bool) else (f"must be true or false, got {got(value)}", "")
        case "number" | "slider":
            return _number_problem(item, value)
        case "select" | "button-group":
            return _choice_problem(item, value)
        case _:
            if isinstance(value, str):
                return None
            hint = f'put it in quotes: "{value}"' if isinstance(value, int | float) else ""
            return f"must be text, got {got(value)}", hint


def _number_problem(item: SettingItem, value: Any) -> tuple[str, str] | None:
    from tavern_core.model.pydantic_errors import got

    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"must be a number, got {got(value)}", ""
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number", ""
    if item.min is not None and value < item.min:
        return f"{value} is smaller than min {item.min:g}", ""
    if item.max is not None and value > item.max:
        return f"{value} is larger than max {item.max:g}", ""
    if item.step is not None and not _on_step(value, item.min or 0.0, item.step):
        return f"{value} is not reached in steps of {item.step:g} from {item.min or 0:g}", ""
    return None


def _on_step(value: float, start: float, step: float) -> bool:
    """True when `value` is a whole number of steps from `start`; as tolerant as binary fractions need (0.3 in 0.1s)."""
    try:
        steps = (value - start) / step
    except OverflowError:
        return False
    return math.isfinite(steps) and abs(steps - round(steps)) <= 1e-9 * max(1.0, abs(steps))


def _choice_problem(item: SettingItem, value: Any) -> tuple[str, str] | None:
    from tavern_core.model.pydantic_errors import got

    choices = item.choices()
    # True == 1 in Python; a person who wrote `true` did not choose 1.
    if any(type(value) is type(choice) and value == choice for choice in choices):
        return None
    shown = ", ".join(str(choice) for choice in choices[:12])
    same = next((choice for choice in choices if str(choice) == str(value)), None)
    hint = did_you_mean(str(value), map(str, choices)) if same is None else f"write {got(same)}"
    return f"{got(value)} is not one of {shown}", hint
