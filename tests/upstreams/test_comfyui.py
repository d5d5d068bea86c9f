"""ComfyUI: templates as tools, runs that are queued, watched, found again and cancelled; over its own API and over the Comfy API v2."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from comfy_api_proxy.app import make_app

from tavern_core import CallContext, Tavern
from tavern_core.builtin.adapters.comfyui.watch import RunProgress
from tests.forked_programs import NETWORK, ForkedProgram
from tests.upstreams.comfyui_stub import JPEG, RECORDED, TRANSCRIPTS, ComfyStub, preview
from tests.upstreams.opening import failure, opened

pytestmark = pytest.mark.anyio

GRAPH: dict[str, Any] = {
    "1": {
        "class_type": "EmptyImage",
        "inputs": {"width": "{{width}}", "height": 64, "batch_size": 1, "color": "{{color}}"},
    },
    "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
    "3": {
        "class_type": "SaveImage",
        "inputs": {"images": ["2", 0], "filename_prefix": "{{name}}-by-tavern"},
        "_meta": {"title": "out"},
    },
}
ARGUMENTS = {"width": 64, "color": 77, "name": "cat"}
ANN = CallContext(principal="user:ann", permissions=frozenset({"network"}))
APIS = pytest.mark.parametrize("api", ["v1", "v2"])


def write(tmp_path: Path, name: str = "invert", graph: Any = None, **sidecar: Any) -> None:
    folder = tmp_path / "comfyui"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(GRAPH if graph is None else graph))
    (folder / f"{name}.tool.json").write_text(json.dumps({"job": False, **sidecar}))
    (folder / "object_info.json").write_text(json.dumps(TRANSCRIPTS["object_info_sample"]))


@asynccontextmanager
async def served(tmp_path: Path, comfy: ComfyStub, api: str = "v1", **settings: Any) -> AsyncIterator[Tavern]:
    """A host with the server, or with the proxy before it that speaks the Comfy API v2."""
    async with proxied(comfy) if api == "v2" else direct(comfy) as url:
        entry = {"kind": "comfyui", "url": url, "settings": {"templates": "comfyui", "api": api, **settings}}
        async with opened(tmp_path, {"comfy": entry}) as host:
            yield host


@asynccontextmanager
async def direct(comfy: ComfyStub) -> AsyncIterator[str]:
    yield comfy.url


@asynccontextmanager
async def proxied(comfy: ComfyStub, port: int = 0) -> AsyncIterator[str]:
    runner = web.AppRunner(make_app(comfy.url), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@APIS
async def test_a_run_comes_back_as_artifacts_of_the_caller_with_its_evidence(tmp_path: Path, api: str) -> None:
    write(tmp_path)
    async with ComfyStub() as comfy, served(tmp_path, comfy, api) as host:
        events: list[Any] = []
        host.events.subscribe(events.append, "TOOL_PROGRESS")
        result = await host.invoke("comfy:invert", ARGUMENTS, context=ANN)
        assert result.ok, result.error
        assert events[-1].data["done"] == events[-1].data["total"]
        (file,) = result.value["files"]
        data = host.artifacts.read(file["uri"], context=ANN)
        assert data == f"picture {file['name']}".encode()
        assert file["digest"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
        assert (file["mediaType"], file["node"], file["bytes"]) == ("image/png", "3", len(data))
        assert file["url"].startswith(str(host.upstreams["comfy"].target))
        assert result.content[0]["type"] == "resource_link" and result.content[0]["uri"] == file["uri"]
        sent = {
            **RECORDED["request"],
            "3": {**GRAPH["3"], "inputs": {"images": ["2", 0], "filename_prefix": "cat-by-tavern"}},
        }
        assert comfy.graphs == [sent]
        ran, saved = [seen for seen in result.evidence if seen.type != "tool"]
        assert result.value["workflowHash"] in ran.summary and "width=64" in ran.summary and "name=cat" in ran.summary
        assert (saved.type, saved.ref) == ("file", file["uri"])
        assert file["digest"] in saved.summary and file["url"] in saved.summary


async def elsewhere(tmp_path: Path, url: str, api: str, arguments: dict[str, Any] | None = None, **call: Any) -> Any:
    """The same call through a host with another state folder, as after the loss of everything that the first one knew.

    Args:
        arguments: others than `ARGUMENTS`.
    """
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "comfyui").symlink_to(tmp_path / "comfyui")
    entry = {"kind": "comfyui", "url": url, "settings": {"templates": "comfyui", "api": api}}
    async with opened(folder, {"comfy": entry}) as host:
        return await host.invoke("comfy:invert", arguments or ARGUMENTS, **call)


@pytest.mark.slow
@APIS
async def test_a_key_makes_one_run_that_is_found_again_after_everything_here_was_lost(tmp_path: Path, api: str) -> None:
    write(tmp_path)
    async with ComfyStub() as comfy, served(tmp_path, comfy, api) as host:
        first = await host.invoke("comfy:invert", ARGUMENTS, context=ANN, idempotency_key="k")
        again = await elsewhere(tmp_path, host.upstreams["comfy"].target, api, context=ANN, idempotency_key="k")
        assert len(comfy.runs) == 1
        assert first.value["runId"] == again.value["runId"]
        assert first.value["files"][0]["digest"] == again.value["files"][0]["digest"]
        bob = CallContext(principal="user:bob", permissions=frozenset({"network"}))
        other = await host.invoke("comfy:invert", ARGUMENTS, context=bob, idempotency_key="k")
        assert other.ok and len(comfy.runs) == 2 and other.value["runId"] != first.value["runId"]


@pytest.mark.slow
@APIS
async def test_the_run_of_a_key_is_not_taken_for_one_with_other_arguments(tmp_path: Path, api: str) -> None:
    write(tmp_path)
    async with ComfyStub() as comfy, served(tmp_path, comfy, api) as host:
        assert (await host.invoke("comfy:invert", ARGUMENTS, context=ANN, idempotency_key="k")).ok
        target, others = host.upstreams["comfy"].target, {**ARGUMENTS, "name": "dog"}
        result = await elsewhere(tmp_path, target, api, others, context=ANN, idempotency_key="k")
        assert result.error is not None and (result.error.kind, result.error.outcome) == (
            "IDEMPOTENCY_CONFLICT",
            "none",
        )
        assert len(comfy.runs) == 1


@pytest.mark.slow
@APIS
async def test_a_repetition_joins_the_run_that_goes_on(tmp_path: Path, api: str) -> None:
    write(tmp_path)
    async with ComfyStub() as comfy, served(tmp_path, comfy, api) as host:
        comfy.hold.clear()
        first = asyncio.create_task(host.invoke("comfy:invert", ARGUMENTS, idempotency_key="k"))
        await comfy.begun.wait()
        target = host.upstreams["comfy"].target
        second = asyncio.create_task(elsewhere(tmp_path, target, api, idempotency_key="k"))
        await comfy.was_asked("GET /queue")
        comfy.hold.set()
        one, two = await asyncio.gather(first, second)
        assert one.value["runId"] == two.value["runId"] and len(comfy.runs) == 1


@pytest.mark.slow
async def test_each_call_without_a_key_is_a_run_and_says_when_the_cache_of_the_server_answered(tmp_path: Path) -> None:
    write(tmp_path)
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:
        first, second = [await host.invoke("comfy:invert", ARGUMENTS) for _ in range(2)]
        assert len(set(comfy.runs)) == 2
        assert (first.value["cached"], second.value["cached"]) == (False, True)
        assert first.value["files"][0]["name"] == second.value["files"][0]["name"]
        assert "from the cache" in str(second.evidence)


@pytest.mark.slow
async def test_a_run_is_over_when_the_history_has_it_and_not_when_it_says_so(tmp_path: Path) -> None:
    write(tmp_path)
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:
        comfy.written.clear()
        calling = asyncio.create_task(host.invoke("comfy:invert", ARGUMENTS))
        await comfy.succeeded.wait()
        await comfy.was_asked("GET /history/")
        await comfy.was_asked("GET /queue")
        assert not calling.done()
        comfy.written.set()
        assert (await calling).ok


CALLER = """
import sys
from tavern_core import Tavern
with Tavern.open(sys.argv[1] + "/tavern.yaml", home=sys.argv[1] + "/home") as host:
    host.invoke_sync("comfy:invert", {"width": 64, "color": 77, "name": "cat"}, idempotency_key="k")
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_forgotten", [False, True])
@APIS
async def test_a_key_finds_the_run_of_a_process_that_was_killed(tmp_path: Path, api: str, is_forgotten: bool) -> None:
    write(tmp_path)
    async with ComfyStub() as comfy, served(tmp_path, comfy, api) as host:
        comfy.hold.clear()
        await host.upstreams.refresh("comfy")
        killed = ForkedProgram(["-c", CALLER, tmp_path], imports=NETWORK)
        try:
            await asyncio.wait_for(comfy.begun.wait(), 60)
        finally:
            killed.kill()
            killed.wait()
        if is_forgotten:
            await comfy.crash()
        calling = asyncio.create_task(host.invoke("comfy:invert", ARGUMENTS, idempotency_key="k"))
        comfy.hold.set()
        result = await calling
        if is_forgotten:
            assert failure(result) == ("UPSTREAM_ERROR", "unknown", "lost")
        else:
            assert result.ok and len(result.value["files"]) == 1
        assert len(comfy.runs) == 1


