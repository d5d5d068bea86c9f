"""The service `net`: fetches from real servers on this machine, as far as the plugin that asks was granted."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import gzip
import json
import socket
import ssl
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tavern_core import CallContext, CallError, Plugin, Service, Tavern, ToolResult, hookimpl, tool
from tavern_core.builtin.services.net.service import NetService, PluginNet
from tavern_core.contract.protocols import ServiceUser
from tavern_core.errors import ConfigInvalid
from tests.guards.web import CERTIFICATE, Web, addresses, has_ipv6, http, redirect, web
from tests.rows import each_row


@pytest.fixture
def site() -> Iterator[Web]:
    with web() as server:
        yield server


def net(*network: str, read: Any = (), resolve: Any = None, tls: bool = False) -> PluginNet:
    """What a plugin with this scope of `network` (and of `read:web`) uses; () is not granted, None without a scope."""
    trusted = ssl.create_default_context(cafile=str(CERTIFICATE)) if tls else None
    scopes = {"network": network, "read:web": read}
    whole = whole_net() if resolve is None and trusted is None else NetService(resolve, trusted)
    return whole.for_plugin(ServiceUser("desk", lambda c: scopes.get(c, ())))


@functools.cache
def whole_net() -> NetService:
    """The service of a host: plugins share it, and what it read of the system's certificates."""
    return NetService()


def refused(net: PluginNet, url: str, **more: Any) -> CallError:
    with pytest.raises(CallError) as failed:
        net.fetch_sync(url, **more)
    assert failed.value.message
    return failed.value


def denied(net: PluginNet, url: str, **more: Any) -> str:
    error = refused(net, url, **more)
    assert error.code == "POLICY_DENIED", error
    return error.message


# Through a host -------------------------------------------------------------------------------------------------------------


class Fetcher:
    """A plugin with a tool that fetches, async and sync."""

    def __init__(self) -> None:
        self.ctx: Any = None

    @hookimpl
    def tavern_register_tools(self, ctx: Any) -> list[Any]:
        self.ctx = ctx

        @tool
        async def get(url: str) -> dict[str, Any]:
            return await self.ctx.service("net").fetch(url)  # type: ignore[no-any-return]

        @tool
        def get_sync(url: str, method: str = "GET") -> dict[str, Any]:
            return self.ctx.service("net").fetch_sync(url, method)  # type: ignore[no-any-return]

        return [get, get_sync]


def host(home: Path, asked: list[Any], *, use: bool = True, **config: Any) -> Tavern:
    permissions = {"capabilities": asked, "services": {"use": ["net"] if use else []}}
    manifest = {"version": "1", "permissions": permissions}
    return Tavern.open(config=config, home=home, plugins=[Plugin(Fetcher(), name="desk", manifest=manifest)])


def kind(result: ToolResult) -> str:
    return "" if result.error is None else result.error.kind


def test_a_plugin_fetches_what_it_was_granted_and_nothing_else(tmp_path: Path, site: Web) -> None:
    site.answers["/a"] = http("海".encode(), Content_Type="text/plain; charset=utf-8", Set_Cookie="a=b", X_Own="1")
    with host(tmp_path, [{"name": "network", "scope": [site.place]}]) as tavern, web() as other:
        for name in ("get", "get_sync"):
            result = tavern.invoke_sync(f"desk:{name}", {"url": site.url("/a#part")})
            assert result.ok, result.error
            assert (result.value["status"], result.value["text"], result.value["base64"]) == (200, "海", None)
            assert result.value["headers"]["x-own"] == "1"
            assert "set-cookie" not in result.value["headers"]
            refusal = tavern.invoke_sync(f"desk:{name}", {"url": other.url()})
            assert kind(refusal) == "POLICY_DENIED"
            assert "tavern plugins grant desk" in str(refusal.error and refusal.error.fix)
        assert not other.asked
    assert "host: " + site.place in site.asked[0].lower()


