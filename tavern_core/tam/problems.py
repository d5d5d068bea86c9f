"""The problems of calls in text: the table of codes (`model/text_call.py` has the problem itself).

A problem names the field, what was expected and the closest valid name, so that a model can write the block again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tavern_core.errors import Severity
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.message_translation import say
from tavern_core.model.text_call import TextProblem
from tavern_core.tam.wording import WORDS


@dataclass(frozen=True, slots=True)
class ProblemCode:
    """One row of the table: severity, the `ToolResult.error.kind` it becomes, meaning, repair."""

    severity: Severity
    error_kind: str
    meaning: str
    repair: str


def _syntax(meaning: str, repair: str) -> ProblemCode:
    return ProblemCode("error", "TAM_SYNTAX", meaning, say(WORDS[repair]))


def _arguments(meaning: str, repair: str) -> ProblemCode:
    return ProblemCode("error", "INPUT_SCHEMA_INVALID", meaning, say(WORDS[repair]))


def _warning(meaning: str, repair: str) -> ProblemCode:
    return ProblemCode("warning", "TAM_SYNTAX", meaning, say(WORDS[repair]))


PROBLEM_CODES: Final[Mapping[str, ProblemCode]] = {
    "looks_like_call": _syntax(
        "Text outside the blocks is nearly a call: a marker spelled wrong, fields without markers, or another notation.",
        "write_as_shown",
    ),
    "unterminated_block": _syntax(
        "The block has no end marker before the text ends or the next block starts.",
        "end_block",
    ),
    "unterminated_value": _syntax(
        "A value has no tail before the next field, or none at all.",
        "close_value",
    ),
    "ambiguous_value": _syntax(
        "The end of a value is not certain, because the value contains heads or whole blocks.",
        "use_escape",
    ),
    "malformed_field": _syntax(
        "A line between fields has a delimiter but is not a field: no head, no key, or no colon.",
        "write_field",
    ),
    "undelimited_field": _syntax(
        "A line gives `command` or a declared parameter without 「始」 and 「末」, or with other brackets.",
        "write_field",
    ),
    "text_too_large": _syntax("The text, or the number of its blocks or calls, is above the limit.", "fewer_calls"),
    "block_too_large": _syntax("The block is longer than the limit.", "smaller_blocks"),
    "missing_command": _syntax("The block or the step names no tool.", "add_command"),
    "mixed_command_forms": _syntax("`command` is used together with `command1`, `command2` ….", "number_steps"),
    "duplicate_key": _syntax("Two fields mean the same parameter or the same step.", "keep_one"),
    "ambiguous_key": _syntax("A key could mean several declared parameters.", "spell_exactly"),
    "orphan_parameter": _syntax(
        "A key belongs to a step, or to a field, that does not exist.",
        "add_step",
    ),
    "invalid_modifier": _syntax("A modifier of the second dialect has a wrong value.", "use_listed"),
    "invalid_reference": _syntax("A reference names a step that does not exist or is not earlier.", "refer_earlier"),
    "unknown_tool": ProblemCode(
        "error", "TOOL_NOT_FOUND", "No tool has the id that `command` names.", say(WORDS["use_nearest"])
    ),
    "invalid_arguments": _arguments(
        "An argument is unknown, missing, or does not fit its declared type.", "correct_named"
    ),
    "missing_value_end": _warning(
        "A value of the second dialect has no tail before the end marker; an error for destructive tools.",
        "close_second",
    ),
    "nonstandard_marker": _warning("A marker is written in another case or with blanks.", "use_markers"),
    "fullwidth_punctuation": _warning("A full-width colon or comma was taken for the plain one.", "use_plain_signs"),
    "mixed_delimiters_used": _warning("`>>>` or `<<<` was taken for `»»»` or `«««`.", "use_second"),
    "trailing_comment": _warning("A note after a value was ignored.", "own_line"),
    "stray_text": _warning("Text between the fields was ignored.", "text_outside"),
}
"""Every code a `TextProblem` can have. docs/tam.md is checked against it."""


def problem_of(
    code: str,
    message: str,
    hint: str = "",
    *,
    block: int = 0,
    place: tuple[int, int] = (0, 0),
    key: str = "",
    step: int = 0,
) -> TextProblem:
    """A problem with the severity and, without a `hint`, the repair of its row; `place` is line and column."""
    row = PROBLEM_CODES[code]
    return TextProblem(row.severity, code, message, hint or row.repair, block, *place, key, step)
