"""Secrets inside ordinary text: keys of well-known providers, tokens, private keys, passwords in URLs and `name=value`.

Every pattern is bounded or anchored to a literal, so a text of any kind costs linear time; a text without any of the
telling fragments costs a few substring searches. What is found becomes `***`; the words around it stay, for whoever
reads the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from tavern_core.schema.secret_forms import MASK, striker
from tavern_core.schema.secrets import is_secret_name

_FRAGMENTS: Final = (
    "sk-", "sk_", "rk_", "gh", "glpat-", "xox", "xapp-", "akia", "asia", "aiza", "ya29.", "hf_", "npm_", "pypi-", "sg.", ":aa",
    "dop_v1_", "ltai", "akid", "gsk_", "xai-", "r8_", "pplx-", "accountkey", "eyj", "-----begin", "bearer", "basic", "://",
    "cookie", "authorization", "passw", "pwd", "passphrase", "secret", "token", "key", "credential", "otp", "auth", "jwt",
    "密码", "口令", "密钥", "令牌", "私钥", "session",
)  # fmt: skip

_KEYS: Final = re.compile(
    r"""(?x)(?<![A-Za-z0-9])(?:
      sk-[A-Za-z0-9_-]{16,}                         # OpenAI, Anthropic, DeepSeek, OpenRouter
    | (?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{10,}   # Stripe
    | gh[pousr]_[A-Za-z0-9]{20,} | github_pat_[A-Za-z0-9_]{20,}
    | glpat-[A-Za-z0-9_-]{16,}
    | xox[abeoprs]-[A-Za-z0-9-]{10,} | xapp-[A-Za-z0-9-]{10,}
    | (?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}
    | AIza[A-Za-z0-9_-]{30,} | ya29\.[A-Za-z0-9_-]{20,}
    | hf_[A-Za-z0-9]{20,} | npm_[A-Za-z0-9]{30,} | pypi-[A-Za-z0-9_-]{30,}
    | SG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,}
    | [0-9]{8,10}:AA[A-Za-z0-9_-]{30,}              # Telegram bots
    | dop_v1_[a-f0-9]{40,}
    | LTAI[A-Za-z0-9]{12,} | AKID[A-Za-z0-9]{13,}   # Alibaba, Tencent
    | gsk_[A-Za-z0-9]{20,} | xai-[A-Za-z0-9]{20,} | r8_[A-Za-z0-9]{20,} | pplx-[A-Za-z0-9]{20,}
    | eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?  # JWT
    )"""
)
_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.S,
)
_SCHEME: Final = re.compile(
    r"(?i)\b(bearer|basic)(\s{1,4})(?=[A-Za-z0-9._~+/=-]{0,400}[0-9=]|[A-Za-z0-9._~+/-]{16})[A-Za-z0-9._~+/=-]{6,}"
)
_USERINFO: Final = re.compile(
    r"(?i)(?<![a-z0-9+.-])([a-z][a-z0-9+.-]{1,20}://[^\s/@:\"']{0,256}:)[^\s/@\"']{1,512}(?=@)"
)
_HEADER: Final = re.compile(
    r"(?i)(?<![a-z])((?:set-)?cookie|(?:proxy-)?authorization|x-api-key|x-auth-token)(\s{0,4}:\s{0,4})[^\r\n\"']+"
)
_WORDS: Final = (
    r"passw(?:or)?d|passwort|passphrase|pwd|secret|token|api[_\- ]?key|access[_\- ]?key|private[_\- ]?key|account[_\- ]?key|credentials?"
    r"|session[_-]?id|otp|auth|jwt|cookies?|authorization|密码|口令|密钥|令牌|私钥"
)
_NAMED: Final = re.compile(
    rf"(?i)((?:{_WORDS})[\w.-]{{0,40}})([\"']?\s{{0,8}}[:=：＝]\s{{0,8}})(\"(?:[^\"\\]|\\.){{1,4096}}\"?|'(?:[^'\\]|\\.){{1,4096}}'?|[^\s,;&\"'}}\])]+)"
)
_NAME_CHAR: Final = re.compile(r"[\w.-]")
_PROSE: Final = frozenset(
    [
        "must",
        "is",
        "are",
        "was",
        "not",
        "required",
        "missing",
        "invalid",
        "should",
        "the",
        "a",
        "an",
        "unknown",
        "expected",
        "null",
        "none",
        "true",
        "false",
        "or",
        "and",
        "to",
        "of",
        "for",
        "in",
        "on",
        "be",
        "cannot",
        "has",
        "string",
        "integer",
        "number",
        "boolean",
        "object",
        "array",
        "nothing",
        "empty",
        "{}",
        "[]",
        "***",
        '"***"',
        "'***'",
    ]
)

Masker = Callable[[str], str]


def redact_text(text: str, known_secrets: Iterable[str] = ()) -> str:
    """`text` with everything that looks like a secret, and every known secret, replaced by ``***``.

    Args:
        text: anything; it should be cut to a reasonable size first.
        known_secrets: exact strings, found in every usual spelling (`secret_forms`). Those shorter than four
            characters are masked only where they are the whole text.
    """
    known = frozenset(secret for secret in known_secrets if secret)
    if known:
        if text in known:
            return MASK
        text = striker(known)(text)
    folded = text.lower()
    if not any(fragment in folded for fragment in _FRAGMENTS):
        return text
    if "-----begin" in folded:
        text = _PRIVATE_KEY.sub(MASK, text)
    text = _KEYS.sub(MASK, text)
    if "bearer" in folded or "basic" in folded:
        text = _SCHEME.sub(rf"\1\2{MASK}", text)
    if "://" in folded:
        text = _USERINFO.sub(rf"\1{MASK}", text)
    text = _HEADER.sub(_mask_header, text)
    return _NAMED.sub(_mask_named, text)


def _mask_header(found: re.Match[str]) -> str:
    """`Cookie: …` up to the end of the line, but not `cookie: is required`, a sentence about a setting of that name."""
    first = found[0][len(found[1]) + len(found[2]) :].partition(" ")[0]
    return found[0] if first.lower() in _PROSE else f"{found[1]}{found[2]}{MASK}"


def _mask_named(found: re.Match[str]) -> str:
    """`name=value` where the whole name tells of a secret and the value is no word of a sentence about it."""
    start = found.start()
    while start > 0 and found.start() - start < 40 and _NAME_CHAR.match(found.string[start - 1]):
        start -= 1
    name = found.string[start : found.end(1)]
    value = found[3]
    if value.lower().rstrip(".") in _PROSE or not is_secret_name(name):
        return found[0]
    mask = f"{value[0]}{MASK}{value[0]}" if value[0] in "\"'" else MASK
    return f"{found[1]}{found[2]}{mask}"
