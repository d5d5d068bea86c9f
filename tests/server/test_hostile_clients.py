"""Clients that mean harm: other names and pages, bodies that are none, floods, connections that never say anything."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from httpx2.websockets import WebSocketDisconnect, WebSocketUpgradeError

from tests.rows import each_row
from tests.server.desk import Served, served

NAMES = [
    ({"host": "evil.test"}, 421),
    ({"host": "127.0.0.1.evil.test:80"}, 421),
    ({"host": "localhost:80@evil.test"}, 421),
    ({"host": "localhost:"}, 421),
    ({"host": "tavern.example.com"}, 200),
    ({"host": "Tavern.Example.COM"}, 200),
    ({"host": "LOCALHOST:80"}, 200),
    ({"host": "tavern.example.com:443"}, 421),
    ({"origin": "https://evil.test"}, 403),
    ({"origin": "null"}, 403),
    ({"origin": "http://localhost.evil.test"}, 403),
    ({"origin": "http://localhost:3000"}, 200),
    ({"origin": "https://app.example.com"}, 200),
]
INVOKE = "/api/tools/desk:echo/invoke"
UPGRADE = (
    "GET /ws HTTP/1.1",
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = {"bodyBytes": 20_000, "hosts": ["tavern.Example.com"], "origins": ["https://app.example.com"]}
    with served(tmp_path_factory.mktemp("desk"), settings) as found:
        yield found


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that waits 0.3 s for a client. Requests do not share connections: one could be closed as the next is sent."""
    with served(tmp_path_factory.mktemp("impatient"), {"clientMs": 300}, keep_alive=False) as found:
        yield found


@pytest.fixture(scope="module")
def token(desk: Served) -> str:
    return desk.token("agent:known")


def is_well(desk: Served, token: str) -> bool:
    """Whether the server still does its work."""
    return bool(desk.call(token, "desk:echo", text="well").json()["value"] == "well")


@each_row(("headers", "status"), NAMES)
@each_row("path", ["/healthz", "/api/tools", "/api/nothing"])
def test_requests_under_another_name_or_from_another_page_are_refused(
    desk: Served, token: str, path: str, headers: dict[str, str], status: int
) -> None:
    answer = desk.send("GET", path, token, **headers)
    assert answer.status_code == (404 if path == "/api/nothing" and status == 200 else status)
    if status != 200:
        assert answer.json()["fix"].startswith("add the ")
        assert "access-control-allow-origin" not in answer.headers


@each_row(("headers", "status"), [(headers, status) for headers, status in NAMES if status != 200])
def test_a_websocket_from_another_page_does_not_begin(
    desk: Served, token: str, headers: dict[str, str], status: int
) -> None:
    with (
        pytest.raises(WebSocketUpgradeError) as refused,
        desk.socket(None, headers={"authorization": f"Bearer {token}", **headers}),
    ):
        pass
    assert refused.value.response.status_code == status


@pytest.mark.slow
def test_mcp_checks_requests_in_the_same_way(desk: Served, token: str) -> None:
    for headers, status in NAMES:
        answer = desk.send("POST", "/mcp", token, b"{}", **headers)
        assert answer.status_code == (status if status != 200 else 400), headers
    assert desk.send("POST", "/mcp", None, b"{}").status_code == 401
    assert desk.send("POST", "/mcp", desk.token("user:v", roles=["viewer"]), b"{}").status_code == 403


@each_row(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 422),
        (b"null", 422),
        (b'"x"', 422),
        (b"\xff\xfe", 400),
        (b"[" * 10_000, 400),
        (b'{"arguments": {"text": "a"}, "arguments": {"text": "b"}}', 400),
        (b'{"arguments": {"text": 1e400}}', 400),
        (b'{"arguments": {"text": NaN}}', 400),
        (b'{"arguments": {"text": "\\ud800"}}', 400),
        (b'{"arguments": []}', 422),
        (b'{"arguments": {"text": 1}}', 422),
        (b'{"purpose": 3}', 422),
        (b'{"idempotencyKey": ""}', 422),
        (b'{"tool": "desk:pay"}', 422),
        (b'{"arguments": {"text": "' + b"x" * 30_000 + b'"}}', 413),
    ],
)
def test_a_body_that_cannot_be_used_is_refused_with_its_place_and_nothing_is_called(
    desk: Served, token: str, body: bytes, status: int
) -> None:
    before = len(desk.desk.done)
    refused = desk.send("POST", INVOKE, token, body)
    assert refused.status_code == status
    problem = refused.json()
    assert problem["status"] == status and problem["code"] in ("USAGE", "INPUT_SCHEMA_INVALID") and problem["fix"]
    assert "Traceback" not in refused.text and ".py" not in refused.text
    assert len(desk.desk.done) == before
    assert is_well(desk, token)


