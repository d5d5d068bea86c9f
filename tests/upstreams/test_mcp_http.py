"""MCP over streamable HTTP: servers of both eras, made with the library, and hostile ones."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web

from tavern_core import CallContext, Tavern
from tavern_core.builtin.adapters.mcp import http
from tavern_core.errors import TavernError
from tavern_core.upstreams import session
from tests.forked_programs import NETWORK, run_forked
from tests.guards.web import self_signed
from tests.programs import tavern
from tests.upstreams.evil_http import EVIL as MODES
from tests.upstreams.evil_http import serving
from tests.upstreams.mcp_hosts import host, listening, longest_turn


@pytest.fixture(scope="module", params=["new", "old"])
def lab(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of the server of `mcp_lab.py`."""
    with listening("mcp_lab.py", request.param) as address:
        yield address


@pytest.fixture(scope="module")
def opened(lab: str) -> Iterator[Tavern]:
    """A host that the tests of a server share."""
    entry = {
        "url": lab,
        "headers": {"X-Team": "seven"},
        "idempotencyHeader": "Idempotency-Key",
        "tools": {"wait": {"timeoutMs": 1_500}},
    }
    with tempfile.TemporaryDirectory() as home, host(Path(home), lab=entry) as tavern:
        tavern.upstreams.refresh_sync("lab")
        yield tavern


@pytest.mark.slow
def test_calls_over_http(opened: Tavern) -> None:
    assert opened.invoke_sync("lab:add", {"a": 1, "b": 2}).value == {"sum": 3}
    assert opened.upstreams["lab"].state == "open"


@pytest.mark.slow
def test_the_key_of_a_call_is_sent_in_the_header_of_the_entry(opened: Tavern) -> None:
    for key, sent in ((None, "none"), ("order 7", "order 7"), ("订单 7", quote("订单 7"))):
        assert opened.invoke_sync("lab:key", {}, idempotency_key=key).value == sent


@pytest.mark.slow
def test_a_call_of_which_nothing_is_known_is_made_again_where_the_server_gets_its_key(tmp_path: Path) -> None:
    for header, tries in (({"idempotencyHeader": "X-Key"}, 2), ({}, 1)):
        with serving("500") as (url, server):
            entry = {"url": url, "tools": {"bad": {"limits": {"retries": 1}}}, **header}
            with host(tmp_path / str(tries), evil=entry) as opened:
                assert not opened.invoke_sync("evil:bad", {}, idempotency_key="seven").ok
                keys = [dict(headers).get("x-key") for method, headers in server.seen if method == "tools/call"]
                assert keys == ["seven" if header else None] * tries


@pytest.mark.slow
def test_a_large_answer_arrives_whole(opened: Tavern) -> None:
    answer = opened.invoke_sync("lab:large", {})
    assert answer.ok, answer.error
    assert answer.content[0]["text"] == "x,\n" * 400_000


@pytest.mark.slow
def test_many_calls_at_once(opened: Tavern) -> None:
    async def calls() -> list[Any]:
        return await asyncio.gather(*(opened.invoke("lab:add", {"a": n, "b": 1}) for n in range(30)))

    assert [result.value["sum"] for result in asyncio.run(calls())] == list(range(1, 31))


@pytest.mark.slow
def test_progress_over_http(opened: Tavern) -> None:
    seen: list[Any] = []
    opened.events.subscribe(seen.append, "TOOL_PROGRESS")
    assert opened.invoke_sync("lab:steps", {}).ok
    assert seen[0].data["message"] == "step 0"


@pytest.mark.slow
def test_a_deadline_ends_the_work_at_the_server(opened: Tavern) -> None:
    before = opened.invoke_sync("lab:waited", {}).value.count("wait")
    error = opened.invoke_sync("lab:wait", {}).error
    assert error is not None and error.kind == "TIMEOUT"
    deadline = time.monotonic() + 10
    while opened.invoke_sync("lab:waited", {}).value.count("wait") == before:
        assert time.monotonic() < deadline


