"""Transfer of files: images of a call become inputs, files of nodes become artifacts, and the evidence names both."""

from __future__ import annotations

import asyncio
import hashlib
import mimetypes
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from tavern_core.builtin.adapters.comfyui.history import RunOutputs
from tavern_core.contract.adapters import UpstreamCall, UpstreamTool
from tavern_core.contract.exchange import Answer, exchange
from tavern_core.contract.guards.folder import Folder
from tavern_core.errors import CallError, OutputTooLarge, ToolFailed, UpstreamError, sayable
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.artifact import MEDIA_TYPE, SCHEME
from tavern_core.model.plain_data import json_digest
from tavern_core.model.result import Evidence, ToolResult
from tavern_core.model.safe_printing import shortened

MOST_BYTES: Final = 64_000_000
"""Limit for one file, in either direction."""
_SUFFIX: Final = re.compile(r"\.[a-z0-9]{1,8}\Z")
_LONGEST_ARGUMENT: Final = 60
"""The maximum length of one argument in the evidence."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that goes to the server."""

    name: str
    """Derived from its content, so that the server has the same file once."""
    media_type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a run that is an artifact now."""

    link: Mapping[str, Any]
    entry: Mapping[str, Any]
    """Its entry in the `files` of the answer."""


async def upload_of(reference: str, call: UpstreamCall) -> Upload:
    """The file that an argument names: an artifact of the caller, or one beneath the caller's workspace.

    Raises:
        ArtifactNotFound: the caller has no such artifact (ARTIFACT_NOT_FOUND).
        ToolFailed: there is no such file beneath the workspace (TOOL_ERROR).
        OutputTooLarge: it has more than `MOST_BYTES` (OUTPUT_TOO_LARGE).
    """
    if reference.startswith(SCHEME):
        data, media_type = await asyncio.to_thread(call.context.artifact, reference, MOST_BYTES)
        suffix = mimetypes.guess_extension(media_type) or ""
    else:
        data = await asyncio.to_thread(_from_workspace, reference, call.call.context.workspace_dir)
        media_type = mimetypes.guess_type(reference)[0] or "application/octet-stream"
        suffix = PurePosixPath(reference).suffix.lower()
    name = hashlib.sha256(data).hexdigest()[:32] + (suffix if _SUFFIX.match(suffix) else "")
    return Upload(name, media_type, data)


def _from_workspace(reference: str, workspace: str | None) -> bytes:
    if not workspace:
        raise ToolFailed(
            f"{reference!r:.120} is not an artifact, and the caller has no workspace",
            hint="pass artifact:…, or CallContext(workspace_dir=...)",
        )
    root = os.path.realpath(os.path.expanduser(workspace))  # noqa: PTH111 - realpath is not a method of Path
    inside = os.path.relpath(reference, root) if reference.startswith("/") else reference
    with Folder(root) as folder, folder.open(inside) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OutputTooLarge(f"{reference!r:.120} has more than {MOST_BYTES:,} bytes", limit=MOST_BYTES)
    return data


async def download_file(http: Any, path: str, name: str, **options: Any) -> Answer:
    """Download a file that a run wrote. If that fails, the run is done all the same.

    Raises:
        UpstreamError: it cannot be downloaded (UPSTREAM_ERROR).
    """
    try:
        answer = await exchange(http, "GET", path, most=MOST_BYTES, **options)
        failure = "" if answer.status == 200 else f"the server answers {answer.status}"
    except CallError as error:
        failure = error.message
    if failure:
        raise UpstreamError(
            f"the run finished, but its file {name!r:.120} cannot be fetched: {failure}",
            hint="look into the output folder of the server; do not call again",
            outcome="done",
        )
    return answer


async def keep(data: bytes, media_type: str, name: str, node: str, url: str, call: UpstreamCall) -> StoredFile:
    """Keep a file of a run as an artifact of the caller.

    Args:
        media_type: as the server gives it; if it is invalid, it is guessed from the name.
        url: where the file is at the server.
    """
    base_name = re.split(r"[/\\]", sayable(name, 200))[-1]
    kind = (
        media_type
        if re.fullmatch(MEDIA_TYPE, media_type)
        else mimetypes.guess_type(base_name)[0] or "application/octet-stream"
    )

    def store() -> tuple[str, dict[str, Any]]:
        return f"sha256:{hashlib.sha256(data).hexdigest()}", call.context.keep(data, kind, base_name)

    digest, link = await asyncio.to_thread(store)
    entry = {
        "uri": link["uri"], "name": base_name, "mediaType": kind, "bytes": len(data),
        "digest": digest, "node": node, "url": url,
    }  # fmt: skip
    return StoredFile(link, entry)


def result_of(
    tool: UpstreamTool, run: str, graph: Mapping[str, Any], values: Mapping[str, Any], outputs: RunOutputs, kept: Sequence[StoredFile],
    left_out: Sequence[str] = (),
) -> ToolResult:  # fmt: skip
    """The answer of a run, with its evidence (seed 004 §7.4): hash of the workflow, seed, parameters, files with digest and URL.

    Args:
        graph: as it ran.
        values: the arguments, with the seeds that were drawn.
        left_out: what the server did not run, and why.
    """
    workflow = f"sha256:{json_digest(graph, is_compact=True)}"
    seeds = {name: values[name] for name in tool.data["seeds"] if name in values}
    now = time.time()
    parameters = ", ".join(
        f"{name}={shortened(str(value), _LONGEST_ARGUMENT)}" for name, value in sorted(values.items())
    )
    summary = f"ComfyUI run {run} of {tool.name}, workflow {workflow}, {parameters or 'no parameters'}"
    evidence = [Evidence("text", f"comfyui:{run}", f"{summary}{', from the cache' if outputs.is_cached else ''}", now)]
    for file in kept:
        entry = file.entry
        evidence.append(
            Evidence(
                "file",
                entry["uri"],
                f"{entry['name']}, {entry['digest']}, {entry['bytes']:,} bytes, {entry['url']}",
                now,
            )
        )
    value = {
        "runId": run,
        "workflowHash": workflow,
        "seeds": seeds,
        "files": [dict(file.entry) for file in kept],
        "texts": list(outputs.texts),
        "cached": outputs.is_cached,
    }
    if left_out:
        value["leftOut"] = list(left_out)
    return ToolResult(True, value, content=tuple(dict(file.link) for file in kept), evidence=tuple(evidence))
