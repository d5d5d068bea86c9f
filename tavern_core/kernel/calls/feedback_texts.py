"""The words of the report to a model about its calls (`feedback.py`), in both languages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.language import Language


@dataclass(frozen=True, slots=True)
class Labels:
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
    host_lacks: str
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
    original: str


LABELS: Final[Mapping[Language, Labels]] = {
    "zh": Labels(
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
        host_lacks="这里不允许 {0}；换一种做法，或请用户授权",
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
        original="（原文: {0}）",
    ),
    "en": Labels(
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
        host_lacks="{0} is not allowed here; do it another way, or ask the user to allow it",
        tool_broke="the tool itself broke; try other arguments or another tool, and do not repeat it unchanged",
        nearest="Similar names",
        unknown_outcome="Careful: it is not known whether this took effect; check before you repeat it",
        retry="It may be tried again",
        shortened="… ({0} characters in all, shortened)",
        line=", line {0}",
        warning="warning ",
        again="A block with an error was not run; correct it and write the whole block again.",
        more="… (the rest is left out)",
        whole="Text",
        write_it_so="write the call like this:",
        original=" (in its own words: {0})",
    ),
}


@dataclass(frozen=True, slots=True)
class KindText:
    """What a model reads of an error of one kind: where the error's own words are in another language, or its fix is not for callers."""

    cause: Mapping[Language, str]
    repair: Mapping[Language, str]


def _kind(zh: str, en: str, zh_repair: str, en_repair: str) -> KindText:
    return KindText({"zh": zh, "en": en}, {"zh": zh_repair, "en": en_repair})


_ASK: Final = ("换一种做法或换一个工具，或请管理员处理", "do it another way or with another tool, or ask the operator")


KINDS: Final[Mapping[str, KindText]] = {
    "TOOL_NOT_FOUND": _kind(
        "没有此工具，或此调用者看不到它",
        "there is no such tool, or this caller may not see it",
        "使用工具列表中的名称",
        "use an id from the list of tools",
    ),
    "ARTIFACT_NOT_FOUND": _kind(
        "没有此文件，或它已过期，或属于其他调用者",
        "there is no such artifact, its time is over, or it is another caller's",
        "使用之前的结果所给的地址",
        "use an address that an earlier result gave",
    ),
    "INPUT_SCHEMA_INVALID": _kind(
        "参数不符合工具的要求",
        "the arguments do not fit the tool's parameters",
        "按所列问题改正参数",
        "correct the arguments that are named",
    ),
    "POLICY_DENIED": _kind("这里的规则不允许此调用", "the rules here refuse this call", *_ASK),
    "APPROVAL_REQUIRED": _kind(
        "此调用需要批准",
        "this call needs approval",
        "请用户或管理员批准，或换一种做法",
        "ask the user or the operator to approve it, or do it another way",
    ),
    "APPROVAL_REJECTED": _kind(
        "此调用未获批准",
        "this call was not approved",
        "不要原样重试；换一种做法",
        "do not repeat it unchanged; do it another way",
    ),
    "BUDGET_EXCEEDED": _kind(
        "超出了调用限额",
        "a limit on calls is reached",
        "用更少的调用完成，或请管理员提高限额",
        "do with fewer calls, or ask the operator for a higher limit",
    ),
    "TIMEOUT": _kind("超过了时限", "the deadline passed", "减小任务量再试", "ask for less at a time"),
    "CIRCUIT_OPEN": _kind(
        "此工具连续失败，暂时停用",
        "the tool failed repeatedly and is not called for a while",
        "稍后再试，或换一个工具",
        "try later, or use another tool",
    ),
    "TOOL_QUARANTINED": _kind("此工具已被隔离", "the tool is in quarantine", *_ASK),
    "IDEMPOTENCY_CONFLICT": _kind(
        "此 request_id 已用于另一个调用",
        "this request_id was used for another call",
        "使用新的 request_id",
        "use a new request_id",
    ),
    "CANCELLED": _kind(
        "此调用被取消", "the call was cancelled", "仍然需要时再调用", "call again if it is still needed"
    ),
    "CONNECTION_LOST": _kind(
        "与工具的连接中断",
        "the connection to the tool was lost",
        "先检查操作是否生效，再重试",
        "check whether it took effect before you repeat it",
    ),
    "UPSTREAM_ERROR": _kind(
        "工具执行失败",
        "the tool failed",
        "换一组参数或换一个工具，或请管理员处理；不要原样重试",
        "try other arguments or another tool, or ask the operator; do not repeat it unchanged",
    ),
    "TOOL_ERROR": _kind("工具报告无法完成", "the tool reports that it could not do this", *_ASK),
    "OUTPUT_SCHEMA_INVALID": _kind(
        "工具给出的结果不合其声明", "the tool's answer does not fit what it declares", *_ASK
    ),
    "OUTPUT_TOO_LARGE": _kind("结果过大", "the answer is too large", "缩小请求的范围", "ask for less"),
    "TAM_SYNTAX": _kind(
        "调用块的写法有误",
        "the block is written wrong",
        "改正后重写整个块",
        "correct it and write the whole block again",
    ),
    "USAGE": _kind("此调用现在无法进行", "this call cannot be made now", *_ASK),
    "INTERNAL": _kind("系统内部出错", "the system itself failed", *_ASK),
}
