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
    """A row of the table: severity, the `ToolResult.error.kind` it becomes, meaning, repair."""

    severity: Severity
    error_kind: str
    meaning: str
    repair: str


def _row(meaning: str, repair: str, severity: Severity = "error", kind: str = "TAM_SYNTAX") -> ProblemCode:
    return ProblemCode(severity, kind, meaning, say(WORDS[repair]))


PROBLEM_CODES: Final[Mapping[str, ProblemCode]] = {
    "looks_like_call": _row(
        "Text outside the blocks is nearly a call: a marker spelled wrong, fields without markers, or another notation.",
        "write_as_shown",
    ),
    "unterminated_block": _row(
        "The block has no end marker before the text ends or the next block starts.",
        "end_block",
    ),
    "unterminated_value": _row(
        "A value has no tail before the next field, or none at all.",
        "close_value",
    ),
    "ambiguous_value": _row(
        "The end of a value is not certain, because the value contains heads or whole blocks.",
        "use_escape",
    ),
    "malformed_field": _row(
        "A line between fields has a delimiter but is not a field: no head, no key, or no colon.",
        "write_field",
    ),
    "undelimited_field": _row(
        "A line gives `command` or a declared parameter without 「始」 and 「末」, or with other brackets.",
        "write_field",
    ),
    "text_too_large": _row("The text, or the number of its blocks or calls, is above the limit.", "fewer_calls"),
    "block_too_large": _row("The block is longer than the limit.", "smaller_blocks"),
    "missing_command": _row("The block or the step names no tool.", "add_command"),
    "mixed_command_forms": _row("`command` is used together with `command1`, `command2` ….", "number_steps"),
    "duplicate_key": _row("Two fields mean the same parameter or the same step.", "keep_one"),
    "ambiguous_key": _row("A key could mean several declared parameters.", "spell_exactly"),
    "orphan_parameter": _row(
        "A key belongs to a step, or to a field, that does not exist.",
        "add_step",
    ),
    "invalid_modifier": _row("A modifier of the second dialect has a wrong value.", "use_listed"),
    "invalid_reference": _row("A reference names a step that does not exist or is not earlier.", "refer_earlier"),
    "unknown_tool": _row("No tool has the id that `command` names.", "use_nearest", kind="TOOL_NOT_FOUND"),
    "invalid_arguments": _row(
        "An argument is unknown, missing, or does not fit its declared type.",
        "correct_named",
        kind="INPUT_SCHEMA_INVALID",
    ),
    "fenced_call": _row("A block in a Markdown code fence calls a destructive tool.", "leave_fence"),
    "missing_value_end": _row(
        "A value of the second dialect has no tail before the end marker; an error for destructive tools.",
        "close_second",
        "warning",
    ),
    "nonstandard_marker": _row("A marker is written in another case or with blanks.", "use_markers", "warning"),
    "fullwidth_punctuation": _row(
        "A full-width colon or comma was taken for the plain one.", "use_plain_signs", "warning"
    ),
    "mixed_delimiters_used": _row("`>>>` or `<<<` was taken for `»»»` or `«««`.", "use_second", "warning"),
    "trailing_comment": _row("A note after a value was ignored.", "own_line", "warning"),
    "stray_text": _row("Text between the fields was ignored.", "text_outside", "warning"),
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
