"""``CodeInterpreter:execute``: run code of an agent (seed 000 §4.3), only in a box.

running.py   one call, from top to bottom
drivers/     programs that run the code in the box
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tavern_core.contract.context import PluginContext
from tavern_core.contract.hookspecs import hookimpl
from tavern_core.contract.python_targets import PythonTarget
from tavern_core.model.tool import Example, ToolSpec

LONGEST_CODE: Final = 200_000
PARAMETERS: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "language": {
            "type": "string",
            "enum": ["python", "javascript", "node"],
            "description": "python, or javascript (node is the same).",
        },
        "code": {
            "type": "string",
            "minLength": 1,
            "maxLength": LONGEST_CODE,
            "description": "The program. The answer has its output, and the value of a last line that is an expression.",
        },
    },
    "required": ["language", "code"],
    "additionalProperties": False,
}
ANSWER: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "stdout": {"type": "string"},
        "stderr": {"type": "string"},
        "exitCode": {"type": "integer", "description": "0: it ended by itself, without an error; below 0: a signal"},
        "value": {"description": "of a last line that is an expression; null if there is none"},
    },
    "required": ["stdout", "stderr", "exitCode", "value"],
}


@hookimpl(fast=True)
def tavern_register_tools(ctx: PluginContext) -> Iterable[ToolSpec]:
    return [
        ToolSpec(
            name="CodeInterpreter:execute",
            display_name="Code interpreter",
            description=(
                "Runs a short Python or JavaScript program and returns its output. It has its own temporary folder, no "
                "network and no files unless the caller may use them. 运行一段 Python 或 JavaScript 代码并返回输出。"
            ),
            version="1.0.0",
            tags=("code", "python", "javascript", "calculate", "代码", "执行", "计算"),
            input_schema=PARAMETERS,
            output_schema=ANSWER,
            capabilities=frozenset({"process:spawn"}),
            optional=True,
            impl=PythonTarget(execute, inject={"call": "call", "home": "home"}),
            examples=(
                Example({"language": "python", "code": "sum(n * n for n in range(10))"}, "the value is 285"),
                Example({"language": "javascript", "code": "console.log([1, 2, 3].map(n => n * 2))"}, "prints a list"),
            ),
        )
    ]


async def execute(language: str, code: str, call: Any, home: Any) -> dict[str, Any]:
    """See `running.run`; hosts that run no code load none of it."""
    from tavern_core.builtin.tools.code_interpreter.running import run

    return await run(language, code, call, home)
