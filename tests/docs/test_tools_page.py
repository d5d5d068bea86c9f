"""What docs/tools.md shows of lists, profiles, manual and feedback is what the host makes of it."""

from __future__ import annotations

import re

import yaml

from tavern_core import tam
from tavern_core.kernel.access.profiles import parse_profile
from tavern_core.kernel.access.tool_access import compile_access
from tavern_core.kernel.calls.text_call_report import render_feedback
from tavern_core.kernel.catalogue.manual import render_manual
from tavern_core.model.call import CallContext
from tavern_core.model.config import HostConfig
from tavern_core.model.result import ToolError, ToolResult
from tavern_core.model.text_call import Step
from tavern_core.model.tool import Example, ToolSpec
from tests.rows import each_row

from .blocks import DOCS, blocks_of

PAGE = (DOCS / "tools.md").read_text(encoding="utf-8")
_TABLE = re.compile(r"\| caller \| tool \| answer \|\n\|[-|]+\n((?:\|[^\n]*\n)+)")
_TOOL = re.compile(r"^\| `([a-z-]+:\w+)` \| (yes|) ?\|$", re.MULTILINE)
TOOLS = {i: ToolSpec(i, plugin=i.split(":")[0], optional=bool(optional)) for i, optional in _TOOL.findall(PAGE)}


def rows() -> list[tuple[str, str, str, str]]:
    found = []
    for block in blocks_of(DOCS / "tools.md"):
        if block.language == "yaml" and (table := _TABLE.match(block.after)) is not None:
            for line in table[1].splitlines():
                caller, tool, answer = (cell.strip(" `") for cell in line.strip("|").split("|"))
                found.append((block.text, caller, tool, answer))
    return found


def test_the_page_has_examples():
    assert len(TOOLS) == 5
    assert len(rows()) == 12


@each_row(("config", "caller", "tool", "answer"), rows())
def test_the_lists_of_the_page_answer_as_it_says(config, caller, tool, answer):
    host = HostConfig.model_validate(yaml.safe_load(config))
    policy = compile_access(host, TOOLS, {t.plugin for t in TOOLS.values()})
    kind, _, name = caller.partition(":")
    context = CallContext(
        user_id=name if kind == "user" else "", roles=frozenset({name}) if kind == "role" else frozenset()
    )
    verdict = policy.verdict(TOOLS[tool], context)
    pattern = ".+".join(re.escape(part) for part in answer.split("…"))  # `…` stands for the rest of a long sentence
    assert re.fullmatch(pattern, verdict.reason or "yes"), verdict.reason


def test_the_profile_of_the_page_is_one():
    (text,) = (block.text for block in blocks_of(DOCS / "tools.md") if block.file.startswith("profiles/"))
    profile, findings = parse_profile(text, "agent_profile.json", "writer")
    assert "text:count" in profile.tool_ids_inventory
    assert findings == ()


def test_the_manual_of_the_page_is_what_is_written():
    count = ToolSpec(
        "text:count",
        "Count words or characters.",
        input_schema={
            "properties": {
                "text": {"type": "string", "description": "Text to count"},
                "unit": {"enum": ["words", "characters"], "default": "words"},
            },
            "required": ["text"],
        },
        examples=(Example({"text": "to be or not"}, "count words"),),
    )
    assert f"```text\n{render_manual([count])}\n```" in PAGE


def test_the_feedback_of_the_page_is_what_is_written():
    def step(block, index, tool, result):
        return Step(tam.TamCall(index=index, block=block, tool=tool, arguments={}), result)

    denied = ToolError("POLICY_DENIED", "file-operator:WriteFile needs write:fs", fix="grant write:fs")
    steps = [
        step(1, 1, "text:count", ToolResult(True, 4)),
        step(2, 1, "file-operator:WriteFile", ToolResult(False, error=denied)),
        step(2, 2, "file-operator:AppendFile", None),
    ]
    problem = tam.Problem(
        "error", "unterminated_block", "the block has no end marker", "write the end marker", block=3, line=12, column=1
    )
    assert f"```text\n{render_feedback(steps, [problem], language='en')}\n```" in PAGE
