"""What a model is told after its TAM blocks were run.

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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tavern_core.kernel.catalogue.parameter_text import Language, fold_lines, harmless
from tavern_core.model.outcome import Step, TextProblem
from tavern_core.model.result import ToolError, ToolResult

MOST_CHARS: Final = 20_000
_LEAST_SHARE: Final = 80
_LONGEST_LINE: Final = 1_000
_MOST_DETAILS: Final = 10
_MOST_PROBLEMS: Final = 50
_LONGEST_BLOCK: Final = 4_000
_REWRITTEN: Final = "\0"
"""Begins a call that is shown to the model as it should have written it."""


@dataclass(frozen=True, slots=True)
class _Labels:
    """The words of the layout."""

    results: str
    damaged: str
    block: str
    step: str
    ok: str
    failed: str
    waiting: str
    job: str
    not_run: str
    value: str
    text: str
    nothing: str
    cause: str
    fix: str
    caller_lacks: str
    nobody_has: str
    tool_broke: str
    nearest: str
    unknown_outcome: str
    retry: str
    shortened: str
    line: str
    warning: str
    again: str
    more: str
    whole: str
    write_it_so: str


_LABELS: Final[Mapping[Language, _Labels]] = {
    "zh": _Labels(
        results="[工具调用结果]",
        damaged="[未执行的块]",
        block="块 {0}",
        step=" 步骤 {0}",
        ok="成功",
        failed="失败",
        waiting="等待批准",
        job="后台运行中，任务 {0}",
        not_run="未执行（同一链中有步骤失败）",
        value="结果",
        text="文本",
        nothing="（无返回值）",
        cause="原因",
        fix="修复",
        caller_lacks="此调用者没有 {0} 权限；换一种做法，或请用户授权",
        nobody_has="这里不允许 {0}；换一种做法，或请用户授权",
        tool_broke="工具自身出错；换一组参数或换一个工具，不要原样重试",
        nearest="相近的名称",
        unknown_outcome="注意: 不确定操作是否已经生效，请先检查再重试",
        retry="可以重试",
        shortened="…（共 {0} 个字符，已截断）",
        line="，第 {0} 行",
        warning="警告 ",
        again="有错误的块完全没有执行；请改正后重写整个块。",
        more="…（其余内容因篇幅省略）",
        whole="文本",
        write_it_so="这样书写此调用：",
    ),
    "en": _Labels(
        results="[Tool results]",
        damaged="[Blocks that were not run]",
        block="Block {0}",
        step=" step {0}",
        ok="ok",
        failed="failed",
        waiting="waiting for approval",
        job="running in the background, job {0}",
        not_run="not run (a step of its chain failed)",
        value="Result",
        text="Text",
        nothing="(no value)",
        cause="Cause",
        fix="Fix",
        caller_lacks="this caller has no {0}; do it another way, or ask the user to grant it",
        nobody_has="{0} is not allowed here; do it another way, or ask the user to allow it",
        tool_broke="the tool itself broke; try other arguments or another tool, and do not repeat it unchanged",
        nearest="Similar names",
        unknown_outcome="Careful: it is not known whether this took effect; check before you repeat it",
        retry="It may be tried again",
        shortened="… ({0} characters in all, shortened)",
        line=", line {0}",
        warning="warning ",
        again="Nothing of a block with an error was run; correct it and write the whole block again.",
        more="… (the rest is left out)",
        whole="Text",
        write_it_so="write the call like this:",
    ),
}


def render_feedback(
    steps: Sequence[Step],
    problems: Sequence[TextProblem] = (),
    *,
    max_chars: int = MOST_CHARS,
    language: Language = "zh",
) -> str:
    """The text that goes back to the model, at most `max_chars` characters; empty when there is nothing to tell.

    Args:
        steps: the calls of the text in order, each with its result or None where it was not run.
        problems: what `tam.parse` and `tam.bind` found.
        max_chars: the budget; values are shortened first.
        language: of the labels.
    """
    from tavern_core import tam

    labels = _LABELS[language]
    counts = Counter(step.call.block for step in steps)
    heads = [list(map(harmless, _step_lines(step, counts[step.call.block] > 1, labels))) for step in steps]
    errors = list(_problem_lines(problems, labels))
    fixed = [line for lines in heads for line in lines] + errors
    left = max_chars - sum(map(len, fixed)) - len(fixed) - 64
    text = []
    for number, (step, lines) in enumerate(zip(steps, heads, strict=True)):
        shown = _value_lines(step.result, labels, max(left // (len(heads) - number), _LEAST_SHARE))
        left -= sum(map(len, shown)) + len(shown)
        text += [lines[0], *shown, *lines[1:]]
    sections = [[labels.results, *text]] if text else []
    if errors:
        sections.append(errors)
    whole = "\n\n".join("\n".join(section) for section in sections)
    # Every piece is harmless; should two of them ever make a marker together, they end here. Only a call that the model wrote
    # itself, and that is shown to it as it should have been written, may be one.
    if tam.parse("\n".join(line for section in sections for line in section if not line.startswith(_REWRITTEN))).blocks:
        whole = tam.neutralise(whole)
    return _cut(whole.replace(_REWRITTEN, ""), max_chars, labels.more)


def _step_lines(step: Step, in_chain: bool, labels: _Labels) -> list[str]:
    """The head of a step, then what is said about its failure."""
    where = labels.block.format(step.call.block)
    if in_chain:
        where += labels.step.format(step.call.index)
    head = f"{where} · {fold_lines(step.call.tool, 200)} · "
    result = step.result
    if result is None:
        return [head + labels.not_run]
    if result.status == "job":
        return [head + labels.job.format(fold_lines(result.job or "?", 100))]
    if result.ok:
        return [head + labels.ok]
    error = result.error or ToolError("INTERNAL", "the call failed without an error")
    state = labels.waiting if result.status == "input_required" else labels.failed
    return [f"{head}{state} {fold_lines(error.kind, 40)}", *_error_lines(error, labels)]


def _error_lines(error: ToolError, labels: _Labels) -> Iterator[str]:
    yield f"  {labels.cause}: {fold_lines(error.message, _LONGEST_LINE)}"
    for problem in _as_list(error.details.get("problems"))[:_MOST_DETAILS]:
        yield f"  - {fold_lines(_problem_text(problem), _LONGEST_LINE)}"
    if fix := _fix_for_model(error, labels):
        yield f"  {labels.fix}: {fold_lines(fix, _LONGEST_LINE)}"
    if close := [fold_lines(str(name), 200) for name in _as_list(error.details.get("nearest"))[:_MOST_DETAILS]]:
        yield f"  {labels.nearest}: {', '.join(close)}"
    if error.outcome == "unknown":
        yield f"  {labels.unknown_outcome}"
    elif error.retryable:
        after = f" ({error.retry_after_ms} ms)" if error.retry_after_ms else ""
        yield f"  {labels.retry}{after}"


def _fix_for_model(error: ToolError, labels: _Labels) -> str:
    """The repair as a model can do it: it neither writes Python nor grants anything, so missing rights and bugs are told anew."""
    lacking = ", ".join(map(str, _as_list(error.details.get("missing"))[:_MOST_DETAILS]))
    if error.kind == "UPSTREAM_ERROR" and "exception" in error.details:
        return labels.tool_broke
    if error.kind != "POLICY_DENIED" or not lacking:
        return error.fix
    return (labels.caller_lacks if error.details.get("side") == "caller" else labels.nobody_has).format(lacking)


def _problem_text(problem: Any) -> str:
    """One entry of `details.problems`, whatever validator made it."""
    if not isinstance(problem, Mapping):
        return str(problem)
    where = next((str(problem[key]) for key in ("path", "pointer", "name", "field") if problem.get(key)), "")
    told = [str(problem[key]) for key in ("message", "hint", "fix") if problem.get(key)]
    return ": ".join(filter(None, (where, "; ".join(told)))) or _as_json(problem)


def _value_lines(result: ToolResult | None, labels: _Labels, most: int) -> list[str]:
    """What the tool answered, shortened to about `most` characters."""
    if result is None or (not result.ok and result.value is None):
        return []
    texts = _own_texts(result)
    if result.value is None and not texts:
        return [f"  {labels.value}: {labels.nothing}"] if result.status == "ok" else []
    share = most // (len(texts) + (result.value is not None))
    lines = [f"  {labels.text}: {_shorten(_as_json(text), share, labels)}" for text in texts]
    if result.value is not None:
        lines.append(f"  {labels.value}: {_shorten(_as_json(result.value), share, labels)}")
    return lines


def _own_texts(result: ToolResult) -> list[str]:
    """Text blocks that the tool wrote for the model itself, and that say more than its value."""
    try:
        given, made = result.content, ToolResult(result.ok, result.value).content
    except Exception:  # noqa: BLE001 - content is made from the value, and this value is no JSON: it is shown as one below
        return []
    texts = [block.get("text") for block in given if block.get("type") == "text"] if given != made else []
    return [text for text in texts if isinstance(text, str) and text != result.value][:_MOST_DETAILS]


def _as_json(value: Any) -> str:
    """Compact JSON on one line; what is no JSON becomes its text, and nothing of a tool's answer can raise here."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=repr)
    except Exception as error:  # noqa: BLE001 - `repr` of a foreign object, a circle, too deep: said instead of shown
        text = f"<{type(value).__name__}: {type(error).__name__}>"
    return text


