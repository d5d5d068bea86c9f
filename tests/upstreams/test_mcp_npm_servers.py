"""Servers from npm that people use, of the old era: everything, and a folder of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mcp_server.conformance import FOLDER, NODE
from tests.upstreams.mcp_hosts import host

pytestmark = pytest.mark.slow

BIN = FOLDER / "node_modules" / ".bin"


def test_server_everything(tmp_path: Path) -> None:
    entry = {"command": [str(NODE), str((BIN / "mcp-server-everything").resolve()), "stdio"], "trusted": True}
    with host(tmp_path, all={"namespace": "all", **entry}) as opened:
        opened.upstreams.refresh_sync("all")
        assert opened.invoke_sync("all:echo", {"message": "hello"}).value == "Echo: hello"
        image = opened.invoke_sync("all:get-tiny-image", {})
        assert "resource_link" in [block["type"] for block in image.content]
        total = opened.invoke_sync("all:get-sum", {"a": 2, "b": 3})
        assert "5" in total.value
        weather = opened.invoke_sync("all:get-structured-content", {"location": "Chicago"})
        assert weather.ok and isinstance(weather.value, dict)
        seen: list[object] = []
        opened.events.subscribe(seen.append, "TOOL_PROGRESS")
        assert opened.invoke_sync("all:trigger-long-running-operation", {"duration": 1, "steps": 2}).ok
        assert seen


def test_a_task_of_the_old_era_asks_its_person(tmp_path: Path) -> None:
    entry = {"command": [str(NODE), str((BIN / "mcp-server-everything").resolve()), "stdio"], "trusted": True}
    with host(tmp_path, all=entry) as opened:
        opened.upstreams.refresh_sync("all")
        arguments = {"topic": "python", "ambiguous": True}
        job = opened.wait(opened.jobs.start("all:simulate-research-query", arguments)).id
        asked = opened.wait(opened.jobs.wait(job, 30))
        assert asked.status == "input_required" and "multiple interpretations" in asked.questions[0]["prompt"]
        assert opened.jobs.answer(job, {"interpretation": "snake"})
        assert opened.wait(opened.jobs.wait(job, 30)).status == "completed"
        assert "Clarification**: snake" in opened.jobs.result(job).value


def test_server_filesystem(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "note.txt").write_text("a note")
    (tmp_path / "outside.txt").write_text("no")
    command = [str(NODE), str((BIN / "mcp-server-filesystem").resolve()), str(files)]
    with host(tmp_path / "home", files={"command": command, "trusted": True}) as opened:
        opened.upstreams.refresh_sync("files")
        read = opened.invoke_sync("files:read_text_file", {"path": str(files / "note.txt")})
        assert "a note" in str(read.value)
        refused = opened.invoke_sync("files:read_text_file", {"path": str(tmp_path / "outside.txt")}).error
        assert refused is not None and refused.kind == "TOOL_ERROR"
