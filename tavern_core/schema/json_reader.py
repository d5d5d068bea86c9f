"""Strict JSON: exactly RFC 8259, within limits. The only reader for JSON from outside.

    read_json      the value, or the first problem: for a value in a call
    read_located   the value, and all problems, each with its place: for files, bodies and outputs
    Scan           the place of every value of a text

A text without flaws costs one pass of the standard library's parser. Only a text with flaws, or one whose places are
needed, is scanned again. JSON that the host wrote itself (records, journals, messages of its own processes), and JSON
that is only searched for a few known fields, is read with `json.loads` or pydantic's parser.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from itertools import accumulate
from typing import Any, Final, NoReturn

from tavern_core.errors import Finding, Location
from tavern_core.model import depths
from tavern_core.model.message_translation import Row, say
from tavern_core.model.path_problem import FLATTER, MOST_FINDINGS, SMALLER, Mark, Path
from tavern_core.model.safe_printing import is_text, shortened

LONGEST_INTEGER: Final = 4_300
"""Digits of an integer: the maximum that Python reads and writes."""
_LONGEST_NAME: Final = 100
"""Characters of a key that an error names."""
_TOO_DEEP: Final = f"nested deeper than {depths.VALUE} levels"
_WHOLE: Final = "write the character itself"
_ESCAPED_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")
_NO_BRACKETS: Final = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[^]["{}]++', re.DOTALL)
"""A string, or text without brackets between two strings."""
_STRING: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_EMPTY: Final = re.compile(r"\[\s*\]|\{\s*\}")
_STEPS: Final[Mapping[str, int]] = {"[": 1, "{": 1, "]": -1, "}": -1}
_TOKEN: Final = re.compile(r'[ \t\r\n,:]+|("(?:[^"\\]|\\.)*(?:"|\\?\Z))|([\[\]{}])|([^\s,:\[\]{}"]+)', re.DOTALL)
"""Matches at nearly every character, also a string without an end, so broken text costs no second pass."""


WORDS: Final[Mapping[str, Row]] = {
    "not_allowed": ("{name} is not allowed", "不允许 {name}"),
    "number_too_long": ("a number of {digits} digits is too long", "{digits} 位的数太长"),
    "number_too_large": ("the number is too large", "数太大"),
    "twice_in_object": ("{name!r} appears twice in one object", "{name!r} 在一个对象中出现了两次"),
    "nested_deeper": ("nested deeper than {most} levels", "嵌套超过 {most} 层"),
    "half": ("a text in it is half of a surrogate pair", "其中有半个代理对的文本"),
    "no_json": ("not valid JSON: {why} at character {at}", "不是有效的 JSON：第 {at} 个字符处（{why!r}）"),
}


class NotJson(ValueError):
    """The text is not strict JSON.

    Args:
        kind: a key of WORDS.
        facts: values for its words.
    """

    def __init__(self, kind: str, **facts: Any) -> None:
        super().__init__(say(WORDS[kind], **facts))
        self.kind = kind
        self.facts = facts


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity: the `parse_constant` of a decoder."""
    raise NotJson("not_allowed", name=name)


def equal_key(pairs: list[tuple[str, Any]]) -> str:
    """The first key that occurs twice in the `pairs` of an object, which must have one."""
    names = Counter(name for name, _ in pairs)
    return next(name for name, count in names.items() if count > 1)


def _read_float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise NotJson("number_too_large")
    return value


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise NotJson("twice_in_object", name=shortened(equal_key(pairs), _LONGEST_NAME))
    return value


_LAST_OF_EQUAL_KEYS: Final = json.JSONDecoder(parse_float=_read_float, parse_constant=refuse_constant)
_STRICT: Final = json.JSONDecoder(
    object_pairs_hook=_read_object, parse_float=_read_float, parse_constant=refuse_constant
)
_LENIENT: Final = json.JSONDecoder(
    parse_int=lambda digits: int(digits) if len(digits) <= LONGEST_INTEGER else 0, parse_constant=lambda name: None
)


