"""The permissions that a plugin can request: one table of ids, their risk, and the sentence a person consents to.

    hook:server:tool:check          HOOKS and BROWSER_PERMISSIONS     permissions.hooks
    ui:wrap:<component>             model/ui_extension_points.py COMPONENTS            permissions.ui.wrap
    ui:inject:<outlet>              model/ui_extension_points.py OUTLETS               permissions.ui.inject
    ui:override:<component>         model/ui_extension_points.py COMPONENTS            permissions.ui.override
    service:use:<name>              any service                       permissions.services.use
    service:write:<name>            any service                       permissions.services.write
    service:override:<name>         any service                       permissions.services.override
    data:secrets  data:conversation DATA_RIGHTS                       permissions.data
    tryfirst                                                          permissions.tryfirst
    tier:host                       TIER                              no `isolation: process`, where it was granted with it
    skill:trust                     TRUST                             a skill of a project
    read:fs, danger:destructive ... model/capability.py CAPABILITIES  permissions.capabilities

The beginning of an id names its family; the rows come from the tables they belong to. The manifest's JSON Schema, the consent
texts, the check of the lock file, `plugins grant` and `review`, and docs/permissions.md are generated from `permission_table`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Final

from tavern_core.contract.hookspecs import BROWSER_PERMISSIONS, HOOKS, permission_names
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model import capability
from tavern_core.model.capability import CAPABILITIES, Risk, is_capability
from tavern_core.model.capability_scope import entry_problem
from tavern_core.model.naming_rules import is_service_name
from tavern_core.model.ui_extension_points import COMPONENTS, OUTLETS, is_outlet

if TYPE_CHECKING:
    from tavern_core.model.manifest import Manifest

TRYFIRST: Final = "tryfirst"
RISKS: Final[tuple[Risk, ...]] = ("highest", "high", "medium", "low")
"""The highest risk first: the order in which a person reads them."""
_SERVICE: Final = re.compile(r"service:(?:use|write|override):(.*)\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Permission:
    """A permission to grant: its id for the lock file and messages, its risk and texts for the person who decides."""

    id: str
    risk: Risk
    sentence: str
    sentence_zh: str
    section: str = ""
    """The key of plugin.yaml that requests it: ``permissions.hooks``."""
    written: str = ""
    """The value under that key; empty: the id itself."""
    scope: str = ""
    """The kind of entries of its scope: ``paths``, ``hosts`` or ``names``; empty if it takes no scope."""

    @property
    def yaml(self) -> str:
        """The lines of plugin.yaml that request it, in the flow style: ``permissions: {hooks: ["hook:server:tool:check"]}``."""
        item = "true" if self.id == TRYFIRST else f'["{self.written or self.id}"]'
        keys = self.section.split(".")
        return "{".join(f"{key}: " for key in keys) + item + "}" * (len(keys) - 1)


TIER: Final = Permission(
    "tier:host",
    "highest",
    "run its code in the host's own process, as trusted code, no longer confined to its own process",
    "在宿主自身的进程中以受信任代码运行，不再限制在独立进程中",
)
"""Requested by a plugin that was granted for the isolated tier and no longer asks for that tier; no line of plugin.yaml does."""
TRUST: Final = Permission(
    "skill:trust",
    "medium",
    "give its instructions and files to models, as long as none of them changes",
    "将其说明与文件提供给模型，直到其中任何内容发生变化",
)
"""Requested by a skill of a project. It is granted for exactly these files: a changed skill requests it again."""
_UNDECLARED: Final[Mapping[str, Permission]] = {row.id: row for row in (TIER, TRUST)}
"""The permissions that no line of plugin.yaml requests."""
DATA_RIGHTS: Final[Mapping[str, Permission]] = {
    row.id: row
    for row in (
        Permission(
            "data:secrets", "highest", "see the secrets that hooks get", "查看传递给钩子的机密", "permissions.data"
        ),
        Permission(
            "data:conversation",
            "high",
            "read the conversation with the language model",
            "读取与语言模型的对话",
            "permissions.data",
        ),
    )
}
"""Rights on the sensitive arguments of hooks."""


@cache
def permission_table() -> Mapping[str, Permission]:
    """Every permission → its row, family by family. An id with ``<name>`` stands for all ids of its kind."""
    rows = (
        *_hooks(),
        *_console(),
        *(_service(verb, "<name>") for verb in _SERVICES),
        *DATA_RIGHTS.values(),
        _tryfirst(),
        *_capabilities(),
    )
    return {row.id: row for row in rows}


def is_permission(name: str) -> bool:
    """True when `name` is an id that this host can grant, literally: no alias, no pattern."""
    if name in _UNDECLARED:
        return True
    if name in permission_table():
        return "<" not in name
    family, _, rest = name.partition(":")
    if family == "ui":
        return rest.startswith("inject:") and is_outlet(rest.removeprefix("inject:"))
    service = _SERVICE.match(name)
    return is_capability(name) if service is None else is_service_name(service[1])


def known_permissions() -> list[str]:
    """Candidates for a misspelt permission: ids without a placeholder, and the older names of hooks."""
    return [*hook_spellings(), *(name for name in permission_table() if "<" not in name)]


@cache
def _spellings() -> Mapping[str, str]:
    return permission_names()


def canonical_hook(written: str) -> str | None:
    """The canonical id of a hook permission in any spelling (aliases included), or None if there is none."""
    return _spellings().get(written)


def hook_spellings() -> tuple[str, ...]:
    """Everything that `permissions.hooks` of a manifest may name."""
    return tuple(_spellings())


def requested_permissions(manifest: Manifest) -> frozenset[str]:
    """Every permission id that a manifest requests; hook names that do not exist are left out.

    A capability whose scope is empty or has no valid entry requests nothing.
    """
    requested = manifest.permissions
    found = {canonical for written in requested.hooks if (canonical := canonical_hook(written)) is not None}
    for verb in _UI:
        found.update(f"ui:{verb}:{name}" for name in getattr(requested.ui, verb))
    for verb in _SERVICES:
        found.update(f"service:{verb}:{name}" for name in getattr(requested.services, verb))
    found.update(
        c.name for c in requested.capabilities if c.scope is None or not all(entry_problem(c.name, e) for e in c.scope)
    )
    found.update(requested.data)
    if requested.tryfirst:
        found.add(TRYFIRST)
    return frozenset(found)


def describe_permission(permission: str) -> Permission:
    """The row of any permission id; a name outside of the table gets a row with a plain sentence."""
    if (row := _UNDECLARED.get(permission) or permission_table().get(permission)) is not None:
        return row
    family, _, rest = permission.partition(":")
    verb, _, name = rest.partition(":")
    if family == "ui" and verb in _UI and name:
        return _ui(verb, name)
    if family == "service" and verb in _SERVICES and name:
        return _service(verb, name)
    row_ = capability.describe(permission)
    return Permission(
        permission, row_.risk, row_.sentence, row_.sentence_zh, "permissions.capabilities", "", row_.scope
    )


def _hooks() -> Iterator[Permission]:
    for hook in HOOKS.values():
        for permission in hook.permissions:
            yield Permission(permission, hook.risk, hook.sentence, hook.sentence_zh, "permissions.hooks")
    for permission in BROWSER_PERMISSIONS:
        sentence = "be notified in the browser when a node was drawn"
        yield Permission(permission, "low", sentence, "在浏览器中得知节点已渲染", "permissions.hooks")


def _console() -> Iterator[Permission]:
    for verb in _UI:
        yield from (_ui(verb, name) for name in (OUTLETS if verb == "inject" else COMPONENTS))


_UI: Final[Mapping[str, tuple[Risk, str, str]]] = {
    "wrap": ("medium", "wrap a part of the console: {part}", "包裹控制台组件：{name}"),
    "inject": ("low", "add to the console: {part}", "在控制台中添加界面：{name}"),
    "override": ("high", "replace a part of the console: {part}", "替换控制台组件：{name}"),
}
_SERVICES: Final[Mapping[str, tuple[Risk, str, str]]] = {
    "use": ("medium", "use the service {shown} without changing it", "使用服务 {shown}（不作更改）"),
    "write": ("high", "use the service {shown} and change its data", "使用服务 {shown} 并更改其内容"),
    "override": ("highest", "replace the service {shown} for all plugins", "为所有人替换服务 {shown}"),
}
"""Verb, also the key of plugin.yaml → its risk and its sentences."""


def _ui(verb: str, name: str) -> Permission:
    risk, sentence, chinese = _UI[verb]
    part = COMPONENTS.get(name, name)
    if verb == "inject":
        part = OUTLETS.get(name) or OUTLETS.get(name.partition("[")[0], name)
    sentence, chinese = sentence.format(part=part), chinese.format(name=name)
    return Permission(f"ui:{verb}:{name}", risk, sentence, chinese, f"permissions.ui.{verb}", name)


def _service(verb: str, name: str) -> Permission:
    risk, sentence, chinese = _SERVICES[verb]
    shown = name if name.startswith("<") else repr(name)
    sentence, chinese = sentence.format(shown=shown), chinese.format(shown=shown)
    return Permission(f"service:{verb}:{name}", risk, sentence, chinese, f"permissions.services.{verb}", name)


def _tryfirst() -> Permission:
    sentence, chinese = "run its hooks before those of other plugins", "使其钩子先于其他插件运行"
    return Permission(TRYFIRST, "medium", sentence, chinese, "permissions.tryfirst")


def _capabilities() -> Iterator[Permission]:
    for name in (*CAPABILITIES, "secrets:<name>", "env:<name>", "danger:<word>", "<owner>/<verb>:<object>"):
        row = capability.describe(name)
        sentence, chinese = row.sentence.replace("'<name>'", "<name>"), row.sentence_zh.replace("'<name>'", "<name>")
        yield Permission(name, row.risk, sentence, chinese, "permissions.capabilities", "", row.scope)
