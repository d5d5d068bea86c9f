"""The files of one plugin in any form: a folder, a tree of links that pip made, or a package inside a zip.

Reading is confined: no path leaves the plugin, links included, and only regular files of bounded size are opened.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, Final, Protocol, TypeVar

from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.files.file_stamp import CompactStamp, compact_stamp_at
from tavern_core.kernel.files.regular_file import open_regular
from tavern_core.kernel.files.safe_paths import inside, path_problem
from tavern_core.model.plugin_status import NOT_PART

if TYPE_CHECKING:
    import zipfile

T = TypeVar("T")
LARGEST_READ: Final = 1_000_001  # one more than the readers accept, so that they can say "too large"
MOST_FILES: Final = 20_000
LARGEST_HASHED: Final = 50_000_000
_BLOCK: Final = 1 << 20


class PluginFiles(Protocol):
    """The source of a plugin's files."""

    @property
    def place(self) -> str:
        """The folder or the zip, for people and for the index."""
        ...

    def read(self, relative: str) -> bytes | None:
        """The content of a file, cut at `LARGEST_READ` bytes; None when there is no such regular file inside."""
        ...

    def names(self, relative: str) -> list[str] | None:
        """The sorted names in a folder; None when there is no such folder inside."""
        ...

    def stamp(self, relative: str) -> CompactStamp | None:
        """The stamp of a file or folder inside."""
        ...

    def problem(self, relative: str) -> str:
        """Why `relative` is not a file or folder of the plugin; empty when it is."""
        ...

    def files(self) -> Iterator[tuple[str, CompactStamp]]:
        """Every file with its stamp, sorted; at most `MOST_FILES`. A link to a folder counts as one: ``name/``."""
        ...

    def hash(self) -> str:
        """One SHA-256 over all names and contents: the artifact hash; empty where not all of them can be read."""
        ...


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """A plugin in a folder."""

    folder: Path
    """Absolute, links resolved."""
    source: Path | None = None
    """The folder to which the links of an editable-strict install lead: that of the real plugin.yaml."""

    @property
    def place(self) -> str:
        return str(self.folder)

    def _path(self, relative: str) -> Path | str:
        return inside(self.folder, relative, roots=(self.source,) if self.source is not None else ())

    def read(self, relative: str) -> bytes | None:
        path = self._path(relative)
        if isinstance(path, str):
            return None
        file = _open_regular(path)
        if file is None:
            return None
        with file:
            return file.read(LARGEST_READ)

    def names(self, relative: str) -> list[str] | None:
        path = self._path(relative)
        try:
            return None if isinstance(path, str) else sorted(entry.name for entry in path.iterdir())
        except OSError:
            return None

    def stamp(self, relative: str) -> CompactStamp | None:
        path = self._path(relative)
        return None if isinstance(path, str) else compact_stamp_at(path)

    def problem(self, relative: str) -> str:
        path = self._path(relative)
        if isinstance(path, str):
            return path
        return "" if path.exists() else f"there is no {relative!r} in the plugin's folder"

    def files(self) -> Iterator[tuple[str, CompactStamp]]:
        count = 0
        for folder, inner, names in os.walk(self.folder):
            inner[:] = sorted(name for name in inner if name not in NOT_PART)
            links = [f"{name}/" for name in inner if os.path.islink(os.path.join(folder, name))]  # noqa: PTH114, PTH118
            for name in sorted([*names, *links]):
                path = os.path.join(folder, name)  # noqa: PTH118
                if (stamp := compact_stamp_at(path)) is None:
                    continue
                count += 1
                if count > MOST_FILES:
                    return
                shown = os.path.relpath(path, self.folder).replace(os.sep, "/")
                yield f"{shown}/" if name.endswith("/") else shown, stamp

    def hash(self) -> str:
        import hashlib

        total, number = hashlib.sha256(), 0
        for number, (relative, _) in enumerate(self.files(), 1):  # noqa: B007 - the last one is how many there are
            content = _hash_file(self.folder / relative)
            total.update(f"{relative}\0{content}\n".encode("utf-8", "surrogateescape"))
        return "" if number >= MOST_FILES or self._outward_link() else total.hexdigest()

    def why_not_whole(self) -> str:
        """Why there is no hash of all files in the folder; empty if there is one."""
        if link := self._outward_link():
            return f"{link} is a link to a folder outside"
        has_too_many = next(islice(self.files(), MOST_FILES - 1, None), None) is not None
        return f"the folder has {MOST_FILES:,} files or more" if has_too_many else ""

    def _outward_link(self) -> str:
        """A link to a folder that leads out of the plugin, if there is one: Python would import code that was not read."""
        links = (
            os.path.relpath(path, self.folder)
            for folder, inner, _ in os.walk(self.folder)
            for name in inner
            if os.path.islink(path := os.path.join(folder, name))  # noqa: PTH114, PTH118
            and not Path(path).resolve().is_relative_to(self.folder)
        )
        return next(links, "")


def _open_regular(path: Path) -> BinaryIO | None:
    """A regular file opened for reading, or None for anything else: folders, pipes, devices, what may not be read."""
    try:
        return open_regular(path)
    except (OSError, ValueError):
        return None


