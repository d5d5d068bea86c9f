"""What is wrong with the answer of a model, in terms that the model knows: its operations, its names, the allowed values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tavern_core.errors import sayable
from tavern_core.frozen import dataclass
from tavern_core.model.language import Language, Row, say, text_in

ISSUE_CODES: Final[Mapping[str, str]] = {
    "NO_PATCH": "The answer has no JSON.",
    "BAD_JSON": "The JSON of the answer cannot be read.",
    "CUT_OFF": "The answer ended before its JSON did.",
    "NOT_A_PATCH": "The JSON of the answer is no list of operations.",
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
"""Code → meaning, for the issues that are no problems of a patch or a workflow; docs/assistant.md shows this table."""
MOST_REPORTED: Final = 20
"""Issues of one report: a model repairs few at a time, and the rest costs tokens."""
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


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing to correct."""

    code: str
    """A key of ISSUE_CODES, of `PROBLEM_CODES`, or a code of a patch."""
    message: str
    hint: str = ""
    op: int | None = None
    """Number of the operation, from 0."""
    path: str = ""
    """JSON Pointer in the document that the model sees."""
    allowed: tuple[Any, ...] = ()
    nearest: tuple[str, ...] = ()
    severity: str = "error"
    """error, or warning: reported together with errors, but an answer with warnings alone is accepted after the last round."""

    def to_json(self) -> dict[str, Any]:
        data = {
            "code": self.code, "message": self.message, "severity": self.severity, "hint": self.hint, "path": self.path,
            "allowed": list(self.allowed), "nearest": list(self.nearest),
        }  # fmt: skip
        return {key: value for key, value in data.items() if value} | ({} if self.op is None else {"op": self.op})

    def line(self, language: Language) -> str:
        """The issue in one line."""
        place = ", ".join(
            part
            for part in (text_in(say(_OPERATION, number=self.op), language) if self.op is not None else "", self.path)
            if part
        )
        allowed = ", ".join(map(str, self.allowed[:MOST_REPORTED]))
        more = "; ".join(
            text_in(part, language)
            for part in (self.hint, say(_ALLOWED, values=allowed) if self.allowed and allowed not in self.hint else "")
            if part
        )
        text = f"[{self.code}] {place + ': ' if place else ''}{text_in(self.message, language)}"
        return sayable(f"{text} ({more})" if more else text)


def report(issues: Sequence[Issue], language: Language, definitions: Iterable[str] = ()) -> str:
    """The message to the model.

    Args:
        definitions: documents of node types that the issues are about.
    """
    shown = issues[:MOST_REPORTED]
    lines = [text_in(say(_HEAD, count=say(_COUNT, number=len(issues))), language)]
    lines += [f"{number}. {issue.line(language)}" for number, issue in enumerate(shown, 1)]
    if len(issues) > len(shown):
        lines.append(text_in(say(_MORE, number=len(issues) - len(shown)), language))
    if texts := list(definitions):
        lines += ["", text_in(say(_DEFINITIONS), language), *texts]
    return "\n".join([*lines, "", text_in(say(_TAIL), language)])
