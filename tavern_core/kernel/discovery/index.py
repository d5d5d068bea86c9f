"""The cached index: what was found last time, so that the next start need not read it again.

    index-<key>.json    line 1    {"format", "key", "crc", "light"}
                        line 2    {"paths": [...], "rows": [...]}     what every start needs
                        line 3..  manifest, tools and specs of each plugin, decoded on demand

One file per interpreter, path and set of roots, because one TAVERN_HOME serves several environments. It is a cache: if it is corrupt,
foreign, unreadable or unwritable, everything is read again, without an error. It is replaced as a whole, so several
processes may write it at once and the last one wins.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from tavern_core.kernel.discovery.distributions import Distribution, PathEntry
from tavern_core.kernel.discovery.index_rows import Details, Row
from tavern_core.kernel.files.regular_file import open_regular

FORMAT: Final = 7
_LARGEST: Final = 200_000_000
_MOST_FILES: Final = 16
"""The number of stored indexes of other environments."""


class Index:
    """What is remembered for one interpreter, path and set of roots."""

    def __init__(self, file: Path | None, paths: Sequence[str], roots: Iterable[str]) -> None:
        self.paths: dict[str, PathEntry] = {}
        self.rows: dict[str, Row] = {}
        self.is_changed = False
        self._key = _key(paths, roots)
        self._file = None if file is None else file.with_name(f"{file.stem}-{self._key}{file.suffix or '.json'}")
        self._load()

    def _load(self) -> None:
        if self._file is None:
            return
        try:
            with open_regular(self._file) as source:
                # With the exact size: for a limit alone, Python would first allocate that much memory.
                content = source.read(min(os.fstat(source.fileno()).st_size, _LARGEST))
            start = content.index(b"\n") + 1
            header = json.loads(content[:start])
            crc = zlib.crc32(memoryview(content)[start:])
            if (header["format"], header["key"], header["crc"]) != (FORMAT, self._key, crc):
                return
            # Behind the check sum the content is what this very version wrote.
            heavy = start + header["light"] + 1
            data = json.loads(content[start : heavy - 1])
            self.paths = {row[0]: _entry(row) for row in data["paths"]}
            for length, at, *light in data["rows"]:
                self.rows[light[0]] = Row.of(light, Details(content, heavy + at, length))
        except (OSError, ValueError, TypeError, KeyError, IndexError, RecursionError):
            self.paths, self.rows = {}, {}

    def save(self) -> bool:
        """Write the changes; True when no change is left to write. An unwritable folder is not an error."""
        if not self.is_changed or self._file is None:
            return True
        from tavern_core.errors import StateDamaged
        from tavern_core.kernel.files.atomic_file import write_atomic

        try:
            write_atomic(self._file, self._text(), durable=False)
        except StateDamaged:
            return False
        self.is_changed = False
        self._prune()
        return True

    def _text(self) -> str:
        heavy = [row.details.encoded() for row in self.rows.values()]
        # Offsets count from line 3: the length of line 2 depends on them.
        rows: list[list[Any]] = []
        at = 0
        for row, details in zip(self.rows.values(), heavy, strict=True):
            rows.append([len(details), at, *row.light()])
            at += len(details) + 1
        paths = [_pack(entry) for entry in self.paths.values()]
        light = json.dumps({"paths": paths, "rows": rows}, separators=(",", ":"))
        body = b"\n".join([light.encode("ascii"), *heavy])
        head = {"format": FORMAT, "key": self._key, "crc": zlib.crc32(body), "light": len(light)}
        return json.dumps(head) + "\n" + body.decode("ascii")

    def _prune(self) -> None:
        """Delete the oldest indexes of environments that are removed or unused."""
        assert self._file is not None
        stem = self._file.stem.rpartition("-")[0]
        try:
            others = sorted(self._file.parent.glob(f"{stem}-*{self._file.suffix}"), key=lambda f: f.stat().st_mtime)
            for old in others[:-_MOST_FILES]:
                old.unlink(missing_ok=True)
        except OSError:
            return  # another process deletes too


def _key(paths: Sequence[str], roots: Iterable[str]) -> str:
    # Not an import: the package's `__init__` imports the host, which is a layer above this file.
    version = str(vars(sys.modules["tavern_core"]).get("__version__", ""))
    parts = [version, str(FORMAT), sys.version, sys.executable, "", *paths, "", *roots]
    return f"{zlib.crc32(chr(0).join(parts).encode('utf-8', 'surrogatepass')):08x}{len(paths):02x}"


def _pack(entry: PathEntry) -> list[Any]:
    # What is empty at the end is left out. Most distributions have no entries: they are only names that hide others.
    rows = [list(d if d.problems else d[:-1] if d.entries else d[:3]) for d in entry.distributions]
    return [entry.path, entry.stamp, rows, entry.is_settled]


def _entry(row: list[Any]) -> PathEntry:
    path, stamp, distributions, is_settled = row
    return PathEntry(path, stamp, [Distribution(*d) for d in distributions], is_settled)
