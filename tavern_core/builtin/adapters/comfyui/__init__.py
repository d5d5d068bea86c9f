"""``kind: comfyui``: workflows for a ComfyUI server as tools.

    upstreams:
      comfy:
        kind: comfyui
        url: http://127.0.0.1:8188
        settings: {templates: comfyui}         a folder with workflows in API format; {{name}} in them is a parameter

A call queues the workflow, follows it, and keeps the files that it wrote as artifacts of the caller. The answer
names the workflow, its seed and its parameters.

templates.py              the workflows of the folder, and the places of their parameters
parameters.py             the schemas of the parameters, from the server's node types
native_api.py             ComfyUI's own API
jobs_api.py               the Comfy API v2 (Comfy Cloud, comfy-api-proxy)
run_ids_and_progress.py   the values of a call and the id of its run
watch.py                  messages about a run become progress
history.py                the outcome of a run
file_transfer.py          uploads of inputs, downloads of outputs, evidence
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from tavern_core.builtin.adapters.comfyui.jobs_api import JobsApi
from tavern_core.builtin.adapters.comfyui.native_api import NativeApi
from tavern_core.builtin.adapters.comfyui.parameters import classes_of, tool_of
from tavern_core.builtin.adapters.comfyui.run_ids_and_progress import order_of
from tavern_core.builtin.adapters.comfyui.templates import BadTemplate, read_object_info, read_templates
from tavern_core.contract.adapters import Listing, Target, Upstream, UpstreamCall, UpstreamTool, etag_of

SETTINGS: Final[Mapping[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["templates"],
    "properties": {
        "templates": {
            "type": "string",
            "minLength": 1,
            "description": "A folder with workflows in API format, relative to tavern.yaml. Each is a tool.",
        },
        "api": {
            "enum": ["v1", "v2"],
            "default": "v1",
            "description": "v1: ComfyUI itself. v2: the Comfy API v2 of Comfy Cloud and comfy-api-proxy.",
        },
        "previews": {
            "type": "boolean",
            "default": True,
            "description": "Keep a preview now and then while a run goes on, and name it with the progress.",
        },
    },
}


class ComfyUI:
    """The adapter; see `contract.adapters.Adapter`."""

    settings: Mapping[str, Any] = SETTINGS
    targets: frozenset[Target] = frozenset({"url"})

    async def connect(self, upstream: Upstream) -> ComfyUIConnection:
        return ComfyUIConnection(upstream, await asyncio.to_thread(upstream.http))


class ComfyUIConnection:
    """The requests are independent of each other; a run is found again by its id."""

    def __init__(self, upstream: Upstream, http: Any) -> None:
        self._upstream = upstream
        self._http = http
        settings = upstream.settings
        kind = JobsApi if settings.get("api") == "v2" else NativeApi
        self._server = kind(self._http, upstream.url, previews=settings.get("previews", True))

    async def list_tools(self, etag: str = "") -> Listing | None:
        folder = self._upstream.path(self._upstream.settings["templates"])
        templates, left_out = await asyncio.to_thread(read_templates, folder)
        if isinstance(self._server, NativeApi):
            classes = {name for template in templates for name in classes_of(template)}
            info: Mapping[str, Any] | None = await self._server.object_info(classes)
        else:
            info = await asyncio.to_thread(read_object_info, folder) or None
        tools: list[UpstreamTool] = []
        for template in templates:
            try:
                tools.append(tool_of(template, info))
            except BadTemplate as flaw:
                left_out[template.name] = str(flaw)
        listing = Listing(tools, etag=etag_of(tools, left_out), left_out=left_out)
        return None if etag and etag == listing.etag else listing

    async def invoke(self, tool: UpstreamTool, arguments: Mapping[str, Any], call: UpstreamCall) -> Any:
        return await self._server.run(order_of(self._upstream.name, tool, arguments, call))

    async def check(self) -> None:
        await self._server.check()

    async def close(self) -> None:
        await self._http.aclose()


adapter = ComfyUI()
