"""An adapter of a plugin that lives in a process of its own has the same contract as one in the host."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Tavern
from tavern_core.errors import ConnectionLost
from tavern_core.model.tool import Example

from ..isolation.waiting import until

pytestmark = pytest.mark.slow

MANIFEST = """\
name: far
version: "1"
isolation: process
adapters: [far]
permissions: {capabilities: [gpu]}
"""
CODE = """
import asyncio
import os
import threading
from tavern_core import ToolResult, hookimpl
from tavern_core.contract.adapters import Listing, UpstreamTool
from tavern_core.contract.exchange import exchange
from tavern_core.errors import UpstreamError
from tavern_core.model.tool import Example

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Connection:
    def __init__(self, upstream):
        self.upstream = upstream

    async def list_tools(self, etag=""):
        names = ["ask", "change", "count", "double", "ended", "fail", "fetch", "die", "hold", "job", "leave", "places", "rich", "say", "slow", "stall", "thread", "wait", "whose"]
        if self.upstream.load("stalls"):
            self.upstream.save("stalls", None)
            await self.wait()
        names += ["more"] if self.upstream.load("changed") else []
        samples = (Example({"n": 4}, "four", {"n": 8}), Example({"n": 0}))
        return Listing([UpstreamTool(name, f"{name} it.", SCHEMA, examples=samples, data={"of": name}) for name in names], version="7")

    async def wait(self):
        async with self.upstream.http(timeout_s=60) as http:
            await exchange(http, "POST", "/wait", json={})

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
            case "change":
                self.upstream.save("changed", "yes")
                self.upstream.changed()
            case "count":
                for _ in range(arguments["n"]):
                    async with self.upstream.lock("counted"):
                        self.upstream.save("counted", str(int(self.upstream.load("counted") or 0) + 1))
                return int(self.upstream.load("counted"))
            case "hold":
                async with self.upstream.lock("counted"):
                    await self.wait()
            case "stall":
                self.upstream.save("stalls", "the next list")
            case "fetch" | "wait":
                async with self.upstream.http(timeout_s=60) as http:
                    answer = await exchange(http, "POST", f"/{tool.name}?n={arguments['n']}", json={"名": "值"}, headers={"X-Own": "1"})
                    return [answer.status, answer.json()]
            case "leave":
                async with self.upstream.http("http://127.0.0.1:1/") as http:
                    return await http.get("/")
            case "places":
                return [str(self.upstream.path("a/b")), self.upstream.url]
            case "say":
                process = await self.upstream.start()
                await process.write(b"one\\ntwo\\n")
                lines = process.lines(1000)
                said = [(await anext(lines)).decode() for _ in range(2)]
                await process.close()
                return said
            case "job":
                if call.resume_point:
                    return f"followed {call.resume_point}"
                await call.keep_resume_point(f"run {arguments['n']}")
                try:
                    await self.wait()
                except asyncio.CancelledError:
                    self.upstream.save("ended", "left" if call.will_be_resumed else "stop")
                    raise
            case "ended":
                return self.upstream.load("ended")
            case "rich":
                return ToolResult(True, 1, content=({"type": "text", "text": "one"},), meta={"a": 1})
        return [call.call.context.principal, call.key]

    async def check(self):
        pass

    async def close(self):
        pass


class Far:
    settings = {"type": "object", "properties": {"times": {"type": "integer", "default": 2}}, "additionalProperties": False}
    targets = frozenset({"url", "command"})

    async def connect(self, upstream):
        return Connection(upstream)


@hookimpl
def tavern_register_adapters(ctx):
    return {"far": Far()}
