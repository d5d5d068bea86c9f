"""Redacts secrets of a tool's settings in everything that leaves the script.

A script gets its secrets; its output goes to callers, models and logs. So each known value is replaced, in the
spellings in which programs print it (`schema/secret_encodings.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tavern_core.model.plain_data import with_texts
from tavern_core.schema.secret_encodings import MASK, forms
from tavern_core.schema.secret_names import is_secret_name

_BROKEN: Final = "\ufffd"
"""The result of decoding a truncated character."""
_LONGEST_PART: Final = 4096
"""Characters of a secret that are searched at the edge of a cut."""
_SHORT: Final = 4
"""Shorter secrets are only redacted if they are the whole string, because ``1`` would spoil every number."""


def secrets_of(schema: Iterable[Mapping[str, Any]], values: Mapping[str, Any]) -> tuple[str, ...]:
    """The secret values among a tool's settings: marked ``secret``, or with a key of a secret."""
    keys = {str(item.get("key")) for item in schema if item.get("secret")}
    found = (text for key, value in values.items() if key in keys or is_secret_name(key) for text in _texts(value))
    return tuple(sorted(set(found), key=len, reverse=True))


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        return [value] if value.strip() else []
    if isinstance(value, Mapping):
        return [text for part in value.values() for text in _texts(part)]
    if isinstance(value, list | tuple):
        return [text for part in value for text in _texts(part)]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [str(value)]
    return []


class ScriptMasking:
    """Redacts `secrets`.

    Args:
        secrets: longest first, so that a secret inside another one does not leave the rest.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        spellings = {s: None for secret in secrets for s in _spellings(secret)}
        ordered = sorted(spellings, key=len, reverse=True)
        self._everywhere = _pattern(ordered)
        self._long = _pattern(s for s in ordered if len(s) >= _SHORT)
        self._spellings = frozenset(ordered)

    def text(self, text: str) -> str:
        """An excerpt for an error message."""
        return text if self._everywhere is None else self._everywhere.sub(MASK, text)

    def beginning(self, text: str) -> str:
        """A text whose end was cut off, perhaps inside a secret: a possible prefix of a secret is redacted, too."""
        return self.text(_without_part(text.rstrip(_BROKEN), self._spellings))

    def end(self, text: str) -> str:
        """A text whose beginning was cut off: as `beginning`."""
        backwards = [spelling[::-1] for spelling in self._spellings]
        return self.text(_without_part(text.lstrip(_BROKEN)[::-1], backwards)[::-1])

    def value(self, value: Any) -> Any:
        """A JSON answer, keys included; the same object when there are no secrets."""
        return value if self._everywhere is None else with_texts(value, self._masked)

    def _masked(self, text: str) -> str:
        return MASK if text in self._spellings else text if self._long is None else self._long.sub(MASK, text)


def _without_part(text: str, spellings: Iterable[str]) -> str:
    """`text` without a prefix of a spelling at its end; never cut inside a complete one."""
    spellings = list(spellings)
    cut = len(text) - max((_part_at_end(text, spelling) for spelling in spellings), default=0)
    while True:
        positions = [text.find(s, max(0, cut - len(s) + 1), cut + len(s) - 1) for s in spellings]
        if not (starts := [at for at in positions if at >= 0]):
            return text[:cut]
        cut = min(starts)


def _part_at_end(text: str, spelling: str) -> int:
    longest = min(len(spelling) - 1, len(text), _LONGEST_PART)
    return next((n for n in range(longest, 0, -1) if text.endswith(spelling[:n])), 0)


def _spellings(secret: str) -> list[str]:
    plain = secret.strip()
    return [secret, plain, json.dumps(plain)[1:-1], repr(plain)[1:-1], *forms(secret)]


def _pattern(spellings: Iterable[str]) -> re.Pattern[str] | None:
    alternatives = [re.escape(s) for s in spellings if s]
    return re.compile("|".join(alternatives)) if alternatives else None
