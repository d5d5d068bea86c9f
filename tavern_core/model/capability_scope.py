"""The scope of a capability: which paths, which hosts and ports, which names (SECURITY §1).

    capability           a scope lists   an entry reads
    read:fs write:fs     paths           /srv/data   ./data (of the project)   $data/x   $plugin   $workspace   ~/notes
    network read:web     hosts           example.org   *.example.org   example.org:8443   10.0.0.0/8:*   [::1]:8080   *   *:*
    read:db process:...  names           the name, letter by letter

A folder includes everything below it. A host without a port means the ports 80 and 443; ``*`` is every name but no
address; ``*.example.org`` is every name below it and not the name itself. No scope (None) allows every path and every
name, and of hosts what ``*`` allows: addresses and other ports need their own entry. An empty scope
allows nothing, and neither does an invalid entry. Pure: nothing is looked up, no file is touched.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.capability import CAPABILITIES

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

Scope = tuple[str, ...] | None
"""None: without limit; empty: nothing."""
Kind = Literal["paths", "hosts", "names", ""]
DEFAULT_PORTS: Final = (80, 443)
NETWORK: Final = ("network", "read:web")
"""Each of these opens connections, to what its scope names."""
ROOTS: Final = ("$data", "$plugin", "$workspace", "~")
"""The roots that a path may start with besides ``/`` and the project's own folder."""
_LABELS: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,62})(?:\.[a-z0-9_](?:[a-z0-9_-]{0,62}))*\Z")
_NUMERIC: Final = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)\Z")
_WITH_PORT: Final = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*)(?::(?P<port>\*|[0-9]{1,5}))?\Z")
_LONGEST: Final = 500
_LONGEST_PATH: Final = 4096


def scope_kind(capability: str) -> Kind:
    """The kind of entries in the scope of a capability; empty if it has no scope. Scopes of other owners list names."""
    row = CAPABILITIES.get(capability)
    return row.scope if row is not None else "names" if "/" in capability else ""


def entry_problem(capability: str, entry: str) -> str:
    """Why `entry` is invalid in the scope of this capability; empty if it is valid."""
    kind = scope_kind(capability)
    if not kind:
        return f"{capability} takes no scope"
    if len(entry) > _LONGEST or not entry.isprintable() or entry != entry.strip() or not entry:
        return "control characters, blanks around it, or more than 500 characters"
    if kind == "paths":
        return (
            ""
            if _entry(entry) is not None
            else "no path that stays in its folder; a folder stands for all beneath it, without patterns"
        )
    if kind == "hosts":
        return (
            ""
            if _host(entry) is not None
            else "no host; write example.org, *.example.org, example.org:8443 or 10.0.0.0/8:443"
        )
    return "" if "*" not in entry else "patterns are not understood here; leave the scope out to request all"


def allows_host(scope: Scope, host: str, port: int) -> bool:
    """Whether a connection to `host` (a name or an address, as in a URL) at `port` is within a scope of hosts."""
    wanted = canonical_host(host)
    if wanted is None or not 0 < port < 65536:
        return False
    target = _Host(wanted, str(port))
    return any(entry.covers(target) for entry in map(_host, ("*",) if scope is None else scope) if entry is not None)


def folders(scope: Scope, roots: Mapping[str, str]) -> Scope:
    """A scope of paths with its roots replaced by the folders in `roots`.

    Args:
        roots: one of `ROOTS`, or ``""`` for the project → an absolute path. An entry with another root stays as it is,
            and so allows no absolute path.
    """
    if scope is None:
        return None
    return tuple(placed for entry in scope if (placed := _placed(entry, roots)) is not None)


def within(capability: str, asked: Scope, limit: Scope) -> bool:
    """Whether `asked` is within `limit`: an entry of `limit` covers every entry of it."""
    kind = scope_kind(capability)
    if kind == "hosts":
        asked, limit = _all_names(asked), _all_names(limit)
    if limit is None:
        return True
    if asked is None:
        return False
    return all(any(_covers(kind, one, other) for one in limit) for other in asked)


