"""All benchmarks in one run, as a table; with --write as docs/benchmarks.md.

    python tests/benchmarks/report.py [--write | --only calls,tam]

Leaves with 1 when a ratio is above its target, so that `make bench` says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import textwrap
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "benchmarks.md"
QUALITY = "## Quality"
"""The page below this heading has the figures of `quality/`, whose scripts need data from elsewhere or take minutes; it is kept."""
AREAS = (
    "calls",
    "governance",
    "mcp",
    "tam",
    "catalogue",
    "discovery",
    "audit",
    "views",
    "guard",
    "isolation",
    "engine",
    "patch",
    "upstreams",
    "mcp_client",
    "retrieval",
)
PEERS = (
    "jsonschema-rs", "pydantic", "pluggy", "pydantic-ai-slim", "llm", "openai-agents", "langchain-core", "fastmcp", "mcp",
    "stevedore", "npe2", "langgraph", "sf-hamilton",
)  # fmt: skip

QUICK: dict[str, dict[str, int]] = {"tam": {"size": 3_000_000}}
"""Sizes that keep the whole run within a few minutes."""

INTRODUCTION = """# Benchmarks

`make bench` measures these figures. It builds an environment with the peers and runs everything in `tests/benchmarks/`
once, through the public API, with default settings unless a line names others. Each candidate takes turns with its
peers and floors in one run, and each area has its own process. Compare the **ratio**, not the time: machines differ,
ratios hardly do. A ratio above its bound is marked with **!**.

The column *conditions* says whether the audit log is on (the default), what the arguments are, and where the processes
are pinned. "Any CPU" means that the system places them.

`make test` contains no timed assertions, because a busy machine must not fail a correct program.
"""


def load(area: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{area}", HERE / f"bench_{area}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def measured(areas: list[str]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each area. Each has a process of its own: what the peers of another one leave in memory slows nobody down."""
    found = {}
    for area in areas:
        print(f"measuring {area} ...", file=sys.stderr, flush=True)
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            subprocess.run([sys.executable, __file__, "--into", file.name, "--only", area], check=True)
            found[area] = json.loads(Path(file.name).read_text("utf-8"))
    return found


def conditions(area: str, row: dict[str, Any]) -> str:
    """Audit, arguments and CPUs of a row: its own, or those that hold for its whole area."""
    return str(row.get("conditions") or load(area).CONDITIONS)


def is_missed(row: dict[str, Any]) -> bool:
    ratio, target = row.get("ratio"), most(row)
    return isinstance(ratio, int | float) and target is not None and ratio > target


def most(row: dict[str, Any]) -> float | None:
    """The target of a row as a number; some rows write it as ``<= 12``."""
    target = row.get("target")
    return float(str(target).removeprefix("<=")) if target not in (None, "") else None


def machine() -> str:
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    memory = ""
    try:
        memory = f", {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (ValueError, OSError):
        pass
    return f"{model}, {os.cpu_count()} cores{memory}, {platform.system()} {platform.release().partition('-')[0]}, CPython {platform.python_version()}"


def peers() -> str:
    found = []
    for name in PEERS:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} (not installed)")
    return ", ".join(found)


def cell(value: Any) -> str:
    if value is None:
        return ""
    return (
        f"{value:,.3g}"
        if isinstance(value, float) and abs(value) < 1000
        else f"{value:,.1f}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )


def table(area: str, rows: list[dict[str, Any]]) -> str:
    lines = ["| what | conditions | figure | against | ratio | at most |", "|---|---|---:|---|---:|---:|"]
    for row in rows:
        mark = " **!**" if is_missed(row) else ""
        lines.append(
            f"| {row['name']} | {conditions(area, row)} | {cell(row['value'])} {row.get('unit') or ''} | {row.get('against') or ''} "
            f"| {cell(row.get('ratio'))}{mark} | {cell(most(row))} |"
        )
    return "\n".join(lines)


def page(found: dict[str, list[dict[str, Any]]]) -> str:
    parts = [
        INTRODUCTION,
        textwrap.fill(f"Machine: {machine()}. Peers: {peers()}.", 120, break_on_hyphens=False) + "\n",
    ]
    for area, rows in found.items():
        title = (load(area).__doc__ or area).strip().partition("\n")[0].rstrip(".")
        parts.append(f"## {area}\n\n{title}.\n\n{table(area, rows)}\n")
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--only", default=",".join(AREAS), help="areas, separated by commas")
    parser.add_argument("--into", help="write the rows of one area into this file, as JSON")
    options = parser.parse_args()
    if options.into:
        Path(options.into).write_text(json.dumps(load(options.only).rows(**QUICK.get(options.only, {}))), "utf-8")
        return 0
    if options.write and options.only != parser.get_default("only"):
        parser.error("docs/benchmarks.md holds all areas of one run: --write goes without --only")
    found = measured(options.only.split(","))
    text = page(found)
    if options.write:
        _, heading, kept = PAGE.read_text("utf-8").partition(QUALITY)
        PAGE.write_text(f"{text}\n{heading}{kept}" if heading else text, "utf-8")
    else:
        print(text)
    return int(any(is_missed(row) for rows in found.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
