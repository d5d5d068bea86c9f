"""Logging in to an MCP server with `tavern upstreams connect`: what a person sees, and what later processes do alone."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from threading import Thread
from typing import Any, ClassVar, cast
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
import yaml

from tavern_core import Budget, CallContext, Tavern
from tavern_core.builtin.adapters.mcp.connection import connected
from tavern_core.builtin.adapters.mcp.login import login
from tavern_core.contract.adapters import Upstream
from tavern_core.errors import CallError, UpstreamError
from tests.forked_programs import NETWORK, ForkedProgram, run_forked
from tests.guards.web import Web, http, web
from tests.isolation.waiting import until
from tests.programs import tavern
from tests.upstreams.direct import DirectUpstream
from tests.upstreams.mcp_hosts import listening

TOOLS = ["docs:forget", "docs:meet", "docs:refreshed", "docs:repeat", "docs:scope"]
TAVERN = ["-m", "tavern_core"]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of the server of `mcp_login.py`."""
    with listening("mcp_login.py") as address:
        yield address


@pytest.fixture(scope="module")
def lasting() -> Iterator[str]:
    """The address of one whose tokens hold for an hour."""
    with listening("mcp_login.py", "3600") as address:
        yield address


@pytest.fixture
def project(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the server as the granted upstream `docs`."""
    return made(server, tmp_path, monkeypatch)


@pytest.fixture
def lasting_project(lasting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One with the server whose tokens hold for an hour."""
    return made(lasting, tmp_path, monkeypatch)


def made(server: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TAVERN_HOME", str(folder / ".tavern"))
    ran("upstreams", "add", "mcp", "--name", "docs", server)
    ran("plugins", "grant", "docs", "network")
    return folder


def ran(*words: str, expected: int = 0) -> str:
    done = tavern(*words, cwd=Path.cwd())
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout + done.stderr


def logged_in() -> dict[str, str]:
    """Connect as a person does: read the address, open it, wait for the command. What the address asks for."""
    words = [*TAVERN, "upstreams", "connect", "docs", "--json"]
    with ForkedProgram(words, stdout=PIPE, stderr=PIPE, imports=NETWORK) as command:
        address = next(line.strip() for line in command.stderr if line.startswith("  http"))
        with urllib.request.urlopen(address) as page:  # follows the redirect to the port of the command
            assert b"You can close this page" in page.read()
        shown = json.loads(command.stdout.read())
        assert command.wait(60) == 0
    assert (shown["state"], sorted(shown["tools"])) == ("open", TOOLS)
    return {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}


def asked(server: str, what: str) -> list[int]:
    """How often the server refreshed tokens, and refused forgotten ones; ``release`` lets what it holds go."""
    with urllib.request.urlopen(f"{server.rpartition('/')[0]}/{what}") as answer:
        return list(json.loads(answer.read()))


@pytest.mark.slow
def test_a_call_before_the_login_names_the_command_that_helps(project: Path) -> None:
    assert "tavern upstreams connect docs" in ran("upstreams", "check", "docs", expected=1)


@pytest.mark.slow
def test_after_a_login_every_process_calls_and_refreshes_the_tokens_alone(project: Path) -> None:
    logged_in()
    with Tavern.open() as host:
        before = host.invoke_sync("docs:refreshed", {})
        assert before.ok, before.error
        deadline = time.monotonic() + 30
        while host.invoke_sync("docs:refreshed", {}).value == before.value:  # a token holds for a second
            assert time.monotonic() < deadline
    done = run_forked([*TAVERN, "tools", "call", "docs:refreshed"], imports=NETWORK)
    found = re.search(r"\d+", done.stdout)
    assert found is not None and int(found[0]) > 0, done.stderr


@pytest.mark.slow
def test_a_login_that_fails_says_so_once_and_leaves_the_one_before(project: Path) -> None:
    logged_in()
    words = [*TAVERN, "upstreams", "connect", "docs"]
    with ForkedProgram(words, stdout=PIPE, stderr=PIPE, imports=NETWORK) as command:
        address = next(line.strip() for line in command.stderr if line.startswith("  http"))
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        for state in ("", "&state=guessed"):  # a page that guesses the port ends no login
            with pytest.raises(HTTPError, match="404"):
                urllib.request.urlopen(f"{asked['redirect_uri']}?error=access_denied{state}")
        urllib.request.urlopen(f"{asked['redirect_uri']}?error=access_denied&state={asked['state']}").close()
        said = command.stderr.read()
        assert command.wait(60) == 1
    assert "the server refused: access_denied" in said
    assert "Traceback" not in said and "http://127.0.0.1" not in said
    assert json.loads(ran("tools", "call", "docs:refreshed"))["result"] >= 0


@pytest.mark.slow
def test_processes_that_refresh_in_turn_lose_no_login(project: Path) -> None:
    logged_in()
    with Tavern.open() as one, Tavern.open() as other:
        begun = one.invoke_sync("docs:refreshed", {}).value["result"]
        deadline = time.monotonic() + 60
        now = begun
        while now < begun + 3:
            for host in (other, one):
                done = host.invoke_sync("docs:refreshed", {})
                assert done.ok, done.error
                now = done.value["result"]
            assert time.monotonic() < deadline


@pytest.mark.slow
def test_tokens_are_in_no_file_that_others_can_read_and_in_no_output(project: Path) -> None:
    logged_in()
    holding = [file for file in project.rglob("*") if file.is_file() and b"refresh-" in file.read_bytes()]
    assert holding and all(file.stat().st_mode & 0o077 == 0 for file in holding)
    assert "access-" not in ran("upstreams", "show", "docs", "--json")
    assert "access-" not in ran("logs", "show", "--json")


@pytest.mark.slow
def test_a_server_that_repeats_a_token_shows_it_to_no_one(lasting_project: Path) -> None:
    logged_in()
    with Tavern.open() as host:
        for _ in range(3):
            assert host.invoke_sync("docs:repeat", {}).value == {"result": "it was ***"}
            assert host.invoke_sync("docs:forget", {}).ok  # so that the next call gets another token
    assert "it was ***" in ran("tools", "call", "docs:repeat")
    assert "access" not in ran("logs", "show", "--json")


@pytest.mark.slow
def test_tokens_serve_only_the_upstream_they_were_given_to(project: Path, server: str) -> None:
    logged_in()
    ran("upstreams", "add", "mcp", "--name", "other", server)
    ran("plugins", "grant", "other", "network")
    assert "tavern upstreams connect other" in ran("upstreams", "check", "other", expected=1)


@pytest.mark.slow
def test_tokens_that_the_server_ends_before_their_time_are_refreshed(lasting_project: Path) -> None:
    logged_in()
    with Tavern.open() as one, Tavern.open() as other:
        for host in (one, other, one):
            assert host.invoke_sync("docs:forget", {}).ok
            refreshed = host.invoke_sync("docs:refreshed", {})
            assert refreshed.ok, refreshed.error
    assert json.loads(ran("tools", "call", "docs:refreshed"))["result"] >= 3


@pytest.mark.slow
def test_a_call_waits_for_no_other(lasting_project: Path) -> None:
    logged_in()
    with Tavern.open() as host, ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(host.invoke_sync, "docs:meet", {}) for _ in range(2)]
        assert all(call.result().ok for call in calls)


@pytest.mark.slow
def test_an_open_host_goes_on_with_the_tokens_of_a_new_login(lasting_project: Path) -> None:
    logged_in()
    with Tavern.open() as host:
        assert host.invoke_sync("docs:forget", {"everything": True}).ok
        refused = host.invoke_sync("docs:refreshed", {}).error
        assert refused is not None and "tavern upstreams connect docs" in refused.fix
        logged_in()
        again = host.invoke_sync("docs:refreshed", {})
        assert again.ok, again.error


@pytest.mark.slow
def test_of_two_that_refresh_at_once_the_slower_one_takes_what_the_other_got(
    lasting_project: Path, lasting: str
) -> None:
    logged_in()
    with Tavern.open() as one, Tavern.open() as other, ThreadPoolExecutor(2) as threads:
        assert all(host.invoke_sync("docs:refreshed", {}).ok for host in (one, other))
        refreshed, _ = asked(lasting, "state")
        assert one.invoke_sync("docs:forget", {"hold": True}).ok
        answers = threads.map(lambda host: host.invoke_sync("docs:refreshed", {}), (one, other))
        until(lambda: asked(lasting, "state") >= [refreshed + 1, 2], 60)  # one waits for tokens, the other needs some
        asked(lasting, "release")
        for answer in answers:
            assert answer.ok, answer.error
            assert answer.value["result"] == refreshed + 1


@pytest.mark.slow
def test_a_call_that_is_cancelled_while_tokens_are_refreshed_costs_no_login(
    lasting_project: Path, lasting: str
) -> None:
    logged_in()
    with Tavern.open() as host:
        refreshed, _ = asked(lasting, "state")
        assert host.invoke_sync("docs:forget", {"hold": True}).ok
        job = host.invoke_sync("docs:refreshed", {}, job=True).job
        until(lambda: asked(lasting, "state") >= [refreshed + 1, 1], 60)
        assert job is not None and host.jobs.cancel(job)
        until(lambda: host.jobs.find(job).status == "cancelled", 60)
        asked(lasting, "release")
        again = host.invoke_sync("docs:refreshed", {})
        assert again.ok, again.error
        assert again.value["result"] == refreshed + 1


@pytest.mark.slow
def test_tokens_that_are_being_refreshed_when_the_host_is_closed_are_kept(lasting_project: Path, lasting: str) -> None:
    logged_in()
    with ThreadPoolExecutor(1) as threads, Tavern.open() as host:
        refreshed, _ = asked(lasting, "state")
        assert host.invoke_sync("docs:forget", {"hold": True}).ok
        call = threads.submit(host.invoke_sync, "docs:refreshed", {})
        until(lambda: asked(lasting, "state") >= [refreshed + 1, 1], 60)
        closing = Thread(target=host.__exit__, args=(None, None, None))
        closing.start()
        assert not call.result().ok
        asked(lasting, "release")
        closing.join()
    assert json.loads(ran("tools", "call", "docs:refreshed"))["result"] == refreshed + 1


@pytest.mark.slow
def test_a_server_that_cannot_refresh_tokens_now_is_asked_again(lasting_project: Path, lasting: str) -> None:
    logged_in()
    with Tavern.open() as host:
        assert host.invoke_sync("docs:forget", {"busy": True}).ok
        refused = host.invoke_sync("docs:refreshed", {}).error
        assert refused is not None and refused.retryable and "cannot be refreshed now: HTTP 503" in refused.message
        asked(lasting, "release")
        again = host.invoke_sync("docs:refreshed", {})
        assert again.ok, again.error


@pytest.mark.slow
def test_refreshing_has_a_time_limit_and_an_error_that_no_one_waits_for_is_not_printed(
    lasting_project: Path, lasting: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tavern_core.builtin.adapters.mcp.login.REFRESH_S", 0.5)
    logged_in()
    with Tavern.open() as host:
        assert host.invoke_sync("docs:forget", {"hold": True}).ok
        brief = CallContext(principal="user:ann", permissions=frozenset({"network"}), budget=Budget(timeout_ms=100))
        stopped = host.invoke_sync("docs:refreshed", {}, context=brief).error
        assert stopped is not None and stopped.kind == "TIMEOUT"
        refused = host.invoke_sync("docs:refreshed", {}).error
        assert refused is not None and not refused.retryable
        asked(lasting, "release")
    assert "never retrieved" not in caplog.text


@pytest.mark.slow
def test_the_login_after_a_refusal_asks_for_the_scope_that_was_missing(lasting_project: Path) -> None:
    assert "scope" not in logged_in()
    with Tavern.open() as host:
        refused = host.invoke_sync("docs:scope", {}).error
        assert refused is not None and refused.kind == "POLICY_DENIED" and "upstreams connect docs" in refused.fix
        assert host.invoke_sync("docs:refreshed", {}).ok
        assert logged_in()["scope"] == "secrets"
    assert json.loads(ran("tools", "call", "docs:scope"))["result"] == "secrets"


@pytest.mark.slow
def test_the_scope_of_the_settings_is_what_a_login_asks_for(lasting_project: Path) -> None:
    config = lasting_project / "tavern.yaml"
    entry = yaml.safe_load(config.read_text("utf-8"))
    entry["upstreams"]["docs"]["settings"] = {"scope": "notes secrets"}
    config.write_text(yaml.safe_dump(entry), "utf-8")
    ran("plugins", "grant", "docs", "network")
    assert logged_in()["scope"] == "notes secrets"
    assert json.loads(ran("tools", "call", "docs:scope"))["result"] == "notes secrets"


class Keeping:
    """An upstream with tokens, as far as a login needs one."""

    name, url = "docs", "http://127.0.0.1:9/mcp"
    settings: ClassVar[dict[str, str]] = {"clientId": "us"}
    headers: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        tokens = {"access_token": "old", "refresh_token": "once", "token_type": "Bearer", "expires_in": 3600}
        self.kept = json.dumps({"tokens": tokens, "expires": time.time() + 3600})
        self.is_locked = False

    def load(self, name: str) -> str:
        return self.kept

    def save(self, name: str, text: str) -> None:
        self.kept = text

    @asynccontextmanager
    async def lock(self, name: str) -> AsyncIterator[None]:
        self.is_locked = True
        yield
        self.is_locked = False


@pytest.mark.anyio
async def test_tokens_that_end_while_another_request_begins_are_refreshed_by_one_process_alone() -> None:
    upstream, locked = Keeping(), []

    async def send(request: httpx2.Request) -> httpx2.Response:
        locked.append(upstream.is_locked)
        fresh = {"access_token": "new", "refresh_token": "next", "token_type": "Bearer", "expires_in": 3600}
        return httpx2.Response(200, json=fresh, request=request)

    async with login(cast(Upstream, upstream), None, send) as provider:
        assert provider is not None
        first, second = (httpx2.Request("POST", upstream.url) for _ in range(2))
        flow, other = provider.async_auth_flow(first), provider.async_auth_flow(second)
        await anext(flow)
        beginning = asyncio.ensure_future(anext(other))
        await asyncio.sleep(0)
        await flow.asend(httpx2.Response(401, request=first))
        await beginning
        await asyncio.gather(flow.aclose(), other.aclose())
    assert locked == [True]
    assert first.headers["authorization"] == "Bearer new"


@pytest.mark.anyio
async def test_an_authorization_server_that_cannot_be_reached_is_named_and_costs_no_tokens() -> None:
    upstream = Keeping()
    before = upstream.kept = json.dumps({**json.loads(upstream.kept), "expires": 1.0})

    async def send(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused", request=request)

    async with login(cast(Upstream, upstream), None, send) as provider:
        assert provider is not None
        with pytest.raises(
            UpstreamError, match=r"cannot be refreshed now: its authorization server 127.0.0.1"
        ) as failed:
            await anext(provider.async_auth_flow(httpx2.Request("POST", upstream.url)))
    assert (failed.value.retryable, failed.value.outcome, upstream.kept) == (True, "none", before)


TOKENS = {"access_token": "given", "refresh_token": "renewing", "token_type": "Bearer"}


async def attempted(
    folder: Path,
    metadata: dict[str, Any],
    tokens: dict[str, Any] = TOKENS,
    *,
    challenge: str = "Bearer",
    answer: bytes | None = None,
    **settings: Any,
) -> tuple[CallError, str, Web]:
    """Log in at a server that refuses every token: the error, the address for the person, and the server.

    Args:
        metadata: what the authorization server says of itself, besides its issuer and endpoints.
        tokens: what it hands out.
        challenge: how the server asks for a login.
        answer: what it answers instead of tokens.
        settings: those of the entry.
    """
    with web() as server:
        place = server.url("")
        said = {"issuer": place, "authorization_endpoint": f"{place}/login", "token_endpoint": f"{place}/token"}
        said |= {"response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"]}
        said |= {name: f"{place}{value}" if name.endswith("_endpoint") else value for name, value in metadata.items()}
        server.answers["/mcp"] = http(b"", "401 Unauthorized", WWW_Authenticate=challenge)
        server.answers["/.well-known/oauth-authorization-server"] = http(json.dumps(said).encode())
        server.answers["/token"] = answer or http(json.dumps(tokens).encode(), Content_Type="application/json")
        shown: list[str] = []

        def show(address: str) -> None:
            shown.append(address)
            wanted = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
            back = f"{wanted['redirect_uri']}?code=agreed&state={wanted['state']}"
            Thread(target=lambda: urllib.request.urlopen(back).close(), daemon=True).start()

        upstream = DirectUpstream(folder, url=f"{place}/mcp", settings=settings)
        try:
            with pytest.raises(CallError) as failed:
                await connected(upstream, show)
        finally:
            upstream.close()
    return failed.value, next(iter(shown), ""), server


PKCE = "does not support PKCE with S256"
OURS = {"clientId": "us"}
REFUSED_LOGINS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str, str]] = {
    "no PKCE": ({"code_challenge_methods_supported": []}, TOKENS, OURS, PKCE, ""),
    "PKCE without a hash": ({"code_challenge_methods_supported": ["plain"]}, TOKENS, OURS, PKCE, ""),
    "no registration": ({}, TOKENS, {}, "Registration failed: 404", "write its `clientId` into `settings` of server"),
    "no token": ({}, {**TOKENS, "access_token": None}, OURS, "access_token: Input should be a valid string", ""),
    "another kind of token": ({}, {**TOKENS, "token_type": "mac"}, OURS, "token_type: Input should be 'Bearer'", ""),
}
"""Metadata, tokens and settings of a login; what is wrong with it, and what helps."""


