"""Files below one folder, opened so that no path leads out of it.

A path is never passed to the system as a whole. Each folder on the way is opened from the one before without following links
(`openat` with O_NOFOLLOW), so a link that is created between a check and the use leads nowhere either. This is what `openat2` with
RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS does in one system call; done in steps, it works on every POSIX system.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

from tavern_core.contract.guards.paths import path_flaw
from tavern_core.errors import ToolFailed

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""O_NONBLOCK: opening a pipe must not wait for its other end."""
_MODES: Final = {
    "r": os.O_RDONLY,
    "w": os.O_WRONLY | os.O_CREAT,
    "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
    "r+": os.O_RDWR,
}


class Folder:
    """A folder; use it with ``with``. Paths in it have ``/`` between names and may start with one.

    Links are not followed: neither to files nor to folders, not even inside of the folder. Only regular files are opened.

    Args:
        root: its path; the path of the folder itself may contain links.
        create: create it and its parents if missing.

    Raises:
        ToolFailed: it is not a folder, or cannot be opened (TOOL_ERROR).
    """

    def __init__(self, root: str | os.PathLike[str], *, create: bool = False) -> None:
        self.path: Path = Path(root)
        with _errors(str(root)):
            if create:
                self.path.mkdir(parents=True, exist_ok=True)
            self._root = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the folder; files that were opened stay open."""
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def open(self, path: str, mode: str = "r", *, parents: bool = False) -> IO[bytes]:
        """Open a regular file, for bytes.

        Args:
            mode: ``r`` read, ``w`` replace what is in it, ``a`` add to its end, ``x`` only if there is none, ``r+`` change.
            parents: create missing folders on the way.

        Raises:
            ToolFailed: the path leads out or through a link, is not a regular file, does not exist ... (TOOL_ERROR).
        """
        if mode not in _MODES:
            raise ToolFailed(f"there is no mode {mode!r}", hint=f"use one of {', '.join(_MODES)}")
        with self.place(path, parents=parents) as (folder, name), _errors(path):
            descriptor = os.open(name, _MODES[mode] | _FILE, 0o666, dir_fd=folder)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise ToolFailed(f"{path} is not a regular file")
                if mode == "w":
                    os.ftruncate(descriptor, 0)
                return os.fdopen(descriptor, {"r": "rb", "r+": "r+b", "a": "ab"}.get(mode, "wb"))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
                raise

    def entries(self, path: str = "/") -> list[os.DirEntry[str]]:
        """The entries of a folder, by name; links are reported as links. Raises as `open`."""
        with self._walk(self.parts(path), path, make=False) as folder, _errors(path), os.scandir(folder) as found:
            listed = []
            for entry in found:
                entry.stat(follow_symlinks=False)  # cached in the entry: the folder is closed when it is used
                listed.append(entry)
        return sorted(listed, key=lambda entry: entry.name)

    @contextlib.contextmanager
    def place(self, path: str, *, parents: bool = False) -> Iterator[tuple[int, str]]:
        """(descriptor of the folder, name in it), for system calls with ``dir_fd``; see `open`."""
        parts = self.parts(path)
        if not parts or path.endswith("/"):
            raise ToolFailed(f"{path!r:.200} names a folder, not a file")
        with self._walk(parts[:-1], path, make=parents) as folder:
            yield folder, parts[-1]

    @contextlib.contextmanager
    def folder(self, path: str = "/", *, parents: bool = False) -> Iterator[int]:
        """The descriptor of a folder below this one; see `open`."""
        with self._walk(self.parts(path), path, make=parents) as descriptor:
            yield descriptor

    def parts(self, path: str) -> list[str]:
        """The names on the way to `path`.

        Raises:
            ToolFailed: it could lead out, or be ambiguous (TOOL_ERROR).
        """
        if flaw := path_flaw(path):
            raise ToolFailed(
                f"the path {path!r:.120} {flaw}", hint="name a place in the folder, such as notes/today.md"
            )
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise ToolFailed(f"the path {path!r:.120} leads out with '..'", hint="name the place without '..'")
        return parts

    @contextlib.contextmanager
    def _walk(self, parts: list[str], path: str, *, make: bool) -> Iterator[int]:
        with contextlib.ExitStack() as opened:
            with _errors(path):
                descriptor = os.dup(self._root)
                opened.callback(os.close, descriptor)
                for part in parts:
                    if make:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(part, 0o777, dir_fd=descriptor)
                    descriptor = _step(part, descriptor)
                    opened.callback(os.close, descriptor)
            yield descriptor


def _step(name: str, folder: int) -> int:
    """Open a folder in a folder; reports a link as such."""
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise


@contextlib.contextmanager
def _errors(path: Any) -> Iterator[None]:
    """Convert system errors into ToolFailed with a reason in plain words."""
    try:
        yield
    except OSError as error:
        reason = {
            errno.ELOOP: "leads through a link",
            errno.ENOENT: "does not exist",
            errno.ENOTDIR: "leads through a file",
            errno.EISDIR: "is a folder",
            errno.EEXIST: "exists already",
            errno.ENXIO: "is not a regular file",
        }.get(error.errno or 0) or (error.strerror or str(error)).lower()
        raise ToolFailed(f"{str(path)[:200]} {reason}") from error
