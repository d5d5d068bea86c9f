"""Addresses in arguments: scheme, host and port, whatever the spelling."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core.contract.guards.addresses import BadUrl, address_flaw, is_public, read_url
from tests.guards.conftest import Desk, refusal
from tests.rows import each_row

URL = {"type": "object", "properties": {"u": {"type": "string", "x-tavern": {"guard": "url"}}}}

ALLOWED = [
    "https://example.com", "http://example.com/", "HTTPS://EXAMPLE.COM/x?y=1#z", "https://example.com:443/", "http://example.com:80",
    "https://sub.example.co.uk/a%2fb", "https://example.com.", "https://пример.рф/", "https://xn--e1afmkfd.xn--p1ai/",
    "https://1.example.com", "https://3com.com", "http://example.com:443", "https://example.com/@user", "https://example.com?u=a@b",
]  # fmt: skip
REFUSED = [
    ("http://127.0.0.1/", "is an address"),
    ("http://93.184.216.34/", "is an address"),
    ("http://[::1]/", "is an address"),
    ("http://[::ffff:127.0.0.1]/", "is an address"),
    ("http://[::ffff:7f00:1]/", "is an address"),
    ("http://169.254.169.254/latest/meta-data", "is an address"),
    ("http://127.0.0.1.", "is an address"),
    ("http://2130706433/", "spelling"),
    ("http://0x7f000001/", "spelling"),
    ("http://0x7f.1/", "spelling"),
    ("http://0177.0.0.1/", "spelling"),
    ("http://127.1/", "spelling"),
    ("http://127.0.0.1.1/", "spelling"),
    ("http://0/", "spelling"),
    ("http://1.2.3.4.0x/", "spelling"),
    ("http://１２７.０.０.１/", "is an address"),
    ("http://127。0。0。1/", "is an address"),
    ("http://①②⑦.0.0.1/", "is an address"),
    ("http://localhost/", "local network"),
    ("http://LOCALHOST/", "local network"),
    ("http://localhost./", "local network"),
    ("http://a.localhost/", "local network"),
    ("http://intranet/", "local network"),
    ("http://printer.local/", "local network"),
    ("http://metadata.google.internal/", "local network"),
    ("http://ⓛocalhost/", "local network"),
    ("http://user@example.com/", "user name"),
    ("http://user:secret@example.com/", "user name"),
    ("http://example.com@127.0.0.1/", "user name"),
    ("http://@example.com/", "user name"),
    ("http://example.com＠127.0.0.1/", "user name"),
    ("http://127.0.0.1#@example.com/", "is an address"),
    ("http://127.0.0.1?@example.com/", "is an address"),
    ("http://127.0.0.1\\@example.com/", "readers understand differently"),
    ("http://example.com\\.evil.com/", "readers understand differently"),
    ("http://exa mple.com/", "readers understand differently"),
    ("http://example.com/\r\nHost: x", "readers understand differently"),
    ("http://example.com\t/", "readers understand differently"),
    ("\thttp://example.com", "readers understand differently"),
    ("http://exam\u200dple.com", "readers understand differently"),
    ("http://example.com:8080/", "neither 80 nor 443"),
    ("http://example.com:22/", "neither 80 nor 443"),
    ("http://example.com:0/", "port 0"),
    ("http://example.com:99999/", "cannot be read"),
    ("http://example.com:８０/", "cannot be read"),
    ("http://example.com:80:80/", "not a name"),
    ("http://%31%32%37.0.0.1/", "percent sign"),
    ("http://example%2ecom/", "percent sign"),
    ("http://[::1%25eth0]/", "brackets"),
    ("http://[::1", "brackets"),
    ("http://[v1.x]/", "brackets"),
    ("http://::1/", "not a name"),
    ("http:///etc/passwd", "no host"),
    ("http:example.com", "no host"),
    ("https://", "no host"),
    ("http:/\\example.com", "readers understand differently"),
    ("http://-.example.com", "not a name"),
    ("http://a..b/", "not a name"),
    ("http://xn--a/", "not a domain name"),
    ("file:///etc/passwd", "scheme 'file'"),
    ("ftp://example.com/", "scheme 'ftp'"),
    ("gopher://example.com/", "scheme 'gopher'"),
    ("javascript:alert(1)", "scheme 'javascript'"),
    ("data:text/plain,x", "scheme 'data'"),
    ("//example.com/", "no scheme"),
    ("example.com", "no scheme"),
    ("", "no scheme"),
    ("https://example.com/" + "x" * 9000, "longer than"),
]


@each_row("url", ALLOWED)
def test_public_names_on_the_ports_of_the_web_are_let_through(desk: Desk, url: str) -> None:
    assert desk.tool(URL, "read:web")({"u": url}).ok


@each_row(("url", "why"), REFUSED)
def test_other_addresses_are_refused_and_the_tool_does_not_run(desk: Desk, url: str, why: str) -> None:
    said = refusal(desk.tool(URL, "read:web")({"u": url}))
    assert why in said or "cannot be read" in said
    assert "secret" not in said
    assert not desk.ran


SCOPED = [
    (["api.example.com"], "https://api.example.com/x", True),
    (["api.example.com"], "http://api.example.com/x", True),
    (["api.example.com"], "https://API.example.com./x", True),
    (["api.example.com"], "https://example.com", False),
    (["api.example.com"], "https://api.example.com.evil.com", False),
    (["api.example.com"], "https://xapi.example.com", False),
    (["api.example.com"], "https://api.example.com:8443", False),
    (["api.example.com:8443"], "https://api.example.com:8443", True),
    (["api.example.com:8443"], "https://api.example.com", False),
    (["api.example.com:*"], "https://api.example.com:12345", True),
    (["https://api.example.com"], "https://api.example.com/", False),
    (["*.example.com"], "https://a.b.example.com", True),
    (["*.example.com"], "https://example.com", False),
    (["*.example.com"], "https://badexample.com", False),
    (["*.example.com"], "https://example.com.evil.com", False),
    (["*"], "https://anything.org", True),
    (["*"], "http://localhost", False),
    (["*"], "http://10.0.0.1", False),
    (["*:8080"], "http://anything.org:8080", True),
    (["127.0.0.1:8080"], "http://127.0.0.1:8080/", True),
    (["127.0.0.1:8080"], "http://[::ffff:127.0.0.1]:8080/", True),
    (["127.0.0.1:8080"], "http://127.0.0.1/", False),
    (["127.0.0.1:8080"], "http://localhost:8080/", False),
    (["localhost:8080"], "http://localhost:8080/", True),
    (["localhost:8080"], "http://127.0.0.1:8080/", False),
    (["10.0.0.0/8"], "http://10.1.2.3/", True),
    (["10.0.0.0/8"], "http://11.1.2.3/", False),
    (["10.0.0.0/8:8080"], "http://10.1.2.3:8080/", True),
    (["[::1]:8080"], "http://[::1]:8080/", True),
    (["::1"], "http://[0:0::1]/", True),
    (["fd00::/8"], "http://[fd00::1]/", True),
    (["пример.рф"], "https://xn--e1afmkfd.xn--p1ai/", True),
    (["apple.com"], "https://аpple.com/", False),
    (["not a host"], "https://example.com", False),
    (["http://"], "https://example.com", False),
    (["example.*"], "https://example.com", False),
    (["10.*"], "http://10.0.0.1", False),
    (["api.example.com", "127.0.0.1:1"], "http://127.0.0.1:1", True),
]


@each_row(("scope", "url", "fine"), SCOPED)
def test_a_scope_says_which_hosts_and_ports(desk: Desk, scope: list[str], url: str, fine: bool) -> None:
    assert desk.tool(URL, "read:web", scopes={"read:web": scope})({"u": url}).ok is fine


@each_row(
    ("web", "network", "url", "fine"),
    [
        (None, ["127.0.0.1:1"], "http://127.0.0.1:1", True),
        (None, ["127.0.0.1:1"], "https://example.com", True),
        (["a.com"], ["b.com"], "https://b.com", True),
        (["a.com"], ["b.com"], "https://c.com", False),
    ],
)
def test_what_either_capability_covers_is_covered(
    desk: Desk, web: list[str] | None, network: list[str], url: str, fine: bool
) -> None:
    scopes = {"network": network} | ({"read:web": web} if web else {})
    assert desk.tool(URL, "read:web", "network", scopes=scopes)({"u": url}).ok is fine


def test_a_caller_narrows_the_hosts(desk: Desk) -> None:
    call = desk.tool(URL, "read:web", scopes={"read:web": ["*.example.com"]})

    def fine(host: str, *scope: str) -> bool:
        return call({"u": f"https://{host}"}, scopes={"read:web": list(scope)}).ok

    assert fine("a.example.com", "a.example.com")
    assert not fine("b.example.com", "a.example.com")
    assert not fine("other.com", "other.com")
    assert not fine("a.example.com")


def test_a_mark_may_name_schemes_and_hosts(desk: Desk) -> None:
    mark = {"guard": "url", "schemes": ["https", "ftp"], "hosts": ["files.example.com"]}
    call = desk.tool({"type": "object", "properties": {"u": {"type": "string", "x-tavern": mark}}}, "read:web")
    assert call({"u": "https://files.example.com/"}).ok
    assert "scheme 'http'" in refusal(call({"u": "http://files.example.com/"}))
    assert "the mark of this parameter" in refusal(call({"u": "https://example.com/"}))
    assert "port 21" not in str(call({"u": "ftp://files.example.com:443/"}).error)


def test_the_refusal_says_what_would_allow_it(desk: Desk) -> None:
    result = desk.tool(URL, "read:web")({"u": "http://example.com:8080/x"})
    assert result.error is not None
    assert "scope: ['example.com:8080']" in (result.error.fix or "")
    assert "tavern plugins grant desk read:web" in (result.error.fix or "")


MARKED = {"type": "object", "properties": {"u": {"type": "string", "x-tavern": {"guard": "url", "hosts": ["b.com"]}}}}


@pytest.mark.parametrize(
    ("schema", "scopes", "callers", "hosts"),
    [
        (URL, {}, None, None),
        (URL, {"read:web": ["a.com"], "network": ["*.a.com"]}, None, ["a.com", "*.a.com"]),
        (URL, {"read:web": ["a.com"], "network": ["a.com", "c.com:99"]}, None, ["a.com", "c.com:99"]),
        (URL, {"network": ["c.com:99"]}, None, None),
        (URL, {"read:web": ["a.com", "c.com"], "network": ["a.com"]}, {"read:web": ["c.com"], "network": []}, ["c.com"]),
        (MARKED, {}, None, ["b.com"]),
    ],
)  # fmt: skip
def test_the_refusal_lists_the_hosts_that_are_allowed(
    desk: Desk, schema: dict[str, Any], scopes: dict[str, list[str]], callers: Any, hosts: list[str] | None
) -> None:
    call = desk.tool(schema, "read:web", "network", scopes=scopes)
    result = call({"u": "http://localhost:8080/x"}, **({"scopes": callers} if callers else {}))
    assert result.error is not None
    assert result.error.details.get("hosts") == hosts


PRIVATE = [
    "0.0.0.0", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.255.255.254", "169.254.169.254", "172.16.0.1", "192.0.2.1", "192.168.1.1",
    "198.18.0.1", "203.0.113.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "::", "::1", "::ffff:10.0.0.1", "::127.0.0.1",
    "64:ff9b::7f00:1", "64:ff9b::808:808", "2002:7f00:1::", "2001:0:1::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254",
    "ff02::1", "2001:db8::1", "fec0::1",
]  # fmt: skip


@each_row("address", PRIVATE)
def test_private_link_local_and_disguised_addresses_are_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@each_row("address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1"])
def test_public_addresses_are(address: str) -> None:
    assert is_public(ip_address(address))


@each_row(
    ("scope", "url", "address", "fine"),
    [
        (None, "https://example.com", "93.184.216.34", True),
        (None, "https://example.com", "127.0.0.1", False),
        (["example.com"], "https://example.com", "10.0.0.1", False),
        (["example.com", "10.0.0.0/8"], "https://example.com", "10.0.0.1", True),
        (["example.com", "10.0.0.0/8"], "https://example.com", "192.168.0.1", False),
        (["example.com:8080", "10.0.0.1"], "http://example.com:8080", "10.0.0.1", False),
        (["localhost:8080"], "http://localhost:8080", "127.0.0.1", True),
        (["localhost:8080"], "http://localhost:8080", "10.0.0.1", False),
        (["*"], "http://rebound.example", "::ffff:169.254.169.254", False),
    ],
)
def test_a_name_never_covers_a_private_address_that_it_resolves_to(
    scope: list[str] | None, url: str, address: str, fine: bool
) -> None:
    assert (address_flaw(None if scope is None else tuple(scope), read_url(url), ip_address(address)) == "") is fine


PIECES = st.lists(
    st.sampled_from(["http", "https", ":", "//", "/", "\\", "@", "#", "?", "[", "]", "%", ".", "example.com", "127.0.0.1", "::1", "80", "0x7f", "１",
                     "localhost", "。", " ", "\t", "a", "-", "_", "xn--", "＠", "\u200b", "*"]), max_size=9)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(PIECES)
def test_whatever_is_let_through_is_read_alike_by_another_reader(pieces: list[str]) -> None:
    """The standard library and httpx2 find the same host that was judged."""
    import httpx2

    text = "http://" + "".join(pieces)
    try:
        target = read_url(text)
    except BadUrl:
        return
    host = (urlsplit(text).hostname or "").removesuffix(".")
    assert host.isascii() is False or host == target.host or target.address is not None
    try:
        other = httpx2.URL(text)
    except httpx2.InvalidURL:
        return  # what the other does not read, it does not fetch
    assert (other.raw_host.decode().removesuffix(".").strip("[]") == target.host) or target.address is not None
    assert (other.port or {"http": 80, "https": 443}[other.scheme]) == target.port