@pytest.mark.parametrize("case", REFUSED_LOGINS)
@pytest.mark.anyio
async def test_a_login_that_cannot_succeed_says_why_and_shows_no_token(case: str, tmp_path: Path) -> None:
    metadata, tokens, settings, why, fix = REFUSED_LOGINS[case]
    error, shown, _ = await attempted(tmp_path, metadata, tokens, **settings)
    assert why in error.message and fix in error.hint
    assert "renewing" not in error.message and "given" not in error.message
    assert bool(shown) == (metadata == {} and settings != {})


ANSWERS: dict[str, tuple[bytes, str]] = {
    "tokens with another status": (http(json.dumps(TOKENS).encode(), "202 Accepted"), "Token exchange failed (202)"),
    "no text": (
        http(b'{"access_token": "given\xff"}', "400 Bad Request"),
        "an answer of its authorization server is not text",
    ),
    "an error": (
        http(b'{"error": "invalid_grant", "error_description": "used", "code": "given"}', "400 Bad Request"),
        "Token exchange failed (400): invalid_grant: used",
    ),
}


@pytest.mark.parametrize("case", ANSWERS)
@pytest.mark.anyio
async def test_the_error_of_a_login_quotes_of_an_answer_only_what_it_says_of_the_error(
    case: str, tmp_path: Path
) -> None:
    answer, why = ANSWERS[case]
    error, _, _ = await attempted(tmp_path, {}, answer=answer, **OURS)
    assert error.code == "UPSTREAM_ERROR" and error.message.endswith(why)
    assert "given" not in error.message


