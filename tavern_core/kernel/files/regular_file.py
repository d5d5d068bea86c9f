"""Opens files that others may have replaced: only regular files, and never blocking.

Opening a named pipe waits for a writer, and a device may be endless: both would stop the host for ever.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: str | Path, *, follow: bool = True) -> BinaryIO:
    """The file opened for reading bytes.

    Args:
        follow: a symbolic link at the end of the path is followed; otherwise it is refused.

    Raises:
        OSError: it cannot be opened, or is a folder, a pipe, a socket or a device. (ValueError: the path holds a NUL.)
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | (0 if follow else os.O_NOFOLLOW))
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))