def read_json(
    text: str, deepest: int = depths.WRAPPED, *, allow_halves: bool = True, allow_equal_keys: bool = False
) -> Any:
    """Strict JSON: no NaN, no Infinity, numbers that Python can hold, not nested too deep.

    Args:
        text: the text, without a byte order mark.
        deepest: levels of nesting.
        allow_halves: accept half surrogate pairs. A caller that checks the value names the place of one in it.
        allow_equal_keys: accept equal keys in one object; the last of them counts.

    Raises:
        NotJson: with the reason.
    """
    if text.count("[") + text.count("{") > deepest and _is_deeper(text, deepest):
        raise NotJson("nested_deeper", most=deepest)
    try:
        value = (_LAST_OF_EQUAL_KEYS if allow_equal_keys else _STRICT).decode(text)
    except NotJson:
        raise
    except json.JSONDecodeError as error:
        raise NotJson("no_json", why=error.msg, at=error.pos + 1, line=error.lineno, column=error.colno) from None
    except RecursionError:  # of a stack that was nearly full
        raise NotJson("nested_deeper", most=deepest) from None
    except ValueError:
        long = _too_long(LONGEST_INTEGER).search(text)
        raise NotJson("number_too_long", digits=len(long[0].lstrip("-") if long else text)) from None
    if not allow_halves and not _is_whole(text, value):
        raise NotJson("half")
    return value


def _is_whole(text: str, value: Any) -> bool:
    """Whether `value`, which was read from `text`, contains no half of a surrogate pair."""
    if _ESCAPED_HALF.search(text) is None:
        return text.isascii() or is_text(text)
    try:
        return is_text(json.dumps(value, ensure_ascii=False))
    except RecursionError:
        return False


def read_located(
    text: str, file: str, code: str, most_values: int, most_digits: int = LONGEST_INTEGER
) -> tuple[Any, list[Finding]]:
    """The value of a text, and all its problems, half surrogates included.

    Args:
        file: the name shown in findings.
        code: the error code that findings carry.
        most_values: values in it.
        most_digits: of an integer.

    Returns:
        With findings, the value is the readable part: of equal keys the last one; None if the text is broken.
    """
    is_small = text.count(",") + text.count("[") + text.count("{") < most_values
    if is_small and (most_digits == LONGEST_INTEGER or _too_long(most_digits).search(text) is None):
        with suppress(NotJson):
            return read_json(text, depths.VALUE, allow_halves=False), []
    try:
        value = _LENIENT.decode(text)
    except json.JSONDecodeError as error:
        reason = error.msg.removesuffix(" at").removesuffix(" starting")
        message = f"not JSON: {reason[:1].lower()}{reason[1:]}"
        return None, [Finding(code, message, _hint(error), Location(file, error.lineno, error.colno))]
    except RecursionError:
        return None, [Finding(code, _TOO_DEEP, FLATTER, Location(file))]
    if not is_small and _count_values(text) > most_values:  # a scan takes microseconds per value
        return value, [Finding(code, f"more than {most_values:,} values", SMALLER, Location(file))]
    return value, Scan(text, file, code, most_digits, finds_only=True).findings


def json_or_text(text: str) -> Any:
    """The value of a text that a person wrote, if it is strict JSON; else the text itself."""
    try:
        return read_json(text.strip())
    except NotJson:
        return text


def _is_deeper(text: str, most: int) -> bool:
    """Whether the brackets outside strings are nested deeper."""
    steps = map(_STEPS.__getitem__, _NO_BRACKETS.sub("", text))
    return max(accumulate(steps), default=0) > most


def _count_values(text: str) -> int:
    """The number of values in valid JSON, containers included and keys not."""
    bare = _STRING.sub("0", text)
    return 1 + bare.count(",") + bare.count("[") + bare.count("{") - len(_EMPTY.findall(bare))


@cache
def _too_long(digits: int) -> re.Pattern[str]:
    """Integers of more characters, the sign included; looks at each run of digits once."""
    return re.compile(rf"-[0-9]{{{digits},}}|(?<![0-9])[0-9]{{{digits + 1},}}")