def _shorten(text: str, most: int, labels: _Labels) -> str:
    from tavern_core import tam

    length = len(text)
    safe = tam.neutralise(_visible(text[: most + 1]), edges=False)
    if length <= most and len(safe) <= most:
        return safe
    note = labels.shortened.format(f"{length:,}")
    return safe[: max(most - len(note), 0)] + note


def _visible(text: str) -> str:
    """`text` without what breaks lines or cannot be written as UTF-8."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(c if c >= " " and c not in "\x7f\x85\u2028\u2029" else " " for c in text)


def _problem_lines(problems: Sequence[TextProblem], labels: _Labels) -> Iterator[str]:
    """Damaged blocks first, then warnings, each in the order of the text."""
    if not problems:
        return
    errors = [p for p in problems if p.severity == "error"]
    ordered = sorted(problems, key=lambda p: (p.severity != "error", p.block, p.line, p.column))
    yield labels.damaged if errors else f"[{labels.warning.strip()}]"
    for problem in ordered[:_MOST_PROBLEMS]:
        grade = labels.warning if problem.severity == "warning" else ""
        where = (labels.block.format(problem.block) if problem.block else labels.whole) + (labels.line.format(problem.line) if problem.line else "")
        yield _advice(f"{where}: {grade}{fold_lines(problem.code, 60)}: {fold_lines(problem.message, _LONGEST_LINE)}")
        _, _, block = problem.hint.partition("\n")
        if problem.code == "looks_like_call" and block:
            yield f"  {labels.fix}: {labels.write_it_so}"
            yield _REWRITTEN + _visible_lines(block)[:_LONGEST_BLOCK]
        elif problem.hint:
            yield _advice(f"  {labels.fix}: {fold_lines(problem.hint, _LONGEST_LINE)}")
    if len(ordered) > _MOST_PROBLEMS:
        yield labels.more
    if errors:
        yield labels.again


def _visible_lines(block: str) -> str:
    return "\n".join(map(_visible, block.split("\n")))


def _advice(line: str) -> str:
    """A line of what the parser says about a damaged block, with the markers and delimiters that the model shall write.

    It is ours and not a tool's: neutralised, the model would copy a marker that is none. It is when it could be a call.
    """
    from tavern_core import tam

    return harmless(line) if tam.parse(line).blocks else line


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping) else []


def _cut(text: str, most: int, note: str) -> str:
    """The hard limit, for outcomes with very many steps: whole lines, and a note that some are missing."""
    if len(text) <= most:
        return text
    kept = text[: max(most - len(note) - 1, 0)].rpartition("\n")[0]
    return f"{kept}\n{note}"[:most] if kept else note[: max(most, 0)]
