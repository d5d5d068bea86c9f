"""What the guard looks for. Pure: text in, findings out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

MASK = "[e-mail]"
# Every repetition is bounded and no two neighbours match the same character: a long text is read once, not many times.
_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@(?:[a-zA-Z0-9-]{1,63}\.){1,8}[a-zA-Z]{2,24}(?![\w-])", re.ASCII)
_SECRETS = {
    "a private key": re.compile(r"-----BEGIN (?:[A-Z]{2,10} )?PRIVATE KEY-----"),
    "an API key": re.compile(r"(?<![A-Za-z0-9])(?:sk-[A-Za-z0-9_-]{20,}|AKIA[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{35})"),
    "an access token": re.compile(r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{36}|xox[abprs]-[A-Za-z0-9-]{10,})"),
}


def mask_emails(value: Any) -> Any:
    """A copy of a JSON value with every e-mail address written over."""
    if isinstance(value, str):
        return _EMAIL.sub(MASK, value)
    if isinstance(value, Mapping):
        return {key: mask_emails(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [mask_emails(item) for item in value]
    return value


def secrets_in(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(where, what) for each secret in a JSON value; where is a JSON pointer. It never returns the secret itself."""
    if isinstance(value, str):
        for what, pattern in _SECRETS.items():
            if pattern.search(value):
                yield path, what
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from secrets_in(key, f"{path}/(a key)")
            yield from secrets_in(item, f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from secrets_in(item, f"{path}/{index}")