EVIL: dict[str, tuple[str, str, str]] = {
    "redirects": ("UPSTREAM_ERROR", "redirects to http://127.0.0.2:9", "unknown"),
    "compressed-bomb": ("OUTPUT_TOO_LARGE", "", "done"),
    "endless-headers": ("UPSTREAM_ERROR", "broke off", "unknown"),
    "endless-body": ("OUTPUT_TOO_LARGE", "", "done"),
    "endless-event": ("UPSTREAM_ERROR", "an event of more than 4,000,000 bytes", "unknown"),
    "cut-body": ("UPSTREAM_ERROR", "broke off", "unknown"),
    "cut-events": ("UPSTREAM_ERROR", "ended without a response", "unknown"),
    "never-answers": ("TIMEOUT", "", "unknown"),
    "many-parts": ("OUTPUT_TOO_LARGE", "15,000 parts, more than 1,000", "done"),
    "large-garbage": ("UPSTREAM_ERROR", "is not MCP", "unknown"),
    "large-wrong": ("UPSTREAM_ERROR", "neither a result nor an error", "unknown"),
    "large-garbage-event": ("UPSTREAM_ERROR", "is not MCP", "unknown"),
    "large-wrong-event": ("UPSTREAM_ERROR", "ended without a response", "unknown"),
    "html": ("UPSTREAM_ERROR", "text/html", "unknown"),
    "no-kind": ("UPSTREAM_ERROR", "no content type", "unknown"),
    "other-packing": ("UPSTREAM_ERROR", "'br', which was not requested", "unknown"),
    "corrupt-packing": ("UPSTREAM_ERROR", "corrupt compressed data", "unknown"),
    "401": ("UPSTREAM_ERROR", "wants to know who calls", "none"),
    "401-json": ("UPSTREAM_ERROR", "wants to know who calls", "none"),
    "403": ("POLICY_DENIED", "refuses", "none"),
    "404": ("TOOL_NOT_FOUND", "", "none"),
    "429": ("UPSTREAM_ERROR", "has no time", "none"),
    "405": ("UPSTREAM_ERROR", "an error response (HTTP 405)", "unknown"),
    "500": ("UPSTREAM_ERROR", "an error response (HTTP 500)", "unknown"),
    "503": ("UPSTREAM_ERROR", "has no time", "none"),
    "503-proxy": ("UPSTREAM_ERROR", "has no time", "unknown"),
    "accepted": ("UPSTREAM_ERROR", "202", "unknown"),
    "empty": ("UPSTREAM_ERROR", "is not MCP", "unknown"),
    "any-error": ("UPSTREAM_ERROR", "bad: out of order", "unknown"),
    "other-number": ("UPSTREAM_ERROR", "another request", "unknown"),
}
"""Mode → kind of the error, words of it, what is known of the outcome."""

REPAIRS: dict[str, str] = {
    "401": "tavern upstreams connect evil, or write the header Authorization into its `headers` in tavern.yaml",
    "429": "wait, and call again",
    "500": "look there whether it took effect before you call again",
    "compressed-bomb": "raise `maxMessageBytes` in the `settings` of the upstream",
    "endless-body": "raise `maxMessageBytes` in the `settings` of the upstream",
}


def evil(url: str, home: Path) -> Any:
    settings = {"connectTimeoutMs": 3_000, "maxMessageBytes": 4_000_000}
    return host(home, evil={"url": url, "settings": settings, "tools": {"bad": {"timeoutMs": 2_000}}})


@pytest.fixture(scope="module")
def answering() -> Iterator[Tavern]:
    """A host whose server answers as each call asks; its upstream `hasty` has little time, the other one enough."""
    with serving() as (url, _), tempfile.TemporaryDirectory() as home:
        entry = {"url": url, "settings": {"maxMessageBytes": 4_000_000}}
        times = {"hasty": 500, "evil": 30_000}
        entries = {name: {**entry, "tools": {"bad": {"timeoutMs": time}}} for name, time in times.items()}
        with host(Path(home), **entries) as opened:
            opened.upstreams.refresh_sync()
            yield opened


