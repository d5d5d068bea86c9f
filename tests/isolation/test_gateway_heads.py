"""The head of a request to the gateway: one reading, or none."""

from __future__ import annotations

import h11
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tavern_core.contract.guards.addresses import BadUrl
from tavern_core.isolation.gateway.exchange import BadRequest, end_to_end, read_head
from tests.rows import each_row


def head(text: str) -> bytes:
    return text.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n"


@each_row(
    ("text", "method", "target", "path"),
    [
        ("GET http://example.org/a?b=c HTTP/1.1\nHost: x", "GET", "http://example.org", "/a?b=c"),
        ("GET http://example.org HTTP/1.0", "GET", "http://example.org", "/"),
        ("GET http://example.org?b HTTP/1.0", "GET", "http://example.org", "/?b"),
        ("GET http://EXAMPLE.org.:8080/%2e%2e/#f HTTP/1.0", "GET", "http://example.org:8080", "/%2e%2e/"),
        ("POST http://[::1]:80/ HTTP/1.0\nContent-Length: 3", "POST", "http://[::1]", "/"),
        ("CONNECT example.org:443 HTTP/1.1", "CONNECT", "https://example.org", ""),
        ("CONNECT example.org:443 HTTP/1.0\nContent-Length: 0", "CONNECT", "https://example.org", ""),
        ("CONNECT [2001:DB8::1]:22 HTTP/1.1", "CONNECT", "https://[2001:db8::1]:22", ""),
    ],
)
def test_a_request_for_a_proxy_is_read(text: str, method: str, target: str, path: str) -> None:
    found = read_head(head(text))
    assert (found.method, str(found.target), found.path) == (method, target, path)


@each_row(
    ("text", "why"),
    [
        ("GET / HTTP/1.1\nHost: example.org", "this is a proxy"),
        ("GET http://example.org/ HTTP/1.1", "no Host header, or two"),
        ("GET http://example.org/ HTTP/1.1\nHost: a\nHost: a", "no Host header, or two"),
        ("GET http://example.org/ HTTP/1.1 \nHost: a", "first line"),
        ("get http://example.org/ HTTP/1.1\nHost: a", "first line"),
        ("GET  http://example.org/ HTTP/1.1\nHost: a", "first line"),
        ("GET http://example.org/ä HTTP/1.1\nHost: a", "first line"),
        ("GET http://example.org/ HTTP/1.1\nHost: a\n b: c", "broken"),
        ("GET http://example.org/ HTTP/1.1\nHost: a\nb : c", "broken"),
        ("GET http://example.org/ HTTP/1.1\nHost: a\n: c", "broken"),
        ("GET http://example.org/ HTTP/1.1\nHost: a\nb", "broken"),
        ("GET http://example.org/ HTTP/1.1\nHost: a\nb: \x00", "broken"),
        ("GET http://example.org/ HTTP/1.1\nHost: a\nb: \x7f", "broken"),
        ("POST http://example.org/ HTTP/1.1\nHost: a\nContent-Length: 1\ncontent-length: 1", "Content-Length"),
        ("POST http://example.org/ HTTP/1.1\nHost: a\nContent-Length: 1_0", "Content-Length"),
        ("POST http://example.org/ HTTP/1.1\nHost: a\nContent-Length:", "Content-Length"),
        ("POST http://example.org/ HTTP/1.1\nHost: a\nContent-Length: 0x10", "Content-Length"),
        ("POST http://example.org/ HTTP/1.1\nHost: a\nContent-Length: 1\nTransfer-Encoding: chunked", "both"),
        ("POST http://example.org/ HTTP/1.1\nHost: a\nTransfer-Encoding: gzip, chunked", "not chunked"),
        (
            "POST http://example.org/ HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\nTransfer-Encoding: chunked",
            "not chunked",
        ),
        ("CONNECT example.org:443 HTTP/1.1\nTransfer-Encoding: chunked", "no body"),
    ],
)
def test_what_is_broken_or_meant_for_a_server_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        read_head(head(text))


