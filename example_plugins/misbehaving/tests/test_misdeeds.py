"""In the host's process misdeeds succeed, but for those that the host prevents there, too."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tavern_core.host
from tavern_core import Budget, CallContext, Tavern, ToolResult
from tavern_core.testing import ToolCaller


@pytest.fixture
def listener() -> Iterator[tuple[str, int]]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


@pytest.fixture(autouse=True)
def host_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tavern_core.host.Tavern, "__repr__", tavern_core.host.Tavern.__repr__)


def test_it_reads_and_writes_files_of_others(call_tool: ToolCaller, tmp_path: Path) -> None:
    file = tmp_path / "private.txt"
    call_tool("write_file", {"path": str(file)})
    assert call_tool("read_file", {"path": str(file)}).value == "I was here"
    assert call_tool("work_in_thread", {"path": str(file)}).ok


def test_it_talks_to_whom_it_likes(call_tool: ToolCaller, listener: tuple[str, int], tmp_path: Path) -> None:
    host, port = listener
    assert call_tool("connect_tcp", {"host": host, "port": port}).value == "connected"
    assert call_tool("send_udp", {"host": host, "port": port}).value == "sent"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path := str(tmp_path / "s"))
        server.listen()
        assert call_tool("connect_unix", {"path": path}).value == "connected"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_it_starts_processes(call_tool: ToolCaller) -> None:
    assert call_tool("start_program").value == 7
    assert call_tool("copy_process").value == 7


def test_it_looks_up_what_others_keep_in_the_environment(
    call_tool: ToolCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MISBEHAVING_API_TOKEN", "abc")
    assert call_tool("read_environment", {"name": "MISBEHAVING_API_TOKEN"}).value == "abc"


@pytest.mark.tavern(config={"secrets": {"key": "s3cr3t"}})
def test_it_gets_no_secret_and_no_service_that_was_not_granted(call_tool: ToolCaller) -> None:
    assert "secrets:key" in call_tool.refused("read_secret", {"name": "key"}).message
    assert "service:use:systemClock" in call_tool.refused("use_service", {"name": "systemClock"}).message


def test_a_callers_list_stays_as_it_was(call_tool: ToolCaller) -> None:
    names = ["a"]
    assert call_tool("change_arguments", {"names": names}).value == ["a", "changed"]
    assert names == ["a"]


def test_it_replaces_what_belongs_to_the_host(call_tool: ToolCaller, tavern: Tavern) -> None:
    call_tool("patch_host")
    assert repr(tavern) == "patched by a plugin"


def test_an_endless_loop_keeps_its_thread_and_lets_the_caller_go(tavern: Tavern, tmp_path: Path) -> None:
    until = tmp_path / "until"

    async def call() -> ToolResult:
        soon = CallContext(budget=Budget(timeout_ms=100))
        try:
            return await tavern.invoke("misbehaving:loop", {"until": str(until)}, context=soon)
        finally:
            until.touch()

    error = asyncio.run(call()).error
    assert error is not None
    assert error.kind == "TIMEOUT"


def test_a_flood_of_output_goes_where_the_host_prints(call_tool: ToolCaller, capfd: pytest.CaptureFixture[str]) -> None:
    call_tool("flood_output", {"megabytes": 2})
    printed = capfd.readouterr().out
    sys.stdout.write(printed)
    assert len(printed) > 2_000_000


@pytest.mark.tavern(config={"limits": {"outputBytes": 500_000}})
def test_a_flood_of_an_answer_is_refused(call_tool: ToolCaller) -> None:
    call_tool.refused("flood_answer", {"megabytes": 1}, kind="OUTPUT_TOO_LARGE")