@pytest.mark.slow
@pytest.mark.parametrize("mode", EVIL)
def test_an_evil_answer_costs_its_own_call_and_no_other(mode: str, answering: Tavern) -> None:
    kind, message, outcome = EVIL[mode]
    name = "hasty" if kind == "TIMEOUT" else "evil"
    error = answering.invoke_sync(f"{name}:bad", {"mode": mode}).error
    assert error is not None
    assert (error.kind, error.outcome) == (kind, outcome), error
    assert message in error.message and REPAIRS.get(mode, "") in error.fix
    assert answering.invoke_sync(f"{name}:good", {}).value == "well"


@pytest.mark.slow
def test_headers_of_the_operator_change_none_of_the_protocol(tmp_path: Path) -> None:
    written = {
        "ACCEPT": "text/html", "content-Type": "text/plain", "accept-Encoding": "zstd", "MCP-Protocol-VERSION": "1999",
        "Mcp-Method": "other", "MCP-NAME": "other", "Mcp-Session-Id": "other", "Mcp-Param-X": "other", "X-Team": "seven",
    }  # fmt: skip
    with serving("html") as (url, server), host(tmp_path, evil={"url": url, "headers": written}) as opened:
        assert opened.invoke_sync("evil:good", {}).value == "well"
        assert len(server.seen) >= 3
        for method, pairs in server.seen:
            sent = {name: value for name, value in pairs if not name.startswith("content-length")}
            assert len(sent) == len(pairs) - 1, pairs  # none comes twice
            assert (sent["accept"], sent["content-type"]) == ("application/json, text/event-stream", "application/json")
            assert (sent["accept-encoding"], sent["x-team"], sent["mcp-method"]) == ("gzip", "seven", method)
            assert "other" not in sent.values() and sent["mcp-protocol-version"] == "2026-07-28"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["moved", "marked", "marked-events"])
def test_an_answer_may_be_moved_within_the_origin_or_begin_with_a_byte_order_mark(mode: str, answering: Tavern) -> None:
    assert answering.invoke_sync("evil:bad", {"mode": mode}).value == "well"


STARTS: dict[str, str] = {
    "401": "wants to know who calls",
    "html": "text/html",
    "redirects": "redirects to",
    "cut-body": "broke off",
    "endless-headers": "broke off",
    "never-answers": "does not answer within 0.5 s",
    "500": "error response",
    "empty": "is not MCP",
    "compressed-bomb": "more than 4,000,000 bytes",
    "endless-body": "more than 4,000,000 bytes",
    "endless-event": "an event of more than 4,000,000 bytes",
    "many-parts": "more than 20,000 values",
    "large-garbage": "is not MCP",
    "large-wrong": "neither request nor answer",
    "large-garbage-event": "is not MCP",
    "large-wrong-event": "neither request nor answer",
    "any-error": "cannot be connected to: out of order",
    "cut-events": "the answer broke off: SSE stream ended",
    "other-number": "it answers another request",
    "moved": "is not MCP: capabilities: Field required",
}
"""Mode → words of the error."""


@pytest.fixture(scope="module")
def starting() -> Iterator[Tavern]:
    """A host with an upstream for each way of being evil from the start."""
    with serving(strict=True) as (url, _), tempfile.TemporaryDirectory() as home:
        entries = {
            f"evil-{mode}": {
                "url": f"{url}{mode}/mcp",
                "settings": {
                    "connectTimeoutMs": 500 if mode == "never-answers" else 30_000,
                    "maxMessageBytes": 4_000_000,
                },
            }
            for mode in STARTS
        }
        with host(Path(home), **entries) as opened:
            yield opened


