"""Refuse a call whose SQL does more than its tool may do (seed 004 §9.2, SECURITY §5).

gate.py                   which calls are checked, and against which permissions
statement.py              what one statement does, in every dialect that accepts it
allowlists.py             what a statement may contain
parser_differentials.py   spellings that parsers read differently
functions.py              functions and tables that do more than compute

Without `write:db`, granted to plugin and caller, a value that the schema marks as sql is one statement that only reads. With it,
also one that changes rows, adds tables or takes locks; DROP, TRUNCATE, ALTER and CREATE OR REPLACE need `danger:destructive` as well, or approval.
Everything that cannot be parsed is refused. A read-only database account is the better protection, because this only checks text.
"""

from __future__ import annotations

from tavern_core.builtin.policies.sql.gate import tavern_check_call

__all__ = ["tavern_check_call"]
