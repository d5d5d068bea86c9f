"""Reads a source of configuration: a file, the environment, a mapping. Each knows the places of its values."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tavern_core.errors import ConfigInvalid, Finding, Location, StateDamaged
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.config.config_and_state_paths import PROJECT_FILE, PYPROJECT
from tavern_core.kernel.config.config_key_lookup import FREE, Keys, annotation_at, canonical, section_of, split_key
from tavern_core.kernel.files.atomic_file import read_bytes
from tavern_core.kernel.text.document import LARGEST_FILE
from tavern_core.model import depths
from tavern_core.model.naming_rules import camel

_CODE: Final = ConfigInvalid.code
_TOML_TABLE: Final = re.compile(r"^[ \t]*\[[ \t]*tool[ \t]*\.[ \t]*tavern\b", re.MULTILINE)
# no \s: it would try every line end in a row of empty lines
_NO_KEY: Final = frozenset("#[]{}")
_TOO_DEEP: Final = rf"(?<![\w-])(?:(?:[\w-]+|\"[^\"\n]*\"|'[^'\n]*')[ \t]*\.[ \t]*){{{depths.VALUE}}}"
"""Compiled where it is used: that takes 14 ms."""
_TOML_HINT: Final = "compare this place with the lines around it; pip cannot read the file either"
_PLACE: Final = re.compile(r"\(at line (\d+), column (\d+)\)")


@dataclass(frozen=True, slots=True)
class ConfigLayer:
    """Values of one source, keys in the file's spelling.

    Args:
        name: for messages and `--origin`: a path, a variable, ``flag``.
        locate: the location of the value at a path.
        base: the folder for relative paths in it.
        findings: the errors that reading shows.
    """

    name: str
    data: dict[str, Any]
    locate: Callable[[Keys], Location]
    base: Path
    findings: tuple[Finding, ...] = ()

    def origin(self, path: Keys) -> str:
        """The origin of the value at `path`, for a person."""
        where = self.locate(path)
        return f"{where.file}:{where.line}" if where.line else where.file


def mapping_layer(name: str, data: Mapping[str, Any], base: Path) -> ConfigLayer:
    """Values given by the program: nested, or with dotted keys such as ``limits.timeoutMs``."""
    values, twice = canonical(_undotted(data))
    return ConfigLayer(name, values, lambda path: Location(name, pointer=".".join(path)), base, _twice(twice, name))


def yaml_layer(path: Path) -> ConfigLayer:
    """Read tavern.yaml or config.yaml."""
    from tavern_core.kernel.text.yaml_reader import read_yaml

    content, problems = _read(path)
    document = read_yaml(content, str(path), code=_CODE)

    def locate(keys: Keys) -> Location:
        written = _as_written(document.data, keys)
        is_known = annotation_at(keys) is not None or not keys or keys[0] in FREE
        return document.locate(written, key=not is_known)  # an unknown key is wrong, not its value

    findings = (*problems, *document.findings)
    if document.data is not None and not isinstance(document.data, dict):
        where = Location(str(path), 1, 1)
        findings += (Finding(_CODE, "the file must be a mapping of sections", "for example `limits:`", where),)
    data, twice = canonical(document.data) if isinstance(document.data, dict) else ({}, [])
    return ConfigLayer(str(path), data, locate, path.parent, (*findings, *_twice(twice, str(path), locate)))


def toml_layer(path: Path) -> ConfigLayer | None:
    """Read ``[tool.tavern]`` of pyproject.toml; None: there is none. Mistakes elsewhere in it are not reported."""
    from tavern_core.kernel.text.document import decode

    content, problems = _read(path)
    text = decode(content, str(path), _CODE)
    if isinstance(text, Finding):
        if b"tavern" not in content:
            return None
        problems, text = (*problems, text), ""

    def locate(keys: Keys) -> Location:
        return Location(str(path), _toml_line(text, keys), 1, ".".join(keys))

    if _TOML_TABLE.search(text) is None and not problems:
        return None
    import tomllib

    try:
        if re.search(_TOO_DEEP, text) is not None:
            raise RecursionError("nested too deeply")  # tomllib needs quadratic time for it
        table = tomllib.loads(text).get("tool", {}).get("tavern", {})
    except (ValueError, RecursionError, AttributeError) as error:  # a number of too many digits is a plain ValueError
        place = _PLACE.search(str(error))
        where = Location(str(path), int(place[1]), int(place[2])) if place else Location(str(path))
        problems += (Finding(_CODE, f"not TOML: {_PLACE.sub('', str(error)).strip()}", _TOML_HINT, where),)
        table = {}
    if not isinstance(table, dict):
        problems += (Finding(_CODE, "[tool.tavern] must be a table", "for example `[tool.tavern.limits]`", locate(())),)
        table = {}
    data, twice = canonical(table)
    return ConfigLayer(str(path), data, locate, path.parent, (*problems, *_twice(twice, str(path), locate)))


def file_layer(path: Path) -> ConfigLayer | None:
    """Read a configuration file of any kind."""
    return toml_layer(path) if path.suffix == ".toml" else yaml_layer(path)


def find_project_layer(start: Path) -> tuple[ConfigLayer | None, list[Finding]]:
    """The first tavern.yaml or pyproject.toml with [tool.tavern] in or above `start`, and warnings about others.

    A file further up that another user owns is ignored: its owner could point this host at their plugins.
    """
    odd: list[Finding] = []
    for folder in (start, *start.parents):
        found = [folder / name for name in (PROJECT_FILE, PYPROJECT) if (folder / name).is_file()]
        layers: list[ConfigLayer] = []
        for path in found:
            if folder != start and _belongs_to_another(path):
                message = f"{path} belongs to another user and is not used"
                odd.append(Finding(_CODE, message, f"name it with --config {path}", Location(str(path)), "warning"))
            elif (layer := file_layer(path)) is not None:
                layers.append(layer)
        if len(layers) > 1:
            where = layers[1].locate(())
            message = f"[tool.tavern] is not used: {layers[0].name} is in the same folder"
            odd.append(Finding(_CODE, message, "keep one of them", where, "warning"))
        if layers:
            return layers[0], odd
    return None, odd


def _belongs_to_another(path: Path) -> bool:
    return hasattr(os, "getuid") and path.stat().st_uid not in (os.getuid(), 0)


def _read(path: Path) -> tuple[bytes, tuple[Finding, ...]]:
    try:
        # Configuration files may be links: people keep them in their dot-file repositories.
        content = read_bytes(path.resolve(), LARGEST_FILE)
    except (StateDamaged, OSError, RuntimeError) as error:
        return b"", (Finding(_CODE, f"cannot be read: {error}", getattr(error, "hint", ""), Location(str(path))),)
    if content is None:
        return b"", (Finding(_CODE, "does not exist", "", Location(str(path))),)
    return content, ()


def _twice(paths: list[Keys], name: str, locate: Callable[[Keys], Location] | None = None) -> tuple[Finding, ...]:
    return tuple(
        Finding(
            _CODE,
            f"{'.'.join(path)} is given in two spellings",
            "keep the camelCase one",
            locate(path) if locate else Location(name, pointer=".".join(path)),
        )
        for path in paths
    )


def _undotted(data: Mapping[str, Any], above: Keys = ()) -> dict[str, Any]:
    """``{"limits.timeoutMs": 5}`` → nested. A dotted key of a setting stays whole behind ``settings.``, and so does a name."""
    result: dict[str, Any] = {}
    for key, value in data.items():
        is_dotted = "." in str(key) and section_of(annotation_at(above)) is not None
        path = split_key(str(key), above=above) if is_dotted else (str(key),)
        full_path = (*above, *path)
        if isinstance(value, Mapping):
            value = dict(value) if full_path[0] in FREE else _undotted(value, full_path)
        for word in reversed(path):
            value = {word: value}
        _merge(result, value)
    return result


def _merge(into: dict[str, Any], data: Mapping[str, Any]) -> None:
    for key, value in data.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _as_written(data: Any, keys: Keys) -> list[str | int]:
    """The path as it is spelt in the document: snake_case, nested where `keys` has dots, numbers in lists."""
    written: list[str | int] = []
    rest = list(keys)
    while rest:
        key = rest.pop(0)
        if isinstance(data, list) and key.isdigit() and int(key) < len(data):
            written.append(int(key))
            data = data[int(key)]
        elif isinstance(data, dict) and (match := _spelling(data, key)) is not None:
            if match != key and key.startswith(f"{match}."):
                rest.insert(0, key[len(match) + 1 :])
            written.append(match)
            data = data[match]
        else:
            return [*written, key, *rest]
    return written


def _spelling(data: Mapping[str, Any], key: str) -> str | None:
    snake = re.sub(r"(?<!^)([A-Z])", r"_\1", key).lower()
    found = next((k for k in (key, snake) if k in data), None)
    return found or next((k for k in data if key.startswith(f"{k}.")), None)


def _toml_line(text: str, keys: Keys) -> int:
    """The line of a key, as TOML readers give no places: the nearest line above it that is certain."""
    table: tuple[str, ...] = ()
    best = (-1, 0)
    wanted = ("tool", "tavern", *keys)
    for number, line in enumerate(text.splitlines(), 1):
        name, equals, _ = line.partition("=")
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            table = _toml_keys(header[1])
            here = table
        elif equals and _NO_KEY.isdisjoint(name):
            here = (*table, *_toml_keys(name))
        else:
            continue
        if len(here) > best[0] and here == wanted[: len(here)] and here[:2] == ("tool", "tavern"):
            best = (len(here), number)
    return best[1]


def _toml_keys(text: str) -> tuple[str, ...]:
    parts = re.findall(r'"[^"]*"|\'[^\']*\'|[^.\s]+', text)
    return tuple(camel(p.strip("\"'")) for p in parts)