@pytest.mark.slow
def test_only_json_is_taken(desk: Served, token: str) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert desk.send("POST", INVOKE, token, b'{"arguments": {"text": "x"}}', content_type=kind).status_code == 415
    kind = "Application/JSON; charset=utf-8"
    assert desk.send("POST", INVOKE, token, b'{"arguments": {"text": "x"}}', content_type=kind).status_code == 200


def test_a_body_in_pieces_is_not_read_beyond_the_limit(desk: Served, token: str) -> None:
    lines = (f"POST {INVOKE} HTTP/1.1", f"Host: localhost:{desk.port}", f"Authorization: Bearer {token}",
             "Content-Type: application/json", "Transfer-Encoding: chunked", "")  # fmt: skip
    with desk.raw(
        *lines, body=b"4000\r\n" + b" " * 0x4000 + b"\r\n" + b"4000\r\n" + b" " * 0x4000 + b"\r\n"
    ) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
    assert is_well(desk, token)


@each_row(
    "lines",
    [
        ("GET /api/tools HTTP/1.1", "Host: localhost", f"X-Large: {'x' * 1_000_000}", ""),
        ("GET /api/tools HTTP/1.1", "Host: localhost", *(f"X-{n}: {'x' * 90}" for n in range(10_000)), ""),
        (f"GET /{'x' * 1_000_000} HTTP/1.1", "Host: localhost", ""),
        ("GET /api/tools HTTP/1.1", "Host: localhost", "Host: evil.test", ""),
        ("GET /api/tools HTTP/1.1", ""),
        ("nonsense", ""),
        ("\x16\x03\x01\x02\x00\x01\x00", ""),
    ],
    ids=["one large header", "many headers", "a long address", "two hosts", "no host", "nonsense", "TLS"],
)
def test_a_head_that_is_no_request_ends_the_connection(desk: Served, token: str, lines: tuple[str, ...]) -> None:
    with desk.raw() as connection:
        received = b""
        try:
            connection.sendall("".join(f"{line}\r\n" for line in lines).encode())
            while piece := connection.recv(10_000):
                received += piece
        except (ConnectionResetError, BrokenPipeError):
            pass
    assert received == b"" or received.startswith((b"HTTP/1.1 400", b"HTTP/1.1 421", b"HTTP/1.1 431"))
    assert is_well(desk, token)


@pytest.mark.slow
@pytest.mark.parametrize(
    "begun",
    ["", "G", "GET /healthz HTTP/1.1\r\nHost: localhost\r\n", "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET"],
    ids=["nothing", "a letter", "half a head", "a request and a part of the next"],
)
def test_a_connection_that_stays_half_open_is_closed(impatient: Served, begun: str) -> None:
    with impatient.raw() as connection:
        connection.sendall(begun.encode())
        received = b""
        try:
            while piece := connection.recv(10_000):
                received += piece
        except ConnectionResetError:
            pass
    assert received.count(b"HTTP/1.1") == begun.count("\r\n\r\n")


@pytest.mark.slow
def test_a_body_that_does_not_come_is_not_waited_for(impatient: Served) -> None:
    token = impatient.token("agent:known")
    lines = (f"POST {INVOKE} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}",
             "Content-Type: application/json", "Content-Length: 100", "")  # fmt: skip
    with impatient.raw(*lines, body=b"{") as connection:
        received = b""
        while piece := connection.recv(10_000):
            received += piece
        assert received.startswith(b"HTTP/1.1 408")


@pytest.mark.slow
def test_an_idle_stream_is_not_a_request_that_is_late(impatient: Served) -> None:
    token = impatient.token("agent:known")
    with impatient.socket(token) as seen:
        with impatient.raw() as connection:
            assert connection.recv(1) == b""  # one that never said anything was closed meanwhile
        assert is_well(impatient, token)
        assert seen.next()["type"] == "TOOL_CALLED"


