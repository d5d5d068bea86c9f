"""Which parameter of a tool a key means (TAM rule 9)."""

from __future__ import annotations

from typing import Final, NamedTuple

from tavern_core.model.message_translation import joined, say
from tavern_core.model.nearest import fold
from tavern_core.schema.text_parameters import TextParameters
from tavern_core.tam.expected import expected
from tavern_core.tam.wording import WORDS

_MOST_SHOWN: Final = 12


class KeyMeaning(NamedTuple):
    """What a key means to a tool: a declared parameter, several (`ambiguous`), or neither."""

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
        """Which parameter `key` means: the exact spelling, else the one declared name with the same fold."""
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
