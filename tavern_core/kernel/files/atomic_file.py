"""Replaces state files as a whole or not at all.

    text --write--> .name.xxxx.tmp --fsync--> complete --replace--> name

A reader sees the old file or the new one, never half of either; a failed write leaves the old one. A symbolic link that
was planted under the name is replaced, never followed. What the system refuses (disk full, read-only, no
permission) becomes one `StateDamaged` that names the file and the repair.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tavern_core.errors import StateDamaged
from tavern_core.kernel.files.regular_file import open_regular

PRIVATE_FILE: Final = 0o600
PRIVATE_FOLDER: Final = 0o700
_SHARED_FILE: Final = 0o644
_STALE_SECONDS: Final = 3600.0  # no write takes an hour: an older temporary file belongs to a process that was killed
_HINTS: Final = {
    errno.ENOSPC: "free some space; what was there before is unchanged",
    errno.EDQUOT: "free some space: your quota is used up; what was there before is unchanged",
    errno.EFBIG: "the largest allowed file size is reached (ulimit -f, or the file system's limit)",
    errno.EROFS: "the file system is read-only; TAVERN_HOME moves only the state folder, not the files of the project",
    errno.EACCES: "give yourself write permission, or set TAVERN_HOME to a folder that can be written",
    errno.EPERM: "give yourself write permission, or set TAVERN_HOME to a folder that can be written",
    errno.ELOOP: "it is a symbolic link; state files must be regular files: remove the link",
    errno.ENOTDIR: "a part of the path is a file, not a folder: set TAVERN_HOME to another folder",
    errno.EISDIR: "there is a folder in its place: move it away",
    errno.EEXIST: "there is a file where a folder is needed: move it away, or set TAVERN_HOME to another folder",
    errno.EINVAL: "move it away",
    errno.EMFILE: "this process has too many open files (ulimit -n)",
    errno.EIO: "the disk reports an error: check it, and set TAVERN_HOME to another one",
}


@contextlib.contextmanager
def state_errors(path: Path, doing: str) -> Iterator[None]:
    """Turn an OSError about `path` into a StateDamaged (STATE_DAMAGED) that says what failed and how to repair it."""
    try:
        yield
    except OSError as error:
        raise cannot(doing, path, error) from error


def cannot(doing: str, path: Path, error: OSError) -> StateDamaged:
    """The StateDamaged for an OSError: ``cannot write /home/…/state.json: No space left on device``."""
    reason = error.strerror or str(error) or type(error).__name__
    return StateDamaged(
        f"cannot {doing} {path}: {reason}",
        hint=_HINTS.get(error.errno or 0, "check the path and its permissions"),
        path=str(path),
        errno=error.errno,
    )


def make_private_folder(folder: Path) -> None:
    """Create `folder` and its missing parents, readable only by their owner; existing folders are not changed.

    Raises:
        StateDamaged: it cannot be created, or is not a folder.
    """
    with state_errors(folder, "create the folder"):
        missing = [f for f in (folder, *folder.parents) if not f.exists()]
        for each in reversed(missing):
            with contextlib.suppress(FileExistsError):  # another process was quicker
                each.mkdir(mode=PRIVATE_FOLDER)
        if not folder.is_dir():
            raise NotADirectoryError(errno.EEXIST, "is not a folder")


def write_atomic(path: Path, text: str | bytes, mode: int = PRIVATE_FILE, *, durable: bool = True) -> None:
    """Replace `path` by a file that holds `text`, in UTF-8, or leave it as it is.

    Args:
        mode: permissions of the new file.
        durable: force file and folder to the disk, so that the change survives a power cut.

    Raises:
        StateDamaged: the file is unchanged; the message names the path and the repair.
    """
    # a lone surrogate is kept readable, not a crash half way
    data = text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")
    make_private_folder(path.parent)
    with state_errors(path, "write"):
        if path.is_dir() and not path.is_symlink():
            raise IsADirectoryError(errno.EISDIR, "is a folder")
        _sweep(path)
        temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)  # O_EXCL follows no link
        try:
            try:
                os.fchmod(descriptor, mode)
                write_all(descriptor, data)
                if durable:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
            raise
        if durable:
            sync_folder(path.parent)


def kept_mode(path: Path) -> int:
    """The permissions for rewriting a file that is not private to the host: its own; everybody may read a new one."""
    return path.stat().st_mode & 0o777 if path.is_file() else _SHARED_FILE


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`: a short write is continued until all is written or the system reports an error."""
    while data:
        data = data[os.write(descriptor, data) :]


def read_bytes(path: Path, limit: int) -> bytes | None:
    """The content of a state file, at most `limit` bytes; None if it does not exist. Does not follow a symbolic link at the end.

    Raises:
        StateDamaged: it is too large, no regular file, or cannot be read.
    """
    with state_errors(path, "read"):
        try:
            with open_regular(path, follow=False) as file:
                size = min(os.fstat(file.fileno()).st_size, limit)
                data = file.read(size + 1)  # a buffer of `limit` bytes costs more than a small file
                if len(data) > size:  # it grew meanwhile, or is too large
                    data += file.read(limit - size)
        except FileNotFoundError:
            return None
    if len(data) > limit:
        raise StateDamaged(f"{path} is larger than {limit} bytes", hint="move it away and start again", path=str(path))
    return data


def read_text(path: Path, limit: int) -> str | None:
    """The text of a state file; None if it does not exist.

    Raises:
        StateDamaged: as `read_bytes`, or it is not UTF-8; names the line.
    """
    data = read_bytes(path, limit)
    try:
        return None if data is None else data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise StateDamaged(
            f"{path}:{line}: byte 0x{error.object[error.start]:02x} is not UTF-8",
            hint="repair it, or move it away and start again",
            path=str(path),
        ) from error


def keep_aside(path: Path) -> Path:
    """Rename a corrupt file to ``name.damaged-<time>`` in its folder, so that it is not lost; the new path.

    Raises:
        StateDamaged: it cannot be renamed.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    with state_errors(path, "move away"):
        return path.rename(free_path(path, f"{path.name}.damaged-{stamp}"))


def free_path(path: Path, stem: str, ending: str = "") -> Path:
    """A path beside `path` at which there is no file: its name is `stem` and `ending`, with a number between them if need be.

    Raises:
        FileExistsError: there are a thousand of them.
    """
    for count in range(1000):
        found = path.with_name(f"{stem}-{count}{ending}" if count else f"{stem}{ending}")
        if not found.exists():
            return found
    raise FileExistsError(f"there are a thousand files {stem}{ending}: delete the old ones")


def _sweep(path: Path) -> None:
    """Remove temporary files of `path` that a killed process left behind."""
    with contextlib.suppress(OSError):  # another process cleans up, too; the write itself reports errors
        for old in path.parent.glob(f".{path.name}.*.tmp"):
            if time.time() - old.lstat().st_mtime > _STALE_SECONDS:
                old.unlink()


def sync_folder(folder: Path) -> None:
    """Force a rename to the disk. Some file systems cannot; the file itself is complete all the same."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
