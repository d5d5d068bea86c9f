"""MCP servers of both eras as upstreams: what their tools answer, how they fail, ask, take long and change."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tavern_core import CallContext, Tavern, ToolResult
from tavern_core.errors import TavernError
from tests.executors.workbench import processes_with
from tests.rows import each_row
from tests.upstreams.mcp_hosts import ERAS, host, program

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def opened(era: str, home: Path, *words: str) -> Iterator[Tavern]:
    """A host with the server of `mini_mcp.py`, outside of the sandbox, so that it can write its log."""
    entry = {"command": program("mini_mcp.py", era, *words), "trusted": True, "tools": {"wait": {"timeoutMs": 1_000}}}
    with host(home, mini=entry) as tavern:
        tavern.upstreams.refresh_sync("mini")
        yield tavern


@pytest.fixture(scope="module")
def folder(era: str) -> Iterator[Path]:
    """Of the host that tests share."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@pytest.fixture(scope="module")
def shared(era: str, folder: Path) -> Iterator[Tavern]:
    """The host of the tests that leave it and its server as they were."""
    with opened(era, folder / "home", str(folder / "server.log")) as tavern:
        yield tavern


@pytest.fixture
def log(folder: Path) -> Path:
    """What the shared server writes down, empty at first."""
    (folder / "server.log").write_text("")
    return folder / "server.log"


@pytest.fixture
def mini(era: str, tmp_path: Path) -> Iterator[Tavern]:
    """A host and a server of one test alone."""
    with opened(era, tmp_path / "home") as tavern:
        yield tavern


def test_all_pages_of_the_list_are_read(shared: Tavern) -> None:
    tools = shared.upstreams["mini"].tools
    assert len(tools) == 17 and "mini:echo" in tools and "mini:wait" in tools
    assert shared.upstreams["mini"].version == shared.tools["mini:echo"].version == "7"
    assert shared.upstreams["mini"].description == "Be brief."


def test_a_structured_answer_is_the_value(shared: Tavern) -> None:
    result = shared.invoke_sync("mini:echo", {"text": "你好"})
    assert result.value == {"text": "你好"}
    assert result.content == ({"type": "text", "text": "你好"},)


def test_arguments_are_validated_before_the_server_sees_them(shared: Tavern) -> None:
    assert shared.invoke_sync("mini:echo", {"text": 5}).error.kind == "INPUT_SCHEMA_INVALID"  # type: ignore[union-attr]


def test_every_kind_of_content_arrives_and_bytes_are_artifacts_of_the_caller(shared: Tavern) -> None:
    alice = CallContext(principal="user:alice", permissions=frozenset({"process:host", "process:spawn"}))
    result = shared.invoke_sync("mini:parts", {}, context=alice)
    kinds = [block["type"] for block in result.content]
    assert kinds == [
        "text",
        "resource_link",
        "resource_link",
        "resource_link",
        "resource_link",
        "resource",
        "resource_link",
        "text",
        "text",
    ]
    image = result.content[1]
    assert image["mimeType"] == "image/png"
    assert shared.artifacts.read(image["uri"].rpartition(":")[2], context=alice) == b"\x89PNG pixel"
    assert result.content[3] == {"type": "resource_link", "uri": "mini://note", "name": "note"}
    assert result.content[4] == {"type": "resource_link", "uri": "mini://odd", "name": "mini://odd"}
    assert result.content[5]["resource"]["text"] == "inside"
    assert result.content[6]["name"] == "blob.bin"
    assert "hologram" in result.content[7]["text"]


@each_row("kind", ["image", "audio"])
@each_row(
    ("data", "kept"),
    [
        ("aGk=", b"hi"),
        ("aG\r\nk=\n", b"hi"),
        ("!!!!", None),
        ("aGk", None),
        ("aGk=aGk=", None),
        ("data:image/png;base64,aGk=", None),
        ("图片", None),
    ],
)
def test_bytes_that_are_no_base64_become_a_text_that_says_so(
    shared: Tavern, kind: str, data: str, kept: bytes | None
) -> None:
    (block,) = shared.invoke_sync("mini:encoded", {"kind": kind, "data": data}).content
    if kept is None:
        assert block == {"type": "text", "text": f"[encoded-{kind}: its data is not base64]"}
    else:
        assert shared.artifacts.read(block["uri"].rpartition(":")[2]) == kept


FAILURES: dict[str, tuple[str, str, str]] = {
    "fail": ("TOOL_ERROR", "the disk is full", "unknown"),
    "refuse": ("INPUT_SCHEMA_INVALID", "x must be a number", "none"),
    "missing": ("TOOL_NOT_FOUND", "no tool 'missing' any more", "none"),
    "broken": ("UPSTREAM_ERROR", "out of order", "unknown"),
    "strange": ("UPSTREAM_ERROR", "'riddle', which is unknown", "unknown"),
}


@pytest.mark.parametrize("tool", FAILURES)
def test_each_failure_has_its_own_error(tool: str, shared: Tavern) -> None:
    kind, message, outcome = FAILURES[tool]
    error = shared.invoke_sync(f"mini:{tool}", {}).error
    assert error is not None
    assert (error.kind, error.outcome) == (kind, outcome)
    assert message in error.message
    assert "abcdefgh" not in str(error.to_json())


def test_a_server_that_died_is_started_again(mini: Tavern) -> None:
    error = mini.invoke_sync("mini:die", {}).error
    assert error is not None
    assert (error.kind, error.outcome) == ("CONNECTION_LOST", "unknown")
    assert "ended with code 3: I cannot go on" in error.message
    assert "abcdefgh" not in str(error.to_json())
    mini.upstreams.check_sync("mini")
    assert mini.invoke_sync("mini:echo", {"text": "again"}).ok


