"""The tool runs inside a real host; the fixtures come with tavern-core (docs/writing-a-plugin.md)."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tavern_core import Tavern
from tavern_core.testing import InstalledPlugin, ToolCaller


@pytest.mark.parametrize(
    ("arguments", "greeted"),
    [
        ({"name": "Ada"}, "Ada"),
        ({"name": "小明"}, "小明"),
        ({}, "World"),
        ({"name": ""}, "World"),
    ],
)
def test_it_greets_by_name_and_the_world_without_one(
    call_tool: ToolCaller, arguments: dict[str, Any], greeted: str
) -> None:
    result = call_tool("greet", arguments)

    assert result.content == ({"type": "text", "text": f"Hello, {greeted}!"},)
    assert result.value == {"greeted": greeted}


@pytest.mark.parametrize("arguments", [{"name": 7}, {"name": None}, {"nmae": "Ada"}])
def test_arguments_that_do_not_fit_are_refused(call_tool: ToolCaller, arguments: dict[str, Any]) -> None:
    call_tool.refused("greet", arguments, kind="INPUT_SCHEMA_INVALID")


def test_the_name_is_optional_and_described(tavern: Tavern) -> None:
    schema = tavern.tool_schema("my-plugin:greet")

    assert "name" not in schema["parameters"].get("required", [])
    assert schema["parameters"]["properties"]["name"]["description"] == "Name to greet"


def test_listing_the_tool_does_not_import_the_plugin(installed_plugin: InstalledPlugin) -> None:
    program = (
        "import sys, tempfile\n"
        "from tavern_core import Tavern\n"
        "with tempfile.TemporaryDirectory() as home, Tavern.open({}, home=home) as tavern:\n"
        "    assert 'my-plugin:greet' in [spec.id for spec in tavern.tools.list()]\n"
        f"    print({installed_plugin.package!r} in sys.modules)\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout == "False\n"
