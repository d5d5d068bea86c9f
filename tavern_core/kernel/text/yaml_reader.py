"""YAML as data with places: a small, safe dialect.

    text --decode--> characters --libyaml--> events --read_data--> data
                                               (again, only if there is an error or a location is needed)
                                               --yaml_findings--> findings, and path -> line and column

What is read: mappings with text keys, sequences, text, `true`/`false`, `null`, integers and finite numbers, as in YAML 1.2
(`yes`, `no`, `on`, `off` and dates stay text). What is refused, each with its place: anchors, aliases, merge keys, tags,
duplicate keys, keys that are not text, several documents, control characters, NaN and infinity, and anything beyond the
limits of `yaml_dialect`. No function here raises on content or opens a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml
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

from tavern_core.errors import Finding, Location
from tavern_core.kernel.text.document import MOST_NODES, LocatedDocument, place, text_of
from tavern_core.kernel.text.yaml_dialect import (
    CONTROL,
    FORBIDDEN,
    NUMBER_STARTS,
    WORDS,
    EventParser,
    NotSimple,
    number,
)
from tavern_core.kernel.text.yaml_findings import LocatedReading
from tavern_core.model import depths
from tavern_core.model.path_problem import Mark, Path


class YamlDocument(LocatedDocument):
    """The content of a YAML text."""

    def _read_marks(self) -> Mapping[Path, tuple[Mark, Mark]]:
        marks: dict[Path, tuple[Mark, Mark]] = {}
        LocatedReading(self.text, self.file, self.code, marks).build()
        return marks


def read_yaml(text: str | bytes, file: str, *, code: str = "MANIFEST_INVALID") -> YamlDocument:
    """Read one YAML document.

    Args:
        text: characters, or bytes in UTF-8 (with or without a byte order mark).
        file: the name shown in findings.
        code: the error code that findings carry.

    Returns:
        A document; if it could not be read, `data` is None and `findings` say why. Never raises on content.
    """
    found = text_of(text, file, code)
    if isinstance(found, Finding):
        return YamlDocument(file, "", None, (found,), code)
    text = found
    if (bad := FORBIDDEN.search(text)) is not None:
        message = f"the character U+{ord(bad.group()):04X} is not allowed here"
        where = Location(file, *place(text, bad.start()))
        safe = FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
        return YamlDocument(file, safe, None, (Finding(code, message, "delete it", where),), code)
    try:
        return YamlDocument(file, text, read_data(text), (), code)
    except (NotSimple, yaml.YAMLError):
        builder = LocatedReading(text, file, code)  # again, slower, to say what is wrong and where
        data = builder.build()
    return YamlDocument(file, text, data, tuple(builder.findings), code)


def read_data(text: str) -> Any:
    """The data of a valid text, as fast as possible in Python: half the cost of a reader with locations.

    Events, not nodes: an alias or a deep nesting ends the reading where it begins, before anything of it is built, and building
    straight from events costs about two thirds of yaml.CSafeLoader's own constructor. What may have to be refused is left to
    `yaml_findings`, which reads again and knows the places.

    Raises:
        NotSimple: a part is, or may be, refused.
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
