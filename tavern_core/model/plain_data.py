"""Plain data: its digest, and copies with other leaves, such as each text masked or each number written alike."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from tavern_core.model import depths


def json_digest(value: Any, *, is_compact: bool = False) -> str:
    """The SHA-256, in hex, of plain data, the same for every order of its keys. What is not JSON counts as its text.

    Args:
        is_compact: no blanks between the parts. Stored digests were made in both forms.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":") if is_compact else None, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def with_leaves(
    value: Any, change: Callable[[Any], Any], *, with_keys: bool = False, levels: int = depths.WRAPPED
) -> Any:
    """A copy in which each part that is neither a mapping nor a list is ``change(part)``; what is nested deeper is cut.

    Args:
        with_keys: the keys are changed, too.
    """
    if isinstance(value, Mapping):
        if levels == 0:
            return "…"
        return {
            change(key) if with_keys else key: with_leaves(item, change, with_keys=with_keys, levels=levels - 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        if levels == 0:
            return "…"
        return [with_leaves(item, change, with_keys=with_keys, levels=levels - 1) for item in value]
    return change(value)


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of JSON in which each text, keys included, is ``change(text)``."""
    return with_leaves(value, lambda leaf: change(leaf) if isinstance(leaf, str) else leaf, with_keys=True)
