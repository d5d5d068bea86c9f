"""The texts of the report to a model about its calls (`text_call_report.py`), in both languages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tavern_core.model.message_translation import Row

LABELS: Final[Mapping[str, Row]] = {
    "results": ("[Tool results]", "[工具调用结果]"),
    "damaged": ("[Blocks that were not run]", "[未执行的块]"),
    "block": ("Block {0}", "块 {0}"),
    "step": (" step {0}", " 步骤 {0}"),
    "ok": ("ok", "成功"),
    "failed": ("failed", "失败"),
    "waiting": ("waiting for approval", "等待批准"),
    "asking": ("waiting for an answer", "等待回答"),
    "job": ("running in the background, job {0}", "后台运行中，任务 {0}"),
    "next": ("Next", "下一步"),
    "get_result": ("call {0} with jobId {1} later to get the result", "稍后用 jobId {1} 调用 {0} 取得结果"),
    "give_answer": (
        "it waits for an answer: {0} with jobId {1} answers it",
        "任务在等待回答：用 jobId {1} 调用 {0} 作答",
    ),
    "wait_approval": (
        "it waits until another person approves it; then {0} with jobId {1} gets the result",
        "任务在等待他人批准；批准后用 jobId {1} 调用 {0} 取得结果",
    ),
    "not_run": ("not run (a step of its chain failed)", "未执行（同一链中有步骤失败）"),
    "value": ("Result", "结果"),
    "text": ("Text", "文本"),
    "content": ("Content", "内容"),
    "nothing": ("(no value)", "（无返回值）"),
    "cause": ("Cause", "原因"),
    "fix": ("Fix", "修复"),
    "caller_lacks": (
        "this caller has no {0}; do it another way, or ask the user to grant it",
        "此调用者没有 {0} 权限；换一种做法，或请用户授权",
    ),
    "host_lacks": (
        "{0} is not allowed here; do it another way, or ask the user to allow it",
        "这里不允许 {0}；换一种做法，或请用户授权",
    ),
    "tool_broke": (
        "the tool itself broke; try other arguments or another tool, and do not repeat it unchanged",
        "工具自身出错；换一组参数或换一个工具，不要原样重试",
    ),
    "nearest": ("Similar names", "相近的名称"),
    "unknown_outcome": (
        "Careful: it is not known whether this took effect; check before you repeat it",
        "注意: 不确定操作是否已经生效，请先检查再重试",
    ),
    "retry": ("It may be tried again", "可以重试"),
    "shortened": ("… ({0} characters in all, shortened)", "…（共 {0} 个字符，已截断）"),
    "line": (", line {0}", "，第 {0} 行"),
    "warning": ("warning ", "警告 "),
    "again": (
        "A block with an error was not run; correct it and write the whole block again.",
        "有错误的块完全没有执行；请改正后重写整个块。",
    ),
    "more": ("… (the rest is left out)", "…（其余内容因篇幅省略）"),
    "whole": ("Text", "文本"),
    "write_it_so": ("write the call like this:", "这样书写此调用："),
    "original": (" (in its own words: {0})", "（原文: {0}）"),
}
"""The labels of the layout."""

_ASK: Final = ("do it another way or with another tool, or ask the operator", "换一种做法或换一个工具，或请管理员处理")

KINDS: Final[Mapping[str, tuple[Row, Row]]] = {
    # what happened and what the model can do, if the error's own text is in another language or not for callers
    "TOOL_NOT_FOUND": (
        ("there is no such tool, or this caller may not see it", "没有此工具，或此调用者看不到它"),
        ("use an id from the list of tools", "使用工具列表中的名称"),
    ),
    "ARTIFACT_NOT_FOUND": (
        (
            "there is no such artifact, its time is over, or it is another caller's",
            "没有此文件，或它已过期，或属于其他调用者",
        ),
        ("use an address that an earlier result gave", "使用之前的结果所给的地址"),
    ),
    "INPUT_SCHEMA_INVALID": (
        ("the arguments do not fit the tool's parameters", "参数不符合工具的要求"),
        ("correct the arguments that are named", "按所列问题改正参数"),
    ),
    "POLICY_DENIED": (
        ("the rules here refuse this call", "这里的规则不允许此调用"),
        _ASK,
    ),
    "APPROVAL_REQUIRED": (
        ("this call needs approval", "此调用需要批准"),
        ("ask the user or the operator to approve it, or do it another way", "请用户或管理员批准，或换一种做法"),
    ),
    "INPUT_REQUIRED": (
        ("the tool asks a question that nobody can answer here", "工具提出的问题在这里无人回答"),
        (
            "do it another way or with another tool, or tell the user what it asks",
            "换一种做法或换一个工具，或把问题告诉用户",
        ),
    ),
    "APPROVAL_REJECTED": (
        ("this call was not approved", "此调用未获批准"),
        ("do not repeat it unchanged; do it another way", "不要原样重试；换一种做法"),
    ),
    "BUDGET_EXCEEDED": (
        ("a limit on calls is reached", "超出了调用限额"),
        ("do with fewer calls, or ask the operator for a higher limit", "用更少的调用完成，或请管理员提高限额"),
    ),
    "TIMEOUT": (
        ("the deadline passed", "超过了时限"),
        ("ask for less at a time", "减小任务量再试"),
    ),
    "CIRCUIT_OPEN": (
        ("the tool failed repeatedly and is not called for a while", "此工具连续失败，暂时停用"),
        ("try later, or use another tool", "稍后再试，或换一个工具"),
    ),
    "TOOL_QUARANTINED": (
        ("the tool is in quarantine", "此工具已被隔离"),
        _ASK,
    ),
    "IDEMPOTENCY_CONFLICT": (
        ("this request_id was used for another call", "此 request_id 已用于另一个调用"),
        ("use a new request_id", "使用新的 request_id"),
    ),
    "CANCELLED": (
        ("the call was cancelled", "此调用被取消"),
        ("call again if it is still needed", "仍然需要时再调用"),
    ),
    "CONNECTION_LOST": (
        ("the connection to the tool was lost", "与工具的连接中断"),
        ("check whether it took effect before you repeat it", "先检查操作是否生效，再重试"),
    ),
    "UPSTREAM_ERROR": (
        ("the tool failed", "工具执行失败"),
        (
            "try other arguments or another tool, or ask the operator; do not repeat it unchanged",
            "换一组参数或换一个工具，或请管理员处理；不要原样重试",
        ),
    ),
    "TOOL_ERROR": (
        ("the tool reports that it could not do this", "工具报告无法完成"),
        _ASK,
    ),
    "OUTPUT_SCHEMA_INVALID": (
        ("the tool's answer does not fit what it declares", "工具给出的结果不合其声明"),
        _ASK,
    ),
    "OUTPUT_TOO_LARGE": (
        ("the answer is too large", "结果过大"),
        ("ask for less", "缩小请求的范围"),
    ),
    "TAM_SYNTAX": (
        ("the block is written wrong", "调用块的写法有误"),
        ("correct it and write the whole block again", "改正后重写整个块"),
    ),
    "USAGE": (
        ("this call cannot be made now", "此调用现在无法进行"),
        _ASK,
    ),
    "INTERNAL": (
        ("the system itself failed", "系统内部出错"),
        _ASK,
    ),
}
"""The texts that a model reads about an error of each kind."""
