"""The test kit for plugins: a pytest plugin with fixtures, and the types and fakes for tests.

    def test_greet(call_tool):                     # installed with tavern-core, nothing to configure
        assert call_tool("greet", {"name": "Ada"}).value == {"greeted": "Ada"}

plugin.py      the fixtures and options        hosts.py     opens hosts with only the plugin under test
under_test.py  finds the plugin under test     calls.py     calls its tools and explains failures
contexts.py    a PluginContext without a host  endpoint.py  a web API on this machine with prepared replies

Importing this package imports nothing else: pytest reads it in every project, even if it is not used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tavern_core.testing.calls import ToolCaller
    from tavern_core.testing.contexts import fake_context
    from tavern_core.testing.endpoint import FakeEndpoint, Request
    from tavern_core.testing.hosts import OpenTavern
    from tavern_core.testing.under_test import InstalledPlugin

__all__ = ["FakeEndpoint", "InstalledPlugin", "OpenTavern", "Request", "ToolCaller", "fake_context"]

_HOME = {
    "FakeEndpoint": "endpoint",
    "InstalledPlugin": "under_test",
    "OpenTavern": "hosts",
    "Request": "endpoint",
    "ToolCaller": "calls",
    "fake_context": "contexts",
}


def __getattr__(name: str) -> Any:
    if (module := _HOME.get(name)) is None:
        raise AttributeError(f"module 'tavern_core.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tavern_core.testing.{module}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
