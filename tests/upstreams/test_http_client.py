"""The HTTP client of an upstream: one origin, judged addresses, bounded answers, and nothing from the environment."""

from __future__ import annotations

import asyncio
import functools
import gzip
import socket
import ssl
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

import httpx2
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from tavern_core.contract.exchange import exchange
from tavern_core.errors import OutputTooLarge, PolicyDenied, SettingsInvalid, TavernError, UpstreamError
from tavern_core.model.upstream_config import origin_entry
from tavern_core.upstreams.http_client import client
from tests.guards.web import CERTIFICATE, Web, addresses, http, redirect, self_signed, web
from tests.rows import each_row

pytestmark = pytest.mark.anyio

PEM = CERTIFICATE.read_text("ascii")


@pytest.fixture
def server() -> Iterator[Web]:
    with web() as opened:
        opened.answers["/"] = http(b"hello")
        yield opened


def reaching(url: str, **options: Any) -> httpx2.AsyncClient:
    return client(url, (origin_entry(url),), **options)


async def test_the_origin_is_reached_with_its_headers_and_a_base_path(server: Web) -> None:
    server.answers["/base/thing"] = http(b"there")
    async with reaching(server.url("/base"), headers={"X-Token": "secret"}) as http_client:
        assert (await http_client.get("/thing")).text == "there"
        assert "X-Token: secret" in server.asked[0] and f"host: {server.place}" in server.asked[0].lower()
        assert (await http_client.get(server.url("/base/thing"))).text == "there"


@pytest.mark.parametrize(
    "path", ["http://127.0.0.1:1/", "http://example.org/", "https://{}/", "http://localhost:{port}/"]
)
async def test_nothing_is_sent_to_another_origin(server: Web, path: str) -> None:
    async with reaching(server.url(), headers={"X-Token": "secret"}) as http_client:
        with pytest.raises(UpstreamError, match="which was granted; nothing was sent") as failed:
            await http_client.get(path.format(server.place, port=server.port))
        assert failed.value.outcome == "none"
    assert server.asked == []


@pytest.mark.parametrize(
    "to",
    [
        "http://example.org/",
        "//example.org/x",
        "https://127.0.0.1/",
        "http://user@127.0.0.1/",
        "ftp://x/",
        "http://[::",
    ],
)
async def test_a_redirect_to_elsewhere_names_both_origins(server: Web, to: str) -> None:
    server.answers["/"] = redirect(to)
    async with reaching(server.url()) as http_client:
        with pytest.raises(UpstreamError, match=r"redirects to .*, which was not granted") as failed:
            await http_client.get("/")
    assert server.place in failed.value.message
    assert len(server.asked) == 1


async def test_a_redirect_within_the_origin_is_an_answer(server: Web) -> None:
    server.answers["/"] = redirect("/other")
    async with reaching(server.url()) as http_client:
        answer = await http_client.get("/")
    assert (answer.status_code, answer.headers["location"], len(server.asked)) == (302, "/other", 1)


