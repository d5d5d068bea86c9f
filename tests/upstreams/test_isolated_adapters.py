"""An adapter of a plugin that lives in a process of its own has the same contract as one in the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tavern_core import Tavern

from ..isolation.waiting import until

MANIFEST = """\
name: far
version: "1"
isolation: process
adapters: [far]
permissions: {capabilities: [gpu]}
"""
CODE = """
import os
import threading
from tavern_core import ToolResult, hookimpl
from tavern_core.contract.adapters import Listing, UpstreamTool
from tavern_core.errors import UpstreamError

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Connection:
    def __init__(self, upstream):
        self.upstream = upstream

    async def list_tools(self, etag=""):
        names = ("ask", "double", "fail", "die", "leave", "rich", "slow", "thread", "whose")
        return Listing([UpstreamTool(name, f"{name} it.", SCHEMA, data={"of": name}) for name in names], version="7")

    async def invoke(self, tool, arguments, call):
        match tool.data["of"]:
            case "double":
                return {"n": arguments["n"] * self.upstream.settings["times"], "pid": os.getpid()}
            case "ask":
                return await call.ask("How many?", SCHEMA, "many")
            case "slow":
                call.context.progress(1, 2, "half")
                call.context.progress(2, 2, "done")
                return call.context.seconds_left > 1
            case "thread":
                return await call.in_thread(lambda: threading.current_thread() is not threading.main_thread())
            case "fail":
                raise UpstreamError("it failed", outcome="none", hint="try another")
            case "die":
                os._exit(3)
            case "leave":
                return self.upstream.http()
            case "rich":
                return ToolResult(True, 1, content=({"type": "text", "text": "one"},), meta={"a": 1})
        return [call.call.context.principal, call.key]

    async def check(self):
        pass

    async def close(self):
        pass


class Far:
    settings = {"type": "object", "properties": {"times": {"type": "integer", "default": 2}}, "additionalProperties": False}
    targets = frozenset({"url"})

    async def connect(self, upstream):
        return Connection(upstream)


@hookimpl
def tavern_register_adapters(ctx):
    return {"far": Far()}
"""


@pytest.fixture
def host(tmp_path: Path) -> Any:
    folder = tmp_path / "plugins" / "far"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text(MANIFEST)
    (folder / "__init__.py").write_text(CODE)
    config = {
        "plugins": {"roots": [str(tmp_path / "plugins")], "entryPoints": False},
        "upstreams": {"up": {"kind": "far", "url": "http://127.0.0.1:9"}},
    }
    with Tavern.open(config, home=tmp_path / "home", activate="none") as granting:
        granting.grant("up", "network")
        granting.grant("far", "gpu")
    with Tavern.open(config, home=tmp_path / "home") as opened:
        yield opened


def test_its_tools_are_listed_and_run_in_the_worker(host: Tavern) -> None:
    import os

    status = host.upstreams.connect_sync("up")
    assert status.version == "7" and len(status.tools) == 9
    value = host.invoke_sync("up:double", {"n": 4}).value
    assert value["n"] == 8 and value["pid"] != os.getpid()


def test_the_caller_and_its_key_arrive(host: Tavern) -> None:
    assert host.invoke_sync("up:whose", {"n": 1}, idempotency_key="k").value[1] == "k"


def test_results_and_errors_keep_all_that_they_say(host: Tavern) -> None:
    rich = host.invoke_sync("up:rich", {"n": 1})
    assert (rich.value, rich.content, rich.meta["a"]) == (1, ({"type": "text", "text": "one"},), 1)
    failed = host.invoke_sync("up:fail", {"n": 1}).error
    assert failed is not None
    assert (failed.kind, failed.outcome, failed.fix) == ("UPSTREAM_ERROR", "none", "try another")


def test_it_has_no_way_out_of_its_process(host: Tavern) -> None:
    error = host.invoke_sync("up:leave", {"n": 1}).error
    assert error is not None and "opens no connections" in error.message and "net" in error.fix


def test_a_worker_that_dies_loses_the_connection_and_the_next_call_opens_another(host: Tavern) -> None:
    assert host.invoke_sync("up:double", {"n": 1}).ok
    error = host.invoke_sync("up:die", {"n": 1}).error
    assert error is not None and error.kind == "CONNECTION_LOST"
    host.upstreams.check_sync("up")
    assert host.invoke_sync("up:double", {"n": 1}).ok


def test_it_reports_progress_and_runs_blocking_code_in_a_thread(host: Tavern) -> None:
    seen: list[Any] = []
    host.events.subscribe(lambda event: seen.append(event.data["done"]), "TOOL_PROGRESS")
    assert host.invoke_sync("up:slow", {"n": 1}).value is True
    assert seen == [1, 2]
    assert host.invoke_sync("up:thread", {"n": 1}).value is True


def test_a_question_reaches_the_person_behind_the_job(host: Tavern) -> None:
    alone = host.invoke_sync("up:ask", {"n": 1})
    assert (alone.status, alone.error.details["questions"][0]["prompt"]) == ("input_required", "How many?")  # type: ignore[union-attr]
    job = host.invoke_sync("up:ask", {"n": 1}, job=True).job
    assert host.wait(host.jobs.wait(job, 10)).status == "input_required" and host.jobs.answer(job, {"n": 7})
    assert host.wait(host.jobs.wait(job, 10)).status == "completed"
    assert host.jobs.result(job).value == {"n": 7}


def test_a_cancelled_job_takes_its_question_back(host: Tavern) -> None:
    job = host.invoke_sync("up:ask", {"n": 1}, job=True).job
    assert host.wait(host.jobs.wait(job, 10)).status == "input_required"
    assert host.jobs.cancel(job)
    until(lambda: host.jobs.find(job).status == "cancelled")
    assert host.invoke_sync("up:double", {"n": 1}).ok
