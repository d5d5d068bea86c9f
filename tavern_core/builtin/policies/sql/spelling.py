"""What is refused for how it is written: spellings that one reader takes for something else than another.

What the parser skips (a comment, a hint, a blank) may be code to a database, and what it takes for one name may begin a second
statement. None of it is needed to ask a question.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Any, Final

_ESCAPED_NAME: Final = re.compile(r'(?<![\w$])u&"', re.IGNORECASE)
"""PostgreSQL reads a name there, and the parser an AND of two: nobody could say which function it is."""
_HINT: Final = re.compile(r"/\*\+(.*?)\*/", re.DOTALL)
_SETTING_HINT: Final = re.compile(r"\b(set_var|set|resource_group)\s*\(", re.IGNORECASE)
_LONE_RETURN: Final = re.compile(r"\r(?!\n)")
_COMMENT: Final = re.compile(r"(--|#|//)[^\n]*|/\*(?s:.)*?(\*/|\Z)")
_ODD: Final = "holds an unusual blank or an invisible character outside of quotes"
_NO_BLANK: Final = frozenset("\t\n\r ")
_BEGINS: Final = frozenset({
    "ALTER", "BACKUP", "BEGIN", "BREAK", "BULK", "CHECKPOINT", "CLOSE", "COMMIT", "CONTINUE", "CREATE", "DBCC", "DEALLOCATE",
    "DECLARE", "DELETE", "DENY", "DROP", "DUMP", "EXEC", "EXECUTE", "EXIT", "FETCH", "GOTO", "GRANT", "IF", "INSERT", "KILL",
    "LOAD", "MERGE", "OPEN", "PRINT", "RAISERROR", "READTEXT", "RECONFIGURE", "RESTORE", "RETURN", "REVERT", "REVOKE",
    "ROLLBACK", "SAVE", "SET", "SETUSER", "SHUTDOWN", "TRUNCATE", "UPDATE", "UPDATETEXT", "USE", "WAITFOR", "WHILE",
    "WRITETEXT", "HOLDLOCK",
})  # fmt: skip
"""Words of SQL Server that begin a statement: it needs no semicolon before them."""


def text_flaw(text: str) -> str:
    """What is wrong with the spelling of `text`, whatever the dialect; empty when nothing is."""
    if "\0" in text:
        return "holds a NUL character"
    if "/*!" in text or "/*M!" in text:
        return "holds a comment that some databases execute (/*!)"
    if "{#" in text:
        return "holds {#, which the parser skips and databases do not"
    if _ESCAPED_NAME.search(text):
        return 'holds a name written in escapes (U&"...")'
    if _LONE_RETURN.search(text):
        return "holds a carriage return without a line feed, which ends a comment for some databases only"
    for hint in _HINT.finditer(text):
        if found := _SETTING_HINT.search(hint[1]):
            return f"holds a hint that sets something ({found[1].upper()})"
    return ""


def token_flaw(text: str, tokens: Sequence[Any], dialect: str) -> str:
    """What is wrong with the spelling of `text`, cut into `tokens` by the reader of `dialect`."""
    end = -1
    for token in tokens:
        if flaw := _gap_flaw(text[end + 1 : token.start]):
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
    return _gap_flaw(text[end + 1 :])


def second_statement(tokens: Sequence[Any], names: Sequence[Any]) -> str:
    """The word that begins another statement for SQL Server and was read as an alias without AS; empty when none does.

    Args:
        names: identifiers that stand as aliases.
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


def _gap_flaw(gap: str) -> str:
    """Judge what stands between two tokens: blanks and comments."""
    if gap.isascii():
        return ""
    # MySQL begins a comment only at -- with a plain blank behind it.
    doubtful = [comment[0][2:3] for comment in _COMMENT.finditer(gap) if comment[0].startswith("--")]
    return _ODD if any(map(_is_odd, [*doubtful, *_COMMENT.sub("", gap)])) else ""


def _is_quoted(token: Any) -> bool:
    kind = str(token.token_type.name)
    return kind.endswith("STRING") or kind == "IDENTIFIER"


def _is_odd(char: str) -> bool:
    return (
        char != ""
        and char not in _NO_BLANK
        and unicodedata.category(char) in ("Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn", "Cs")
    )
