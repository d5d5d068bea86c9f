"""How fast calls are read out of text, against a bare walk with `str.find` over the same text in the same run.

    python tests/benchmarks/bench_tam.py [--json] [--size MB]

Rows: parse and bind of dense blocks, sparse blocks, prose, streams in 20-character pieces, and how the time grows when
hostile text doubles.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import tempfile
import time
from collections.abc import Callable
from typing import Any

from tavern_core import Plugin, Tavern, tam, tool

START, END, HEAD, TAIL = "<|[REQUEST_TOOL]|>", "<|[END_TOOL]|>", "「始」", "「末」"
CONDITIONS = "no host; text of the named kind; any CPU"
MARKERS = (START, "<think>", "<thinking>")
SCHEMAS = {
    "FileOperator.WriteFile": {
        "type": "object",
        "properties": {"filePath": {"type": "string"}, "content": {"type": "string"}},
        "required": ["filePath", "content"],
        "additionalProperties": False,
    },
    "Search.Hybrid": {
        "type": "object",
        "properties": {"query": {"type": "string"}, "top_k": {"type": "integer"}},
        "required": ["query"],
        "additionalProperties": False,
    },
}
BLOCK = (
    f"{START}\ncommand:{HEAD}FileOperator.WriteFile{TAIL}\nfilePath:{HEAD}/logs/today.log{TAIL}\n"
    f"content:{HEAD}任务开始...\nprint('hello')\n{TAIL}\n{END}\n"
)
TYPED_BLOCK = f"{START}\ncommand:{HEAD}Search.Hybrid{TAIL}\nquery:{HEAD}天气{TAIL}\ntop_k:{HEAD}5{TAIL}\n{END}\n"
PROSE = "The quick brown fox jumps over the lazy dog, and then it says something rather long.\n"
CJK_PROSE = "这是一个普通的段落，没有任何标记。我们继续写下去，直到足够长为止。\n"


def best(job: Callable[[], object], times: int = 3) -> float:
    """Seconds of the fastest of some runs."""
    fastest = float("inf")
    for _ in range(times):
        gc.collect()
        gc.disable()
        begin = time.process_time()
        job()
        fastest = min(fastest, time.process_time() - begin)
        gc.enable()
    return fastest


def walk(text: str) -> int:
    """The floor: find every marker and delimiter of every block, keep nothing."""
    at = found = 0
    find = text.find
    while True:
        at = find(START, at)
        if at < 0:
            return found
        end = find(END, at)
        if end < 0:
            return found
        while True:
            at = find(HEAD, at, end)
            if at < 0:
                break
            at = find(TAIL, at + 3, end)
            if at < 0:
                break
            found += 1
        at = end


def feed_all(pieces: list[str]) -> None:
    scanner = tam.Scanner()
    feed = scanner.feed
    for piece in pieces:
        feed(piece)
    scanner.close()


def _row(name: str, value: float, unit: str, against: str, ratio: float | None, target: str) -> dict[str, Any]:
    return {
        "area": "tam",
        "name": name,
        "value": round(value, 3),
        "unit": unit,
        "against": against,
        "ratio": ratio and round(ratio, 2),
        "target": target,
    }


def reading_rows(size: int) -> list[dict[str, Any]]:
    """`parse` and `bind` of `size` characters against the walk."""
    rows = []
    for name, block in (("dense blocks", BLOCK), ("dense blocks, typed", TYPED_BLOCK)):
        text = block * (size // len(block))
        floor = best(lambda text=text: walk(text))
        parsed = best(lambda text=text: tam.parse(text))
        both = best(lambda text=text: tam.bind(tam.parse(text), SCHEMAS))
        per = 1e9 / len(text)
        against = f"str.find walk {floor * per:.2f} ns"
        rows.append(_row(f"parse, {name}", parsed * per, "ns/char", against, parsed / floor, "<= 12"))
        rows.append(_row(f"parse + bind, {name}", both * per, "ns/char", against, both / floor, "<= 20"))
    for name, prose in (("ASCII", PROSE), ("CJK", CJK_PROSE)):
        text = (prose * (4000 // len(prose)) + BLOCK) * (size // 4096)
        floor = best(lambda text=text: walk(text))
        parsed = best(lambda text=text: tam.parse(text))
        per = 1e9 / len(text)
        rows.append(
            _row(
                f"parse, one block per 4 kB of {name} prose",
                parsed * per,
                "ns/char",
                f"str.find walk {floor * per:.2f} ns",
                parsed / floor,
                "<= 6",
            )
        )
        text = prose * (size // len(prose))
        floor = best(lambda text=text: [text.find(marker) for marker in MARKERS])
        parsed = best(lambda text=text: tam.parse(text))
        rows.append(
            _row(
                f"parse, {name} prose",
                parsed * per,
                "ns/char",
                f"one find per marker {floor * per:.2f} ns",
                parsed / floor,
                "<= 3",
            )
        )
    return rows


def streaming_rows(size: int) -> list[dict[str, Any]]:
    """Microseconds per 20-character piece."""
    value = f"{START}\ncommand:{HEAD}FileOperator.WriteFile{TAIL}\ncontent:{HEAD}"
    texts = {
        "ASCII prose": (PROSE * (size // len(PROSE)), 1.0),
        "CJK prose": (CJK_PROSE * (size // len(CJK_PROSE)), 1.0),
        "a long value": (value + PROSE * (size // len(PROSE)) + TAIL + "\n" + END, 1.0),
        "a long CJK value": (value + CJK_PROSE * (size // len(CJK_PROSE)) + TAIL + "\n" + END, 1.0),
        "dense blocks": (BLOCK * (size // len(BLOCK)), 3.0),
    }
    rows = []
    for name, (text, target) in texts.items():
        pieces = [text[at : at + 20] for at in range(0, len(text), 20)]
        took = best(lambda pieces=pieces: feed_all(pieces)) / len(pieces) * 1e6
        rows.append(_row(f"stream, {name}", took, "us/piece", f"{target:g} µs", took / target, "<= 1"))
    return rows


def host_rows() -> list[dict[str, Any]]:
    """Microseconds of processor time a block of `tavern.run_text`: reading, the calls with their records, and the feedback."""

    @tool(fast=True)
    def add(a: int, b: int) -> int:
        return a + b

    def text(blocks: int) -> str:
        return "".join(
            f"Some words.\n{START}\ncommand:{HEAD}t:add{TAIL}\na:{HEAD}{n}{TAIL}\nb:{HEAD}2{TAIL}\n{END}\n"
            for n in range(blocks)
        )

    async def measure() -> dict[int, float]:
        async with Tavern.open(
            {"plugins": {"roots": [], "entryPoints": False}, "tam": {"maxCalls": 10_000}},
            plugins=[Plugin([add], name="t")],
            home=home,
        ) as tavern:
            took = {}
            for blocks in (400, 3_200):
                given, fastest = text(blocks), float("inf")
                for _ in range(5):
                    begin = time.process_time()
                    outcome = await tavern.run_text(given)
                    fastest = min(fastest, time.process_time() - begin)
                    assert outcome.ok and len(outcome.results) == blocks
                took[blocks] = fastest / blocks * 1e6
            return took

    with tempfile.TemporaryDirectory() as home:
        took = asyncio.run(measure())
    where = "audit on; two numbers; host of defaults, tam.maxCalls raised; any CPU"
    few, many = took[400], took[3_200]
    return [
        {**_row("run_text, a block of 400", few, "us/block", "60 µs", few / 60, "<= 1"), "conditions": where},
        {**_row("run_text, a block of 3,200", many, "us/block", "60 µs", many / 60, "<= 1"), "conditions": where},
        {
            **_row("run_text, a block of 3,200", many, "us/block", "a block of 400", many / few, "<= 1.2"),
            "conditions": where,
        },
    ]


HOSTILE: dict[str, Callable[[int], str]] = {
    "unterminated blocks": lambda n: START * n,
    "unterminated values": lambda n: f"{START}x:{HEAD}a\n" * n,
    "unterminated values on one line": lambda n: f"{START}x:{HEAD}a" * n,
    "line-start heads without tails": lambda n: START + f"\nx:{HEAD}a" * n,
    "heads in one line without tails": lambda n: START + f"x:{HEAD}a " * n,
    "endings without beginnings": lambda n: (END + TAIL) * n,
    "tails without a boundary": lambda n: f"{START}x:{HEAD}" + f"{TAIL}x" * n,
    "fields on one line without a boundary": lambda n: START + f" x:{HEAD}a{TAIL}b" * n,
    "escapes that never close": lambda n: f"{START}x:「始ESCAPE」" * n,
    "nested escaped blocks": lambda n: f"{START}\nx:「始ESCAPE」" * n + "「末ESCAPE」" * n,
    "second dialect without tails": lambda n: f"{START}\nx:»»»a\n{END}\n" * n,
    "second dialect, heads in one line": lambda n: START + "x:»»»a " * n,
    "angles": lambda n: START + "\nx:>>>a <<<b" * n,
    "thoughts": lambda n: "<think>" * n,
    "closed thoughts": lambda n: "<think>a</think>" * n,
    "half markers": lambda n: "<|[REQUEST_" * n,
    "brackets": lambda n: "<" * n,
    "comments": lambda n: START + f"\n# {TAIL} {HEAD}" * n,
    "notes": lambda n: START + f"\nx:{HEAD}a{TAIL} // b" * n,
    "malformed lines": lambda n: START + f"\na{TAIL}" * n,
    "stray words": lambda n: START + " word" * n,
    "blanks": lambda n: f"{START}x:{HEAD}a{TAIL}" + " " * n,
    "line breaks around colons": lambda n: START + ("k" + "\n" * 50 + ":") * n,
    "one open value": lambda n: f"{START}x:{HEAD}" + "word " * n,
    "one value full of heads": lambda n: f"{START}x:{HEAD}" + f"k:{HEAD}" * n,
    "wrong steps": lambda n: START + f"\ncommand1:{HEAD}T{TAIL}" + f"\nx9:{HEAD}1{TAIL}" * n + "\n" + END,
    "a chain of many steps": lambda n: (
        START + "".join(f"\ncommand{step}:{HEAD}T{TAIL}\nx{step}:{HEAD}1{TAIL}" for step in range(n)) + "\n" + END
    ),
}


def growth(job: Callable[[str], object], make: Callable[[int], str], chars: int) -> tuple[float, float]:
    """Seconds for `chars` characters, and the factor when they double (the better of three measurements)."""
    unit = max(1, len(make(64)) // 64)
    small, large = make(chars // unit), make(2 * chars // unit)
    pairs = [(best(lambda: job(small), 2), best(lambda: job(large), 2)) for _ in range(3)]
    return min(pairs)[0], min(double / single for single, double in pairs)


def growth_rows(size: int) -> list[dict[str, Any]]:
    """How time grows when hostile text doubles; at most 2.3 where time is linear."""

    def read(text: str) -> object:
        return tam.bind(tam.parse(text), {"T": {}})

    def stream(text: str) -> object:
        return feed_all([text[at : at + 20] for at in range(0, len(text), 20)])

    rows = []
    for name, make in HOSTILE.items():
        for way, job in (("parse", read), ("stream", stream)):
            took, factor = growth(job, make, size)
            rows.append(_row(f"{way} twice: {name}", took / size * 1e9, "ns/char", "half the text", factor, "<= 2.3"))
    took, factor = growth(tam.neutralise, lambda n: (START + HEAD + TAIL + "```\n") * n, size)
    rows.append(_row("neutralise twice", took / size * 1e9, "ns/char", "half the text", factor, "<= 2.3"))
    return rows


def rows(size: int = 10_000_000) -> list[dict[str, Any]]:
    """All rows: area, name, value, unit, against, ratio, target."""
    return reading_rows(size) + streaming_rows(size // 5) + host_rows() + growth_rows(size // 50)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--size", type=float, default=10, help="million characters")
    options = parser.parse_args()
    found = rows(int(options.size * 1_000_000))
    if options.json:
        print(json.dumps(found, ensure_ascii=False, indent=1))
        return
    for row in found:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:>7.2f} x"
        print(
            f"{row['name']:<58} {row['value']:>10.3f} {row['unit']:<8} {ratio:>9}  {row['target']:<7} {row['against']}"
        )


if __name__ == "__main__":
    main()