def common(capability: str, one: Scope, other: Scope) -> Scope:
    """The intersection of two scopes, without duplicates."""
    kind = scope_kind(capability)
    if kind == "hosts" and (one is None) != (other is None):
        one, other = _all_names(one), _all_names(other)
    if one is None and other is None:
        return None
    one, other = (other if one is None else one) or (), (one if other is None else other) or ()
    shared = [_MEETS[kind](a, b) for a in one for b in other]
    return tuple(dict.fromkeys(entry for entry in shared if entry is not None))


def canonical_host(host: str) -> str | None:
    """The one spelling of a host: lower case, IDNA, an address in its shortest form; None if it is not a host.

    >>> canonical_host("EXAMPLE.org."), canonical_host("[::ffff:10.0.0.1]"), canonical_host("0x7f.1")
    ('example.org', '10.0.0.1', None)
    """
    text = host.strip().rstrip(".").lower()
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if "%" in bare or not bare:
        return None
    network = None if "/" in bare else _network(bare)
    if network is not None:
        return str(network.network_address)
    return _name(text) if bare is text else None


def _name(text: str) -> str | None:
    """A host name in ASCII; a name that ends in a label of digits is refused, because some resolvers take it for an address.

    A name that IDNA changes is refused, too: for some parsers, ``straße.example`` is ``strasse.example``, another host.
    """
    try:
        ascii_ = text if text.isascii() else text.encode("idna").decode("ascii").lower()
        if ascii_ is not text and ascii_.encode("ascii").decode("idna") != unicodedata.normalize("NFC", text):
            return None
    except UnicodeError:
        return None
    if len(ascii_) > 253 or _LABELS.match(ascii_) is None or _NUMERIC.match(ascii_.rpartition(".")[2]):
        return None
    return ascii_


# Hosts -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Host:
    """An entry: `pattern` is ``*``, ``*.name``, a name or a network; `port` is ``""`` (80, 443), ``*`` or a number."""

    pattern: str
    port: str = ""

    @property
    def network(self) -> IPv4Network | IPv6Network | None:
        return _network(self.pattern)

    def covers(self, other: _Host) -> bool:
        return _pattern_covers(self, other) and _port_covers(self.port, other.port)

    def meet(self, other: _Host) -> str | None:
        """The intersection of two entries, written as an entry; None if it is empty."""
        pattern = (
            other.pattern if _pattern_covers(self, other) else self.pattern if _pattern_covers(other, self) else None
        )
        port = (
            other.port
            if _port_covers(self.port, other.port)
            else self.port
            if _port_covers(other.port, self.port)
            else None
        )
        if pattern is None or port is None:
            return None
        shown = f"[{pattern}]" if ":" in pattern else pattern
        return f"{shown}:{port}" if port else shown


def _pattern_covers(one: _Host, other: _Host) -> bool:
    ours, theirs = one.network, other.network
    if ours is not None or theirs is not None:
        within_: Any = theirs  # both of one version, which the types cannot express
        return (
            ours is not None and theirs is not None and ours.version == theirs.version and bool(within_.subnet_of(ours))
        )
    if one.pattern == "*" or one.pattern == other.pattern:
        return True
    return one.pattern.startswith("*.") and other.pattern.endswith(one.pattern[1:]) and other.pattern != one.pattern[2:]


def _port_covers(one: str, other: str) -> bool:
    return one in ("*", other) or (one == "" and other in map(str, DEFAULT_PORTS))