@pytest.mark.parametrize("message", ["{}", b"\x00", "x" * 60_000])
def test_a_client_that_sends_messages_is_disconnected(desk: Served, token: str, message: Any) -> None:
    with desk.socket(token) as seen:
        (seen.connection.send_text if isinstance(message, str) else seen.connection.send_bytes)(message)
        with pytest.raises(WebSocketDisconnect) as closed:
            seen.next()
        assert closed.value.code == 1003
    assert is_well(desk, token)


def frame(first: int, payload: bytes, length: bytes = b"") -> bytes:
    """A frame of a client."""
    return bytes([first]) + (length or bytes([0x80 | len(payload)])) + b"\x00\x00\x00\x00" + payload


@each_row(
    "sent",
    [
        frame(0x81, b"\xff\xfe"),
        frame(0x83, b""),
        frame(0xF1, b""),
        b"\x81\x01x",
        frame(0x82, b"", b"\xff\x7f\xff\xff\xff\xff\xff\xff\xff"),
        frame(0x82, b"x" * 70_000, b"\xff" + (70_000).to_bytes(8, "big")),
        frame(0x88, b"\x00"),
        b"\x00" * 100,
    ],
    ids=[
        "no UTF-8",
        "an unknown kind",
        "reserved bits",
        "no mask",
        "a huge length",
        "too large",
        "half a code",
        "zeros",
    ],
)
def test_frames_that_are_none_end_the_websocket(desk: Served, token: str, sent: bytes) -> None:
    with desk.raw(*UPGRADE, "Host: localhost", f"Authorization: Bearer {token}", "") as connection:
        assert connection.recv(12) == b"HTTP/1.1 101"
        try:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(10_000):
                pass
        except (ConnectionResetError, BrokenPipeError):
            pass
    assert is_well(desk, token)


@pytest.mark.slow
def test_pings_of_a_client_that_reads_nothing_do_not_fill_the_memory(impatient: Served) -> None:
    token = impatient.token("agent:known")
    with impatient.raw(*UPGRADE, "Host: localhost", f"Authorization: Bearer {token}", "") as connection:
        assert connection.recv(12) == b"HTTP/1.1 101"
        ping, sent = frame(0x89, b"x" * 125) * 1_000, 0
        with pytest.raises(ConnectionError):  # the server has stopped reading, and then closed
            while sent < 200_000_000:
                sent += connection.send(ping)
    assert is_well(impatient, token)


@pytest.mark.slow
def test_an_answer_that_nobody_reads_is_not_kept(impatient: Served) -> None:
    token = impatient.token("agent:known")
    many = f"GET /api/nodes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode() * 200
    with impatient.raw() as connection, pytest.raises(ConnectionError):  # the server has closed
        while True:
            connection.sendall(many)
    assert is_well(impatient, token)


@pytest.mark.slow
def test_connections_beyond_the_limit_are_refused_and_the_others_served(tmp_path: Path) -> None:
    with served(tmp_path, {"connections": 5}) as desk:
        assert desk.send("GET", "/healthz").status_code == 200
        held = [desk.raw() for _ in range(5)]
        refused = desk.raw("GET /healthz HTTP/1.1", "Host: localhost", "")
        assert refused.recv(100).startswith(b"HTTP/1.1 503")
        for connection in (*held, refused):
            connection.close()
        while desk.send("GET", "/healthz").status_code == 503:  # until the server has noticed
            pass


@each_row(
    ("tool", "arguments", "status", "code"),
    [
        ("desk:stock", {}, 403, "POLICY_DENIED"),
        ("desk:pay", {"amount": 3}, 409, "APPROVAL_REQUIRED"),
        ("desk:refuse", {}, 422, "TOOL_ERROR"),
        ("desk:crash", {}, 502, "UPSTREAM_ERROR"),
        ("desk:ech", {"text": "x"}, 404, "TOOL_NOT_FOUND"),
        ("desk:echo", {"txt": "x"}, 422, "INPUT_SCHEMA_INVALID"),
        ("%2e%2e%2fetc", {}, 404, "USAGE"),
        ("\u2028", {}, 404, "TOOL_NOT_FOUND"),
        ("x" * 10_000, {}, 404, "TOOL_NOT_FOUND"),
    ],
)
def test_a_call_that_fails_is_a_problem_with_the_code_of_the_call(
    desk: Served, token: str, tool: str, arguments: dict[str, Any], status: int, code: str
) -> None:
    refused = desk.call(token, tool, **arguments)
    problem = refused.json()
    assert (refused.status_code, problem["status"], problem["code"]) == (status, status, code)
    assert refused.headers["content-type"] == "application/problem+json"
    assert "Traceback" not in json.dumps(problem)


