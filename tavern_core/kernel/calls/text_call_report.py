"""The report to a model after its TAM blocks have run.

    [工具调用结果]
    块 1 · text:count · 成功
      结果: 3
    块 2 步骤 1 · file-operator:WriteFile · 失败 POLICY_DENIED
      原因: file-operator:WriteFile needs write:fs
      修复: 此调用者没有 write:fs 权限；换一种做法，或请用户授权
    块 2 步骤 2 · file-operator:AppendFile · 未执行（同一链中有步骤失败）

    [未执行的块]
    块 3，第 12 行: unterminated_block: the block has no end marker
      修复: end the block with the end marker

Tool output is data: it is written as JSON on one line, so that it cannot imitate this layout, and neutralised, so that it
can never be parsed as a call. Within the budget every result gets its share; the same outcome gives the same text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from tavern_core.errors import ERROR_CODES
from tavern_core.kernel.calls.feedback_texts import KINDS, LABELS
from tavern_core.kernel.catalogue.parameter_text import fold_lines, harmless
from tavern_core.model.message_translation import Language, is_in, row_in, text_in, words_in
from tavern_core.model.naming_rules import JOB_ANSWER, JOB_RESULT
from tavern_core.model.result import ToolError, ToolResult
from tavern_core.model.safe_printing import encodable
from tavern_core.model.text_call import Step, TextProblem
from tavern_core.schema.provider_tool_export import wire_name

Labels = Mapping[str, str]
ToolName = Callable[[str], str | None]
"""The name by which a model calls a tool; None: it cannot call the tool."""
MOST_CHARS: Final = 20_000
_LEAST_SHARE: Final = 80
_LONGEST_LINE: Final = 1_000
_MOST_DETAILS: Final = 10
_LONGEST_NAME: Final = 8
"""Characters; a shorter text is not a sentence in any language."""
_MOST_PROBLEMS: Final = 50
_LONGEST_BLOCK: Final = 4_000
_SHOWS_CALL: Final = ("looks_like_call", "missing_command")
"""Problems whose hint shows the model's own call, corrected; other hints are text."""
_JSON_TEXT: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
"""A text in JSON."""
_REWRITTEN: Final = "\0"
"""Marks the beginning of a corrected call."""


