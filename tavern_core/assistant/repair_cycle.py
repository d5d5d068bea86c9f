"""The cycle of the assistant: ask a model for a patch, check it, report what is wrong, and ask again, a few times at most."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, Generic, TypeVar

from tavern_core.assistant.model_answers import ANSWER_SCHEMA, ParsedAnswer, read_answer
from tavern_core.contract.llm import LLMAnswer, Message
from tavern_core.errors import CallError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.graph.patch_problems import PatchProblem
from tavern_core.model.message_translation import Language, Row, say, text_in
from tavern_core.model.plain_data import json_members

T = TypeVar("T")
Ask = Callable[[Sequence[Message], Mapping[str, Any]], Awaitable[LLMAnswer]]
"""(messages, schema of the answer) → the answer of a model."""
MOST_ROUNDS: Final = 10
_LONGEST_KEPT: Final = 200_000
"""Characters of an answer in the proposal."""
_LONGEST_SHOWN: Final = 20_000
"""Characters of a wrong answer that the model sees again."""


@dataclass(frozen=True, slots=True)
class RepairAttempt:
    """An answer and its problems."""

    answer: str
    problems: tuple[PatchProblem, ...] = ()
    usage: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return json_members(self, "answer", "problems", "usage")


class PatchVerdict(Generic[T]):
    """The verdict about one patch.

    Args:
        result: the patched document, if it is valid.
        problems: errors, or only warnings if there is a result.
        definitions: texts that help to correct them.
    """

    def __init__(
        self, result: T | None, problems: Sequence[PatchProblem] = (), definitions: Sequence[str] = ()
    ) -> None:
        self.result, self.problems, self.definitions = result, tuple(problems), tuple(definitions)


class CycleResult(Generic[T]):
    """The result of a cycle."""

    def __init__(self) -> None:
        self.rounds: list[RepairAttempt] = []
        self.answered: ParsedAnswer | None = None
        """The answer with the result."""
        self.result: T | None = None
        self.problems: tuple[PatchProblem, ...] = ()
        """Warnings of the result; without one, the problems of the last answer."""
        self.declined = ""
        """The reason of a model that changed nothing."""

    def take(self, answered: object, judged: PatchVerdict[T]) -> None:
        """Keep a result that has fewer warnings than the one so far; while there is none, keep the problems."""
        if isinstance(answered, ParsedAnswer) and judged.result is not None:
            if self.result is None or len(judged.problems) < len(self.problems):
                self.answered, self.result, self.problems = answered, judged.result, judged.problems
        elif self.result is None:
            self.problems = judged.problems


def _reported(answer: str, judged: PatchVerdict[Any], language: Language) -> list[Message]:
    """The messages with the last answer of the model and its problems."""
    return [
        {"role": "assistant", "content": answer[:_LONGEST_SHOWN]},
        {"role": "user", "content": report(judged.problems, language, judged.definitions)},
    ]


async def negotiate(
    ask: Ask,
    messages: Sequence[Message],
    judge: Callable[[ParsedAnswer], Awaitable[PatchVerdict[T]]],
    *,
    rounds: int,
    language: Language,
) -> CycleResult[T]:
    """Ask again until a patch has no problems, at most `rounds` times.

    It ends early if a report is the same as the one before: the model does not understand it. A result that only has
    warnings is kept, even if a later answer is worse.

    Raises:
        CallError: the model cannot be asked, and there is no result yet.
    """
    ended: CycleResult[T] = CycleResult()
    conversation = [*messages]
    before: list[str] = []
    for _ in range(max(0, min(rounds, MOST_ROUNDS)) + 1):
        try:
            answer = await ask(conversation, ANSWER_SCHEMA)
        except CallError:
            if ended.result is None:
                raise
            break
        answered = read_answer(answer)
        judged = await _judged(answered, judge)
        text = (answer.text or _written(answer))[:_LONGEST_KEPT]
        ended.rounds.append(RepairAttempt(text, judged.problems, dict(answer.usage)))
        if isinstance(answered, ParsedAnswer) and not answered.patch and answered.reason:
            ended.declined = "" if ended.result is not None else answered.reason
            break
        ended.take(answered, judged)
        lines = [line(problem, language) for problem in judged.problems]
        if not lines or lines == before:
            break
        before = lines
        conversation = [*messages, *_reported(text, judged, language)]
    return ended


async def _judged(
    answered: ParsedAnswer | PatchProblem, judge: Callable[[ParsedAnswer], Awaitable[PatchVerdict[T]]]
) -> PatchVerdict[T]:
    if isinstance(answered, PatchProblem):
        return PatchVerdict(None, (answered,))
    if answered.patch:
        return await judge(answered)
    return PatchVerdict(None, () if answered.reason else (no_change("the patch is empty"),))


def no_change(why: str) -> PatchProblem:
    """The problem of a patch that changes nothing."""
    fix = 'add operations, or say why nothing is to be changed: {"reason": "...", "patch": []}'
    return PatchProblem("NO_CHANGE", why, hint=fix)


def _written(answer: LLMAnswer) -> str:
    import json

    return "" if answer.data is None else json.dumps(answer.data, ensure_ascii=False, default=str)


# Problem report -------------------------------------------------------------------------------------------------------
# The problems of a model's answer, in terms that the model knows: its operations, its names, the allowed values.

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
"""Code → meaning, for what is not a problem of a patch or a workflow; docs/assistant.md shows this table."""
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
    says_allowed = all(value in problem.hint for value in problem.allowed[:MOST_REPORTED])
    more = [problem.hint, "" if says_allowed else text_in(say(_ALLOWED, values=allowed), language)]
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
