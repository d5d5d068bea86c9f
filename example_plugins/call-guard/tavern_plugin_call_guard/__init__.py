"""A guard for every call, in two hooks.

    before_execute   modify: answers with changed arguments; the host validates them again and records who changed what
    check_call       gate:   sees what will run, after all changes, and may refuse it; a refusal is final

Both need a permission that plugin.yaml requests and the operator grants. If one of them fails or takes too long, the call
is refused: a guard that breaks keeps the door shut.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tavern_core import PluginContext, ToolCall, ToolSpec, deny, hookimpl

from .findings import mask_emails, secrets_in


@hookimpl(fast=True)  # fast: never blocks, so it needs no thread of its own
def tavern_before_execute(call: ToolCall, tool: ToolSpec, ctx: PluginContext) -> Mapping[str, Any] | None:
    """The arguments without e-mail addresses, or None when there is nothing to change."""
    if is_trusted(tool, ctx) or not ctx.get_config("maskEmails"):
        return None
    masked: dict[str, Any] = mask_emails(call.arguments)
    return None if masked == call.arguments else masked


@hookimpl(fast=True)
def tavern_check_call(call: ToolCall, tool: ToolSpec, ctx: PluginContext) -> Any:
    """Refuse the call when an argument holds a secret. The refusal says where, and never repeats the secret."""
    if is_trusted(tool, ctx):
        return None
    for where, what in secrets_in(call.arguments):
        return deny(f"argument {where} holds {what}", hint="name the secret instead of passing it along", where=where)
    return None


def is_trusted(tool: ToolSpec, ctx: PluginContext) -> bool:
    """Whether the operator exempted the tool."""
    return tool.id in str(ctx.get_config("trustedTools")).split()
