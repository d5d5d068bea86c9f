"""Clients that mean harm: no token, another's session, another name, used and changed states, floods."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import httpx2
import pytest

from tavern_core import Tavern
from tavern_core.server.mcp import asgi_app
from tests.forked_programs import NETWORK, ForkedProgram, run_forked
from tests.mcp_server.shop import META, answer, client, open_shop, post
from tests.plain_http import NO_TLS
from tests.rows import each_row

ASKS = {"elicitation": {"form": {}}}
CALL = {"name": "shop__price", "arguments": {"item": "tea"}}
SMALL = {
    "mcp": {
        "bodyBytes": 20_000,
        "sessions": 3,
        "stateMs": 60_000,
        "issuer": "https://auth.test",
        "resource": "https://shop.test/mcp",
    }
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with open_shop(tmp_path_factory.mktemp("shop"), SMALL) as found:
        yield found


@pytest.fixture(scope="module")
def token(shop: Any) -> str:
    return str(shop[1].tokens.create("agent:known")[1])


@pytest.mark.slow
def test_nothing_is_answered_without_a_token_that_holds_here(shop: Any, token: str) -> None:
    url, tavern, plugin = shop
    elsewhere = tavern.tokens.create("agent:known", audience="another")[1]
    revoked, text = tavern.tokens.create("agent:known")
    over = tavern.tokens.create("agent:known", days=1e-9)[1]
    before = len(plugin.done)
    assert answer(post(url, text, "tools/call", CALL))["result"]["isError"] is False
    tavern.tokens.revoke(revoked.id)
    id_, secret = token[:16], token[17:]
    for shown in (
        None,
        "nonsense",
        elsewhere,
        text,
        over,
        f"{id_}_{secret[::-1]}",
        token + "x",
        token.upper(),
        "tvn_" + "0" * 12 + "_" + "a" * 43,
    ):
        for method, params in (("tools/call", CALL), ("tools/list", None)):
            refused = post(url, shown, method, params)
            assert refused.status_code == 401, shown
            assert "resource_metadata=" in refused.headers["www-authenticate"]
            assert ("error=" in refused.headers["www-authenticate"]) == (shown is not None)
    assert len(plugin.done) == before + 1
    answered = httpx2.get(url.replace("/mcp", "/.well-known/oauth-protected-resource/mcp"), verify=NO_TLS).json()
    assert (answered["resource"], answered["authorization_servers"]) == ("https://shop.test/mcp", ["https://auth.test"])


@pytest.mark.parametrize(("roles", "status"), [((), 200), (("viewer",), 403), (None, 401)])
def test_a_call_needs_a_token_of_a_caller(shop: Any, roles: tuple[str, ...] | None, status: int) -> None:
    url, tavern, plugin = shop
    token = "nonsense" if roles is None else tavern.tokens.create("agent:someone", roles=roles)[1]
    before = len(plugin.done)
    answered = post(url, token, "tools/call", CALL)
    assert (answered.status_code, len(plugin.done) - before) == (status, int(status == 200))
    assert ("www-authenticate" in answered.headers) == (status == 401)
    assert status != 403 or answered.json()["error"] == "insufficient_role"


@pytest.mark.slow
def test_a_request_with_two_tokens_is_refused_although_both_hold(shop: Any, token: str) -> None:
    other = shop[1].tokens.create("agent:other")[1]
    sent = [("authorization", f"Bearer {token}"), ("accept", "application/json, text/event-stream")]
    sent += [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/list")]
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}
    for second in (other, token):
        assert httpx2.post(shop[0], json=listing, headers=sent, verify=NO_TLS).status_code == 200
        both = [*sent, ("authorization", f"Bearer {second}")]
        assert httpx2.post(shop[0], json=listing, headers=both, verify=NO_TLS).status_code == 401


@each_row(
    ("headers", "status"),
    [
        ({"host": "evil.test"}, 421),
        ({"host": "127.0.0.1.evil.test:80"}, 421),
        ({"host": "localhost:80@evil.test"}, 421),
        ({"host": "localhost:"}, 421),
        ({"origin": "https://evil.test"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:3000"}, 200),
        ({"content-type": "text/plain"}, 400),
        ({"mcp-method": "tools/list"}, 400),
        ({"mcp-name": "shop__pay"}, 400),
        ({"mcp-protocol-version": "2099-01-01"}, 400),
    ],
)
def test_requests_under_another_name_or_from_another_page_are_refused(
    shop: Any, token: str, headers: dict[str, str], status: int
) -> None:
    assert post(shop[0], token, "tools/call", CALL, headers=headers).status_code == status


@each_row(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b"[" * 10_000,
        b'{"jsonrpc": "2.0", "id": 1}',
        b'{"id": 1e400}',
        b"9" * 15_000,
    ],
)
def test_what_is_no_request_is_refused_and_the_next_one_answered(shop: Any, token: str, body: bytes) -> None:
    headers = {
        "authorization": f"Bearer {token}", "content-type": "application/json", "mcp-protocol-version": "2026-07-28",
        "accept": "application/json, text/event-stream", "mcp-method": "tools/call",
    }  # fmt: skip
    assert 400 <= httpx2.post(shop[0], content=body, headers=headers, verify=NO_TLS).status_code < 500
    assert answer(post(shop[0], token, "tools/call", CALL))["result"]["isError"] is False


LINES: dict[str, tuple[bytes, int, Any]] = {
    "half a message": (b'{"jsonrpc": "2.0", "id": 1,', -32700, None),
    "no text": (b"\xff\xfe", -32700, None),
    "very deep": (b"[" * 100_000, -32700, None),
    "a batch": (b"[]", -32600, None),
    "a word": (b'"x"', -32600, None),
    "no version": (b'{"id": 7, "method": "tools/list"}', -32600, 7),
    "a list of parameters": (b'{"jsonrpc": "2.0", "id": "a", "method": "tools/list", "params": [1]}', -32600, "a"),
    "too long": (json.dumps({"jsonrpc": "2.0", "id": 5, "method": "x" * 300_000}).encode(), -32600, 5),
    "too long, of no known id": (b"x" * 400_000, -32600, None),
    "too long, with an id that is not JSON": (b'{"jsonrpc":"2.0","id":"\\q","method":"' + b"x" * 300_000, -32600, None),
    "too long, with a number that is not JSON": (
        b'{"jsonrpc":"2.0","id":007,"method":"' + b"x" * 300_000,
        -32600,
        None,
    ),
    "an id that is half a number": (b'{"jsonrpc": "2.0", "id": 1.5, "method": "tools/list"}', -32600, None),
    "an id that is null": (b'{"jsonrpc": "2.0", "id": null, "method": "tools/list"}', -32600, None),
    "half of a sign": (
        b'{"jsonrpc": "2.0", "id": 8, "method": "tools/call", "params": {"name": "x", "arguments": {"a": "\\ud800"}}}',
        -32600,
        8,
    ),
}


@pytest.mark.slow
def test_over_stdio_no_client_waits_for_the_answer_to_a_line_that_is_no_request(tmp_path: Path) -> None:
    command = ["-m", "tavern_core", "mcp", "--set", "mcp.bodyBytes=150000", "--home", tmp_path / "home"]
    with ForkedProgram(command, stdin=PIPE, stdout=PIPE, cwd=tmp_path, imports=NETWORK) as server:
        written = server.stdin.buffer
        for line, code, request_id in LINES.values():
            written.write(line + b"\n \n")
            written.flush()
            refused = json.loads(server.stdout.readline())
            assert (refused["error"]["code"], refused["id"]) == (code, request_id)
        written.write(json.dumps({"jsonrpc": "2.0", "method": "x", "params": [1]}).encode() + b"\n")
        written.write(
            json.dumps({"jsonrpc": "2.0", "id": 9, "method": "tools/list", "params": {"_meta": META}}).encode() + b"\n"
        )
        written.flush()
        assert json.loads(server.stdout.readline())["id"] == 9
        server.stdin.close()
        assert server.wait(30) == 0


@pytest.mark.slow
def test_what_is_piped_into_the_server_is_answered_before_it_ends(tmp_path: Path) -> None:
    asked = {
        "tools/list": {"_meta": META},
        "tools/call": {"_meta": META, "name": "system__get_current_time", "arguments": {}},
    }
    lines = [{"jsonrpc": "2.0", "id": method, "method": method, "params": params} for method, params in asked.items()]
    of_others: list[Any] = [1, "x", ["tools/list"], None]  # requests that are not there, or are over
    taken_back = [
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": i}} for i in of_others
    ]
    command = ["-m", "tavern_core", "mcp", "--home", tmp_path / "home"]
    given = "".join(json.dumps(line) + "\n" for line in (*lines, *taken_back))
    done = run_forked(command, given=given, cwd=tmp_path, imports=NETWORK)
    assert done.returncode == 0, done.stderr
    answers = {line["id"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert answers.keys() == asked.keys() and all("result" in line for line in answers.values())


ASKING = """
import asyncio
from tavern_core import Plugin, Tavern, ToolContext, tool
from tavern_core.server.mcp import serve_stdio

