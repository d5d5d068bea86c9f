"""A secret in the spellings in which programs print it, and how it is struck out of a text.

As it is, escaped for JSON (once, twice) and for Python, in URLs and HTML, in base64 and in hexadecimal; and the beginning
of one where a text was cut.
"""

from __future__ import annotations

import base64
import html
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final
from urllib.parse import quote, quote_plus

MASK: Final = "***"
SHORTEST: Final = 4
"""Characters: shorter ones would tear holes into every text."""
_LONGEST: Final = 8_192
"""Characters of a secret that is looked for in more than its usual spellings."""
_BEGINNING: Final = 8
"""Characters by which a spelling is looked for; no shorter beginning of one is struck out."""
_LONG: Final = 64
"""Characters that are struck out wherever they are the beginning of a secret."""
_SHORT_TEXT: Final = 500
"""Characters up to which one pattern is quicker than a look for each spelling."""
_WORTH_IT: Final = 30
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/{0,2}")
"""What many texts end with and no secret is told by."""
_MIME: Final = 57
"""Bytes in one line of base64."""


@lru_cache(maxsize=2_048)
def forms(secret: str) -> tuple[str, ...]:
    """The spellings of `secret` of at least four characters, the longest first."""
    found = {form for form in _forms(secret) if len(form) >= SHORTEST}
    for _ in range(2):  # an exception shows what it was given as Python would write it, whatever it is
        found |= {again for form in found if "\\" in form or "'" in form for again in _again(form)}
    return tuple(sorted(found, key=lambda form: (-len(form), form)))


def _forms(secret: str) -> Iterator[str]:
    plain = secret.strip() or secret
    for text in (secret, plain, " ".join(plain.split())):
        yield text
        yield _escaped(text)
        yield json.dumps(text, ensure_ascii=False)[1:-1]
    if len(secret) > _LONGEST:
        return
    yield from {unicodedata.normalize(form, plain) for form in ("NFC", "NFD")}
    for escaped in (_escaped(plain), json.dumps(plain, ensure_ascii=False)[1:-1]):
        yield _escaped(escaped)
        yield json.dumps(escaped, ensure_ascii=False)[1:-1]
    raw = plain.encode("utf-8", "surrogatepass")
    # repr() escapes one kind of quotes at most: those beside it must be there for both kinds.
    yield from (repr(plain)[1:-1], ascii(plain)[1:-1], repr(plain + '"')[1:-2], repr(raw)[2:-1])
    for percent in (
        quote(raw, safe=""),
        quote(raw),
        quote_plus(raw),
        quote(raw, safe="!*'()"),
        quote_plus(raw, safe="!*'()"),
    ):
        yield percent
        yield _low(percent)
    yield from (html.escape(plain), html.escape(plain, quote=False))
    if len(raw) >= 6:
        yield from (raw.hex(), raw.hex().upper())
        yield from _base64(raw)


def _base64(raw: bytes) -> Iterator[str]:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for shift in range(3):  # inside a longer encoded text a secret starts at one of three places
            encoded = encode(b"\0" * shift + raw).decode("ascii").rstrip("=")
            yield encoded[(0, 2, 3)[shift] : len(encoded) - (1 if (len(raw) + shift) % 3 else 0)]
    if len(raw) > _MIME:
        yield from (
            base64.b64encode(raw[at : at + _MIME]).decode("ascii").rstrip("=") for at in range(0, len(raw) - 9, _MIME)
        )


def _escaped(text: str) -> str:
    return json.dumps(text)[1:-1]


def _again(form: str) -> Iterator[str]:
    doubled = form.replace("\\", "\\\\")
    yield doubled
    yield doubled.replace("'", "\\'")


def _low(percent: str) -> str:
    """``%2f`` for ``%2F``."""
    first, *rest = percent.split("%")
    return "%".join([first, *(part[:2].lower() + part[2:] for part in rest)])


