"""Where calls find their tools."""

from __future__ import annotations

from typing import Protocol

from tavern_core.kernel.calls.running_call import RunningCall
from tavern_core.kernel.catalogue.call_plan import Plan
from tavern_core.model.call import CallContext


class Catalogue(Protocol):
    """Where the pipeline finds the plan of a tool, and who may use it."""

    def ready(self, written: str) -> Plan | None:
        """The plan, when the tool is active and does not depend on the caller."""
        ...

    async def find(self, written: str, context: CallContext | None) -> Plan:
        """The plan, activating the plugin if need be.

        Raises:
            CallError: there is no such tool, or it cannot be used (TOOL_NOT_FOUND, POLICY_DENIED, UPSTREAM_ERROR).
        """
        ...

    async def admits(self, plan: Plan, context: CallContext) -> Plan:
        """The plan, with the rights of the caller's profile, when lists and profile let the caller use the tool.

        Raises:
            PolicyDenied: they do not (POLICY_DENIED).
        """
        ...

    def running(self, number: int) -> RunningCall | None:
        """The call of this number, while it runs."""
        ...

    async def still_holds(self, plan: Plan, context: CallContext) -> None:
        """Return when the tool is still the one of `plan`, with the same rights, and this caller may still use it.

        Raises:
            CallError: it is not (POLICY_DENIED, TOOL_NOT_FOUND, UPSTREAM_ERROR).
        """
        ...
