"""The languages: the program of each, and the driver that runs the code in the box."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

from tavern_core.errors import ToolFailed
from tavern_core.frozen_dataclass import dataclass

DRIVERS: Final = Path(__file__).with_name("drivers")


@dataclass(frozen=True, slots=True)
class Language:
    """How to run the code of one language."""

    program: str
    """Absolute path."""
    options: tuple[str, ...]
    driver: Path
    file: str
    """The name of the file for the code."""

    def argv(self, code: str, value: str) -> list[str]:
        """The command line.

        Args:
            code: the file with the code.
            value: the file for the value of its last line.
        """
        return [self.program, *self.options, str(self.driver), code, value]


def find_language(name: str) -> Language:
    """How to run `name` on this machine. Raises ToolFailed: its program is not installed (TOOL_ERROR)."""
    if name == "python":
        if sys.executable:
            options = ("-I", "-B", "-X", "utf8")
            return Language(sys.executable, options, DRIVERS / "python_driver.py", "main.py")
    elif (program := shutil.which("node")) is not None:
        return Language(program, ("--no-warnings",), DRIVERS / "node_driver.js", "main.js")
    raise ToolFailed(
        f"{name} is not installed on this machine",
        hint="install Node.js so that `node` is found on PATH, or write Python",
        language=name,
        fixFor="operator",
    )
