"""What the audit guard costs: each event that it ignores, and each event that it checks.

    python tests/benchmarks/report.py --only guard

An audit hook cannot be taken back, so every row is measured in a process of its own, without and with the guard, in turns; the
figure is the difference of the fastest rounds. Off there is nothing to measure: a host never puts the hook on, which the first
row shows by counting the hooks that opening one and calling a tool put on.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

CONDITIONS = "no tool call: nothing to audit; no arguments; any CPU"
MOST_US = 0.3
ROUNDS = 9
PAIRS = 3
CHILD = """
import json, sys, timeit
setup, statement, times, is_on, rounds = json.loads(sys.argv[1])
scope = {}
exec(setup, scope)
if is_on:
    import tempfile
    from tavern_core.review.audit.guard import AuditGuard
    from tavern_core.review.audit.path_names import PathNames
    from tavern_core.review.audit.attribution import StackAttribution
    folder = tempfile.mkdtemp()
    AuditGuard(StackAttribution(folder), PathNames(folder), lambda use: None).start()
timer = timeit.Timer(statement, globals=scope)
print(min(timer.repeat(rounds, times)) / times * 1e6)
"""
OFF = """
import sys, tempfile
put_on = []
add, sys.addaudithook = sys.addaudithook, put_on.append
from tavern_core import Tavern
with tempfile.TemporaryDirectory() as home, Tavern.open({"plugins": {"roots": [], "entryPoints": False}}, home=home) as tavern:
    assert tavern.invoke_sync("system:get_current_time").ok
print(len(put_on))
"""
DEEP = """
import os
def deep(levels, then):
    return then() if levels == 0 else deep(levels - 1, then)
"""
CASES = (
    # name, setup, statement, how often, whether the bound holds for it
    ("an event of other code", "import sys", "sys.audit('somebody.else', 1)", 50_000, True),
    ("an event of the interpreter (sys._getframe)", "import sys", "sys._getframe()", 50_000, True),
    (
        "a file that another opens, 20 frames deep",
        DEEP,
        "deep(20, lambda: os.close(os.open('/dev/null', 0)))",
        2_000,
        False,
    ),
    ("a variable that another reads", "import os", "os.environ.get('PATH')", 5_000, False),
)


def measured(setup: str, statement: str, times: int, is_on: bool) -> float:
    line = [sys.executable, "-c", CHILD, json.dumps([setup, statement, times, is_on, ROUNDS])]
    return float(subprocess.run(line, capture_output=True, text=True, check=True).stdout)


def rows() -> list[dict[str, Any]]:
    """All rows: area, name, value, unit, against, ratio, target."""
    hooks = int(subprocess.run([sys.executable, "-c", OFF], capture_output=True, text=True, check=True).stdout)
    found: list[dict[str, Any]] = [
        {
            "area": "guard",
            "name": "audit hooks of a host that calls a tool",
            "value": hooks,
            "unit": "hooks",
            "against": "nothing: off, the guard costs nothing",
            "ratio": hooks,
            "target": 0,
        }
    ]
    for name, setup, statement, times, is_bound in CASES:
        pairs = [
            (measured(setup, statement, times, False), measured(setup, statement, times, True)) for _ in range(PAIRS)
        ]
        without, with_it = (min(values) for values in zip(*pairs, strict=True))
        more = with_it - without
        found.append(
            {
                "area": "guard",
                "name": name,
                "value": round(more, 3),
                "unit": "µs more",
                "against": f"without the guard: {without:.3f} µs" + (f"; bound: {MOST_US} µs more" if is_bound else ""),
                "ratio": round(more / MOST_US, 2) if is_bound else None,
                "target": 1 if is_bound else None,
            }
        )
    return found