@pytest.mark.slow
def test_a_caller_over_its_rate_learns_when_to_come_back(tmp_path: Path) -> None:
    with served(tmp_path, limits={"tools": {"desk:echo": {"rate": "1/hour"}}}) as desk:
        token = desk.token()
        assert desk.call(token, "desk:echo", text="a").status_code == 200
        refused = desk.call(token, "desk:echo", text="b")
        assert (refused.status_code, refused.json()["code"]) == (429, "BUDGET_EXCEEDED")
        assert 3_000 < int(refused.headers["retry-after"]) <= 3_600


@pytest.mark.slow
def test_a_host_whose_state_is_damaged_is_not_ready_and_names_no_file(tmp_path: Path) -> None:
    with served(tmp_path) as desk:
        assert desk.send("GET", "/readyz").status_code == 200
        for path in (tmp_path / "home").glob("state.sqlite*"):
            path.write_bytes(b"no database" * 1_000)
        refused = desk.send("GET", "/readyz")
        assert (refused.status_code, refused.json()["code"]) == (503, "STATE_DAMAGED")
        assert str(tmp_path) not in refused.text
        assert desk.send("GET", "/healthz").status_code == 200


@pytest.mark.slow
def test_a_key_makes_a_call_once(desk: Served, token: str) -> None:
    before = len(desk.desk.done)
    body = {"arguments": {"text": "once"}, "purpose": "a test"}
    answers = [desk.send("POST", INVOKE, token, body, idempotency_key="k-1") for _ in range(3)]
    answers.append(desk.send("POST", INVOKE, token, {**body, "idempotencyKey": "k-1"}))
    assert {answer.json()["value"] for answer in answers} == {"once"}
    assert len(desk.desk.done) == before + 1
    other = desk.send("POST", INVOKE, token, {"arguments": {"text": "other"}}, idempotency_key="k-1")
    assert (other.status_code, other.json()["code"]) == (409, "IDEMPOTENCY_CONFLICT")
    two = desk.send("POST", INVOKE, token, {**body, "idempotencyKey": "k-2"}, idempotency_key="k-1")
    assert two.status_code == 400
    twice = [("idempotency-key", "k-1"), ("idempotency-key", "k-2")]
    both = desk.http.post(f"{desk.url}{INVOKE}", json=body, headers=[("authorization", f"Bearer {token}"), *twice])
    assert (both.status_code, both.json()["detail"]) == (400, "the request names different idempotency keys")
    none = desk.send("POST", INVOKE, token, body, idempotency_key="")
    assert (none.status_code, none.json()["detail"]) == (400, "the header Idempotency-Key is empty")
    assert len(desk.desk.done) == before + 1


def test_a_compressed_body_is_refused(desk: Served, token: str) -> None:
    body = gzip.compress(b'{"arguments": {"text": "a"}}')
    refused = desk.send("POST", INVOKE, token, body, content_encoding="gzip")
    assert (refused.status_code, refused.json()["detail"]) == (415, "the body of this request is not compressed")
    assert desk.send("POST", INVOKE, token, {"arguments": {"text": "a"}}, content_encoding="identity").is_success


def test_calls_are_on_the_record_with_their_caller_and_entry_point(desk: Served, token: str) -> None:
    answer = desk.send("POST", INVOKE, token, {"arguments": {"text": "noted"}, "purpose": "why not"})
    record = next(desk.tavern.logs.records("TOOL_CALLED", call_id=answer.json()["meta"]["callId"]))
    assert (record.data["door"], record.data["principal"], record.data["purpose"]) == ("http", "agent:known", "why not")
    spoken = "<|[REQUEST_TOOL]|>\ncommand:「始」desk:echo「末」\ntext:「始」said「末」\n<|[END_TOOL]|>"
    outcome = desk.send("POST", "/api/tam", token, {"text": spoken}).json()
    assert outcome["steps"][0]["result"]["value"] == "said", outcome


@pytest.mark.slow
def test_a_token_calls_with_its_own_permissions(desk: Served) -> None:
    assert desk.call(desk.token("agent:r", permissions=["read:fs"]), "desk:stock").json()["value"] == 7
    listed = {tool["id"]: tool for tool in desk.send("GET", "/api/tools", desk.token("agent:n")).json()}
    assert listed["desk:stock"]["lacks"]["missing"] == ["read:fs"]
