"""The data of a valid YAML text, as fast as possible in Python.

Events, not nodes: an alias or a deep nesting ends the reading where it begins, before anything of it is built, and building
straight from events costs about two thirds of yaml.CSafeLoader's own constructor. What may have to be refused is left to
`yaml_findings`, which reads again and knows the places.
"""

from __future__ import annotations

from typing import Any

from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from tavern_core.kernel.text.document import MOST_NODES
from tavern_core.kernel.text.yaml_dialect import CONTROL, NUMBER_STARTS, WORDS, EventParser, NotSimple, number
from tavern_core.model import depths


def read_data(text: str) -> Any:
    """The data of a valid text; half the cost of a reader with locations.

    Raises:
        NotSimple: something is, or may be.
        yaml.YAMLError: it is not YAML.
    """
    parser = EventParser(text)
    try:
        next_event, nodes = parser.get_event, 0
        stack: list[tuple[Any, str | None]] = []
        root: Any = None
        has_root = False
        items: Any = None  # the open mapping or sequence
        key: str | None = None
        while True:
            event = next_event()
            kind = type(event)
            if kind is ScalarEvent:
                value = event.value
                if event.style:
                    if event.style == '"' and CONTROL.search(value) is not None:
                        raise NotSimple
                elif value in WORDS:
                    value = WORDS[value]
                elif value[0] in NUMBER_STARTS:
                    value = number(value)
            elif kind is MappingStartEvent:
                value = {}
            elif kind is SequenceStartEvent:
                value = []
            elif kind is MappingEndEvent or kind is SequenceEndEvent:
                items, key = stack.pop()
                continue
            elif kind is StreamEndEvent:
                return root
            elif kind is AliasEvent or (kind is DocumentStartEvent and has_root):
                raise NotSimple
            else:
                continue
            nodes += 1
            if event.anchor is not None or event.tag is not None or nodes > MOST_NODES:
                raise NotSimple
            if type(items) is dict and key is None:
                if type(value) is not str or value in items or value == "<<":
                    raise NotSimple
                key = value
                items[key] = None
                continue
            if type(items) is dict:
                items[key] = value
                key = None
            elif type(items) is list:
                items.append(value)
            else:
                root, has_root = value, True
            if kind is not ScalarEvent:
                stack.append((items, key))
                items = value
                if len(stack) > depths.VALUE:
                    raise NotSimple
    finally:
        parser.dispose()