@pytest.mark.slow
async def test_a_run_of_a_process_that_was_killed_is_not_queued_anew_where_the_server_forgot_its_jobs(
    tmp_path: Path,
) -> None:
    write(tmp_path)
    async with ComfyStub() as comfy:
        comfy.hold.clear()
        async with proxied(comfy) as url:
            entry = {"kind": "comfyui", "url": url, "settings": {"templates": "comfyui", "api": "v2"}}
            async with opened(tmp_path, {"comfy": entry}) as host:
                await host.upstreams.refresh("comfy")
                killed = ForkedProgram(["-c", CALLER, tmp_path], imports=NETWORK)
                try:
                    await asyncio.wait_for(comfy.begun.wait(), 60)
                finally:
                    killed.kill()
                    killed.wait()
        comfy.hold.set()
        async with proxied(comfy, int(url.rpartition(":")[2])), opened(tmp_path, {"comfy": entry}) as host:
            result = await host.invoke("comfy:invert", ARGUMENTS, idempotency_key="k")
        assert failure(result) == ("UPSTREAM_ERROR", "unknown", "lost")
        assert len(comfy.runs) == 1


@pytest.mark.slow
async def test_a_job_with_a_key_is_resumed_after_its_process_was_killed(tmp_path: Path) -> None:
    write(tmp_path)
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:
        comfy.hold.clear()
        await host.upstreams.refresh("comfy")
        code = CALLER.replace('key="k"', 'key="k", job=True').replace("host.invoke", "job = host.invoke")
        code += "    host.wait(host.jobs.wait(job.job, 60))\n"
        killed = ForkedProgram(["-c", code, tmp_path], imports=NETWORK)
        try:
            await asyncio.wait_for(comfy.begun.wait(), 60)
        finally:
            killed.kill()
            killed.wait()
        [job] = host.jobs.list(tool="comfy:invert")
        await host.jobs.resume(job.id)
        comfy.hold.set()
        assert (await host.jobs.wait(job.id, 60)).status == "completed"
        assert len(comfy.runs) == 1


