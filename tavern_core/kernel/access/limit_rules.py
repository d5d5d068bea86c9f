"""Limits of tavern.yaml for tools: the sections `tools`, `plugins`, `upstreams` and `callers` of `limits`.

    limits:
      tools: {"text:*": {rate: 100/minute}, "text:count": {concurrency: 2}}
      plugins: {text: {concurrency: 8}}
      upstreams: {api.example.org: {rate: 10/second}, clock: {breaker: {failures: 5}}}
      callers: {"*": {rate: 60/minute}, "role:batch": {concurrency: 1}}

An entry of `tools` is one of `tool_selectors`. All entries that name a tool apply; if two set the same limit, the more
specific one has precedence, and any of them has precedence over the tool's own definition.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.access.tool_selectors import SelectorTargets, ToolList, ToolNames, plugin_key, specificity
from tavern_core.model.call_limits import NO_LIMITS, ToolLimits
from tavern_core.model.config import LimitsConfig
from tavern_core.model.tool import ToolSpec

OWN: Final = "the tool"


@dataclass(frozen=True, slots=True)
class LimitRule:
    """Limits, and their place: ``limits.tools.text:count``, or ``the tool``."""

    place: str
    limits: ToolLimits


class LimitRules:
    """The sections, compiled."""

    def __init__(self, config: LimitsConfig, known: SelectorTargets) -> None:
        self._tools = [
            (entry, rule.limits(), ToolList.compile(f"limits.tools.{entry}", [entry], known, wide=True))
            for entry, rule in config.tools.items()
        ]
        self._plugins = {known.plugin(name): (name, rule.limits()) for name, rule in config.plugins.items()}
        self._upstreams = {name.lower(): rule.limits() for name, rule in config.upstreams.items()}

    def of_tool(self, tool: ToolSpec) -> tuple[LimitRule, ...]:
        """The limits of the tool alone: most specific first, its own last."""
        names = ToolNames.of(tool)
        found = [
            (rank, LimitRule(f"limits.tools.{entry}", limits))
            for entry, limits, matcher in self._tools
            if (rank := specificity(entry, matcher, names)) is not None
        ]
        rules = [rule for _, rule in sorted(found, key=lambda one: one[0], reverse=True)]
        return (*rules, LimitRule(OWN, tool.limits)) if tool.limits != NO_LIMITS else tuple(rules)

    def of_plugin(self, tool: ToolSpec) -> LimitRule | None:
        """The limits that all tools of its plugin share."""
        found = self._plugins.get(plugin_key(tool.plugin))
        return None if found is None else LimitRule(f"limits.plugins.{found[0]}", found[1])

    def of_upstream(self, tool: ToolSpec) -> LimitRule | None:
        """The limits that all tools of its upstream share."""
        name = next((name for name in (tool.described_by, _host_of(tool)) if name in self._upstreams), "")
        return LimitRule(f"limits.upstreams.{name}", self._upstreams[name]) if name else None


def _host_of(tool: ToolSpec) -> str:
    if not tool.endpoint:
        return ""
    try:
        return urlsplit(tool.endpoint).netloc.rpartition("@")[2].lower()
    except ValueError:
        return ""
