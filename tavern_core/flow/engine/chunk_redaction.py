"""The text of stream chunks in events, without known secrets, even if a secret is split between chunks.

A possible prefix of a secret is emitted with the next chunk, or when the node ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tavern_core.kernel.settings.secret_masking import KnownSecrets
from tavern_core.schema.secret_encodings import StreamRedactor, secret_redactor

LONGEST_CHUNK: Final = 4_000
"""Maximum characters of one chunk in an event."""


class ChunkRedactor:
    """The streams of one run."""

    def __init__(self, known: KnownSecrets) -> None:
        self._known = known
        self._streams: dict[str, dict[str, StreamRedactor]] = {}
        self._numbers: dict[str, int] = {}

    def __bool__(self) -> bool:
        """True while something may be held back."""
        return bool(self._streams)

    def reported(self, path: str, number: int, chunks: Mapping[str, Any]) -> dict[str, str | None]:
        """The text of chunks of the node at `path` that may be emitted; None for other data."""
        known = self._known.values
        if not known and path not in self._streams:
            return {key: value[:LONGEST_CHUNK] if isinstance(value, str) else None for key, value in chunks.items()}
        self._numbers[path] = max(number, self._numbers.get(path, 0))
        streams = self._streams.setdefault(path, {})
        said: dict[str, str | None] = {}
        for key, value in chunks.items():
            if isinstance(value, str):
                if key not in streams:
                    streams[key] = StreamRedactor(secret_redactor(known))
                said[key] = streams[key].feed(value)[:LONGEST_CHUNK]
            else:
                said[key] = None
        return said

    def rest(self, path: str) -> Iterator[tuple[int, dict[str, str | None]]]:
        """The remaining (number, chunks) of a node that has ended."""
        streams = self._streams.pop(path, {})
        number = self._numbers.pop(path, 0)
        held: dict[str, str | None] = {
            key: text[:LONGEST_CHUNK] for key, stream in streams.items() if (text := stream.end())
        }
        if held:
            yield number + 1, held
