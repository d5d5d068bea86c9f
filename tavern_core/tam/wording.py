"""The messages of problems in English and Chinese: one table. `say(WORDS["name"], value=...)` makes the text; see `model.language`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tavern_core.model.message_translation import Row

WORDS: Final[Mapping[str, Row]] = {
    # repairs that belong to a code
    "write_as_shown": (
        "Write the call as the hint shows it; it was not run.",
        "按提示重写此调用；它完全没有执行。",
    ),
    "end_block": ("End the block with `<|[END_TOOL]|>` on its own line.", "用单独一行 `<|[END_TOOL]|>` 结束此块。"),
    "close_value": ("Close the value with the tail that belongs to its head.", "用与开头相配的结尾标记结束此值。"),
    "use_escape": ("Write the value as `key:「始ESCAPE」…「末ESCAPE」`.", "把值写成 `key:「始ESCAPE」…「末ESCAPE」`。"),
    "write_field": ("Write `key:「始」value「末」`.", "写成 `key:「始」值「末」`。"),
    "fewer_calls": ("Write fewer calls at once.", "一次少写一些调用。"),
    "smaller_blocks": ("Write less in one block, or several blocks.", "缩短此块，或分成几个块。"),
    "add_command": ("Add `command:「始」tool id「末」`.", "加上 `command:「始」工具 ID「末」`。"),
    "number_steps": (
        "Number every step, or write one call without a number.",
        "给每个步骤编号，或只写一个不带编号的调用。",
    ),
    "keep_one": ("Keep one of them.", "只保留其中一个。"),
    "spell_exactly": ("Spell the key exactly as declared.", "按声明的拼写书写键名。"),
    "add_step": ("Add that step's command, or correct the number.", "加上该步骤的 command，或改正编号。"),
    "use_listed": ("Use one of the values the message lists.", "使用上面列出的值之一。"),
    "refer_earlier": ("Refer to an earlier step: `{{{{step1.path}}}}`.", "引用更早的步骤：`{{{{step1.path}}}}`。"),
    "use_nearest": ("Use one of the nearest ids.", "使用相近的工具 ID。"),
    "correct_named": ("Correct the named parameter.", "改正所说的参数。"),
    "close_second": ("Close the value with `«««`.", "用 `«««` 结束此值。"),
    "leave_fence": ("Write the block outside of the code fence.", "把此块写在代码围栏之外。"),
    "use_markers": (
        "Write `<|[REQUEST_TOOL]|>` and `<|[END_TOOL]|>`.",
        "写成 `<|[REQUEST_TOOL]|>` 和 `<|[END_TOOL]|>`。",
    ),
    "use_plain_signs": ("Use `:` and `,`.", "使用 `:` 和 `,`。"),
    "use_second": ("Use `»»»` and `«««`.", "使用 `»»»` 和 `«««`。"),
    "own_line": ("Put comments on their own line, beginning with `#`.", "把注释单独写成以 `#` 开头的一行。"),
    "text_outside": (
        "Put explanations before or after the block, or on `#` lines.",
        "把说明写在块的前后，或写成 `#` 行。",
    ),
    # reading
    "note_behind": ("The note {note!r} after a value was ignored.", "值后面的附注 {note!r} 被忽略。"),
    "note_between": ("The note {note!r} between the fields was ignored.", "字段之间的附注 {note!r} 被忽略。"),
    "text_between": ("The text {text!r} between the fields was ignored.", "字段之间的文字 {text!r} 被忽略。"),
    "no_field": (
        "{line!r} is not a field: it needs a key, a colon, 「始」 and 「末」.",
        "{line!r} 不是字段：需要键名、冒号、「始」和「末」。",
    ),
    "fullwidth": ("The full-width {sign!r} was taken for {plain!r}.", "全角的 {sign!r} 已当作 {plain!r}。"),
    "mixed": ("{sign!r} was taken for a delimiter of the second dialect.", "{sign!r} 已当作第二种写法的定界符。"),
    "spelling": ("The marker {written!r} was taken for {marker!r}.", "标记 {written!r} 已当作 {marker!r}。"),
    "write_marker": ("Write {marker!r}.", "写成 {marker!r}。"),
    "no_end_before_next": (
        "The block that begins on line {line} has no end marker before the next block{hidden}.",
        "第 {line} 行开始的块在下一个块之前没有结束标记{hidden}。",
    ),
    "text_ends": (
        "The text ends inside the block that begins on line {line}{hidden}; it may be cut off.",
        "文本在第 {line} 行开始的块中结束{hidden}；可能被截断了。",
    ),
    "hidden_end": (" (the one on line {line} is in a comment)", "（第 {line} 行的结束标记在注释中）"),
    "block_too_long": (
        "The block that begins on line {line} is longer than {most} characters.",
        "第 {line} 行开始的块超过了 {most} 个字符。",
    ),
    "no_tail": (
        "The value of {key!r} has no {tail} before the next field or the end.",
        "{key!r} 的值在下一个字段或结尾之前没有 {tail}。",
    ),
    "ambiguous": (
        "Where the value of {key!r} ends is ambiguous: it holds {head} of its own.",
        "{key!r} 的值在哪里结束不明确：值中也有 {head}。",
    ),
    "read_to_end": (
        "The value of {key!r} has no {tail}; it was read up to the end marker.",
        "{key!r} 的值没有 {tail}，已读到结束标记为止。",
    ),
    "close_it": ("Close it: `{key}:{head}…{tail}`.", "这样结束它：`{key}:{head}…{tail}`。"),
    # near misses
    "nearly": (
        "This looks like a call, but {what}; it was not run.",
        "这像是一个调用，但{what}；它完全没有执行。",
    ),
    "nearly_of": (
        "This looks like a call of {tool!r}, but {what}; it was not run.",
        "这像是对 {tool!r} 的调用，但{what}；它完全没有执行。",
    ),
    "start_misspelt": ("its start marker is written {marker}", "开始标记写成了 {marker}"),
    "no_start": ("it has no start marker", "没有开始标记"),
    "never_began": ("{marker} ends a block that never began", "{marker} 结束了一个没有开始的块"),
    "as_tag": ("it is written as a tag", "写成了标签"),
    "as_json": ("it is written as JSON", "写成了 JSON"),
    "as_action": ("it is written as an `Action:` line", "写成了 `Action:` 行"),
    "write_call": ("Write the call like this:\n{block}", "这样书写此调用：\n{block}"),
    # inside of a block
    "undelimited": (
        "The line of {name!r} has no 「始」 and 「末」, so it was not read.",
        "{name!r} 这一行没有「始」和「末」，因此没有读取。",
    ),
    "write_this": ("Write `{field}`.", "写成 `{field}`。"),
    "call_it_command": (
        "Call the field `command`: `{field}` in place of {key!r}.",
        "此字段应叫 `command`：写成 `{field}`，而不是 {key!r}。",
    ),
    "number_or_split": (
        "Number the steps: `command1`, `command2`, and `name1`, `name2` for their parameters; or write two blocks.",
        "给步骤编号：`command1`、`command2`，其参数写成 `name1`、`name2`；或写成两个块。",
    ),
    # commands and steps
    "mixed_commands": ("`command` is used together with {names}.", "`command` 与 {names} 同时出现。"),
    "no_command": (
        "The block on line {line} names no tool: it has no `command` field.",
        "第 {line} 行的块没有指明工具：缺少 `command` 字段。",
    ),
    "too_many_places": (
        "{steps} steps and {shared} shared fields are too many for one block.",
        "一个块里有 {steps} 个步骤和 {shared} 个共用字段，太多了。",
    ),
    "two_commands": (
        "Two fields are the command of {step}: {first!r} and {second!r}.",
        "{step}有两个 command：{first!r} 和 {second!r}。",
    ),
    "the_block": ("the block", "此块"),
    "the_step": ("step {number}", "步骤 {number} "),
    "empty_command": ("{key!r} is empty: {step} names no tool.", "{key!r} 是空的：{step}没有指明工具。"),
    "no_tool": ("No tool is called {name}.", "没有名为 {name} 的工具。"),
    "did_you_mean": ("Did you mean {names}?", "是不是 {names}？"),
    "use_list": ("Use an id from the list of tools.", "使用工具列表中的 ID。"),
    "destructive_tail": (
        "The value of {key!r} has no tail, and {tool!r} is destructive.",
        "{key!r} 的值没有结尾标记，而 {tool!r} 是破坏性操作。",
    ),
    "destructive_fence": (
        "{tool!r} is destructive, and its call stands in a code fence; it was not run.",
        "{tool!r} 是破坏性操作，而它的调用在代码围栏中；它没有执行。",
    ),
    "orphan": (
        "{key!r} belongs to step {step}, which has no command; the steps are {steps}.",
        "{key!r} 属于步骤 {step}，但该步骤没有 command；现有步骤：{steps}。",
    ),
    "renumber": (
        "Add `command{step}`, or number it for one of the steps {steps}.",
        "加上 `command{step}`，或把编号改为现有步骤之一：{steps}。",
    ),
    "could_mean": ("{key!r} could mean {names}.", "{key!r} 可能指 {names}。"),
    "both_mean": (
        "{first!r} and {second!r} both mean the parameter {name!r}{step}.",
        "{first!r} 和 {second!r} 都指{step}参数 {name!r}。",
    ),
    "of_step": (" of step {number}", "步骤 {number} 的"),
    "both_give": (
        "{first!r} and {second!r} both give the parameter {name!r}.",
        "{first!r} 和 {second!r} 都给出了参数 {name!r}。",
    ),
    "given_twice": ("{key!r} is given twice.", "{key!r} 出现了两次。"),
    "no_parameter": ("{tools} has no parameter {key!r}.", "{tools} 没有参数 {key!r}。"),
    "hint_and": ("{hint} {rest}", "{hint}{rest}"),
    "parameters": ("Parameters: {names}.", "参数：{names}。"),
    "no_parameters": ("It has no parameters.", "它没有参数。"),
    "parameter": ("{name} ({expected})", "{name}（{expected}）"),
    "required_parameter": ("{name} ({expected}, required)", "{name}（{expected}，必填）"),
    # modifiers and references
    "bad_request_id": (
        "request_id: expected 1 to {most} printable characters, got {got}.",
        "request_id：应为 1 到 {most} 个可见字符，实际为 {got}。",
    ),
    "bad_on_error": ("{key}: expected stop or continue, got {got}.", "{key}：应为 stop 或 continue，实际为 {got}。"),
    "bad_retry": (
        "{key}: expected a whole number from 0 to {most}, got {got}.",
        "{key}：应为 0 到 {most} 的整数，实际为 {got}。",
    ),
    "bad_hint": (
        "{key}: expected json, base64 or text, got {got}.",
        "{key}：应为 json、base64 或 text，实际为 {got}。",
    ),
    "about_nothing": (
        "{key!r} is about {of!r}, which the block does not have.",
        "{key!r} 说的是 {of!r}，但块中没有它。",
    ),
    "add_or_drop": ("Add `{of}`, or take {key!r} away.", "加上 `{of}`，或去掉 {key!r}。"),
    "references_off": (
        "{key!r} is a reference to the result of a step, and references are off here.",
        "{key!r} 引用了步骤的结果，但这里没有开启引用。",
    ),
    "write_value": (
        "Write the value itself in a later block, or mark it as text: `type_hint_{key}:»»»text«««`.",
        "在之后的块中直接写出值，或标为文本：`type_hint_{key}:»»»text«««`。",
    ),
    "no_earlier_step": (
        "{key!r} refers to step {step}, which is not an earlier step; the earlier steps are: {steps}.",
        "{key!r} 引用步骤 {step}，但它不是更早的步骤；更早的步骤：{steps}。",
    ),
    "none": ("none", "无"),
    # values
    "wrong_value": ("Parameter {name!r}{step}: {wrong}.", "{step}参数 {name!r}：{wrong}。"),
    "expects": ("{name!r} of {tool!r} expects {expected}.", "{tool!r} 的 {name!r} 应为 {expected}。"),
    "missing": (
        "{tool!r} needs the parameter {name!r} ({expected}), which is missing.",
        "{tool!r} 需要参数 {name!r}（{expected}），但没有给出。",
    ),
    "add_field": ("Add `{key}:「始」…「末」`.", "加上 `{key}:「始」…「末」`。"),
    "at": ("{path}: {what}", "{path}：{what}"),
    "because": ("{what} ({why})", "{what}（{why}）"),
    "expected": ("expected {expected}, got {got}", "应为 {expected}，实际为 {got}"),
    "json_expected": ("expected JSON, got {got} ({why})", "应为 JSON，实际为 {got}（{why}）"),
    "base64_expected": ("expected base64 of UTF-8 text, got {got}", "应为 UTF-8 文本的 base64，实际为 {got}"),
    "not_quoted": ("values are not quoted", "值不加引号"),
    "one_of": ("one of {values}", "以下之一：{values}"),
    "both": ("{one} and {other}", "{one} 和 {other}"),
    "listed": ("{one}, {other}", "{one}、{other}"),
    "array_of": ("array of {items}", "{items} 的 array"),
    "nothing": ("nothing", "空"),
    # values as other languages write them
    "write_boolean": ("write true or false", "写 true 或 false"),
    "write_null": ("write null", "写 null"),
    "leave_out": ("leave the parameter out where there is nothing to say", "没有内容时不写此参数"),
    "write_json": ("write {json}", "写 {json}"),
    "write_number": ("write {number}", "写 {number}"),
    "json_word": ("JSON has {word}, not {written}", "JSON 中写 {word}，不写 {written}"),
    "json_quotes": ("JSON has double quotes, not single ones", "JSON 用双引号，不用单引号"),
    "json_comma": ("JSON has no comma before a closing bracket", "JSON 的右括号前没有逗号"),
    # limits of a text
    "too_many": (
        "The text has {has}; the limit is {limit}. Nothing of it was run.",
        "文本有 {has}；上限是 {limit}。它完全没有执行。",
    ),
    "many_characters": ("{count:,} characters", "{count:,} 个字符"),
    "many_blocks": ("{count:,} blocks", "{count:,} 个块"),
    "many_calls": ("{count:,} calls", "{count:,} 个调用"),
}
"""Every message of TAM. A test writes each in both languages."""