def render_feedback(
    steps: Sequence[Step],
    problems: Sequence[TextProblem] = (),
    *,
    max_chars: int = MOST_CHARS,
    language: Language = "zh",
    name: ToolName = str,
) -> str:
    """The report to the model, at most `max_chars` characters; empty if there is nothing to report.

    Args:
        steps: the calls of the text in order, each with its result, or None if it was not run.
        problems: what `tam.parse` and `tam.bind` found.
        max_chars: the budget; values are shortened first.
        language: the language of the labels.
        name: the names of tools, for hints about jobs.
    """
    from tavern_core import tam

    labels = words_in(LABELS, language)
    counts = Counter(step.call.block for step in steps)
    heads = [list(map(harmless, _step_lines(step, counts[step.call.block] > 1, language, name))) for step in steps]
    errors = list(_problem_lines(problems, labels, language))
    fixed = [line for lines in heads for line in lines] + errors
    budget = max_chars - sum(map(len, fixed)) - len(fixed) - 64
    text = []
    for number, (step, lines) in enumerate(zip(steps, heads, strict=True)):
        shown = _value_lines(step.result, labels, max(budget // (len(heads) - number), _LEAST_SHARE))
        budget -= sum(map(len, shown)) + len(shown)
        text += [lines[0], *shown, *lines[1:]]
    sections = [[labels["results"], *text]] if text else []
    if errors:
        sections.append(errors)
    report = "\n\n".join("\n".join(section) for section in sections)
    # Every piece is harmless. If two pieces together form a marker, it is removed here. Only a corrected call of the
    # model's own may contain markers.
    if tam.parse("\n".join(line for section in sections for line in section if not line.startswith(_REWRITTEN))).blocks:
        report = tam.neutralise(report)
    return _cut(report.replace(_REWRITTEN, ""), max_chars, labels["more"])


def failure_text(error: ToolError, language: Language) -> str:
    """The text that a model reads about a failed call through its API: the same as about a call in its text."""
    from tavern_core import tam

    labels = words_in(LABELS, language)
    lines = [f"{labels['failed']} {fold_lines(error.kind, 40)}", *_error_lines(error, labels, language)]
    return tam.neutralise("\n".join(lines))


def next_step(result: ToolResult, language: Language, name: ToolName = wire_name) -> str:
    """Advice to a model about the job in a result; empty if there is no job, or the model can do nothing."""
    labels = words_in(LABELS, language)
    if result.job is None or result.status not in ("job", "input_required"):
        return ""
    text, tool = ("get_result", JOB_RESULT) if result.status == "job" else ("give_answer", JOB_ANSWER)
    asked = result.value.get("questions") if isinstance(result.value, Mapping) else None
    if tool == JOB_ANSWER and asked and all(question.get("type") == "approval" for question in asked):
        text, tool = "wait_approval", JOB_RESULT  # the caller cannot approve its own call
    written = name(tool)
    return labels[text].format(written, fold_lines(result.job, 100)) if written else ""


def _step_lines(step: Step, in_chain: bool, language: Language, name: ToolName) -> list[str]:
    """The head of a step, then the lines about its failure."""
    labels = words_in(LABELS, language)
    where = labels["block"].format(step.call.block)
    if in_chain:
        where += labels["step"].format(step.call.index)
    head = f"{where} · {fold_lines(step.call.tool, 200)} · "
    result = step.result
    if result is None:
        return [head + labels["not_run"]]
    if result.status == "job":
        running = head + labels["job"].format(fold_lines(result.job or "?", 100))
        then = next_step(result, language, name)
        return [running, f"  {labels['next']}: {then}"] if then else [running]
    if result.ok:
        return [head + labels["ok"]]
    error = result.error or ToolError("INTERNAL", "the call failed without an error")
    waits = "asking" if error.kind == "INPUT_REQUIRED" else "waiting"
    state = labels[waits if result.status == "input_required" else "failed"]
    return [f"{head}{state} {fold_lines(error.kind, 40)}", *_error_lines(error, labels, language)]


def _error_lines(error: ToolError, labels: Labels, language: Language) -> Iterator[str]:
    cause, _ = KINDS.get(error.kind, KINDS["INTERNAL"])
    yield f"  {labels['cause']}: {fold_lines(_spoken(error.message, language, row_in(cause, language), labels), _LONGEST_LINE)}"
    for problem in _as_list(error.details.get("problems"))[:_MOST_DETAILS]:
        yield f"  - {fold_lines(_problem_text(problem, language, _is_for_caller(error)), _LONGEST_LINE)}"
    if fix := _fix_for_model(error, labels, language):
        yield f"  {labels['fix']}: {fold_lines(fix, _LONGEST_LINE)}"
    if close := [fold_lines(str(name), 200) for name in _as_list(error.details.get("nearest"))[:_MOST_DETAILS]]:
        yield f"  {labels['nearest']}: {', '.join(close)}"
    if error.outcome == "unknown":
        yield f"  {labels['unknown_outcome']}"
    elif error.retryable:
        after = f" ({error.retry_after_ms} ms)" if error.retry_after_ms else ""
        yield f"  {labels['retry']}{after}"


def _spoken(text: str, language: Language, otherwise: str, labels: Labels) -> str:
    """`text` if the model reads its language; else a general message in the model's language, with the text quoted."""
    if is_in(text, language) or len(text) <= _LONGEST_NAME:
        return text_in(text, language)
    return f"{otherwise}{labels['original'].format(_as_json(str(text)))}" if text else otherwise


def _fix_for_model(error: ToolError, labels: Labels, language: Language) -> str:
    """The repair for a model: what only an operator can do (`ErrorCode.fix_for`) is replaced by what a caller can."""
    lacking = ", ".join(map(str, _as_list(error.details.get("missing"))[:_MOST_DETAILS]))
    if error.kind == "UPSTREAM_ERROR" and "exception" in error.details:
        return labels["tool_broke"]
    if error.kind != "POLICY_DENIED" or not lacking:
        if not error.fix:
            return ""
        repair = row_in(KINDS.get(error.kind, KINDS["INTERNAL"])[1], language)
        if not _is_for_caller(error):
            return repair
        return _spoken(error.fix, language, repair, labels)
    return (labels["caller_lacks"] if error.details.get("side") == "caller" else labels["host_lacks"]).format(lacking)


def _own_or_quoted(text: str, language: Language) -> str:
    return text_in(text, language) if is_in(text, language) or len(text) <= _LONGEST_NAME else _as_json(text)


def _is_for_caller(error: ToolError) -> bool:
    """Whether the caller can do what the error's own repairs say."""
    known = ERROR_CODES.get(error.kind)
    return bool(error.details.get("fixFor", known.fix_for if known else "operator") == "caller")


def _problem_text(problem: Any, language: Language, is_for_caller: bool) -> str:
    """The text of an entry of `details.problems`, from any validator."""
    if not isinstance(problem, Mapping):
        return str(problem)
    where = next((str(problem[key]) for key in ("path", "pointer", "name", "field") if problem.get(key)), "")
    sent = [
        _own_or_quoted(text if isinstance(text, str) else str(text), language)
        for key in (("message", "hint", "fix") if is_for_caller else ("message",))
        if (text := problem.get(key))
    ]
    return ": ".join(filter(None, (where, "; ".join(sent)))) or _as_json(problem)


def _value_lines(result: ToolResult | None, labels: Labels, most: int) -> list[str]:
    """The tool's answer, shortened to about `most` characters."""
    if result is None or (not result.ok and result.value is None):
        return []
    parts = _own_parts(result)
    if result.value is None and not parts:
        return [f"  {labels['value']}: {labels['nothing']}"] if result.status == "ok" else []
    share = most // (len(parts) + (result.value is not None))
    lines = [f"  {labels[label]}: {_shorten(_as_json(part), share, labels)}" for label, part in parts]
    if result.value is not None:
        lines.append(f"  {labels['value']}: {_shorten(_as_json(result.value), share, labels)}")
    return lines


def _own_parts(result: ToolResult) -> list[tuple[str, Any]]:
    """Blocks that the tool wrote for the model itself, and that add to its value: the label of each, and what is shown."""
    if not result._content:
        return []  # made from the value
    try:
        blocks, derived = result.content, ToolResult(result.ok, result.value).content
    except Exception:  # noqa: BLE001 - content is made from the value, and this value is not JSON: it is shown as one below
        return []
    in_value = set(_JSON_TEXT.findall(_as_json(result.value)))
    parts: list[tuple[str, Any]] = []
    for block in blocks if blocks != derived else ():
        if len(parts) == _MOST_DETAILS:
            break
        if block.get("type") == "text":
            if isinstance(text := block.get("text"), str) and text != result.value:
                parts.append(("text", text))
        elif not (isinstance(uri := block.get("uri"), str) and _as_json(uri) in in_value):
            parts.append(("content", without_bytes(block)))
    return parts


def without_bytes(block: Mapping[str, Any]) -> dict[str, Any]:
    """A content block without its base64, which a model cannot read."""
    shown = {key: part for key, part in block.items() if key != "data"}
    if isinstance(resource := shown.get("resource"), Mapping):
        shown["resource"] = {key: part for key, part in resource.items() if key != "blob"}
    return shown


def _as_json(value: Any) -> str:
    """Compact JSON on one line; the text of a value that is not JSON. Never raises."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=repr)
    except Exception as error:  # noqa: BLE001 - `repr` of a foreign object, a cycle, too deep: reported instead of shown
        text = f"<{type(value).__name__}: {type(error).__name__}>"
    return text


def _shorten(text: str, most: int, labels: Labels) -> str:
    from tavern_core import tam

    length = len(text)
    safe = tam.neutralise(_visible(text[: most + 1]), edges=False)
    if length <= most and len(safe) <= most:
        return safe
    note = labels["shortened"].format(f"{length:,}")
    return safe[: max(most - len(note), 0)] + note


def _visible(text: str) -> str:
    """`text` without line breaks and characters that UTF-8 cannot encode."""
    return "".join(c if c >= " " and c not in "\x7f\x85\u2028\u2029" else " " for c in encodable(text))


def _problem_lines(problems: Sequence[TextProblem], labels: Labels, language: Language) -> Iterator[str]:
    """Problems of invalid blocks first, then warnings, both in the order of the text."""
    if not problems:
        return
    errors = [p for p in problems if p.severity == "error"]
    ordered = sorted(problems, key=lambda p: (p.severity != "error", p.block, p.line, p.column))
    yield labels["damaged"] if errors else f"[{labels['warning'].strip()}]"
    for problem in ordered[:_MOST_PROBLEMS]:
        grade = labels["warning"] if problem.severity == "warning" else ""
        where = (labels["block"].format(problem.block) if problem.block else labels["whole"]) + (
            labels["line"].format(problem.line) if problem.line else ""
        )
        yield _advice(
            f"{where}: {grade}{fold_lines(problem.code, 60)}: {fold_lines(text_in(problem.message, language), _LONGEST_LINE)}"
        )
        _, _, block = problem.hint.partition("\n")
        if problem.code in _SHOWS_CALL and block:
            yield f"  {labels['fix']}: {labels['write_it_so']}"
            yield _REWRITTEN + _visible_lines(block)[:_LONGEST_BLOCK]
        elif problem.hint:
            yield _advice(f"  {labels['fix']}: {fold_lines(text_in(problem.hint, language), _LONGEST_LINE)}")
    if len(ordered) > _MOST_PROBLEMS:
        yield labels["more"]
    if errors:
        yield labels["again"]


def _visible_lines(block: str) -> str:
    return "".join(part if part in ("\n", "\t") else _visible(part) for part in re.split("([\n\t])", block))


def _advice(line: str) -> str:
    """A line of the parser's report on an invalid block, with the markers and delimiters that the model should write.

    The line is the host's own: neutralising it would show the model a wrong marker. It is neutralised if it could be a
    call.
    """
    from tavern_core import tam

    return harmless(line) if tam.parse(line).blocks else line


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping) else []


def _cut(text: str, most: int, note: str) -> str:
    """Cut to the hard limit, for very many steps: whole lines, and a note that some are missing."""
    if len(text) <= most:
        return text
    kept = text[: max(most - len(note) - 1, 0)].rpartition("\n")[0]
    return f"{kept}\n{note}"[:most] if kept else note[: max(most, 0)]
