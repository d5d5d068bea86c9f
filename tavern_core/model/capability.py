"""The table of capabilities, which say what tools may access (seed 004 §4.1, extended by SECURITY §1).

A capability is ``verb:object``. Destructive ones are ``danger:*`` and are never granted by a wildcard or by default.
Hosts and plugins may use further names of the form ``owner/verb:object``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model import environment_variables
from tavern_core.model.nearest import did_you_mean

Risk = Literal["low", "medium", "high", "highest"]
RISKS: Final[tuple[Risk, ...]] = ("low", "medium", "high", "highest")
Effect = Literal["", "writes", "sends", "destroys", "starts", "unknown"]
"""The effect of a tool's call on the world outside; empty: it only reads or computes."""


@dataclass(frozen=True, slots=True)
class Capability:
    """A row of the table: its risk, the kind of its scope, and the sentence a person consents to."""

    risk: Risk
    sentence: str
    sentence_zh: str
    scope: Literal["paths", "hosts", "names", ""] = ""
    """The kind of entries of its scope: ``paths``, ``hosts`` or ``names``; empty if it takes no scope."""
    effect: Effect = ""
    """The effect that its holder can have outside; `model/untrusted_content_rules.py` decides by it."""


CAPABILITIES: Final[Mapping[str, Capability]] = {
    "read:web": Capability("low", "read public web pages", "读取公开网页", "hosts"),
    "read:fs": Capability("medium", "read files", "读取文件", "paths"),
    "write:fs": Capability("high", "create, change and delete files", "创建、修改和删除文件", "paths", effect="writes"),
    "read:db": Capability("medium", "read databases", "读取数据库", "names"),
    "write:db": Capability("high", "change databases", "修改数据库", "names", effect="writes"),
    "network": Capability("high", "open network connections", "建立网络连接", "hosts", effect="sends"),
    "network:host": Capability(
        "high",
        "let programs use this machine's whole network: every address and port, services of this machine included",
        "让程序使用本机的整个网络：所有地址和端口，包括本机上的服务",
        effect="sends",
    ),
    "gpu": Capability("low", "use the graphics processor", "使用图形处理器"),
    "workflow": Capability("medium", "run workflows", "运行工作流", "names"),
    "process:spawn": Capability("high", "start other programs", "启动其他程序", "names", effect="starts"),
    "process:host": Capability(
        "highest",
        "run its code outside of every sandbox, with all rights of the host (full trust)",
        "在任何沙箱之外以宿主的全部权限运行其代码（完全信任）",
        "names",
        effect="starts",
    ),
    "danger:destructive": Capability(
        "highest", "do things that cannot be undone", "执行不可撤销的操作", effect="destroys"
    ),
}
ENV_PREFIX: Final = environment_variables.PERMISSION
SECRET_PREFIX: Final = "secrets:"
DANGER_PREFIX: Final = "danger:"
DESTRUCTIVE: Final = "danger:destructive"
"""The capability of tools whose effect cannot be undone."""
_NAMESPACED: Final = re.compile(r"[a-z0-9][a-z0-9.-]*/[a-z][a-z0-9-]*(:[A-Za-z0-9_.-]+)?\Z")
_SECRET: Final = re.compile(r"secrets:[A-Za-z0-9_.-]{1,64}\Z")
_DANGER: Final = re.compile(r"danger:[a-z][a-z0-9-]*\Z")


def is_capability(name: str) -> bool:
    """True for a name of the table, ``secrets:<name>``, ``env:<NAME>``, ``danger:<word>`` or a namespaced ``owner/verb:object``."""
    if name.startswith(ENV_PREFIX):
        variable = name.removeprefix(ENV_PREFIX)
        return (
            environment_variables.is_name(variable)
            and not environment_variables.is_passed(variable)
            and not environment_variables.is_refused(variable)
        )
    return name in CAPABILITIES or any(p.match(name) is not None for p in (_SECRET, _DANGER, _NAMESPACED))


def unknown_capability(written: Iterable[str]) -> tuple[str, str] | None:
    """The first of `written` that is neither a capability nor a pattern (``read:*``), and a hint what to write instead.

    A misspelt name would silently grant nothing, and deny nothing in a deny list.
    """
    families = (*CAPABILITIES, SECRET_PREFIX, ENV_PREFIX, DANGER_PREFIX)
    for name in written:
        if name in CAPABILITIES or is_capability(name):
            continue
        prefix = name.removesuffix("*")
        if prefix != name and ("/" in prefix or any(f.startswith(prefix) or prefix.startswith(f) for f in families)):
            continue
        return name, known_capability(name)
    return None


def known_capability(name: str) -> str:
    """A hint for `name`, which is not a capability: the closest one, else the list of all."""
    return (
        did_you_mean(name, CAPABILITIES, 1)
        or f"it is one of {', '.join(CAPABILITIES)}, secrets:<name>, env:<NAME>, or owner/verb:object"
    )


def describe(name: str) -> Capability:
    """The row of `name`; names outside of the table get a row that says so."""
    if name in CAPABILITIES:
        return CAPABILITIES[name]
    if name.startswith(SECRET_PREFIX):
        secret = name.removeprefix(SECRET_PREFIX)
        return Capability("high", f"use the secret {secret!r}", f"使用机密 {secret!r}")
    if name.startswith(ENV_PREFIX):
        variable = name.removeprefix(ENV_PREFIX)
        return Capability(
            "high", f"see the variable {variable!r} of the host's environment", f"读取宿主环境变量 {variable!r}"
        )
    if name.startswith(DANGER_PREFIX):
        return Capability("highest", f"do something dangerous: {name}", f"执行危险操作：{name}", effect="destroys")
    # The host cannot know what a name allows that a plugin has introduced, so it counts as the right to write.
    return Capability("medium", f"use {name}", f"使用 {name}", effect="writes")


_READING: Final = frozenset({"read:web", "read:fs", "read:db", "gpu"})


def only_reads(name: str) -> bool:
    """True for a capability with which nothing outside can be changed; False for those that plugins have named."""
    return name in _READING or name.startswith((SECRET_PREFIX, ENV_PREFIX))


def is_dangerous(name: str) -> bool:
    """True for ``danger:*``: refused unless granted for exactly this call's principal."""
    return name.startswith(DANGER_PREFIX)


def covers(granted: Iterable[str], wanted: str) -> bool:
    """True if one of `granted` names `wanted`, literally or by a wildcard such as ``read:*`` or ``*``.

    ``danger:*`` names are only covered literally.
    """
    for grant in granted:
        if grant == wanted:
            return True
        if grant.endswith("*") and not is_dangerous(wanted) and wanted.startswith(grant[:-1]):
            return True
    return False


def forbids(denied: Iterable[str], wanted: str) -> bool:
    """True if one of `denied` names `wanted`, literally or by a wildcard. Wildcards cover ``danger:*`` here, because a denial is never too wide."""
    return any(name == wanted or (name.endswith("*") and wanted.startswith(name[:-1])) for name in denied)


def missing(granted: Iterable[str], wanted: Iterable[str]) -> list[str]:
    """The names of `wanted` that `granted` does not cover, sorted."""
    granted = tuple(granted)
    lacking = [w for w in wanted if not covers(granted, w)]
    return sorted(lacking) if lacking else lacking
