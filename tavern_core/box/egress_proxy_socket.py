"""The only exit of a box's own network: a socket on its loopback that the host outside serves.

A socket belongs to the network in which it was created, whichever process holds it. The host accepts connections from the
box on it, without a process in between. The host decides about them; the box only has this socket.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from dataclasses import dataclass
from typing import Final

ADDRESS: Final = "127.0.0.1"
_PORT: Final = 3128
"""The usual port of a proxy; in its own network, it is free."""
_WAITING: Final = 64
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_IFREQ: Final = struct.Struct("16sH22x")
USER: Final = "tavern"


@dataclass(frozen=True, slots=True)
class EgressListener:
    """A gateway that is not served yet."""

    socket: socket.socket
    token: str
    """The password of its users; empty if only the box can reach it."""

    @property
    def port(self) -> int:
        """Its address."""
        port: int = self.socket.getsockname()[1]
        return port

    def environment(self) -> dict[str, str]:
        """The variables by which programs find it."""
        who = f"{USER}:{self.token}@" if self.token else ""
        url = f"http://{who}{ADDRESS}:{self.port}"
        found = {"NODE_USE_ENV_PROXY": "1"}
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            found |= {name: url, name.upper(): url}
        return {**found, "no_proxy": "", "NO_PROXY": ""}


def listen(*, has_own_network: bool) -> EgressListener:
    """Open the gateway of the network that this process is in.

    Args:
        has_own_network: whether the network was created for the box; else every process of this machine can reach the
            socket and needs its token.

    Raises:
        OSError: the loopback interface cannot be enabled, or there are no more descriptors.
    """
    if has_own_network:
        _bring_up_loopback()
    opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        opened.bind((ADDRESS, _PORT if has_own_network else 0))
        opened.listen(_WAITING)
        opened.setblocking(False)
    except OSError:
        opened.close()
        raise
    return EgressListener(opened, "" if has_own_network else os.urandom(24).hex())


def _bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        found = fcntl.ioctl(asking, _SIOCGIFFLAGS, _IFREQ.pack(b"lo", 0))
        flags = _IFREQ.unpack(found)[1]
        fcntl.ioctl(asking, _SIOCSIFFLAGS, _IFREQ.pack(b"lo", flags | _IFF_UP))