def test_calls_just_after_their_server_was_killed_reach_the_next_one(
    era: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = str(tmp_path / "server.log")

    async def killed_and_called() -> list[ToolResult]:
        """Without a turn of the loop in between: the end of the server is not known yet."""
        for pid in processes_with(log):
            os.kill(pid, signal.SIGKILL)
        while processes_with(log):
            pass
        return await asyncio.gather(*(mini.invoke("mini:echo", {"text": str(n)}) for n in range(4)))

    with opened(era, tmp_path / "home", log) as mini:
        assert [result.value for result in mini.wait(killed_and_called())] == [{"text": str(n)} for n in range(4)]
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_server_that_does_not_know_ping_is_there_all_the_same(tmp_path: Path) -> None:
    entry = {"command": program("mini_mcp.py", "2025"), "trusted": True, "environment": {"NO_PING": "1"}}
    with host(tmp_path / "home", mini=entry) as opened:
        opened.upstreams.refresh_sync("mini")
        state = opened.upstreams.check_sync("mini")
        assert not state.last_error, state


def test_progress_reaches_whoever_listens(shared: Tavern) -> None:
    seen: list[Any] = []
    unsubscribe = shared.events.subscribe(seen.append, "TOOL_PROGRESS")
    assert shared.invoke_sync("mini:steps", {}).value == "walked"
    unsubscribe()
    assert seen[0].data["message"] == "step 0"


def _written(log: Path) -> list[str]:
    """The lines of a server, without those about traces, which it writes once a test has set up OpenTelemetry."""
    return [line for line in log.read_text().splitlines() if not line.startswith("trace ")]


def test_a_cancelled_call_is_cancelled_at_the_server(shared: Tavern, log: Path) -> None:
    async def call() -> None:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()
        unsubscribe = shared.events.subscribe(lambda _: loop.call_soon_threadsafe(begun.set), "TOOL_PROGRESS")
        task = asyncio.create_task(shared.invoke("mini:wait", {}))
        await begun.wait()
        unsubscribe()
        task.cancel()
        await asyncio.wait([task])
        assert (await shared.invoke("mini:echo", {"text": "still there"})).ok

    asyncio.run(call())
    assert _written(log) == ["waiting", "cancelled"]


def test_a_deadline_ends_the_work_at_the_server(shared: Tavern, log: Path) -> None:
    result = shared.invoke_sync("mini:wait", {})
    assert result.error is not None and result.error.kind == "TIMEOUT"
    assert shared.invoke_sync("mini:echo", {"text": "x"}).ok
    assert _written(log) == ["waiting", "cancelled"]


def test_many_calls_share_one_server(shared: Tavern) -> None:
    async def calls() -> list[ToolResult]:
        return await asyncio.gather(*(shared.invoke("mini:echo", {"text": str(n)}) for n in range(50)))

    assert [result.value["text"] for result in asyncio.run(calls())] == [str(n) for n in range(50)]


def test_a_changed_list_is_listed_again(mini: Tavern) -> None:
    changed = threading.Event()
    mini.events.subscribe(lambda event: changed.set(), "TOOLS_CHANGED")
    assert mini.invoke_sync("mini:change", {}).ok
    assert changed.wait(10)
    assert "mini:added" in mini.upstreams["mini"].tools


def test_resources_and_prompts_can_be_read(shared: Tavern) -> None:
    async def read() -> tuple[Any, ...]:
        upstreams = shared.upstreams
        return (
            await upstreams.resources("mini"),
            await upstreams.read_resource("mini", "mini://note"),
            await upstreams.prompts("mini"),
            await upstreams.get_prompt("mini", "greet", {"who": "Ada"}),
        )

    def refused(permissions: set[str]) -> set[str]:
        async def ask() -> set[str]:
            caller = CallContext(principal="user:ann", permissions=frozenset(permissions))
            found: set[str] = set()
            for asked in (
                shared.upstreams.read_resource("mini", "mini://note", context=caller),
                shared.upstreams.get_prompt("mini", "greet", {"who": "Ada"}, context=caller),
            ):
                try:
                    await asked
                except TavernError as error:
                    found.add(error.code)
            return found

        return asyncio.run(ask())

    assert refused(set()) == {"POLICY_DENIED"} and refused({"process:host"}) == set()
    resources, note, prompts, prompt = asyncio.run(read())
    assert [one.get("uri") or one["uriTemplate"] for one in resources] == ["mini://note", "mini://{id}"]
    assert note["contents"][0]["text"] == "a note"
    assert [one["name"] for one in prompts] == ["greet"]
    assert prompt["messages"][0]["content"]["text"] == "Greet Ada."


def ended(host: Tavern, arguments: dict[str, Any]) -> ToolResult:
    """The result of a task; in the old era, its call is a job."""
    result = host.invoke_sync("mini:later", arguments)
    if result.job is not None:
        asyncio.run(host.jobs.wait(result.job, 10))
        result = host.jobs.result(result.job)
    return result


def test_a_task_is_followed_to_its_end(shared: Tavern) -> None:
    assert ended(shared, {}).value == "at last"


def test_what_becomes_of_a_task_that_its_server_does_not_know_any_more_is_unknown(shared: Tavern) -> None:
    error = ended(shared, {"wants": "forgotten"}).error
    assert error is not None and "there is no such task" in error.message
    assert error.outcome == "unknown"
