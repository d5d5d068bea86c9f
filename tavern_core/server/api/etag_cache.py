"""Answers that seldom change, as the bytes that go over the wire: written once, sent with an ETag until what they show changes."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.responses import Response

from tavern_core.frozen_dataclass import dataclass

_MOST: Final = 200


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """One answer."""

    body: bytes
    etag: str

    def response(self, headers: Headers) -> Response:
        """The answer to a request: nothing but its ETag if the client has it already."""
        sent = {"etag": self.etag, "cache-control": "private, no-cache", "vary": "authorization"}
        known = [tag.strip().removeprefix("W/") for tag in headers.get("if-none-match", "").split(",")]
        if self.etag in known or "*" in known:
            return Response(None, 304, sent)
        return Response(self.body, 200, sent, "application/json")


class KeptAnswers:
    """The answers of one server. Used on its event loop only."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[Any, KeptAnswer]] = OrderedDict()

    def get(self, key: str, stamp: Any) -> KeptAnswer | None:
        """The answer under a key, if what it shows is still as `stamp` says."""
        found = self._kept.get(key)
        if found is None or found[0] != stamp:
            return None
        self._kept.move_to_end(key)
        return found[1]

    def put(self, key: str, stamp: Any, body: bytes) -> KeptAnswer:
        """Keep an answer; the least used one is dropped when there are too many."""
        answer = made(body)
        self._kept[key] = stamp, answer
        self._kept.move_to_end(key)
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)
        return answer


def made(body: bytes) -> KeptAnswer:
    """An answer with its ETag."""
    return KeptAnswer(body, f'"{sha256(body).hexdigest()[:32]}"')
