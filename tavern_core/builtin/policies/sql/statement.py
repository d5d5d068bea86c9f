"""What one statement does, read by sqlglot.

Where the dialect is not known, the text must be harmless in *each* of the usual ones that can read it: what is a string to one
(``'\\'; drop table t; --'``, ``$$…$$``) is code to another.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from tavern_core.builtin.policies.sql.functions import does_more, is_acting_package
from tavern_core.builtin.policies.sql.spelling import second_statement, text_flaw, token_flaw
from tavern_core.builtin.policies.sql.tables import locks, made_flaw, table_flaw

LONGEST: Final = 10_000
"""Characters: reading takes up to a second for that many, in all dialects together."""
USUAL: Final = ("sqlite", "postgres", "mysql", "tsql")
_EXPLAIN: Final = re.compile(
    r"\s*explain(?=[\s(])"
    r"(\s*(query\s+plan|analyze|verbose|extended|partitions|format\s*=\s*\w+)\b"
    r"|\s*\(\s*(?!select\b|with\b|values\b|table\b|from\b)[a-z_]+(\s+\w+)?(\s*,\s*[a-z_]+(\s+\w+)?)*\s*\))*"
    r"\s*(?=select\b|with\b|values\b|\()",
    re.IGNORECASE,
)
_NUMBERED: Final = re.compile(r"\?\d+")
"""SQLite's numbered placeholders, which the parser does not know."""
_BEGINNINGS: Final = frozenset({
    "SELECT", "WITH", "VALUES", "TABLE", "FROM", "(", "DESC", "DESCRIBE", "SHOW",
    "INSERT", "UPDATE", "DELETE", "MERGE", "CREATE", "DROP", "ALTER", "TRUNCATE",
})  # fmt: skip
"""Others (PRAGMA, ATTACH, COPY, SET, CALL, DO, GRANT ...) are refused unread."""
_READS: Final = frozenset(
    {"Select", "Union", "Intersect", "Except", "SetOperation", "Subquery", "Values", "Show", "Describe"}
)
_ROWS: Final = frozenset({"Insert", "Update", "Delete", "Merge", "Create"})
_DESTROYS: Final = frozenset({"Drop", "TruncateTable", "Alter"})
_WRITES_INSIDE: Final = {"Into": "SELECT ... INTO", "Lock": "FOR UPDATE"}
_NEVER: Final = frozenset({
    "Command", "Pragma", "Attach", "Detach", "Set", "Transaction", "Commit", "Rollback", "Use", "Kill", "Copy", "Grant",
    "Revoke", "Execute", "LoadData", "Analyze", "Cache", "Export", "Directory",
})  # fmt: skip
_NEVER_CALLED: Final = {"QueryTransform": "TRANSFORM ... USING"}


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
    """``DROP``, ``TRUNCATE``, ``ALTER``, ``CREATE OR REPLACE`` or ``INSERT OVERWRITE``."""


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
    if flaw := text_flaw(text):
        return Found(flaw)
    if explained := _EXPLAIN.match(text):
        text = text[explained.end() :]
    if dialect in ("", "sqlite"):
        text = _NUMBERED.sub("?", text)
    with _silent():
        judged = [_judge(text, one, writing) for one in ((dialect,) if dialect else USUAL)]
    understood = [found for found in judged if not isinstance(found, str)]
    if not understood:
        return Found(f"cannot be read: {judged[0]}")
    return next((f for f in understood if f.flaw), None) or max(
        understood, key=lambda f: (bool(f.destroys), bool(f.writes))
    )


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
        if flaw := token_flaw(text, tokens, dialect):
            return Found(flaw)
        statements = [s for s in reader.parse(text) if s is not None and type(s).__name__ != "Semicolon"]
    except RecursionError:
        return Found("is nested too deeply")
    except (sqlglot.errors.SqlglotError, ValueError) as error:
        return _said(error)
    if len(statements) != 1:
        return Found(f"holds {len(statements)} statements; one is allowed")
    if dialect in ("tsql", "fabric") and (word := second_statement(tokens, list(_aliases(statements[0])))):
        return Found(
            f"may hold a second statement ({word}), which SQL Server begins without a semicolon; write AS before an alias, or quote it"
        )
    return _does(statements[0], dialect, writing)


def _said(error: Exception) -> str:
    """What the parser has against a text, without the text: it may hold what is nobody's business."""
    for one in getattr(error, "errors", None) or ():
        if one.get("description"):
            return f"{str(one['description']).partition(' but got ')[0]:.80} (line {one.get('line')}, column {one.get('col')})"
    return (
        "it is cut off or holds what is no SQL"
        if type(error).__name__ == "TokenError"
        else " ".join(str(error).split())[:120]
    )