@lru_cache(maxsize=4096)
def _host(entry: str) -> _Host | None:
    """Parse an entry of a scope of hosts; None if it is invalid."""
    if len(entry) > _LONGEST:
        return None
    if (bare := _network(entry)) is not None:  # ``::1`` and ``fd00::/8`` contain colons that do not start a port
        return _Host(_network_text(bare))
    if (found := _WITH_PORT.match(entry)) is None:
        return None
    host, port = found["host"], found["port"] or ""
    if port not in ("", "*") and not 0 < int(port) < 65536:
        return None
    inner = host[1:-1] if host.startswith("[") else host
    if (network := _network(inner)) is not None:
        return _Host(_network_text(network), str(int(port)) if port.isdigit() else port)
    if host.startswith("["):
        return None
    port = str(int(port)) if port.isdigit() else port
    if host == "*":
        return _Host("*", port)
    is_wildcard = host.startswith("*.")
    name = _name(host.removeprefix("*.").rstrip(".").lower())
    return None if name is None else _Host(f"*.{name}" if is_wildcard else name, port)


@lru_cache(maxsize=4096)
def _network(text: str) -> IPv4Network | IPv6Network | None:
    """An address or a network; an IPv4 address embedded in IPv6 as IPv4."""
    if not text[-1:].isalnum() and not text.endswith(":"):
        return None
    import ipaddress  # only needed for a scope of hosts

    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        return None
    if (
        isinstance(network, ipaddress.IPv6Network)
        and network.prefixlen >= 96
        and (mapped := network.network_address.ipv4_mapped)
    ):
        return ipaddress.IPv4Network((mapped, network.prefixlen - 96))
    return network


def _network_text(network: IPv4Network | IPv6Network) -> str:
    return str(network.network_address) if network.num_addresses == 1 else str(network)


def _all_names(scope: Scope) -> tuple[str, ...]:
    return ("*",) if scope is None else scope


def _hosts_meet(one: str, other: str) -> str | None:
    a, b = _host(one), _host(other)
    return None if a is None or b is None else a.meet(b)


# Paths -----------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _entry(entry: str) -> str | None:
    """Normalize an entry to ``/…``, ``./…`` or ``$root/…``; None: it is no path, has a pattern, or an unknown root."""
    if "*" in entry or "?" in entry:
        return None
    first = entry.partition("/")[0]
    if not entry:
        return None
    if first in ROOTS:
        rest = _clean(entry[len(first) :])
        return None if rest is None else f"{first}/{rest}".rstrip("/")
    if first.startswith(("$", "~")):
        return None
    path = _clean(entry)
    return None if path is None else ("/" if entry.startswith("/") else "./") + path


def _clean(path: str) -> str | None:
    """The parts of a path, joined; None if it has ``..``, or is not a path."""
    if len(path) > _LONGEST_PATH or "\0" in path:
        return None
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return None if ".." in parts else "/".join(parts)


def _is_beneath(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder if folder.endswith("/") else folder + "/")


def _paths_meet(one: str, other: str) -> str | None:
    a, b = _entry(one), _entry(other)
    if a is None or b is None:
        return None
    return other if _is_beneath(b, a) else one if _is_beneath(a, b) else None


def _placed(entry: str, roots: Mapping[str, str]) -> str | None:
    path = _entry(entry)
    if path is None or path.startswith("/"):
        return path
    root, _, rest = ("", "", path[2:]) if path.startswith("./") else path.partition("/")
    return entry if (folder := roots.get(root)) is None else posixpath.join(folder, rest) if rest else folder


def _names_meet(one: str, other: str) -> str | None:
    return one if one == other else None


_MEETS: Final[Mapping[Kind, Callable[[str, str], str | None]]] = {
    "paths": _paths_meet,
    "hosts": _hosts_meet,
    "names": _names_meet,
    "": _names_meet,
}


def _covers(kind: Kind, limit: str, asked: str) -> bool:
    if kind == "hosts":
        ours, theirs = _host(limit), _host(asked)
        return ours is not None and theirs is not None and ours.covers(theirs)
    if kind == "paths":
        folder, path = _entry(limit), _entry(asked)
        return folder is not None and path is not None and _is_beneath(path, folder)
    return limit == asked