@pytest.mark.parametrize(
    "address",
    ["file:///etc/passwd", "//evil.test/x", "gopher://evil.test", "http://[::1", "http://127.0.0.1:99999/x"],
)
@pytest.mark.anyio
async def test_a_server_that_leads_to_no_address_of_http_is_quoted(address: str, tmp_path: Path) -> None:
    error, _, _ = await attempted(tmp_path, {}, challenge=f'Bearer resource_metadata="{address}"')
    assert (error.code, "not an address of HTTP" in error.message) == ("UPSTREAM_ERROR", True)


@pytest.mark.anyio
async def test_a_login_names_the_authorization_server_that_does_not_answer(tmp_path: Path) -> None:
    error, _, _ = await attempted(tmp_path, {}, challenge='Bearer resource_metadata="http://127.0.0.1:9/x"')
    assert "its authorization server 127.0.0.1:9 does not answer" in error.message
    assert (error.code, error.outcome, error.retryable) == ("UPSTREAM_ERROR", "none", True)


@pytest.mark.anyio
async def test_a_port_that_is_taken_is_named_with_its_setting(tmp_path: Path) -> None:
    with web() as other:
        error, _, _ = await attempted(tmp_path, {}, redirectPort=other.port)
    assert f"port {other.port}" in error.message and "`redirectPort`" in error.hint