@pytest.mark.parametrize(
    ("capabilities", "use", "said"),
    [
        (["network"], False, "service:use:net"),
        ([], True, "read:web is not declared and granted"),
        (["network"], True, "is an address"),
    ],
)
def test_without_the_service_the_capability_or_a_scope_there_is_no_way(
    tmp_path: Path, site: Web, capabilities: list[str], use: bool, said: str
) -> None:
    with host(tmp_path, capabilities, use=use) as tavern:
        result = tavern.invoke_sync("desk:get", {"url": site.url()})
    assert kind(result) == "POLICY_DENIED"
    assert result.error is not None
    assert said in result.error.message
    assert not site.asked


class Replaces(Fetcher):
    """Brings a `net` of its own, and asks the one beneath it."""

    @hookimpl
    def tavern_register_services(self, ctx: Any) -> list[Service]:
        self.ctx = ctx
        return [Service("net", self)]

    async def fetch(
        self, url: str, method: str = "GET", headers: Any = None, body: Any = None, data: Any = None,
        timeout_ms: int = 30_000, max_bytes: int = 4_000_000, redirects: int = 5,
    ) -> dict[str, Any]:  # fmt: skip
        return {"url": url}

    def fetch_sync(
        self, url: str, method: str = "GET", headers: Any = None, body: Any = None, data: Any = None,
        timeout_ms: int = 30_000, max_bytes: int = 4_000_000, redirects: int = 5,
    ) -> dict[str, Any]:  # fmt: skip
        return {"url": url}


@pytest.mark.parametrize("granted", [False, True])
def test_an_override_reaches_no_further_through_the_original(tmp_path: Path, site: Web, granted: bool) -> None:
    site.answers["/a"] = http(b"beneath")
    capabilities = [{"name": "network", "scope": [site.place]}] if granted else []
    permissions = {"capabilities": capabilities, "services": {"override": ["net"]}}
    plugin = Plugin(Replaces(), manifest={"name": "desk", "version": "1", "permissions": permissions})
    with Tavern.open(home=tmp_path, plugins=[plugin]) as tavern:
        results = [tavern.invoke_sync(f"desk:{name}", {"url": site.url("/a")}) for name in ("get", "get_sync")]
        assert [result.value and result.value["text"] for result in results] == (
            ["beneath"] * 2 if granted else [None] * 2
        )
        for name in ("get", "get_sync"):
            refusal = tavern.invoke_sync(f"desk:{name}", {"url": "http://example.invalid/"})
            assert kind(refusal) == "POLICY_DENIED", refusal


def test_within_a_call_the_caller_must_allow_it_too(tmp_path: Path, site: Web) -> None:
    site.answers["/"] = http(b"x")
    with host(tmp_path, [{"name": "network", "scope": [site.place]}]) as tavern:

        def fetched(**context: Any) -> bool:
            return tavern.invoke_sync("desk:get_sync", {"url": site.url()}, context=CallContext(**context)).ok

        assert fetched(permissions={"network"})
        assert not fetched()
        assert not fetched(permissions={"network"}, scopes={"network": ["example.com"]})
        assert fetched(permissions={"network"}, scopes={"network": ["127.0.0.1:*"]})


@pytest.mark.parametrize(
    ("capabilities", "fine"),
    [(None, True), (["network"], True), (["read:*", "net*"], True), (["read:web"], False), ([], False)],
)
def test_within_a_call_the_agent_profile_must_allow_it_too(
    tmp_path: Path, site: Web, capabilities: list[str] | None, fine: bool
) -> None:
    site.answers["/"] = http(b"x")
    (tmp_path / "profiles").mkdir()
    profile = {
        "tool_ids_inventory": ["desk:get", "desk:get_sync"],
        **({} if capabilities is None else {"capabilities": capabilities}),
    }
    (tmp_path / "profiles" / "writer.json").write_text(json.dumps(profile))
    with host(
        tmp_path / "home", [{"name": "network", "scope": [site.place]}], profiles=[str(tmp_path / "profiles")]
    ) as tavern:
        for name in ("get", "get_sync"):
            result = tavern.invoke_sync(
                f"desk:{name}", {"url": site.url()}, context=CallContext(permissions={"network"}, profile="writer")
            )
            assert (result.ok, kind(result)) == (fine, "" if fine else "POLICY_DENIED")
    assert len(site.asked) == 2 * fine


