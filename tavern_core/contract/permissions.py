"""What a plugin can ask for: one table of permission ids, their risk, and the sentence a person consents to.

An id says its family by its beginning; the rows come from the tables they belong to, nothing is written twice:

    hook:server:tool:check          HOOKS and BROWSER_PERMISSIONS     permissions.hooks
    ui:wrap:<component>             model/ui.py COMPONENTS            permissions.ui.wrap
    ui:inject:<outlet>              model/ui.py OUTLETS               permissions.ui.inject
    ui:override:<component>         model/ui.py COMPONENTS            permissions.ui.override
    service:use:<name>              any service                       permissions.services.use
    service:override:<name>         any service                       permissions.services.override
    data:secrets  data:conversation DATA_RIGHTS                       permissions.data
    tryfirst                                                          permissions.tryfirst
    read:fs, danger:destructive ... model/capability.py CAPABILITIES  permissions.capabilities

The manifest's JSON Schema, the consent texts, `plugins grant` and the manual all read this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from tavern_core.contract.hookspecs import BROWSER_PERMISSIONS, HOOKS, permission_names
from tavern_core.model import capability
from tavern_core.model.capability import Risk
from tavern_core.model.manifest import Manifest
from tavern_core.model.ui import COMPONENTS, OUTLETS

TRYFIRST: Final = "tryfirst"


@dataclass(frozen=True, slots=True)
class Permission:
    """One thing to grant: `id` in the lock file and in messages, `risk` and the sentences for whoever decides."""

    id: str
    risk: Risk
    sentence: str
    sentence_zh: str


DATA_RIGHTS: Final[Mapping[str, Permission]] = {
    row.id: row
    for row in (
        Permission("data:secrets", "highest", "see secrets that hooks are handed", "查看传递给钩子的机密"),
        Permission(
            "data:conversation", "high", "read the conversation with the language model", "读取与语言模型的对话"
        ),
    )
}
"""Rights on the sensitive arguments of hooks."""


@cache
def hook_permissions() -> Mapping[str, Permission]:
    """Every canonical hook permission → its row."""
    rows = {
        permission: Permission(permission, hook.risk, hook.sentence, hook.sentence_zh)
        for hook in HOOKS.values()
        for permission in hook.permissions
    }
    for permission in BROWSER_PERMISSIONS:
        rows[permission] = Permission(
            permission, "low", "be told in the browser when a node was drawn", "在浏览器中得知节点已渲染"
        )
    return rows


@cache
def _spellings() -> Mapping[str, str]:
    return permission_names()


def canonical_hook(written: str) -> str | None:
    """The canonical id of a hook permission as somebody wrote it (aliases included), or None when there is none."""
    return _spellings().get(written)


def hook_spellings() -> tuple[str, ...]:
    """Everything that `permissions.hooks` of a manifest may name."""
    return tuple(_spellings())


def requested_permissions(manifest: Manifest) -> frozenset[str]:
    """Every permission id that a manifest asks for; hook names that do not exist are left out."""
    asked = manifest.permissions
    found = {canonical for written in asked.hooks if (canonical := canonical_hook(written)) is not None}
    found.update(f"ui:wrap:{name}" for name in asked.ui.wrap)
    found.update(f"ui:inject:{name}" for name in asked.ui.inject)
    found.update(f"ui:override:{name}" for name in asked.ui.override)
    found.update(f"service:use:{name}" for name in asked.services.use)
    found.update(f"service:override:{name}" for name in asked.services.override)
    found.update(request.name for request in asked.capabilities)
    found.update(asked.data)
    if asked.tryfirst:
        found.add(TRYFIRST)
    return frozenset(found)


def describe_permission(permission: str) -> Permission:
    """The row of any permission id; for names outside the tables a row that says plainly what it is."""
    if (row := hook_permissions().get(permission) or DATA_RIGHTS.get(permission)) is not None:
        return row
    if permission == TRYFIRST:
        return Permission(
            permission, "medium", "run its hooks before those of other plugins", "使其钩子先于其他插件运行"
        )
    family, _, rest = permission.partition(":")
    verb, _, name = rest.partition(":")
    if family == "ui" and verb in ("wrap", "inject", "override") and name:
        return _ui(permission, verb, name)
    if family == "service" and verb == "use" and name:
        return Permission(permission, "medium", f"use the service {name!r}", f"使用服务 {name!r}")
    if family == "service" and verb == "override" and name:
        return Permission(permission, "highest", f"replace the service {name!r}", f"替换服务 {name!r}")
    row_ = capability.describe(permission)
    return Permission(permission, row_.risk, row_.sentence, row_.sentence_zh)


def permission_risk(permission: str) -> Risk:
    """How much harm a grant of `permission` can do."""
    return describe_permission(permission).risk


def _ui(permission: str, verb: str, name: str) -> Permission:
    if verb == "inject":
        place = OUTLETS.get(name) or OUTLETS.get(name.partition("[")[0], name)
        return Permission(permission, "low", f"add to the console: {place}", f"在控制台中添加界面：{name}")
    part = COMPONENTS.get(name, name)
    if verb == "wrap":
        return Permission(permission, "medium", f"wrap a part of the console: {part}", f"包裹控制台组件：{name}")
    return Permission(permission, "high", f"replace a part of the console: {part}", f"替换控制台组件：{name}")