class Striker:
    """Strikes secrets out of texts.

    Args:
        secrets: those shorter than four characters are left out.
    """

    __slots__ = ("_forms", "_quick", "_uses")

    def __init__(self, secrets: Iterable[str]) -> None:
        self._uses = 0
        self._quick: re.Pattern[str] | None = None
        found = {form for secret in secrets if len(secret) >= SHORTEST for form in forms(secret)}
        # Longest first: a secret that contains another is struck out whole.
        self._forms = tuple((form, form[:_BEGINNING]) for form in sorted(found, key=lambda form: (-len(form), form)))

    def __call__(self, text: str) -> str:
        """`text` with every spelling of every secret, and what was cut off of one, replaced by ``***``."""
        if len(text) < _SHORT_TEXT and not self._may_hold(text):
            return text
        for form, beginning in self._forms:
            if beginning in text:
                text = _without_cut(text.replace(form, MASK), form, beginning)
        return text

    def _may_hold(self, text: str) -> bool:
        """False when `text` holds the beginning of no spelling: asked of one pattern, once it is worth making it."""
        if self._quick is None:
            self._uses += 1
            if self._uses < _WORTH_IT:
                return True
            self._quick = re.compile("|".join({re.escape(beginning) for _, beginning in self._forms}) or r"(?!)")
        return self._quick.search(text) is not None

    def whole(self, text: str) -> str:
        """`text` without whole spellings; one that is cut off stays."""
        for form, beginning in self._forms:
            if beginning in text:
                text = text.replace(form, MASK)
        return text

    def begins(self, text: str) -> int:
        """Where at the end of `text` the beginning of a spelling may stand; its length where none does."""
        first = len(text)
        for form, _ in self._forms:
            at = text.find(form[0], max(0, len(text) - len(form) + 1), first)
            while at >= 0 and not form.startswith(text[at:]):
                at = text.find(form[0], at + 1, first)
            first = at if at >= 0 else first
        return first

    def crosses(self, text: str, at: int) -> bool:
        """True when a whole spelling begins before `at` and ends behind it."""
        for form, _ in self._forms:
            found = text.find(form, max(0, at - len(form) + 1), at + len(form) - 1)
            if 0 <= found < at < found + len(form):
                return True
        return False

    def finds(self, text: str) -> bool:
        """True when there is anything to strike out of `text`."""
        return any(beginning in text for _, beginning in self._forms) and self(text) != text


@lru_cache(maxsize=64)
def striker(secrets: frozenset[str]) -> Striker:
    """One that is made once for the same secrets."""
    return Striker(secrets)


def _without_cut(text: str, form: str, beginning: str) -> str:
    """`text` without the beginning of `form` at its end, or a long one anywhere."""
    at = text.find(beginning) if len(form) > _BEGINNING else -1
    while at >= 0:
        end = at + len(beginning)
        while end < len(text) and end - at < len(form) and text[end] == form[end - at]:
            end += 1
        if (end - at >= _LONG or text[end:] in ("", "…")) and _SCHEME.fullmatch(text, at, end) is None:
            text = f"{text[:at]}{MASK}{text[end:]}"
            end = at
        at = text.find(beginning, max(at + 1, end - len(beginning)))
    return text


class StreamStriker:
    """Strikes secrets out of a text that comes in pieces.

    Args:
        striker: for the secrets.
    """

    __slots__ = ("_held", "_striker")

    def __init__(self, striker: Striker) -> None:
        self._striker = striker
        self._held = ""

    def feed(self, piece: str) -> str:
        """What may be said now; what may be the beginning of a secret is held back."""
        text = self._held + piece
        at = self._striker.begins(text)
        if self._striker.crosses(text, at):  # a whole secret ends behind what may begin another
            text = self._striker.whole(text)
            at = self._striker.begins(text)
        self._held = text[at:]
        return self._striker.whole(text[:at])

    def end(self) -> str:
        """What was held back and turned out to be no secret."""
        held, self._held = self._held, ""
        return self._striker(held)