def test_the_host_denies_it_for_everybody(tmp_path: Path, site: Web) -> None:
    with host(tmp_path, [{"name": "network", "scope": [site.place]}], capabilities={"deny": ["network"]}) as tavern:
        assert kind(tavern.invoke_sync("desk:get", {"url": site.url()})) == "POLICY_DENIED"


def test_reading_needs_read_web_and_anything_else_network(tmp_path: Path, site: Web) -> None:
    site.answers["/"] = http(b"x")
    reader = net(read=(site.place,))
    assert reader.fetch_sync(site.url())["status"] == 200
    assert reader.fetch_sync(site.url(), "HEAD")["bytes"] == 0
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        assert "network is not declared" in denied(reader, site.url(), method=method)
    assert len(site.asked) == 2


# What is allowed ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", [
    "http://127.0.0.1:{port}/", "http://127.1:{port}/", "http://2130706433:{port}/", "http://0x7f000001:{port}/", "http://0177.0.0.1:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/", "http://localhost:{port}/", "http://１２７.0.0.1:{port}/", "http://a@127.0.0.1:{port}/",
    "http://example.com:80@127.0.0.1:{port}/", "http://127.0.0.1:{port}\\@example.com/", "file:///etc/passwd", "gopher://127.0.0.1:{port}/",
])  # fmt: skip
def test_no_spelling_of_this_machine_is_public(site: Web, url: str) -> None:
    denied(net(read=None), url.format(port=site.port))
    assert not site.asked


def test_ipv6_is_judged_like_any_other_address() -> None:
    assert "is an address" in denied(net(read=None), "http://[::1]/")
    if not has_ipv6():
        return
    with web("::1") as server:
        server.answers["/"] = http(b"six")
        assert net(f"[::1]:{server.port}").fetch_sync(server.url())["text"] == "six"
        denied(net(f"127.0.0.1:{server.port}"), server.url())
        assert len(server.asked) == 1


@each_row("answers", [
    ["127.0.0.1"], ["93.184.216.34", "127.0.0.1"], ["127.0.0.1", "93.184.216.34"], ["::1"], ["::ffff:127.0.0.1"], ["169.254.169.254"], ["10.0.0.1"],
    ["fd00::1"], ["0.0.0.0"], ["100.100.100.200"], ["168.63.129.16"], ["::ffff:168.63.129.16"], ["64:ff9b::7f00:1"], ["fe80::1%lo"],
])  # fmt: skip
def test_a_name_with_any_private_address_is_not_connected_to(answers: list[str]) -> None:
    said = denied(net(read=None, resolve=addresses(rebound_example_com=[answers])), "http://rebound.example.com/")
    assert "which is not a public address" in said


def test_a_name_is_resolved_once_and_connected_to_where_it_was_judged(site: Web) -> None:
    """Rebinding: the second look-up would lead elsewhere; there is none."""
    site.answers["/"] = http(b"pinned")
    looked: list[str] = []
    answers = [["127.0.0.1"], ["10.0.0.1"], ["10.0.0.1"]]

    async def resolve(name: str, port: int) -> list[str]:
        looked.append(name)
        return answers.pop(0)

    fetcher = net(f"pinned.example.com:{site.port}", f"127.0.0.1:{site.port}", resolve=resolve)
    assert fetcher.fetch_sync(f"http://pinned.example.com:{site.port}/")["text"] == "pinned"
    assert looked == ["pinned.example.com"]
    assert f"host: pinned.example.com:{site.port}" in site.asked[0].lower()
    assert "10.0.0.1" in denied(fetcher, f"http://pinned.example.com:{site.port}/")
    assert len(site.asked) == 1