@pytest.mark.slow
@pytest.mark.parametrize("mode", STARTS)
def test_a_server_that_is_evil_from_the_start_is_a_clear_error(mode: str, starting: Tavern) -> None:
    name = f"evil-{mode}"
    with pytest.raises(TavernError) as error:
        starting.upstreams.refresh_sync(name)
    assert error.value.code in ("UPSTREAM_ERROR", "OUTPUT_TOO_LARGE")
    assert getattr(error.value, "outcome", "none") == "none"
    assert STARTS[mode].replace("evil:", f"{name}:") in error.value.message and "\n" not in error.value.message
    if mode == "401":
        assert f"tavern upstreams connect {name}" in error.value.hint


@pytest.mark.soak
@pytest.mark.parametrize("start", ["well", "strict"])
@pytest.mark.parametrize("mode", MODES)
def test_the_loop_is_never_blocked_for_long(mode: str, start: str, tmp_path: Path) -> None:
    with listening("evil_http.py", mode, start) as url, evil(url, tmp_path) as opened:
        assert longest_turn(opened, "evil:bad") < 0.1


@pytest.mark.parametrize("kind", ["mcp", "n8n"])
def test_a_certificate_that_cannot_be_read_is_an_error_of_the_upstream(kind: str, tmp_path: Path) -> None:
    entry = {
        "kind": kind,
        "url": "https://127.0.0.1:9/mcp",
        "certificate": {"ca": {"$file": str(tmp_path / "none.pem")}},
    }
    with host(tmp_path, gone=entry) as opened, pytest.raises(TavernError) as error:
        opened.upstreams.refresh_sync("gone")
    assert error.value.code == "UPSTREAM_ERROR" and "there is no file" in error.value.message
    assert not getattr(error.value, "retryable", True) and "SettingsInvalid(" not in error.value.message


@pytest.mark.slow
def test_each_caller_shows_its_own_token_and_all_the_certificate_of_the_entry(tmp_path: Path) -> None:
    pem = tmp_path / "own.pem"
    pem.write_text(self_signed())
    shown = {part: {"$file": str(pem)} for part in ("cert", "key", "ca")}
    own = {"user:ann": {"headers": {"X-Key": {"$secret": "of-ann"}}}, "*": {"headers": {"X-Key": "of others"}}}
    with serving("html", certificate=pem) as (url, server):
        entry = {"url": url, "headers": {"X-Key": "of the host"}, "certificate": shown, "credentials": own}
        bare = {"url": url, "certificate": {"ca": shown["ca"]}}
        with host(tmp_path / "home", {"secrets": {"of-ann": "ann's own key"}}, own=entry, bare=bare) as opened:
            opened.upstreams.refresh_sync("own")
            for user, key in (("", "of the host"), ("ann", "ann's own key"), ("bob", "of others")):
                server.seen.clear()
                context = CallContext(principal=user, user_id=user, permissions={"network"}) if user else None
                assert opened.invoke_sync("own:good", {}, context=context).value == "well"
                assert {dict(headers)["x-key"] for _, headers in server.seen} == {key}
            with pytest.raises(TavernError, match="client certificate"):
                opened.upstreams.refresh_sync("bare")


