"""Answers that seldom change, as the bytes that go over the wire: written once, sent with an ETag until what they show changes."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.responses import Response

from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.limits.lru_cache import LruCache

_MOST: Final = 200


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """A stored answer and its ETag."""

    body: bytes
    etag: str

    def response(self, headers: Headers) -> Response:
        """The answer to a request: nothing but its ETag if the client has it already."""
        response_headers = {"etag": self.etag, "cache-control": "private, no-cache", "vary": "authorization"}
        tags = [tag.strip().removeprefix("W/") for tag in headers.get("if-none-match", "").split(",")]
        if self.etag in tags or "*" in tags:
            return Response(None, 304, response_headers)
        return Response(self.body, 200, response_headers, "application/json")


class CachedResponses:
    """The answers of one server."""

    def __init__(self) -> None:
        self._kept = LruCache[str, tuple[Any, CachedResponse]](_MOST)

    def get(self, key: str, stamp: Any) -> CachedResponse | None:
        """The answer under a key, if what it shows is still as `stamp` says."""
        entry = self._kept.find(key)
        return entry[1] if entry is not None and entry[0] == stamp else None

    def put(self, key: str, stamp: Any, body: bytes) -> CachedResponse:
        """Keep an answer; the least used one is dropped when there are too many."""
        answer = response_with_etag(body)
        self._kept.put(key, (stamp, answer))
        return answer


def response_with_etag(body: bytes) -> CachedResponse:
    """An answer with its ETag."""
    return CachedResponse(body, f'"{sha256(body).hexdigest()[:32]}"')
