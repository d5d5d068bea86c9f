"""The dialect of YAML that this host reads: characters, words, numbers, and limits.

The two ways of reading (`yaml_reader`, `yaml_findings`) share these rules, so that they cannot disagree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import yaml

# libyaml's own parser where it was compiled in, else PyYAML's; both give the same events.
EventParser: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# With the line ends of Unicode: libyaml folds them into spaces, and no editor counts them as lines.
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
_INTEGER = re.compile(r"[-+]?[0-9]+\Z")
_BASED = re.compile(r"0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z")
WORDS: Final[Mapping[str, bool | None]] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
NUMBER_STARTS: Final = frozenset("0123456789+-.")
_LONGEST_INTEGER = 100  # digits; Python itself stops at 4300


class NotSimple(Exception):
    """The text holds something that may have to be refused."""


def number(text: str) -> Any:
    """The value of a plain text that begins like a number: an integer, a finite number, or text.

    Raises:
        NotSimple: it is a number that must be refused.
    """
    if _INTEGER.match(text) is not None:
        if len(text) > _LONGEST_INTEGER:
            raise NotSimple
        return int(text)
    if _BASED.match(text) is not None and len(text) <= _LONGEST_INTEGER:
        return int(text, 0)
    if _NUMBER.match(text) is not None:
        value = float(text)
        if value - value == 0.0:
            return value
        raise NotSimple
    if _NOT_FINITE.match(text) is not None:
        raise NotSimple
    return text
