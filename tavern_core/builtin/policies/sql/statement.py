"""The analysis of one statement with sqlglot.

It is refused unless everything in it is known: each kind of node, each function, each comment. Without a known dialect, the
text must be valid, and harmless, in *each* of the usual ones: a string in one (``'\\'; drop table t; --'``, ``$$…$$``) is
code in another.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final

from tavern_core.builtin.policies.sql.allowlists import CHANGING_KINDS, KINDS, TYPES
from tavern_core.builtin.policies.sql.functions import attribute_flaw, call_flaw, locks, made_flaw, table_flaw
from tavern_core.builtin.policies.sql.parser_differentials import second_statement, text_flaw, token_flaw
from tavern_core.frozen_dataclass import dataclass

LONGEST: Final = 10_000
"""Characters: parsing so many takes up to a second, in all dialects together."""
MOST_BRACKETS: Final = 200
"""The time for reading ``a[1][1]…`` grows with the square of their number."""
USUAL: Final = ("sqlite", "postgres", "mysql", "tsql")
_ALIASES: Final = {
    "sqlite3": "sqlite",
    "postgresql": "postgres",
    "mariadb": "mysql",
    "mssql": "tsql",
    "sqlserver": "tsql",
}
_EXPLAIN: Final = re.compile(
    r"\s*explain(?=[\s(])"
    r"(\s*(query\s+plan|analyze|verbose|extended|partitions|format\s*=\s*\w+)\b"
    r"|\s*\(\s*(?!select\b|with\b|values\b|table\b|from\b)[a-z_]+(\s+\w+)?(\s*,\s*[a-z_]+(\s+\w+)?)*\s*\))*"
    r"\s*(?=select\b|with\b|values\b|\()",
    re.IGNORECASE,
)
_UNREAD: Final = "cannot be read as "
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


class NoParser(Exception):
    """sqlglot is not installed."""


@dataclass(frozen=True, slots=True)
class StatementAnalysis:
    """The analysis of a text."""

    flaw: str = ""
    """Why it is refused regardless of grants; else empty."""
    writes: str = ""
    """The kind of change (``INSERT``); empty for a statement that only reads."""
    destroys: str = ""
    """``DROP``, ``TRUNCATE``, ``ALTER``, ``CREATE OR REPLACE`` or ``INSERT OVERWRITE``."""
    fix: str = ""


def read_statement(
    text: object, dialect: str = "", *, writing: bool = False, listed: Iterable[str] = ()
) -> StatementAnalysis:
    """Analyse `text`.

    Args:
        dialect: sqlglot's name of it; empty: unknown.
        writing: functions that only change the database are allowed.
        listed: functions that the operator allows besides known ones.

    Raises:
        NoParser: sqlglot is not installed.
    """
    if not isinstance(text, str):
        return StatementAnalysis("is not text")
    if len(text) > LONGEST:
        return StatementAnalysis(f"is longer than {LONGEST:,} characters")
    if flaw := text_flaw(text):
        return StatementAnalysis(flaw)
    if explained := _EXPLAIN.match(text):
        text = text[explained.end() :]
    if dialect in ("", "sqlite"):
        text = _NUMBERED.sub("?", text)
    allowed = frozenset(name.lower() for name in listed)
    dialect = _ALIASES.get(dialect, dialect)
    with _silent():
        analyses = [_judge(text, one, writing, allowed) for one in ((dialect,) if dialect else USUAL)]
    flawed = next((found for found in analyses if found.flaw), None)
    is_unread = all(found.flaw.startswith(_UNREAD) for found in analyses)  # another dialect may read it
    if flawed is not None and not dialect and (is_unread or not all(found.flaw for found in analyses)):
        return replace(
            flawed,
            fix=flawed.fix
            or "name the dialect (x-tavern: {guard: sql, dialect: …}), or write it so that each of the usual databases reads the same",
        )
    return flawed or max(analyses, key=lambda found: (bool(found.destroys), bool(found.writes)))


def _judge(text: str, dialect: str, writing: bool, listed: frozenset[str]) -> StatementAnalysis:
    """Analyse the text in one dialect."""
    try:
        sqlglot = importlib.import_module("sqlglot")
    except ImportError as error:
        raise NoParser from error
    try:
        reader = sqlglot.Dialect.get_or_raise(dialect)
        tokens = reader.tokenize(text)
        if not tokens:
            return StatementAnalysis("is empty")
        beginning = tokens[0].text.upper()
        if beginning not in _BEGINNINGS or (beginning == "SHOW" and dialect != "mysql"):
            return StatementAnalysis(f"begins with {tokens[0].text[:40]!r}, which is not a query")
        if sum(token.token_type.name == "L_BRACKET" for token in tokens) > MOST_BRACKETS:
            return StatementAnalysis(f"holds more than {MOST_BRACKETS} opening brackets")
        if flaw := token_flaw(text, tokens, dialect):
            return StatementAnalysis(flaw)
        if beginning == "VALUES" and dialect == "mysql":  # MariaDB accepts a bare one, the parser does not
            text = f"select * from ({text.rstrip().rstrip(';')}\n) as t"
        statements = [s for s in reader.parse(text) if s is not None and type(s).__name__ != "Semicolon"]
    except RecursionError:
        return StatementAnalysis("is nested too deeply")
    except (sqlglot.errors.SqlglotError, ValueError) as error:
        return StatementAnalysis(f"{_UNREAD}{dialect[:40]}: {_parser_message(error)}")
    if len(statements) != 1:
        return StatementAnalysis(f"holds {len(statements)} statements; one is allowed")
    if dialect in ("tsql", "fabric") and (word := second_statement(tokens, list(_aliases(statements[0])))):
        return StatementAnalysis(
            f"may hold a second statement ({word}), which SQL Server begins without a semicolon; write AS before an alias, or quote it"
        )
    return _analyse(statements[0], dialect, writing, listed)


def _parser_message(error: Exception) -> str:
    """The parser's complaint, without the text, because that may be confidential."""
    for one in getattr(error, "errors", None) or ():
        if one.get("description"):
            return f"{str(one['description']).partition(' but got ')[0]:.80} (line {one.get('line')}, column {one.get('col')})"
    return (
        "it is cut off or holds what is not SQL"
        if type(error).__name__ == "TokenError"
        else " ".join(str(error).split())[:120]
    )


