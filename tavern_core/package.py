"""Where this package lies: one place, since a worker may read exactly this folder, and errors pass over its files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
_BENEATH: Final = f"{FOLDER}{os.sep}"


def is_own(file: str) -> bool:
    """Whether a file, as `co_filename` names it, belongs to this package."""
    return file.startswith(_BENEATH)
