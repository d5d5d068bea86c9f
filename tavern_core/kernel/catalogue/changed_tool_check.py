"""Checks changes by `tavern_before_register_tool` hooks: descriptions and accepted input, never the code.

The code stays that of its plugin, and its protection may be tightened, not loosened: otherwise one granted hook would
have all rights of every other plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tavern_core.errors import ActivationFailed
from tavern_core.kernel.hooks.argument_copies import is_its_code
from tavern_core.kernel.plugins.registry_entries import schema_errors
from tavern_core.kernel.plugins.tool_spec_validation import refuse_unsound
from tavern_core.model.call_limits import ToolLimits, parse_rate
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.model.node import NodeSpec


def why_not(answer: Any, spec: ToolSpec, *, is_foreign: bool = False) -> str:
    """Why a hook's version of a tool is refused; empty: it is accepted.

    Args:
        answer: the return value of the hook, which got `spec` without its code.
        is_foreign: see `PluginCandidate.has_foreign_schemas`.
    """
    if not isinstance(answer, ToolSpec):
        return f"it answered {type(answer).__name__}"
    if (answer.name, answer.plugin) != (spec.name, spec.plugin):
        return "it tried to change the tool's id or owner"
    runs, ran = ((one.kind, one.endpoint, one.implementation) for one in (answer, spec))
    if not is_its_code(answer, spec) or runs != ran:
        return "it tried to change the tool's code"
    try:
        refuse_unsound(answer, has_code=False)
    except ActivationFailed as error:
        return f"its change is not valid: {error.message}"
    if loosened := _loosened(answer, spec):
        return f"it tried to remove a safeguard of the tool: {loosened}"
    errors = schema_errors(answer, is_foreign=is_foreign)
    return f"its change is not a valid schema: {errors[0]}" if errors else ""


def changed_parts(before: ToolSpec | NodeSpec, after: ToolSpec | NodeSpec) -> list[str]:
    """The parts that differ, by their JSON names."""
    old, new = before.to_json(), after.to_json()
    return sorted(key for key in {*old, *new} if old.get(key) != new.get(key))


def _loosened(answer: ToolSpec, spec: ToolSpec) -> str:
    if lost := sorted(spec.capabilities - answer.capabilities):
        return f"the capability {lost[0]}"
    for name in ("destructive", "requires_approval", "optional", "untrusted"):
        if getattr(spec, name) and not getattr(answer, name):
            return name
    if answer.read_only and not spec.read_only:
        return "that it is not read_only"
    if any(setting not in answer.config_schema for setting in spec.config_schema):
        return "its settings"
    if spec.timeout_ms is not None and (answer.timeout_ms is None or answer.timeout_ms > spec.timeout_ms):
        return "timeout_ms"
    return "limits" if _allow_more(answer.limits, spec.limits) else ""


def _allow_more(now: ToolLimits, before: ToolLimits) -> bool:
    if before.concurrency is not None and (now.concurrency is None or now.concurrency > before.concurrency):
        return True
    if before.rate is None or now.rate is None:
        return before.rate is not None
    (calls, seconds), (were, period) = parse_rate(now.rate), parse_rate(before.rate)
    return calls / seconds > were / period
