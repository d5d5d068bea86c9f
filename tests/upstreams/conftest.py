"""Which modules are collected: those that talk to a live server only where a variable names it, those that need npm packages wherever
these are installed (`make mcp-servers`), and always in CI."""

from __future__ import annotations

import os

import pytest

from tests.mcp_server.conformance import FOLDER, is_installed

LIVE = {"test_live_n8n.py": "TAVERN_TEST_N8N", "test_live_comfyui.py": "TAVERN_TEST_COMFYUI"}
"""Module → the variable that says where its server is."""
_IS_CI = os.environ.get("CI") == "true"
collect_ignore = [module for module, variable in LIVE.items() if not os.environ.get(variable)]
if not (_IS_CI or is_installed()):
    collect_ignore.append("test_mcp_conformance.py")
if not (_IS_CI or (FOLDER / "node_modules" / ".bin" / "mcp-server-everything").exists()):
    collect_ignore.append("test_mcp_npm_servers.py")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
