"""A host with one tool whose parameters are what a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tavern_core import CallContext, Plugin, Tavern, ToolResult, hookimpl

Ask = Callable[..., ToolResult]


class Desk:
    """Opens hosts with the tool ``desk:look`` and calls it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._hosts: dict[str, Tavern] = {}
        self.ran: list[Mapping[str, Any]] = []

    def tool(
        self, schema: Mapping[str, Any], *capabilities: str, scopes: Mapping[str, list[str]] = {}, **more: Any
    ) -> Ask:
        """A function that calls a tool with these parameters; its keywords go into the CallContext.

        Args:
            scopes: what the plugin was granted, by capability; the others without a scope.
            more: keys of the configuration.
        """
        host = self._open(repr((schema, capabilities, scopes, more)), schema, capabilities, scopes, more)

        def call(arguments: Mapping[str, Any], permissions: Any = None, **context: Any) -> ToolResult:
            rights = frozenset(capabilities) | frozenset(scopes) if permissions is None else permissions
            self.ran.clear()
            return host.invoke_sync("desk:look", arguments, context=CallContext(permissions=rights, **context))

        return call

    def _open(self, key: str, schema: Any, capabilities: Any, scopes: Any, more: Any) -> Tavern:
        """A host for this tool; one that was opened before is used again, because opening takes most of the time."""
        if key in self._hosts:
            return self._hosts[key]
        definition = {
            "name": "look",
            "description": "Looks.",
            "parameters": schema,
            "capabilities": list(capabilities),
            "execute": self._run,
        }
        asked = [{"name": c, "scope": scopes[c]} if c in scopes else {"name": c} for c in {*capabilities, *scopes}]
        offer = Plugin(
            Offering(definition), name="desk", manifest={"version": "1", "permissions": {"capabilities": asked}}
        )
        host = Tavern.open(config={"audit": {"enabled": False}, **more}, home=self.home, plugins=[offer])
        host.__enter__()
        self._hosts[key] = host
        assert "desk:look" in {spec.id for spec in host.tools.list()}, host.plugins["desk"].reason
        return host

    def close(self) -> None:
        for host in self._hosts.values():
            host.__exit__(None, None, None)

    def _run(self, call_id: str, arguments: Mapping[str, Any], *_: Any) -> str:
        self.ran.append(arguments)
        return "done"


class Offering:
    """A plugin that offers one tool."""

    def __init__(self, definition: Mapping[str, Any]) -> None:
        self._definition = definition

    @hookimpl
    def tavern_register_tools(self) -> list[Any]:
        return [self._definition]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    made = Desk(tmp_path_factory.mktemp("desk") / "home")
    yield made
    made.close()


def refusal(result: ToolResult) -> str:
    """The message of a refusal by a policy; an answer or any other error fails the test."""
    assert result.error is not None, "it was not refused"
    assert result.error.kind == "POLICY_DENIED", result.error
    assert result.error.details["pointer"].startswith("/")
    assert result.error.fix, "it does not say what to do"
    return result.error.message
