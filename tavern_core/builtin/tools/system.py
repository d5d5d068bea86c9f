"""``system:get_current_time``: the current time in any zone (seed 000 §4.4.2); ``system:search_tools``: the rest of a shortened manual."""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any, Final

from tavern_core.contract.context import PluginContext
from tavern_core.contract.core_services import SYSTEM_CLOCK, TOOL_MANAGER, SystemClock, ToolManager
from tavern_core.contract.hookspecs import hookimpl
from tavern_core.contract.protocols import NamespaceResolver
from tavern_core.contract.python_targets import PythonTarget
from tavern_core.errors import InputInvalid
from tavern_core.model.naming_rules import SEARCH_TOOLS, split_id
from tavern_core.model.nearest import nearest
from tavern_core.model.tool import Example, ToolSpec, marked_description

PARAMETERS: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "timezone": {
            "type": "string",
            "maxLength": 64,
            "description": "IANA name of the time zone, e.g. Asia/Shanghai or UTC; default: the host's own.",
        },
        "format": {
            "type": "string",
            "maxLength": 200,
            "description": "strftime pattern, e.g. %Y-%m-%d %H:%M; default: ISO 8601 with the offset from UTC.",
        },
    },
    "additionalProperties": False,
}

SEARCH: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "maxLength": 1_000, "description": "Words, or the id of a tool. 关键词或工具 ID。"},
        "limit": {
            "type": "integer",
            "minimum": 1,
            "maximum": 20,
            "default": 5,
            "description": "Maximum number of tools. 最多返回几个工具。",
        },
    },
    "required": ["query"],
    "additionalProperties": False,
}


@hookimpl(fast=True)
def tavern_register_tools(ctx: PluginContext) -> Iterable[ToolSpec]:
    def get_current_time(timezone: str | None = None, format: str | None = None) -> str:  # noqa: A002 - the tool's parameter
        clock: SystemClock = ctx.service(SYSTEM_CLOCK)
        return formatted(
            datetime.fromtimestamp(clock.now(), UTC), clock.timezone() if timezone is None else timezone, format
        )

    return [
        ToolSpec(
            name="system:get_current_time",
            display_name="Current time",
            description="Returns the current date and time, in the host's time zone or in another one. 获取当前日期和时间。",
            version="1.0.0",
            tags=("time", "date", "clock", "时间", "日期"),
            input_schema=PARAMETERS,
            output_schema={"type": "string"},
            impl=PythonTarget(get_current_time),
            examples=(
                Example({}, "now, here"),
                Example({"timezone": "Asia/Shanghai", "format": "%Y年%m月%d日 %H:%M"}, "now, in Shanghai"),
            ),
            read_only=True,
            fast=True,
        )
    ]


@hookimpl(fast=True)
def tavern_register_namespaces(ctx: PluginContext) -> Mapping[str, NamespaceResolver]:
    return {"system": _UnlistedTools(ctx)}


class _UnlistedTools:
    """A tool outside of all inventories: only a shortened manual names it."""

    def __init__(self, ctx: PluginContext) -> None:
        self._ctx = ctx

    def names(self) -> list[str]:
        return []

    def resolve(self, local: str, /) -> ToolSpec | None:
        if local != split_id(SEARCH_TOOLS)[1]:
            return None
        return ToolSpec(
            name=SEARCH_TOOLS,
            display_name="Search tools",
            description="Finds tools by words, and shows their descriptions and parameters. 按关键词查找工具，并显示其说明和参数。",
            version="1.0.0",
            tags=("tools", "search", "工具", "搜索"),
            input_schema=SEARCH,
            output_schema={"type": "array", "items": {"type": "object"}},
            impl=PythonTarget(self._search),
            examples=(Example({"query": "time"}, "by a word"),),
            read_only=True,
            fast=True,
        )

    def _search(self, query: str, limit: int) -> list[dict[str, Any]]:
        """The best matching tools that the caller may see, best first."""
        tools: ToolManager = self._ctx.service(TOOL_MANAGER)
        return [
            _shown(found, found.get("implementation", {}).get("upstream", "")) for found in tools.search(query, limit)
        ]


def _shown(tool: Mapping[str, Any], upstream: str) -> dict[str, Any]:
    """A tool as a model reads it.

    Args:
        upstream: the upstream that wrote its description and parameters; empty: none.
    """
    from tavern_core.tam import neutralise_json

    parameters = tool["inputSchema"]
    return {
        "id": tool["id"],
        "description": marked_description(tool["description"], upstream),
        "parameters": neutralise_json(parameters) if upstream else parameters,
    }


def formatted(moment: datetime, timezone: str | None = None, pattern: str | None = None) -> str:
    """`moment` as text.

    Args:
        moment: with a time zone.
        timezone: IANA name; None: the host's own zone.
        pattern: for strftime; None: ISO 8601 in whole seconds with the offset.

    Raises:
        InputInvalid: no such zone, or an unusable pattern (INPUT_SCHEMA_INVALID).
    """
    local = moment.astimezone(None if timezone is None else _zone(timezone))
    if pattern is None:
        return local.isoformat(timespec="seconds")
    try:
        return local.strftime(pattern)
    except ValueError as error:  # UnicodeError is one
        raise InputInvalid(
            f"format {pattern!a} cannot be used: {error}", hint="for example %Y-%m-%d %H:%M:%S", argument="format"
        ) from None


def _zone(name: str) -> tzinfo:
    if name.upper() in ("UTC", "Z"):
        return UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        # ValueError: an absolute or escaping path; OSError: a folder of the database, such as "Asia"
        near = _nearest_zones(name)
        raise InputInvalid(
            f"there is no time zone {name!a}",
            hint=f"did you mean {' or '.join(near)}?" if near else "use an IANA name such as Europe/Berlin",
            argument="timezone",
            nearest=near,
        ) from None


def _nearest_zones(name: str) -> list[str]:
    """Zones whose full name or city is close: ``shanghai`` and ``Asia/Shangai`` both mean ``Asia/Shanghai``."""
    zones = sorted(zoneinfo.available_timezones())
    cities = {zone.rpartition("/")[2]: zone for zone in zones}
    found = [*nearest(name, zones), *(cities[city] for city in nearest(name.rpartition("/")[2], cities))]
    return list(dict.fromkeys(found))[:3]
