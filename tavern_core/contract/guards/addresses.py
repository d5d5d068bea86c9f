"""Check where a network address leads: first its text is checked, then every address that its name resolves to.

read_url(text)                 the parts that matter, in one spelling; refuses what two parsers could read differently
target_flaw(scope, target)     why it is not within a scope of hosts (model/capability_scope.py)
address_flaw(...)              why an address that its name resolved to is not within it
"""

from __future__ import annotations

import importlib
import re
import unicodedata
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Final
from urllib.parse import urlsplit

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.capability_scope import Scope, allows_host

Address = IPv4Address | IPv6Address

LONGEST: Final = 8_192
PORTS: Final = {"http": 80, "https": 443}
_FORBIDDEN: Final = re.compile(
    "[\x00-\x20\x7f-\xa0\\\\\u200b-\u200f\u2028-\u202e\u2060-\u2069\u3000\ufeff\ud800-\udfff]"
)
_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\Z")
_NUMBER: Final = re.compile(r"(0x[0-9a-f]*|[0-9]+)\Z")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_PRIVATE_NAMES: Final = (
    "localhost",
    "local",
    "internal",
    "intranet",
    "lan",
    "home",
    "corp",
    "private",
    "home.arpa",
    "localdomain",
)
"""Endings of names that never mean anything public (RFC 6761, 6762, 8375, and others in common use)."""
_HIDDEN_V4: Final = tuple(
    ip_network(n) for n in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "::/96", "2001::/32", "fec0::/10")
)
"""Addresses of version 6 that carry one of version 4 (NAT64, 6to4, compatible ones, Teredo) or are site-local. Never public."""
_OF_CLOUDS: Final = frozenset({IPv4Address("168.63.129.16")})
"""Addresses that look public but belong to the cloud that the machine runs in: Azure's wire server."""


class BadUrl(ValueError):
    """The text is not a usable address; the message says why, and `hint` what to write instead."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Target:
    """The host and port to which an address leads."""

    scheme: str
    host: str
    """Lower case ASCII (``xn--``), without a dot at its end and without brackets."""
    port: int
    address: Address | None = None
    """The address, if `host` is not a name."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc}"

    @property
    def netloc(self) -> str:
        """``host`` or ``host:port``, as the Host header has it."""
        host = f"[{self.host}]" if isinstance(self.address, IPv6Address) else self.host
        return host if PORTS.get(self.scheme) == self.port else f"{host}:{self.port}"


def shown(url: str) -> str:
    """An address that is safe in a message: without user names, passwords and queries."""
    return re.sub(r"//[^/]*@", "//***@", url.partition("?")[0])


def scheme_of(text: str) -> str:
    """The scheme of an address, lower case; empty for none."""
    found = _SCHEME.match(text.lstrip("\x00\t\n\r "))
    return found[1].lower() if found else ""


def read_url(text: object, schemes: Iterable[str] = ("http", "https")) -> Target:
    """Parse an address.

    Raises:
        BadUrl: it is not an address with one of the schemes, or is ambiguous.
    """
    if not isinstance(text, str):
        raise BadUrl("is not text", "write https://host/path")
    if len(text) > LONGEST:
        raise BadUrl(f"is longer than {LONGEST:,} characters")
    if (found := _FORBIDDEN.search(text)) is not None:
        raise BadUrl(f"holds {found[0]!a}, which readers understand differently", "percent-encode it")
    allowed = tuple(schemes)
    scheme = scheme_of(text)
    if not scheme or scheme not in allowed:
        named = f"has the scheme {scheme!r}" if scheme else "has no scheme"
        raise BadUrl(f"{named}; allowed: {', '.join(allowed)}", f"write {allowed[0] if allowed else 'https'}://…")
    rest = text[len(scheme) + 1 :]
    if not rest.startswith("//") or rest.startswith("///"):
        raise BadUrl("has no host", f"write {scheme}://host/path")
    authority = re.split(r"[/?#]", rest[2:], maxsplit=1)[0]
    if "@" in authority or "@" in unicodedata.normalize("NFKC", authority):
        raise BadUrl("holds a user name before the host", "leave out the part before '@'")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise BadUrl(f"cannot be read: {error}") from None
    if parts.netloc != authority:
        raise BadUrl("has a host that readers understand differently")
    host_text = (
        authority[: authority.rindex(":")]
        if re.search(r":\d*\Z", authority) and not authority.endswith("]")
        else authority
    )
    if port == 0:
        raise BadUrl("has the port 0")
    host, address = read_host(host_text)
    return Target(scheme, host, port if port is not None else PORTS.get(scheme, 0), address)