@APIS
async def test_a_run_that_the_server_forgot_has_an_unknown_outcome(tmp_path: Path, api: str) -> None:
    write(tmp_path)
    async with ComfyStub() as comfy, served(tmp_path, comfy, api) as host:
        comfy.hold.clear()
        calling = asyncio.create_task(host.invoke("comfy:invert", ARGUMENTS))
        await comfy.begun.wait()
        await comfy.crash()
        result = await calling
        assert failure(result) == ("UPSTREAM_ERROR", "unknown", "lost")
        assert result.error is not None and result.error.fix


ERROR = {
    "node_id": "2", "node_type": "ImageInvert", "executed": ["1"], "exception_type": "RuntimeError",
    "exception_message": "CUDA out of memory", "traceback": [],
}  # fmt: skip


@APIS
@pytest.mark.parametrize("reason", ["interrupted", "failed"])
async def test_an_interrupted_run_and_a_failed_one_are_distinguished(tmp_path: Path, api: str, reason: str) -> None:
    write(tmp_path)
    async with ComfyStub() as comfy, served(tmp_path, comfy, api) as host:
        comfy.hold.clear()
        comfy.error = ERROR
        calling = asyncio.create_task(host.invoke("comfy:invert", ARGUMENTS))
        await comfy.begun.wait()
        if reason == "interrupted":
            comfy.interrupted.add(str(comfy.running))
        comfy.hold.set()
        result = await calling
        assert failure(result) == ("UPSTREAM_ERROR", "unknown", reason)
        assert result.error is not None
        assert ("CUDA out of memory" in result.error.message and "node 2 (ImageInvert)" in result.error.message) is (
            reason == "failed"
        )


