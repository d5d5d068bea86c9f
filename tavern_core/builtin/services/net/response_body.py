"""The body of an answer: with limits on compressed and decompressed bytes."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator
from typing import Any, Final

from tavern_core.contract.guards.unpacker import Unpacker

_CHARSET: Final = re.compile(r"charset=\"?([A-Za-z0-9._:-]{1,40})", re.IGNORECASE)
_TEXTS: Final = re.compile(
    r"(text/|application/(json|xml|javascript|x-www-form-urlencoded|.+\+(json|xml))\b)", re.IGNORECASE
)


async def whole(chunks: AsyncIterator[bytes], unpacker: Unpacker) -> bytes:
    """The whole body."""
    found = bytearray()
    async for chunk in chunks:
        found += unpacker.feed(chunk)
    return bytes(found)


def as_data(body: bytes, content_type: str) -> dict[str, Any]:
    """The body for JSON: ``text`` if it is text, else ``base64``."""
    named = _CHARSET.search(content_type)
    if named is not None or _TEXTS.match(content_type) or not content_type:
        try:
            return {"text": body.decode(named[1] if named is not None else "utf-8"), "base64": None}
        except (UnicodeDecodeError, LookupError, ValueError):
            pass
    return {"text": None, "base64": base64.b64encode(body).decode("ascii")}
