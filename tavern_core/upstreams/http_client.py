"""The HTTP client of one connection to an upstream: it reaches the origin that was granted, and nothing else.

    name of the url → its addresses, each judged → one connection pool to them, for as long as the connection lives
    every answer    → bounded as it comes and unpacked; a redirect is not followed, one to elsewhere is an error

Private addresses are what most upstreams have: the operator named the host and port in tavern.yaml and granted exactly that. A name of
the public net must not lead to one over plain HTTP all the same: its owner decides where it leads, at every look-up anew. Over TLS the
certificate shows that it is the host that was named.
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
"""Where machines of one's own are. Not 169.254.0.0/16, where clouds keep the credentials of a machine."""
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
    """A client for the origin of `url`; relative addresses count from `url`.

    It takes no proxies or credentials from the environment, keeps no cookies and follows no redirects. Where it may not connect it
    raises PolicyDenied (POLICY_DENIED), for a redirect to another origin and a certificate that either side does not accept UpstreamError
    (UPSTREAM_ERROR), for an answer without end OutputTooLarge (OUTPUT_TOO_LARGE); everything else that goes wrong is an ``httpx2.HTTPError``.

    Args:
        scope: of the capability ``network`` that was granted.
        headers: sent with each request.
        certificate: ``{cert, key}`` of the client and ``ca``, a certification authority to trust instead of the public ones; PEM texts.
        timeout_s: of connecting, and of the silence between two pieces of an answer.
        max_bytes: of one answer, as it comes and unpacked; event streams, which may go on for days, have sixteen times as much.
        resolve: how names become addresses.

    Raises:
        ToolFailed: httpx2 is not installed (TOOL_ERROR).
        SettingsInvalid: the certificate cannot be used (SETTINGS_INVALID).
        PolicyDenied: `url` is not within the scope (POLICY_DENIED).
    """
    try:
        import httpx2

        from tavern_core.upstreams.origin_transport import OriginTransport
    except ImportError:
        raise not_installed("upstreams with a url need httpx2", "http") from None
    target = _granted(url, scope)

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


def _granted(url: str, scope: Scope) -> Target:
    try:
        target = read_url(url)
    except BadUrl as error:
        raise PolicyDenied(f"{shown(url)!r:.200} is not connected to: it {error}", hint=error.hint) from None
    if flaw := target_flaw(scope, target):
        raise PolicyDenied(f"{target} is not connected to: {flaw}", hint="tavern plugins review shows what was granted")
    return target


async def _addresses(target: Target, scope: Scope, resolve: Resolver) -> list[Address]:
    """All addresses of `target`; one that may not be reached refuses them all.

    Raises:
        PolicyDenied: one may not be reached (POLICY_DENIED).
        NoAddress: there are none.
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
    """Whether a private address is where the host that was granted may well be."""
    if target.scheme != "https" and not is_private_name(target.host):
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return any(mapped.version == network.version and mapped in network for network in _LOCAL)


def _tls(target: Target, certificate: Any) -> ssl.SSLContext:
    """What the handshake checks and shows. Reading the public authorities takes a while, so plain HTTP goes without."""
    if target.scheme != "https":
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    import httpx2

    given = certificate if isinstance(certificate, Mapping) else {}
    if unknown := sorted(set(given) - {"cert", "key", "ca"}):
        raise SettingsInvalid(f"certificate.{unknown[0]} is not known", hint="use cert, key and ca")
    for name, text in given.items():
        if not isinstance(text, str) or _PEM not in text:
            raise SettingsInvalid(
                f"certificate.{name} is not PEM text", hint=f"write {name}: {{$file: path of a .pem}}"
            )
    try:
        if "ca" in given:
            context = ssl.create_default_context(cadata=given["ca"])
        else:
            context = httpx2.create_ssl_context(trust_env=False)
        if "cert" in given:
            _show(context, given["cert"], given.get("key", ""))
    except (ssl.SSLError, OSError, ValueError) as error:
        raise SettingsInvalid(f"the certificate cannot be used: {error}", hint="see that key and cert fit") from None
    return context


def _show(context: ssl.SSLContext, cert: str, key: str) -> None:
    """Load a client certificate. OpenSSL reads it from files alone, so it is in one of this user's for a moment."""
    with tempfile.TemporaryDirectory(prefix="tavern-") as folder:
        path = Path(folder) / "client.pem"
        path.touch(0o600)
        path.write_text(f"{cert}\n{key}\n")
        context.load_cert_chain(path, password=_no_passphrase)


def _no_passphrase() -> str:
    """OpenSSL would ask for it on the terminal, and wait."""
    raise ValueError("the key needs a passphrase; store it without one")
