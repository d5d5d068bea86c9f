"""A rough estimate of the tokens of a text, without a vendor's tokenizer: it is the same everywhere."""

from __future__ import annotations

import re
from typing import Final

_WIDE: Final = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]")
_CHARACTERS: Final = 4
"""Characters of a token in Latin scripts; a CJK character is about one token."""


def tokens_of(text: str) -> int:
    """The estimated tokens of a text, rounded up."""
    wide = len(_WIDE.findall(text))
    return wide + (len(text) - wide + _CHARACTERS - 1) // _CHARACTERS
