"""Where modules are imported from, for processes that this one starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from tavern_core import package


def module_path() -> list[str]:
    """Where modules are imported from, as in this process, this package included; without the working folder."""
    own = str(package.FOLDER.parent)
    path = list(_absolute())
    return path if own in path else [*path, own]


def _absolute() -> Iterator[str]:
    for entry in sys.path:
        if entry and Path(entry).is_absolute():
            yield os.fspath(entry)
