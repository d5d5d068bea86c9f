"""`tavern upstreams`: entries written for the operator, and logging in."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.cli.conftest import Run


def test_entries_are_written_with_the_comments_kept_and_no_name_twice(tavern: Run, project: Path) -> None:
    file = project / "tavern.yaml"
    file.write_text("# mine\nlimits: {}  # keep this\n")
    (project / "servers.json").write_text(json.dumps({"mcpServers": {"docs": {"url": "http://127.0.0.1:9/mcp"}}}))
    done = tavern("upstreams", "add", "mcp", "--", "uvx", "mcp-server-time")
    assert done.code == 0, done.err
    assert "outside of the sandbox" in done.out
    assert "tavern plugins review time" in done.out
    assert tavern("upstreams", "import", "servers.json").code == 0
    text = file.read_text()
    assert text.startswith("# mine\nlimits: {}  # keep this\n")
    assert set(yaml.safe_load(text)["upstreams"]) == {"time", "docs"}
    again = tavern("upstreams", "import", "servers.json")
    assert again.code != 0
    assert "has an upstream 'docs' already" in again.err
    assert file.read_text() == text
    assert "pending_consent" in tavern("upstreams", "list").out


def test_a_file_is_made_where_there_is_none(tavern: Run, project: Path) -> None:
    (project / "tavern.yaml").unlink()
    assert tavern("upstreams", "add", "mcp", "--name", "here", "--", "mcp-server-git").code == 0
    written = yaml.safe_load((project / "tavern.yaml").read_text())
    assert written == {"upstreams": {"here": {"kind": "mcp", "command": ["mcp-server-git"]}}}
