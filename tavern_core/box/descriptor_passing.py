"""Open files that one process passes to another over a Unix socket."""

from __future__ import annotations

import array
import errno
import socket
import time
from collections.abc import Sequence
from typing import Final

_RECEIVE: Final = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
_LONGEST_WAIT_S: Final = 5.0
_PAUSE_S: Final = 0.005


def send(line: socket.socket, message: bytes, descriptors: Sequence[int]) -> None:
    """Send a message with descriptors.

    A process may send none while its user has more of them on the way, from all processes, than it may open files itself; in a
    box these are few. It waits until they have arrived: the wait ends soon, because programs read such messages at once.

    Raises:
        OSError: the other side is gone (EPIPE), or too many are still on the way (ETOOMANYREFS, unix(7)).
    """
    deadline = time.monotonic() + _LONGEST_WAIT_S
    while True:
        try:
            socket.send_fds(line, [message], descriptors)
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS or time.monotonic() >= deadline:
                raise
        else:
            return
        time.sleep(_PAUSE_S)


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
