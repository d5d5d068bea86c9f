"""Refuse a call whose SQL does more than its tool may do (seed 004 §9.2, SECURITY §5).

gate.py        which calls are judged, and by which rights
statement.py   what one statement does, in every dialect that understands it
spelling.py    spellings that one reader takes for something else than another
tables.py      what it names as a table, locks or makes
functions.py   functions that do more than compute

Without `write:db`, granted to plugin and caller, a value that the schema marks as sql is one statement that only reads. With it,
also one that changes rows, adds tables or takes locks; DROP, TRUNCATE, ALTER and CREATE OR REPLACE need `danger:destructive` as well, or somebody's approval.
Whatever cannot be read is refused. A database account that may only read remains the better wall: this one judges text.
"""

from __future__ import annotations

from tavern_core.builtin.policies.sql.gate import tavern_check_call

__all__ = ["tavern_check_call"]