def read_host(written: str) -> tuple[str, Address | None]:
    """(host in one spelling, its address or None).

    Raises:
        BadUrl: no host, a host with invalid characters, or a number in a spelling that only some parsers know.
    """
    if written.startswith("["):
        if not written.endswith("]") or "%" in written:
            raise BadUrl("has a host in brackets that is not an IPv6 address")
        try:
            address = IPv6Address(written[1:-1])
        except ValueError:
            raise BadUrl("has a host in brackets that is not an IPv6 address") from None
        return str(address), address
    if not written:
        raise BadUrl("has no host")
    if "%" in written:
        raise BadUrl("has a percent sign in its host", "write the host plainly")
    host = _ascii(written).removesuffix(".")
    labels = host.split(".")
    if _NUMBER.match(labels[-1]):  # a name never ends so: WHATWG reads it as an IPv4 address in some notation
        try:
            plain = IPv4Address(host)
        except ValueError:
            raise BadUrl(
                f"has the host {host!r:.80}, a number in a spelling that only some readers know", "write a.b.c.d"
            ) from None
        return str(plain), plain
    if len(host) > 253 or not all(_LABEL.match(label) for label in labels):
        raise BadUrl(f"has the host {host!r:.80}, which is not a name")
    return host, None


def _ascii(host: str) -> str:
    """The host as DNS knows it (UTS 46, IDNA 2008)."""
    if host.isascii():
        lowered = host.lower()
        if not any(label.startswith("xn--") for label in lowered.split(".")):
            return lowered
    try:
        idna = importlib.import_module("idna")
    except ImportError:
        raise BadUrl(
            "has a host with letters beyond a-z", "pip install 'tavern-core[http]', which installs idna"
        ) from None
    try:
        encoded: bytes = idna.encode(host, uts46=True, transitional=False)
    except (idna.IDNAError, UnicodeError) as error:
        # Numbers in full-width digits are not domain names to IDNA, and addresses to some readers.
        raise BadUrl(f"has a host that is not a domain name: {error}") from None
    return encoded.decode("ascii").lower()


def target_flaw(scope: Scope, target: Target) -> str:
    """Why `target` is not within a scope of hosts; empty if it is.

    Args:
        scope: None: no scope; addresses, names of the local network and other ports than 80 and 443 need one.
    """
    if allows_host(scope, target.host, target.port):
        local = target.address is None and is_private_name(target.host)
        if not local or allows_host(_named(scope), target.host, target.port):
            return ""
        return f"{target.host} is a name of the local network"
    if scope is not None:
        return f"{target.netloc} is not in the scope ({', '.join(scope)[:200]})"
    if target.address is not None:
        return f"{target.host} is an address, not a name"
    return f"port {target.port} is neither 80 nor 443"


def address_flaw(scope: Scope, target: Target, address: Address) -> str:
    """Why `target` may not be contacted at `address`, to which its name resolved; empty if it may.

    A name never covers a private address that it resolves to; an entry of the scope must cover the address itself.
    ``localhost`` covers the loopback addresses.
    """
    address = _plain(address)
    if is_public(address) or allows_host(scope, str(address), target.port):
        return ""
    if target.host == "localhost" and address.is_loopback and allows_host(_named(scope), "localhost", target.port):
        return ""
    return f"{target.host} leads to {address}, which is not a public address"


def _named(scope: Scope) -> Scope:
    """The scope without the entries that mean every name."""
    return tuple(entry for entry in scope or () if entry.partition(":")[0] != "*")


def is_private_name(host: str) -> bool:
    """True for names of a local network: ``localhost``, ``x.internal``, names without a dot."""
    return "." not in host or host.endswith(tuple(f".{ending}" for ending in _PRIVATE_NAMES)) or host in _PRIVATE_NAMES


def is_public(address: Address) -> bool:
    """True for addresses of the public net, IPv4 addresses embedded in IPv6 checked as IPv4."""
    address = _plain(address)
    if isinstance(address, IPv6Address) and (address.scope_id or any(address in network for network in _HIDDEN_V4)):
        return False
    return (
        address not in _OF_CLOUDS
        and address.is_global
        and not (address.is_multicast or address.is_reserved or address.is_unspecified)
    )


def _plain(address: Address) -> Address:
    """Convert an IPv4 address written as IPv6: ``::ffff:127.0.0.1`` is 127.0.0.1."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
