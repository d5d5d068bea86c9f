"""The copy of a small plain value in one walk; large or unusual values take the slow path (`limits`).

None never means that the value is invalid, only that the slow path must decide.
"""

from __future__ import annotations

from typing import Any, Final

from tavern_core.model import depths
from tavern_core.schema.limits import is_text

ROOM: Final = 65_536
"""Values and characters, names included, in one quick copy. A shared part counts each time."""
SMALL: Final = 1 << 63


def quick_copy(value: Any, room: int = ROOM, levels: int = depths.VALUE) -> Any | None:
    """`json_copy` of an exact dict or list, or None if the slow path must decide.

    Args:
        value: anything; a cycle ends when `room` is used up.
        room: total values and characters that it may hold.
        levels: nesting depth of dicts and lists, including itself.
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
