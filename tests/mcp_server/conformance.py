"""Where the official conformance suites are, and how one is run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

FOLDER: Final = Path(sys.prefix) / "conformance"
NODE: Final = FOLDER / "node_modules" / ".bin" / "node"
SUITE: Final = FOLDER / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"


def is_installed() -> bool:
    """Whether `make conformance` has been here."""
    return NODE.exists() and SUITE.exists()


def run(*words: str) -> tuple[dict[str, tuple[int, int]], str]:
    """Run a suite: scenario → (checks passed, checks failed), and everything it wrote."""
    command = [str(NODE), str(SUITE), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    written = done.stdout + done.stderr
    summary = written.rpartition("=== SUMMARY ===")[2]
    lines = re.findall(r"[✓✗~] ([\w-]+): (\d+) passed, (\d+) failed", summary)
    return {name: (int(passed), int(failed)) for name, passed, failed in lines}, written


def not_scored(written: str) -> set[str]:
    """The scenarios that a suite ran although the revision does not require them."""
    return set(re.findall(r"[✓✗~] ([\w/.-]+) \((?:extension|added-after-release|pending)\)", written))