@pytest.mark.slow
@APIS
async def test_cancelling_asks_for_the_end_of_a_run_and_does_not_wait_for_it(tmp_path: Path, api: str) -> None:
    write(tmp_path)
    async with ComfyStub() as comfy, served(tmp_path, comfy, api) as host:
        comfy.hold.clear()
        calling = asyncio.create_task(host.invoke("comfy:invert", ARGUMENTS))
        await comfy.begun.wait()
        if api == "v2":  # the server has said what the run is called
            await comfy.was_asked("GET /history/", before=True)
        calling.cancel()
        await comfy.was_asked("POST /interrupt" if api == "v1" else "POST /api/jobs/")
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert comfy.running is not None  # the node goes on


@pytest.mark.slow
@APIS
async def test_cancelling_takes_a_run_out_of_the_queue_and_leaves_others_alone(tmp_path: Path, api: str) -> None:
    write(tmp_path)
    async with ComfyStub() as comfy, served(tmp_path, comfy, api) as host:
        comfy.hold.clear()
        first = asyncio.create_task(host.invoke("comfy:invert", ARGUMENTS))
        await comfy.begun.wait()
        comfy.queued.clear()
        second = asyncio.create_task(host.invoke("comfy:invert", {**ARGUMENTS, "width": 65}))
        await comfy.queued.wait()
        if api == "v2":
            await comfy.was_asked("GET /queue")
        second.cancel()
        await comfy.removed.wait()
        with pytest.raises(asyncio.CancelledError):
            await second
        comfy.hold.set()
        assert (await first).ok
        assert len(comfy.runs) == 1


@pytest.mark.slow
async def test_a_queue_that_is_too_large_to_be_read_still_says_whether_a_run_is_in_it(tmp_path: Path) -> None:
    write(tmp_path)
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:
        comfy.sockets = False
        comfy.hold.clear()
        comfy.padding = "x" * 4_100_000
        calling = asyncio.create_task(host.invoke("comfy:invert", ARGUMENTS))
        await comfy.begun.wait()
        for _ in range(2):
            await comfy.was_asked("GET /queue")
        comfy.hold.set()
        assert (await calling).ok


@pytest.mark.slow
async def test_without_messages_a_run_is_followed_by_asking(tmp_path: Path) -> None:
    write(tmp_path)
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:
        comfy.sockets = False
        assert (await host.invoke("comfy:invert", ARGUMENTS)).ok


