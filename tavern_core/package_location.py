"""The folder of this package, which a worker may read and whose files errors skip; and the path for importing modules."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
_BENEATH: Final = f"{FOLDER}{os.sep}"


def is_own(file: str) -> bool:
    """Whether a file, as `co_filename` names it, belongs to this package."""
    return file.startswith(_BENEATH)


def module_path() -> list[str]:
    """The import path for processes that this one starts: as here, with this package, without the working folder."""
    parent = str(FOLDER.parent)
    path = list(_absolute())
    return path if parent in path else [*path, parent]


def _absolute() -> Iterator[str]:
    for entry in sys.path:
        if entry and Path(entry).is_absolute():
            yield os.fspath(entry)
