"""The cached index: what was found last time, so that the next start need not read it again.

    index-<key>.json    line 1   {"format", "key", "crc"}
                        line 2   {"paths": [...], "rows": [...]}

One file per interpreter, path and set of roots, because one TAVERN_HOME serves several environments. It is a cache: damaged,
foreign, unreadable or unwritable means that everything is read again, never an error. It is replaced as a whole, so several
processes may write it at once and the last one wins.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, Final

from tavern_core import __version__
from tavern_core.kernel.distributions import Distribution, PathEntry
from tavern_core.kernel.found import Row

FORMAT: Final = 1
_LARGEST: Final = 200_000_000
_MOST_FILES: Final = 16
"""How many indexes of other environments are kept beside this one."""
_TICK: Final = 50_000_000
_COARSE_TICK: Final = 2_500_000_000
_SECOND: Final = 1_000_000_000


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
            with open(self._file, "rb") as source:  # noqa: PTH123 - pathlib opens no faster and is not loaded yet
                head, _, body = source.read(_LARGEST).partition(b"\n")
            header = json.loads(head)
            if header != {"format": FORMAT, "key": self._key, "crc": zlib.crc32(body)}:
                return
            # After the check sum the content is what this very version wrote.
            data = json.loads(body.decode("utf-8", "surrogatepass"))
            self.paths = {row[0]: _entry(row) for row in data["paths"]}
            self.rows = {row[0]: Row(*row) for row in data["rows"]}
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            self.paths, self.rows = {}, {}

    def save(self) -> bool:
        """Write what changed; True when nothing is left to write. A folder that cannot be written is no error."""
        if not self.is_changed or self._file is None:
            return not self.is_changed
        from tavern_core.errors import StateDamaged
        from tavern_core.kernel.atomic_file import write_atomic

        body = json.dumps(
            {
                "paths": [_pack(entry) for entry in self.paths.values()],
                "rows": [astuple(r) for r in self.rows.values()],
            },
            ensure_ascii=False,
            separators=(",", ":"),
        )
        if not _is_utf8(body):
            body = json.dumps(json.loads(body), separators=(",", ":"))
        head = json.dumps({"format": FORMAT, "key": self._key, "crc": zlib.crc32(body.encode())})
        try:
            write_atomic(self._file, f"{head}\n{body}", durable=False)
        except StateDamaged:
            return False
        self.is_changed = False
        self._prune()
        return True

    def _prune(self) -> None:
        """Delete the oldest indexes of environments that are gone or forgotten."""
        assert self._file is not None
        stem = self._file.stem.rpartition("-")[0]
        try:
            others = sorted(self._file.parent.glob(f"{stem}-*{self._file.suffix}"), key=lambda f: f.stat().st_mtime)
            for old in others[:-_MOST_FILES]:
                old.unlink(missing_ok=True)
        except OSError:
            return  # another process deletes too


def is_settled(stamps: Iterable[Sequence[int] | None], read_at: int) -> bool:
    """False when a file changed so shortly before it was read that a later edit could bear the same time.

    Kernels count file times in ticks of some milliseconds; file systems with whole seconds show it by their zeros.
    """
    for stamp in stamps:
        if stamp is not None:
            newest = max(stamp[0], stamp[1])
            if newest + (_COARSE_TICK if newest % _SECOND == 0 else _TICK) > read_at:
                return False
    return True


def _key(paths: Sequence[str], roots: Iterable[str]) -> str:
    parts = [__version__, str(FORMAT), sys.version, sys.executable, "", *paths, "", *roots]
    return f"{zlib.crc32(chr(0).join(parts).encode('utf-8', 'surrogatepass')):08x}{len(paths):02x}"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _pack(entry: PathEntry) -> list[Any]:
    # A distribution without entries is only a name that hides others; most are, so most rows are short.
    rows = [
        [d.key, d.folder, d.stamp] if not d.entries and not d.problems else list(astuple(d))
        for d in entry.distributions
    ]
    return [entry.path, entry.stamp, entry.read_at, rows]


def _entry(row: list[Any]) -> PathEntry:
    path, stamp, read_at, distributions = row
    return PathEntry(path, tuple(stamp) if stamp else None, tuple(_distribution(d) for d in distributions), read_at)


def _distribution(row: list[Any]) -> Distribution:
    key, folder, stamp = row[:3]
    if len(row) == 3:
        return Distribution(key, folder, tuple(stamp) if stamp else None)
    name, version, entries, problems = row[3:]
    return Distribution(
        key, folder, tuple(stamp) if stamp else None, name, version,
        tuple((n, v) for n, v in entries), tuple((m, h) for m, h in problems),
    )  # fmt: skip
