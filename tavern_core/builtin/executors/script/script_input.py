"""The stdin of a script: one JSON object in UTF-8.

    {"url": "https://…",                                    the arguments, by name, for short scripts
     "arguments": {"url": "https://…"},                     the same as one object
     "config": {"bilibiliCookie": "…"},                     the tool's own settings (`configSchema`), secrets included
     "call": {"id": "c-1", "tool": "a:b", "timeoutMs": 30000}}

An argument whose name is `arguments`, `config` or `call` is found only inside `arguments`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tavern_core.errors import InputInvalid
from tavern_core.schema.bounded_json_copying import measure


def vcp_request(arguments: Mapping[str, Any], command: str, tool: str) -> bytes:
    """The bytes for the stdin of a VCP plugin: the arguments, and which of its commands is meant.

    Raises:
        InputInvalid: a value that JSON cannot say, with its path (INPUT_SCHEMA_INVALID).
    """
    given = dict(arguments)
    _refuse_unsayable(tool, "argument", given)
    return json.dumps({**given, "command": command}, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _refuse_unsayable(tool: str, what: str, value: Mapping[str, Any]) -> None:
    if (problem := measure(value)) is not None:
        raise InputInvalid(
            f"{tool}: {what} {problem.path} {problem.message}", hint=problem.hint, problems=[problem.to_json()]
        )


def request(arguments: Mapping[str, Any], config: Mapping[str, Any], call_id: str, tool: str, timeout_ms: int) -> bytes:
    """The bytes for stdin.

    Raises:
        InputInvalid: a value that JSON cannot express, with its path (INPUT_SCHEMA_INVALID).
    """
    given, settings = dict(arguments), dict(config)
    _refuse_unsayable(tool, "argument", given)
    _refuse_unsayable(tool, "setting", settings)
    call = {"id": call_id, "tool": tool, "timeoutMs": timeout_ms}
    message = {**given, "arguments": given, "config": settings, "call": call}
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
