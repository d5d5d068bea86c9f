"""Messages of a server, from bytes: bounded before they are parsed, and never parsed for long on the event loop.

A large message is parsed in a thread. A parser in C holds the interpreter until it is done, also there. So the values of a message are
counted first, and one with many is parsed by the standard library's parser in Python: slower, and everything else goes on.
"""

from __future__ import annotations

import asyncio
import json
import re
from json import scanner
from typing import Any, Final

from mcp_types import ErrorData, JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from pydantic import ValidationError

from tavern_core.errors import OutputTooLarge
from tavern_core.schema.json_reader import equal_key, refuse_constant

FEW_VALUES: Final = 20_000
"""Values that are parsed at once: some 30 ms at worst."""
MOST_VALUES: Final = 1_000_000
LARGE: Final = 250_000
"""Bytes of a message that is not parsed on the event loop."""
_LONGEST_METHOD: Final = 200
_BEGINNING: Final = 100
_ANSWER: Final = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,12})\s*,')


class NotAMessage(ValueError):
    """It is not a JSON-RPC message."""


def values_in(data: bytes | bytearray) -> int:
    """An upper estimate of the number of values in a JSON text."""
    return data.count(b",") + data.count(b"[") + data.count(b"{")


async def read_json(data: bytes) -> Any:
    """Parse untrusted JSON.

    Raises:
        NotAMessage: it is not JSON.
        OutputTooLarge: it has more than `MOST_VALUES` values (OUTPUT_TOO_LARGE).
    """
    try:
        is_quick = len(data) <= LARGE and values_in(data) <= FEW_VALUES
        return _parse_at_once(data) if is_quick else await asyncio.to_thread(_parse, data)
    except (ValueError, RecursionError) as error:
        raise NotAMessage(str(error)) from None


def _parse(data: bytes) -> Any:
    count = values_in(data)
    if count > MOST_VALUES:
        raise OutputTooLarge(
            f"a message of about {count:,} values, more than {MOST_VALUES:,}", outcome="unknown", limit=MOST_VALUES
        )
    return _parse_at_once(data) if count <= FEW_VALUES else _parse_in_steps(data)


class ObjectWithOneKeyTwice:
    """Replaces an object with a duplicate key. It fits no schema, so only the part that contains it is refused."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __repr__(self) -> str:
        return f"an object that has the key {self._key[:100]!r} twice"


def refuse_no_json(value: object) -> None:
    """For `to_json`: name the value that cannot be converted."""
    raise ValueError(f"it holds {value!r}")


def _parse_at_once(data: bytes) -> Any:
    return _MARKING.decode(data.decode())


def _parse_in_steps(data: bytes) -> Any:
    """Parse in steps between which other threads have their turn."""
    decoder = json.JSONDecoder(object_pairs_hook=_object_of, parse_constant=refuse_constant)
    decoder.scan_once = scanner.py_make_scanner(decoder)  # type: ignore[attr-defined]  # the one in C is the default
    return decoder.decode(data.decode("utf-8"))


def _object_of(pairs: list[tuple[str, Any]]) -> Any:
    members = dict(pairs)
    return members if len(members) == len(pairs) else ObjectWithOneKeyTwice(equal_key(pairs))


_MARKING: Final = json.JSONDecoder(object_pairs_hook=_object_of, parse_constant=refuse_constant)


def answered_by(data: bytes, value: Any = None) -> int | None:
    """The number of the request that an unreadable message answers: that of its value, else the one that its beginning contains."""
    if isinstance(value, dict) and "method" not in value and type(number := value.get("id")) is int:
        return number
    found = _ANSWER.match(data, 0, _BEGINNING)
    return None if found is None else int(found[1])


def message_of(value: Any) -> JSONRPCMessage:
    """Convert a JSON value into a JSON-RPC message.

    Raises:
        NotAMessage: it is not one.
    """
    if not isinstance(value, dict):
        raise NotAMessage("a message is an object")
    number = value.get("id")
    if number is not None and (isinstance(number, bool) or not isinstance(number, int | str)):
        raise NotAMessage("an id is a number or a text")
    if isinstance(result := value.get("result"), dict) and number is not None:
        # Without validation: it would look at the result several times. The code that made the request reads it.
        return JSONRPCResponse.model_construct(jsonrpc="2.0", id=number, result=result)
    if "error" in value:
        try:
            error = ErrorData.model_validate(value["error"])
        except ValidationError:
            raise NotAMessage("an error has a code and a message") from None
        return JSONRPCError.model_construct(jsonrpc="2.0", id=number, error=error)
    method, params = value.get("method"), value.get("params")
    if not isinstance(method, str) or len(method) > _LONGEST_METHOD or not isinstance(params, dict | None):
        raise NotAMessage("neither request nor answer")
    if number is None:
        return JSONRPCNotification.model_construct(jsonrpc="2.0", method=method, params=params)
    return JSONRPCRequest.model_construct(jsonrpc="2.0", id=number, method=method, params=params)
