"""A ComfyUI that answers what it likes: every call ends as an error of a call, within bounds, and nothing is connected to elsewhere."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.upstreams.comfyui_stub import ComfyStub, Handler
from tests.upstreams.opening import failure, opened
from tests.upstreams.test_comfyui import ARGUMENTS, served, write

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

RUN = "RUN"
SUCCESS = {"status_str": "success", "completed": True, "messages": []}
HISTORIES: list[Any] = [
    5,
    {RUN: {}},
    {RUN: {"status": 5, "outputs": 5}},
    {RUN: {"status": {"messages": [5, ["x"], ["execution_error", 5], [["a"], {}]], "status_str": ["error"]}, "outputs": {}}},
    {RUN: {"status": {"status_str": "error", "messages": {}}, "outputs": []}},
    {RUN: {"status": SUCCESS, "outputs": {"3": 5, "4": {"images": 5}, "5": {"images": [5, {"filename": 5}, {"filename": ""}]}}}},
    {RUN: {"status": SUCCESS, "outputs": {"3": {"text": [5, "words"], "images": [{"filename": "a.png", "type": ["x"]}]}}}},
    {RUN: {"status": SUCCESS, "outputs": {"3": {"images": [{"filename": "../../etc/passwd", "subfolder": ["x"]}]}}}},
    {RUN: {"status": SUCCESS, "outputs": {"3": {"images": [{"filename": "a\nb\x1b[31m.png\u202e"}] * 1000}}}},
]  # fmt: skip


@pytest.mark.slow
async def test_a_history_of_any_shape_ends_the_call(tmp_path: Path) -> None:
    write(tmp_path)
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:
        for history in HISTORIES:
            comfy.flaws = [("GET /history/", telling(history))]
            result = await host.invoke("comfy:invert", ARGUMENTS)
            if result.ok:
                files = result.value["files"]
                assert len(files) <= 256
                assert all(file["name"].isprintable() and "/" not in file["name"] for file in files)
            else:
                assert failure(result)[:2] == ("UPSTREAM_ERROR", "unknown"), history


def telling(history: Any) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        run = request.path.rpartition("/")[2]
        return web.json_response(text=json.dumps(history).replace(RUN, run))

    return answer


async def fails(request: web.Request) -> web.StreamResponse:
    return web.Response(status=500, text="<h1>oops</h1>")


async def gone(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def elsewhere(request: web.Request) -> web.StreamResponse:
    return web.Response(status=307, headers={"Location": "http://169.254.169.254/"})


async def deep(request: web.Request) -> web.StreamResponse:
    return web.Response(text="[" * 200_000, content_type="application/json")


async def huge(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x" * 1_000_000)


async def listing(request: web.Request) -> web.StreamResponse:
    return web.json_response([1, 2, 3])


async def accepted(request: web.Request) -> web.StreamResponse:
    return web.json_response({"id": RUN, "status": "queued"}, status=201)


ANSWERS = {"fails": fails, "gone": gone, "elsewhere": elsewhere, "deep": deep, "huge": huge, "listing": listing}
PLACES = {
    "v1": ["POST /prompt", "GET /history/", "GET /queue", "GET /view", "GET /ws"],
    "v2": ["POST /api/v2/jobs", "GET /api/v2/jobs/"],
}


@pytest.mark.slow
@pytest.mark.parametrize(("api", "place"), [(api, place) for api, places in PLACES.items() for place in places])
async def test_any_answer_at_any_place_ends_the_call(tmp_path: Path, api: str, place: str) -> None:
    write(tmp_path)
    async with ComfyStub() as comfy:
        entry = {
            "kind": "comfyui", "url": comfy.url, "settings": {"templates": "comfyui", "api": api},
            "tools": {"invert": {"limits": {"retries": 0}}},
        }  # fmt: skip
        async with opened(tmp_path, {"comfy": entry}) as host:
            for name, answer in ANSWERS.items():
                comfy.flaws = [(place, answer), *([("POST /api/v2/jobs", accepted)] if api == "v2" else ())]
                result = await host.invoke("comfy:invert", ARGUMENTS)
                is_harmless = place in ("GET /ws", "GET /queue")  # the history says how a run ended
                if is_harmless or (place == "GET /view" and name in ("deep", "listing")):
                    assert result.ok, (name, result.error)  # a file may hold anything
                else:
                    assert result.error is not None and result.error.kind in ("UPSTREAM_ERROR", "OUTPUT_TOO_LARGE"), (
                        name
                    )
                    assert result.error.fix and result.error.outcome in ("unknown", "done"), name


async def test_a_silent_server_is_left_at_the_deadline_and_asked_to_stop(tmp_path: Path) -> None:
    write(tmp_path, timeoutMs=1000)
    async with ComfyStub() as comfy, served(tmp_path, comfy) as host:
        comfy.hold.clear()
        calling = asyncio.create_task(host.invoke("comfy:invert", ARGUMENTS))
        await comfy.was_asked("POST /interrupt")
        assert failure(await calling)[:2] == ("TIMEOUT", "unknown")


JOBS: list[Any] = [
    {}, {"id": 5}, {"id": RUN, "status": ["succeeded"]}, {"id": RUN, "status": "succeeded", "outputs": 5},
    {"id": RUN, "status": "succeeded", "outputs": [5, {}, {"id": 5}, {"id": "../../jobs", "name": ["x"]}]},
    {"id": RUN, "status": "failed", "error": 5}, {"id": RUN, "status": "failed", "error": {"node_id": ["3"], "message": ["x"]}},
    {"id": RUN, "status": "expired"}, {"id": RUN, "status": "canceled"},
]  # fmt: skip


@pytest.mark.slow
async def test_a_job_of_any_shape_ends_the_call(tmp_path: Path) -> None:
    write(tmp_path)
    async with ComfyStub() as comfy:
        entry = {"kind": "comfyui", "url": comfy.url, "settings": {"templates": "comfyui", "api": "v2"}}
        async with opened(tmp_path, {"comfy": entry}) as host:
            for job in JOBS:
                states = [job, {"id": RUN, "status": "failed", "error": {"message": "enough"}}]
                comfy.flaws = [
                    ("POST /api/v2/jobs", accepted),
                    (f"GET /api/v2/jobs/{RUN}/events", fails),
                    ("GET /api/v2/jobs/", one_after_the_other(states)),
                ]
                result = await host.invoke("comfy:invert", ARGUMENTS)
                if not result.ok:
                    assert failure(result)[0] == "UPSTREAM_ERROR" and result.error is not None and result.error.fix, job
        assert not [asked for asked in comfy.asked if asked == "GET /api/v2/jobs"]


def one_after_the_other(states: list[Any]) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(states.pop(0) if len(states) > 1 else states[0])

    return answer
