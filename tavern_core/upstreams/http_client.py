"""The HTTP client of one connection to an upstream: it connects only to the granted origin.

    name in the URL → its addresses, each checked → one connection pool to them, as long as the connection lives
    every answer → bounded before and after unpacking; redirects are not followed, one to another origin is an error

Most upstreams have private addresses: the operator named host and port in tavern.yaml and granted exactly these. But a
public name must not lead to a private address over plain HTTP: its owner could change the address at every look-up.
Over TLS, the certificate proves the identity of the host.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tavern_core.contract.exchange import not_installed
from tavern_core.contract.guards.addresses import (
    Address,
    BadUrl,
    Target,
    address_flaw,
    is_private_name,
    read_url,
    shown,
    target_flaw,
)
from tavern_core.contract.guards.connecting import Resolver, addresses_of, system_addresses
from tavern_core.errors import PolicyDenied, SettingsInvalid
from tavern_core.model.capability_scope import Scope

if TYPE_CHECKING:
    import httpx2

_LOCAL: Final = tuple(
    ip_network(n)
    for n in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8", "100.64.0.0/10", "fc00::/7", "::1/128")
)
"""Typical addresses of private machines. Not 169.254.0.0/16, where clouds offer the credentials of a machine."""
_MOST_CONNECTIONS: Final = 64
_PEM: Final = "-----BEGIN"


def client(
    url: str,
    scope: Scope,
    *,
    headers: Mapping[str, str] | None = None,
    certificate: Any = None,
    timeout_s: float = 30.0,
    max_bytes: int = 64_000_000,
    resolve: Resolver = system_addresses,
) -> httpx2.AsyncClient:
    """A client for the origin of `url`, which is also the base of relative addresses.

    It takes no proxies or credentials from the environment, keeps no cookies and follows no redirects. It raises
    PolicyDenied if it may not connect (POLICY_DENIED), UpstreamError for redirects to other origins and refused
    certificates (UPSTREAM_ERROR), OutputTooLarge for too long answers (OUTPUT_TOO_LARGE), and ``httpx2.HTTPError`` for
    everything else.

    Args:
        scope: the granted scope of the capability ``network``.
        headers: sent with each request.
        certificate: ``{cert, key}`` of the client and ``ca``, a certification authority to trust instead of the public ones; PEM texts.
        timeout_s: for connecting, and for the time between two pieces of an answer.
        max_bytes: of one answer, packed and unpacked; sixteen times as much for event streams, which may last for days.
        resolve: resolves names to addresses.

    Raises:
        ToolFailed: httpx2 is not installed (TOOL_ERROR).
        SettingsInvalid: the certificate cannot be used (SETTINGS_INVALID).
        PolicyDenied: `url` is outside the scope (POLICY_DENIED).
    """
    try:
        import httpx2

        from tavern_core.upstreams.origin_transport import OriginTransport
    except ImportError:
        raise not_installed("upstreams with a url need httpx2", "http") from None
    target = _granted_target(url, scope)

    async def addresses() -> list[Address]:
        return await _addresses(target, scope, resolve)

    tls, has_certificate = _tls(target, certificate), isinstance(certificate, Mapping) and "cert" in certificate
    transport = OriginTransport(target, addresses, tls, max_bytes, _MOST_CONNECTIONS, has_certificate)
    return httpx2.AsyncClient(
        transport=transport,
        base_url=url,
        headers={
            **{k: v for k, v in (headers or {}).items() if k.lower() != "accept-encoding"},
            "accept-encoding": "gzip",
        },
        timeout=timeout_s,
        trust_env=False,
        follow_redirects=False,
    )


def _granted_target(url: str, scope: Scope) -> Target:
    try:
        target = read_url(url)
    except BadUrl as error:
        raise PolicyDenied(f"{shown(url)!r:.200} is not connected to: it {error}", hint=error.hint) from None
    if flaw := target_flaw(scope, target):
        raise PolicyDenied(f"{target} is not connected to: {flaw}", hint="tavern plugins review shows what was granted")
    return target


async def _addresses(target: Target, scope: Scope, resolve: Resolver) -> list[Address]:
    """All addresses of `target`; a single forbidden address refuses the target.

    Raises:
        PolicyDenied: an address is forbidden (POLICY_DENIED).
        NoAddress: it has no addresses.
    """
    found = await addresses_of(target, resolve)
    for address in found:
        if (flaw := address_flaw(scope, target, address)) and not _is_own(target, address):
            raise PolicyDenied(
                f"{target} is not connected to: {flaw}",
                hint="use https, or write the address itself in place of the name",
                address=str(address),
            )
    return found


def _is_own(target: Target, address: Address) -> bool:
    """Whether the granted host can plausibly have this private address."""
    if target.scheme != "https" and not is_private_name(target.host):
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return any(mapped.version == network.version and mapped in network for network in _LOCAL)


def _tls(target: Target, certificate: Any) -> ssl.SSLContext:
    """The TLS settings. Loading the public authorities takes a while, so plain HTTP does without."""
    if target.scheme != "https":
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    import httpx2

    parts = certificate if isinstance(certificate, Mapping) else {}
    if unknown := sorted(set(parts) - {"cert", "key", "ca"}):
        raise SettingsInvalid(f"certificate.{unknown[0]} is not known", hint="use cert, key and ca")
    for name, text in parts.items():
        if not isinstance(text, str) or _PEM not in text:
            raise SettingsInvalid(
                f"certificate.{name} is not PEM text", hint=f"write {name}: {{$file: path of a .pem}}"
            )
    try:
        if "ca" in parts:
            context = ssl.create_default_context(cadata=parts["ca"])
        else:
            context = httpx2.create_ssl_context(trust_env=False)
        if "cert" in parts:
            _load_client_certificate(context, parts["cert"], parts.get("key", ""))
    except (ssl.SSLError, OSError, ValueError) as error:
        raise SettingsInvalid(f"the certificate cannot be used: {error}", hint="see that key and cert fit") from None
    return context


def _load_client_certificate(context: ssl.SSLContext, cert: str, key: str) -> None:
    """Load a client certificate. OpenSSL only reads files, so it is in a private file for a moment."""
    with tempfile.TemporaryDirectory(prefix="tavern-") as folder:
        path = Path(folder) / "client.pem"
        path.touch(0o600)
        path.write_text(f"{cert}\n{key}\n")
        context.load_cert_chain(path, password=_no_passphrase)


def _no_passphrase() -> str:
    """Raise an error, because OpenSSL would ask for a passphrase on the terminal, and wait."""
    raise ValueError("the key needs a passphrase; store it without one")
