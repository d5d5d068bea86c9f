"""How much of a file in JSON or YAML is read."""

from __future__ import annotations

from typing import Final

LARGEST_FILE: Final = 1_000_000  # bytes
MOST_NODES: Final = 50_000
MOST_FINDINGS: Final = 50
