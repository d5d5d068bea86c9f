"""Open files that one process passes to another over a Unix socket."""

from __future__ import annotations

import array
import errno
import os
import socket
import time
from collections.abc import Sequence
from typing import Final

_RECEIVE: Final = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
LONGEST_WAIT_S: Final = 5.0
PAUSE_S: Final = 0.005
"""Pause between two attempts."""


def send(line: socket.socket, message: bytes, descriptors: Sequence[int]) -> None:
    """Send a message with descriptors, waiting while that is not possible: not long, as receivers read at once.

    Raises:
        OSError: the other side is gone (EPIPE), or too many are still on the way (ETOOMANYREFS).
    """
    deadline = time.monotonic() + LONGEST_WAIT_S
    while not was_sent(line, message, descriptors):
        if time.monotonic() >= deadline:
            raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))
        time.sleep(PAUSE_S)


def was_sent(line: socket.socket, message: bytes, descriptors: Sequence[int]) -> bool:
    """Send a message with descriptors; False if it must be tried again.

    A user may have only as many descriptors under way, over all processes, as one process may open (unix(7),
    ETOOMANYREFS); in a box these are few.

    Raises:
        OSError: the other side has ended (EPIPE).
    """
    try:
        socket.send_fds(line, [message], descriptors)
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            raise
        return False
    return True


def receive(line: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """A message and its descriptors. By hand: `socket.recv_fds` of Python 3.11 ignores its flags.

    Args:
        size: bytes of the longest message.
        most: maximum descriptors per message.

    Raises:
        BlockingIOError: no message.
    """
    numbers = array.array("i")
    body, ancillary, _, _ = line.recvmsg(size, socket.CMSG_LEN(most * numbers.itemsize), _RECEIVE)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    return body, list(numbers)
