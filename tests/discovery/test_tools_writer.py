"""`check --write`: ids are added to plugin.yaml and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tavern_core.errors import ManifestInvalid
from tavern_core.kernel.manifest.manifest_reader import read_manifest
from tavern_core.review.tools_writer import write_tools
from tests.rows import each_row

HEAD = '# a comment\nname: text\nversion: "1.0"\n'
ITEM = "- id: {}\n{}  implementation: {{type: python}}\n"


def item(name: str, indent: str = "  ") -> str:
    return f"{indent}- id: {name}\n{indent}  implementation: {{type: python}}\n"


def write(tmp_path: Path, text: str, *names: str) -> str:
    file = tmp_path / "plugin.yaml"
    file.write_bytes(text.encode())
    write_tools(tmp_path, names or ("count",))
    return file.read_bytes().decode()


CASES = [
    (HEAD, HEAD + "\ntools:\n" + item("count")),
    (HEAD.rstrip("\n"), HEAD + "\ntools:\n" + item("count")),
    (HEAD + "tools: []  # none yet\nstart: true\n", HEAD + "tools: # none yet\n" + item("count") + "start: true\n"),
    (HEAD + "tools:\nstart: true\n", HEAD + "tools:\n" + item("count") + "start: true\n"),
    (HEAD + "tools:\n" + item("a") + "start: true\n", HEAD + "tools:\n" + item("a") + item("count") + "start: true\n"),
    (HEAD + "tools:\n" + item("a", ""), HEAD + "tools:\n" + item("a", "") + item("count", "")),
    (HEAD + "tools:\n    - {id: a, handler: 'x:y'}  # first\n\n# about start\nstart: true\n",
     HEAD + "tools:\n    - {id: a, handler: 'x:y'}  # first\n" + item("count", "    ") + "\n# about start\nstart: true\n"),
    (HEAD + "tools:\n  - id: a\n    handler: x:y\n    # inside\n    description: |\n      several\n\n      lines\n",
     HEAD + "tools:\n  - id: a\n    handler: x:y\n    # inside\n    description: |\n      several\n\n      lines\n"
     + item("count")),
    (HEAD.replace("\n", "\r\n"), (HEAD + "\ntools:\n" + item("count")).replace("\n", "\r\n")),
    ("\ufeff" + HEAD, "\ufeff" + HEAD + "\ntools:\n" + item("count")),
]  # fmt: skip


@each_row(("before", "after"), CASES)
def test_ids_are_added_as_a_person_would(tmp_path: Path, before: str, after: str) -> None:
    assert write(tmp_path, before) == after
    assert read_manifest(after, "plugin.yaml", strict=True).manifest is not None
    assert write_tools(tmp_path, ["count"]) == ()


def test_names_that_yaml_would_read_as_something_else_are_quoted(tmp_path: Path) -> None:
    text = write(tmp_path, HEAD, "true", "1.5", "null", "plain-name", "count")
    manifest = read_manifest(text, "plugin.yaml", strict=True).manifest
    assert manifest is not None
    assert isinstance(manifest.tools, tuple)
    assert [tool.id for tool in manifest.tools] == ["true", "1.5", "null", "plain-name", "count"]


@pytest.mark.parametrize("tools", ["tools: [{id: a, handler: 'x:y'}]\n", "tools:\n  [{id: a,\n   handler: 'x:y'}]\n"])
def test_what_cannot_be_edited_safely_is_left_alone_and_told(tmp_path: Path, tools: str) -> None:
    with pytest.raises(ManifestInvalid) as refused:
        write(tmp_path, HEAD + tools)
    assert refused.value.hint == "add yourself: {id: count, implementation: {type: python}}"
    assert (tmp_path / "plugin.yaml").read_text() == HEAD + tools


def test_a_broken_manifest_is_not_touched(tmp_path: Path) -> None:
    with pytest.raises(ManifestInvalid):
        write(tmp_path, "name: [\n")
    with pytest.raises(ManifestInvalid):
        write_tools(tmp_path / "nowhere", ["count"])


def test_with_a_tool_folder_each_id_gets_a_file(tmp_path: Path) -> None:
    (tmp_path / "plugin.yaml").write_text(HEAD + "tools: {entry: ./tools}\n")
    written = write_tools(tmp_path, ["count", "upper"])
    assert [file.name for file in written] == ["count.tool.json", "upper.tool.json"]
    assert '"implementation"' in written[0].read_text()
    assert write_tools(tmp_path, ["count"]) == ()


def test_the_mode_of_the_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "plugin.yaml").write_text(HEAD)
    (tmp_path / "plugin.yaml").chmod(0o640)
    write_tools(tmp_path, ["count"])
    assert (tmp_path / "plugin.yaml").stat().st_mode & 0o777 == 0o640
