"""Every program and every command of the manual, and every example in a docstring, does what is said there."""

from __future__ import annotations

import doctest
import importlib
import json
from pathlib import Path

import pytest

import tavern_core
from tavern_core.graph.json_patch import read_operations
from tavern_core.kernel.access.profiles import parse_profile
from tavern_core.kernel.config.configuration import load
from tavern_core.kernel.files.plugin_file_reader import FolderFiles
from tavern_core.kernel.manifest.vcp_manifest import VCP_FILE, read_vcp
from tavern_core.review.plugin_check import check_plugin
from tests.programs import tavern
from tests.rows import each_row

from .blocks import DOCS, Block, Workspace, blocks_of, sections_of

PAGES = (
    "agents.md",
    "tools.md",
    "hosting.md",
    "security.md",
    "workflows.md",
    "cli.md",
    "governance.md",
    "upstreams.md",
    "skills.md",
    "knowledge.md",
    "llms.md",
    "vcp.md",
    "assistant.md",
    "server.md",
    "mcp.md",
    "node-retrieval.md",
)
SECTIONS = [(page, section) for page in PAGES for section in sections_of(DOCS / page)]
DATA = [block for page in PAGES for block in blocks_of(DOCS / page) if block.language in ("yaml", "json")]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TAVERN_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TAVERN_PLUGINS__ENTRY_POINTS", "false")  # what else is installed here is not on the page
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    return Workspace(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "section"), SECTIONS)
def test_the_section_runs_as_written(workspace: Workspace, page: str, section: str) -> None:
    for block in sections_of(DOCS / page)[section]:
        workspace.run(block)
    for manifest in workspace.folder.rglob("plugin.yaml"):
        report = check_plugin(manifest.parent)
        assert report.findings == (), manifest


@each_row("block", DATA)
def test_data_on_the_page_is_what_its_reader_accepts(block: Block, tmp_path: Path) -> None:
    """Manifests and tool files are checked with the rest of their plugin, above."""
    name = Path(block.file).name if block.file else "tavern.yaml"
    if "mcpServers" in block.text:  # the configuration of an MCP client
        [server] = json.loads(block.text)["mcpServers"].values()
        assert server["command"] == "tavern"
        assert tavern(*server["args"], "--help", cwd=tmp_path).returncode == 0
    elif name == "tavern.yaml":
        (tmp_path / name).write_text(block.text, encoding="utf-8")
        assert load(tmp_path / name, env={"TAVERN_HOME": str(tmp_path)}).findings == ()
    elif Path(block.file).parts[0] == "profiles":
        assert parse_profile(block.text, name, "writer")[1] == ()
    elif name == VCP_FILE:
        assert read_vcp(block.text.encode(), Path(block.file).parent.name, FolderFiles(tmp_path)).findings == ()
    elif name == "patch.json":
        assert read_operations(json.loads(block.text))
    else:
        assert name == "plugin.yaml" or name.endswith(".tool.json") or "flows/" in block.file


@each_row("page", PAGES)
def test_every_block_is_run_read_or_a_picture(page: str) -> None:
    unknown = {
        b.place: b.language
        for b in blocks_of(DOCS / page)
        if b.language not in ("python", "console", "yaml", "json", "text")
    }
    assert unknown == {}
    assert page == "cli.md" or any(b.language == "python" and not b.file for b in blocks_of(DOCS / page))


@pytest.mark.slow
def test_the_examples_of_docstrings_give_what_they_show() -> None:
    package = Path(tavern_core.__file__).parent
    files = [path for path in package.rglob("*.py") if ">>> " in path.read_text(encoding="utf-8")]
    names = [".".join(path.relative_to(package.parent).with_suffix("").parts) for path in files]
    results = {name: doctest.testmod(importlib.import_module(name)) for name in names}
    assert [name for name, result in results.items() if result.failed] == []
    assert sum(result.attempted for result in results.values()) > 20
