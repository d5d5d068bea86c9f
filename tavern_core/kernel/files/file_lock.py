"""An advisory lock for one writer at a time, across threads and processes: on a small file next to the protected one.

The lock file ``.name.lock`` stays where it is: deleting it would let two processes lock two different files. The system
releases the lock when its holder dies, however it dies. Not re-entrant.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

from tavern_core.errors import StateDamaged
from tavern_core.kernel.files.atomic_file import PRIVATE_FILE, make_private_folder, state_errors

DEFAULT_SECONDS: Final = 10.0
_FIRST_PAUSE: Final = 0.0005
_LONGEST_PAUSE: Final = 0.02
_HELD: Final = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)  # EDEADLK is msvcrt's word for it

if sys.platform == "win32":
    import msvcrt

    _EXCLUSIVE: Final = msvcrt.LK_NBLCK

    def _take(descriptor: int, how: int) -> None:
        os.lseek(descriptor, 0, os.SEEK_SET)
        msvcrt.locking(descriptor, how, 1)

    def release(descriptor: int) -> None:
        """Release the lock."""
        os.lseek(descriptor, 0, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    _EXCLUSIVE: Final = int(
        fcntl.LOCK_EX | fcntl.LOCK_NB
    )  # taken from the module once: an enum's `|` costs as much as the call
    _UNLOCK: Final = int(fcntl.LOCK_UN)

    _take: Final = fcntl.flock

    def release(descriptor: int) -> None:
        """Release the lock."""
        fcntl.flock(descriptor, _UNLOCK)


def take_at_once(descriptor: int) -> bool:
    """Lock an open file if it is free."""
    try:
        _take(descriptor, _EXCLUSIVE)
    except OSError as error:
        if error.errno not in _HELD:
            raise
        return False
    return True


def take(descriptor: int, seconds: float = DEFAULT_SECONDS) -> bool:
    """Lock an open file, waiting at most `seconds`; False if another holder keeps it all the time.

    The lock belongs to this opening of the file: another thread that opened it for itself waits as well.
    """
    return take_at_once(descriptor) or _wait(descriptor, seconds)  # nearly always free: no look at the clock


def _wait(descriptor: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    pause = _FIRST_PAUSE
    while (remaining := end - time.monotonic()) > 0:
        time.sleep(min(pause, remaining))
        pause = min(pause * 2, _LONGEST_PAUSE)
        if take_at_once(descriptor):
            return True
    return False


@contextlib.contextmanager
def locked(path: Path, seconds: float = DEFAULT_SECONDS) -> Iterator[None]:
    """Hold the lock that protects `path` for the length of the block.

    Raises:
        StateDamaged: it is not free within `seconds`, or the folder cannot be written.
    """
    with _opened(path) as (descriptor, lock_file):
        with state_errors(lock_file, "lock"):
            free = take(descriptor, seconds)
        if not free:
            raise not_free(path, seconds)
        try:
            yield
        finally:
            release(descriptor)


@contextlib.asynccontextmanager
async def locked_async(path: Path, seconds: float = DEFAULT_SECONDS) -> AsyncIterator[None]:
    """`locked` for code on an event loop. Raises as `locked`."""
    with _opened(path) as (descriptor, lock_file):
        end = time.monotonic() + seconds
        with state_errors(lock_file, "lock"):
            while not take_at_once(descriptor):
                if time.monotonic() > end:
                    raise not_free(path, seconds)
                await asyncio.sleep(_LONGEST_PAUSE)
        try:
            yield
        finally:
            release(descriptor)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[int, Path]]:
    """The file whose lock protects `path`."""
    lock_file = path.with_name(f".{path.name}.lock")
    make_private_folder(path.parent)
    with state_errors(lock_file, "lock"):
        descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), PRIVATE_FILE)
    try:
        yield descriptor, lock_file
    finally:
        os.close(descriptor)


def not_free(path: Path, seconds: float) -> StateDamaged:
    """The error of a file that another process kept locked for `seconds`."""
    return StateDamaged(
        f"{path} has been locked by another process for {seconds:g} seconds",
        hint="wait for it to end, or end it; the lock ends with the process that holds it",
        path=str(path),
    )
