"""Streams of events: those of the 2025 era go on where they were lost, each for its own session, and all end with their token."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError
from mcp_types import JSONRPCResponse

from tavern_core import Tavern, tool
from tavern_core.server.mcp import asgi_app, changes, event_store
from tavern_core.server.mcp.event_store import RecentEvents, SessionEvents
from tavern_core.server.mcp.service import ListPages
from tests.mcp_server.serving import over_stdio
from tests.mcp_server.shop import META, answer, open_shop, subscribed
from tests.plain_http import NO_TLS
from tests.rows import each_row

JSON = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


class Session:
    """A session of the 2025 era, on the wire."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.headers = {**JSON, "authorization": f"Bearer {token}"}
        client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        begun = self.post("initialize", client, id_=0)
        self.server = answer(begun)["result"]
        self.headers |= {"mcp-session-id": begun.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        self.post("notifications/initialized", {}, id_=None)

    def post(self, method: str, params: dict[str, Any], id_: int | None = 1) -> httpx2.Response:
        body = {"jsonrpc": "2.0", "method": method, "params": params, **({} if id_ is None else {"id": id_})}
        return httpx2.post(self.url, json=body, headers=self.headers, timeout=30, verify=NO_TLS)

    def price(self, item: str) -> str:
        """Call a tool, always with the same id; the id of the last event."""
        response = self.post("tools/call", {"name": "shop__price", "arguments": {"item": item}})
        assert item in response.text
        return [line.removeprefix("id: ") for line in response.text.splitlines() if line.startswith("id: ")][-1]

    def events_after(self, event: str) -> list[str]:
        """What is sent again, up to where the stream goes on."""
        found: list[str] = []
        with httpx2.stream(
            "GET", self.url, headers={**self.headers, "last-event-id": event}, timeout=30, verify=NO_TLS
        ) as response:
            for line in response.iter_lines():
                if line.startswith("retry:"):
                    break
                found.append(line)
        return found


@contextmanager
def listening(url: str, headers: dict[str, str], **request: Any) -> Iterator[list[str]]:
    """Lines of a stream of events as they come, and ``end`` after the last one."""
    lines: list[str] = []
    ready = threading.Event()

    def read() -> None:
        with httpx2.stream(url=url, headers=headers, timeout=30, verify=NO_TLS, **request) as response:
            ready.set()
            lines.extend(response.iter_lines())
        lines.append("end")

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    assert ready.wait(20)
    yield lines
    thread.join(30)


@pytest.mark.slow
def test_a_lost_stream_goes_on_for_its_own_session_alone(tmp_path: Path) -> None:
    with open_shop(tmp_path) as (url, tavern, _):
        ann, bob = (Session(url, tavern.tokens.create(f"agent:{name}")[1]) for name in ("ann", "bob"))
        ann_s = ann.price("apples")
        bob_s = bob.price("secrets")
        first = ann_s.rpartition("-")[0] + "-1"
        assert "apples" in "".join(ann.events_after(first))
        for event in (ann_s, first):
            assert "secrets" not in "".join(ann.events_after(event))
        again = Session(url, ann.headers["authorization"].removeprefix("Bearer "))
        for session, event in ((ann, bob_s.rpartition("-")[0] + "-1"), (again, first)):
            with httpx2.stream(
                "GET", url, headers={**session.headers, "last-event-id": event}, timeout=30, verify=NO_TLS
            ) as other:
                assert other.read() == b""


@each_row("event", ["nonsense", "-", "a-b", "a-" + "9" * 5_000, "é"])
def test_an_event_that_is_none_is_followed_by_nothing(event: str) -> None:
    sent: list[Any] = []
    store = SessionEvents(RecentEvents(ListPages()), "agent:ann")

    async def send(message: Any) -> None:
        sent.append(message)

    async def main() -> None:
        known = await store.store_event("1", JSONRPCResponse(jsonrpc="2.0", id=1, result={}))
        assert await store.replay_events_after(event, send) is None
        assert await store.replay_events_after(known.rpartition("-")[0] + "-" + "9" * 5_000, send) is None

    asyncio.run(main())
    assert sent == []


def test_nothing_is_lost_between_what_is_sent_again_and_what_follows() -> None:
    store, followed, sent = SessionEvents(RecentEvents(ListPages()), "agent:ann"), set[str](), list[Any]()
    store.is_followed = followed.__contains__

    async def come(number: int) -> str:
        return await store.store_event("1", JSONRPCResponse(jsonrpc="2.0", id=number, result={}))

    async def send(event: Any) -> None:
        sent.append(event.message.id)
        if event.message.id == 2:
            await come(3)  # while earlier ones are sent again

    async def main() -> None:
        first = await come(1)
        await come(2)
        assert await store.replay_events_after(first, send) == "1"
        await come(4)  # the library does not follow the stream yet
        followed.add("1")
        await come(5)  # the library sends it
        await asyncio.sleep(0)

    asyncio.run(main())
    assert sent == [2, 3, 4]


LARGE = JSONRPCResponse(jsonrpc="2.0", id=1, result={"text": "x" * 3_000})


def replayed(recent: RecentEvents, stream: str) -> int | None:
    """How many events of a stream are sent again; None: it is not known any more."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    found = recent.find(stream)
    if found is None:
        return None
    asyncio.run(found.session.replay_events_after(f"{stream}-0", send))
    return len(sent)


SENT: dict[str, tuple[str, list[int | None]]] = {
    "the stream that was sent something longest ago": ("ann:1 bob:1 ann:2 bob:1 ann:3", [None, 2, None, 1]),
    "the oldest of the principal with the most": ("bob:1 ann:1 ann:2 ann:3 ann:4", [1, None, None, 1, 1]),
    "one that takes all the room itself": ("bob:1 ann:1 ann:1 ann:1 ann:1", [1, None]),
    "nothing of a stream that is alone": ("ann:1 ann:1 ann:1 ann:1 ann:1", [5]),
}
"""What is dropped → streams (session:request) in the order in which events of 3,000 bytes were sent; what is left of each, of 10,000 bytes."""


@pytest.mark.parametrize("case", SENT)
def test_what_is_dropped_is_of_the_principal_that_takes_most_room(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_store, "_MOST_BYTES", 10_000)
    order, left = SENT[case]
    recent = RecentEvents(ListPages())
    sessions = {name: SessionEvents(recent, f"agent:{name}") for name in ("ann", "bob")}
    names: dict[str, str] = {}
    for stream in order.split():
        session, _, request = stream.partition(":")
        event = asyncio.run(sessions[session].store_event(request, LARGE))
        names.setdefault(stream, event.rpartition("-")[0])
    assert [replayed(recent, name) for name in names.values()] == left


def test_events_that_a_stream_has_forgotten_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_store, "_MOST_BYTES", 10_000)
    monkeypatch.setattr(event_store, "_MOST_EVENTS", 2)
    recent = RecentEvents(ListPages())
    session = SessionEvents(recent, "agent:ann")
    small = asyncio.run(session.store_event("1", JSONRPCResponse(jsonrpc="2.0", id=1, result={})))
    for _ in range(9):
        long = asyncio.run(session.store_event("2", LARGE))
    assert [replayed(recent, event.rpartition("-")[0]) for event in (small, long)] == [1, 2]


@pytest.mark.slow
def test_a_client_with_very_many_streams_pushes_out_none_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_store, "_MOST_STREAMS", 8)
    with open_shop(tmp_path) as (url, tavern, _):
        ann, bob = (Session(url, tavern.tokens.create(f"agent:{name}")[1]) for name in ("ann", "bob"))
        first = ann.price("apples").rpartition("-")[0] + "-1"
        for number in range(20):
            flood = Session(url, bob.headers["authorization"].removeprefix("Bearer ")) if number % 5 == 0 else bob
            flood.post("tools/call", {"name": "shop__price", "arguments": {"item": "x" * 9}}, id_=number + 2)
        assert "apples" in "".join(ann.events_after(first))


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
def test_a_stream_of_events_begins_before_the_first_event(tmp_path: Path, version: str) -> None:
    with open_shop(tmp_path) as (url, tavern, _):
        session = Session(url, tavern.tokens.create("agent:x")[1])
        headers = {**session.headers, "mcp-protocol-version": version}
        timeout = httpx2.Timeout(10)  # a sign of life comes after 15 seconds
        with httpx2.stream("GET", url, headers=headers, timeout=timeout, verify=NO_TLS) as response:
            assert response.status_code == 200


@pytest.mark.slow
def test_clients_of_the_2025_era_learn_that_lists_change(tmp_path: Path) -> None:
    with open_shop(tmp_path) as (url, tavern, _):
        capabilities = Session(url, tavern.tokens.create("agent:x")[1]).server["capabilities"]
    assert [capabilities[name]["listChanged"] for name in ("tools", "prompts", "resources")] == [True, True, True]


@pytest.mark.slow
def test_a_client_that_reads_nothing_keeps_no_change_from_others(tmp_path: Path) -> None:
    held = threading.Event()

    def prepare(tavern: Tavern) -> Any:
        app = asgi_app(tavern)

        async def holding(scope: Any, receive: Any, send: Any) -> None:
            """Takes nothing of the streams of a client that says so, as a full connection does."""

            async def full(message: Any) -> None:
                if message["type"] == "http.response.body":
                    held.set()
                    await asyncio.Event().wait()
                await send(message)

            is_full = (b"x-reads", b"nothing") in scope.get("headers", ())
            await app(scope, receive, full if is_full else send)

        return holding

    with open_shop(tmp_path, prepare=prepare) as (url, tavern, _):
        deaf, other = (Session(url, tavern.tokens.create(f"agent:{name}")[1]) for name in ("deaf", "other"))
        streams = {"accept": "text/event-stream"}
        with (
            httpx2.stream(
                "GET", url, headers={**deaf.headers, **streams, "x-reads": "nothing"}, timeout=30, verify=NO_TLS
            ),
            httpx2.stream("GET", url, headers={**other.headers, **streams}, timeout=10, verify=NO_TLS) as response,
        ):
            lines = response.iter_lines()
            for number in range(24):  # more than the library holds back for one
                tavern.tools.register(tool(name=f"further{number}")(lambda: 1))
                assert next(line for line in lines if "tools/list_changed" in line)
        assert held.is_set()


@pytest.mark.slow
def test_a_session_that_watches_as_much_as_it_may_learns_that_it_watches_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MOST_WATCHED", 2)
    with open_shop(tmp_path) as (url, tavern, _):
        session = Session(url, tavern.tokens.create("agent:x")[1])

        def asked(what: str, number: int) -> Any:
            said = answer(session.post(f"resources/{what}", {"uri": f"shop://manual/{number}"}))
            return said.get("result", said.get("error", {}).get("message"))

        assert [asked("subscribe", number) for number in (1, 2, 2)] == [{}, {}, {}]
        assert "at most 2 resources" in asked("subscribe", 3)
        assert [asked("unsubscribe", 1), asked("subscribe", 3)] == [{}, {}]


@pytest.mark.slow
def test_only_what_a_caller_may_read_is_watched(tmp_path: Path) -> None:
    with open_shop(tmp_path) as (url, tavern, _):
        text = tavern.tokens.create("agent:x")[1]
        session = Session(url, text)
        watched = {uri: answer(session.post("resources/subscribe", {"uri": uri})) for uri in ("shop://cover", "x://y")}
        wanted = {"resourceSubscriptions": ["x://y", "shop://manual/2", "artifact:none"]}
        with subscribed(url, text, wanted) as messages:
            acknowledged = next(messages)
    assert watched["shop://cover"]["result"] == {} and watched["x://y"]["error"]["code"] == -32002
    assert acknowledged["params"]["notifications"] == {"resourceSubscriptions": ["shop://manual/2"]}


@pytest.mark.slow
@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
def test_a_stream_of_events_ends_with_its_token(tmp_path: Path, era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tavern_core.server.mcp.http._FRESH_S", 0)
    with open_shop(tmp_path) as (url, tavern, _):
        token, text = tavern.tokens.create("agent:x")
        if era == "2025-11-25":
            headers, request = Session(url, text).headers, {"method": "GET"}
        else:
            params = {"_meta": META, "notifications": {"toolsListChanged": True}}
            body = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
            headers = {**JSON, "authorization": f"Bearer {text}", "mcp-protocol-version": era}
            headers, request = {**headers, "mcp-method": "subscriptions/listen"}, {"method": "POST", "json": body}
        with listening(url, headers, **request) as lines:
            tavern.tokens.revoke(token.id)
            tavern.tools.register(tool(name="further")(lambda: 1))
    assert lines[-1] == "end" and "list_changed" not in "".join(lines)


@pytest.mark.slow
def test_over_stdio_a_client_is_refused_as_soon_as_its_token_is_revoked(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Tavern.open({}, home=home) as tavern:
        token, text = tavern.tokens.create("agent:x")
        command = ["-m", "tavern_core", "mcp", "--home", home]
        server = over_stdio(command, cwd=tmp_path, env={**os.environ, "TAVERN_MCP_TOKEN": text})

        async def main() -> None:
            async with Client(server, mode="legacy") as client:
                assert (await client.list_tools()).tools
                tavern.tokens.revoke(token.id)
                for request in (
                    client.list_tools(cache_mode="refresh"),
                    client.call_tool("system__get_current_time", {}),
                ):
                    with pytest.raises(MCPError, match="not valid any more"):
                        await request

        asyncio.run(main())


@pytest.mark.slow
def test_two_versions_in_one_request_open_no_more_sessions_than_there_may_be(tmp_path: Path) -> None:
    with open_shop(tmp_path, {"mcp": {"sessions": 1}}) as (url, tavern, _):
        text = tavern.tokens.create("agent:x")[1]
        Session(url, text)
        client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}
        headers = [*JSON.items(), ("authorization", f"Bearer {text}"), ("mcp-method", "tools/list")]
        headers += [("mcp-protocol-version", version) for version in ("2025-11-25", "2026-07-28")]
        assert httpx2.post(url, json=body, headers=headers, timeout=30, verify=NO_TLS).status_code == 503
