"""After the plugin of an adapter was stopped or started again, calls use the adapter as it is now."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Event, Tavern, ToolResult
from tavern_core.errors import UpstreamError
from tavern_core.model.event import PLUGIN_STATE

MANIFEST = """\
name: near
version: "1"
adapters: [near]
"""
CODE = """
from pathlib import Path

from tavern_core import hookimpl
from tavern_core.contract.adapters import Listing, UpstreamTool


class Connection:
    async def list_tools(self, etag=""):
        return Listing([UpstreamTool("age", "How old the code is.", {"type": "object", "properties": {}})])

    async def invoke(self, tool, arguments, call):
        return "old"

    async def check(self):
        pass

    async def close(self):
        with Path(__file__).with_name("closed.txt").open("a") as closed:
            closed.write("old ")
        raise ValueError("it cannot be closed")


class Near:
    settings = {"type": "object", "additionalProperties": False}
    targets = frozenset({"url"})
    in_process = IN_PROCESS

    async def connect(self, upstream):
        return Connection()


@hookimpl
def tavern_register_adapters(ctx):
    return {"near": Near()}
"""
Change = Callable[[Tavern], Awaitable[object]]


async def disabled_and_enabled(host: Tavern) -> None:
    await host.plugins.disable("near")
    await host.plugins.enable("near")


STARTED_AGAIN: dict[str, Change] = {
    "reloaded": lambda host: host.plugins.reload("near"),
    "disabled and enabled": disabled_and_enabled,
}


def opened(tmp_path: Path, code: str) -> Tavern:
    """A host with an upstream whose adapter is this code."""
    folder = tmp_path / "plugins" / "near"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plugin.yaml").write_text(MANIFEST)
    (folder / "__init__.py").write_text(code)
    return again(tmp_path)


def again(tmp_path: Path) -> Tavern:
    """The same host, opened again."""
    config = {
        "plugins": {"roots": [str(tmp_path / "plugins")], "entryPoints": False},
        "limits": {"drainMs": 0},
        "upstreams": {"up": {"kind": "near", "url": "http://127.0.0.1:9"}},
    }
    return Tavern.open(config, home=tmp_path / "home")


async def changed(tmp_path: Path, is_in_process: bool, change: Change) -> tuple[ToolResult, ToolResult]:
    """The answers of the tool before and after its code and the state of its plugin changed."""
    folder = tmp_path / "plugins" / "near"
    code = CODE.replace("IN_PROCESS", str(is_in_process))
    async with opened(tmp_path, code) as host:
        await host.plugins.grant("up", all_requested=True)
        before = await host.invoke("up:age")
        (folder / "__init__.py").write_text(code.replace('"old"', '"renewed"').replace("old ", "renewed "))
        await change(host)
        return before, await host.invoke("up:age")


@pytest.mark.parametrize("is_in_process", [True, False])
@pytest.mark.parametrize("case", STARTED_AGAIN)
def test_calls_run_the_new_code_and_the_old_connection_is_closed(
    case: str, is_in_process: bool, tmp_path: Path
) -> None:
    before, after = asyncio.run(changed(tmp_path, is_in_process, STARTED_AGAIN[case]))
    assert (before.value, after.value) == ("old", "renewed")
    assert (tmp_path / "plugins" / "near" / "closed.txt").read_text() == "old renewed "


@pytest.mark.parametrize("is_in_process", [True, False])
def test_calls_run_no_code_of_a_disabled_plugin(is_in_process: bool, tmp_path: Path) -> None:
    before, after = asyncio.run(changed(tmp_path, is_in_process, lambda host: host.plugins.disable("near")))
    assert before.value == "old" and after.error is not None
    assert "plugin near, which is disabled" in after.error.message and after.error.fix == "tavern plugins enable near"


@pytest.mark.parametrize("is_in_process", [True, False])
def test_a_call_that_comes_while_the_plugin_is_reloaded_waits_for_the_new_code(
    is_in_process: bool, tmp_path: Path
) -> None:
    results: list[ToolResult] = []
    callers: list[threading.Thread] = []

    async def reloaded(host: Tavern) -> None:
        def stopped(event: Event) -> None:
            if not callers and event.plugin == "near" and event.data["state"] == "stopped":
                callers.append(threading.Thread(target=lambda: results.append(host.invoke_sync("up:age"))))
                callers[0].start()
                callers[0].join(0.1)  # it waits for the reload, which waits for this function

        host.events.subscribe(stopped, PLUGIN_STATE)
        await host.plugins.reload("near")
        await asyncio.to_thread(callers[0].join)

    asyncio.run(changed(tmp_path, is_in_process, reloaded))
    assert [result.value for result in results] == ["renewed"], results


def test_a_connection_that_is_opened_while_the_host_closes_is_closed(tmp_path: Path) -> None:
    asyncio.run(changed(tmp_path, True, lambda host: asyncio.sleep(0)))  # its rights and its tools are known
    closed = tmp_path / "plugins" / "near" / "closed.txt"
    closed.unlink()

    async def main() -> ToolResult:
        loop: Any = asyncio.get_running_loop()
        loop.begins, loop.goes_on = asyncio.Event(), asyncio.Event()
        waits = "import asyncio; loop = asyncio.get_running_loop(); loop.begins.set(); await loop.goes_on.wait()"
        code = CODE.replace("IN_PROCESS", "True")
        async with opened(
            tmp_path, code.replace("        return Conn", f"        {waits}\n        return Conn")
        ) as host:
            call = asyncio.create_task(host.invoke("up:age"))
            await asyncio.wait_for(loop.begins.wait(), 30)
        loop.goes_on.set()
        return await call

    result = asyncio.run(main())
    assert result.error is not None and "the host is being closed" in result.error.message, result
    assert closed.read_text() == "old "


def test_a_missing_adapter_is_no_error_of_the_upstream_after_its_plugin_is_there(tmp_path: Path) -> None:
    with opened(tmp_path, CODE.replace("IN_PROCESS", "True")) as host:
        host.grant("up", all_requested=True)
        host.upstreams.check_sync("up")
    away = (tmp_path / "plugins" / "near").rename(tmp_path / "away")
    with again(tmp_path) as host, pytest.raises(UpstreamError, match="there is no adapter of kind 'near'"):
        host.upstreams.check_sync("up")
    away.rename(tmp_path / "plugins" / "near")
    with again(tmp_path) as host:
        assert host.upstreams["up"].last_error == ""