def test_the_next_allowed_address_is_tried_where_one_does_not_answer(site: Web) -> None:
    site.answers["/"] = http(b"second")
    with socket.socket() as closed:
        closed.bind(("127.0.0.2", 0))
    resolve = addresses(two_example_com=[["127.0.0.2", "127.0.0.1"]])
    fetcher = net(f"two.example.com:{site.port}", f"127.0.0.0/8:{site.port}", resolve=resolve)
    assert fetcher.fetch_sync(f"http://two.example.com:{site.port}/")["text"] == "second"


async def _nothing(name: str, port: int) -> list[str]:
    raise OSError(-2, "Name or service not known")


async def _none(name: str, port: int) -> list[str]:
    return []


@pytest.mark.parametrize("resolve", [_nothing, _none])
def test_a_name_without_an_address_is_a_plain_error(resolve: Any) -> None:
    error = refused(net(read=None, resolve=resolve), "http://nowhere.example.com/")
    assert (error.code, error.retryable) == ("UPSTREAM_ERROR", True)
    assert "no address" in error.message


def test_homographs_are_compared_as_dns_does(site: Web) -> None:
    fetcher = net(
        f"apple.example.com:{site.port}", f"127.0.0.1:{site.port}", resolve=addresses(apple_example_com=["127.0.0.1"])
    )
    site.answers["/"] = http(b"x")
    assert fetcher.fetch_sync(f"http://APPLE.example.com:{site.port}/")["status"] == 200
    denied(fetcher, f"http://аpple.example.com:{site.port}/")
    assert len(site.asked) == 1


# TLS ------------------------------------------------------------------------------------------------------------------------


def test_the_certificate_is_checked_against_the_name_and_not_the_address() -> None:
    with web(tls=True) as server:
        server.answers["/"] = http(b"safe")
        resolve = addresses(good_example_com=["127.0.0.1"], bad_example_com=["127.0.0.1"])
        scope = (f"*.example.com:{server.port}", f"127.0.0.1:{server.port}")
        fetcher = net(*scope, resolve=resolve, tls=True)
        assert fetcher.fetch_sync(f"https://good.example.com:{server.port}/")["text"] == "safe"
        assert server.names == ["good.example.com"]
        for url in (f"https://bad.example.com:{server.port}/", f"https://127.0.0.1:{server.port}/"):
            assert refused(fetcher, url).code == "UPSTREAM_ERROR"
        assert (
            refused(net(*scope, resolve=resolve), f"https://good.example.com:{server.port}/").code == "UPSTREAM_ERROR"
        )
        assert len(server.asked) == 1


def test_a_redirect_from_https_to_http_is_refused(site: Web) -> None:
    with web(tls=True) as server:
        server.answers["/"] = redirect(site.url())
        fetcher = net(
            f"good.example.com:{server.port}",
            "127.0.0.1:*",
            resolve=addresses(good_example_com=["127.0.0.1"]),
            tls=True,
        )
        assert "from https to http" in denied(fetcher, f"https://good.example.com:{server.port}/")
    assert not site.asked


def test_a_redirect_from_http_to_https_is_followed(site: Web) -> None:
    with web(tls=True) as server:
        server.answers["/"] = http(b"safe")
        site.answers["/"] = redirect(f"https://good.example.com:{server.port}/")
        fetcher = net(
            f"good.example.com:{server.port}",
            "127.0.0.1:*",
            resolve=addresses(good_example_com=["127.0.0.1"]),
            tls=True,
        )
        found = fetcher.fetch_sync(site.url())
    assert (found["text"], found["url"], found["redirects"]) == (
        "safe",
        f"https://good.example.com:{server.port}/",
        [site.url("/")],
    )