def test_where_no_one_listens_is_a_clear_error(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound, so that no one else listens there either
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/mcp"
        with evil(address, tmp_path) as opened, pytest.raises(TavernError, match="ConnectError") as error:
            opened.upstreams.refresh_sync("evil")
        assert error.value.code == "CONNECTION_LOST" and "start the server" in (error.value.hint or "")


@contextmanager
def serving_app(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Iterator[str]:
    """The address of a server that answers everything with `answer`, in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_route("*", "/mcp", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    runner = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


INITIALIZED = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "x", "version": "1"},
}


def old_era(
    special: Callable[[web.Request, Any], Awaitable[web.StreamResponse | None]],
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """A server of the old era with the tool `good`.

    Args:
        special: its answer to a request and its message, which is {"method": "DELETE"} where a session ends; None: as usual.
    """

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.Response(status=405)
        message = await request.json() if request.method == "POST" else {"method": request.method}
        method = message["method"]
        if method == "server/discover":
            return web.Response(status=400)
        if (answered := await special(request, message)) is not None:
            return answered
        if "id" not in message:
            return web.Response(status=202)
        result: Any = {"content": [{"type": "text", "text": "well"}]}
        if method == "initialize":
            result = INITIALIZED
        elif method == "tools/list":
            schema = {"type": "object", "additionalProperties": True}
            result = {"tools": [{"name": "good", "inputSchema": schema}]}
        reply = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        return web.json_response(reply, headers={"mcp-session-id": "s"})

    return answer


FORGETTING: dict[str, tuple[int, Any]] = {
    "as the protocol says": (404, {"jsonrpc": "2.0", "error": {"code": -32001, "message": "Session not found"}, "id": None}),
    "without words": (404, None),
    "as many servers do": (400, {"jsonrpc": "2.0", "error": {"code": -32000, "message": "Bad Request: No valid session ID"}}),
    "with a code of its own": (400, {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Who?"}, "id": "server-error"}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", FORGETTING)
def test_a_call_survives_a_server_that_was_started_anew_and_knows_no_session(case: str, tmp_path: Path) -> None:
    status, refusal = FORGETTING[case]
    sessions: list[str] = []
    calls: list[str] = []

    async def answer(request: web.Request, message: Any) -> web.StreamResponse | None:
        if message["method"] == "initialize":
            sessions.append(f"s{len(sessions)}")
            reply = {"jsonrpc": "2.0", "id": message["id"], "result": INITIALIZED}
            return web.json_response(reply, headers={"mcp-session-id": sessions[-1]})
        if request.headers.get("mcp-session-id") != sessions[-1]:
            return web.Response(status=status) if refusal is None else web.json_response(refusal, status=status)
        if message["method"] == "tools/call":
            calls.append(message["method"])
        return None

    with serving_app(old_era(answer)) as url, evil(url, tmp_path) as opened:
        assert opened.invoke_sync("evil:good", {}).value == "well"
        sessions.append("of another process")
        assert opened.invoke_sync("evil:good", {}).value == "well"
    assert calls == ["tools/call", "tools/call"]


@pytest.mark.slow
@pytest.mark.parametrize("times", [0, 1])
def test_an_answer_that_never_ends_ends_with_its_call(times: int, tmp_path: Path) -> None:
    """Also where the server closed the stream before, and the client asked for its rest."""
    ended = threading.Event()

    async def special(request: web.Request, message: Any) -> web.StreamResponse | None:
        if message["method"] != "tools/call":
            return None
        return await endless(request, "id: 1\nretry: 1\ndata:\n\n") if times == 0 else await primed(request)

    async def primed(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"id: 1\nretry: 1\ndata:\n\n")
        return response

    async def endless(request: web.Request, event: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        try:
            while True:
                await response.write(event.encode())
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    usual = old_era(special)

    async def answer(request: web.Request) -> web.StreamResponse:
        return await (endless(request, ": well\n\n") if "last-event-id" in request.headers else usual(request))

    with serving_app(answer) as url, host(tmp_path, evil={"url": url, "timeoutMs": 500}) as opened:
        error = opened.invoke_sync("evil:good", {}).error
        assert error is not None and (error.kind, error.outcome) == ("TIMEOUT", "unknown")
        assert ended.wait(20)


@pytest.mark.slow
def test_a_notification_that_gets_no_answer_does_not_hold_up_the_calls_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_STATUS_S", 0.1)

    async def special(request: web.Request, message: Any) -> web.StreamResponse | None:
        if message["method"] == "notifications/cancelled" or message.get("params", {}).get("arguments"):
            await asyncio.get_running_loop().create_future()
        return None

    with serving_app(old_era(special)) as url, host(tmp_path, evil={"url": url, "timeoutMs": 2_000}) as opened:
        error = opened.invoke_sync("evil:good", {"never": "answers"}).error
        assert error is not None and error.kind == "TIMEOUT"
        assert opened.invoke_sync("evil:good", {}).value == "well"


@pytest.mark.slow
def test_nothing_is_left_of_a_session_whose_end_the_server_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "CLOSE_S", 0.1)
    ended = threading.Event()

    async def special(request: web.Request, message: Any) -> web.StreamResponse | None:
        if message["method"] == "DELETE":
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ended.set()
        return None

    with serving_app(old_era(special)) as url, evil(url, tmp_path) as opened:
        assert opened.invoke_sync("evil:good", {}).value == "well"
        opened.wait(opened.upstreams.disconnect("evil"))
        assert ended.wait(20)


@pytest.mark.slow
def test_a_call_that_finds_no_free_connection_was_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECT_S", 0.5)
    made: list[int] = []

    async def special(request: web.Request, message: Any) -> web.StreamResponse | None:
        if message["method"] == "tools/call":
            made.append(message["id"])
            await asyncio.get_running_loop().create_future()
        return None

    with serving_app(old_era(special)) as url, host(tmp_path, evil={"url": url, "timeoutMs": 4_000}) as opened:
        opened.upstreams.refresh_sync("evil")

        async def calls() -> Any:
            return await asyncio.gather(*(opened.invoke("evil:good", {}) for _ in range(70)))

        errors = [result.error for result in opened.wait(calls())]
    refused = [error for error in errors if error.outcome == "none"]
    assert refused and all("busy with earlier requests" in error.message for error in refused)
    assert len(set(made)) == 70 - len(refused)


@pytest.mark.slow
@pytest.mark.parametrize("flaw", ["a result and an error", "half a character"])
def test_an_answer_that_the_protocol_does_not_have_says_nothing_of_what_was_done(flaw: str, tmp_path: Path) -> None:
    async def special(request: web.Request, message: Any) -> web.StreamResponse | None:
        if message["method"] != "tools/call":
            return None
        if flaw == "half a character":
            text = '{"content": [{"type": "text", "text": "secret \\ud800"}]}'
        else:
            text = '{"content": []}, "error": {"code": -32600, "message": "no"}'
        body = f'{{"jsonrpc": "2.0", "id": {message["id"]}, "result": {text}}}'
        return web.Response(text=body, content_type="application/json")

    with serving_app(old_era(special)) as url, evil(url, tmp_path) as opened:
        error = opened.invoke_sync("evil:good", {}).error
    assert error is not None and (error.kind, error.outcome) == ("UPSTREAM_ERROR", "unknown")
    assert "answers with what is not MCP" in error.message and "secret" not in error.message


async def _no_message(request: web.Request) -> web.Response:
    return web.json_response({"said": "\x1b[31mby a stranger"})


@pytest.mark.slow
@pytest.mark.anyio
async def test_what_the_library_logs_of_a_wrong_answer_is_not_printed(tmp_path: Path) -> None:
    app = web.Application()
    app.router.add_route("*", "/mcp", _no_message)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    (tmp_path / "tavern.yaml").write_text(
        f"upstreams: {{evil: {{kind: mcp, url: 'http://127.0.0.1:{runner.addresses[0][1]}/mcp'}}}}\n"
    )
    try:
        grant = partial(tavern, "plugins", "grant", "evil", "network", cwd=tmp_path, home=tmp_path / "home")
        granted = await asyncio.to_thread(grant)
        assert granted.returncode == 0, granted.stderr
        words = ["-m", "tavern_core", "--home", tmp_path / "home", "upstreams", "check", "evil"]
        done = await asyncio.to_thread(run_forked, words, cwd=tmp_path, imports=NETWORK)
    finally:
        await runner.cleanup()
    assert done.returncode == 1 and "error[UPSTREAM_ERROR]" in done.stderr
    assert "Traceback" not in done.stderr and "\x1b" not in done.stderr
