"""The tools inside a real host: called by models' text, confined to the workspace, judged by rights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tavern_plugin_file_operator

from tavern_core import CallContext, Tavern

CHAIN = """好的，我来写日志。
<|[REQUEST_TOOL]|>
# 步骤 1: 创建文件
command1:「始」FileOperator.WriteFile「末」
filePath1:「始」/logs/today.log「末」
content1:「始」任务开始...「末」

# 步骤 2: 追加日志
command2:「始」FileOperator.AppendFile「末」
filePath2:「始」/logs/today.log「末」
content2:「始」\\n添加新记录。「末」
<|[END_TOOL]|>"""

EDIT = """<|[REQUEST_TOOL]|>
command:「始」FileOperator.ApplyEdit「末」
filePath:「始」/path/to/your/project/main.js「末」
search_string:「始」console.log("old message");「末」
replace_string:「始」console.log("new message");「末」
<|[END_TOOL]|>"""


def host(tmp_path: Path, **settings: Any) -> Tavern:
    config = {
        "plugins": {"roots": [], "entryPoints": False},
        "settings": {f"extensions.file-operator.{key}": value for key, value in settings.items()},
    }
    return Tavern.open(config=config, plugins=[tavern_plugin_file_operator], home=tmp_path / "home")


def test_a_chain_in_a_models_text_writes_and_appends(tmp_path: Path) -> None:
    with host(tmp_path, workspace=str(tmp_path / "ws")) as tavern:
        outcome = tavern.run_text_sync(CHAIN)
    assert [result.ok for result in outcome.results] == [True, True]
    assert (tmp_path / "ws/logs/today.log").read_text(encoding="utf-8") == "任务开始...\\n添加新记录。"


def test_an_edit_in_a_models_text_is_applied_once_and_then_refused(tmp_path: Path) -> None:
    file = tmp_path / "ws/path/to/your/project/main.js"
    file.parent.mkdir(parents=True)
    file.write_text('// start\nconsole.log("old message");\n')
    with host(tmp_path, workspace=str(tmp_path / "ws")) as tavern:
        (done,) = tavern.run_text_sync(EDIT).results
        (again,) = tavern.run_text_sync(EDIT).results
    assert done.value == {"path": "/path/to/your/project/main.js", "line": 2}
    assert file.read_text() == '// start\nconsole.log("new message");\n'
    assert again.error is not None
    assert again.error.kind == "TOOL_ERROR"
    assert "line 2 is closest" in again.error.message


def test_without_a_setting_each_caller_works_in_its_own_workspace(tmp_path: Path) -> None:
    rights = frozenset({"read:fs", "write:fs"})
    with host(tmp_path) as tavern:
        for name in ("a", "b"):
            caller = CallContext(permissions=rights, workspace_dir=str(tmp_path / name))
            arguments = {"filePath": "x.txt", "content": name}
            assert tavern.invoke_sync("file-operator:WriteFile", arguments, context=caller).ok
        own = tavern.invoke_sync("file-operator:WriteFile", {"filePath": "x.txt", "content": "own"})
        listed = tavern.invoke_sync("file-operator:ListFiles", {})
    assert [(tmp_path / name / "x.txt").read_text() for name in ("a", "b")] == ["a", "b"]
    assert own.ok
    assert listed.value == {"path": "/", "entries": [{"name": "x.txt", "type": "file", "bytes": 3}], "more": False}
    assert [p.read_text() for p in (tmp_path / "home").rglob("workspace/x.txt")] == ["own"]


def test_reading_some_lines(tmp_path: Path) -> None:
    with host(tmp_path, workspace=str(tmp_path / "ws")) as tavern:
        tavern.invoke_sync("file-operator:WriteFile", {"filePath": "x", "content": "一\n二\n三\n四"})
        read = tavern.invoke_sync("file-operator:ReadFile", {"filePath": "x", "firstLine": 2, "lastLine": 3})
        past = tavern.invoke_sync("file-operator:ReadFile", {"filePath": "x", "firstLine": 9})
    assert read.value == {"path": "/x", "content": "二\n三\n", "lines": 4}
    assert past.value == {"path": "/x", "content": "", "lines": 4}


@pytest.mark.parametrize(
    ("tool", "arguments", "permissions", "kind"),
    [
        ("WriteFile", {"filePath": "x", "content": "y"}, {"read:fs"}, "POLICY_DENIED"),
        ("ApplyEdit", {"filePath": "x", "search_string": "a", "replace_string": "b"}, {"write:fs"}, "POLICY_DENIED"),
        ("ReadFile", {"filePath": "x"}, set(), "POLICY_DENIED"),
        ("WriteFile", {"filePath": "../x", "content": "y"}, {"write:fs"}, "TOOL_ERROR"),
        ("WriteFile", {"filePath": "x"}, {"write:fs"}, "INPUT_SCHEMA_INVALID"),
        ("WriteFile", {"file_path": "x", "content": "y"}, {"write:fs"}, "INPUT_SCHEMA_INVALID"),
        ("WriteFile", {"filePath": "x", "content": "y" * 101}, {"write:fs"}, "TOOL_ERROR"),
    ],
)
def test_what_is_not_allowed_is_refused(
    tmp_path: Path, tool: str, arguments: dict[str, Any], permissions: set[str], kind: str
) -> None:
    with host(tmp_path, workspace=str(tmp_path / "ws"), maxBytes=100) as tavern:
        caller = CallContext(permissions=frozenset(permissions))
        result = tavern.invoke_sync(f"file-operator:{tool}", arguments, context=caller)
    assert result.error is not None
    assert result.error.kind == kind
    assert not (tmp_path / "ws/x").exists()


def test_its_skill_tells_how_to_edit(tmp_path: Path) -> None:
    with host(tmp_path) as tavern:
        result = tavern.invoke_sync("skill:careful-edits")
    assert result.ok
    assert "file-operator:ApplyEdit" in result.value["instructions"]
