"""Servers from PyPI that people use: time, in the sandbox with nothing granted; git, with one folder."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from tests.upstreams.mcp_hosts import host

pytestmark = pytest.mark.slow


def test_the_time_server_runs_in_the_sandbox(tmp_path: Path) -> None:
    with host(tmp_path, clock={"command": ["mcp-server-time"]}) as opened:
        opened.upstreams.refresh_sync("clock")
        assert opened.upstreams["clock"].tools == ("clock:convert_time", "clock:get_current_time")
        now = opened.invoke_sync("clock:get_current_time", {"timezone": "Asia/Tokyo"})
        assert now.value["timezone"] == "Asia/Tokyo"
        error = opened.invoke_sync("clock:get_current_time", {"timezone": "Nowhere"}).error
        assert error is not None and error.kind == "TOOL_ERROR" and "Nowhere" in error.message
        error = opened.invoke_sync("clock:get_current_time", {}).error
        assert error is not None and error.kind == "INPUT_SCHEMA_INVALID"

        async def many() -> set[bool]:
            calls = (opened.invoke("clock:get_current_time", {"timezone": "UTC"}) for _ in range(20))
            return {result.ok for result in await asyncio.gather(*calls)}

        assert asyncio.run(many()) == {True}


def test_the_git_server_sees_the_folder_that_it_was_granted_and_no_other(tmp_path: Path) -> None:
    project, other = tmp_path / "project", tmp_path / "other"
    for folder in (project, other):
        subprocess.run(["git", "init", "-q", str(folder)], check=True)
        (folder / "new.txt").write_text("x")
    entry = {
        "command": ["mcp-server-git"],
        "permissions": [
            {"name": "process:spawn", "scope": ["git"]},
            {"name": "read:fs", "scope": [str(project), "/etc/gitconfig"]},
        ],
        "deny": ["git_reset"],
    }
    with host(tmp_path / "home", git=entry) as opened:
        opened.upstreams.refresh_sync("git")
        assert "git:git_reset" not in opened.upstreams["git"].tools
        status = opened.invoke_sync("git:git_status", {"repo_path": str(project)})
        assert status.ok and "new.txt" in str(status.value), status
        assert not opened.invoke_sync("git:git_status", {"repo_path": str(other)}).ok
