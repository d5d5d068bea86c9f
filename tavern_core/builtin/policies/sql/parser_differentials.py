"""Refused spellings: texts that parsers read differently.

Text that the parser skips (a comment, a hint, a blank) may be code for a database, and text that it reads as one name may start a second
statement. Queries need none of it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Any, Final

_ESCAPED_NAME: Final = re.compile(r"""(?<![\w$])u&["']""", re.IGNORECASE)
"""PostgreSQL reads a name there, and the parser an AND of two, so the function is unknown."""
_HINT: Final = re.compile(r"/\*\+(.*?)\*/", re.DOTALL)
_SETTING_HINT: Final = re.compile(r"\b(set_var|set|resource_group)\s*\(", re.IGNORECASE)
_LONE_RETURN: Final = re.compile(r"\r(?!\n)")
_BETWEEN: Final = re.compile(r"[ \t\r\n]+|(?:--|#|//)(?P<line>[^\n]*)|/\*(?:[^*/]|\*(?!/)|/(?!\*))*\*/")
_SIGNS: Final = frozenset("+-*/<>=~!@#%^&|`")
_NEGATED: Final = frozenset({"!~", "!~*", "!~~", "!~~*"})
_PLAIN_SIGNS: Final = frozenset("+-*/<>= ")
"""An operator of these alone does not end in a sign of its right side."""
_POSTGRES: Final = frozenset({"postgres", "redshift", "materialize", "risingwave"})
_MYSQL: Final = frozenset({"mysql", "doris", "starrocks", "singlestore"})
_ODD: Final = "holds an unusual blank or an invisible character outside of quotes"
_NO_BLANK: Final = frozenset("\t\n\r ")
_BEGINS: Final = frozenset({
    "ALTER", "BACKUP", "BEGIN", "BREAK", "BULK", "CHECKPOINT", "CLOSE", "COMMIT", "CONTINUE", "CREATE", "DBCC", "DEALLOCATE",
    "DECLARE", "DELETE", "DENY", "DROP", "DUMP", "EXEC", "EXECUTE", "EXIT", "FETCH", "GOTO", "GRANT", "IF", "INSERT", "KILL",
    "LOAD", "MERGE", "OPEN", "PRINT", "RAISERROR", "READTEXT", "RECONFIGURE", "RESTORE", "RETURN", "REVERT", "REVOKE",
    "ROLLBACK", "SAVE", "SET", "SETUSER", "SHUTDOWN", "TRUNCATE", "UPDATE", "UPDATETEXT", "USE", "WAITFOR", "WHILE",
    "WRITETEXT", "HOLDLOCK",
})  # fmt: skip
"""Words that start a statement in SQL Server without a semicolon before them."""


def text_flaw(text: str) -> str:
    """The problem in the spelling of `text` for any dialect; empty if there is none."""
    if "\0" in text:
        return "holds a NUL character"
    if "/*!" in text or "/*M!" in text:
        return "holds a comment that some databases execute (/*!)"
    if "{#" in text:
        return "holds {#, which the parser skips and databases do not"
    if _ESCAPED_NAME.search(text):
        return 'holds a name or text written in escapes (U&"...")'
    if _LONE_RETURN.search(text):
        return "holds a carriage return without a line feed, which ends a comment for some databases only"
    for hint in _HINT.finditer(text):
        if found := _SETTING_HINT.search(hint[1]):
            return f"holds a hint that sets something ({found[1].upper()})"
    return ""


def token_flaw(text: str, tokens: Sequence[Any], dialect: str) -> str:
    """The problem in the spelling of `text`, with the `tokens` of `dialect`."""
    end = -1
    for token in tokens:
        if flaw := _gap_flaw(text[end + 1 : token.start], dialect):
            return flaw
        end = token.end
        written = text[token.start : token.end + 1]
        if _is_quoted(token):
            continue
        if any(_is_odd(char) for char in written):
            return _ODD
        if "@" in written and dialect == "oracle":
            return "goes through a database link (@)"
        if "@" in written and dialect == "snowflake":
            return "reads a stage (@)"
    if dialect in _POSTGRES and (flaw := _operator_flaw(tokens) or _name_flaw(text, tokens)):
        return flaw
    return _gap_flaw(text[end + 1 :], dialect)


def _operator_flaw(tokens: Sequence[Any]) -> str:
    """PostgreSQL reads adjacent signs as one operator, which an application may have defined."""
    run, end = "", -2
    for token in (*tokens, None):
        written = "" if token is None or _is_quoted(token) else str(token.text)
        if written and _SIGNS.issuperset(written):
            is_next = token.start == end + 1
            run, end = (f"{run} {written}" if is_next else written), token.end
            if is_next and not _PLAIN_SIGNS.issuperset(run) and run.replace(" ", "") not in _NEGATED:
                return f"holds the operator {run.replace(' ', '')[:20]}, which is not known"
    return ""


def _name_flaw(text: str, tokens: Sequence[Any]) -> str:
    """A quoted name with capitals is another function than the parser assumes."""
    for before, token, behind in zip((None, *tokens), tokens, (*tokens[1:], None), strict=False):
        if behind is None or behind.text != "(" or text[token.start] != '"' or token.text == token.text.lower():
            continue
        if before is None or before.text.upper() not in ("AS", "WITH", "RECURSIVE", "INTO", "TABLE", "ON"):
            return f'calls "{token.text[:60]}", which is not known to only compute'
    return ""


def second_statement(tokens: Sequence[Any], names: Sequence[Any]) -> str:
    """The word that was read as an alias without AS but starts another statement in SQL Server; empty if there is none.

    Args:
        names: identifiers used as aliases.
    """
    before = {token.start: tokens[index - 1] for index, token in enumerate(tokens) if index}
    for name in names:
        word = str(name.name).upper()
        if word not in _BEGINS or name.args.get("quoted"):
            continue
        previous = before.get(name.meta.get("start", -1))
        if previous is None or previous.token_type.name != "ALIAS":
            return word
    return ""


def _gap_flaw(gap: str, dialect: str) -> str:
    """Check the text between two tokens: only plain blanks, and comments that every parser ends at the same place."""
    at = 0
    while at < len(gap):
        found = _BETWEEN.match(gap, at)
        if found is None:
            return "holds a comment in a comment, or one that does not end" if gap.startswith("/*", at) else _ODD
        begins = (found["line"] or "")[:1]  # in MySQL, only -- followed by a plain blank starts a comment
        if _is_odd(begins):
            return _ODD
        if begins not in ("", " ", "\t", "\r") and found[0].startswith("--") and dialect in _MYSQL:
            return (
                "holds -- without a blank behind it, which begins a comment for some databases and subtracts for others"
            )
        at = found.end()
    return ""


def _is_quoted(token: Any) -> bool:
    kind = str(token.token_type.name)
    return kind.endswith("STRING") or kind == "IDENTIFIER"


def _is_odd(char: str) -> bool:
    return (
        char != ""
        and char not in _NO_BLANK
        and unicodedata.category(char) in ("Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn", "Cs")
    )
