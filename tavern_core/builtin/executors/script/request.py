"""What a script finds on its stdin: one JSON object, UTF-8.

    {"url": "https://…",                                    the arguments, by name, for scripts of three lines
     "arguments": {"url": "https://…"},                     the same, whole
     "config": {"bilibiliCookie": "…"},                     the tool's own settings (`configSchema`), secrets included
     "call": {"id": "c-1", "tool": "a:b", "timeoutMs": 30000}}

An argument whose name is `arguments`, `config` or `call` is found only inside `arguments`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tavern_core.errors import InputInvalid


def request(arguments: Mapping[str, Any], config: Mapping[str, Any], call_id: str, tool: str, timeout_ms: int) -> bytes:
    """The bytes for stdin.

    Raises:
        InputInvalid: a value that JSON cannot say, with its path (INPUT_SCHEMA_INVALID).
    """
    call = {"id": call_id, "tool": tool, "timeoutMs": timeout_ms}
    message = {**arguments, "arguments": arguments, "config": config, "call": call}
    try:
        return json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except RecursionError:
        raise InputInvalid(f"{tool}: the arguments are nested too deeply to be written as JSON") from None
    except UnicodeEncodeError as error:
        broken = error.object[error.start]
        why = f"the character {broken!a} is half of a surrogate pair and no text"
    except (ValueError, TypeError) as error:
        why = str(error)
    where = _first_bad(arguments) or _first_bad(config, "config")
    raise InputInvalid(
        f"{tool}: {where or 'an argument'} cannot be written as JSON: {why}",
        hint="pass strings, numbers, true, false, null, lists and objects",
        argument=where,
    )


def _first_bad(value: Any, path: str = "") -> str:
    """The dotted path of the first part that cannot be written; empty when every part can."""
    if isinstance(value, Mapping):
        parts = [(str(key), part) for key, part in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(str(index), part) for index, part in enumerate(value)]
    else:
        return "" if _is_writable(value) else path
    for name, part in parts:
        inner = f"{path}.{name}" if path else name
        if not _is_writable(name) or (found := _first_bad(part, inner)):
            return inner if not _is_writable(name) else found
    return ""


def _is_writable(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, TypeError):
        return False
    return True
