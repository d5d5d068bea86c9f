"""Reads a regular expression of a schema (ECMA-262, with the leniencies of its annex B that people rely on) into a tree."""

from __future__ import annotations

from tavern_core.schema.regex_tree import (
    ANYTHING,
    DIGIT,
    DOT,
    LAST,
    SPACE,
    SURROGATES,
    WORD,
    Assertion,
    BackReference,
    Chars,
    Choice,
    Group,
    Look,
    Node,
    PatternError,
    Ranges,
    Repeat,
    Sequence,
    inverse,
    ranges_of,
)
from tavern_core.schema.unicode_ranges import property_ranges

_MAX_LENGTH = 4_000
_MAX_DEPTH = 50
_MAX_COUNT = 10_000
_CLASSES = {"d": DIGIT, "w": WORD, "s": SPACE, "D": inverse(DIGIT), "W": inverse(WORD), "S": inverse(SPACE)}
_CONTROLS = {"n": 10, "r": 13, "t": 9, "v": 11, "f": 12, "0": 0}
_ELSEWHERE = {
    "A": "write `^`",
    "Z": "write `$`",
    "z": "write `$`",
    "h": "write `[ \\t]`",
    "R": "write `\\r?\\n`",
    "G": "leave it out",
    "e": "write `\\x1b`",
    "a": "write `\\x07`",
    "Q": "escape each character",
}


def parse_pattern(pattern: str) -> Node:
    """The tree of a pattern.

    Raises:
        PatternError: not ECMA-262, or too large.
    """
    if len(pattern) > _MAX_LENGTH:
        raise PatternError(f"the pattern has more than {_MAX_LENGTH:,} characters", "shorten it")
    return _Parser(pattern).run()


