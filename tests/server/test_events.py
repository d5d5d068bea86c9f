"""Events over SSE and WebSocket: whose they are, what a client gets that comes back, and when it loses its connection."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from httpx2.websockets import WebSocketDisconnect, WebSocketNetworkError, WebSocketUpgradeError

from tavern_core import ScriptedLLM, hookimpl
from tavern_core.model.event import EVENT_TYPES
from tests.docs.blocks import DOCS, blocks_of
from tests.server.desk import FLOW, LOWER, UPDATE, Served, served

TEXT_OF_A_MODEL = json.dumps({"reason": "done", "patch": LOWER})


@contextmanager
def stream(desk: Served, token: str, **headers: str) -> Iterator[Iterator[dict[str, Any]]]:
    """The messages of `GET /api/events`, each with its id as SSE has it."""
    sent = {"authorization": f"Bearer {token}", **{name.replace("_", "-"): text for name, text in headers.items()}}
    with desk.http.stream("GET", f"{desk.url}/api/events", headers=sent) as answer:
        assert answer.headers["content-type"] == "text/event-stream"

        def messages() -> Iterator[dict[str, Any]]:
            id_ = ""
            for line in answer.iter_lines():
                if line.startswith("id: "):
                    id_ = line.removeprefix("id: ")
                elif line.startswith("data: "):
                    yield {**json.loads(line.removeprefix("data: ")), "sse": id_}

        yield messages()


def mark(desk: Served, token: str, text: str) -> None:
    """A call that shows up among the events of its caller."""
    assert desk.call(token, "desk:echo", text=text).json()["value"] == text


def texts(messages: list[dict[str, Any]]) -> list[str]:
    """What the calls among some messages said."""
    return [each["payload"]["arguments"]["text"] for each in messages if each["type"] == "TOOL_CALLED"]


class Writer:
    @hookimpl
    def tavern_register_llms(self) -> Any:
        return {"writer": ScriptedLLM([TEXT_OF_A_MODEL] * 2)}


@pytest.mark.slow
def test_an_applied_change_of_the_assistant_arrives_with_the_complete_workflow(tmp_path: Path) -> None:
    with served(tmp_path, None, Writer()) as desk, desk.socket(desk.token(roles=["viewer"])) as viewer:
        tavern = desk.tavern
        session = tavern.workflows.session(FLOW)
        proposal = tavern.wait(tavern.assistant.propose("lower case, please", session))
        assert tavern.wait(tavern.assistant.apply(proposal, session=session)).ok
        message = viewer.until(UPDATE)[-1]
        assert message["payload"]["content"] == dict(session.workflow.raw)
        assert message["payload"]["content"]["nodes"][0]["inputValues"]["form"] == "lower"
        assert (message["payload"]["rev"], message["payload"]["action"]) == (session.workflow.rev, "patch")
        assert message["id"].endswith(f"-{message['seq']}")
        session.undo()
        assert viewer.until(UPDATE)[-1]["payload"]["content"]["nodes"][0]["inputValues"]["form"] == "upper"


@pytest.mark.slow
def test_the_client_of_the_manual_gets_the_complete_workflows(desk: Served) -> None:
    names: dict[str, Any] = {}
    exec(next(block.text for block in blocks_of(DOCS / "server.md") if block.language == "python"), names)
    token = desk.token("agent:manual")
    changes = names["follow"](f"ws://127.0.0.1:{desk.port}", token)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(next, changes)
        while not first.done():  # it gets those from its connection on
            assert desk.call(token, "desk:lower").status_code == 200
        assert first.result()["nodes"][0]["inputValues"]["form"] == "lower"
    desk.call(token, "desk:lower")
    assert next(changes)["nodes"][0]["inputValues"]["form"] == "lower"
    changes.close()


@pytest.mark.slow
@pytest.mark.parametrize("as_user", ["", "ann"])
def test_a_caller_gets_the_change_that_its_own_call_made_and_no_other_caller_does(desk: Served, as_user: str) -> None:
    own, other = desk.token(user_id=as_user), desk.token(user_id="bob")
    with desk.socket(own) as mine, desk.socket(other) as others, desk.socket(desk.token("agent:y")) as strangers:
        assert desk.call(own, "desk:lower").status_code == 200
        message = mine.until(UPDATE)[-1]
        assert message["payload"]["content"]["nodes"][0]["inputValues"]["form"] == "lower"
        assert message["payload"]["principal"] == "agent:x"
        desk.tavern.invoke_sync("desk:echo", {"text": "the host's"})
        mark(desk, other, "b")
        mark(desk, desk.token("agent:y"), "y")
        assert texts(others.until("TOOL_RESULT")) == ["b"]
        assert texts(strangers.until("TOOL_RESULT")) == ["y"]


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_viewers_see_the_events_of_all(desk: Served, role: str) -> None:
    with (
        desk.socket(desk.token(f"user:{role}", roles=[role])) as all_of_them,
        stream(desk, desk.token("u", roles=[role])) as same,
    ):
        assert next(same)["type"] == "CONNECTED"
        mark(desk, desk.token(), "x")
        found = all_of_them.until("TOOL_RESULT")
        assert texts(found) == ["x"]
        assert [{**each, "sse": each["id"]} for each in found] == [next(same) for _ in found]
        assert {each["type"] for each in found} <= set(EVENT_TYPES)


def test_what_is_secret_in_the_log_is_secret_here(desk: Served) -> None:
    viewer = desk.token("user:v", roles=["viewer"])
    with desk.socket(viewer) as seen:
        desk.call(desk.token(), "desk:login", password="hunter2-hunter2")
        assert "hunter2" not in json.dumps(seen.until("TOOL_RESULT"))


@pytest.mark.slow
@pytest.mark.parametrize("role", ["approver", "operator"])
def test_any_call_may_be_a_job_whose_approval_comes_over_http(desk: Served, role: str) -> None:
    own, approver = desk.token("agent:payer"), desk.token("user:boss", roles=[role])
    path, body = "/api/tools/desk:pay/invoke", {"arguments": {"amount": 3}, "job": True}
    with desk.socket(own) as messages:
        answer = desk.send("POST", path, own, body)
        job = answer.json()["job"]
        assert (answer.status_code, answer.json()["status"]) == (202, "job")
        asks = {
            "job": job,
            "status": "input_required",
        }.items()  # the result of its call, which comes before, has the status, too
        while not asks <= messages.next()["payload"].items():
            pass
        assert desk.send("POST", f"/api/jobs/{job}/answer", approver, {"value": True}).json()["answered"] is True
        while messages.next()["payload"].get("status") != "completed":
            pass
    assert desk.send("GET", f"/api/jobs/{job}", own).json()["result"]["value"] == "paid 3"
    assert desk.send("POST", path, own, {**body, "job": "yes"}).status_code == 422


@pytest.mark.slow
def test_a_job_and_its_progress_are_its_callers(desk: Served) -> None:
    own = desk.token("agent:jobs")
    with desk.socket(own) as mine, desk.socket(desk.token("agent:z")) as others:
        answer = desk.call(own, "desk:deliver", item="tea")
        job = answer.json()["job"]
        assert answer.status_code == 202
        address = httpx2.URL(str(answer.url)).join(answer.headers["location"])
        assert desk.send("GET", address.path, own).json()["jobId"] == job
        assert desk.send("GET", f"/api/jobs/{job}", own).json()["jobId"] == job
        while (waiting := mine.until("JOB_CHANGED")[-1]["payload"])["status"] != "input_required":
            assert waiting["job"] == job
        stranger, nine = desk.token("agent:z"), {"value": {"count": 9}}
        assert desk.send("GET", f"/api/jobs/{job}", stranger).status_code == 404
        for other in (stranger, desk.token("user:a", roles=["approver"]), desk.token("user:o", roles=["operator"])):
            assert desk.send("POST", f"/api/jobs/{job}/answer", other, nine).status_code == 404
        assert desk.send("GET", "/api/jobs", stranger).json() == []
        assert desk.send("POST", f"/api/jobs/{job}/answer", own, {"value": {"count": 2}}).json()["answered"] is True
        while mine.until("JOB_CHANGED")[-1]["payload"]["status"] != "completed":
            pass
        assert desk.send("GET", f"/api/jobs/{job}", own).json()["result"]["value"] == "2 of tea"
        assert desk.send("POST", f"/api/jobs/{job}/cancel", own).json()["cancelled"] is False
        mark(desk, stranger, "z")
        assert texts(others.until("TOOL_RESULT")) == ["z"]


@pytest.mark.slow
def test_a_client_that_comes_back_gets_what_it_missed_once(desk: Served) -> None:
    token = desk.token("agent:back")
    with desk.socket(token) as first:
        mark(desk, token, "1")
        last = first.until("TOOL_RESULT")[-1]["id"]
    mark(desk, token, "2")
    mark(desk, desk.token("agent:q"), "not yours")
    mark(desk, token, "3")
    with desk.socket(token, since=last) as again:
        missed = [*again.until("TOOL_RESULT"), *again.until("TOOL_RESULT")]
        assert texts(missed) == ["2", "3"]
        mark(desk, token, "4")
        assert texts(again.until("TOOL_RESULT")) == ["4"]
    with stream(desk, token, last_event_id=last) as same:
        assert next(same)["type"] == "CONNECTED"
        assert [next(same)["id"] for _ in missed] == [each["id"] for each in missed]


def test_a_client_that_got_nothing_yet_comes_back_with_its_first_id(desk: Served) -> None:
    token = desk.token("agent:first")
    with desk.socket(token) as first:
        assert first.first["type"] == "CONNECTED"
    mark(desk, token, "missed")
    with desk.socket(token, since=first.first["id"]) as again:
        assert texts(again.until("TOOL_RESULT")) == ["missed"]


@pytest.mark.parametrize(
    "since", ["0", "-", "x-1", "x" * 1_000, "%00", "é-1", "{name}-99999999999999999999999", "{name}-999999", "{name}-²"]
)
def test_a_client_that_names_what_is_not_known_learns_that_events_may_be_missing(desk: Served, since: str) -> None:
    token = desk.token("agent:lost")
    with desk.socket(token) as first:  # events are kept from the first socket on
        name = first.first["id"].partition("-")[0]
    mark(desk, token, "kept")
    with desk.socket(token, since=since.format(name=name)) as again:
        assert again.next()["type"] == "EVENTS_LOST"
        assert "kept" in texts(again.until("TOOL_RESULT"))


@pytest.mark.slow
def test_events_that_were_dropped_are_reported_as_lost(tmp_path: Path) -> None:
    with served(tmp_path, {"events": 4}) as desk:
        token = desk.token()
        with desk.socket(token) as first:
            pass
        for text in "abc":
            mark(desk, token, text)
        with desk.socket(token, since=first.first["id"]) as again:
            assert again.next()["type"] == "EVENTS_LOST"
            assert texts([*again.until("TOOL_RESULT"), *again.until("TOOL_RESULT")]) == ["b", "c"]


def test_a_revoked_token_gets_no_further_event(desk: Served) -> None:
    token, text = desk.tavern.tokens.create("agent:gone")
    with desk.socket(text) as seen, stream(desk, text) as same:
        mark(desk, text, "before")
        assert texts(seen.until("TOOL_RESULT")) == ["before"]
        assert [next(same)["type"] for _ in range(3)] == ["CONNECTED", "TOOL_CALLED", "TOOL_RESULT"]
        desk.tavern.tokens.revoke(token.id)
        mark(desk, desk.token("agent:gone"), "after")
        with pytest.raises(WebSocketDisconnect) as closed:
            seen.next()
        assert closed.value.code == 1008
        assert list(same) == []


@pytest.mark.slow
def test_a_browser_shows_its_token_as_a_subprotocol(desk: Served) -> None:
    token = desk.token("agent:browser")
    for offered, agreed in ((["tavern", f"bearer.{token}"], "tavern"), ([f"bearer.{token}"], None)):
        with desk.socket(None, subprotocols=offered) as seen:
            assert seen.connection.subprotocol == agreed
            mark(desk, token, "hi")
            assert texts(seen.until("TOOL_RESULT")) == ["hi"]


@pytest.mark.parametrize("offered", [["bearer."], ["bearer.nonsense", "tavern"], ["tavern"]])
def test_a_websocket_without_a_valid_token_does_not_begin(desk: Served, offered: list[str]) -> None:
    with pytest.raises(WebSocketUpgradeError) as refused, desk.socket(None, subprotocols=offered):
        pass
    assert refused.value.response.status_code == 401


def test_a_token_in_the_address_is_none(desk: Served) -> None:
    address = f"/api/events?token={desk.token()}&access_token={desk.token()}"
    assert desk.send("GET", address).status_code == 401


@pytest.mark.slow
def test_there_is_room_for_so_many_streams(tmp_path: Path) -> None:
    with served(tmp_path, {"streams": 1}) as desk:
        token = desk.token()
        with desk.socket(token):
            refused = desk.send("GET", "/api/events", token)
            assert (refused.status_code, refused.json()["code"]) == (503, "BUDGET_EXCEEDED")
        while desk.app.feed.readers:  # until the server has noticed that the client is gone
            assert desk.send("GET", "/healthz").status_code == 200
        with stream(desk, token) as messages:
            assert next(messages)["type"] == "CONNECTED"


@pytest.mark.slow
@pytest.mark.parametrize("is_websocket", [True, False], ids=["WebSocket", "SSE"])
def test_a_client_that_does_not_read_loses_its_connection_and_the_host_keeps_little(
    tmp_path: Path, is_websocket: bool
) -> None:
    with served(tmp_path, {"eventBytes": 4_000_000}) as desk:
        upgrade = (
            "GET /ws HTTP/1.1", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ) if is_websocket else ("GET /api/events HTTP/1.1",)  # fmt: skip
        viewer = f"Authorization: Bearer {desk.token('user:v', roles=['viewer'])}"
        with (
            desk.raw(*upgrade, f"Host: 127.0.0.1:{desk.port}", viewer, "") as slow,
            desk.socket(desk.token("agent:fast")) as fast,
        ):
            assert slow.recv(12).startswith(b"HTTP/1.1 ")
            large = {**FLOW, "nodes": [{**FLOW["nodes"][0], "custom": "x" * 1_000_000}]}
            session = desk.tavern.workflows.session(large)
            for number in range(12):
                assert session.apply(LOWER).ok
                session.undo()
                mark(desk, desk.token("agent:fast"), str(number))
                assert texts(fast.until("TOOL_RESULT")) == [str(number)]
            assert sum(len(one.text) for one in desk.app.feed._kept) <= 4_000_000
            assert drained(slow) < 24 * 1_000_000


@pytest.mark.slow
def test_a_server_that_cannot_keep_up_keeps_little_and_says_that_events_are_missing(tmp_path: Path) -> None:
    with served(tmp_path, {"events": 50}) as desk, ThreadPoolExecutor(1) as pool:
        viewer = desk.token("user:v", roles=["viewer"])
        with desk.socket(viewer) as seen:
            waiting = pool.submit(desk.call, desk.token(), "desk:hold")
            assert desk.desk.held.wait(30)
            for number in range(200):
                desk.tavern.invoke_sync("desk:echo", {"text": str(number)})
            assert len(desk.app.feed._waiting) <= 50
            desk.desk.go.set()
            assert waiting.result(30).json()["value"] == "released"
            with pytest.raises((WebSocketDisconnect, WebSocketNetworkError)):
                while True:
                    assert seen.next()["type"].startswith("TOOL_")
        with desk.socket(viewer, since=seen.first["id"]) as again:
            assert again.next()["type"] == "EVENTS_LOST"
            mark(desk, desk.token(), "now")
            while texts([again.next()]) != ["now"]:
                pass


def drained(connection: socket.socket) -> int:
    """How many bytes a connection still had, which the other side has dropped."""
    count = 0
    try:
        while piece := connection.recv(1_000_000):
            count += len(piece)
    except ConnectionResetError:
        pass
    return count
