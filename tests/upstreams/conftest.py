"""What the tests of upstreams have in common."""

from __future__ import annotations

import os

import pytest

LIVE = {"test_live_n8n.py": "TAVERN_TEST_N8N", "test_live_comfyui.py": "TAVERN_TEST_COMFYUI"}
"""Modules that talk to a real server: collected where the variable says which."""
collect_ignore = [module for module, variable in LIVE.items() if not os.environ.get(variable)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