ODD: list[Any] = [
    "{", "[]", "null", '"text"', "5", "[" * 100_000, "\u0000",
    {"type": ["list"], "data": {"prompt_id": "RUN"}},
    {"type": "progress", "data": {"prompt_id": "RUN", "value": "a", "max": None}},
    {"type": "progress", "data": {"prompt_id": "RUN", "value": 1e308, "max": 0}},
    {"type": "progress_state", "data": {"prompt_id": "RUN", "nodes": ["1"]}},
    {"type": "progress_state", "data": {"prompt_id": "RUN", "nodes": {"99": {"state": "finished"}, "1": 5}}},
    {"type": "executed", "data": {"prompt_id": "RUN", "node": {"a": 1}}},
    {"type": "execution_cached", "data": {"prompt_id": "RUN", "nodes": [["1"], 5, "99"]}},
    {"type": "executing", "data": {"prompt_id": "another", "node": None}},
    b"", b"\x00\x00\x00\x01", b"\x00\x00\x00\x04\xff\xff\xff\xff\x00", b"\x00\x00\x00\x09\x00\x00\x00\x01xx",
]  # fmt: skip


@pytest.mark.slow
async def test_odd_messages_end_nothing(tmp_path: Path) -> None:
    write(tmp_path)
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:
        comfy.hold.clear()
        calling = asyncio.create_task(host.invoke("comfy:invert", ARGUMENTS))
        await comfy.begun.wait()
        run = str(comfy.running)
        for message in ODD:
            sent = json.loads(json.dumps(message).replace("RUN", run)) if isinstance(message, dict) else message
            await comfy.send(sent)
        comfy.hold.set()
        assert (await calling).ok


@pytest.mark.slow
async def test_previews_are_artifacts_that_the_progress_names(tmp_path: Path) -> None:
    write(tmp_path)
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:
        events: list[Any] = []
        host.events.subscribe(events.append, "TOOL_PROGRESS")
        comfy.messages = [preview(), preview(b"later"), preview(metadata={"image_type": "image/png", "node_id": "2"})]
        assert (await host.invoke("comfy:invert", ARGUMENTS)).ok
        reported = [event.data["message"] for event in events]
        named = {part for text in reported for part in text.split() if part.startswith("artifact:")}
        assert [host.artifacts.read(uri) for uri in named] == [JPEG]  # one in two seconds
        assert (events[-1].data["done"], events[-1].data["total"]) == (3, 3)


async def test_a_preview_that_cannot_be_kept_costs_no_run(tmp_path: Path) -> None:
    write(tmp_path)
    async with ComfyStub() as comfy:
        comfy.messages = [preview(b"x" * 5_000)]
        entry = {"kind": "comfyui", "url": comfy.url, "settings": {"templates": "comfyui"}}
        async with opened(tmp_path, {"comfy": entry}, artifacts={"maxBytes": 1_000}) as host:
            result = await host.invoke("comfy:invert", ARGUMENTS)
    assert result.ok and len(result.value["files"]) == 1


def test_recorded_messages_become_progress() -> None:
    watch = RunProgress(RECORDED["response"]["prompt_id"], RECORDED["request"])
    reported = [(watch.text(json.dumps(message)), watch.done, watch.says) for message in RECORDED["ws"]]
    moved = [(done, says) for what, done, says in reported if what == "moved"]
    assert moved == [
        (0, "EmptyImage (node 1)"),
        (1, "EmptyImage (node 1)"),
        (1, "ImageInvert (node 2)"),
        (2, "ImageInvert (node 2)"),
        (2, "SaveImage (node 3)"),
        (3, "SaveImage (node 3)"),
    ]
    assert [what for what, _, _ in reported if what == "ended"] == ["ended", "ended"]
    within = {"prompt_id": RECORDED["response"]["prompt_id"], "node": "3", "value": 1, "max": 4}
    fresh = RunProgress(within["prompt_id"], RECORDED["request"])
    fresh.text(json.dumps({"type": "progress", "data": within}))
    assert fresh.done == 0.25


async def test_a_run_whose_submission_was_not_answered_is_found(tmp_path: Path) -> None:
    write(tmp_path)
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:

        async def lost(request: web.Request) -> web.StreamResponse:
            comfy._prompt(await request.json())
            assert request.transport is not None
            request.transport.abort()
            return web.Response()

        comfy.flaws.append(("POST /prompt", lost))
        assert (await host.invoke("comfy:invert", ARGUMENTS)).ok
        assert len(comfy.runs) == 1


