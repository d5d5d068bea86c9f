"""What is wrong with the answer of a model, in terms that the model knows: its operations, its names, the allowed values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tavern_core.graph.patch_problems import PatchProblem
from tavern_core.model.language import Language, Row, say, text_in

ANSWER_CODES: Final[Mapping[str, str]] = {
    "NO_PATCH": "The answer has no JSON.",
    "BAD_JSON": "The JSON of the answer cannot be read.",
    "CUT_OFF": "The answer ended before its JSON did.",
    "NOT_A_PATCH": "The JSON of the answer is not a list of operations.",
    "SEVERAL_PATCHES": "The answer has more than one patch.",
    "WHOLE_WORKFLOW": "The answer is a whole document instead of its changes.",
    "UNKNOWN_KEY": "The answer has a key that means nothing.",
    "NO_CHANGE": "The patch changes nothing.",
    "NEED_INPUT": "A needed input of the workflow is missing, or nothing reads it.",
    "NEED_OUTPUT": "A needed output of the workflow is missing, or nothing gives it.",
    "NEED_NODE": "A needed node type does not occur.",
    "UNUSED_NODE": "A new node has no effect on any output.",
    "LAYOUT": "The layout of the form does not fit its schema.",
    "DRY_RUN": "A node failed in the dry run.",
}
"""Code → meaning, for what is no problem of a patch or a workflow; docs/assistant.md shows this table."""
MOST_REPORTED: Final = 20
"""Problems of one report: a model repairs few at a time, and the rest costs tokens."""
_HEAD: Final[Row] = (
    "Your answer was not applied, and nothing changed. {count} to correct:",
    "你的回答没有被应用，什么都没有改变。需要改正 {count}：",
)
_COUNT: Final[Row] = ("{number} problem(s)", "{number} 处问题")
_MORE: Final[Row] = ("… and {number} more, which may follow from these.", "……还有 {number} 处，可能由以上问题引起。")
_OPERATION: Final[Row] = ("operation {number}", "第 {number} 个操作")
_ALLOWED: Final[Row] = ("allowed: {values}", "允许的值：{values}")
_DEFINITIONS: Final[Row] = ("These node types may help:", "以下节点类型可能有用：")
_TAIL: Final[Row] = (
    "Send the complete corrected answer again, against the same document as before: one JSON object, nothing else.",
    "请针对与之前相同的文档，重新发送完整的、改正后的回答：只有一个 JSON 对象，没有其他内容。",
)


def line(problem: PatchProblem, language: Language) -> str:
    """A problem in one line."""
    operation = text_in(say(_OPERATION, number=problem.op), language) if problem.op is not None else ""
    place = ", ".join(part for part in (operation, problem.pointer) if part)
    allowed = ", ".join(problem.allowed[:MOST_REPORTED])
    says_allowed = all(value in problem.fix for value in problem.allowed[:MOST_REPORTED])
    more = [problem.fix, "" if says_allowed else text_in(say(_ALLOWED, values=allowed), language)]
    text = f"[{problem.code}] {place + ': ' if place else ''}{problem.message}"
    return text + (f" ({'; '.join(part for part in more if part)})" if any(more) else "")


def report(problems: Sequence[PatchProblem], language: Language, definitions: Iterable[str] = ()) -> str:
    """The message to the model.

    Args:
        definitions: documents of node types that the problems are about.
    """
    shown = problems[:MOST_REPORTED]
    lines = [text_in(say(_HEAD, count=say(_COUNT, number=len(problems))), language)]
    lines += [f"{number}. {line(problem, language)}" for number, problem in enumerate(shown, 1)]
    if len(problems) > len(shown):
        lines.append(text_in(say(_MORE, number=len(problems) - len(shown)), language))
    if texts := list(definitions):
        lines += ["", text_in(say(_DEFINITIONS), language), *texts]
    return "\n".join([*lines, "", text_in(say(_TAIL), language)])