def _does(statement: Any, dialect: str, writing: bool) -> Found:
    kind = type(statement).__name__
    if kind not in _READS | _ROWS | _DESTROYS:
        return Found(f"is no query ({kind})")
    writes = destroys = ""
    for node in statement.walk():
        name = type(node).__name__
        if name in _NEVER or name in _NEVER_CALLED:
            return Found(f"holds {_NEVER_CALLED.get(name, name.upper())}")
        if name == "Create" and (flaw := made_flaw(node)):
            return Found(flaw)
        if name in _DESTROYS:
            destroys = {"TruncateTable": "TRUNCATE"}.get(name, name.upper())
        elif name in _ROWS:
            writes = writes or name.upper()
            destroys = destroys or _replaced(node)
        elif name in _WRITES_INSIDE:
            writes = writes or _WRITES_INSIDE[name]
        elif name in ("WithTableHint", "Table") and (hint := locks(node, dialect)):
            writes = writes or f"WITH ({hint[:40]})"
        elif name == "Column" and node.name.lower() == "nextval" and node.table:
            writes = writes or "NEXTVAL"
        if flaw := _call_flaw(node, dialect, writing) or (table_flaw(node, dialect) if name == "Table" else ""):
            return Found(flaw)
        if name == "PropertyEQ" and type(node.this).__name__ in ("Parameter", "SessionParameter"):
            return Found("sets a variable (:=)")
    return Found(writes=writes or destroys, destroys=destroys)


def _replaced(node: Any) -> str:
    """How `node` throws away what was there; empty when it does not."""
    if node.args.get("replace") and type(node).__name__ == "Create":
        return "CREATE OR REPLACE"
    return "INSERT OVERWRITE" if node.args.get("overwrite") else ""


def _call_flaw(node: Any, dialect: str, writing: bool) -> str:
    """Why the function that `node` calls may not be called; empty when it may, or is none."""
    kinds = {cls.__name__ for cls in type(node).__mro__}
    if "Func" not in kinds:
        return ""
    if not kinds & {"Anonymous", "AnonymousAggFunc", "ParameterizedAgg"}:
        names, packages = [str(name) for name in type(node).sql_names()], []
    else:
        names, packages = [str(node.name or node.this).strip('"`[]')], _packages(node)
    for name in names:
        if does_more(
            name, in_from=_is_in_from(node), writing=writing, arguments=len(node.expressions), dialect=dialect
        ):
            return f"calls {name[:60]}, which does more than compute"
    acting = next(filter(is_acting_package, packages), "")
    return f"calls {acting[:60]}.{names[0][:60]}, which does more than compute" if acting else ""


def _packages(node: Any) -> list[str]:
    """What stands before the name of the function: packages, schemas."""
    parent = node.parent
    if type(parent).__name__ == "Dot" and parent.expression is node:
        return [str(part.name) for part in parent.this.walk() if type(part).__name__ == "Identifier"]
    return [str(parent.db)] if type(parent).__name__ == "Table" and parent.this is node else []


def _is_in_from(node: Any) -> bool:
    parent = node.parent
    while type(parent).__name__ == "Dot" or (type(parent).__name__ == "Anonymous" and parent.name.lower() == "table"):
        parent = parent.parent
    return type(parent).__name__ in ("Table", "From", "Join", "Lateral", "Insert")


def _aliases(statement: Any) -> Iterator[Any]:
    """The names that something is given."""
    for node in statement.walk():
        if (
            type(node).__name__ == "Identifier"
            and node.arg_key in ("alias", "this")
            and type(node.parent).__name__ in ("Alias", "TableAlias")
        ):
            yield node


class _Silent(logging.Filter):
    """The parser warns about statements that it does not know, with their text; a text that is judged is nobody's business."""

    def __init__(self) -> None:
        super().__init__()
        self.judging: ContextVar[bool] = ContextVar("judging", default=False)

    def filter(self, record: logging.LogRecord) -> bool:
        return not self.judging.get()


_FILTER: Final = _Silent()


@contextmanager
def _silent() -> Iterator[None]:
    logging.getLogger("sqlglot").addFilter(_FILTER)  # adding it again changes nothing
    before = _FILTER.judging.set(True)
    try:
        yield
    finally:
        _FILTER.judging.reset(before)