@each_row(
    "place",
    [
        "example.org",
        "example.org:",
        "example.org:99999",
        "/:80",
        "a@b:80",
        "http://a:80",
        ":80",
        "a b:80",
        "[::1%lo]:80",
        "1:80",
    ],
)
def test_a_tunnel_leads_to_a_plain_host_and_port(place: str) -> None:
    with pytest.raises((BadUrl, BadRequest)):
        read_head(head(f"CONNECT {place} HTTP/1.1"))


def test_what_is_for_one_hop_does_not_go_on() -> None:
    found = read_head(
        head(
            "GET http://a.org/ HTTP/1.1\nHost: x\nConnection: keep-alive, X-Mine\nx-mine: 1\nKeep-Alive: 5\nTE: trailers\nUpgrade: h2c\nX: y\nContent-Length: 0"
        )
    )
    assert end_to_end(found.headers) == [(b"x", b"y"), (b"content-length", b"0")]


def test_a_program_cannot_have_the_length_of_its_body_dropped() -> None:
    found = read_head(head("POST http://a.org/ HTTP/1.1\nHost: x\nConnection: content-length, host\nContent-Length: 3"))
    assert end_to_end(found.headers) == [(b"content-length", b"3")]


PIECES = st.sampled_from(
    ["GET ", "POST ", "CONNECT ", "http://", "example.org", ":80", "/", " HTTP/1.1", " HTTP/1.0", "\r\n", "\n", "\r", "Host: a", "Content-Length: ", "3",
     "Transfer-Encoding: chunked", "X: y", " ", "\t", "\0", "@", "#", "?", "\\", "[::1]", "127.0.0.1", "0x7f.1", "\xff", ":", ","]
)  # fmt: skip


LINES = st.builds(
    "{} {} {}".format,
    st.sampled_from(["GET", "POST", "HEAD", "CONNECT", "get", "TRACE"]),
    st.sampled_from(
        [
            "http://example.org/",
            "http://[::1]:80/a?b",
            "example.org:443",
            "http://a.org:8080",
            "/",
            "http://a@b/",
            "http://0x7f.1/",
        ]
    ),
    st.sampled_from(["HTTP/1.1", "HTTP/1.0", "HTTP/2"]),
)
FIELDS = st.sampled_from(
    ["Host: a.org", "Host: b", "Content-Length: 3", "Content-Length: 03", "Content-Length: 3, 3", "Transfer-Encoding: chunked", "X: y", "X:", " folded",
     "X : y", "Connection: close, X", "X: \0", "X: \xff"]
)  # fmt: skip
HEADS = st.builds(lambda line, fields: "\r\n".join([line, *fields]), LINES, st.lists(FIELDS, max_size=4))


@pytest.mark.parametrize(
    "text",
    [
        "GET http://a.org/b?c HTTP/1.1\r\nHost: a.org",
        "POST http://a.org/ HTTP/1.1\r\nHost: a.org\r\nContent-Length: 3",
        "CONNECT a.org:1 HTTP/1.1\r\nHost: b",
    ],
)
def test_what_is_read_here_h11_reads_to_the_same_effect(text: str) -> None:
    assert is_read_as_h11_reads_it(text)


@pytest.mark.slow
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(HEADS | st.lists(PIECES, max_size=20).map("".join))
def test_whatever_comes_is_read_in_one_way_or_refused(text: str) -> None:
    event("read and compared" if is_read_as_h11_reads_it(text) else "refused")


def is_read_as_h11_reads_it(text: str) -> bool:
    """Whether it is read and compared at all: nothing that is sent on may mean something else to h11."""
    raw = text.encode("latin-1") + b"\r\n\r\n"
    try:
        found = read_head(raw)
    except (BadRequest, BadUrl):
        return False
    if found.is_tunnel and b"host" not in dict(found.headers):
        return False  # h11 asks for one, and here the target says it
    other = h11.Connection(h11.SERVER)
    other.receive_data(raw)
    request = other.next_event()
    assert isinstance(request, h11.Request)
    assert request.method == found.method.encode()
    assert [(name, value) for name, value in request.headers if name == b"content-length"] == [
        (n, v) for n, v in found.headers if n == b"content-length"
    ]
    assert b"\n" not in found.path.encode() and " " not in found.path
    return True
