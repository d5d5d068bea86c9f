"""Connections use addresses, grants use names: which name was resolved to an address?"""

from __future__ import annotations

import _socket
from typing import Any, Final

_WEB: Final = (80, 443)


class Names:
    """Records which names were resolved to which addresses."""

    def __init__(self) -> None:
        self._names: dict[str, dict[str, None]] = {}
        """Address → names."""
        self._asked: set[tuple[str, Any]] = set()

    def looked_up(self, host: Any, port: Any) -> None:
        """A name is being resolved: resolve it, too, and record the answer."""
        name = _text(host)
        if not name or (name, port) in self._asked:
            return
        self._asked.add((name, port))
        try:
            found = _socket.getaddrinfo(name, None)
        except OSError:
            return
        for *_, address in found:
            if address[0] != name:
                self._names.setdefault(str(address[0]), {})[name] = None

    def known_as(self, host: Any, port: Any) -> tuple[str, ...]:
        """Host and port as a scope writes them, by the names that were resolved to this address, if any."""
        name = _text(host)
        return tuple(written_host(known, port) for known in self._names.get(name, (name,)))


def written_host(host: Any, port: Any) -> str:
    """``example.org``, ``example.org:8443``, ``[::1]:*``: as an entry of a scope."""
    name = _text(host).partition("%")[0] or "0.0.0.0"
    shown = f"[{name}]" if ":" in name else name
    try:
        number = _socket.getservbyname(port) if isinstance(port, str) and not port.isdigit() else int(port or 0)
    except OSError:
        number = 0
    if number in _WEB or port is None:
        return shown
    return f"{shown}:{number or '*'}"


def _text(host: Any) -> str:
    if isinstance(host, bytes | bytearray):
        return host.decode("ascii", "replace")
    return str(host or "")
