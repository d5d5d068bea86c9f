"""Against a real ComfyUI: ``TAVERN_TEST_COMFYUI`` is its address. No model is needed; a CPU is enough."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.upstreams.opening import failure, opened
from tests.upstreams.test_comfyui import ARGUMENTS, elsewhere, write

pytestmark = pytest.mark.anyio

URL = os.environ["TAVERN_TEST_COMFYUI"].rstrip("/")
ENTRY: dict[str, Any] = {"kind": "comfyui", "url": URL, "settings": {"templates": "comfyui"}}


async def test_a_template_runs_and_is_found_again(tmp_path: Path) -> None:
    write(tmp_path)
    async with opened(tmp_path, {"comfy": ENTRY}) as host:
        await host.upstreams.check("comfy")
        await host.upstreams.refresh("comfy")
        tool = host.tools.get("comfy:invert")
        assert tool is not None and tool.input_schema["properties"]["width"]["minimum"] == 1
        key = os.urandom(8).hex()
        first = await host.invoke("comfy:invert", ARGUMENTS, idempotency_key=key)
        assert first.ok, first.error
        (file,) = first.value["files"]
        assert host.artifacts.read(file["uri"]).startswith(b"\x89PNG")
        again = await elsewhere(tmp_path, URL, "v1", idempotency_key=key)
        assert again.value["runId"] == first.value["runId"]
        refused = await host.invoke("comfy:invert", {**ARGUMENTS, "width": 10**6})
        assert failure(refused)[0] == "INPUT_SCHEMA_INVALID"