class _Parser:
    """Recursive descent over the text of one pattern."""

    def __init__(self, pattern: str) -> None:
        self.fold = pattern.startswith("(?i)")
        self.text = pattern[4:] if self.fold else pattern
        self.at = 0
        self.depth = 0
        self.groups = 0
        self.names: dict[str, int] = {}
        self.wanted: list[int | str] = []

    def run(self) -> Node:
        tree = self.choice()
        if self.at < len(self.text):
            raise PatternError(f"unmatched `)` at position {self.at}", "escape it as `\\)`")
        for wanted in self.wanted:
            if (wanted not in self.names) if isinstance(wanted, str) else wanted > self.groups:
                raise PatternError(f"there is no group {wanted} to refer back to")
        return tree

    def peek(self, length: int = 1) -> str:
        return self.text[self.at : self.at + length]

    def take(self) -> str:
        char = self.peek()
        if not char:
            raise PatternError("the pattern ends too early", "close what is open, or escape the last `\\`")
        self.at += 1
        return char

    def choice(self) -> Node:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise PatternError(f"groups are nested deeper than {_MAX_DEPTH}")
        parts = [self.sequence()]
        while self.peek() == "|":
            self.at += 1
            parts.append(self.sequence())
        self.depth -= 1
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def sequence(self) -> Node:
        parts: list[Node] = []
        while self.peek() not in ("", "|", ")"):
            parts.append(self.repeated(self.atom()))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def repeated(self, part: Node) -> Node:
        char = self.peek()
        if char not in ("*", "+", "?", "{"):
            return part
        if isinstance(part, Assertion | Look):
            raise PatternError(f"nothing to repeat before `{char}` at position {self.at}")
        low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(char) or self.counted()
        self.at += char != "{"
        lazy = self.peek() == "?"
        self.at += lazy
        if self.peek() in ("*", "+", "?", "{") and self.peek():
            hint = (
                "possessive quantifiers are not part of ECMA-262"
                if self.peek() == "+"
                else "put the first into a group"
            )
            raise PatternError(f"two quantifiers in a row at position {self.at}", hint)
        return Repeat(part, low, high, lazy)

    def counted(self) -> tuple[int, int | None]:
        end = self.text.find("}", self.at)
        low, comma, high = self.text[self.at + 1 : end].partition(",") if end > 0 else ("", "", "")
        if not _number(low) or (high and not _number(high)):
            raise PatternError(f"`{{` at position {self.at} is no quantifier", "write `{2}`, `{2,}`, `{2,5}` or `\\{`")
        self.at = end + 1
        least = int(low)
        most = (int(high) if high else None) if comma else least
        if least > _MAX_COUNT or (most is not None and (most > _MAX_COUNT or most < least)):
            raise PatternError(f"the count {{{low}{comma}{high}}} is out of order or above {_MAX_COUNT:,}")
        return least, most

    def atom(self) -> Node:
        char = self.take()
        match char:
            case "(":
                return self.group()
            case "[":
                return Chars(self.folded(self.char_class()))
            case ".":
                return Chars(DOT)
            case "^" | "$":
                return Assertion(char)
            case "\\":
                return self.escape()
            case "*" | "+" | "?" | "{":
                raise PatternError(
                    f"nothing to repeat before `{char}` at position {self.at - 1}", f"escape it as `\\{char}`"
                )
            case _:
                return self.character(ord(char))

    def character(self, code: int) -> Node:
        return Chars(self.folded(ranges_of((code, code))))

    def group(self) -> Node:
        opening = next((each for each in ("?:", "?=", "?!", "?<=", "?<!") if self.peek(len(each)) == each), "")
        self.at += len(opening)
        number = 0
        if not opening:
            self.groups += 1
            number = self.groups
            if self.peek(2) == "?<" or self.peek(3) == "?P<":
                self.name(number)
            elif self.peek() == "?":
                raise PatternError(
                    f"`({self.peek(3)}…` is not part of ECMA-262",
                    "flags only as `(?i)` at the very beginning; groups as `(?:…)`",
                )
        part = self.choice()
        if self.peek() != ")":
            raise PatternError("a `(` is never closed", "close it, or escape it as `\\(`")
        self.at += 1
        if opening in ("", "?:"):
            return Group(part, number) if number else Sequence((part,))
        return Look(part, "(" + opening)

    def name(self, number: int) -> None:
        end = self.text.find(">", self.at)
        name = self.text[self.text.find("<", self.at) + 1 : end]
        if end < 0 or not name.isidentifier() or name in self.names:
            raise PatternError("a group's name must be a new identifier", "write `(?<name>…)`")
        self.names[name] = number
        self.at = end + 1

    def escape(self) -> Node:
        char = self.peek()
        if char in ("b", "B"):
            self.at += 1
            return Assertion(char)
        if char == "k" and self.peek(2) == "k<":
            end = self.text.find(">", self.at)
            name = self.text[self.at + 2 : end]
            if end < 0 or name not in self.names:
                raise PatternError(f"there is no group {name!r} to refer back to")
            self.at = end + 1
            return BackReference(self.names[name])
        if char in "123456789" and char:
            start = self.at
            while _number(self.peek()) and self.at - start < 3:
                self.at += 1
            number = int(self.text[start : self.at])
            self.wanted.append(number)
            return BackReference(number)
        return Chars(self.folded(self.escaped()))

    def escaped(self) -> Ranges:
        """What follows a backslash, inside a class or outside."""
        char = self.take()
        if char in _CLASSES:
            return _CLASSES[char]
        if char in ("p", "P"):
            return self.unicode_property(negative=char == "P")
        code = self.code(char)
        return ranges_of((code, code)) or ANYTHING[:0]

    def code(self, char: str) -> int:
        if char in _CONTROLS:
            if char == "0" and _number(self.peek()):
                raise PatternError("octal escapes are not part of ECMA-262", "write `\\x..`")
            return _CONTROLS[char]
        if char == "c" and self.peek().isascii() and self.peek().isalpha():
            return ord(self.take()) % 32
        if char == "x":
            return self.hexadecimal(2)
        if char == "u":
            return self.unicode_escape()
        if char.isascii() and char.isalnum():
            raise PatternError(f"`\\{char}` is not part of ECMA-262", _ELSEWHERE.get(char, f"write `{char}`"))
        return ord(char)

    def hexadecimal(self, length: int) -> int:
        digits = self.peek(length)
        self.at += length
        if len(digits) < length or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
            raise PatternError(f"{length} hexadecimal digits expected at position {self.at - length}")
        return int(digits, 16)

    def unicode_escape(self) -> int:
        if self.peek() == "{":
            end = self.text.find("}", self.at)
            digits = self.text[self.at + 1 : end]
            if end < 0 or not 1 <= len(digits) <= 6 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
                raise PatternError("hexadecimal digits expected in `\\u{…}`")
            self.at = end + 1
            code = int(digits, 16)
        else:
            code = self.hexadecimal(4)
            if 0xD800 <= code <= 0xDBFF and self.peek(2) == "\\u":
                self.at += 2
                code = 0x10000 + ((code - 0xD800) << 10) + (self.hexadecimal(4) - 0xDC00)
        if code > LAST or SURROGATES[0] <= code <= SURROGATES[1]:
            raise PatternError(f"U+{code:X} is not a character")
        return code

    def unicode_property(self, negative: bool) -> Ranges:
        end = self.text.find("}", self.at)
        if self.peek() != "{" or end < 0:
            raise PatternError("`\\p` needs a property in braces", "write `\\p{L}`")
        name = self.text[self.at + 1 : end]
        self.at = end + 1
        ranges = property_ranges(name)
        return inverse(ranges) if negative else ranges

    def char_class(self) -> Ranges:
        negative = self.peek() == "^"
        self.at += negative
        pairs: list[tuple[int, int]] = []
        while self.peek() != "]":
            first = self.member()
            if self.peek() == "-" and self.peek(2) not in ("-]", "-"):
                self.at += 1
                last = self.member()
                if len(first) == len(last) == 1 and first[0][0] == first[0][1] and last[0][0] == last[0][1]:
                    if last[0][0] < first[0][0]:
                        raise PatternError(
                            f"a range in `[…]` is the wrong way round at position {self.at}", "escape the `-`"
                        )
                    first = ((first[0][0], last[0][0]),)
                else:  # `[\w-.]`: the hyphen is itself
                    first = (*first, (0x2D, 0x2D), *last)
            pairs.extend(first)
        self.at += 1
        ranges = ranges_of(*pairs)
        ranges = inverse(self.folded(ranges)) if negative else ranges
        if not ranges:
            raise PatternError("a `[…]` that matches nothing", "`[^]` is everything, `[]` is nothing")
        return ranges

    def member(self) -> tuple[tuple[int, int], ...]:
        char = self.take()
        if char != "\\":
            return ((ord(char), ord(char)),)
        if self.peek() == "b":
            self.at += 1
            return ((8, 8),)
        return self.escaped()

    def folded(self, ranges: Ranges) -> Ranges:
        """With `(?i)`: both cases of every letter (of small sets; large ones such as `\\p{L}` have both)."""
        if not self.fold or sum(high - low for low, high in ranges) > 2_000:
            return ranges
        found = list(ranges)
        for low, high in ranges:
            for code in range(low, high + 1):
                found += [(ord(case), ord(case)) for case in (chr(code).lower(), chr(code).upper()) if len(case) == 1]
        return ranges_of(*found)


def _number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 9
