"""YAML as data with places: a small, safe dialect.

    text --decode--> characters --libyaml--> events --yaml_data--> data
                                               (again, only if there is an error or a location is needed)
                                               --yaml_findings--> findings, and path -> line and column

What is read: mappings with text keys, sequences, text, `true`/`false`, `null`, integers and finite numbers, as in YAML 1.2
(`yes`, `no`, `on`, `off` and dates stay text). What is refused, each with its place: anchors, aliases, merge keys, tags,
duplicate keys, keys that are not text, several documents, control characters, NaN and infinity, and anything beyond the
limits of `yaml_dialect`. No function here raises on content or opens a file.
"""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from tavern_core.errors import Finding, Location
from tavern_core.kernel.text.document import LocatedDocument, place, text_of
from tavern_core.kernel.text.yaml_data import read_data
from tavern_core.kernel.text.yaml_dialect import FORBIDDEN, NotSimple
from tavern_core.kernel.text.yaml_findings import LocatedReading
from tavern_core.model.path_problem import Mark, Path


class YamlDocument(LocatedDocument):
    """What one YAML text holds."""

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
