"""What counts as secret: marks in a schema, and names that give a secret away."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_A-Za-z]+")
_SECRET_WORDS = frozenset(
    [
        "password",
        "passwd",
        "passwort",
        "passphrase",
        "pwd",
        "secret",
        "token",
        "apikey",
        "accesskey",
        "secretkey",
        "privatekey",
        "credential",
        "credentials",
        "cookie",
        "cookies",
        "authorization",
        "bearer",
        "otp",
        "totp",
        "密码",
        "口令",
        "密钥",
        "令牌",
        "私钥",
    ]
)
_SECRET_PAIRS = frozenset(
    {
        "api key",
        "access key",
        "secret key",
        "private key",
        "auth key",
        "signing key",
        "encryption key",
        "session id",
        "set cookie",
    }
)
_HARMLESS_NEXT = frozenset(
    [
        "count",
        "counts",
        "limit",
        "limits",
        "length",
        "budget",
        "usage",
        "type",
        "name",
        "id",
        "ids",
        "policy",
        "field",
        "url",
        "uri",
        "path",
        "file",
        "expires",
        "expiry",
        "ttl",
        "max",
        "min",
    ]
)
"""A word after the telling one that makes it a property *of* a secret (`token_count`, `password_policy`)."""


def is_secret_schema(schema: Mapping[str, Any]) -> bool:
    """True when a schema marks its value as secret: `writeOnly`, `format: password`, `x-tavern: {secret: true}`."""
    own = schema.get("x-tavern")
    return (
        schema.get("writeOnly") is True
        or schema.get("format") == "password"
        or (isinstance(own, Mapping) and own.get("secret") is True)
    )


def is_secret_name(name: str) -> bool:
    """True when a key's name says that its value is secret.

    >>> [is_secret_name(n) for n in ("api_key", "bilibiliCookie", "X-Auth-Token", "max_tokens", "token_count", "keyboard")]
    [True, True, True, False, False, False]
    """
    words = [word.lower() for word in _WORDS.findall(name[:200])]
    for at, word in enumerate(words):
        following = words[at + 1] if at + 1 < len(words) else ""
        if following in _HARMLESS_NEXT and f"{word} {following}" not in _SECRET_PAIRS:
            continue
        if word in _SECRET_WORDS or f"{word} {following}" in _SECRET_PAIRS:
            return True
    return False
