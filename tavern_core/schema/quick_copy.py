"""The copy of a small plain value in one walk; whatever is large or unusual is left to the careful way (`limits`).

None never means that something is wrong: it means that somebody else has to look.
"""

from __future__ import annotations

from typing import Any, Final

from tavern_core.model import depths
from tavern_core.schema.limits import is_text

ROOM: Final = 65_536
"""Values and characters, names included, in one quick copy. A part counts as often as it is met."""
SMALL: Final = 1 << 63


def quick_copy(value: Any, room: int = ROOM, levels: int = depths.VALUE) -> Any | None:
    """`json_copy` of an exact dict or list, or None when the careful way must judge.

    Args:
        value: anything; a cycle is left when there is no room any more.
        room: values and characters that it may hold in all.
        levels: dicts and lists inside each other, itself included.
    """
    if type(value) is not dict and type(value) is not list:
        return None
    copy = value.copy()
    level = [copy]
    while level and levels > 0:
        levels -= 1
        deeper: list[Any] = []
        for held in level:
            room -= len(held) + 1
            if room < 0:
                return None
            places: Any
            if type(held) is dict:
                places = held.items()
                for key in held:
                    if type(key) is not str or not (key.isascii() or is_text(key)):
                        return None
                    room -= len(key)
            else:
                places = enumerate(held)
            for place, item in places:
                kind = type(item)
                if kind is str:
                    room -= len(item)
                    if room < 0 or not (item.isascii() or is_text(item)):
                        return None
                elif kind is int:
                    if not -SMALL < item < SMALL:
                        return None
                elif kind is float:
                    if item - item != 0.0:  # not finite
                        return None
                elif kind is dict or kind is list:
                    held[place] = inner = item.copy()
                    deeper.append(inner)
                elif kind is not bool and item is not None:
                    return None
        level = deeper
    return None if level or room < 0 else copy
