"""The five tools. Their parameters are spelt as the models know them."""
# ruff: noqa: N803

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from tavern_core import CallContext, tool

from .edit import apply_edit
from .workspace import Workspace

FilePath = Annotated[str, "Path of the file inside the workspace, e.g. /logs/today.log. 工作区内的文件路径。"]
_MOST_ENTRIES = 1000


class FileTools:
    """Text files of one workspace.

    Args:
        root: the caller's workspace folder, or None → the folder to work in.
        limit: most bytes of one file.
    """

    def __init__(self, root: Callable[[str | None], str], limit: Callable[[], int]) -> None:
        self._root = root
        self._limit = limit

    def _workspace(self, context: CallContext) -> Workspace:
        return Workspace(self._root(context.workspace_dir), self._limit())

    @tool(name="WriteFile", display_name="写入文件", capabilities=["write:fs"], tags=["file", "文件"], idempotent=True)
    def write_file(
        self,
        filePath: FilePath,
        content: Annotated[str, "The whole new text. 完整的新内容。"],
        context: CallContext,
    ) -> dict[str, Any]:
        """Write a text file; an existing one is replaced, missing folders are made. 写入文件（覆盖已有内容）。"""
        path, is_new = self._workspace(context).write(filePath, content)
        return {"path": path, "bytes": len(content.encode()), "created": is_new}

    @tool(name="AppendFile", display_name="追加到文件", capabilities=["write:fs"], tags=["file", "文件"])
    def append_file(
        self,
        filePath: FilePath,
        content: Annotated[str, "The text to add at the end, line breaks included. 追加的内容。"],
        context: CallContext,
    ) -> dict[str, Any]:
        """Add text to the end of a file; a missing one is created. 在文件末尾追加内容。"""
        path, size = self._workspace(context).append(filePath, content)
        return {"path": path, "bytes": size}

    @tool(
        name="ApplyEdit", display_name="编辑文件", capabilities=["read:fs", "write:fs"], tags=["file", "edit", "编辑"]
    )
    def apply_edit(
        self,
        filePath: FilePath,
        search_string: Annotated[
            str, "The old text, exactly as in the file; it must occur once. 要查找并替换的旧内容。"
        ],
        replace_string: Annotated[str, "The new text. 用于替换的新内容。"],
        context: CallContext,
    ) -> dict[str, Any]:
        """Replace one or more lines of a file exactly. 精确替换文件中的一行或多行文本。"""

        def edit(text: str) -> tuple[str, int]:
            edited = apply_edit(text, search_string, replace_string)
            return edited.text, edited.line

        path, line = self._workspace(context).change(filePath, edit)
        return {"path": path, "line": line}

    @tool(name="ReadFile", display_name="读取文件", capabilities=["read:fs"], tags=["file", "文件"], read_only=True)
    def read_file(
        self,
        filePath: FilePath,
        context: CallContext,
        firstLine: Annotated[int, "First line to read, from 1. 起始行。"] = 1,
        lastLine: Annotated[int | None, "Last line to read; without it the end of the file. 结束行。"] = None,
    ) -> dict[str, Any]:
        """Read a text file or some of its lines. 读取文件内容。"""
        path, text = self._workspace(context).read(filePath)
        lines = text.splitlines(keepends=True)
        chosen = lines[max(firstLine, 1) - 1 : lastLine if lastLine is None else max(lastLine, 0)]
        return {"path": path, "content": "".join(chosen), "lines": len(lines)}

    @tool(name="ListFiles", display_name="列出文件", capabilities=["read:fs"], tags=["file", "文件"], read_only=True)
    def list_files(
        self, context: CallContext, folderPath: Annotated[str, "A folder of the workspace. 文件夹路径。"] = "/"
    ) -> dict[str, Any]:
        """List the files and folders in a folder of the workspace. 列出文件夹中的文件。"""
        path, entries, has_more = self._workspace(context).entries(folderPath, _MOST_ENTRIES)
        return {"path": path, "entries": entries, "more": has_more}
