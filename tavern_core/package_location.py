"""Where this package is: a worker may read exactly this folder, and errors skip its files. And where modules are imported from."""

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
    """Where processes that this one starts import modules from: as here, this package included, without the working folder."""
    own = str(FOLDER.parent)
    path = list(_absolute())
    return path if own in path else [*path, own]


def _absolute() -> Iterator[str]:
    for entry in sys.path:
        if entry and Path(entry).is_absolute():
            yield os.fspath(entry)
