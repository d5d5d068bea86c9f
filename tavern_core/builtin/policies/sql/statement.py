"""What one statement does, read by sqlglot.

Where the dialect is not known, the text must be harmless in *each* of the usual ones that can read it: what is a string to one
(``'\\'; drop table t; --'``, ``$$…$$``) is code to another.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from typing import Any, Final

from tavern_core.builtin.policies.sql.functions import does_more

LONGEST: Final = 10_000
"""Characters: reading takes up to a second for that many, in all dialects together."""
USUAL: Final = ("sqlite", "postgres", "mysql", "tsql")
_EXPLAIN: Final = re.compile(r"\s*explain\s+((query\s+plan|analyze|verbose)\s+)*(?=select\b|with\b|values\b|\()", re.IGNORECASE)
_ESCAPED_NAME: Final = re.compile(r'(?<![\w$])u&"', re.IGNORECASE)
"""PostgreSQL reads a name there, and the parser an AND of two: nobody could say which function it is."""
_BEGINNINGS: Final = frozenset({
    "SELECT", "WITH", "VALUES", "TABLE", "FROM", "(", "DESC", "DESCRIBE", "SHOW",
    "INSERT", "UPDATE", "DELETE", "MERGE", "CREATE", "DROP", "ALTER", "TRUNCATE",
})  # fmt: skip
"""Others (PRAGMA, ATTACH, COPY, SET, CALL, DO, GRANT ...) are refused unread."""
_READS: Final = frozenset({"Select", "Union", "Intersect", "Except", "SetOperation", "Subquery", "Values", "Show", "Describe"})
_ROWS: Final = frozenset({"Insert", "Update", "Delete", "Merge", "Create"})
_DESTROYS: Final = frozenset({"Drop", "TruncateTable", "Alter"})
_WRITES_INSIDE: Final = {"Into": "SELECT ... INTO", "Lock": "FOR UPDATE"}
_NEVER: Final = frozenset({
    "Command", "Pragma", "Attach", "Detach", "Set", "Transaction", "Commit", "Rollback", "Use", "Kill", "Copy", "Grant",
    "Revoke", "Execute", "LoadData", "Analyze", "Cache", "Export",
})  # fmt: skip


class NoParser(Exception):
    """sqlglot is not installed."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a text was found to be."""

    flaw: str = ""
    """Why it is refused, whatever is granted; else empty."""
    writes: str = ""
    """What it changes (``INSERT``), empty for one that only reads."""
    destroys: str = ""
    """``DROP``, ``TRUNCATE`` or ``ALTER``."""


def read_statement(text: object, dialect: str = "", *, writing: bool = False) -> Found:
    """What `text` does.

    Args:
        dialect: sqlglot's name of it; empty: unknown.
        writing: functions that only change the database are fine.

    Raises:
        NoParser: sqlglot is not installed.
    """
    if not isinstance(text, str):
        return Found("is no text")
    if len(text) > LONGEST:
        return Found(f"is longer than {LONGEST:,} characters")
    if "\0" in text:
        return Found("holds a NUL character")
    if "/*!" in text or "/*M!" in text:
        return Found("holds a comment that some databases execute (/*!)")
    if _ESCAPED_NAME.search(text):
        return Found('holds a name written in escapes (U&"...")')
    text = _EXPLAIN.sub("", text, count=1)
    judged = [_judge(text, one, writing) for one in ((dialect,) if dialect else USUAL)]
    understood = [found for found in judged if not isinstance(found, str)]
    if not understood:
        return Found(f"cannot be read: {judged[0]}")
    return next((f for f in understood if f.flaw), None) or max(understood, key=lambda f: (bool(f.destroys), bool(f.writes)))


def _judge(text: str, dialect: str, writing: bool) -> Found | str:
    """What the text does in one dialect; a text when it is none in it."""
    try:
        sqlglot = importlib.import_module("sqlglot")
    except ImportError as error:
        raise NoParser from error
    try:
        reader = sqlglot.Dialect.get_or_raise(dialect)
        tokens = reader.tokenize(text)
        if not tokens:
            return Found("is empty")
        beginning = tokens[0].text.upper()
        if beginning not in _BEGINNINGS or (beginning == "SHOW" and dialect != "mysql"):
            return Found(f"begins with {tokens[0].text[:40]!r}, which is no query")
        statements = [s for s in reader.parse(text) if s is not None and type(s).__name__ != "Semicolon"]
    except RecursionError:
        return Found("is nested too deeply")
    except (sqlglot.errors.SqlglotError, ValueError) as error:
        return " ".join(str(error).split())[:120]
    if len(statements) != 1:
        return Found(f"holds {len(statements)} statements; one is allowed")
    return _does(statements[0], writing)


def _does(statement: Any, writing: bool) -> Found:
    kind = type(statement).__name__
    if kind not in _READS | _ROWS | _DESTROYS:
        return Found(f"is no query ({kind})")
    writes = destroys = ""
    for node in statement.walk():
        name = type(node).__name__
        if name in _NEVER:
            return Found(f"holds {name.upper()}")
        if name in _DESTROYS:
            destroys = {"TruncateTable": "TRUNCATE"}.get(name, name.upper())
        elif name in _ROWS:
            writes = writes or name.upper()
        elif name in _WRITES_INSIDE:
            writes = writes or _WRITES_INSIDE[name]
        for function in _functions(node):
            if does_more(function, in_from=_is_in_from(node), writing=writing):
                return Found(f"calls {function[:60]}, which does more than compute")
        if name == "Table" and _is_file(node):
            return Found("reads a file as a table")
        if name == "Table" and _is_called(node) and does_more(node.name, in_from=True, writing=writing):
            return Found(f"calls {node.name[:60]}, which does more than compute")
        if name == "PropertyEQ" and type(node.this).__name__ == "Parameter":
            return Found("sets a variable (:=)")
    return Found(writes=writes or destroys, destroys=destroys)


def _functions(node: Any) -> list[str]:
    """The name of the function that `node` calls, and of the package it is in; empty when it calls none."""
    kinds = {cls.__name__ for cls in type(node).__mro__}
    if "Func" not in kinds:
        return []
    if not kinds & {"Anonymous", "AnonymousAggFunc", "ParameterizedAgg"}:
        return [str(name) for name in type(node).sql_names()]
    parent = node.parent
    package = str(parent.this.name) if type(parent).__name__ == "Dot" and parent.expression is node else ""
    return [name for name in (str(node.name or node.this).strip('"`[]'), package) if name]


def _is_in_from(node: Any) -> bool:
    return type(node.parent).__name__ in ("Table", "From", "Join", "Lateral")


def _is_called(table: Any) -> bool:
    """``FROM file('x')``, which is read as a table with a column of that name and no other name."""
    alias = table.args.get("alias")
    return alias is not None and alias.args.get("this") is None and bool(alias.args.get("columns"))


def _is_file(table: Any) -> bool:
    """``FROM 'data.csv'`` and ``FROM "/etc/passwd"``: some databases read files so."""
    return "/" in table.name or table.name.endswith((".csv", ".parquet", ".json", ".db"))
