"""Decompresses bytes within a limit, because a small answer may expand to gigabytes."""

from __future__ import annotations

import zlib
from typing import Final

from tavern_core.errors import OutputTooLarge, UpstreamError

_WINDOWS: Final = {"": 0, "identity": 0, "gzip": 31, "x-gzip": 31, "deflate": 15}
"""Content-Encoding → zlib's window bits."""


class Unpacker:
    """Decompresses bytes, at most `limit` of them.

    Args:
        encoding: the Content-Encoding of the answer.

    Raises:
        UpstreamError: an encoding that was not requested (UPSTREAM_ERROR).
    """

    def __init__(self, encoding: str, limit: int, who: str) -> None:
        name = encoding.strip().lower()
        if name not in _WINDOWS:
            text = f"{who} answered with the encoding {encoding[:60]!r}, which was not requested"
            raise UpstreamError(text, outcome="unknown")
        self._bits = _WINDOWS[name]
        self._limit = limit
        self._who = who
        self._raw = 0
        self._size = 0
        self._zip = zlib.decompressobj(self._bits) if self._bits else None

    def feed(self, chunk: bytes) -> bytes:
        """The decompressed bytes of one chunk.

        Raises:
            OutputTooLarge: more than the limit, compressed or decompressed (OUTPUT_TOO_LARGE).
            UpstreamError: the bytes do not match their encoding (UPSTREAM_ERROR).
        """
        self._raw += len(chunk)
        if self._raw > self._limit:
            raise self._too_large()
        out = chunk if self._zip is None else self._unpacked(chunk)
        self._size += len(out)
        if self._size > self._limit:
            raise self._too_large()
        return out

    def _unpacked(self, chunk: bytes) -> bytes:
        output = b""
        assert self._zip is not None
        try:
            while chunk:
                if self._zip.eof:  # several members in a row
                    self._zip = zlib.decompressobj(self._bits)
                room = self._limit - self._size - len(output) + 1
                output += self._zip.decompress(chunk, room)
                if self._zip.unconsumed_tail or len(output) >= room:
                    raise self._too_large()
                chunk = self._zip.unused_data
        except zlib.error as error:
            text = f"{self._who} answered with corrupt compressed data: {error}"
            raise UpstreamError(text, outcome="unknown") from None
        return output

    def _too_large(self) -> OutputTooLarge:
        return OutputTooLarge(
            f"{self._who} answered more than {self._limit:,} bytes",
            hint="ask for less",
            outcome="done",
        )