class Scan:
    """Finds the places of all values of a text, and its problems; reads broken text as far as possible."""

    def __init__(
        self,
        text: str,
        file: str = "",
        code: str = "",
        most_digits: int = LONGEST_INTEGER,
        *,
        finds_only: bool = False,
    ) -> None:
        """Scan a text.

        Args:
            finds_only: whether to stop at the last finding that is reported; `marks` are then incomplete.
        """
        self.marks: dict[Path, tuple[Mark, Mark]] = {}
        """Path → the places of its key and its value."""
        self.findings: list[Finding] = []
        self._file, self._code, self._digits = file, code, most_digits
        self._stack: list[tuple[Path, dict[str, Mark] | None]] = []  # of open containers: path, keys of an object
        self._index: list[int] = []
        self._key: tuple[str, Mark] | None = None
        line, start, counted_to = 1, 0, 0  # places are counted on from the last token: linear in the text
        for token in _TOKEN.finditer(text):
            if token.lastindex is None:
                continue
            at = token.start()
            if (breaks := text.count("\n", counted_to, at)) > 0:
                line, start = line + breaks, text.rfind("\n", counted_to, at) + 1
            counted_to = at
            if self._is_over(token, (line, at - start + 1)) or (finds_only and len(self.findings) >= MOST_FINDINGS):
                break

    def _is_over(self, token: re.Match[str], mark: Mark) -> bool:
        """Take one token; True if the walk ends here."""
        string, bracket, word = token.groups()
        if bracket in ("]", "}"):
            if self._stack:
                self._stack.pop()
                self._index.pop()
            return False
        keys = self._stack[-1][1] if self._stack else None
        if string is not None and keys is not None and self._key is None:
            self._take_key(unquoted(string), keys, mark)
            return False
        path: Path = ()
        if self._stack:
            path = (*self._stack[-1][0], self._index[-1] if self._key is None else self._key[0])
            self._index[-1] += 1
        self.marks[path] = (mark if self._key is None else self._key[1], mark)
        self._key = None
        if bracket is None:
            self._take_scalar(string, word or "", path, mark)
        elif len(self._stack) >= depths.VALUE:
            self._refuse(_TOO_DEEP, FLATTER, mark, path)
            return True
        else:
            self._stack.append((path, {} if bracket == "{" else None))
            self._index.append(0)
        return False

    def _take_key(self, name: str, keys: dict[str, Mark], mark: Mark) -> None:
        here = self._stack[-1][0]
        if (first := keys.get(name)) is not None:
            message = f"the key {name!r:.80} is here twice, first at line {first[0]}, column {first[1]}"
            self._refuse(message, "keep one of them", mark, (*here, name))
        elif not is_text(name):
            self._refuse("a key holds half of a surrogate pair", _WHOLE, self.marks[here][1], here)
        keys.setdefault(name, mark)
        self._key = (name, mark)

    def _take_scalar(self, string: str | None, word: str, path: Path, mark: Mark) -> None:
        found: tuple[str, str] | None = None
        if len(self.findings) >= MOST_FINDINGS:
            return
        if string is not None:
            if not is_text(string) or (_ESCAPED_HALF.search(string) and not is_text(unquoted(string))):
                found = "the text holds half of a surrogate pair", _WHOLE
        elif word in ("NaN", "Infinity", "-Infinity"):
            found = f"{word} is not JSON", "write a finite number or null"
        elif word.lstrip("-").isdigit():
            if len(word) > self._digits:
                found = f"a number of {len(word):,} digits", "put it in quotes"
        elif word[:1] in "-0123456789" and _is_infinite(word):
            found = "the number is too large", "put it in quotes, or write a smaller one"
        if found is not None:
            self._refuse(*found, mark, path)

    def _refuse(self, message: str, hint: str, mark: Mark, path: Path) -> None:
        if len(self.findings) < MOST_FINDINGS:
            where = Location(self._file, *mark, ".".join(map(str, path)))
            self.findings.append(Finding(self._code, message, hint, where))


def _is_infinite(word: str) -> bool:
    try:
        return abs(float(word)) == float("inf")
    except ValueError:
        return False


def unquoted(string: str) -> str:
    """The text of a JSON string; of a broken one the text between its quotes."""
    try:
        return str(json.loads(string, strict=False))
    except ValueError:
        return string[1:-1]


def _hint(error: json.JSONDecodeError) -> str:
    rest = error.doc[error.pos : error.pos + 2]
    if error.msg.startswith("Illegal trailing comma"):  # Python 3.13 and newer
        return f"delete the comma before {'}' if 'object' in error.msg else ']'}"
    if error.msg.startswith("Expecting property name") and rest[:1] == "}":
        return "delete the comma before }"
    if error.msg.startswith("Expecting value") and rest[:1] == "]" and error.doc[: error.pos].rstrip().endswith(","):
        return "delete the comma before ]"
    if rest[:1] == "'":
        return "JSON strings are in double quotes"
    if error.doc.startswith(("True", "False", "None"), error.pos):
        return "write true, false or null"
    if rest[:1] in ("“", "”", "‘", "’", "，", "：", "「"):
        return "full-width or curly punctuation: use the ASCII character"
    if not rest:
        return "the file ends too early"
    if rest == "//" or rest == "/*" or rest[:1] == "#":
        return "JSON has no comments"
    if error.msg == "Extra data":
        return "keep one JSON value in the file"
    if error.msg.startswith("Expecting ',' delimiter"):
        return "a comma or a closing bracket is missing before this place"
    if error.msg.startswith("Unterminated string"):
        return 'close the string with "'
    if error.msg.startswith("Invalid control character"):
        return "write line breaks in strings as \\n and tabs as \\t"
    if error.msg.startswith("Invalid \\\\"):
        return "write a backslash as \\\\"
    return "compare this place with the lines around it; every value is text in double quotes, a number, true, false, null, [...] or {...}"
