"""Writing in granted places on behalf of a box, name by name, because kernel rules cannot describe names that do not exist yet.

    a program in the box ── open, mkdir, rename ... ──> the kernel suspends it ──> the host decides
                                                                                  ├─ granted: the host does it; it passes in an open file
                                                                                  ├─ protected: EACCES
                                                                                  └─ anything else: continues, and Landlock decides

Landlock lets such a box write only to its own places. So changing a path between the decision and the
action gains nothing: the host acts on the folder that it checked, and a call that continues cannot write in granted places.

Protected are the paths of the policy (`GrantedPaths.shut`, `GrantedPaths.kept`) and names of files that are executed, or decide what is executed, by
the next user of a folder: repositories, environments, path files of Python, manifests and configuration of this host.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import stat
import struct
import threading
from collections.abc import Callable, Mapping
from typing import Final

from tavern_core.box.policy import LANDLOCK, SECCOMP, BoxPolicy
from tavern_core.box.protected_path_splitting import is_in
from tavern_core.box.syscall_numbers import NUMBERS
from tavern_core.box.syscalls import MACHINE, syscall

CALLS: Final[Mapping[str, tuple[str, tuple[int | None, ...]]]] = {
    # folder, path, flags, mode
    "open": ("_file", (None, 0, 1, 2)), "openat": ("_file", (0, 1, 2, 3)), "creat": ("_file", (None, 0, None, 1)),
    # folder, path, mode
    "mkdir": ("_mkdir", (None, 0, 1)), "mkdirat": ("_mkdir", (0, 1, 2)),
    # folder, path, flags
    "rmdir": ("_rmdir", (None, 0)), "unlink": ("_unlink", (None, 0, None)), "unlinkat": ("_unlink", (0, 1, 2)),
    # folder and path of the source, those of the target, flags
    "rename": ("_rename", (None, 0, None, 1, None)), "renameat": ("_rename", (0, 1, 2, 3, None)),
    "renameat2": ("_rename", (0, 1, 2, 3, 4)),
    "link": ("_link", (None, 0, None, 1, None)), "linkat": ("_link", (0, 1, 2, 3, 4)),
    # folder, path, size
    "truncate": ("_truncate", (None, 0, 1)),
}  # fmt: skip
"""Calls that create, change or remove something by its path → how they are made for the box, and which of their arguments say what;
None: not said. The filter or Landlock refuses all others of the kind."""
NAMES: Final = frozenset(
    {
        ".git",
        "git~1",
        ".venv",
        "site-packages",
        "dist-packages",
        "pyvenv.cfg",
        "plugin.yaml",
        "tavern.yaml",
        "tavern.lock",
    }
)
"""Names of protected files and folders; also ``.env*`` and ``*.pth``."""
_ENVIRONMENTS: Final = ("pyvenv.cfg", "conda-meta")
_NOTICE: Final = struct.Struct("=QIIiIQ6Q")
_RECEIVE, _SEND, _IS_VALID, _ADD = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103
_GO_ON: Final = 1
_SEND_TOO: Final = 2
_LONGEST: Final = 4096
_PAGE: Final = 4096
_MOST_LINKS: Final = 10
_MOST_MOVED: Final = 10_000
"""Maximum files of a folder that can be moved; a larger one must be copied."""
_AT_FDCWD, _AT_REMOVEDIR, _AT_SYMLINK_FOLLOW = -100, 0x200, 0x400
_EXCHANGE: Final = 2
_NO_MAGIC_LINKS, _IN_ROOT = 0x02, 0x10
_O_TMPFILE: Final = 0o20000000
_KEPT: Final = os.O_ACCMODE | os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_APPEND | os.O_SYNC | os.O_DSYNC | os.O_NOATIME
_NEVER: Final = ("/proc", "/sys", "/dev")
_COLUMN: Final = 1 if MACHINE == "aarch64" else 0


def judges(policy: BoxPolicy) -> bool:
    """Whether the host decides about the writes of a box: it has a grant, and both required layers are available."""
    gone = {*policy.without, *policy.left_out}
    return bool(policy.granted.write) and policy.level != "none" and not gone & {SECCOMP, LANDLOCK}


def is_protected_name(name: str) -> bool:
    """Whether a single name is protected, ignoring case and endings that some file systems drop."""
    name = name.casefold().rstrip(". ")
    return name in NAMES or name.startswith(".env") or name.endswith(".pth")


def is_protected(path: str) -> bool:
    """Whether a path is protected by its names alone, or because it is in a virtual environment."""
    if any(map(is_protected_name, path.split("/"))):
        return True
    while path not in ("", "/"):
        path = path.rpartition("/")[0]
        if any(os.path.lexists(f"{path}/{name}") for name in _ENVIRONMENTS):
            return True
    return False


def _holds_protected(folder: str) -> bool:
    """Whether something in a folder is protected by its name; True if it has too many entries to check."""
    remaining = _MOST_MOVED
    for _, folders, files in os.walk(folder):
        if any(map(is_protected_name, (*folders, *files))):
            return True
        remaining -= len(folders) + len(files)
        if remaining < 0:
            return True
    return False


class PathChecker:
    """Decides about resolved paths under one policy."""

    def __init__(self, policy: BoxPolicy) -> None:
        self._granted, self._own = policy.granted, policy.write
        self._kept = tuple(path.casefold() for path in (*policy.granted.shut, *policy.granted.kept))

    def is_granted(self, path: str) -> bool:
        """Whether it is in a granted place."""
        return any(is_in(path, folder) for folder in self._granted.write) and not any(
            is_in(path, folder) for folder in _NEVER
        )

    def is_own(self, path: str) -> bool:
        """Whether it is a private place of the box, which is not restricted."""
        return is_in(path, self._granted.own) or any(is_in(path, folder) for folder in self._own)

    def may(self, path: str, *, whole: bool = False) -> bool:
        """Whether it is writable.

        Args:
            whole: including everything in it, because it is moved or removed.
        """
        if is_in(path, self._granted.own):
            return True
        folded = path.casefold()
        if any(is_in(folded, protected) or (whole and is_in(protected, folded)) for protected in self._kept):
            return False
        return not is_protected(path) and not (whole and _holds_protected(path))


class _CallContinues(Exception):
    """The call continues unchanged."""


class WriteBroker:
    """Serves one box until its last process has ended; in its own thread."""

    def __init__(self, listener: int, policy: BoxPolicy) -> None:
        self._listener = listener
        self._checker = PathChecker(policy)
        self._calls = {number: name for name in CALLS if (number := NUMBERS[name][_COLUMN]) is not None}

    def begin(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._serve, name="tavern-writes", daemon=True).start()

    def _serve(self) -> None:
        waiting = select.poll()
        waiting.register(self._listener, select.POLLIN)
        try:
            while all(not events & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, events in waiting.poll()):
                notice = bytearray(_NOTICE.size)
                try:
                    fcntl.ioctl(self._listener, _RECEIVE, notice)
                except OSError as error:
                    if error.errno in (errno.ENOENT, errno.EINTR):  # it has ended meanwhile
                        continue
                    return
                self._answer(*_NOTICE.unpack(notice))
        finally:
            os.close(self._listener)

    def _answer(self, id_: int, pid: int, _flags: int, number: int, _arch: int, _at: int, *arguments: int) -> None:
        value, error, flags = 0, 0, 0
        with contextlib.ExitStack() as opened:
            try:
                call = _SystemCall(id_, pid, arguments, self._listener, self._checker, opened)
                action, places = CALLS[self._calls[number]]
                file = getattr(call, action)(*places)
                if file is not None:
                    return _ignoring_end(lambda: call.hand_in(file))
            except _CallContinues:
                flags = _GO_ON
            except OSError as failed:
                error = -(failed.errno or errno.EACCES)
            except Exception:  # noqa: BLE001 - after any error, nothing is written
                error = -errno.EACCES
        _ignoring_end(lambda: fcntl.ioctl(self._listener, _SEND, struct.pack("=QqiI", id_, value, error, flags)))
        return None


def _ignoring_end(answer: Callable[[], object]) -> None:
    """The caller may be gone."""
    with contextlib.suppress(OSError):
        answer()


class _FolderEntry:
    """A name in an open folder."""

    def __init__(self, folder: int, path: str, name: str) -> None:
        self.folder, self.name = folder, name
        self.path = f"{path.rstrip('/')}/{name}"


class _SystemCall:
    """A system call of a program in the box that waits for its answer."""

    def __init__(
        self,
        id_: int,
        pid: int,
        arguments: tuple[int, ...],
        listener: int,
        checker: PathChecker,
        opened: contextlib.ExitStack,
    ) -> None:
        self._id, self._pid, self._arguments, self._listener = id_, pid, arguments, listener
        self._checker, self._opened = checker, opened
        try:
            self._memory = self._open(f"/proc/{pid}/mem", os.O_RDONLY)
            fcntl.ioctl(
                listener, _IS_VALID, struct.pack("=Q", id_)
            )  # it is this process, and no later one with the same id
        except OSError:
            raise _CallContinues from None

    # The calls -----------------------------------------------------------------------------------------------------------

    def _file(self, folder: int | None, path: int, flags_at: int | None, mode: int) -> int:
        flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC if flags_at is None else self._flags(flags_at)
        if flags & os.O_PATH:
            raise _CallContinues
        place = (
            self._place(folder, path)
            if flags & os.O_NOFOLLOW or (flags & os.O_CREAT and flags & os.O_EXCL)
            else self._followed(folder, path)
        )
        self._allowed(place)
        if flags & _O_TMPFILE == _O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "")
        if flags & os.O_DIRECTORY:
            raise _CallContinues
        self._cloexec = flags & os.O_CLOEXEC
        return self._regular(place, flags, self._arguments[mode] & 0o777)

    def _regular(self, place: _FolderEntry, flags: int, mode: int) -> int:
        """Open an ordinary file; anything else continues, and Landlock may refuse it."""
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(place.name, dir_fd=place.folder, follow_symlinks=False).st_mode):
                raise _CallContinues
        mode &= ~self._umask() if flags & os.O_CREAT else mode
        # Never waiting: another process may have replaced it by a pipe.
        file = self._open(
            place.name, (flags & _KEPT) | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, mode, folder=place.folder
        )
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise _CallContinues
        if not flags & os.O_NONBLOCK:
            fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) & ~os.O_NONBLOCK)
        return file

    def hand_in(self, file: int) -> None:
        """Pass the open file to the program as the result of its call."""
        fcntl.ioctl(self._listener, _ADD, struct.pack("=QIIII", self._id, _SEND_TOO, file, 0, self._cloexec))

    def _mkdir(self, folder: int | None, path: int, mode: int) -> None:
        place = self._allowed(self._place(folder, path))
        os.mkdir(place.name, self._arguments[mode] & 0o777 & ~self._umask(), dir_fd=place.folder)

    def _rmdir(self, folder: int | None, path: int) -> None:
        place = self._allowed(self._place(folder, path), whole=True)
        os.rmdir(place.name, dir_fd=place.folder)

    def _unlink(self, folder: int | None, path: int, flags_at: int | None) -> None:
        if self._flags(flags_at) & _AT_REMOVEDIR:
            self._rmdir(folder, path)
            return
        place = self._allowed(self._place(folder, path), whole=True)
        os.unlink(place.name, dir_fd=place.folder)

    def _truncate(self, folder: int | None, path: int, size: int) -> None:
        file = self._regular(self._allowed(self._followed(folder, path)), os.O_WRONLY, 0)
        os.ftruncate(file, ctypes.c_int64(self._arguments[size]).value)

    def _rename(
        self, from_folder: int | None, from_path: int, to_folder: int | None, to_path: int, flags_at: int | None
    ) -> None:
        source, target = self._place(from_folder, from_path), self._place(to_folder, to_path)
        flags = self._flags(flags_at)
        self._between(source, target)
        if flags & ~1 & ~_EXCHANGE:
            raise OSError(errno.EINVAL, "")
        if flags & _EXCHANGE and not (self._checker.is_granted(source.path) and self._checker.is_granted(target.path)):
            raise OSError(errno.EXDEV, "")
        if not flags:
            os.rename(source.name, target.name, src_dir_fd=source.folder, dst_dir_fd=target.folder)
            return
        names = (ctypes.c_char_p(os.fsencode(place.name)) for place in (source, target))
        syscall(NUMBERS["renameat2"][_COLUMN] or 0, source.folder, next(names), target.folder, next(names), flags)

    def _link(
        self, from_folder: int | None, from_path: int, to_folder: int | None, to_path: int, flags_at: int | None
    ) -> None:
        find = self._followed if self._flags(flags_at) & _AT_SYMLINK_FOLLOW else self._place
        source = find(from_folder, from_path)
        target = self._place(to_folder, to_path)
        self._between(source, target)
        if not stat.S_ISREG(os.stat(source.name, dir_fd=source.folder, follow_symlinks=False).st_mode):
            raise OSError(errno.EPERM, "")
        os.link(source.name, target.name, src_dir_fd=source.folder, dst_dir_fd=target.folder, follow_symlinks=False)

    def _between(self, source: _FolderEntry, target: _FolderEntry) -> None:
        """Check both ends; only a file may be moved from or to the box's private places, where a folder may contain any names."""
        checker = self._checker
        if not (checker.is_granted(source.path) or checker.is_granted(target.path)):
            raise _CallContinues
        for place in (source, target):
            if not checker.is_own(place.path):
                self._allowed(place, whole=True)
        if checker.is_own(source.path) and not checker.is_own(target.path):
            mode = os.stat(source.name, dir_fd=source.folder, follow_symlinks=False).st_mode
            if not stat.S_ISREG(mode):
                raise OSError(errno.EXDEV, "")  # the program then copies it, name by name

    def _allowed(self, place: _FolderEntry, *, whole: bool = False) -> _FolderEntry:
        if not self._checker.is_granted(place.path):
            raise _CallContinues
        if not self._checker.may(place.path, whole=whole):
            raise OSError(errno.EACCES, "")
        return place

    # Reading the request --------------------------------------------------------------------------------------------------

    def _flags(self, index: int | None) -> int:
        return 0 if index is None else self._arguments[index] & 0xFFFFFFFF

    def _folder(self, index: int | None) -> int:
        return _AT_FDCWD if index is None else ctypes.c_int32(self._flags(index)).value

    def _path(self, index: int) -> str:
        """A path in the memory of the program."""
        at, found = self._arguments[index], b""
        while len(found) < _LONGEST:
            part = os.pread(self._memory, _PAGE - (at + len(found)) % _PAGE, at + len(found))
            found += part
            if not part or b"\0" in part:
                break
        path, end, _ = found.partition(b"\0")
        if not end or not path:
            raise _CallContinues
        return os.fsdecode(path)

    def _place(self, folder: int | None, index: int) -> _FolderEntry:
        return self._resolved(self._folder(folder), self._path(index))

    def _resolved(self, folder: int, path: str, *, beside: _FolderEntry | None = None) -> _FolderEntry:
        """The opened folder of a path, and the name in it; a link in the name itself is not followed."""
        head, _, name = (path.rstrip("/") or "/").rpartition("/")
        if name in ("", ".", ".."):
            raise _CallContinues
        if path.startswith("/"):
            start = self._open(f"/proc/{self._pid}/root", os.O_PATH | os.O_DIRECTORY)
            head = head or "/"
        elif beside is not None:
            start = beside.folder
        else:
            start = self._open(
                f"/proc/{self._pid}/cwd" if folder == _AT_FDCWD else f"/proc/{self._pid}/fd/{folder}",
                os.O_PATH | os.O_DIRECTORY,
            )
        resolve = _NO_MAGIC_LINKS | (_IN_ROOT if path.startswith("/") else 0)
        how = struct.pack("=QQQ", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, 0, resolve)
        found = syscall(
            NUMBERS["openat2"][_COLUMN] or 0,
            start,
            ctypes.c_char_p(os.fsencode(head or ".")),
            ctypes.c_char_p(how),
            len(how),
        )
        self._opened.callback(os.close, found)
        return _FolderEntry(found, os.readlink(f"/proc/self/fd/{found}"), name)  # noqa: PTH115

    def _followed(self, folder: int | None, index: int) -> _FolderEntry:
        """As `_place`, but following a link in the name itself."""
        place = self._place(folder, index)
        for _ in range(_MOST_LINKS):
            try:
                target = os.readlink(place.name, dir_fd=place.folder)
            except OSError:  # it is not one, or does not exist
                return place
            place = self._resolved(_AT_FDCWD, target, beside=place)
        raise OSError(errno.ELOOP, "")

    def _umask(self) -> int:
        with open(f"/proc/{self._pid}/status", "rb") as status:  # noqa: PTH123 - this package does not use pathlib
            for line in status:
                if line.startswith(b"Umask:"):
                    return int(line.split()[1], 8)
        return 0o077

    def _open(self, path: str, flags: int, mode: int = 0, *, folder: int | None = None) -> int:
        file = os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=folder)
        self._opened.callback(os.close, file)
        return file