"""


class Answers(BaseHTTPRequestHandler):
    """What the upstream is: it says what it was asked; ``/wait`` waits until the other side has gone."""

    begun, gone = threading.Event(), threading.Event()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path.startswith("/wait"):
            self.begun.set()
            self.connection.settimeout(30)
            if not self.connection.recv(1):
                self.gone.set()
            return
        said = {"path": self.path, "body": body, "own": self.headers["x-own"], "key": self.headers["x-key"]}
        answer = json.dumps(said).encode()
        self.send_response(201)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()


def opened(tmp_path: Path, **entry: Any) -> Tavern:
    """A host with the upstream ``up``, everything granted."""
    folder = tmp_path / "plugins" / "far"
    if not folder.exists():
        folder.mkdir(parents=True)
        (folder / "plugin.yaml").write_text(MANIFEST)
        (folder / "__init__.py").write_text(CODE)
    config = {
        "plugins": {"roots": [str(tmp_path / "plugins")], "entryPoints": False},
        "upstreams": {"up": {"kind": "far", **entry}},
    }
    with Tavern.open(config, home=tmp_path / "home", activate="none") as granting:
        granting.grant("up", all_requested=True)
        granting.grant("far", "gpu")
    return Tavern.open(config, home=tmp_path / "home")


@pytest.fixture
def host(tmp_path: Path, server: str) -> Iterator[Tavern]:
    with opened(tmp_path, url=server, headers={"X-Key": "k"}) as tavern:
        yield tavern


def test_its_tools_are_listed_and_run_in_the_worker(host: Tavern) -> None:
    status = host.upstreams.connect_sync("up")
    assert status.version == "7" and len(status.tools) == 19
    assert host.tools["up:double"].examples == (Example({"n": 4}, "four", {"n": 8}), Example({"n": 0}))
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


def test_it_reaches_the_granted_origin_through_the_host_and_nothing_else(host: Tavern, server: str) -> None:
    status, said = host.invoke_sync("up:fetch", {"n": 7}).value
    assert (status, said) == (201, {"path": "/fetch?n=7", "body": {"名": "值"}, "own": "1", "key": "k"})
    error = host.invoke_sync("up:leave", {"n": 1}).error
    assert error is not None and error.kind == "POLICY_DENIED" and "127.0.0.1:1" in error.message
    assert host.invoke_sync("up:places", {"n": 1}).value == [str(Path("a/b").absolute()), server]


def test_an_origin_that_is_not_there_has_done_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, url="http://127.0.0.1:9") as host:
        error = host.invoke_sync("up:fetch", {"n": 1}).error
    assert error is not None
    assert (error.kind, error.outcome, error.details["reason"]) == ("UPSTREAM_ERROR", "none", "unreachable")


def test_cancelling_a_call_ends_its_request(host: Tavern) -> None:
    job = host.invoke_sync("up:wait", {"n": 1}, job=True).job
    assert job is not None and Answers.begun.wait(20)
    assert host.jobs.cancel(job)
    assert Answers.gone.wait(20)
    assert host.invoke_sync("up:double", {"n": 1}).ok


def test_a_job_whose_host_closed_is_followed_from_what_its_adapter_kept(tmp_path: Path, server: str) -> None:
    Answers.begun.clear()
    with opened(tmp_path, url=server) as host:
        job = host.invoke_sync("up:job", {"n": 3}, job=True).job
        assert job is not None and Answers.begun.wait(20)
    with opened(tmp_path, url=server) as host:
        assert host.invoke_sync("up:ended", {"n": 1}).value == "left"
        host.wait(host.jobs.resume(job))
        assert host.wait(host.jobs.wait(job, 20)).status == "completed"
        assert host.jobs.result(job).value == "followed run 3"


def test_a_job_that_is_cancelled_is_not_left_as_it_is(host: Tavern) -> None:
    Answers.begun.clear()
    job = host.invoke_sync("up:job", {"n": 3}, job=True).job
    assert job is not None and Answers.begun.wait(20)
    assert host.jobs.cancel(job)
    until(lambda: host.invoke_sync("up:ended", {"n": 1}).value == "stop")


def test_it_starts_the_command_of_the_upstream_in_its_sandbox(tmp_path: Path) -> None:
    with opened(tmp_path, command=["cat"]) as host:
        assert host.invoke_sync("up:say", {"n": 1}).value == ["one", "two"]


def test_it_says_that_its_list_changed_and_what_it_keeps_outlives_its_process(host: Tavern) -> None:
    host.upstreams.connect_sync("up")
    assert host.invoke_sync("up:change", {"n": 1}).ok
    until(lambda: "up:more" in host.upstreams["up"].tools)
    host.invoke_sync("up:die", {"n": 1})
    host.upstreams.refresh_sync("up")
    assert "up:more" in host.upstreams["up"].tools


def test_what_it_keeps_is_changed_by_one_process_at_a_time(host: Tavern, tmp_path: Path, server: str) -> None:
    with opened(tmp_path, url=server, headers={"X-Key": "k"}) as other, ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(one.invoke_sync, "up:count", {"n": 20}) for one in (host, other) * 2]
        assert all(call.result().ok for call in calls)
        assert host.invoke_sync("up:count", {"n": 0}).value == 80


def test_a_worker_that_dies_loses_the_connection_and_the_next_call_opens_another(host: Tavern) -> None:
    assert host.invoke_sync("up:double", {"n": 1}).ok
    error = host.invoke_sync("up:die", {"n": 1}).error
    assert error is not None and error.kind == "CONNECTION_LOST"
    host.upstreams.check_sync("up")
    assert host.invoke_sync("up:double", {"n": 1}).ok


STARTED_AGAIN: dict[str, Callable[[Tavern], object]] = {
    "reloaded": lambda host: host.plugins.reload_sync("far"),
    "disabled and enabled": lambda host: (host.plugins.disable_sync("far"), host.plugins.enable_sync("far")),
}


@pytest.mark.parametrize("case", STARTED_AGAIN)
def test_calls_go_on_after_the_plugin_of_the_adapter_was_started_again(case: str, host: Tavern) -> None:
    before = host.invoke_sync("up:double", {"n": 3}).value["pid"]
    STARTED_AGAIN[case](host)
    after = host.invoke_sync("up:double", {"n": 3})
    assert after.ok and after.value["pid"] != before


def test_without_its_plugin_an_upstream_says_how_to_enable_it(host: Tavern) -> None:
    host.plugins.disable_sync("far")
    refused = host.invoke_sync("up:double", {"n": 3}).error
    assert refused is not None and "plugin far, which is disabled" in refused.message
    assert refused.fix == "tavern plugins enable far"


@pytest.mark.parametrize("during", ["wait", "hold", "list"])
def test_what_a_killed_worker_had_begun_ends_with_it_and_the_next_call_works(during: str, host: Tavern) -> None:
    worker = host.invoke_sync("up:double", {"n": 1}).value["pid"]
    host.invoke_sync("up:stall", {"n": 1})
    Answers.begun.clear()
    Answers.gone.clear()
    with ThreadPoolExecutor(1) as threads:
        if during == "list":
            work: Any = threads.submit(host.upstreams.refresh_sync, "up")
        else:
            work = threads.submit(host.invoke_sync, f"up:{during}", {"n": 1})
        assert Answers.begun.wait(20)
        os.kill(worker, signal.SIGKILL)
        if during == "list":
            with pytest.raises(ConnectionLost, match="SIGKILL"):
                work.result(20)
        else:
            error = work.result(20).error
            assert (error.kind, error.outcome) == ("CONNECTION_LOST", "unknown")
    assert Answers.gone.wait(20)  # the request of the worker is over, too
    host.upstreams.check_sync("up")
    assert host.invoke_sync("up:count", {"n": 1}).value == 1  # and so is its lock
    assert host.invoke_sync("up:double", {"n": 1}).value["pid"] != worker


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


@pytest.mark.slow
def test_a_cancelled_job_takes_its_question_back(host: Tavern) -> None:
    job = host.invoke_sync("up:ask", {"n": 1}, job=True).job
    assert host.wait(host.jobs.wait(job, 10)).status == "input_required"
    assert host.jobs.cancel(job)
    until(lambda: host.jobs.find(job).status == "cancelled")
    assert host.invoke_sync("up:double", {"n": 1}).ok
