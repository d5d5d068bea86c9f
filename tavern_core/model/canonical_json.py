"""The digest of plain data, for what is compared or found again: definitions, calls, requests."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def json_digest(value: Any, *, is_compact: bool = False) -> str:
    """The SHA-256, in hex, of plain data, the same for every order of its keys. What is not JSON counts as its text.

    Args:
        is_compact: no blanks between the parts. Stored digests were made in both forms.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":") if is_compact else None, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
