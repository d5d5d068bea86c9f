"""Calls tools for a test, and explains failures in full.

call_tool("greet", {"name": "Ada"}).value                 # fails the test unless the call succeeds
call_tool.refused("greet", {"name": 7})                   # fails the test unless it is refused; returns the error
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tavern_core.host import Tavern
    from tavern_core.model.call import CallContext
    from tavern_core.model.result import ToolError, ToolResult


class ToolCaller:
    """The fixture `call_tool`. A name without a prefix is a tool of the plugin under test.

    Args:
        tavern: the host.
        plugin: the plugin under test; empty: tools need their full id.
    """

    def __init__(self, tavern: Tavern, plugin: str = "") -> None:
        self._tavern = tavern
        self._plugin = plugin

    def __call__(
        self, tool: str, arguments: Mapping[str, Any] | None = None, *, context: CallContext | None = None
    ) -> ToolResult:
        """The result of a call that must succeed.

        Args:
            tool: ``greet`` or ``plugin:greet``.
            arguments: by name.
            context: the caller; None: the host itself, with the plugin's granted capabilities.

        Raises:
            AssertionError: it failed; the message has the kind of the failure and its repair.
        """
        result = self._call(tool, arguments, context)
        if not result.ok:
            raise AssertionError(self._explained(tool, arguments, result))
        return result

    def refused(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        kind: str = "",
        context: CallContext | None = None,
    ) -> ToolError:
        """The error of a call that must fail.

        Args:
            kind: the error kind it must have, e.g. ``INPUT_SCHEMA_INVALID``; empty: any.

        Raises:
            AssertionError: it succeeded, or failed in another way.
        """
        result = self._call(tool, arguments, context)
        if result.error is None:
            raise AssertionError(
                f"{self._id(tool)} answered {result.value!r}; expected it to fail{f' with {kind}' if kind else ''}"
            )
        if kind and result.error.kind != kind:
            raise AssertionError(f"expected {kind}, but {self._explained(tool, arguments, result)}")
        return result.error

    def _call(self, tool: str, arguments: Mapping[str, Any] | None, context: CallContext | None) -> ToolResult:
        return self._tavern.invoke_sync(self._id(tool), arguments or {}, context=context)

    def _id(self, tool: str) -> str:
        return f"{self._plugin}:{tool}" if self._plugin and ":" not in tool else tool

    def _explained(self, tool: str, arguments: Mapping[str, Any] | None, result: ToolResult) -> str:
        error = result.error
        assert error is not None
        lines = [f"{self._id(tool)}({dict(arguments or {})!r}) failed with {error.kind}: {error.message}"]
        lines += [f"  {key}: {value!r}" for key, value in error.details.items() if key != "problems"]
        if error.fix:
            lines.append(f"  fix: {error.fix}")
        return "\n".join(lines)
