"""Runs a piece of Python in a process of its own, with the package importable."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tavern_core

ROOT = str(Path(tavern_core.__file__).parents[1])
ENVIRONMENT = {**os.environ, "PYTHONPATH": ROOT}


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A running process; `arguments` are its ``sys.argv[1:]``."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(
        command, env=ENVIRONMENT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def run(code: str, *arguments: object, seconds: float = 60.0) -> str:
    """What the process printed; it must end well."""
    with start(code, *arguments) as process:
        out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, err
    return out
