"""`tavern.jobs`: a name that the API has and this version does not fill.

It is empty and says so, so that code which looks before it uses it (`if "x" in tavern.jobs`) runs today and later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn


class Unfilled(Mapping[str, Any]):
    """A read-only mapping that is always empty: this version of the host has nothing to put into it.

    Args:
        name: how users reach it, ``tavern.jobs``.
        what: what it will hold, in the plural.
    """

    __slots__ = ("_name", "_what")

    def __init__(self, name: str, what: str) -> None:
        self._name = name
        self._what = what

    def __getitem__(self, key: str) -> NoReturn:
        raise KeyError(f"{self._name} has no {key!r:.80}: {self._reason}")

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"<{self._name}: empty; {self._reason}>"

    @property
    def _reason(self) -> str:
        return f"this version of tavern_core keeps no {self._what}"
