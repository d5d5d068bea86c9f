"""How long it takes to find tools among ten thousand, to check a caller, and to write a manual.

python tests/benchmarks/report.py --only catalogue
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from tavern_core import CallContext, Plugin, Tavern, tool

CONDITIONS = "audit on; 10,000 tools; nothing is called; any CPU"
TOOLS = 10_000
QUERIES = 300
VERBS = [
    "get",
    "list",
    "create",
    "delete",
    "update",
    "search",
    "convert",
    "translate",
    "count",
    "render",
    "fetch",
    "upload",
    "compare",
    "merge",
    "split",
    "check",
]
NOUNS = [
    "file",
    "image",
    "video",
    "note",
    "task",
    "page",
    "table",
    "user",
    "order",
    "message",
    "subtitle",
    "weather",
    "route",
    "chart",
    "archive",
    "password",
]
CHINESE = [
    "获取",
    "列出",
    "创建",
    "删除",
    "修改",
    "搜索",
    "转换",
    "翻译",
    "统计",
    "生成",
    "文件",
    "图片",
    "视频",
    "笔记",
    "任务",
    "网页",
    "表格",
]
ACCESS = {
    "tools": {"allow": ["group:plugins"], "deny": ["delete_*", "plugin-3"], "groups": {"g": ["plugin-1", "*:get*"]}},
    "callers": {"role:guest": {"deny": ["update_*"]}, "user:alice": {"allow": ["group:g", "plugin-2"]}},
}


def plugins() -> list[Plugin]:
    """400 plugins of 25 tools, with words as real ones have: some everywhere, most rare, two languages."""
    pick = random.Random(4)
    rare = [f"{pick.choice(NOUNS)}{n}" for n in range(3_000)]

    def made(number: int) -> Callable[..., Any]:
        verb, noun = pick.choice(VERBS), pick.choice(NOUNS)
        text = f"{verb.title()} a {noun} and return the result. {' '.join(pick.choices(rare, k=8))} {''.join(pick.choices(CHINESE, k=6))}。"
        parameters = {
            "type": "object",
            "properties": {noun: {"type": "string", "description": f"The {noun} to {verb}"}},
        }

        @tool(
            name=f"{verb}_{noun}_{number}",
            description=text,
            tags=[noun],
            optional=number % 10 == 0,
            parameters=parameters,
        )
        def work(**values: str) -> str:
            return ""

        return work

    return [Plugin([made(p * 25 + n) for n in range(25)], name=f"plugin-{p}") for p in range(TOOLS // 25)]


def median(work: Callable[[], object], times: int) -> float:
    """Milliseconds of one run, the median of `times`."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append((time.perf_counter() - began) * 1_000)
    return statistics.median(taken)


def row(name: str, milliseconds: float, limit: float | None = None) -> dict[str, Any]:
    return {
        "area": "catalogue", "name": name, "value": milliseconds, "unit": "ms", "against": "" if limit is None else f"{limit:g} ms",
        "ratio": None if limit is None else milliseconds / limit, "target": None if limit is None else 1,
    }  # fmt: skip


def rows() -> list[dict[str, Any]]:
    """All rows: area, name, value, unit, against, ratio, target."""
    catalogue, pick = plugins(), random.Random(5)
    words = [*VERBS, *NOUNS, *(f"{pick.choice(NOUNS)}{n}" for n in range(100)), *CHINESE]
    queries = [" ".join(pick.sample(words, pick.randint(1, 4))) for _ in range(QUERIES)]
    alice = CallContext(user_id="alice", roles=frozenset({"guest"}))
    found = []
    with tempfile.TemporaryDirectory() as home:
        began = time.perf_counter()
        with Tavern.open(plugins=catalogue, home=home) as tavern:
            tavern.tools.list()
            found.append(row("open a host and list its tools", (time.perf_counter() - began) * 1e3))
            found.append(row("first search: builds the index", median(lambda: tavern.tools.search("first"), 1)))
            taken = sorted(median(lambda query=query: tavern.tools.search(query), 1) for query in queries)
            found.append(row(f"search, {QUERIES} different queries: p50", taken[len(taken) // 2], 5))
            found.append(row(f"search, {QUERIES} different queries: p95", taken[int(len(taken) * 0.95)]))
            found.append(row("search, the slowest of them", taken[-1]))
            profile = {"tool_ids_inventory": [spec.id for spec in tavern.tools.list()[::200]]}
            taken = sorted(
                median(lambda query=query: tavern.tools.search(query, profile=profile), 1) for query in queries
            )
            found.append(row("search among the 50 tools of a profile: p50", taken[len(taken) // 2], 5))
            found.append(row("list all tools", median(tavern.tools.list, 20)))
            found.append(row("manual of 50 tools", median(lambda: tavern.manual(profile), 20)))
            found.append(row("manual of all tools in the default budget", median(tavern.manual, 3)))
        with Tavern.open(ACCESS, plugins=catalogue, home=home) as tavern:
            tavern.tools.list(context=alice)
            found.append(
                row("list the tools of a caller with rules", median(lambda: tavern.tools.list(context=alice), 5))
            )
            one = tavern.tools.list(context=alice)[0].id
            found.append(
                row("say why a caller may use a tool", median(lambda: tavern.tools.why(one, context=alice), 100))
            )
    return found
