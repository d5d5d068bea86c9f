"""What the pipeline says to callers, in English and in Chinese; see `model.language`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Final

from tavern_core.model.message_translation import Row, say

MESSAGES: Final[Mapping[str, Row]] = {
    "unfit": ("{tool}: {what}", "{tool}：{what}"),
    "at": ("{place}: {what}", "{place}：{what}"),
    "also": ("{one}; {other}", "{one}；{other}"),
    "arguments": ("the arguments", "参数"),
    "answer": ("the answer", "结果"),
    "no_fit": ("did not fit the schema", "不符合要求"),
    "too_deep": (
        "the call of {tool} is nested {depth} tools deep; the limit is {most}",
        "{tool} 的调用嵌套了 {depth} 层；上限是 {most}",
    ),
    "over_budget": (
        "{tool} would be call {number} of this request; the budget allows {most}",
        "{tool} 将是此请求的第 {number} 次调用；限额是 {most} 次",
    ),
    "needs_approval": ("{tool} needs approval: {reason}", "{tool} 需要批准（{reason!r}）"),
    "after_untrusted": (
        "{who} wants to call {tool} after it has read untrusted content ({sources}), and {what}",
        "{who} 读取了不可信内容（{sources}），现在要调用 {tool}，{what}",
    ),
    "it_writes": ("it writes", "它会写入"),
    "it_sends": ("it sends", "它会向外发送"),
    "it_destroys": ("it destroys", "它会删除或破坏"),
    "it_starts": ("it starts a program", "它会启动程序"),
    "it_unknown": ("its upstream may do anything", "上游可能做任何事"),
    "it_reads": ("it reads an address that is new: {address}", "它要访问一个此前没有出现过的地址：{address}"),
    "late": (
        "{tool} did not finish in time ({limit}: {most:.0f} ms; {passed:.0f} ms passed): {how}",
        "{tool} 没有按时完成（上限 {most:.0f} ms；已过 {passed:.0f} ms；{limit!r}）：{how}",
    ),
    "finished_late": ("it finished too late", "它完成了，但已超时"),
    "goes_on": ("it could not be stopped and may still be running", "无法停止它，它可能仍在运行"),
    "stopped": ("it was stopped", "它已被停止"),
    "not_begun": ("it had not started", "它还没有开始"),
    "the_call": ("the call", "此调用"),
}


def together(words: Iterable[str]) -> str:
    """Several messages as one; empty if there are none."""
    some = list(words)
    return reduce(lambda one, other: say(MESSAGES["also"], one=one, other=other), some) if some else ""
