"""`tavern serve` in a process of its own, and the application inside another one."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from tavern_core import Tavern, tool
from tavern_core.__main__ import main
from tavern_core.errors import UsageError
from tavern_core.kernel.log.audit_log_queries import AuditLog
from tavern_core.server import app
from tests.forked_programs import ForkedProgram
from tests.plain_http import NO_TLS
from tests.state.processes import ENVIRONMENT


def command(folder: Path, *words: str) -> list[str]:
    return ["-m", "tavern_core", *words, "--home", str(folder / "home")]


@contextmanager
def serving(folder: Path, *words: str) -> Iterator[tuple[ForkedProgram, str]]:
    """A process that serves, and its address."""
    with ForkedProgram(command(folder, "serve", *words), cwd=folder, env=ENVIRONMENT, stderr=PIPE) as process:
        try:
            line = next(line for line in process.stderr if "serving" in line)
            found = re.search(r"http://[^ ;]+", line)
            assert found is not None, line
            yield process, found[0]
        finally:
            process.kill()


@pytest.mark.slow
def test_it_serves_until_it_is_interrupted_and_its_streams_end_with_it(tmp_path: Path) -> None:
    with Tavern.open({}, home=tmp_path / "home") as tavern:
        token = tavern.tokens.create("user:v", roles=["operator"])[1]
    shown = {"authorization": f"Bearer {token}"}
    (tmp_path / "tavern.yaml").write_text('server: {address: "127.0.0.1:0"}\n', "utf-8")
    with serving(tmp_path) as (process, address), httpx2.Client(headers=shown, timeout=30, verify=NO_TLS) as client:
        assert client.get(f"{address}/readyz").text == "ready\n"
        assert {each["id"] for each in client.get(f"{address}/api/nodes").json()} >= {"core:Case"}
        with client.websocket(f"{address}/ws".replace("http", "ws", 1)) as connection:
            assert json.loads(connection.receive_text(timeout=30))["type"] == "CONNECTED"
            body = {"arguments": {"timezone": "UTC"}}
            assert client.post(f"{address}/api/tools/system:get_current_time/invoke", json=body).json()["ok"] is True
            assert json.loads(connection.receive_text(timeout=30))["type"] == "TOOL_CALLED"
            with client.stream("GET", f"{address}/api/events") as answer:
                lines = answer.iter_lines()
                assert [next(lines).partition(":")[0] for _ in range(3)] == ["id", "data", ""]
                process.send_signal(signal.SIGINT)
                assert [line for line in lines if line.startswith("data: ")] == []
        assert process.wait(20) in (0, 130)
    assert AuditLog(tmp_path / "home").verify().ok


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--http", "0.0.0.0:0"), "--insecure"),
        (("--http", "[::]:0"), "--insecure"),
        (("--http", "example.com:0"), "--insecure"),
        (("--http", "nonsense"), "HOST:PORT"),
        (("--http", "127.0.0.1:99999"), "HOST:PORT"),
        (("--http", "127.0.0.1:{taken}"), "cannot listen on"),
        (("--set", "server.address=here"), "HOST:PORT"),
        (("--set", "server.streams=0"), "server.streams"),
    ],
)
def test_what_cannot_be_served_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = [word.format(taken=taken.getsockname()[1]) for word in words]
        assert main(["serve", *given, "--home", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert says in said and "Traceback" not in said


STOPS = """
from pathlib import Path
from tavern_core import hookimpl, tool

@tool
def ping() -> str:
    "Answers."
    return "pong"

@hookimpl
def tavern_register_tools(ctx):
    return [ping]

@hookimpl
def tavern_stop(ctx):
    Path("stopped").write_text("yes")
"""


@pytest.mark.slow
def test_it_serves_other_machines_if_the_operator_says_so_and_closes_the_host_when_it_is_terminated(
    tmp_path: Path,
) -> None:
    plugin = tmp_path / "plugins" / "stops"
    plugin.mkdir(parents=True)
    (plugin / "plugin.yaml").write_text(
        'name: stops\nversion: "1"\ntools: [{id: ping, implementation: {type: python}}]\n', "utf-8"
    )
    (plugin / "__init__.py").write_text(STOPS, "utf-8")
    (tmp_path / "tavern.yaml").write_text("plugins: {entryPoints: false}\n", "utf-8")
    with Tavern.open(tmp_path / "tavern.yaml", home=tmp_path / "home") as tavern:
        shown = {"authorization": f"Bearer {tavern.tokens.create('agent:x')[1]}"}
    with serving(tmp_path, "--http", "0.0.0.0:0", "--insecure") as (process, address):
        port = address.rpartition(":")[2]
        assert httpx2.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
        assert httpx2.get(f"http://127.0.0.1:{port}/healthz", headers={"host": f"0.0.0.0:{port}"}).status_code == 421
        called = httpx2.post(f"http://127.0.0.1:{port}/api/tools/stops:ping/invoke", json={}, headers=shown, timeout=30)
        assert called.json()["value"] == "pong"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
    assert (tmp_path / "stopped").exists()


def test_without_its_extra_the_server_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tavern_core.server.api.application", None)
    with Tavern.open({}, home=tmp_path) as tavern, pytest.raises(UsageError, match="extra server") as refused:
        app(tavern)
    assert refused.value.hint == "pip install 'tavern-core[server]'"


@pytest.mark.anyio
async def test_it_is_an_application_that_can_be_mounted(tmp_path: Path) -> None:
    @tool
    def one() -> int:
        """One."""
        return 1

    async with Tavern.open({}, plugins=[one], home=tmp_path) as tavern:
        mounted = app(tavern, hosts=["inside.test"])
        outer = Starlette(routes=[Mount("/tavern", mounted)])
        shown = {"authorization": f"Bearer {tavern.tokens.create('agent:x')[1]}"}
        transport = httpx2.ASGITransport(outer)
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://inside.test/tavern", headers=shown
        ) as client:
            called = await client.post("/api/tools/one:one/invoke", json={})
            assert called.status_code == 200, called.text
            assert called.json()["value"] == 1
            assert (await client.get("/api/none")).json()["detail"] == "there is no route /api/none"
            assert (
                await client.post("/mcp", content=b"{}", headers={"content-type": "application/json"})
            ).status_code == 400
        await mounted.close()
