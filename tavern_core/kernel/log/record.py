"""A record of the event log: a line of JSON with its own hash and the hash of the line before it.

    {"seq":7,"time":"…Z","type":"TOOL_CALLED","callId":"…","plugin":"text", …data… ,"prev":"<hash of 6>","hash":"<sha256>"}

`hash` is the SHA-256, in hex, of the bytes of the line up to ``,"hash":`` - `prev` included, so each record seals all
before it. To check a log by hand, the line itself is enough: no re-serialisation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, NamedTuple

from pydantic_core import to_json

from tavern_core.model import depths
from tavern_core.model.event import Event
from tavern_core.model.result import iso_utc
from tavern_core.model.safe_printing import encodable

GENESIS: Final = "0" * 64
"""`prev` of the first record."""
LONGEST_RECORD: Final = 1_000_000
"""Bytes of a line; data that need more are replaced by their size and their beginning."""
RESERVED: Final = frozenset({"seq", "time", "type", "callId", "plugin", "prev", "hash"})

_START: Final = b'{"seq":'
_HASH: Final = b',"hash":"'
_PREV: Final = b',"prev":"'
_END: Final = b'"}\n'
_HASH_TAIL: Final = len(_HASH) + 64 + len(_END)
_PREV_TAIL: Final = _HASH_TAIL + 1 + 64 + len(_PREV)
_KEPT_OF_TOO_LARGE: Final = 2_000

_MOST_DIGITS: Final = 4_000
_second: tuple[int, str] = (0, "1970-01-01T00:00:00")  # formatted once a second, not once a record


class ChainLink(NamedTuple):
    """The data that a record adds to the chain."""

    seq: int
    hash: str
    prev: str


def encode(event: Event, seq: int, prev: str) -> tuple[bytes, str]:
    """The line of `event` as record `seq` after the record with hash `prev`, and its own hash.

    Never fails on content: values without a JSON form (NaN, lone surrogates, foreign objects, cycles) become text.
    """
    data = event.data
    if not RESERVED.isdisjoint(data):
        data = {f"data.{key}" if key in RESERVED else key: value for key, value in data.items()}
    try:
        return encode_members(event.type, event.time, members(data), as_json(event.call_id), event.plugin, seq, prev)
    except (TypeError, ValueError, RecursionError):
        data = {encodable(str(key)): _plain(value, 0) for key, value in data.items()}
        return encode_members(
            encodable(event.type),
            event.time,
            members(data),
            as_json(encodable(event.call_id)),
            encodable(event.plugin),
            seq,
            prev,
        )


def encode_members(
    kind: str, time: float, own: str, call_id: str, plugin: str, seq: int, prev: str
) -> tuple[bytes, str]:
    """`encode`, for an event whose data are JSON already.

    Args:
        own: the members of an object, as `members` writes them; none of them is RESERVED.
        call_id: as JSON.
    """
    body = f'{{"seq":{seq},"time":"{stamp(time)}","type":{quoted(kind)},"callId":{call_id},"plugin":{quoted(plugin)}{own},"prev":"{prev}"'.encode()
    if len(body) > LONGEST_RECORD:
        own = members(
            {"truncated": True, "bytes": len(body), "beginning": body[:_KEPT_OF_TOO_LARGE].decode(errors="replace")}
        )
        return encode_members(kind, time, own, call_id, plugin, seq, prev)
    digest = sha256(body).hexdigest()
    return body + f',"hash":"{digest}"}}\n'.encode(), digest


def members(data: Mapping[str, Any]) -> str:
    """`data` as JSON, a comma before each member. pydantic's writer is four times as fast as `json` and takes any text.

    Raises:
        TypeError, ValueError, RecursionError: the data has no JSON form.
    """
    text = to_json(data, inf_nan_mode="strings", bytes_mode="base64", fallback=_described).decode()
    return f",{text[1:-1]}" if data else ""


def as_json(text: str) -> str:
    """A text as JSON; null for none."""
    return to_json(text or None).decode()


quoted: Final = lru_cache(maxsize=1_024)(as_json)
"""Types of events, names of tools and plugins as JSON: few, and in every record."""


def link(line: bytes) -> ChainLink | None:
    """The position of a line in the chain; None unless it is a complete record whose hash fits its bytes."""
    if line[-_HASH_TAIL : -_HASH_TAIL + len(_HASH)] != _HASH or not line.startswith(_START) or line[-3:] != _END:
        return None
    digest = sha256(line[:-_HASH_TAIL]).hexdigest()
    if line[-67:-3] != digest.encode() or line[-_PREV_TAIL : -_PREV_TAIL + len(_PREV)] != _PREV:
        return None
    number = line[len(_START) : line.find(b",")]
    if not number.isdigit():
        return None
    return ChainLink(int(number), digest, line[-_HASH_TAIL - 65 : -_HASH_TAIL - 1].decode("ascii", "replace"))


def decode(line: bytes) -> dict[str, Any] | None:
    """The record as a mapping; None when the line is not a JSON object."""
    if not line.startswith(b"{"):  # a corrupt log may hold many such lines
        return None
    try:
        record = json.loads(line, parse_int=_integer)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def decode_own(line: bytes, kind: str) -> dict[str, Any] | None:
    """The record if it is of this type of the log itself; a quick check comes first, so that few lines are parsed."""
    if kind.encode() not in line or (record := decode(line)) is None:
        return None
    return record if record.get("type") == kind else None


def stamp(seconds: float) -> str:
    """ISO 8601, UTC, milliseconds, as `iso_utc` writes it."""
    global _second
    try:
        whole_seconds, millis = divmod(int(seconds * 1000 + 0.5), 1000)
        known, text = _second
        if whole_seconds != known:
            text = iso_utc(whole_seconds)[:19]
            _second = (whole_seconds, text)
        return f"{text}.{millis:03d}Z"
    except (ValueError, OverflowError, OSError):  # not a time (NaN, the year 60000): the record matters more
        return iso_utc(time.time())


def _plain(value: Any, depth: int) -> Any:
    """`value` as JSON; anything else becomes a short text."""
    if isinstance(value, str):
        return encodable(value)
    if depth >= depths.VALUE:
        return _described(value)
    if isinstance(value, Mapping):
        return {encodable(str(key)): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1) for item in value]
    return value if value is None or isinstance(value, int | float) else _described(value)


def _described(value: Any) -> str:
    return f"<{type(value).__name__}>"


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= _MOST_DIGITS else digits  # Python refuses longer ones
