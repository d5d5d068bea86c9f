"""Determines a tool's id from its written form, and a plugin's name from the free form of another system.

    getSubtitle                  un-prefixed          bilibili-fetcher:getSubtitle
    bilibili-fetcher:getSubtitle own name             bilibili-fetcher:getSubtitle
    MyAwesomePlugin:doSomething  own name, folded     my-awesome-plugin:doSomething      (as written: an alias)
    FileOperator.WriteFile       own name, `.` or `/` file-operator:WriteFile            (as written: an alias)
    BilibiliFetch:getSubtitle    manifest `aliases:`  bilibili-fetcher:getSubtitle       (as written: an alias)
    other-plugin:tool            foreign              refused

Source: FEATURES B14, E21, DESIGN §5.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.naming_rules import LONGEST_PLUGIN_NAME, RESERVED_NAMESPACES, is_local_name
from tavern_core.model.nearest import fold

_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True, slots=True)
class ToolId:
    """The canonical id, and the written one if it differs and must still be found."""

    id: str
    alias: str = ""


@dataclass(frozen=True, slots=True)
class IdRefusal:
    """Why a written id cannot be a tool of this plugin."""

    message: str
    hint: str


def canonical_id(written: str, plugin: str, aliases: Mapping[str, str]) -> ToolId | IdRefusal:
    """The id of a tool of `plugin` that its author calls `written`.

    Args:
        written: as in the tool file, the manifest or a returned tool.
        plugin: the plugin's name.
        aliases: `aliases:` of the manifest, written id → local name.
    """
    written = written.strip()
    if (target := aliases.get(written)) is not None:
        local = target.rpartition(":")[2]
        return ToolId(f"{plugin}:{local}", written) if is_local_name(local) else _bad_local(local)
    prefix, mark, local = _split(written, plugin)
    if not mark:
        return ToolId(f"{plugin}:{local}") if is_local_name(local) else _bad_local(local)
    if not is_local_name(local):
        return _bad_local(local)
    if fold(prefix) == fold(plugin):
        canonical = f"{plugin}:{local}"
        return ToolId(canonical, "" if written == canonical else written)
    if prefix in RESERVED_NAMESPACES:
        return IdRefusal(f"the namespace {prefix!r} belongs to the host", f"write {plugin}:{local}")
    hint = f'write {plugin}:{local}, or keep the id with `aliases: {{"{written}": {local}}}` in plugin.yaml'
    return IdRefusal(f"the prefix {prefix!r} of {written!r} is not this plugin's name ({plugin})", hint)


def _split(written: str, plugin: str) -> tuple[str, str, str]:
    """Prefix, separator, local name. `.` and `/` only separate behind the plugin's own name: `a.b` is a local name too."""
    prefix, mark, local = written.partition(":")
    if mark:
        return prefix, mark, local
    for separator in "./":
        prefix, mark, local = written.partition(separator)
        if mark and fold(prefix) == fold(plugin):
            return prefix, mark, local
    return "", "", written


def _bad_local(local: str) -> IdRefusal:
    shown = local if len(local) <= 80 else local[:77] + "…"
    return IdRefusal(
        f"{shown!r} is not a tool name",
        "use 1 to 64 of A-Z a-z 0-9 _ . - behind the colon; `aliases:` maps other names",
    )


def plugin_name(written: str, prefix: str = "") -> str:
    """The kebab-case name of a plugin whose own format calls it `written`; the same for the same text, always.

    >>> plugin_name("SciCalculator"), plugin_name("pdf", "skill-")
    ('sci-calculator', 'skill-pdf')
    """
    plain = re.sub(r"[^a-z0-9]+", "-", _WORDS.sub("-", written).lower()).strip("-")
    room = LONGEST_PLUGIN_NAME - len(prefix)
    if plain and len(plain) <= room and written.isascii():
        return prefix + plain
    digest = hashlib.sha256(written.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return prefix + "-".join(filter(None, (plain[: room - 9].strip("-"), digest)))