# Redirects ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", [
    "http://127.0.0.1:{other}/", "//127.0.0.1:{other}/", "http://localhost:{other}/", "http://2130706433:{other}/", "http://[::1]:{other}/",
    "http://169.254.169.254/latest/meta-data", "http://user@127.0.0.1:{port}/b", "http://rebound.example.com:{port}/", "file:///etc/passwd",
    "ftp://127.0.0.1:{port}/", "http://127.0.0.1:{port}\\@example.com/", "javascript:alert(1)", "\thttp://127.0.0.1:{other}/",
])  # fmt: skip
def test_each_redirect_is_judged_like_the_first_address(site: Web, to: str) -> None:
    with web() as other:
        site.answers["/"] = redirect("/chain")
        site.answers["/chain"] = redirect(to.format(other=other.port, port=site.port), "307 Temporary Redirect")
        resolve = addresses(rebound_example_com=["10.0.0.1"])
        fetcher = net(site.place, f"rebound.example.com:{site.port}", resolve=resolve)
        denied(fetcher, site.url("/"))
        assert len(site.asked) == 2
        assert not other.asked


def test_redirects_are_counted(site: Web) -> None:
    for n in range(12):
        site.answers[f"/{n}"] = redirect(f"/{n + 1}")
    site.answers["/12"] = http(b"end")
    fetcher = net(site.place)
    assert fetcher.fetch_sync(site.url("/7"))["redirects"] == [site.url(f"/{n}") for n in range(7, 12)]
    assert "the limit is 5" in refused(fetcher, site.url("/6")).message
    assert "the limit is 0" in refused(fetcher, site.url("/11"), redirects=0).message
    site.answers["/loop"] = redirect("/loop")
    assert "the limit is 10" in refused(fetcher, site.url("/loop"), redirects=10).message


@pytest.mark.parametrize(("status", "method", "then"), [
    ("301 x", "POST", "GET"), ("302 x", "POST", "GET"), ("303 x", "PUT", "GET"), ("303 x", "HEAD", "HEAD"), ("307 x", "POST", "POST"), ("308 x", "PUT", "PUT"),
])  # fmt: skip
def test_methods_and_bodies_follow_redirects_as_http_says(site: Web, status: str, method: str, then: str) -> None:
    site.answers["/a"] = redirect("/b", status)
    site.answers["/b"] = http()
    net(site.place).fetch_sync(site.url("/a"), method, body="" if method == "HEAD" else "data")
    assert site.asked[1].startswith(f"{then} /b ")
    assert site.bodies[1] == (b"data" if then not in ("GET", "HEAD") else b"")


def test_headers_that_may_be_secret_do_not_go_along_to_another_origin(site: Web) -> None:
    with web() as other:
        site.answers["/same"] = redirect("/a")
        site.answers["/a"] = redirect(other.url("/"))
        other.answers["/"] = http()
        headers = {"Authorization": "Bearer s3cret", "Cookie": "s3cret", "X-Api-Key": "s3cret", "Accept": "text/css"}
        net(site.place, other.place).fetch_sync(site.url("/same"), headers=headers)
        assert all("s3cret" in head for head in site.asked)
        assert "s3cret" not in other.asked[0]
        assert "accept: text/css" in other.asked[0].lower()


# Bounds ---------------------------------------------------------------------------------------------------------------------


def endless(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b"x" * 65536)


def lying(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * 100_000)