def _analyse(statement: Any, dialect: str, writing: bool, listed: frozenset[str]) -> StatementAnalysis:
    kind = type(statement).__name__
    if kind not in _READS | _ROWS | _DESTROYS:
        return StatementAnalysis(f"is not a query ({kind})")
    changes = kind in _ROWS | _DESTROYS
    writes = destroys = ""
    called = _called_in_from(statement)
    for node in statement.walk():
        name = type(node).__name__
        if name == "Create" and (flaw := made_flaw(node)):
            return StatementAnalysis(flaw)
        if name in _DESTROYS:
            destroys = {"TruncateTable": "TRUNCATE"}.get(name, name.upper())
        elif name in _ROWS:
            writes = writes or name.upper()
            destroys = destroys or _replacing_clause(node)
            changes = True
        elif name in _WRITES_INSIDE:
            writes = writes or _WRITES_INSIDE[name]
        elif name in ("WithTableHint", "Table") and (hint := locks(node, dialect)):
            writes = writes or f"WITH ({hint[:40]})"
        elif name == "Column" and node.name.lower() == "nextval" and node.table:
            writes = writes or "NEXTVAL"
        elif _is_function(node) and type(node.parent).__name__ not in _NO_CALLS:
            if flaw := call_flaw(node, dialect, writing, listed):
                return StatementAnalysis(flaw, fix=_LIST_IT if "not known" in flaw else "")
        elif not _is_function(node) and name not in KINDS and not (changes and name in CHANGING_KINDS):
            return StatementAnalysis(f"holds {_READABLE.get(name, name)}, which is not known to only read")
        if flaw := _flaw(node, name, dialect, called, listed):
            return StatementAnalysis(flaw)
    return StatementAnalysis(writes=writes or destroys, destroys=destroys)


_NO_CALLS: Final = frozenset({"Hint", "WithTableHint", "EngineProperty"})
"""Their call-like parts are not function calls."""
_LIST_IT: Final = (
    "call functions that only compute; one of your own is allowed by tavern.yaml: sql: {functions: [schema.name]}"
)
_READABLE: Final = {"QueryTransform": "TRANSFORM ... USING", "Command": "a statement that the parser does not know"}


def _flaw(node: Any, name: str, dialect: str, called: Mapping[str, frozenset[str]], listed: frozenset[str]) -> str:
    """The problem of one node besides its kind; empty if there is none."""
    if name == "Table":
        return table_flaw(node, dialect)
    if name in ("Column", "Dot"):
        return attribute_flaw(node, dialect, called)
    if name in ("Cast", "TryCast"):
        cast_type = node.to
        type_name = str(cast_type.args.get("kind") or "").strip('"').lower()
        is_user_defined = getattr(cast_type.this, "name", "") == "USERDEFINED"
        return (
            f"casts to {type_name[:60]}, a type that is not known"
            if is_user_defined and type_name not in TYPES and type_name not in listed
            else ""
        )
    if name == "PropertyEQ" and type(node.this).__name__ in ("Parameter", "SessionParameter"):
        return "sets a variable (:=)"
    return ""


def _is_function(node: Any) -> bool:
    return any(cls.__name__ == "Func" for cls in type(node).__mro__)


def _called_in_from(statement: Any) -> dict[str, frozenset[str]]:
    """The aliases of functions in places for tables, with their columns."""
    aliases: dict[str, frozenset[str]] = {}
    for node in statement.walk():
        if type(node).__name__ != "TableAlias" or not node.name:
            continue
        parent = node.parent
        if (
            type(parent).__name__ in ("Unnest", "Lateral", "TableFromRows")
            or _is_function(parent)
            or _is_function(parent.this)
        ):
            columns = frozenset(str(getattr(one, "name", "")).lower() for one in node.args.get("columns") or ())
            aliases[node.name.lower()] = columns & aliases.get(node.name.lower(), columns)
    return aliases


def _replacing_clause(node: Any) -> str:
    """The clause with which `node` replaces existing data; empty if it has none."""
    if node.args.get("replace") and type(node).__name__ == "Create":
        return "CREATE OR REPLACE"
    return "INSERT OVERWRITE" if node.args.get("overwrite") else ""


def _aliases(statement: Any) -> Iterator[Any]:
    """The names that are assigned."""
    for node in statement.walk():
        if (
            type(node).__name__ == "Identifier"
            and node.arg_key in ("alias", "this")
            and type(node.parent).__name__ in ("Alias", "TableAlias")
        ):
            yield node


class _Silent(logging.Filter):
    """The parser logs unknown statements with their text, which may be confidential."""

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
