"""How long it takes to find tools among ten thousand, to judge a caller, and to write a manual.

    python tests/benchmarks/bench_catalogue.py

Prints one line per figure: what, the median, the limit. Ends with 1 when a limit is passed.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tavern_core.kernel.access.access import compile_access
from tavern_core.kernel.catalogue.fulltext import PlainEngine
from tavern_core.kernel.catalogue.manual import render_manual
from tavern_core.kernel.catalogue.search import ToolIndex
from tavern_core.model.call import CallContext
from tavern_core.model.config import AccessRule, ToolsConfig
from tavern_core.model.tool import ToolSpec

CONDITIONS = "no host; 10,000 tools; any CPU"
TOOLS = 10_000
_VERBS = [
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
_NOUNS = [
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
_CHINESE = [
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


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured thing, in milliseconds."""

    name: str
    milliseconds: float
    limit: float | None = None

    def __str__(self) -> str:
        limit = f"limit {self.limit:g} ms" if self.limit is not None else ""
        return f"{self.name:<58} {self.milliseconds:>10.3f} ms  {limit}"


def tools(count: int = TOOLS) -> list[ToolSpec]:
    """A catalogue with words as real ones have: some everywhere, most rare, two languages."""
    pick = random.Random(4)
    rare = [f"{pick.choice(_NOUNS)}{n}" for n in range(3_000)]
    made = []
    for n in range(count):
        verb, noun = pick.choice(_VERBS), pick.choice(_NOUNS)
        chinese = "".join(pick.choices(_CHINESE, k=6))
        made.append(
            ToolSpec(
                f"plugin-{n // 25}:{verb}_{noun}_{n}",
                f"{verb.title()} a {noun} and tell the result. {' '.join(pick.choices(rare, k=8))} {chinese}。",
                plugin=f"plugin-{n // 25}",
                tags=(noun,),
                optional=n % 10 == 0,
                input_schema={"properties": {noun: {"type": "string", "description": f"The {noun} to {verb}"}}},
            )
        )
    return made


def median(work: Callable[[], object], times: int) -> float:
    """Milliseconds of one run, the median of `times`."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append((time.perf_counter() - start) * 1_000)
    return statistics.median(taken)


def measure() -> list[Figure]:
    """All figures of this page."""
    catalogue = tools()
    pick = random.Random(5)
    words = [*_VERBS, *_NOUNS, *(f"{pick.choice(_NOUNS)}{n}" for n in range(100)), *_CHINESE]
    queries = [" ".join(pick.sample(words, pick.randint(1, 4))) for _ in range(300)]
    figures = [Figure("register 10,000 tools for search", median(lambda: ToolIndex(catalogue), 5), 50)]
    index = ToolIndex(catalogue)
    figures.append(Figure("first search: builds the index", median(lambda: index.search("first"), 1)))
    taken = sorted(median(lambda query=query: index.search(query), 1) for query in queries)
    figures.append(Figure("search, 300 different queries: p50", taken[len(taken) // 2], 5))
    figures.append(Figure("search, 300 different queries: p95", taken[int(len(taken) * 0.95)]))
    figures.append(Figure("search, the worst of them", taken[-1]))
    mine = {tool.id for tool in catalogue[::200]}
    taken = sorted(median(lambda query=query: index.search(query, among=mine), 1) for query in queries)
    figures.append(Figure("search among the 50 tools of a profile: p50", taken[len(taken) // 2], 5))
    figures.append(Figure("all tools by id", median(lambda: index.search("", limit=1_000), 20)))
    plain = ToolIndex(catalogue, engine=PlainEngine())
    plain.search("first")
    taken = sorted(median(lambda query=query: plain.search(query), 1) for query in queries[:50])
    figures.append(Figure("search without FTS5: p50", taken[len(taken) // 2]))
    figures += access_figures(catalogue)
    figures.append(Figure("manual of 50 tools", median(lambda: render_manual(catalogue[:50]), 20)))
    figures.append(Figure("manual of 10,000 tools in 60,000 characters", median(lambda: render_manual(catalogue), 3)))
    return figures


def access_figures(catalogue: list[ToolSpec]) -> list[Figure]:
    """Compiling the lists, judging all tools, and the verdict of one call whose tool was compiled before."""
    config = ToolsConfig(allow=("group:plugins",), deny=("delete_*", "plugin-3"), groups={"g": ("plugin-1", "*:get*")})
    callers = {"role:guest": AccessRule(deny=("update_*",)), "user:alice": AccessRule(allow=("group:g", "plugin-2"))}
    ids, plugins = [tool.id for tool in catalogue], {tool.plugin for tool in catalogue}
    policy = compile_access(config, callers, ids, plugins)
    access, context = policy.for_tool(catalogue[30]), CallContext(user_id="alice", roles=frozenset({"guest"}))
    rounds = range(10_000)
    return [
        Figure(
            "compile the lists beside 10,000 tools", median(lambda: compile_access(config, callers, ids, plugins), 5)
        ),
        Figure("judge 10,000 tools for the host", median(lambda: [policy.host_verdict(t) for t in catalogue], 5)),
        Figure("10,000 verdicts on one tool", median(lambda: [access.verdict(context) for _ in rounds], 5)),
    ]


def rows() -> list[dict[str, Any]]:
    """All rows: area, name, value, unit, against, ratio, target."""
    return [
        {
            "area": "catalogue", "name": figure.name, "value": round(figure.milliseconds, 3), "unit": "ms",
            "against": "" if figure.limit is None else f"{figure.limit:g} ms",
            "ratio": None if figure.limit is None else round(figure.milliseconds / figure.limit, 3),
            "target": None if figure.limit is None else 1.0,
        }
        for figure in measure()
    ]  # fmt: skip


def main() -> int:
    figures = measure()
    print("\n".join(map(str, figures)))
    return int(any(figure.limit is not None and figure.milliseconds > figure.limit for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