def _hash_file(path: Path) -> str:
    """The content's hash; very large files count by their size, and what is not a readable file by saying so."""
    file = _open_regular(path)
    if file is None:
        return "unreadable"
    with file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST_HASHED:
            return f"size:{size}"
        try:
            return _digest_of(file)
        except OSError:  # a failing disk, or a linked file of /proc
            return "unreadable"


def _digest_of(file: IO[bytes]) -> str:
    import hashlib

    content = hashlib.sha256()
    while block := file.read(_BLOCK):
        content.update(block)
    return content.hexdigest()


@dataclass(frozen=True, slots=True)
class ZipFiles:
    """A plugin's package inside a zip archive on sys.path."""

    archive: Path
    prefix: str
    """The package's folder in the archive, with a slash at its end."""

    @property
    def place(self) -> str:
        return f"{self.archive}/{self.prefix.rstrip('/')}"

    def read(self, relative: str) -> bytes | None:
        return None if path_problem(relative) else self._content(relative, LARGEST_READ)

    def names(self, relative: str) -> list[str] | None:
        if path_problem(relative):
            return None
        folder = self._member(relative).rstrip("/") + "/"
        inner = {name[len(folder) :].partition("/")[0] for name in self._members() if name.startswith(folder)}
        return sorted(inner - {""}) or None

    def stamp(self, relative: str) -> CompactStamp | None:
        return compact_stamp_at(self.archive)

    def problem(self, relative: str) -> str:
        if problem := path_problem(relative):
            return problem
        member = self._member(relative)
        if any(name == member or name.startswith(member.rstrip("/") + "/") for name in self._members()):
            return ""
        return f"there is no {relative!r} in the plugin's folder"

    def files(self) -> Iterator[tuple[str, CompactStamp]]:
        archive = compact_stamp_at(self.archive) or 0
        for name in self._members()[:MOST_FILES]:
            if not name.endswith(("/", ".pyc")):
                yield name[len(self.prefix) :], archive

    def hash(self) -> str:
        import hashlib

        total = hashlib.sha256()
        for relative, _ in self.files():
            digest = self._taken(relative, _digest_of) or "unreadable"
            total.update(f"{relative}\0{digest}\n".encode("utf-8", "surrogateescape"))
        return total.hexdigest()

    def unpack(self, folder: Path) -> Path:
        """Unpack the plugin beneath `folder` for tools that need real files; the folder that then holds plugin.yaml.

        Names are checked one by one, links are written as the text they hold, and the result appears under its final
        name at once: a second process finds all of it or none. Repeated calls reuse what is there.

        Raises:
            OSError: the cache folder cannot be written, or a file of the plugin is larger than `LARGEST_HASHED`.
        """
        import shutil
        import tempfile

        target = folder / f"{self.prefix.rstrip('/').replace('/', '.')}-{self.hash()[:16]}"
        if target.is_dir():
            return target
        folder.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".unpack-", dir=folder))
        try:
            for relative, _ in self.files():
                if (large := self._too_large(relative)) is not None:
                    what = f"{large.filename} has {large.file_size:,} bytes; a file of a plugin in a zip has at most {LARGEST_HASHED:,}: unpack the zip, or install it with pip"
                    raise OSError(errno.EFBIG, what, str(self.archive))
                content = None if path_problem(relative) else self._content(relative, LARGEST_HASHED)
                if content is None:
                    continue
                path = work / relative
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            try:
                work.rename(target)
            except OSError:
                if not target.is_dir():  # else another process was quicker, with the same content
                    raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return target

    def _too_large(self, relative: str) -> zipfile.ZipInfo | None:
        """A member above `LARGEST_HASHED`, which is not unpacked; of a member, at most its claimed size is read."""
        import zipfile

        try:
            with zipfile.ZipFile(self.archive) as archive:
                found = archive.getinfo(self._member(relative))
        except (OSError, KeyError, ValueError, zipfile.BadZipFile):
            return None
        return found if found.file_size > LARGEST_HASHED else None

    def _content(self, relative: str, limit: int) -> bytes | None:
        """At most `limit` bytes of a member, whatever size it claims; None when it cannot be read."""
        return self._taken(relative, lambda file: file.read(limit))

    def _taken(self, relative: str, take: Callable[[IO[bytes]], T]) -> T | None:
        """The member as `take` reads it; None: it cannot be read."""
        import zipfile
        import zlib

        try:
            with zipfile.ZipFile(self.archive) as archive, archive.open(self._member(relative)) as file:
                return take(file)
        except (OSError, KeyError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):
            return None  # RuntimeError: encrypted; NotImplementedError (a RuntimeError): unknown compression

    def _member(self, relative: str) -> str:
        parts = [part for part in relative.split("/") if part not in ("", ".")]
        return self.prefix + "/".join(parts)

    def _members(self) -> list[str]:
        import zipfile

        try:
            with zipfile.ZipFile(self.archive) as archive:
                return sorted(name for name in archive.namelist() if name.startswith(self.prefix))
        except (OSError, zipfile.BadZipFile, ValueError):
            return []