REFUSED = {
    "error": {"type": "prompt_outputs_failed_validation", "message": "Prompt outputs failed validation", "details": "", "extra_info": {}},
    "node_errors": {
        "1": {
            "errors": [
                {"type": "value_bigger_than_max", "message": "Value 64 bigger than max of 32", "details": "width",
                 "extra_info": {"input_name": "width"}}
            ],
            "dependent_outputs": ["3"],
            "class_type": "EmptyImage",
        }
    },
}  # fmt: skip


async def test_outputs_that_the_server_refuses_of_a_workflow_that_it_runs_are_named(tmp_path: Path) -> None:
    async def takes_a_part(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        comfy._prompt(body)
        return web.json_response({"prompt_id": body["prompt_id"], "number": 1, "node_errors": REFUSED["node_errors"]})

    write(tmp_path)
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:
        assert "leftOut" not in (await host.invoke("comfy:invert", ARGUMENTS)).value
        comfy.flaws.append(("POST /prompt", takes_a_part))
        result = await host.invoke("comfy:invert", ARGUMENTS)
    assert len(result.value["files"]) == 1
    assert result.value["leftOut"] == ["width of node 1 (EmptyImage): Value 64 bigger than max of 32: width"]


@APIS
async def test_a_workflow_that_the_server_refuses_has_done_nothing(tmp_path: Path, api: str) -> None:
    cut = {**GRAPH, "2": {"class_type": "ImageInvert", "inputs": {}}}
    write(tmp_path, graph=cut)
    async with ComfyStub() as comfy, served(tmp_path, comfy, api) as host:
        result = await host.invoke("comfy:invert", ARGUMENTS)
        assert failure(result) == ("UPSTREAM_ERROR", "none", "invalid")
        assert result.error is not None and "image of node 2 (ImageInvert)" in result.error.message

        async def refuses(request: web.Request) -> web.StreamResponse:
            return web.json_response(REFUSED, status=400)

        comfy.flaws.append(("POST /prompt", refuses))
        argument = await host.invoke("comfy:invert", ARGUMENTS)
        assert failure(argument) == ("INPUT_SCHEMA_INVALID", "none", None)
        assert argument.error is not None and argument.error.details["problems"][0]["parameter"] == "width"


@pytest.mark.parametrize(("api", "path"), [("v1", "POST /prompt"), ("v2", "POST /api/v2/jobs")])
async def test_a_full_queue_says_when_to_come_back(tmp_path: Path, api: str, path: str) -> None:
    async def full(request: web.Request) -> web.StreamResponse:
        body = {"error": {"code": "queue_full", "message": "The queue is full."}}
        return web.json_response(body, status=429, headers={"Retry-After": "3"})

    write(tmp_path)
    async with ComfyStub() as comfy:
        comfy.flaws.append((path, full))
        entry = {
            "kind": "comfyui", "url": comfy.url, "settings": {"templates": "comfyui", "api": api},
            "tools": {"invert": {"limits": {"retries": 0}}},
        }  # fmt: skip
        async with opened(tmp_path, {"comfy": entry}) as host:
            result = await host.invoke("comfy:invert", ARGUMENTS)
        assert failure(result) == ("UPSTREAM_ERROR", "none", "busy")
        assert result.error is not None and result.error.retryable and result.error.retry_after_ms == 3000


@pytest.mark.slow
async def test_a_template_is_a_job_where_nothing_else_is_said(tmp_path: Path) -> None:
    write(tmp_path, job=True)
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:
        begun = await host.invoke("comfy:invert", ARGUMENTS, context=ANN)
        assert begun.status == "job" and begun.job is not None
        await host.jobs.wait(begun.job, 30, context=ANN)
        done = host.jobs.result(begun.job, context=ANN)
        assert done.ok and host.artifacts.read(done.value["files"][0]["uri"], context=ANN)
