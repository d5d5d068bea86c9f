"""`configSchema` of a VCP manifest as settings of the plugin. Each becomes an environment variable of its program.

{"API_KEY": "string"}  ·  {"API_KEY": {"type", "description", "default"}}  ·  [{"name": "API_KEY", "type", …}]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tavern_core.errors import Finding
from tavern_core.kernel.manifest.translated_plugin import CODE
from tavern_core.kernel.settings.setting_value_validation import value_problem
from tavern_core.kernel.text.json_document import JsonDocument
from tavern_core.model.environment_variables import is_name, is_passed, is_refused
from tavern_core.model.path_problem import Path
from tavern_core.model.settings import SettingItem

MOST_SETTINGS: Final = 200
_KINDS: Final = {"integer": "number", "int": "number", "number": "number", "float": "number", "boolean": "boolean", "bool": "boolean"}  # fmt: skip
"""Other types are text: that is what a variable holds."""


def settings_of(written: Any, plugin: str, document: JsonDocument) -> tuple[tuple[SettingItem, ...], list[Finding]]:
    """The settings, and what is left out with its reason.

    Args:
        written: the value of `configSchema`.
        plugin: the plugin's name; keys are ``extensions.<plugin>.<NAME>``.
    """
    items: dict[str, SettingItem] = {}
    findings: list[Finding] = []

    def leave_out(path: Path, why: str) -> None:
        findings.append(Finding(CODE, f"{why}; the setting is left out", "", document.locate(path), "warning"))

    for path, name, part in _parts(written, leave_out):
        if len(items) == MOST_SETTINGS:
            leave_out(path, f"more than {MOST_SETTINGS} settings")
            break
        if why := _why_not(name):
            leave_out(path, why)
        elif name in items:
            leave_out(path, f"{name} is defined twice")
        else:
            items[name] = _item(f"extensions.{plugin}.{name}", part)
    return tuple(items.values()), findings


def _parts(written: Any, leave_out: Any) -> Iterator[tuple[Path, str, Mapping[str, Any]]]:
    if isinstance(written, Mapping):
        for name, part in written.items():
            yield ("configSchema", name), name, part if isinstance(part, Mapping) else {"type": part}
    elif isinstance(written, list):
        for index, part in enumerate(written):
            name = (part.get("name") or part.get("key")) if isinstance(part, Mapping) else part
            if isinstance(name, str):
                yield ("configSchema", index), name, part if isinstance(part, Mapping) else {}
            else:
                leave_out(("configSchema", index), "it has no name")
    elif written is not None:
        leave_out(("configSchema",), "configSchema is neither an object nor a list")


def _why_not(name: str) -> str:
    if not is_name(name):
        return f"{name!r:.80} cannot be a variable of the environment"
    if is_refused(name):
        return f"{name} is never passed to a program: it makes programs load code, or is the host's own"
    return f"{name} is the host's to set" if is_passed(name) else ""


def _item(key: str, part: Mapping[str, Any]) -> SettingItem:
    kind = part.get("type")
    item = SettingItem(
        key=key,
        type=_KINDS.get(kind.lower(), "string") if isinstance(kind, str) else "string",  # type: ignore[arg-type]
        description=str(part.get("description") or "")[:2_000],
    )
    default = part.get("default")
    return (
        item if default is None or value_problem(item, default) else item.model_copy(update={"default_value": default})
    )