def endless_head(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        connection.sendall(b"X-More: " + b"x" * 60_000 + b"\r\n")


@functools.cache
def gzip_bomb() -> bytes:
    return gzip.compress(b"\0" * 50_000_000, 9)


# Packed when they are sent: every process that collects tests imports this.
BOMBS: dict[str, Callable[[], bytes]] = {
    "gzip": gzip_bomb,
    "x-gzip": gzip_bomb,
    "deflate": lambda: zlib.compress(b"\0" * 50_000_000, 9),
    "members": lambda: gzip.compress(b"\0" * 60_000) * 1000,
}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["endless", "lying", *BOMBS])
def test_an_answer_is_bounded_as_it_comes_and_as_it_is_unpacked(site: Web, what: str) -> None:
    if what in BOMBS:
        site.answers["/"] = http(BOMBS[what](), Content_Encoding=what if what != "members" else "gzip")
    else:
        site.answers["/"] = {"endless": endless, "lying": lying}[what]
    error = refused(net(site.place), site.url(), max_bytes=50_000)
    assert error.code == "OUTPUT_TOO_LARGE"
    assert "50,000 bytes" in error.message


def test_what_fits_is_unpacked(site: Web) -> None:
    site.answers["/"] = http(
        gzip.compress(b"one ") + gzip.compress(b"two"), Content_Encoding="gzip", Content_Type="text/plain"
    )
    assert net(site.place).fetch_sync(site.url(), max_bytes=100)["text"] == "one two"
    assert "accept-encoding: gzip" in site.asked[0].lower()


@pytest.mark.parametrize("answer", [
    http(b"not packed", Content_Encoding="gzip"), http(b"x", Content_Encoding="br"), http(b"x", Content_Encoding="gzip, gzip"),
    endless_head, b"", b"no http at all\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
])  # fmt: skip
def test_a_broken_answer_is_a_plain_error(site: Web, answer: Any) -> None:
    site.answers["/"] = answer
    assert refused(net(site.place), site.url()).code == "UPSTREAM_ERROR"


@pytest.mark.slow
def test_a_slow_answer_ends_with_the_time(site: Web) -> None:
    end = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while not end.wait(0.01):
            connection.sendall(b".")

    def silent(connection: socket.socket) -> None:
        end.wait(30)

    site.answers |= {"/drip": drip, "/silent": silent, "/chain": redirect("/silent")}
    try:
        for path in ("/drip", "/silent", "/chain"):
            error = refused(net(site.place), site.url(path), timeout_ms=200)
            assert (error.code, error.outcome) == ("TIMEOUT", "none")
        assert refused(net(site.place), site.url("/silent"), method="POST", timeout_ms=200).outcome == "unknown"
    finally:
        end.set()


