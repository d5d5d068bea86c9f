"""`check --write`: add tool ids to plugin.yaml as a person would, without other changes.

    no `tools:`            a block at the end of the file
    tools: [] or tools:    filled in
    tools: - {...}         an item after the last one, in the same indentation
    tools: {entry: dir}    one small tool file per id in that folder

The text is edited, not dumped: comments, order and quotes stay. The result is read again and only written if it
equals the old content plus the new ids.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tavern_core.errors import ManifestInvalid
from tavern_core.kernel.discovery.found_plugin import MANIFEST_FILE
from tavern_core.kernel.files.atomic_file import kept_mode, write_atomic
from tavern_core.kernel.files.safe_paths import inside
from tavern_core.kernel.manifest.tool_files import TOOL_FILE_SUFFIX
from tavern_core.kernel.text.yaml_reader import YamlDocument, read_yaml


def write_tools(folder: Path, names: Sequence[str]) -> tuple[Path, ...]:
    """Declare the tools `names` (local names) of the plugin in `folder`.

    Returns:
        The files that were written.

    Raises:
        ManifestInvalid: plugin.yaml cannot be read, or cannot be edited safely; nothing changed.
        StateDamaged: a file cannot be written.
    """
    file = folder / MANIFEST_FILE
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ManifestInvalid(f"{file} cannot be read: {error.strerror}") from error
    document = read_yaml(content, MANIFEST_FILE)
    if document.findings or not isinstance(document.data, dict):
        raise ManifestInvalid(f"{file} must be correct before tools can be added", findings=document.findings)
    tools = document.data.get("tools")
    if isinstance(tools, dict):
        return _write_files(folder, str(tools.get("entry", "")), names)
    known = {item.get("id") for item in tools or () if isinstance(item, dict)}
    new = [name for name in dict.fromkeys(names) if name not in known]
    if not new:
        return ()
    bom = "\ufeff" if content.startswith(b"\xef\xbb\xbf") else ""
    text = add_tools(document, new)
    write_atomic(file.resolve(), bom + text, kept_mode(file))
    return (file,)


def add_tools(document: YamlDocument, names: Sequence[str]) -> str:
    """The text of plugin.yaml with the tools `names` added to its list.

    Raises:
        ManifestInvalid: the list cannot be edited without rewriting it.
    """
    tools = document.data.get("tools")
    expected = {**document.data, "tools": [*(tools or []), *(_item(name) for name in names)]}
    ending = "\r\n" if "\r\n" in document.text else "\n"
    lines = document.text.splitlines()
    if "tools" not in document.data:
        while lines and not lines[-1].strip():
            lines.pop()
        lines += ["", "tools:", *_lines("  ", names)]
    elif not tools:
        _fill(lines, document, names)
    else:
        _append(lines, document, len(tools), names)
    text = ending.join(lines) + ending
    again = read_yaml(text, document.file)
    if again.findings or again.data != expected:
        item = ", ".join(f"{{id: {name}, implementation: {{type: python}}}}" for name in names)
        raise ManifestInvalid("`tools:` is written in a way that cannot be edited safely", hint=f"add yourself: {item}")
    return text


def _item(name: str) -> dict[str, Any]:
    return {"id": name, "implementation": {"type": "python"}}


def _lines(indent: str, names: Sequence[str]) -> list[str]:
    """The lines of the new items, one per tool; quoted if YAML would misread the bare name."""
    written = [name if read_yaml(name, "").data == name else json.dumps(name) for name in names]
    return [
        line for name in written for line in (f"{indent}- id: {name}", f"{indent}  implementation: {{type: python}}")
    ]


def _fill(lines: list[str], document: YamlDocument, names: Sequence[str]) -> None:
    """Insert the items into an empty `tools:` or `tools: []`."""
    at = document.locate(("tools",), key=True).line - 1
    head, _, rest = lines[at].partition(":")
    comment = rest.strip().removeprefix("[]").removeprefix("null").removeprefix("~").strip()
    lines[at] = f"{head}:" + (f" {comment}" if comment.startswith("#") else "")
    lines[at + 1 : at + 1] = _lines("  ", names)


def _append(lines: list[str], document: YamlDocument, count: int, names: Sequence[str]) -> None:
    """Insert the items after the last of `count` items."""
    first, last = document.locate(("tools", 0)), document.locate(("tools", count - 1))
    dash = lines[first.line - 1].rfind("-", 0, first.column - 1)
    if dash < 0 or lines[first.line - 1][dash + 1 : first.column - 1].strip():
        return  # a list in brackets: the final check refuses to write it
    end = last.line  # the line after the last item's first one
    while end < len(lines) and _belongs(lines[end], dash):
        end += 1
    while end > last.line and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1  # blank lines and comments after the list stay after it
    lines[end:end] = _lines(" " * dash, names)


def _belongs(line: str, dash: int) -> bool:
    """True if a line belongs to an item whose dash is in column `dash`, or is blank."""
    stripped = line.strip()
    return not stripped or stripped.startswith("#") or len(line) - len(line.lstrip(" ")) > dash


def _write_files(folder: Path, entry: str, names: Sequence[str]) -> tuple[Path, ...]:
    place = inside(folder.resolve(), entry)
    if isinstance(place, str) or place.is_file():
        raise ManifestInvalid(f"tools.entry {entry!r} is not a folder of the plugin")
    written: list[Path] = []
    for name in dict.fromkeys(names):
        file = place / f"{name}{TOOL_FILE_SUFFIX}"
        if not file.exists():
            place.mkdir(parents=True, exist_ok=True)
            write_atomic(file, json.dumps(_item(name), ensure_ascii=False, indent=2) + "\n", kept_mode(file))
            written.append(file)
    return tuple(written)
