"""Refuse a call whose SQL does more than its tool may do (seed 004 §9.2, SECURITY §5).

statement.py              the analysis of one statement, in every dialect that accepts it
allowlists.py             the allowed parts of a statement
parser_differentials.py   spellings that parsers read differently
functions.py              functions and tables that do more than compute

Without `write:db`, granted to plugin and caller, a value that the schema marks as sql is one statement that only reads. With it,
also one that changes rows, adds tables or takes locks; DROP, TRUNCATE, ALTER and CREATE OR REPLACE need `danger:destructive` as well, or approval.
Everything that cannot be parsed is refused. A read-only database account is the better protection, because this only checks text.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tavern_core.contract.context import PluginContext
from tavern_core.contract.decisions import Deny, RequireApproval, deny, require_approval
from tavern_core.contract.guards.guarded_arguments import decision, marks
from tavern_core.contract.hookspecs import hookimpl
from tavern_core.model.call import ToolCall, grant_fix
from tavern_core.model.parameter_guard_marks import Guard
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.schema.guarded_value_search import GuardedValue


__all__ = ["tavern_check_call"]


@hookimpl(when=lambda tool: marks(tool, "sql"))
def tavern_check_call(call: ToolCall, tool: ToolSpec, ctx: PluginContext) -> Deny | RequireApproval | None:
    return decision(call, tool, "sql", partial(_judge, call, tool, ctx))


def _judge(
    call: ToolCall, tool: ToolSpec, ctx: PluginContext, guarded: GuardedValue, mark: Guard
) -> Deny | RequireApproval | None:
    from tavern_core.builtin.policies.sql.statement import NoParser, read_statement

    pointer, may_write = guarded.pointer, call.rights.holds("write:db")
    try:
        analysis = read_statement(guarded.value, mark.get("dialect"), writing=may_write, listed=ctx.config["functions"])
    except NoParser:
        return _denied(pointer, "cannot be checked: sqlglot is not installed", "pip install 'tavern-core[sql]'")
    if analysis.flaw:
        return _denied(
            pointer,
            analysis.flaw,
            analysis.fix or ("send one statement that only reads" if not may_write else "send one plain statement"),
        )
    if not analysis.writes:
        return None
    if mark.get("mode") == "read":
        return _denied(
            pointer, f"changes the database ({analysis.writes}); this parameter is for reading only", "send a query"
        )
    if not may_write:
        hint = f"{grant_fix(tool.plugin, ['write:db'], call.rights.asked)}, and let the caller have write:db"
        return _denied(
            pointer, f"changes the database ({analysis.writes}), which needs write:db", hint, missing=["write:db"]
        )
    if analysis.destroys and not call.rights.holds("danger:destructive"):
        return require_approval(
            f"argument {pointer}: the SQL destroys something ({analysis.destroys})", pointer=pointer, guard="sql"
        )
    return None


def _denied(pointer: str, reason: str, hint: str, **details: Any) -> Deny:
    return deny(f"argument {pointer}: the SQL {reason}", hint=hint, pointer=pointer, guard="sql", **details)
