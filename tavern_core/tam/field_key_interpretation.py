"""Which parameter of a tool a key means (TAM rule 9), which step a field belongs to, and its role (rule 10).

The role is that of an argument or of a modifier.

commands    command | command1, command_2, …          the steps, in numeric order
filePath1   a declared parameter of step 1, else an undeclared one of step 1
BM25        the declared parameter BM25, if step 25 does not declare BM
format      no number: every step that declares it
retry_2     a modifier, in a block with a value of the second dialect, unless declared
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from tavern_core.model.message_translation import joined, say
from tavern_core.model.nearest import fold
from tavern_core.schema.text_parameters import TextParameters
from tavern_core.tam.document import Block
from tavern_core.tam.expected import expected
from tavern_core.tam.grammar import MAX_KEY
from tavern_core.tam.wording import WORDS

SHARED: Final = None
_SEPARATORS: Final = "_- .\t\u3000\xa0"
_B: Final = r"[_\-. \t\u3000\xa0]"
_MODIFIER: Final = re.compile(
    rf"(?P<on_error>on{_B}?error)(?:{_B}*(?P<n1>\d+))?|(?P<retry>retry)(?:{_B}*(?P<n2>\d+))?|(?P<request_id>request{_B}?id)"
    rf"|(?P<comment>comment)(?:{_B}*\d+)?"
    rf"|(?:(?P<type_hint>type{_B}?hint)|(?P<uri>uri)|(?P<common>common)){_B}(?P<of>.+)",
    re.IGNORECASE | re.DOTALL,
)

folded = lru_cache(maxsize=8192)(fold)


class BindableTool(NamedTuple):
    """A tool of the catalogue, prepared for binding."""

    id: str
    parameters: Parameters
    destructive: bool = False


class Modifier(NamedTuple):
    """A key with information about the call: `kind` is on_error, retry, request_id, comment, type_hint, uri or common."""

    kind: str
    of: str
    """The key of the parameter it is about (type_hint, uri, common)."""
    number: str
    """The number after it (on_error, retry); empty without one."""


def read_modifier(key: str) -> Modifier | None:
    """The modifier that `key` spells, or None."""
    found = _MODIFIER.fullmatch(key)
    if found is None:
        return None
    kind = next(
        name for name in ("on_error", "retry", "request_id", "comment", "type_hint", "uri", "common") if found[name]
    )
    return Modifier(kind, found["of"] or "", found["n1"] or found["n2"] or "")


def command_number(key: str) -> int | str | None:
    """The step a command key names: a number, `"single"` for plain `command`, None if it is not a command key.

    >>> command_number("Command_10"), command_number("command"), command_number("commander")
    (10, 'single', None)
    """
    name = folded(key) if len(key) <= MAX_KEY else ""
    if not name.startswith("command"):
        return None
    rest = name[7:]
    if not rest:
        return "single"
    return int(rest) if rest.isdecimal() else None


def commands_of(block: Block) -> list[str]:
    """The names of tools that the commands of a block give."""
    return [field.value.strip() for field in block.fields if command_number(field.key) is not None]


class FieldTarget(NamedTuple):
    """The place of a field. `step` None: every step that accepts it. `problem`: why it belongs nowhere."""

    step: int | None
    meaning: KeyMeaning
    problem: str = ""


def place_in_chain(key: str, steps: Mapping[int, BindableTool], kinds: Iterable[Parameters]) -> FieldTarget:
    """The step and the parameter of a chain that `key` means.

    Args:
        steps: the tool of each step.
        kinds: the parameters of these tools, each once.
    """
    run = len(key)
    while run and key[run - 1].isdecimal():
        run -= 1
    digits = key[run:]
    splits = _declared_splits(key, digits, steps)
    if len(splits) > 1:
        full_splits = [split for split in splits if split[0] == len(digits)]
        if not (full_splits and run and key[run - 1] in _SEPARATORS):
            names = tuple(f"{place.meaning.name} of step {place.step}" for _, place in splits)
            return FieldTarget(SHARED, KeyMeaning(key, False, names), "ambiguous_key")
        splits = full_splits
    if splits:
        return splits[0][1]
    meanings = [parameters.meaning(key) for parameters in kinds]
    if any(meaning.declared for meaning in meanings):
        return FieldTarget(SHARED, KeyMeaning(key, True))
    if ambiguous := next((meaning for meaning in meanings if meaning.ambiguous), None):
        return FieldTarget(SHARED, ambiguous, "ambiguous_key")
    if not digits:
        return FieldTarget(SHARED, KeyMeaning(key, False))
    number = int(digits)
    rest = key[:run]
    name = rest[:-1] if rest[-1:] and rest[-1] in _SEPARATORS else rest
    if number not in steps or not name:
        return FieldTarget(number, KeyMeaning(key, False), "orphan_parameter")
    meaning = steps[number].parameters.meaning(rest)
    if meaning.ambiguous:
        return FieldTarget(number, meaning, "ambiguous_key")
    return FieldTarget(number, KeyMeaning(name, False))


def _declared_splits(key: str, digits: str, steps: Mapping[int, BindableTool]) -> list[tuple[int, FieldTarget]]:
    """The ways to split a step number off the end of `key` that leave a declared parameter of that step."""
    found: list[tuple[int, FieldTarget]] = []
    for size in range(1, len(digits) + 1):
        number = int(digits[-size:])
        if number not in steps:
            continue
        rest = key[:-size]
        for spelled in (rest[:-1], rest) if rest[-1:] in _SEPARATORS else (rest,):
            meaning = steps[number].parameters.meaning(spelled)
            if meaning.declared:
                found.append((size, FieldTarget(number, meaning)))
                break
    return found


_MOST_SHOWN: Final = 12


class KeyMeaning(NamedTuple):
    """The meaning of a key to a tool: a declared parameter, several (`ambiguous`), or neither."""

    name: str
    declared: bool
    ambiguous: tuple[str, ...] = ()


class Parameters(TextParameters):
    """The parameters of one tool, which keys name in several spellings."""

    def __init__(self, schema: object) -> None:
        super().__init__(schema)
        self._meanings: dict[str, KeyMeaning] = {name: KeyMeaning(name, True) for name in self._declared}
        self._folds: dict[str, list[str]] | None = None

    def meaning(self, key: str) -> KeyMeaning:
        """The parameter that `key` means: the exact spelling, else the one declared name with the same fold."""
        known = self._meanings.get(key)
        if known is None:
            known = self._folded_meaning(key)
            if len(self._meanings) < 10_000:
                self._meanings[key] = known
        return known

    def _folded_meaning(self, key: str) -> KeyMeaning:
        if self._folds is None:
            self._folds = {}
            for name in self._declared:
                self._folds.setdefault(fold(name), []).append(name)
        folded = fold(key)
        names = self._folds.get(folded, []) if folded else []
        if len(names) == 1:
            return KeyMeaning(names[0], True)
        return KeyMeaning(key, False, tuple(names))

    def described(self) -> str:
        """The declared parameters with their types, for a hint."""
        names = list(self._declared)
        required = self.schema.get("required")
        shown = [
            say(
                WORDS["required_parameter" if isinstance(required, list) and name in required else "parameter"],
                name=name,
                expected=expected(reader),
            )
            for name in names[:_MOST_SHOWN]
            if (reader := self.reader(name))
        ]
        more = ["…"] if len(names) > _MOST_SHOWN else []
        return (
            say(WORDS["parameters"], names=joined(WORDS["listed"], [*shown, *more]))
            if shown
            else say(WORDS["no_parameters"])
        )
