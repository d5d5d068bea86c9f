"""Tools of an upstream whose own names a wire name cannot hold: MCP clients see and call them under names of ASCII."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mcp_server.serving import served
from tests.mcp_server.shop import answer, post
from tests.upstreams.toy import ECHO, System, opened

pytestmark = pytest.mark.slow

NAMES = ("发送报告 每周", "отчёт", "🦊", "a" * 128, "send/report", "echo")


def test_each_tool_is_listed_once_and_called_by_the_name_in_the_list(tmp_path: Path) -> None:
    def calls(tool: object, arguments: object, call: object) -> str:
        return f"called {tool.name}"  # type: ignore[attr-defined]

    system = System(tuple(replace(ECHO, name=name) for name in NAMES), answer=calls)
    with opened(system, tmp_path) as first:
        assert len(first.upstreams.connect_sync("toy").tools) == len(NAMES)
    with served(lambda: opened(system, tmp_path, granted=False)) as (url, tavern):
        token = tavern.tokens.create("agent:a", permissions=["network"])[1]
        listed = [each["name"] for each in answer(post(url, token, "tools/list"))["result"]["tools"]]
        wire = [name for name in listed if name.startswith("toy__")]
        assert len(set(wire)) == len(NAMES)
        assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", name) for name in wire)
        called = [post(url, token, "tools/call", {"name": name, "arguments": {"x": 1}}) for name in wire]
        texts = [answer(each)["result"]["content"][0]["text"] for each in called]
        assert sorted(texts) == sorted(f"called {name}" for name in NAMES)
