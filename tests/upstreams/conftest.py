"""What some tests of upstreams need: what npm brings is tested wherever it is installed (`make mcp-servers`), and always in CI; real
servers of n8n and ComfyUI where a variable says which."""

from __future__ import annotations

import os

import pytest

from tests.mcp_server.conformance import FOLDER, is_installed

LIVE = {"test_live_n8n.py": "TAVERN_TEST_N8N", "test_live_comfyui.py": "TAVERN_TEST_COMFYUI"}
_IS_CI = os.environ.get("CI") == "true"
collect_ignore = [module for module, variable in LIVE.items() if not os.environ.get(variable)]
if not _IS_CI and not is_installed():
    collect_ignore.append("test_mcp_conformance.py")
if not _IS_CI and not (FOLDER / "node_modules" / ".bin" / "mcp-server-everything").exists():
    collect_ignore.append("test_mcp_npm_servers.py")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
