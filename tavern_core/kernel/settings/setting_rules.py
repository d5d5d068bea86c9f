"""Does a declared setting make sense: its key, its bounds, its choices, and a default that its own rules allow?

Source: seed 000 §17.1, FEATURES H1-H4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tavern_core.kernel.text.yaml_reader import PathProblem
from tavern_core.model.nearest import did_you_mean

if TYPE_CHECKING:
    from tavern_core.model.settings import SettingItem

_WITH_CHOICES = ("select", "button-group")
_WITH_NUMBERS = ("number", "slider")


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
    return f"{got(value)} is none of {shown}", did_you_mean(str(value), [str(choice) for choice in choices])
