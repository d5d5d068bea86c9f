"""Errors for people, on stderr, in one format; and the exit code of each.

error[MANIFEST_INVALID]: message
  --> plugin.yaml:8:7
   |
 8 |     - hook:server:tool:chek
   |       ^
hint: did you mean 'hook:server:tool:check'?
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tavern_core.cli.output import one_line, visible, width, write
from tavern_core.errors import ERROR_CODES, Finding, Location, TavernError

if TYPE_CHECKING:
    from tavern_core.model.result import ToolError

FAILED: Final = 1
USAGE: Final = 2
DENIED: Final = 3
INVALID: Final = 4
NOTHING_FOUND: Final = 5
INTERRUPTED: Final = 130
_MOST_FINDINGS: Final = 20
_MAY_HOLD_SECRETS: Final = frozenset({"tavern.yaml", "config.yaml", "pyproject.toml", "settings.json"})
_HOLDS_NONE: Final = frozenset(
    {"language", "plugins", "tools", "callers", "capabilities", "limits", "audit", "tam", "slots", "profiles"}
)
_LONGEST_LINE: Final = 160
_LONGEST_TEXT: Final = 2_000
_MOST_READ: Final = 2_000_000


class ReportedExit(Exception):
    """Ends a command with an exit code; everything was already reported."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


def nothing_found(note: str) -> ReportedExit:
    """The end of a command that found nothing, as `note` says on stderr."""
    print_note(note)
    return ReportedExit(NOTHING_FOUND)


def exit_code_of(code: str) -> int:
    """The exit code of an error code; 1 for codes of plugins."""
    row = ERROR_CODES.get(code)
    return row.exit_code if row is not None else FAILED


def show_error(error: TavernError) -> int:
    """Print an error with all its findings; returns its exit code."""
    findings = [f for f in error.findings if f.where is not None]
    if not findings:
        print_problem("error", error.code, error.message, error.hint)
    for finding in findings[:_MOST_FINDINGS]:
        show_finding(finding)
    if len(findings) > _MOST_FINDINGS:
        print_note(f"… and {len(findings) - _MOST_FINDINGS} more")
    return exit_code_of(error.code)


def show_finding(finding: Finding, *, folder: Path | None = None) -> None:
    """Print one finding with its place."""
    print_problem(finding.severity, finding.code, finding.message, finding.hint, _excerpt(finding.where, folder))


def show_call_error(error: Mapping[str, Any]) -> int:
    """Print the `error` of a ToolResult (as JSON); returns its exit code."""
    problems = error.get("details", {}).get("problems") or ()
    hint, message = error.get("fix") or "", error["message"]
    print_problem(
        "error", error["kind"], message, hint, [f"  --> {_problem(p, message)}" for p in problems[:_MOST_FINDINGS]]
    )
    return exit_code_of(error["kind"])


def failed_call(error: ToolError, *, as_json: bool) -> ReportedExit:
    """The end of a command whose call failed; the error is printed if its result is not printed as JSON."""
    return ReportedExit(exit_code_of(error.kind) if as_json else show_call_error(error.to_json()))


def print_problem(severity: str, code: str, message: str, hint: str = "", lines: Sequence[str] = ()) -> None:
    """Print an error, warning or note on stderr, in the standard format."""
    sent = [f"{severity}[{code}]: {_shown(message)}", *map(_shown, lines)]
    sent += [f"hint: {_shown(hint)}"] if hint else []
    write(sys.stderr, "\n".join(sent) + "\n")


def print_note(text: str) -> None:
    """Print a line on stderr about progress, neither result nor error."""
    write(sys.stderr, _shown(text) + "\n")


def _shown(text: str) -> str:
    """`text` made safe for a terminal; for a very long one, its beginning and end."""
    if len(text) > _LONGEST_TEXT:
        text = f"{text[: _LONGEST_TEXT // 2]} … {text[-_LONGEST_TEXT // 4 :]}"
    return visible(text)


def _problem(problem: Any, sent: str) -> str:
    """The place and message of a problem, without the message if `sent` already contains it."""
    if not isinstance(problem, Mapping):
        return one_line(str(problem))
    where = problem.get("path") or next(
        (f"{k} {problem[k]}" for k in ("line", "node", "edge") if problem.get(k)), "arguments"
    )
    message = str(problem.get("message") or "")
    return one_line(where if message in sent else f"{where}: {message}")


def _excerpt(where: Location | None, folder: Path | None) -> list[str]:
    """The place and its line, with a caret under the column."""
    if where is None:
        return []
    place = f"{where.file}:{where.line}:{where.column}" if where.line else where.file
    lines = [f"  --> {one_line(place)}" + (f" ({one_line(where.pointer)})" if where.pointer and not where.line else "")]
    text = _line(where, folder) if _may_be_shown(where) else None
    if text is None:
        return lines
    from tavern_core.schema.secret_scanning import redact_text  # imported here: `tavern --help` does not need it

    text = redact_text(text)
    at = max(where.column - 1, 0)
    start = max(at - _LONGEST_LINE // 2, 0)
    before, behind = (
        visible(text[start:at].replace("\t", " ")),
        visible(text[at : start + _LONGEST_LINE].replace("\t", " ")),
    )
    number = str(where.line)
    margin = " " * max(len(number), 2)
    return [
        *lines,
        f"{margin} |",
        f"{number:>2} | {before}{behind}".rstrip(),
        f"{margin} | {' ' * width(before)}^",
    ]


def _may_be_shown(where: Location) -> bool:
    """Whether the line may be shown: not from files that may contain secrets, unless it is known to contain none."""
    if Path(where.file).name not in _MAY_HOLD_SECRETS:
        return True
    return bool(where.pointer) and where.pointer.partition(".")[0] in _HOLDS_NONE


def _line(where: Location, folder: Path | None) -> str | None:
    """The line that a finding points to; None if the file cannot be read."""
    path = Path(where.file) if folder is None else folder / where.file
    if where.line < 1 or (folder is None and not path.is_absolute()):
        return None
    try:
        with path.open("rb") as file:
            lines = file.read(_MOST_READ).decode("utf-8-sig", "replace").splitlines()
    except (OSError, ValueError):  # no such file: a zip, an invalid name
        return None
    return lines[where.line - 1] if where.line <= len(lines) else None
