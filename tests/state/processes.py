"""Runs a piece of Python in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path
from subprocess import PIPE

import tavern_core
from tests.forked_programs import ForkedProgram

ROOT = str(Path(tavern_core.__file__).parents[1])
ENVIRONMENT = {**os.environ, "PYTHONPATH": ROOT}


def start(code: str, *arguments: object) -> ForkedProgram:
    """A running process; `arguments` are its ``sys.argv[1:]``."""
    return ForkedProgram(["-c", code, *arguments], env=ENVIRONMENT, stdin=PIPE, stdout=PIPE, stderr=PIPE)


def run(code: str, *arguments: object, seconds: float = 60.0) -> str:
    """What the process printed; it must end well."""
    with start(code, *arguments) as process:
        out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, err
    return out
