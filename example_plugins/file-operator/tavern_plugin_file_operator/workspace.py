"""The workspace: one folder, and nothing outside it.

A path is never handed to the system as a whole: `tavern_core.Folder` opens each folder on the way from the one before without
following links, so that a link put in between the check and the use leads nowhere either.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tavern_core import Folder, ToolFailed

_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # NONBLOCK: opening a pipe must not wait for its other end
_LONGEST = 4096


def choose_root(setting: str, wanted: str | None, default: Callable[[], Path]) -> str:
    """The workspace folder: the operator's setting, else the caller's workspace, else the plugin's own folder.

    Raises:
        ToolFailed: the chosen path is not absolute (TOOL_ERROR).
    """
    chosen = setting.strip() or (wanted or "").strip()
    if not chosen:
        return str(default())
    expanded = Path(chosen).expanduser()
    if not expanded.is_absolute():
        raise ToolFailed(
            f"the workspace {chosen!r} is not an absolute path",
            hint="set extensions.file-operator.workspace to an absolute path",
        )
    return str(expanded)


@dataclass(frozen=True, slots=True)
class Place:
    """An opened folder of the workspace and a name in it."""

    folder: int
    name: str
    path: str
    """As the workspace sees it: ``/logs/today.log``."""

    def look(self) -> os.stat_result | None:
        """What is there, links not followed; None when nothing is."""
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None


class Workspace:
    """Files beneath `root`.

    Args:
        root: an absolute path; created when missing.
        limit: most bytes of one file.
    """

    def __init__(self, root: str, limit: int) -> None:
        self._root = root
        self._limit = limit

    def read(self, path: str) -> tuple[str, str]:
        """(the path as the workspace sees it, the text)."""
        with self._place(path) as place:
            return place.path, self._text(place)

    def write(self, path: str, content: str) -> tuple[str, bool]:
        """Replace or create a file. Returns (path, whether it is new)."""
        data = self._encoded(path, content)
        with self._place(path, create=True) as place, self._alone():
            is_new = _regular(place) is None
            _replace(place, data)
            return place.path, is_new

    def append(self, path: str, content: str) -> tuple[str, int]:
        """Add to the end of a file, which is created when missing. Returns (path, its size in bytes)."""
        data = self._encoded(path, content)
        with self._place(path, create=True) as place, self._alone():
            found = _regular(place)
            if found is not None and found.st_nlink > 1:
                raise ToolFailed(f"{place.path} has a second name (a hard link), perhaps outside the workspace")
            size = (found.st_size if found else 0) + len(data)
            if size > self._limit:
                raise self._too_large(place.path, size)
            with _system_errors(place.path):
                descriptor = os.open(
                    place.name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _FILE, 0o666, dir_fd=place.folder
                )
                with os.fdopen(descriptor, "ab") as file:
                    file.write(data)
            return place.path, size

    def change(self, path: str, edit: Callable[[str], tuple[str, int]]) -> tuple[str, int]:
        """Replace a file's text by ``edit(text)[0]``. Returns (path, what the edit returned besides)."""
        with self._place(path) as place, self._alone():
            text, note = edit(self._text(place))
            _replace(place, self._encoded(place.path, text))
            return place.path, note

    def entries(self, path: str, most: int) -> tuple[str, list[dict[str, Any]], bool]:
        """(path, at most `most` entries sorted by name, whether there are more)."""
        parts = self._parts(path)
        found: list[dict[str, Any]] = []
        with self._folder(parts, create=False) as folder, os.scandir(folder) as scanned:
            for entry in scanned:
                info = entry.stat(follow_symlinks=False)
                found.append({"name": entry.name, "type": _kind(info.st_mode), "bytes": info.st_size})
        listed = sorted((entry for entry in found if _is_text(entry["name"])), key=lambda entry: str(entry["name"]))
        return "/" + "/".join(parts), listed[:most], len(listed) > most

    # Paths ---------------------------------------------------------------------------------------------------------------

    def _parts(self, path: str) -> list[str]:
        """The names on the way; an absolute path counts from the workspace, or names it itself."""
        if len(path) > _LONGEST or not _is_text(path) or any(c < " " or c == "\x7f" for c in path):
            raise ToolFailed(f"{path[:80]!a} is not a usable path", hint="name a file such as /notes/today.md")
        root = self._root.rstrip("/")
        inner = path.removeprefix(root) if path == root or path.startswith(root + "/") else path
        parts = [part for part in inner.split("/") if part not in ("", ".")]
        if ".." in parts or "\\" in path:
            raise ToolFailed(
                f"{path!r} leads out of the workspace", hint="name a place inside it, with / and without .."
            )
        return parts

    @contextlib.contextmanager
    def _place(self, path: str, create: bool = False) -> Iterator[Place]:
        parts = self._parts(path)
        if not parts or path.endswith("/"):
            raise ToolFailed(f"{path!r} names a folder, not a file")
        with self._folder(parts[:-1], create) as folder:
            yield Place(folder, parts[-1], "/" + "/".join(parts))

    @contextlib.contextmanager
    def _folder(self, parts: list[str], create: bool) -> Iterator[int]:
        path = "/" + "/".join(parts)
        with contextlib.ExitStack() as opened, _system_errors(path):
            try:
                root = opened.enter_context(Folder(self._root, create=True))
                folder = opened.enter_context(root.folder(path, parents=create))
            except ToolFailed as error:
                if isinstance(error.__cause__, OSError):
                    raise error.__cause__ from None  # reported in terms of the workspace
                raise
            yield folder

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other writers out, of this process or another, until the file is written."""
        folder = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # a file system without locks: then as without us
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    # Contents ------------------------------------------------------------------------------------------------------------

    def _text(self, place: Place) -> str:
        found = _regular(place)
        if found is None:
            raise ToolFailed(f"there is no file {place.path}", hint="list the folder to see what there is")
        with _system_errors(place.path):
            descriptor = os.open(place.name, os.O_RDONLY | _FILE, dir_fd=place.folder)
            with os.fdopen(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise ToolFailed(f"{place.path} is not a regular file")
                data = file.read(self._limit + 1)
        if len(data) > self._limit:
            raise self._too_large(place.path, found.st_size)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise ToolFailed(
                f"{place.path} is not UTF-8 text: byte 0x{data[error.start]:02x} in line {line}",
                hint="only text files can be read and edited",
            ) from None

    def _encoded(self, path: str, content: str) -> bytes:
        try:
            data = content.encode()
        except UnicodeEncodeError as error:
            raise ToolFailed(
                f"the content for {path} is not text: {error.object[error.start]!a} at {error.start}"
            ) from None
        if len(data) > self._limit:
            raise self._too_large(path, len(data))
        return data

    def _too_large(self, path: str, size: int) -> ToolFailed:
        return ToolFailed(
            f"{path} would be {size:,} bytes; the limit is {self._limit:,}",
            hint="work on a smaller file, or raise extensions.file-operator.maxBytes",
            bytes=size,
            limit=self._limit,
        )


def _regular(place: Place) -> os.stat_result | None:
    """What is at a place, when it is a regular file or nothing.

    Raises:
        ToolFailed: a link, a folder, a device, a pipe (TOOL_ERROR).
    """
    with _system_errors(place.path):
        found = place.look()
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise ToolFailed(f"{place.path} is a {_kind(found.st_mode)}, not a file")
    return found


def _replace(place: Place, data: bytes) -> None:
    """Put `data` in the place of a file, all or nothing; its permissions stay."""
    found = _regular(place)
    draft = f".{secrets.token_hex(8)}.tmp"
    with _system_errors(place.path):
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o666, dir_fd=place.folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                if found is not None:
                    os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & 0o777)
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            os.rename(draft, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft, dir_fd=place.folder)
            raise


@contextlib.contextmanager
def _system_errors(path: str) -> Iterator[None]:
    """Translates refusals of the system into terms of the workspace, without its real path."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            what, hint = "something on the way is a link or a file, not a folder", "links are not followed"
        elif error.errno == errno.ENOENT:
            what, hint = "no such file or folder", "list the folder to see what there is"
        else:
            what, hint = os.strerror(error.errno or 0), ""
        raise ToolFailed(f"{path}: {what}", hint=hint, errno=errno.errorcode.get(error.errno or 0, "")) from None


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFREG: "file",
        stat.S_IFDIR: "folder",
        stat.S_IFLNK: "link",
        stat.S_IFIFO: "pipe",
        stat.S_IFSOCK: "socket",
    }
    return kinds.get(stat.S_IFMT(mode), "device")


def _is_text(text: str) -> bool:
    return all(not "\ud800" <= c <= "\udfff" for c in text)
