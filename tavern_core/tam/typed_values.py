"""From the text of a value to the type its JSON Schema declares (TAM rule 11).

    integer number boolean object array null    parsed from the trimmed text as strict JSON (no NaN, no Infinity)
    enum, const                                 the trimmed text, as one of the declared values
    string, or nothing declared                 the text itself, verbatim

In a union, literals come first, then every type but string, then string: `5` is a number where a number is allowed,
`null` means null if null is allowed, and everything else stays text. `mismatch` then checks the value against the
keywords a model gets wrong most (types inside, enum, required, unknown names, bounds, lengths). It is not a full validator;
the host passes one to `bind`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from tavern_core.model.language import say
from tavern_core.model.nearest import nearest
from tavern_core.schema.json_reader import NotJson, read_json
from tavern_core.tam.alternatives import Schema, expected, leaves, literals_of, shown, types_of
from tavern_core.tam.foreign_values import repair
from tavern_core.tam.mismatch import misfit
from tavern_core.tam.wording import WORDS

_ANNOTATIONS: Final = frozenset(
    {"type", "title", "description", "default", "defaultValue", "examples", "deprecated", "format", "$comment"}
)
"""Keywords that forbid nothing; `type` is checked first."""
_WHOLE_NUMBER: Final = re.compile("-?(?:0|[1-9][0-9]{0,17})")


class Reader:
    """Reads the text of one parameter. Created once per parameter, used for every call.

    `verbatim` is True if the text is the value and is always valid.
    """

    __slots__ = ("_kinds", "_literals", "_root", "_schema", "_string", "_whole", "expected", "verbatim")

    def __init__(self, schema: Any, root: Schema) -> None:
        self._schema, self._root = schema, root
        alternatives = leaves(schema, root)
        listed = [literals_of(leaf) for leaf in alternatives]
        self._literals = [value for values in listed if values is not None for value in values]
        free = [leaf for leaf, values in zip(alternatives, listed, strict=True) if values is None]
        self._kinds: frozenset[str] = frozenset().union(*(types_of(leaf) for leaf in free)) - {"string"}
        self._string = any("string" in types_of(leaf) for leaf in free)
        self.expected = expected(schema, root)
        bare = not self._literals and all(_is_bare(leaf) for leaf in free)
        self._whole = bare and not self._string and self._kinds <= {"integer", "number"}
        self.verbatim = bare and self._string and not self._kinds

    @property
    def takes_strings(self) -> bool:
        return self._string or any(isinstance(value, str) for value in self._literals)

    def read(self, text: str) -> tuple[Any, str]:
        """The value, and its problem (empty: none)."""
        if self.verbatim:
            return text, ""
        trimmed = text.strip()
        if self._whole and _WHOLE_NUMBER.fullmatch(trimmed):
            return int(trimmed), ""
        for literal in self._literals:
            if isinstance(literal, str) and literal == text:
                return literal, ""
        for literal in self._literals:
            if isinstance(literal, str) and literal.strip() == trimmed:
                return literal, ""
        why = ""
        if self._kinds or self._literals:
            try:
                value = self._from_json(trimmed)
            except NotJson as error:
                why = repair(trimmed, self._kinds) or (
                    error.args[0] if self._kinds - {"null"} else self._meant(trimmed)
                )
            else:
                # Strings are never quoted: `"a"` is not a spelling of a.
                wrong = say(WORDS["not_quoted"]) if isinstance(value, str) else self.check(value)
                if not wrong:
                    return value, ""
                why = wrong
        if self._string:
            return text, self.check(text)
        if why.startswith(("expected", "/")):
            return None, why
        wrong = say(WORDS["expected"], expected=self.expected, got=shown(text))
        return None, say(WORDS["because"], what=wrong, why=why) if why else wrong

    def _meant(self, trimmed: str) -> str:
        """The nearest of the values that are listed; empty if none is close."""
        near = nearest(trimmed, [value for value in self._literals if isinstance(value, str)], 1)
        return say(WORDS["meant"], name=repr(near[0])) if near else ""

    def _from_json(self, trimmed: str) -> Any:
        value = read_json(trimmed)
        if isinstance(value, float) and "integer" in self._kinds and "number" not in self._kinds and value.is_integer():
            return int(value)
        return value

    def check(self, value: Any) -> str:
        """The problems of a value that is already typed."""
        return misfit(value, self._schema, self._root)


def _is_bare(leaf: Any) -> bool:
    return leaf is True or (isinstance(leaf, Mapping) and leaf.keys() <= _ANNOTATIONS)