@tool
async def order(ctx: ToolContext) -> str:
    try:
        return str(await ctx.ask("How many?", {"type": "integer"}))
    except Exception as error:
        return str(error)

limits = {"mcp": {"bodyBytes": 150_000}}
with Tavern.open(limits, plugins=[Plugin([order], name="shop")], home="home") as host:
    asyncio.run(serve_stdio(host, host.tokens.create("agent:a")[0]))
"""


@contextmanager
def asked(tmp_path: Path) -> Iterator[tuple[ForkedProgram, Callable[..., None], Any]]:
    """A server over stdio whose tool has asked its client something: the server, what sends it a message, the id of the question."""
    knows = {"elicitation": {}}
    begin = {"protocolVersion": "2025-11-25", "capabilities": knows, "clientInfo": {"name": "x", "version": "1"}}
    with ForkedProgram(["-c", ASKING], stdin=PIPE, stdout=PIPE, cwd=tmp_path, imports=NETWORK) as server:
        answers = server.stdout

        def send(**message: Any) -> None:
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            server.stdin.flush()

        send(id=1, method="initialize", params=begin)
        assert json.loads(answers.readline())["id"] == 1
        send(method="notifications/initialized")
        send(id=2, method="tools/call", params={"name": "shop__order", "arguments": {}})
        yield server, send, json.loads(answers.readline())["id"]


@pytest.mark.slow
@pytest.mark.parametrize("result", ["three", {"action": "accept", "content": {"value": "3" * 300_000}}])
def test_a_call_goes_on_after_an_answer_of_its_client_that_cannot_be_read(tmp_path: Path, result: Any) -> None:
    with asked(tmp_path) as (server, send, question):
        send(id=question, result=result)
        called = json.loads(server.stdout.readline())
        assert called["id"] == 2 and "the client did not answer" in called["result"]["content"][0]["text"]
        server.stdin.close()
        assert server.wait(30) == 0


@pytest.mark.slow
def test_a_client_that_goes_away_during_a_call_and_waits_no_longer_leaves_a_closed_host(tmp_path: Path) -> None:
    with asked(tmp_path) as (server, _, _):
        server.stdin.close()
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 128 + signal.SIGTERM
    with Tavern.open({}, home=tmp_path / "home") as host:
        (ended,) = host.logs.records("TOOL_RESULT")
        assert ended.data["error"]["kind"] == "CANCELLED"


def test_a_huge_body_is_refused_before_it_is_read(shop: Any, token: str) -> None:
    call = {**CALL, "arguments": {"item": "x" * 100_000}}
    assert post(shop[0], token, "tools/call", call).status_code == 413


def round_of(shop: Any, token: str, **changes: Any) -> dict[str, Any]:
    """Call the tool that asks, with these further members; what it answers."""
    call = {"name": "shop__order", "arguments": {"item": "tea"}, **changes}
    return answer(post(shop[0], token, "tools/call", call, capabilities=ASKS))


@pytest.mark.slow
def test_a_state_works_once_for_one_call_of_one_caller_and_not_for_ever(shop: Any, token: str) -> None:
    other = shop[1].tokens.create("agent:other")[1]
    given = {"inputResponses": {"order": {"action": "accept", "content": {"count": 2}}}}
    state = round_of(shop, token)["result"]["requestState"]
    wrong = state[:-2] + ("AA" if state[-2:] != "AA" else "BB")
    for refused in (
        round_of(shop, token, requestState=wrong, **given),
        round_of(shop, token, requestState="nonsense", **given),
        round_of(shop, other, requestState=state, **given),
        round_of(shop, token, requestState=state, arguments={"item": "coffee"}, **given),
    ):
        assert refused["error"]["code"] == -32602
    assert round_of(shop, token, requestState=state, **given)["result"]["content"][0]["text"] == "ordered 2 of tea"
    assert round_of(shop, token, requestState=state, **given)["error"]["code"] == -32602


@pytest.mark.slow
def test_a_state_expires_and_is_that_of_one_state_folder(tmp_path: Path) -> None:
    with open_shop(tmp_path, {"mcp": {"stateMs": 1}}) as found:
        token = found[1].tokens.create("agent:late")[1]
        state = round_of(found, token)["result"]["requestState"]
        for _ in range(5):  # each takes longer than the state holds
            post(found[0], token, "tools/list")
        assert round_of(found, token, requestState=state)["error"]["code"] == -32602
    (tmp_path / "second").mkdir()
    with open_shop(tmp_path / "second") as found:
        token = found[1].tokens.create("agent:late")[1]
        assert round_of(found, token, requestState=state)["error"]["code"] == -32602


@pytest.mark.slow
def test_nobody_approves_for_another_or_by_a_state_that_was_meant_for_something_else(tmp_path: Path) -> None:
    with open_shop(tmp_path) as found:
        url, tavern, plugin = found
        caller, approver = tavern.tokens.create("agent:x")[1], tavern.tokens.create("agent:y", approver="user:ann")[1]
        call = {"name": "shop__pay", "arguments": {"amount": 1}}
        yes = {"inputResponses": {"approval": {"action": "accept", "content": {"approve": True}}}}
        asked = answer(post(url, caller, "tools/call", call, capabilities=ASKS))["result"]
        for who in (
            caller,
            approver,
        ):  # without a state nothing is approved, and an approver's word is for its own calls
            answered = answer(post(url, who, "tools/call", {**call, **yes}, capabilities=ASKS))
            assert answered["result"]["resultType"] == "input_required"
        assert answer(post(url, approver, "tools/call", {**call, **yes, "requestState": asked["requestState"]}))[
            "error"
        ]
        assert plugin.done == []


@pytest.mark.slow
def test_a_session_is_its_token_s_alone(shop: Any, token: str) -> None:
    url, tavern, _ = shop
    other = tavern.tokens.create("agent:thief")[1]
    headers = {
        "authorization": f"Bearer {token}",
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
    }
    begin = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
    }  # fmt: skip
    with httpx2.Client(verify=NO_TLS) as http:
        begun = http.post(url, json=begin, headers=headers)
        session = {"mcp-session-id": begun.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        thief = {**headers, **session, "authorization": f"Bearer {other}"}
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        assert http.post(url, json=listing, headers=thief).status_code == 404
        assert http.delete(url, headers=thief).status_code == 404
        events = http.get(url, headers={**thief, "accept": "text/event-stream", "last-event-id": "x-1"})
        assert events.status_code == 404
        assert http.post(url, json=listing, headers={**headers, **session}).status_code == 200
        flood = [http.post(url, json=begin, headers=headers).status_code for _ in range(5)]
        assert flood[-1] == 503 and answer(post(url, token, "tools/call", CALL))["result"]["isError"] is False
        http.delete(url, headers={**headers, **session})


@pytest.mark.slow
def test_a_caller_with_many_sessions_gives_way_to_one_with_fewer(shop: Any, token: str) -> None:
    url, tavern, _ = shop
    begin = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    with httpx2.Client(timeout=30, verify=NO_TLS) as http:

        def asked(text: str, method: str, params: dict[str, Any], **headers: str) -> httpx2.Response:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            headers |= {"authorization": f"Bearer {text}", "accept": "application/json, text/event-stream"}
            return http.post(url, json=body, headers=headers)

        flood = [asked(token, "initialize", begin) for _ in range(5)]
        assert flood[-1].status_code == 503
        names = [tavern.tokens.create("agent:modest")[1] for _ in range(2)]  # of one caller
        begun = asked(names[0], "initialize", begin)
        session = {"mcp-session-id": begun.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        assert asked(names[0], "tools/list", {}, **session).status_code == 200
        assert [asked(text, "initialize", begin).status_code for text in (names[1], token)] == [503, 503]
        other = tavern.tokens.create("agent:third")[1]
        assert asked(other, "initialize", begin).status_code == 200
        assert asked(names[0], "tools/list", {}, **session).status_code == 200


def test_connections_that_are_cut_leave_the_server_well(shop: Any, token: str) -> None:
    url, _, plugin = shop
    port = httpx2.URL(url).port
    body = json.dumps(
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"_meta": META, "name": "shop__wait", "arguments": {}},
        }
    )
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        "Accept: application/json, text/event-stream\r\nMcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\n"
        f"Mcp-Name: shop__wait\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    for sent in (head[:40], head, head + body[:20]):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(sent.encode())
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall((head + body).encode())
        assert plugin.started.wait(20)
    assert plugin.cancelled.wait(20)
    assert answer(post(url, token, "tools/call", CALL))["result"]["isError"] is False


@pytest.mark.anyio
@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
@pytest.mark.parametrize("begun", [b"", b'{"jsonrpc": "2.0", '])
async def test_a_client_that_goes_away_within_its_request_is_no_failure_of_the_server(
    version: str, begun: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    messages = iter([{"type": "http.request", "body": begun, "more_body": True}, {"type": "http.disconnect"}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    async with Tavern.open(home=tmp_path / "home") as tavern:
        headers = {
            "host": "localhost",
            "authorization": f"Bearer {tavern.tokens.create('agent:x')[1]}",
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            "mcp-protocol-version": version,
            "mcp-method": "tools/call",
        }
        lines = [(name.encode(), value.encode()) for name, value in headers.items()]
        app = asgi_app(tavern)
        await app(
            {"type": "http", "method": "POST", "path": "/mcp", "query_string": b"", "headers": lines}, receive, send
        )
        await app.close()
    assert sent == []
    assert [record.message for record in caplog.records] == []


@pytest.mark.anyio
async def test_a_session_ends_although_the_client_that_ends_it_goes_at_once(tmp_path: Path) -> None:
    async def gone() -> Any:
        return {"type": "http.disconnect"}

    async def unheard(message: Any) -> None:
        pass

    begin = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
    }  # fmt: skip
    async with Tavern.open(home=tmp_path / "home") as tavern:
        app = asgi_app(tavern)
        headers = {
            "authorization": f"Bearer {tavern.tokens.create('agent:x')[1]}",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2025-11-25",
        }
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app), base_url="http://localhost", headers=headers
        ) as http:
            headers["mcp-session-id"] = (await http.post("/mcp", json=begin)).headers["mcp-session-id"]
            lines = [(name.encode(), value.encode()) for name, value in {"host": "localhost", **headers}.items()]
            await app(
                {"type": "http", "method": "DELETE", "path": "/mcp", "query_string": b"", "headers": lines},
                gone,
                unheard,
            )
            asked = await http.post("/mcp", json={"jsonrpc": "2.0", "id": 2, "method": "ping"}, headers=headers)
            assert asked.status_code == 404
        await app.close()


PROFILES: dict[str, tuple[str, str]] = {
    "not there any more": ("", "the profile 'work' cannot be used"),
    "no JSON": ("{", "the profile 'work' cannot be used"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", PROFILES)
def test_a_profile_that_became_unusable_is_one_clear_error_without_paths(tmp_path: Path, case: str) -> None:
    written, says = PROFILES[case]
    profile = tmp_path / "profiles" / "work.json"
    profile.parent.mkdir()
    profile.write_text('{"tool_ids_inventory": ["shop:price"]}')
    with open_shop(tmp_path, {"profiles": [str(profile.parent)]}) as (url, tavern, _):
        text = tavern.tokens.create("agent:x", profile="work")[1]
        assert len(answer(post(url, text, "tools/list"))["result"]["tools"]) == 1
        profile.write_text(written) if written else profile.unlink()
        for method, params in (("tools/list", {}), ("tools/call", CALL), ("prompts/list", {})):
            error = answer(post(url, text, method, params))["error"]
            assert error["code"] == -32603 and says in error["message"] and str(tmp_path) not in error["message"]


@pytest.mark.slow
def test_the_token_goes_no_further_than_the_door(tmp_path: Path) -> None:
    with open_shop(tmp_path) as (url, tavern, plugin):
        token = tavern.tokens.create("agent:careful")[1]

        async def main() -> None:
            async with client(url, token, "legacy") as session:
                await session.call_tool("shop__price", {"item": "tea"})

        asyncio.run(main())
        seen = repr(plugin.done)
    secret = token.split("_", 2)[2]  # it may hold `_` itself
    assert seen and secret not in seen
    for path in (tmp_path / "home").rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_server_whose_state_cannot_be_read_at_its_start_serves_when_it_is_repaired(tmp_path: Path) -> None:
    home, state = tmp_path / "home", tmp_path / "home" / "state.sqlite"
    with Tavern.open(home=home) as tavern:
        _, text = tavern.tokens.create("agent:x")
    kept = state.read_bytes()
    state.unlink()
    state.mkdir()
    asked: asyncio.Queue[Any] = asyncio.Queue()
    done: asyncio.Queue[Any] = asyncio.Queue()
    headers = {"authorization": f"Bearer {text}", "accept": "application/json, text/event-stream"}
    async with Tavern.open(home=home) as tavern:
        app = asgi_app(tavern)
        living = asyncio.ensure_future(app({"type": "lifespan"}, asked.get, done.put))
        asked.put_nowait({"type": "lifespan.startup"})
        assert (await done.get())["type"] == "lifespan.startup.complete"
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
            answers = []
            for _ in range(2):
                answers.append(await client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "ping"}))
                if state.is_dir():
                    state.rmdir()
                    state.write_bytes(kept)
        asked.put_nowait({"type": "lifespan.shutdown"})
        await living
    assert answers[0].json() == {"error": "temporarily_unavailable"}
    assert "error" in answers[1].json() and answers[1].status_code == 400  # the library asks for `initialize` first