async def test_cookies_proxies_and_passwords_of_the_environment_are_not_used(
    server: Web, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ann password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    server.answers["/"] = http(b"hello", Set_Cookie="id=1")
    async with reaching(server.url()) as http_client:
        for _ in range(2):
            answer = await http_client.get("/")
            assert answer.text == "hello" and "set-cookie" not in answer.headers
    assert not any("cookie" in head.lower() or "authorization" in head.lower() for head in server.asked)


@functools.cache
def bomb() -> bytes:
    """Twenty million bytes, packed."""
    return gzip.compress(b"\0" * 20_000_000)


def endless_headers(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for number in range(100_000):
        connection.sendall(b"X-%d: %s\r\n" % (number, b"x" * 1000))


def endless_body(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b"x" * 65536)


def silent(connection: socket.socket) -> None:
    connection.recv(1)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (http(b"x" * 1_000_001), OutputTooLarge),
        (lambda connection: connection.sendall(http(bomb(), Content_Encoding="gzip")), OutputTooLarge),
        (lambda connection: connection.sendall(http(bomb() * 2, Content_Encoding="gzip")), OutputTooLarge),
        (http(b"no gzip", Content_Encoding="gzip"), UpstreamError),
        (http(zlib.compress(b"x"), Content_Encoding="br"), UpstreamError),
        (endless_body, OutputTooLarge),
        (endless_headers, httpx2.RemoteProtocolError),
        (b"garbage\r\n\r\n", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", httpx2.RemoteProtocolError),
        (b"", httpx2.RemoteProtocolError),
        (silent, httpx2.ReadTimeout),
    ],
)
async def test_an_answer_without_measure_is_an_error(server: Web, answer: Any, error: type[Exception]) -> None:
    server.answers["/"] = answer
    async with reaching(server.url(), max_bytes=1_000_000, timeout_s=0.5 if answer is silent else 30) as http_client:
        with pytest.raises(error):
            await http_client.get("/")


async def test_a_packed_answer_is_unpacked_piece_by_piece_while_others_go_on(server: Web) -> None:
    server.answers["/"] = http(bomb(), Content_Encoding="gzip")
    steps = 0

    async def count() -> None:
        nonlocal steps
        while True:
            await asyncio.sleep(0)
            steps += 1

    async with reaching(server.url()) as http_client:
        counting = asyncio.create_task(count())
        answer = await http_client.get("/")
        counting.cancel()
    assert len(answer.content) == 20_000_000 and "content-encoding" not in answer.headers
    assert steps >= len(bomb()) // 4096


async def test_a_stream_of_events_may_be_longer(server: Web) -> None:
    server.answers["/"] = http(b"data: x\n\n" * 20_000, Content_Type="text/event-stream")
    async with reaching(server.url(), max_bytes=100_000) as http_client, http_client.sse("/") as events:
        assert sum([1 async for _ in events]) == 20_000


async def test_a_name_is_looked_up_once_for_a_connection(server: Web) -> None:
    resolve = addresses(localhost=["127.0.0.1", "10.0.0.1"])
    async with reaching(f"http://localhost:{server.port}", resolve=resolve) as http_client:
        for _ in range(2):
            assert (await http_client.get("/")).text == "hello"
    assert f"host: localhost:{server.port}" in server.asked[0].lower()


async def test_an_address_that_does_not_answer_is_passed_over(server: Web) -> None:
    resolve = addresses(localhost=[["127.0.0.2", "127.0.0.1"]])
    async with reaching(f"http://localhost:{server.port}", resolve=resolve) as http_client:
        assert (await http_client.get("/")).text == "hello"


@pytest.mark.parametrize(
    ("url", "address", "is_reached"),
    [
        ("http://n8n:{port}", "127.0.0.1", True),
        ("http://n8n.internal:{port}", "127.0.0.1", True),
        ("http://localhost:{port}", "127.0.0.1", True),
        ("http://localhost:{port}", "::ffff:127.0.0.1", True),
        ("http://n8n.example.com:{port}", "127.0.0.1", False),
        ("http://n8n.example.com:{port}", "10.0.0.1", False),
        ("http://n8n:{port}", "169.254.169.254", False),
        ("http://n8n:{port}", "0.0.0.0", False),
        ("http://n8n:{port}", "224.0.0.1", False),
        ("https://n8n.example.com:{port}", "169.254.169.254", False),
        ("http://n8n:{port}", "::ffff:169.254.169.254", False),
        ("http://n8n:{port}", "64:ff9b::7f00:1", False),
    ],
)
async def test_a_private_address_is_reached_where_the_operator_meant_one(
    server: Web, url: str, address: str, is_reached: bool
) -> None:
    written = url.format(port=server.port)

    async def resolve(name: str, port: int) -> list[str]:
        return [str(ip_address(address))]

    async with reaching(written, resolve=resolve) as http_client:
        if is_reached:
            assert (await http_client.get("/")).text == "hello"
        else:
            with pytest.raises(PolicyDenied, match="which is not a public address"):
                await http_client.get("/")
    assert bool(server.asked) is is_reached


async def test_good_and_bad_addresses_of_one_name_are_all_refused(server: Web) -> None:
    resolve = addresses(n8n=[["127.0.0.1", "169.254.169.254"]])
    async with reaching(f"http://n8n:{server.port}", resolve=resolve) as http_client:
        with pytest.raises(PolicyDenied):
            await http_client.get("/")
    assert server.asked == []


@pytest.mark.parametrize("scope", [(), ("example.org:80",), ("127.0.0.1:1",), ("*",), None])
def test_an_address_that_is_not_in_the_grant_is_refused_before_anything_is_connected(server: Web, scope: Any) -> None:
    with pytest.raises(PolicyDenied, match="is not connected to"):
        client(server.url(), scope)


async def test_over_tls_the_certificate_shows_whose_host_a_private_address_is() -> None:
    with web(tls=True) as server:
        server.answers["/"] = http(b"hello")
        url = f"https://good.example.com:{server.port}"
        resolve = addresses(good_example_com=["127.0.0.1"], evil_example_com=["127.0.0.1"])
        async with reaching(url, resolve=resolve, certificate={"ca": PEM}) as http_client:
            assert (await http_client.get("/")).text == "hello"
        assert server.names == ["good.example.com"]
        evil = f"https://evil.example.com:{server.port}"
        for options in ({"url": url}, {"url": evil, "certificate": {"ca": PEM}}):
            async with reaching(**options, resolve=resolve) as http_client:
                with pytest.raises(UpstreamError, match="is not trusted: ") as error:
                    await http_client.get("/")
                assert "ca: {$file" in error.value.hint and error.value.outcome == "none"
        assert len(server.asked) == 1


@contextmanager
def wants_certificate(version: ssl.TLSVersion, *, says_why: bool) -> Iterator[int]:
    """A server, with one version of TLS, of clients with the certificate of the tests alone; its port.

    Args:
        says_why: it sends an alert to others; else it only ends the connection.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    context.load_verify_locations(CERTIFICATE)
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = context.maximum_version = version

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # the test is over
                return
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = context.wrap_bio(incoming, outgoing, server_side=True)
            with connection:
                request = b""
                while b"\r\n\r\n" not in request:
                    try:
                        request += tls.read(65536)
                    except ssl.SSLWantReadError:
                        connection.sendall(outgoing.read())
                        incoming.write(connection.recv(65536) or b"gone")
                    except ssl.SSLError:
                        connection.sendall(outgoing.read() if says_why else b"")
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(
                            65536
                        ):  # what the client sends meanwhile: else the alert would not arrive
                            pass
                        break
                else:
                    tls.write(http(b"known"))
                    connection.sendall(outgoing.read())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("says_why", [True, False])
async def test_a_client_certificate_is_shown_and_one_that_is_refused_is_one_clear_error(
    version: ssl.TLSVersion, says_why: bool
) -> None:
    with wants_certificate(version, says_why=says_why) as port:
        url, resolve = f"https://good.example.com:{port}", addresses(good_example_com=["127.0.0.1"])
        known = {"ca": PEM, "cert": PEM, "key": PEM}
        async with reaching(url, resolve=resolve, certificate=known) as http_client:
            assert (await http_client.get("/")).text == "known"
        other = self_signed()
        for certificate, says, repair in (
            ({}, "does not accept a connection without a client certificate", "write `certificate: {cert: {$file"),
            ({"cert": other, "key": other}, "does not accept the client certificate: ", "use one that is valid"),
        ):
            async with reaching(url, resolve=resolve, certificate={"ca": PEM, **certificate}) as http_client:
                with pytest.raises(UpstreamError) as error:
                    await exchange(http_client, "POST", "/")
            text = f"{error.value.message} {error.value.hint}"
            if says_why:
                assert says in text and repair in text and error.value.outcome == "none"
            else:  # what it means cannot be known
                assert "a server that wants another client certificate may do that" in text


@pytest.mark.parametrize(("alert", "says"), [(70, "protocol version"), (80, "internal error")])
async def test_an_alert_that_is_not_about_certificates_is_not_said_to_be(alert: int, says: str) -> None:
    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"\x15\x03\x03\x00\x02\x02" + bytes([alert]))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        async with reaching(f"https://127.0.0.1:{listener.getsockname()[1]}", certificate={"ca": PEM}) as http_client:
            with pytest.raises(UpstreamError, match="cannot be reached") as error:
                await exchange(http_client, "POST", "/")
    text = f"{error.value.message} {error.value.hint}"
    assert says in text.lower().replace("_", " ") and "certificate" not in text


async def test_a_server_that_is_not_there_is_not_said_to_want_a_certificate() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with reaching(f"https://127.0.0.1:{port}", certificate={"ca": PEM}) as http_client:
        with pytest.raises(UpstreamError, match="cannot be reached") as error:
            await exchange(http_client, "GET", "/")
    assert "certificate" not in error.value.message


@each_row(
    "certificate",
    [
        {"cert": "no pem"},
        {"cert": 5},
        {"crt": PEM},
        {"cert": "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----"},
        {"ca": "-----BEGIN x"},
    ],
)
def test_a_certificate_that_cannot_be_used_says_so_and_is_not_shown(certificate: Any) -> None:
    with pytest.raises(SettingsInvalid) as failed:
        reaching("https://good.example.com", certificate=certificate)
    assert "no pem" not in str(failed.value)


def test_a_key_with_a_passphrase_is_refused_and_no_one_is_asked_for_it() -> None:
    key = load_pem_private_key(CERTIFICATE.read_bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")).decode()
    certificate = PEM[PEM.index("-----BEGIN CERTIFICATE") :].partition("-----END CERTIFICATE-----")
    with pytest.raises(SettingsInvalid, match="needs a passphrase"):
        reaching("https://good.example.com", certificate={"cert": "".join(certificate[:2]), "key": locked})


@each_row("url", ["ftp://x/", "http://user:secret@x/", "http://0x7f.1/", "http://x\\y/", "x"])
def test_an_address_that_could_be_read_in_two_ways_is_refused(url: str) -> None:
    with pytest.raises(TavernError) as failed:
        client(url, ("x:80",))
    assert "secret" not in failed.value.message
