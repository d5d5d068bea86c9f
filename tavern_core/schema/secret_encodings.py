"""The spellings in which programs print a secret, and their redaction in a text.

Plain, escaped for JSON (once, twice) and for Python, in URLs and HTML, in base64 and in hexadecimal; and the beginning
of one at the end of a truncated text.
"""

from __future__ import annotations

import base64
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final
from urllib.parse import quote, quote_plus

MASK: Final = "***"
SHORTEST: Final = 4
"""Characters: redacting shorter ones would destroy ordinary texts."""
_LONGEST: Final = 8_192
"""Characters of a secret for which more than the usual spellings are searched."""
_BEGINNING: Final = 8
"""Characters by which a spelling is searched; a shorter prefix of one is not redacted."""
_LONG: Final = 64
"""A prefix of a secret with so many characters is redacted anywhere."""
_SHORT_TEXT: Final = 500
"""Length of a text up to which one pattern is faster than a search for each spelling."""
_WORTH_IT: Final = 30
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/{0,2}")
"""Common endings of texts, which do not indicate a secret."""
_MIME: Final = 57
"""Bytes in one line of base64."""


@lru_cache(maxsize=2_048)
def forms(secret: str) -> tuple[str, ...]:
    """The spellings of `secret` of at least four characters, the longest first."""
    found = {form for form in _forms(secret) if len(form) >= SHORTEST}
    for _ in range(2):  # exceptions show their arguments as Python literals
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
    # repr() escapes one kind of quotes at most: so both kinds are needed.
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
    from html import escape

    yield from (escape(plain), escape(plain, quote=False))
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


class SecretRedactor:
    """Redacts secrets in texts.

    Args:
        secrets: those shorter than four characters are left out.
    """

    __slots__ = ("_forms", "_quick", "_uses")

    def __init__(self, secrets: Iterable[str]) -> None:
        self._uses = 0
        self._quick: re.Pattern[str] | None = None
        found = {form for secret in secrets if len(secret) >= SHORTEST for form in forms(secret)}
        # Longest first: a secret that contains another is redacted as a whole.
        self._forms = tuple((form, form[:_BEGINNING]) for form in sorted(found, key=lambda form: (-len(form), form)))

    def __call__(self, text: str) -> str:
        """`text` with every spelling of every secret, and every truncated one, replaced by ``***``."""
        if len(text) < _SHORT_TEXT and not self._may_hold(text):
            return text
        for form, beginning in self._forms:
            if beginning in text:
                text = _without_cut(text.replace(form, MASK), form, beginning)
        return text

    def _may_hold(self, text: str) -> bool:
        """False if `text` contains no prefix of a spelling: one pattern decides, once it is worth compiling."""
        if self._quick is None:
            self._uses += 1
            if self._uses < _WORTH_IT:
                return True
            self._quick = re.compile("|".join({re.escape(beginning) for _, beginning in self._forms}) or r"(?!)")
        return self._quick.search(text) is not None

    def whole(self, text: str) -> str:
        """`text` without complete spellings; a truncated one stays."""
        for form, beginning in self._forms:
            if beginning in text:
                text = text.replace(form, MASK)
        return text

    def begins(self, text: str) -> int:
        """The offset at which a prefix of a spelling may start at the end of `text`; its length if there is none."""
        first = len(text)
        for form, _ in self._forms:
            at = text.find(form[0], max(0, len(text) - len(form) + 1), first)
            while at >= 0 and not form.startswith(text[at:]):
                at = text.find(form[0], at + 1, first)
            first = at if at >= 0 else first
        return first

    def crosses(self, text: str, at: int) -> bool:
        """True if a complete spelling starts before `at` and ends after it."""
        for form, _ in self._forms:
            found = text.find(form, max(0, at - len(form) + 1), at + len(form) - 1)
            if 0 <= found < at < found + len(form):
                return True
        return False

    def finds(self, text: str) -> bool:
        """True if there is anything to redact in `text`."""
        return any(beginning in text for _, beginning in self._forms) and self(text) != text


@lru_cache(maxsize=64)
def secret_redactor(secrets: frozenset[str]) -> SecretRedactor:
    """A cached instance for the same secrets."""
    return SecretRedactor(secrets)


def _without_cut(text: str, form: str, beginning: str) -> str:
    """`text` without a prefix of `form` at its end, or a long prefix anywhere."""
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


class StreamRedactor:
    """Redacts secrets in a text that arrives in pieces.

    Args:
        secret_redactor: for the secrets.
    """

    __slots__ = ("_held", "_redactor")

    def __init__(self, secret_redactor: SecretRedactor) -> None:
        self._redactor = secret_redactor
        self._held = ""

    def feed(self, piece: str) -> str:
        """The text that may be output now; a possible prefix of a secret is held back."""
        text = self._held + piece
        at = self._redactor.begins(text)
        if self._redactor.crosses(text, at):  # a complete secret ends after a possible prefix of another
            text = self._redactor.whole(text)
            at = self._redactor.begins(text)
        self._held = text[at:]
        return self._redactor.whole(text[:at])

    def end(self) -> str:
        """The text that was held back and is not a secret."""
        held, self._held = self._held, ""
        return self._redactor(held)