def test_a_slow_resolver_ends_with_the_time() -> None:
    async def never(name: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    assert refused(net(read=None, resolve=never), "http://slow.example.com/", timeout_ms=50).code == "TIMEOUT"


# What is sent and told ------------------------------------------------------------------------------------------------------


def test_bodies_are_sent_as_text_or_json(site: Web) -> None:
    site.answers["/"] = http()
    fetcher = net(site.place)
    fetcher.fetch_sync(site.url(), "POST", body="海")
    fetcher.fetch_sync(site.url(), "put", data={"a": ["海", None]}, headers={"X-Own": "1"})
    assert site.bodies == ["海".encode(), json.dumps({"a": ["海", None]}, ensure_ascii=False).encode()]
    assert "content-type: application/json" in site.asked[1].lower()
    assert "x-own: 1" in site.asked[1].lower()


@pytest.mark.parametrize(("wrong", "said"), [
    ({"method": "TRACE"}, "not supported"), ({"method": "GET\r\nX: y"}, "not supported"), ({"method": 3}, "not supported"),
    ({"headers": {"Host": "x"}}, "connection's own"), ({"headers": {"content-length": "1"}}, "connection's own"),
    ({"headers": {"Transfer-Encoding": "chunked"}}, "connection's own"), ({"headers": {"Proxy-Authorization": "x"}}, "connection's own"),
    ({"headers": {"X": "a\r\nHost: b"}}, "cannot be sent"), ({"headers": {"X:": "a"}}, "cannot be sent"), ({"headers": {"": "a"}}, "cannot be sent"),
    ({"headers": {"X": "é"}}, "cannot be sent"), ({"headers": {"X": 1}}, "cannot be sent"),
    ({"body": "a", "data": 1}, "both given"), ({"body": b"a"}, "is a text"),
    ({"timeout_ms": 0}, "whole number"), ({"timeout_ms": 10**9}, "whole number"), ({"max_bytes": -1}, "whole number"), ({"redirects": 99}, "whole number"),
    ({"redirects": True}, "whole number"),
])  # fmt: skip
def test_what_cannot_be_sent_is_refused_before_anything_is(site: Web, wrong: dict[str, Any], said: str) -> None:
    error = refused(net(site.place), site.url(), **wrong)
    assert error.code == "TOOL_ERROR"
    assert said in error.message
    assert not site.asked


@pytest.mark.parametrize(("body", "content_type", "text"), [
    (b"\xff\x00", "image/png", None), (b"\xff\x00", "text/plain", None), ("é".encode("latin-1"), "text/plain; charset=latin-1", "é"),
    (b"x", "text/plain; charset=no-such", None), (b"{}", "application/ld+json", "{}"), (b"x", "", "x"), (b"", "text/css", ""),
])  # fmt: skip
def test_a_body_is_text_where_it_is_and_base64_elsewhere(
    site: Web, body: bytes, content_type: str, text: str | None
) -> None:
    site.answers["/"] = http(body, **({"Content_Type": content_type} if content_type else {}))
    found = net(site.place).fetch_sync(site.url())
    assert found["text"] == text
    assert found["base64"] == (None if text is not None else base64.b64encode(body).decode())
    assert found["bytes"] == len(body)


def test_any_status_is_an_answer(site: Web) -> None:
    site.answers["/"] = http(b"broken", "500 Internal Server Error", Content_Type="text/plain")
    assert net(site.place).fetch_sync(site.url())["status"] == 500
    assert net(site.place).fetch_sync(site.url("/missing"))["status"] == 404


def test_nothing_of_the_environment_or_of_another_request_is_used(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    with web() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url())
        monkeypatch.setenv("NETRC", str(Path(__file__)))
        site.answers["/"] = http(b"x", Set_Cookie="session=1; Path=/")
        fetcher = net(site.place)
        for _ in range(2):
            fetcher.fetch_sync(site.url())
        assert not proxy.asked
    assert len(site.asked) == 2
    assert all("cookie" not in head.lower() for head in site.asked)


def test_nothing_listens(site: Web) -> None:
    site.close()
    error = refused(net(site.place), site.url())
    assert (error.code, error.retryable) == ("UPSTREAM_ERROR", True)


def test_messages_hold_no_user_names_passwords_or_queries(site: Web) -> None:
    for url in (f"http://me:s3cret@{site.place}/", "http://10.0.0.1/?token=s3cret", "http://127.0.0.1:1/?s3cret"):
        assert "s3cret" not in str(refused(net(site.place, "127.0.0.1:1"), url).message)


def test_without_httpx2_the_error_says_what_to_install(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    error = refused(net(site.place), site.url())
    assert (error.code, error.hint) == ("TOOL_ERROR", "pip install 'tavern-core[http]'")


def test_fetch_sync_inside_a_loop_says_what_to_write_instead(site: Web) -> None:
    async def main() -> None:
        net(site.place).fetch_sync(site.url())

    with pytest.raises(CallError, match="would block"):
        asyncio.run(main())


def test_a_caller_that_is_cancelled_lets_go_of_the_connection(site: Web) -> None:
    reached, gone = threading.Event(), threading.Event()

    def hold(connection: socket.socket) -> None:
        reached.set()
        with contextlib.suppress(OSError):
            connection.settimeout(20)
            if connection.recv(1) == b"":
                gone.set()

    site.answers["/"] = hold

    async def main() -> None:
        task = asyncio.create_task(net(site.place).fetch(site.url()))
        await asyncio.to_thread(reached.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert gone.wait(20)


ISOLATED = """
from tavern_core import hookimpl, tool

@hookimpl
def tavern_register_tools(ctx):
    @tool(capabilities=["network"])
    async def get(url: str) -> dict:
        return await ctx.service("net").fetch(url)

    @tool(capabilities=["network"])
    def get_sync(url: str) -> dict:
        return ctx.service("net").fetch_sync(url)

    return [get, get_sync]
"""


@pytest.mark.slow
def test_a_plugin_in_a_process_of_its_own_has_the_net_by_this_way_alone(tmp_path: Path, site: Web) -> None:
    site.answers["/"] = http(b"x", Content_Type="text/plain")
    plugin = tmp_path / "plugins" / "desk"
    plugin.mkdir(parents=True)
    (plugin / "__init__.py").write_text(ISOLATED)
    (plugin / "plugin.yaml").write_text(
        f"""name: desk
version: "1"
isolation: process
tools: [{{id: get, implementation: {{type: python}}}}, {{id: get_sync, implementation: {{type: python}}}}]
permissions:
  services: {{use: [net]}}
  capabilities: [{{name: network, scope: ["{site.place}"]}}]
"""
    )
    config = {"plugins": {"roots": [str(tmp_path / "plugins")]}, "isolation": {"level": "best-effort"}}
    with Tavern.open(config=config, home=tmp_path / "home") as tavern, web() as other:
        tavern.grant("desk", all_requested=True)
        for name in ("get", "get_sync"):
            assert tavern.invoke_sync(f"desk:{name}", {"url": site.url()}).value["text"] == "x"
            assert kind(tavern.invoke_sync(f"desk:{name}", {"url": other.url()})) == "POLICY_DENIED"
        assert not other.asked


FETCH = {"nodes": [{"id": "f", "type": "core:HttpFetch", "inputValues": {"url": ""}}], "edges": []}


def fetched(tavern: Tavern, url: str, **context: Any) -> Any:
    """What the node `core:HttpFetch` gives for an address: its text, or its error."""
    document = json.loads(json.dumps(FETCH))
    document["nodes"][0]["inputValues"]["url"] = url
    result = tavern.workflows.run_sync(document, **({"context": CallContext(**context)} if context else {}))
    return result.outputs["f"]["text"] if result.ok else result.errors[0]


def test_the_operator_says_where_the_hosts_own_nodes_may_fetch_from(tmp_path: Path, site: Web) -> None:
    site.answers["/"] = http(b"x", Content_Type="text/plain")
    plain = {"plugins": {"roots": [], "entryPoints": False}}
    with Tavern.open(plain, home=tmp_path / "a") as tavern:
        denied = fetched(tavern, site.url())
        assert denied.kind == "POLICY_DENIED"
        assert denied.hint == f"tavern.yaml: net: {{allow: ['{site.place}']}}"
    with (
        Tavern.open({**plain, "net": {"allow": [site.place, "intranet.example:8443"]}}, home=tmp_path / "b") as tavern,
        web() as other,
    ):
        assert fetched(tavern, site.url()) == "x"
        assert fetched(tavern, other.url()).kind == "POLICY_DENIED"
        narrow = {
            "principal": "user:a",
            "permissions": frozenset({"read:web"}),
            "scopes": {"read:web": ("example.org",)},
        }
        assert fetched(tavern, site.url(), **narrow).kind == "POLICY_DENIED"
        assert not other.asked


@each_row("entry", ["http://x.org", "a b", "", "10.0.0.0/99", "x:99999"])
def test_an_entry_that_is_no_host_is_refused_with_its_place(tmp_path: Path, entry: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        Tavern.open({"net": {"allow": ["x.org", entry]}}, home=tmp_path)
    assert "net.allow" in str(caught.value)
