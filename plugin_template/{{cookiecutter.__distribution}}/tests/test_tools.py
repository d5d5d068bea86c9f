"""The tools run inside a real host. The fixtures come with tavern-core: call_tool, tavern, open_tavern, ..."""

import pytest

from tavern_core import Tavern
from tavern_core.testing import InstalledPlugin, ToolCaller


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"name": "Ada"}, "Hello, Ada!"), ({"name": "小明"}, "Hello, 小明!"), ({}, "Hello, World!")],
)
def test_greet_says_hello(call_tool: ToolCaller, arguments: dict[str, str], text: str) -> None:
    assert call_tool("greet", arguments).value == text


@pytest.mark.tavern(settings={"greeting": "Welcome"})
def test_the_operator_chooses_the_greeting(call_tool: ToolCaller) -> None:
    assert call_tool("greet", {"name": "Ada"}).value == "Welcome, Ada!"


def test_count_words_counts(call_tool: ToolCaller) -> None:
    assert call_tool("count_words", {"text": "one two 三"}).value == {"words": 3, "characters": 9}


@pytest.mark.parametrize("arguments", [{}, {"text": 7}, {"txet": "one"}])
def test_arguments_that_do_not_fit_are_refused(call_tool: ToolCaller, arguments: dict[str, object]) -> None:
    call_tool.refused("count_words", arguments, kind="INPUT_SCHEMA_INVALID")


def test_the_manifest_is_clean(installed_plugin: InstalledPlugin, tavern: Tavern) -> None:
    assert installed_plugin.findings == ()
    assert tavern.plugins[installed_plugin.name].missing == frozenset()