@pytest.mark.parametrize(
    ("accepted", "is_in_body"),
    [(None, False), (["client_secret_post"], True), (["client_secret_basic", "client_secret_post"], False)],
)
@pytest.mark.anyio
async def test_the_secret_of_a_client_is_sent_as_the_server_accepts_it(
    accepted: list[str] | None, is_in_body: bool, tmp_path: Path
) -> None:
    metadata = {"token_endpoint_auth_methods_supported": accepted}
    _, _, server = await attempted(tmp_path, metadata, **OURS, clientSecret="quiet")
    asked = next(i for i, head in enumerate(server.asked) if head.startswith("POST /token"))
    assert (b"client_secret=quiet" in server.bodies[asked]) == is_in_body
    assert ("authorization: basic" in server.asked[asked].lower()) != is_in_body


@pytest.mark.anyio
async def test_the_address_to_log_in_keeps_the_query_of_its_endpoint(tmp_path: Path) -> None:
    metadata = {"authorization_endpoint": "/login?tenant=a", "code_challenge_methods_supported": None}
    _, shown, _ = await attempted(tmp_path, metadata, **OURS)
    query = parse_qs(urlsplit(shown).query)
    assert query["tenant"] == ["a"] and query["client_id"] == ["us"]
    assert query["code_challenge_method"] == ["S256"]


@pytest.mark.parametrize(
    ("status", "headers", "why", "fix"),
    [
        ("401 Unauthorized", {}, "wants to know who calls", "tavern upstreams connect server, or write the header"),
        ("401 Unauthorized", {"Authorization": "Bearer old"}, "does not accept the header", "correct the header"),
        ("403 Forbidden", {}, "for it requires the scope 'notes'", "tavern upstreams connect server asks for more"),
        (
            "403 Forbidden",
            {"Authorization": "Bearer old"},
            "requires the scope 'notes'",
            "give the token of its header",
        ),
    ],
)
@pytest.mark.anyio
async def test_a_refusal_says_what_helps_the_entry_as_it_is_written(
    status: str, headers: dict[str, str], why: str, fix: str, tmp_path: Path
) -> None:
    with web() as server:
        challenge = 'Bearer error="insufficient_scope", scope="notes"'
        server.answers["/mcp"] = http(b"", status, WWW_Authenticate=challenge)
        upstream = DirectUpstream(tmp_path, url=server.url("/mcp"), headers=headers)
        try:
            with pytest.raises(CallError) as failed:
                await connected(upstream)
        finally:
            upstream.close()
    assert why in failed.value.message and failed.value.hint.startswith(fix)
